"""Slices and pads: local along whole dimensions, interval moves (`halo.exchange`) along split ones.

They are lazy: x[2:] padded again, or slices that are concatenated, are bound as `View`s of x, and only when somebody
asks for the result do elements travel, once and directly to where they end. A slice of fewer elements than devices may
be a masked lookup instead, and stencils share their halos (`shared_halos.py`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from propagation.attributes import integers
from propagation.program import Op, Value

from ..analysis.constants import scalar_constant
from ..decide.candidate import Candidate, Sent
from ..halo import shared_halos
from ..halo.exchange import assemble
from ..halo.lazy_views import join, leave
from ..heuristics import JOINED_SLICES
from ..ir.operations import attributes
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context
from ..layouts.state import Joined, Run, Span, View
from ..lookup import masked_lookup
from ..partial_sums import deferred_reduction
from .aligned import origin_of
from .batch import moved_away, rule_ahead, window_ahead
from .rearrange import rearranged


class _Shift(NamedTuple):
    """A slice or pad, which changes the positions of elements along the dimensions `changed`.

    local    (ref, before, after): the operation on one piece, where none of these dimensions is split
    runs_of  of a split dimension: the runs by which elements move along it, and what is elsewhere
    within   (ref, dim): the operation along a whole dimension alone
    spread   (ref, dims), if given, comes first: it puts interior padding between the elements of a piece, and returns
             it with the sizes of the tensor then
    """

    changed: list[int]
    local: Callable[[LocalValue, Dims, Dims], LocalValue]
    runs_of: Callable[[int], tuple[list[Run], LocalValue | None]]
    within: Callable[[LocalValue, int], LocalValue]
    spread: Callable[[LocalValue, Dims], tuple[LocalValue, list[int]]] | None = None


def _shifted(ctx: Context, op: Op, shift: _Shift, is_linear: bool) -> Iterator[Candidate]:
    """The ways to do a slice or pad: on pieces if none of the changed dimensions is split, else by moving elements. One
    that changes nothing is its operand."""
    value, result = op.operands[0], op.results[0]
    changed = shift.changed
    if not changed:  # frontends write such pads, in gradients of pooling
        same_as = functools.partial(ctx.bind_same, result, value)
        return iter((Candidate((None,) * len(op.operands), (None,), same_as),))

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
        return rearranged(ctx, op, value, same, same, shift.local, is_linear)
    return _moved(ctx, op, shift)


def _moved(ctx: Context, op: Op, shift: _Shift) -> Iterator[Candidate]:
    """The ways to do a slice or pad in which elements move along split dimensions."""
    value, result = op.operands[0], op.results[0]
    changed = shift.changed
    want = ctx.want(result)
    have = ctx.state(value).layout
    # A changed dimension that is wanted whole keeps the operand's split, if there is one.
    dims = _if_disjoint([w if w or i not in changed else h for i, (w, h) in enumerate(zip(want, have))]) or want
    if op.name == "stablehlo.slice":
        return _sliced(ctx, op, shift, dims)
    return _padded(ctx, op, shift, dims)


def _if_disjoint(dims: Sequence[tuple[int, ...]]) -> Dims | None:
    """The layout, if no axis splits two of its dimensions."""
    flat = [a for d in dims for a in d]
    return tuple(dims) if len(set(flat)) == len(flat) else None


def _sliced(ctx: Context, op: Op, shift: _Shift, dims: Dims) -> Iterator[Candidate]:
    """The ways to do a slice in which elements move: in the layout `dims`, or in that of the operand along dimensions
    that it keeps whole. What is resharded first may be less to move; what is sliced first is less to reshard."""
    result, changed, have = op.results[0], shift.changed, ctx.state(op.operands[0]).layout
    bound = _without_moving(ctx, op, shift, dims)
    stay = _if_disjoint([d if i in changed else h for i, (d, h) in enumerate(zip(dims, have))])
    if bound is not None or stay is None or stay == dims:
        yield from _sliced_as(ctx, op, shift, dims, bound)
        return
    for layout, found in ((dims, bound), (stay, _without_moving(ctx, op, shift, stay))):
        moved = ctx.itemsize(result) * ctx.elements(result.type.shape, layout)
        sent = tuple([Sent("collective_permute", layout[d], moved) for d in changed if layout[d] and found is None])
        yield from _sliced_as(ctx, op, shift, layout, found, sent)


def _without_moving(ctx: Context, op: Op, shift: _Shift, dims: Dims) -> Callable[[], None] | None:
    """What binds a slice to part of a halo that it shares with others, or of a lazy view; None if there is neither."""
    origin = functools.partial(origin_of, ctx, dims)
    return shared_halos.slice_of(ctx, op, dims, shift.changed, shift.within, origin) or _narrow(ctx, op, dims, shift)


def _sliced_as(
    ctx: Context, op: Op, shift: _Shift, dims: Dims, bound: Callable[[], None] | None, sent: tuple[Sent, ...] = ()
) -> Iterator[Candidate]:  # fmt: skip
    """The ways to do a slice of an operand that is laid out as `dims`; `bound` is the one in which nothing moves yet,
    `sent` what moving its elements sends."""
    result, changed = op.results[0], shift.changed
    move = functools.partial(_move, ctx, op, shift, dims)
    place = None if bound is not None else _few_positions(ctx, op, dims, changed)
    if place is None:
        yield Candidate((dims,), (dims,), bound or move, sent=sent)
        return
    size = ctx.itemsize(result) * ctx.elements(result.type.shape, dims)
    yield Candidate((dims,), (dims,), move, sent=(Sent("collective_permute", dims[place], size),))
    out = (*dims[:place], (), *dims[place + 1 :])
    look_up = functools.partial(_look_up, ctx, op, shift, dims, place)
    yield Candidate((dims,), (out,), look_up, pending=(dims[place],))
    value = op.operands[0]
    alike = sum(1 for use in value.uses if use.op.name == op.name and _narrows(use.op, place))
    if alike > 1:  # each is charged its share of the gather, and those that follow find it done
        sent = (Sent("all_gather", dims[place], ctx.move_cost(value, out) / alike, messages=0),)
        yield Candidate((None,), (out,), functools.partial(_move, ctx, op, shift, out), sent=sent)


def _narrows(op: Op, d: int) -> bool:
    """Whether a slice leaves out elements along dimension `d`."""
    return op.results[0].type.shape[d] < op.operands[0].type.shape[d]


def _padded(ctx: Context, op: Op, shift: _Shift, dims: Dims) -> Iterator[Candidate]:
    """The ways to do a pad in which elements move. One that grows may be done in other layouts than `dims`."""
    value, result = op.operands[0], op.results[0]
    grows = result.type.size > value.type.size
    for layout in _before_it_grows(ctx, result, dims, shift.changed) if grows else (dims,):
        # Where a changed dimension is whole every device computes the same, as in `rearranged`.
        work = 2 * ctx.itemsize(result) * ctx.redundancy * ctx.elements(result.type.shape, layout)
        yield Candidate((layout, None), (layout,), functools.partial(_move, ctx, op, shift, layout), work=work)


def _before_it_grows(ctx: Context, result: Value, dims: Dims, changed: list[int]) -> list[Dims]:
    """The layouts in which to pad: `dims`, that in which the result is wanted in the end, and those that are whole
    along `changed`, or have the axes of one such dimension at another one: resharding the operand, which is smaller,
    may send less than resharding the result."""
    layouts = [dims, ctx.goal(result)]
    whole = [tuple([() if i in changed else d for i, d in enumerate(layout)]) for layout in layouts]
    return list(dict.fromkeys([*layouts, *whole, *moved_away(ctx, result.type.shape, dims, changed)]))


def _move(ctx: Context, op: Op, shift: _Shift, dims: Dims) -> None:
    """Writes a slice or pad in layout `dims`; along split dimensions it is bound as a lazy view where it can be."""
    value, result = op.operands[0], op.results[0]
    ref, shape = ctx.get(value, dims), list(value.type.shape)
    if shift.spread is not None:
        ref, shape = shift.spread(ref, dims)
    split = [d for d in shift.changed if dims[d]]
    if split and _delay(ctx, op, ref, shape, dims, split, shift):
        return
    for d in shift.changed:
        if not dims[d]:
            ref = shift.within(ref, d)
            shape[d] = result.type.shape[d]
    for d in split:
        runs, fill = shift.runs_of(d)
        size = result.type.shape[d]
        ref = assemble(ctx, d, dims[d], [ref], [shape[d]], size, runs, fill)
        shape[d] = size
    ctx.bind(result, dims, ref)


def _delay(
    ctx: Context, op: Op, ref: LocalValue, sizes: Sequence[int], dims: Dims, split: list[int], shift: _Shift
) -> bool:  # fmt: skip
    """Binds a slice or pad along split dimensions as a lazy view, since its consumer may move elements further. Along
    whole dimensions it is sliced before elements move, but padded only afterwards."""
    spans, scalar = [], None
    for d in split:
        runs, scalar = shift.runs_of(d)
        length = op.results[0].type.shape[d]
        if len(runs) != 1 or runs[0].stride != 1 or not length:
            return False
        spans.append(Span(d, sizes[d], runs[0].start - runs[0].to, length))

    def others(x: LocalValue) -> LocalValue:
        for e in shift.changed:
            if e not in split:
                x = shift.within(x, e)
        return x

    if scalar is None:
        whole = [Span(d, sizes[d], 0, sizes[d]) for d, atoms in enumerate(dims) if atoms]
        share = None if op.name != "stablehlo.slice" else lambda: _shared(ctx, op, ref, dims, whole, None, others)
        leave(ctx, op, others(ref), spans, dims, None, None, None, share)
    else:
        after = others if len(shift.changed) > len(split) else None
        leave(ctx, op, ref, spans, dims, scalar_constant(op.operands[1]), after, scalar)
    return True


def _narrow(ctx: Context, op: Op, dims: Dims, shift: _Shift) -> Callable[[], None] | None:
    """What binds a slice of a lazy view to a view of the same base; None if the operand is no view, or does not give
    one."""
    value = op.operands[0]
    view = ctx.views(value, dims)
    if view is None:
        return None
    if view.joined is not None:
        return _narrow_joined(ctx, op, view, view.joined, shift)
    spans = {span.dim: span for span in view.spans}
    for d in shift.changed:
        if not dims[d]:
            continue
        (run,) = shift.runs_of(d)[0]
        old = spans.get(d, Span(d, value.type.shape[d], 0, value.type.shape[d]))
        spans[d] = old._replace(start=old.start + run.start, length=run.length)
        if run.stride != 1 or not run.length or not (spans[d].is_inside or view.scalar is not None):
            return None

    def others(x: LocalValue) -> LocalValue:
        x = x if view.local is None else view.local(x)
        for e in shift.changed:
            if not dims[e]:
                x = shift.within(x, e)
        return x

    held = {span.dim: span for span in view.spans}
    whole = [held.get(d, Span(d, n, 0, n)) for d, n in enumerate(value.type.shape) if dims[d]]
    share = lambda: _shared(ctx, op, view.base, dims, whole, view.scalar, others)

    def write() -> None:
        if view.local is None:
            leave(ctx, op, others(view.base), list(spans.values()), dims, view.fill, None, view.scalar, share)
        else:
            leave(ctx, op, view.base, list(spans.values()), dims, view.fill, others, view.scalar, share)

    return write


def _narrow_joined(
    ctx: Context, op: Op, view: View, joined: Joined, shift: _Shift
) -> Callable[[], None] | None:  # fmt: skip
    """The same for a lazy concatenation, of which only the parts that the slice contains are concatenated."""
    d, dims = view.dim, view.dims
    start, length, stride = 0, view.length, 1
    if d in shift.changed:
        (run,) = shift.runs_of(d)[0]
        start, length, stride = run.start, run.length, run.stride
    few = len(op.operands[0].uses) <= JOINED_SLICES
    if not few or stride != 1 or not length or any(dims[e] and e != d for e in shift.changed):
        return None
    refs, sizes, runs = joined
    kept = []
    for r in runs:
        low, high = max(r.to, start), min(r.to + r.length, start + length)
        if low < high:
            kept.append(Run(r.operand, r.start + (low - r.to) * r.stride, low - start, high - low, r.stride))
    used = sorted({r.operand for r in kept})
    kept = [r._replace(operand=used.index(r.operand)) for r in kept]

    def write() -> None:
        cut = list(refs)
        for e in shift.changed:
            if e != d:
                cut = [shift.within(x, e) for x in cut]
        join(ctx, op, dims, d, ([cut[k] for k in used], [sizes[k] for k in used], kept))

    return write


def _shared(
    ctx: Context, op: Op, base: LocalValue, dims: Dims, spans: Sequence[Span], fill: LocalValue | None,
    others: Callable[[LocalValue], LocalValue],
) -> LocalValue | None:  # fmt: skip
    """A slice's piece, cut out of a window that it shares with other slices; None if it shares none. `others` slices
    the whole dimensions."""
    ref = shared_halos.window_of(ctx, op, base, dims, spans, fill)
    return None if ref is None else others(ref)


def _few_positions(ctx: Context, op: Op, dims: Dims, changed: list[int]) -> int | None:
    """The split dimension along which a slice has fewer positions than there are devices, so that its pieces would be
    mostly padding; None if there is no such one, or others are split too."""
    result = op.results[0]
    small = [d for d in changed if dims[d] and result.type.shape[d] < ctx.atoms.product(dims[d])]
    if len(small) != 1 or any(dims[d] for d in changed if d not in small):
        return None
    (d,) = small
    return d if integers(op.attrs["strides"])[d] == 1 and result.type.shape[d] else None


def _look_up(ctx: Context, op: Op, shift: _Shift, dims: Dims, d: int) -> None:
    """Writes a slice of few positions along `d` as a masked lookup: each device contributes what it holds, zeros
    elsewhere."""
    value, result = op.operands[0], op.results[0]
    start, length = integers(op.attrs["start_indices"])[d], result.type.shape[d]
    ref = ctx.get(value, dims)
    for e in shift.changed:
        if e != d:
            ref = shift.within(ref, e)
    piece, realiser, region = ref.shape[d], ctx.realiser, ctx.region
    ref = ctx.masked(ref, value.type.shape, dims, [d])
    ref = realiser.pad(region, ref, d, length, length, loc=ctx.loc)
    first = realiser.index(region, start + length)
    at = ctx.emit("stablehlo.subtract", (first, realiser.offset(region, dims[d], piece)), (), "i32")
    bounds = [realiser.index(region, n) for n in (0, piece + length)]
    at = ctx.emit("stablehlo.clamp", (bounds[0], at, bounds[1]), (), "i32")
    ref = realiser.window(region, ref, d, at, length, ctx.loc)
    out = (*dims[:d], (), *dims[d + 1 :])
    masked_lookup.bind(ctx, result, out, dims[d], ref)


def slice_(ctx: Context, op: Op) -> Iterator[Candidate]:
    """Elements at known positions, in steps."""
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

    return _shifted(ctx, op, _Shift(changed, local, runs_of, within), True)


def pad(ctx: Context, op: Op) -> Iterator[Candidate]:
    """Around elements and between them."""
    value, fill = op.operands
    result = op.results[0]
    low, high = integers(op.attrs["edge_padding_low"]), integers(op.attrs["edge_padding_high"])
    inner = integers(op.attrs["interior_padding"])
    changed = [i for i in range(len(low)) if low[i] or high[i] or inner[i]]

    def local(ref: LocalValue, before: Dims, after: Dims) -> LocalValue:
        new = [result.type.shape[i] if i in changed else n for i, n in enumerate(ref.shape)]
        return ctx.emit(op.name, (ref, ctx.get(fill, ())), new, ref.dtype, extra=ctx.attributes_of(op))

    shape = value.type.shape
    # Known from the first run on that is written: a lazy view is cut out later, when other values are bound.
    scalar = functools.cache(lambda: ctx.get(fill, ()))
    lead = [min(max(0, before), k) for before, k in zip(low, inner)]

    def spread(ref: LocalValue, dims: Dims) -> tuple[LocalValue, list[int]]:
        """Puts the interior padding into every piece by itself, with as many fills in front of each element as the
        result begins with: the pieces then still lie side by side, mostly where the result has them."""
        which = [i for i in changed if inner[i] and dims[i]]
        ref = ctx.masked_with(ref, shape, dims, which, scalar())
        sizes = list(shape)
        for d in which:
            ref = ctx.realiser.pad(ctx.region, ref, d, lead[d], inner[d] - lead[d], scalar(), ctx.loc, inner[d])
            p = ctx.atoms.product(dims[d])
            sizes[d] = shape[d] * (inner[d] + 1)
            if -(-sizes[d] // p) != ref.shape[d]:
                sizes[d] = p * ref.shape[d]
        return ref, sizes

    def runs_of(d: int) -> tuple[list[Run], LocalValue | None]:
        n, m, before = shape[d] * (inner[d] + 1), result.type.shape[d], low[d] - lead[d]
        first, last = max(0, -before), min(n, m - before)
        runs = [Run(0, first, before + first, last - first)] if last > first else []
        return runs, scalar()

    def within(ref: LocalValue, d: int) -> LocalValue:
        return ctx.realiser.pad(ctx.region, ref, d, low[d], high[d], scalar(), ctx.loc, inner[d])

    zero = ctx.state(fill).make is not None and _is_zero(fill)
    return _shifted(ctx, op, _Shift(changed, local, runs_of, within, spread if any(inner) else None), zero)


def _is_zero(value: Value) -> bool:
    return scalar_constant(value) == 0


AHEAD = {"stablehlo.slice": window_ahead, "stablehlo.pad": rule_ahead}

CANDIDATES = {"stablehlo.slice": slice_, "stablehlo.pad": pad}
