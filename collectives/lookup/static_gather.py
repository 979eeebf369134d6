"""Gathers and scatters at indices known at compile time, along split dimensions: as strided slices, and updates of
strided slices (`progressions.py` recognises them).

x.at[1:-1].set(y) of x f32[1024@x] and y f32[1022@x] over 8 devices is one permute of a row and a masked select, instead
of an all-gather of y and a masked scatter."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from jaxlib.mlir import ir

from propagation.graph import TensorType, Use
from propagation.program import Op, Value

from ..analysis.progressions import StridedSlice, read, written
from ..analysis.reducers import reduction_kind
from ..decide.candidate import Candidate, Sent
from ..halo.exchange import assemble
from ..ir.builder import REDUCERS
from ..ir.operations import attributes
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context
from ..layouts.state import Run

__all__ = ["gather", "scatter"]

# -- chains of operations -----------------------------------------------------------------------------------------


# An operation of a chain: (name, attributes, global shape of the result, layout wanted for it).
_Step = tuple[str, dict[str, tuple[int, ...]], tuple[int, ...], Dims]


def _follow(ctx: Context, op: Op, value: Value, steps: Sequence[_Step], result: Value | None = None) -> Value:
    """Partitions a chain of operations on `value` in the place of `op`. The last one's result is `result`, or else a
    new value that `op` uses."""
    for k, (name, attrs, shape, want) in enumerate(steps):
        own: dict[str, ir.Attribute] = {
            key: ir.DenseI64ArrayAttr.get(numbers, ctx.program.context) for key, numbers in attrs.items()
        }
        inner = Op(name, (value,), [], op._ir, own)
        inner.parent = op.parent
        if k == len(steps) - 1 and result is not None:
            out = result
        else:
            out = Value(-1, TensorType(shape, value.type.dtype), inner, 0)
            out.uses.append(Use(op, 0))
            ctx.set_wants({out: want})
        if k:
            value.uses[:] = [Use(inner, 0)]
        inner.results = (out,)
        ctx.op = inner
        ctx.families[name](ctx, inner)
        ctx.op, value = op, out
    return value


def _splits(dims: Dims | None, stretches: tuple[StridedSlice, ...], shape: tuple[int, ...]) -> bool:
    """Whether some dimension is split along which a slice has several positions, but not all."""
    return dims is not None and any(
        atoms and s.length > 1 and not s.is_whole(n) for atoms, s, n in zip(dims, stretches, shape)
    )


def _mapped(small: Dims, stretches: tuple[StridedSlice, ...]) -> Dims:
    """The layout of the large tensor by that of the small one: corresponding dimensions are split alike."""
    return tuple(() if s.along is None or s.length == 1 else small[s.along] for s in stretches)


def gather(ctx: Context, op: Op) -> Candidate | None:
    """The way to do a gather at known indices as slice, reverse, transpose and reshape, each of which is then decided
    by itself; None if it is none."""
    table, result = op.operands[0], op.results[0]
    state = ctx.state(table)
    shape = table.type.shape
    if state.make is not None or not any(map(_any_split, (state.dims, ctx.want(result)))):
        return None
    stretches = read(op)
    if stretches is None:
        return None
    want = _mapped(ctx.want(result), stretches)
    if not (_splits(state.dims, stretches, shape) or _splits(want, stretches, shape)):
        return None
    counts = tuple(s.length for s in stretches)
    steps: list[_Step] = []
    if any(not s.is_whole(n) for s, n in zip(stretches, shape)):
        attrs = {
            "start_indices": tuple(s.first for s in stretches),
            "limit_indices": tuple(max(s.start, s.last) + 1 for s in stretches),
            "strides": tuple(abs(s.step) for s in stretches),
        }
        steps.append(("stablehlo.slice", attrs, counts, want))
    flipped = tuple(d for d, s in enumerate(stretches) if s.step < 0 and s.length > 1)
    if flipped:
        steps.append(("stablehlo.reverse", {"dimensions": flipped}, counts, want))
    order = _order(stretches)
    if list(order) != sorted(order):
        counts, want = tuple([counts[d] for d in order]), tuple([want[d] for d in order])
        steps.append(("stablehlo.transpose", {"permutation": order}, counts, want))
    if counts != result.type.shape:
        steps.append(("stablehlo.reshape", {}, result.type.shape, ctx.want(result)))
    layouts: tuple[Dims | None, ...] = (None,) * len(op.operands)

    def write() -> None:
        _follow(ctx, op, table, steps, result)

    return Candidate(layouts, (None,), write)


def _any_split(dims: Dims | None) -> bool:
    return dims is not None and any(dims)


def _order(stretches: tuple[StridedSlice, ...]) -> tuple[int, ...]:
    """The dimensions of the large tensor in the order of the small one's; those of one position stay behind the one
    before them."""
    at, keys = -1, []
    for d, s in enumerate(stretches):
        at = s.along if s.along is not None and s.length > 1 else at
        keys.append((at, d))
    return tuple(d for _, d in sorted(keys))


# -- scatter ------------------------------------------------------------------------------------------------------


def scatter(ctx: Context, op: Op) -> list[Candidate]:
    """The ways to do a scatter at known indices: updates are moved to their positions by interval moves, or gathered,
    and selected under a mask. No ways if indices are not known, or its body is no known reduction."""
    if len(op.results) != 1:
        return []
    target, _, update = op.operands
    result = op.results[0]
    state, shape = ctx.state(target), target.type.shape
    if not any(map(_any_split, (state.dims, ctx.want(result), ctx.state(update).dims))):
        return []
    combine = _combination(op)
    stretches = None if combine is None else written(op)
    if combine is None or stretches is None:
        return []
    layouts = [ctx.want(result)]
    if state.dims is not None:
        layouts.append(state.dims)
    if (mine := ctx.state(update).dims) is not None:
        layouts.append(_mapped(mine, stretches))
    split = [dims for dims in dict.fromkeys(layouts) if _splits(dims, stretches, shape)]
    split += [other for dims in split[:1] for other in _elsewhere(ctx, dims, stretches, shape)]
    return [way for dims in split for way in _at_known_places(ctx, op, stretches, dims, combine)]


def _elsewhere(
    ctx: Context, dims: Dims, stretches: tuple[StridedSlice, ...], shape: tuple[int, ...]
) -> Iterator[Dims]:  # fmt: skip
    """Layouts in which the axes of dimensions that are written in part split one that is written whole: all updates
    have that one, so that those of a piece are put into it by the device that holds it."""
    changed = [d for d, (s, n) in enumerate(zip(stretches, shape)) if dims[d] and not s.is_whole(n)]
    atoms = tuple([a for d in changed for a in dims[d]])
    for e, (s, n) in enumerate(zip(stretches, shape)):
        if s.along is not None and s.is_whole(n) and not dims[e] and n % ctx.atoms.product(atoms) == 0:
            yield tuple([() if d in changed else atoms if d == e else dims[d] for d in range(len(dims))])


def _at_known_places(
    ctx: Context, op: Op, stretches: tuple[StridedSlice, ...], dims: Dims, combine: str
) -> Iterator[Candidate]:  # fmt: skip
    """The ways to bring updates to their positions in a target laid out as `dims`: split like it and moved by interval
    moves, as far as there are enough of them, or gathered."""
    target, _, update = op.operands
    shape = target.type.shape
    changed = [d for d, (s, n) in enumerate(zip(stretches, shape)) if dims[d] and not s.is_whole(n)]
    short = [d for d in changed if stretches[d].length < ctx.atoms.product(dims[d])]
    held = ctx.itemsize(update) * ctx.elements(shape, dims)
    for whole in (short, changed) if changed else (changed,):
        inner = tuple(() if d in whole else atoms for d, atoms in enumerate(dims))
        home = _at_home(ctx, update, _of_updates(inner, stretches, update), stretches, shape)
        away = [d for d in changed if d not in whole and d != home]
        lacking = {d: _lacking(ctx, stretches[d], dims[d], shape[d]) for d in away}
        moved, messages = held * sum(lacking.values()), sum(map(bool, lacking.values()))
        atoms = tuple([a for d in lacking for a in dims[d]])
        sent = (Sent("collective_permute", atoms, moved, messages),) if moved else ()
        write = functools.partial(_write, ctx, op, stretches, inner, dims, combine)
        yield Candidate((dims, None, _of_updates(inner, stretches, update)), (dims,), write, sent=sent)


def _of_updates(inner: Dims, stretches: tuple[StridedSlice, ...], update: Value) -> Dims:
    """The layout of the updates as they are given, by that of the updates with the dimensions of the target."""
    place = {s.along: atoms for s, atoms in zip(stretches, inner) if s.along is not None and s.length > 1}
    return tuple([place.get(j, ()) for j in range(len(update.type.shape))])


def _write(
    ctx: Context, op: Op, stretches: tuple[StridedSlice, ...], inner: Dims, dims: Dims, combine: str
) -> None:  # fmt: skip
    """Writes the scatter in layout `dims`, with updates laid out as `inner` before they are brought to their places."""
    target, _, update = op.operands
    shape = target.type.shape
    new = _placed(ctx, _aligned(ctx, op, update, stretches), stretches, inner, dims, shape)
    base = ctx.get(target, dims)
    if combine != "set":
        new = ctx.emit(combine, (base, new), base.shape, base.dtype)
    mask = _inside(ctx, stretches, dims, base.shape, shape)
    ctx.bind(op.results[0], dims, ctx.emit("stablehlo.select", (mask, new, base), base.shape, base.dtype))


def _combination(op: Op) -> str | None:
    """The operation that combines old and new elements ("stablehlo.add"); "set" if the new one replaces the old one."""
    body = op.regions[0]
    if len(body.ops) == 1 and list(body.terminator.operands) == [body.args[1]]:
        return "set"
    kind = reduction_kind(body)
    return None if kind is None else REDUCERS[kind]


def _aligned(ctx: Context, op: Op, update: Value, stretches: tuple[StridedSlice, ...]) -> Value:
    """The updates with the dimensions of the target in its order, at increasing positions."""
    order = [s.along for s in stretches if s.along is not None and s.length > 1]
    counts, have = tuple(s.length for s in stretches), ctx.want(update)
    want = _mapped(have, stretches)
    steps: list[_Step] = []
    kept = [j for j in range(len(update.type.shape)) if j in order]
    if order != kept:
        rest = [j for j in range(len(update.type.shape)) if j not in order]
        permutation = (*order, *rest)
        moved = tuple([update.type.shape[j] for j in permutation])
        steps.append(
            ("stablehlo.transpose", {"permutation": permutation}, moved, tuple([have[j] for j in permutation]))
        )
        if moved != counts:
            steps.append(("stablehlo.reshape", {}, counts, want))
    elif update.type.shape != counts:
        steps.append(("stablehlo.reshape", {}, counts, want))
    flipped = tuple(d for d, s in enumerate(stretches) if s.step < 0 and s.length > 1)
    if flipped:
        steps.append(("stablehlo.reverse", {"dimensions": flipped}, counts, want))
    return _follow(ctx, op, update, steps)


def _lacking(ctx: Context, s: StridedSlice, atoms: Sequence[int], size: int) -> float:
    """The largest share of its piece of the target, along a dimension, that a device receives from others."""
    p = ctx.atoms.product(atoms)
    have, piece, step = -(-s.length // p), -(-size // p), abs(s.step)
    most = 0
    for c in range(p):
        needs = range(max(0, -(-(c * piece - s.first) // step)), min(s.length, -(-((c + 1) * piece - s.first) // step)))
        held = range(max(needs.start, c * have), min(needs.stop, (c + 1) * have))
        most = max(most, len(needs) - len(held))
    return most / piece


def _placed(
    ctx: Context, part: Value, stretches: tuple[StridedSlice, ...], inner: Dims, dims: Dims, shape: tuple[int, ...]
) -> LocalValue:
    """The updates at their positions in a piece of the target; elsewhere anything."""
    home = _at_home(ctx, part, inner, stretches, shape)
    view = None if home is None else ctx.view(part, inner)
    ref = ctx.get(part, inner) if view is None else view.base
    realiser, region = ctx.realiser, ctx.region
    changed = [d for d, (s, n) in enumerate(zip(stretches, shape)) if not s.is_whole(n) and d != home]
    for d in sorted(changed, key=lambda d: not (dims[d] and inner[d])):  # moved before padding makes it larger
        s, n, step = stretches[d], shape[d], abs(stretches[d].step)
        if dims[d] and inner[d]:
            ref = _moved(ctx, ref, d, dims[d], s, n)
            continue
        piece = -(-n // ctx.atoms.product(dims[d])) if dims[d] else n
        high = piece * ctx.atoms.product(dims[d]) - s.first - (s.length - 1) * step - 1
        ref = realiser.pad(region, ref, d, s.first, high, loc=ctx.loc, inner=step - 1)
        if dims[d]:
            ref = realiser.window(region, ref, d, realiser.offset(region, dims[d], piece), piece, ctx.loc)
    return ref


def _at_home(
    ctx: Context, part: Value, inner: Dims, stretches: tuple[StridedSlice, ...], shape: tuple[int, ...]
) -> int | None:
    """The dimension of the target along which updates that have its dimensions are a lazy slice whose elements lie at
    their positions already; None if there is none."""
    view = ctx.view(part, inner)
    if view is None or view.local is not None or len(stretches) != len(inner):
        return None
    s, d = stretches[view.dim], view.dim
    there = (s.along, s.start, s.step, shape[d]) == (d, view.start, 1, view.size)
    return d if there and view.holds(0, view.length) else None


def _moved(ctx: Context, ref: LocalValue, d: int, atoms: Sequence[int], s: StridedSlice, size: int) -> LocalValue:
    """Moves updates to their positions along one dimension. With a stride, the elements of each piece are first spaced
    by interior padding, so that the pieces lie side by side again, mostly where they belong."""
    step, count, p = abs(s.step), s.length, ctx.atoms.product(atoms)
    lead = min(s.first, step - 1)
    if step > 1:
        ref = ctx.realiser.pad(ctx.region, ref, d, lead, step - 1 - lead, loc=ctx.loc, inner=step - 1)
        count *= step
    given = count if -(-count // p) == ref.shape[d] else p * ref.shape[d]
    at = s.first - lead
    run = Run(0, 0, at, min(count, size - at))
    return assemble(ctx, d, atoms, [ref], [given], size, [run], ctx.realiser.zero(ctx.region, (), ref.dtype))


def _inside(
    ctx: Context, stretches: tuple[StridedSlice, ...], dims: Dims, local: tuple[int, ...], shape: tuple[int, ...]
) -> LocalValue:
    """The mask (i1) of the elements of a piece of the target that are written."""
    mask = None
    for d, (s, n) in enumerate(zip(stretches, shape)):
        if s.is_whole(n):
            continue
        where = ctx.realiser.positions(ctx.region, local, d, dims[d], local[d])
        step, last = abs(s.step), s.first + (s.length - 1) * abs(s.step)
        tests = [("EQ", s.first)] if s.length == 1 else []
        if s.length > 1:
            tests = [("GE", s.first)] * (s.first > 0) + [("LE", last)] * (last < n - 1)
        found = [_compared(ctx, where, direction, bound) for direction, bound in tests]
        if s.length > 1 and step > 1:
            every = ctx.realiser.constant(ctx.region, local, "i32", str(step))
            rest = ctx.region.shared("stablehlo.remainder", (where, every), local, "i32")
            found.append(_compared(ctx, rest, "EQ", s.first % step))
        for test in found:
            mask = test if mask is None else ctx.region.shared("stablehlo.and", (mask, test), local, "i1")
    assert mask is not None
    return mask


def _compared(ctx: Context, where: LocalValue, direction: str, bound: int) -> LocalValue:
    other = ctx.realiser.constant(ctx.region, where.shape, "i32", str(bound))
    attrs = attributes("stablehlo.compare", direction)
    return ctx.region.shared("stablehlo.compare", (where, other), where.shape, "i1", attrs)
