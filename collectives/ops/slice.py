"""Slices, pads and concatenations: local along whole dimensions, interval moves (`halo.exchange`) along split ones.

They are lazy: x[2:] padded again, or slices that are concatenated, are bound as `View`s of x, and only when somebody
asks for the result do elements travel, once and directly to where they end. A slice of fewer elements than devices is a
masked lookup instead, and stencils share their halos (`shared_halos.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from propagation.attributes import integer, integers
from propagation.program import Op, Value

from ..analysis.constants import scalar_constant
from ..decide.choosing import take
from ..halo import shared_halos
from ..halo.exchange import assemble
from ..heuristics import JOINED_SLICES
from ..ir.operations import attributes
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context
from ..layouts.state import Joined, Run, Span, View
from ..lookup import masked_lookup
from ..partial_sums import deferred_reduction
from .batch import rule_ahead, window_ahead
from .rearrange import rearranged

Local = Callable[[LocalValue, Dims, Dims], LocalValue]
RunsOf = Callable[[int], tuple[list[Run], LocalValue | None]]
Within = Callable[[LocalValue, int], LocalValue]
Spread = Callable[[LocalValue, Dims], tuple[LocalValue, list[int]]]


def _shifted(
    ctx: Context, op: Op, changed: list[int], local: Local, runs_of: RunsOf, within: Within, is_linear: bool,
    spread: Spread | None = None,
) -> None:  # fmt: skip
    """A slice or pad, which changes the positions of elements along the dimensions `changed`.

    If none of these is split, it is `local(ref, before, after)` on each piece. Else elements move by `runs_of(dim)`
    along split dimensions, one after another, and by `within(ref, dim)` along whole ones. `spread(ref, dims)`, if
    given, comes first: it puts interior padding between the elements of a piece, and returns it with the sizes of the
    tensor then."""
    value, result = op.operands[0], op.results[0]

    def same(dims: Dims) -> tuple[Dims, Dims]:
        kept = tuple(() if i in changed else d for i, d in enumerate(dims))
        return kept, kept

    have = ctx.state(value).dims
    want = ctx.want(result)
    grows = result.type.size > value.type.size  # else it is sliced where it is whole, and may be split later
    local_only = have is None or not any(have[d] or (grows and want[d]) for d in changed)
    if not local_only and ctx.state(value).make is None and deferred_reduction.deferred(ctx, value):
        local_only = have is not None and not any(have[d] for d in changed)
    if local_only or ctx.state(value).make is not None:
        take(ctx, op, rearranged(ctx, op, value, same, same, local, is_linear))()
        return
    _move(ctx, op, changed, runs_of, within, spread)


def _move(
    ctx: Context, op: Op, changed: list[int], runs_of: RunsOf, within: Within, spread: Spread | None
) -> None:  # fmt: skip
    value, result = op.operands[0], op.results[0]
    dims = ctx.want(result)
    have = ctx.state(value).layout
    # A changed dimension that is wanted whole keeps the operand's split, if there is one.
    dims = tuple(w if w or i not in changed else h for i, (w, h) in enumerate(zip(dims, have)))
    flat = [a for d in dims for a in d]
    if len(set(flat)) != len(flat):
        dims = ctx.want(result)
    if result.type.size > value.type.size:
        dims = _before_it_grows(ctx, op, dims, changed)
    if op.name == "stablehlo.slice" and (
        shared_halos.slice_of(ctx, op, dims, changed, within)
        or _narrow(ctx, op, dims, changed, runs_of, within)
        or _select(ctx, op, dims, changed, within)
    ):
        return
    ref, shape = ctx.get(value, dims), list(value.type.shape)
    if spread is not None:
        ref, shape = spread(ref, dims)
    split = [d for d in changed if dims[d]]
    if split and _delay(ctx, op, ref, shape, dims, split, changed, runs_of, within):
        return
    for d in changed:
        if not dims[d]:
            ref = within(ref, d)
            shape[d] = result.type.shape[d]
    for d in split:
        runs, fill = runs_of(d)
        size = result.type.shape[d]
        ref = assemble(ctx, d, dims[d], [ref], [shape[d]], size, runs, fill)
        shape[d] = size
    ctx.bind(result, dims, ref)


def _before_it_grows(ctx: Context, op: Op, dims: Dims, changed: list[int]) -> Dims:
    """The layout in which to pad: `dims`, or that in which the result is wanted in the end, or one that is whole along
    `changed`, where resharding the operand to that, which is smaller, sends less than resharding the result."""
    value, result, goal = op.operands[0], op.results[0], ctx.goal(op.results[0])
    least = ctx.move_cost(value, dims) + ctx.later_cost(result, dims)
    if dims != goal and (before := ctx.move_cost(value, goal)) < least:
        dims, least = goal, before + ctx.later_cost(result, goal)
    whole = tuple(() if i in changed else d for i, d in enumerate(dims))
    if whole == dims:
        return dims
    more = ctx.elements(result.type.shape, whole) - ctx.elements(result.type.shape, dims)
    work = 2 * ctx.itemsize(result) * ctx.redundancy * more  # every device then computes the same, as in `rearranged`
    return whole if ctx.move_cost(value, whole) + ctx.later_cost(result, whole) + work < least else dims


def _delay(
    ctx: Context, op: Op, ref: LocalValue, sizes: Sequence[int], dims: Dims, split: list[int], changed: list[int],
    runs_of: RunsOf, within: Within,
) -> bool:  # fmt: skip
    """Binds a slice or pad along split dimensions as a lazy view, since its consumer may move elements further. Along
    whole dimensions it is sliced before elements move, but padded only afterwards."""
    spans, scalar = [], None
    for d in split:
        runs, scalar = runs_of(d)
        length = op.results[0].type.shape[d]
        if len(runs) != 1 or runs[0].stride != 1 or not length:
            return False
        spans.append(Span(d, sizes[d], runs[0].start - runs[0].to, length))

    def others(x: LocalValue) -> LocalValue:
        for e in changed:
            if e not in split:
                x = within(x, e)
        return x

    if scalar is None:
        whole = [Span(d, sizes[d], 0, sizes[d]) for d, atoms in enumerate(dims) if atoms]
        share = None if op.name != "stablehlo.slice" else lambda: _shared(ctx, op, ref, dims, whole, None, others)
        _leave(ctx, op, others(ref), spans, dims, None, None, None, share)
    else:
        after = others if len(changed) > len(split) else None
        _leave(ctx, op, ref, spans, dims, scalar_constant(op.operands[1]), after, scalar)
    return True


def _leave(
    ctx: Context, op: Op, base: LocalValue, spans: Sequence[Span], dims: Dims, number: float | int | bool | None,
    after: Callable[[LocalValue], LocalValue] | None, scalar: LocalValue | None,
    share: Callable[[], LocalValue | None] | None = None,
) -> None:  # fmt: skip
    """Binds the result to the lazy view of `spans` of `base`. `share()`, if given, cuts it out of a window that it
    shares with other slices, if there is one."""
    spans = [span for span in spans if not span.is_all]
    if not spans:
        ctx.bind(op.results[0], dims, base if after is None else after(base))
        return

    def cut() -> LocalValue:
        x = None if share is None else share()
        if x is not None:
            return x
        x = base
        for d, size, start, length in spans:
            low = max(0, start)
            run = Run(0, low, low - start, min(size, start + length) - low)
            x = assemble(ctx, d, dims[d], [x], [size], length, [run] if run.length > 0 else [], scalar)
        return x if after is None else after(x)

    first, more = spans[0], tuple(spans[1:])
    ctx.bind_view(
        op.results[0],
        View(base, first.size, first.dim, first.start, first.length, dims, cut, number, after, scalar, more),
    )


def _narrow(ctx: Context, op: Op, dims: Dims, changed: list[int], runs_of: RunsOf, within: Within) -> bool:
    """A slice of a lazy view: a view of the same base."""
    value = op.operands[0]
    view = ctx.views(value, dims)
    if view is None:
        return False
    if view.joined is not None:
        return _narrow_joined(ctx, op, view, view.joined, changed, runs_of, within)
    spans = {span.dim: span for span in view.spans}
    for d in changed:
        if not dims[d]:
            continue
        (run,) = runs_of(d)[0]
        old = spans.get(d, Span(d, value.type.shape[d], 0, value.type.shape[d]))
        spans[d] = old._replace(start=old.start + run.start, length=run.length)
        if run.stride != 1 or not run.length or not (spans[d].is_inside or view.scalar is not None):
            return False

    def others(x: LocalValue) -> LocalValue:
        x = x if view.local is None else view.local(x)
        for e in changed:
            if not dims[e]:
                x = within(x, e)
        return x

    held = {span.dim: span for span in view.spans}
    whole = [held.get(d, Span(d, n, 0, n)) for d, n in enumerate(value.type.shape) if dims[d]]
    share = lambda: _shared(ctx, op, view.base, dims, whole, view.scalar, others)
    if view.local is None:
        _leave(ctx, op, others(view.base), list(spans.values()), dims, view.fill, None, view.scalar, share)
    else:
        _leave(ctx, op, view.base, list(spans.values()), dims, view.fill, others, view.scalar, share)
    return True


def _shared(
    ctx: Context, op: Op, base: LocalValue, dims: Dims, spans: Sequence[Span], fill: LocalValue | None,
    others: Callable[[LocalValue], LocalValue],
) -> LocalValue | None:  # fmt: skip
    """A slice's piece, cut out of a window that it shares with other slices; None if it shares none. `others` slices
    the whole dimensions."""
    ref = shared_halos.window_of(ctx, op, base, dims, spans, fill)
    return None if ref is None else others(ref)


def _join(ctx: Context, op: Op, dims: Dims, d: int, joined: Joined) -> None:
    """Binds the result to the concatenation `joined` along `d`: written at once, or a lazy view if only slices use
    it."""
    result = op.results[0]
    refs, sizes, runs = joined
    length = result.type.shape[d]

    def cut() -> LocalValue:
        return assemble(ctx, d, dims[d], refs, sizes, length, runs, None)

    if len(runs) == 1 and runs[0].stride == 1:
        (run,) = runs
        _leave(ctx, op, refs[run.operand], [Span(d, sizes[run.operand], run.start, length)], dims, None, None, None)
    elif _only_sliced(ctx, result):
        ctx.bind_view(result, View(refs[0], sizes[0], d, 0, length, dims, cut, joined=joined))
    else:
        ctx.bind(result, dims, cut())


def _only_sliced(ctx: Context, value: Value) -> bool:
    while len(value.uses) == 1 and value in ctx.returned_as:
        value = ctx.returned_as[value]
    return bool(value.uses) and all(use.op.name == "stablehlo.slice" for use in value.uses)


def _narrow_joined(
    ctx: Context, op: Op, view: View, joined: Joined, changed: list[int], runs_of: RunsOf, within: Within
) -> bool:  # fmt: skip
    """A slice of a lazy concatenation concatenates only the parts that it contains."""
    d, dims = view.dim, view.dims
    start, length, stride = 0, view.length, 1
    if d in changed:
        (run,) = runs_of(d)[0]
        start, length, stride = run.start, run.length, run.stride
    few = len(op.operands[0].uses) <= JOINED_SLICES
    if not few or stride != 1 or not length or any(dims[e] and e != d for e in changed):
        return False
    refs, sizes, runs = joined
    kept = []
    for r in runs:
        low, high = max(r.to, start), min(r.to + r.length, start + length)
        if low < high:
            kept.append(Run(r.operand, r.start + (low - r.to) * r.stride, low - start, high - low, r.stride))
    cut = list(refs)
    for e in changed:
        if e != d:
            cut = [within(x, e) for x in cut]
    used = sorted({r.operand for r in kept})
    kept = [r._replace(operand=used.index(r.operand)) for r in kept]
    _join(ctx, op, dims, d, ([cut[k] for k in used], [sizes[k] for k in used], kept))
    return True


def _select(ctx: Context, op: Op, dims: Dims, changed: list[int], within: Within) -> bool:
    """A slice with fewer positions than there are devices along the dimension, whose pieces would be mostly padding, as
    a masked lookup: each device contributes what it holds, zeros elsewhere. False if that would not send less."""
    value, result = op.operands[0], op.results[0]
    small = [d for d in changed if dims[d] and result.type.shape[d] < ctx.atoms.product(dims[d])]
    if len(small) != 1 or any(dims[d] for d in changed if d not in small):
        return False
    (d,) = small
    start, length = integers(op.attrs["start_indices"])[d], result.type.shape[d]
    if integers(op.attrs["strides"])[d] != 1 or not length:
        return False
    out, shape = _without(dims, d), result.type.shape
    moved = ctx.itemsize(result) * ctx.elements(shape, dims)
    if ctx.later_cost(result, out, dims[d]) >= moved + ctx.later_cost(result, dims):
        return False
    ref = ctx.get(value, dims)
    for e in changed:
        if e != d:
            ref = within(ref, e)
    piece, realiser, region = ref.shape[d], ctx.realiser, ctx.region
    ref = ctx.masked(ref, value.type.shape, dims, [d])
    ref = realiser.pad(region, ref, d, length, length, loc=ctx.loc)
    first = realiser.index(region, start + length)
    at = ctx.emit("stablehlo.subtract", (first, realiser.offset(region, dims[d], piece)), (), "i32")
    bounds = [realiser.index(region, n) for n in (0, piece + length)]
    at = ctx.emit("stablehlo.clamp", (bounds[0], at, bounds[1]), (), "i32")
    ref = realiser.window(region, ref, d, at, length, ctx.loc)
    masked_lookup.bind(ctx, result, out, dims[d], ref)
    return True


def slice_(ctx: Context, op: Op) -> None:
    value, result = op.operands[0], op.results[0]
    shape = value.type.shape
    starts = integers(op.attrs["start_indices"])
    limits = integers(op.attrs["limit_indices"])
    strides = integers(op.attrs["strides"])
    full = [s == 0 and e == n and k == 1 for s, e, k, n in zip(starts, limits, strides, shape)]
    changed = [i for i, whole in enumerate(full) if not whole]

    def local(ref: LocalValue, before: Dims, after: Dims) -> LocalValue:
        ends = [n if i not in changed else e for i, (n, e) in enumerate(zip(ref.shape, limits))]
        new = [n if i not in changed else result.type.shape[i] for i, n in enumerate(ref.shape)]
        attrs = attributes("stablehlo.slice", tuple(starts), tuple(ends), tuple(strides))
        return ctx.emit(op.name, (ref,), new, ref.dtype, attrs)

    def runs_of(d: int) -> tuple[list[Run], LocalValue | None]:
        return [Run(0, starts[d], 0, result.type.shape[d], strides[d])], None

    def within(ref: LocalValue, d: int) -> LocalValue:
        return ctx.realiser.cut(ctx.region, ref, d, starts[d], limits[d], ctx.loc, strides[d])

    _shifted(ctx, op, changed, local, runs_of, within, True)


def pad(ctx: Context, op: Op) -> None:
    value, fill = op.operands
    result = op.results[0]
    low, high = integers(op.attrs["edge_padding_low"]), integers(op.attrs["edge_padding_high"])
    inner = integers(op.attrs["interior_padding"])
    changed = [i for i in range(len(low)) if low[i] or high[i] or inner[i]]

    def local(ref: LocalValue, before: Dims, after: Dims) -> LocalValue:
        new = [result.type.shape[i] if i in changed else n for i, n in enumerate(ref.shape)]
        return ctx.emit(op.name, (ref, ctx.get(fill, ())), new, ref.dtype, extra=ctx.attributes_of(op))

    shape = value.type.shape
    scalar = ctx.get(fill, ())  # now: a lazy view is cut out later, when other values are bound
    lead = [min(max(0, before), k) for before, k in zip(low, inner)]

    def spread(ref: LocalValue, dims: Dims) -> tuple[LocalValue, list[int]]:
        """Puts the interior padding into every piece by itself, with as many fills in front of each element as the
        result begins with: the pieces then still lie side by side, mostly where the result has them."""
        which = [i for i in changed if inner[i] and dims[i]]
        ref = ctx.masked_with(ref, shape, dims, which, scalar)
        sizes = list(shape)
        for d in which:
            ref = ctx.realiser.pad(ctx.region, ref, d, lead[d], inner[d] - lead[d], scalar, ctx.loc, inner[d])
            p = ctx.atoms.product(dims[d])
            sizes[d] = shape[d] * (inner[d] + 1)
            if -(-sizes[d] // p) != ref.shape[d]:
                sizes[d] = p * ref.shape[d]
        return ref, sizes

    def runs_of(d: int) -> tuple[list[Run], LocalValue | None]:
        n, m, before = shape[d] * (inner[d] + 1), result.type.shape[d], low[d] - lead[d]
        first, last = max(0, -before), min(n, m - before)
        runs = [Run(0, first, before + first, last - first)] if last > first else []
        return runs, scalar

    def within(ref: LocalValue, d: int) -> LocalValue:
        return ctx.realiser.pad(ctx.region, ref, d, low[d], high[d], scalar, ctx.loc, inner[d])

    zero = ctx.state(fill).make is not None and _is_zero(fill)
    _shifted(ctx, op, changed, local, runs_of, within, zero, spread if any(inner) else None)


def _is_zero(value: Value) -> bool:
    return scalar_constant(value) == 0


def concatenate(ctx: Context, op: Op) -> None:
    """Along a whole dimension local; along a split one, interval moves from all operands."""
    result = op.results[0]
    d = integer(op.attrs["dimension"])
    shape = result.type.shape
    bound = [v for v in op.operands if ctx.state(v).make is None]
    if not bound:

        def make(dims: Dims) -> LocalValue:
            kept = _without(dims, d)
            return ctx.reshard(shape, _concatenate(ctx, op, kept, d), kept, dims)

        ctx.bind_lazy(result, make)
        return
    if _concatenate_sums(ctx, op, d):
        return
    want = ctx.want(result)
    candidates = [want, _without(want, d)]
    for v in bound:
        have = ctx.state(v).layout
        for dims in (have, _without(have, d)):
            if dims not in candidates:
                candidates.append(dims)
    itemsize = ctx.itemsize(result)

    def cost(dims: Dims) -> float:
        total = sum(ctx.move_cost(v, dims) for v in op.operands) + ctx.later_cost(result, dims)
        if dims[d]:  # at most one piece of the result moves along the dimension
            total += ctx.elements(shape, dims) * itemsize * _moved(ctx, op, dims, d)
        return total + 2 * itemsize * ctx.elements(shape, dims) * ctx.redundancy

    best = min(candidates, key=cost)
    if not best[d]:
        ctx.bind(result, best, _concatenate(ctx, op, best, d))
        return
    refs, sizes, runs, at = [], [], [], 0
    for v in op.operands:
        ref, size, start = _base(ctx, v, best, d)
        if ref not in refs:
            refs.append(ref)
            sizes.append(size)
        runs.append(Run(refs.index(ref), start, at, v.type.shape[d]))
        at += v.type.shape[d]
    _join(ctx, op, best, d, (refs, sizes, runs))


def _concatenate_sums(ctx: Context, op: Op, d: int) -> bool:
    """Joins unreduced sums part by part, so that they are reduced as one; False if operands are reduced first."""
    sums = [deferred_reduction.deferred(ctx, v) for v in op.operands]
    first = sums[0]
    if first is None or first.dims[d]:
        return False
    alike = lambda p: p is not None and (p.dims, set(p.parts), p.chosen) == (first.dims, set(first.parts), first.chosen)
    if not all(map(alike, sums)):
        return False
    shape = ctx.piece_shape(op.results[0], first.dims)
    attrs = ctx.attributes_of(op)
    parts = {}
    for atoms in first.parts:
        refs = [p.parts[atoms] for p in sums if p is not None]
        parts[atoms] = ctx.emit(op.name, refs, shape, refs[0].dtype, extra=attrs)
    masked = any(p.masked for p in sums if p is not None)
    ctx.bind_partial(op.results[0], first.dims, parts, masked=masked, chosen=first.chosen)
    return True


def _base(ctx: Context, value: Value, dims: Dims, d: int) -> tuple[LocalValue, int, int]:
    """(tensor, its size along d, start in it) that `value` is a slice of: itself, or the base of its view."""
    view = ctx.view(value, dims)
    if view is not None and view.dim == d and view.holds(0, view.length):
        return view.base, view.size, view.start
    return ctx.get(value, dims), value.type.shape[d], 0


def _moved(ctx: Context, op: Op, dims: Dims, d: int) -> float:
    """The largest share of its piece of the result that a device receives from others, operands being laid out
    alike."""
    p = ctx.atoms.product(dims[d])
    size = op.results[0].type.shape[d]
    want = -(-size // p)
    kept = [0] * p
    at = 0
    for v in op.operands:
        n = v.type.shape[d]
        view = ctx.state(v).view
        base, first = n, 0
        if view is not None and view.dims == dims and view.dim == d and view.holds(0, view.length):
            base, first = view.size, view.start
        have = -(-base // p)
        for c in range(p):
            low = max(c * want, at, at - first + c * have)
            high = min((c + 1) * want, at + n, at - first + (c + 1) * have)
            kept[c] += max(0, high - low)
        at += n
    return max(max(0, min(want, size - c * want) - k) for c, k in enumerate(kept)) / max(1, want)


def _concatenate(ctx: Context, op: Op, dims: Dims, d: int) -> LocalValue:
    refs = [ctx.get(v, dims) for v in op.operands]
    new = [*refs[0].shape[:d], op.results[0].type.shape[d], *refs[0].shape[d + 1 :]]
    return ctx.emit(op.name, refs, new, refs[0].dtype, extra=ctx.attributes_of(op))


def _without(dims: Dims, d: int) -> Dims:
    return (*dims[:d], (), *dims[d + 1 :])


AHEAD = {
    "stablehlo.slice": window_ahead,
    "stablehlo.pad": rule_ahead,
    "stablehlo.concatenate": rule_ahead,
}

PARTITION = {
    "stablehlo.slice": slice_,
    "stablehlo.pad": pad,
    "stablehlo.concatenate": concatenate,
}
