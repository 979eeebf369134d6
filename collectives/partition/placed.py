"""Gathers and scatters at positions that are known (`progressions`): strided slices, and updates of strided windows.

On a split dimension elements then move by intervals: each device receives what it lacks of the positions it needs, and
nobody gathers anything.
"""

from __future__ import annotations

from jaxlib.mlir import ir

from propagation.graph import TensorType, Use
from propagation.program import Op, Value

from ..emit import Ref
from ..layout import Dims
from . import rules
from .context import Context
from .intervals import Run, assemble
from .progressions import Stretch, read, written
from .reduce import reduction_kind

__all__ = ["gather", "scatter"]

_COMBINE = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum", "and": "and", "or": "or", "xor": "xor"}


# -- operations in other words ----------------------------------------------------------------------------------


def _follow(ctx: Context, op: Op, value: Value, steps: list[tuple], result: Value | None = None) -> Value:
    """Partitions a chain of operations in the place of `op`: (name, attributes, shape, wanted layout) each. The last
    one's result is `result`, or else a new value, which `op` uses."""
    for k, (name, attrs, shape, want) in enumerate(steps):
        own = {key: ir.DenseI64ArrayAttr.get(numbers, ctx.program.context) for key, numbers in attrs.items()}
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
        rules()[name](ctx, inner)
        ctx.op, value = op, out
    return value


def _splits(dims: Dims | None, stretches: tuple[Stretch, ...], shape) -> bool:
    """Whether a dimension is split of which more than one position, but not all, are meant."""
    return dims is not None and any(
        atoms and s.count > 1 and not s.is_whole(n) for atoms, s, n in zip(dims, stretches, shape)
    )


def _mapped(small: Dims, stretches: tuple[Stretch, ...]) -> Dims:
    """The layout of the large tensor's dimensions that goes with one of the small tensor."""
    return tuple(() if s.along is None or s.count == 1 else small[s.along] for s in stretches)


def gather(ctx: Context, op: Op) -> bool:
    """A gather at known positions of split dimensions, as a slice; False if it is none."""
    table, result = op.operands[0], op.results[0]
    state = ctx.state(table)
    shape = table.type.shape
    if state.make is not None or not any(map(_any_split, (state.dims, ctx.want(result)))):
        return False
    stretches = read(op)
    if stretches is None:
        return False
    want = _mapped(ctx.want(result), stretches)
    if not (_splits(state.dims, stretches, shape) or _splits(want, stretches, shape)):
        return False
    counts = tuple(s.count for s in stretches)
    steps = []
    if any(not s.is_whole(n) for s, n in zip(stretches, shape)):
        attrs = {
            "start_indices": tuple(s.first for s in stretches),
            "limit_indices": tuple(max(s.start, s.last) + 1 for s in stretches),
            "strides": tuple(abs(s.step) for s in stretches),
        }
        steps.append(("stablehlo.slice", attrs, counts, want))
    flipped = tuple(d for d, s in enumerate(stretches) if s.step < 0 and s.count > 1)
    if flipped:
        steps.append(("stablehlo.reverse", {"dimensions": flipped}, counts, want))
    order = _order(stretches)
    if list(order) != sorted(order):
        moved = [tuple(x[d] for d in order) for x in (counts, want)]
        steps.append(("stablehlo.transpose", {"permutation": order}, *moved))
        counts = moved[0]
    if counts != result.type.shape:
        steps.append(("stablehlo.reshape", {}, result.type.shape, ctx.want(result)))
    _follow(ctx, op, table, steps, result)
    return True


def _any_split(dims: Dims | None) -> bool:
    return dims is not None and any(dims)


def _order(stretches: tuple[Stretch, ...]) -> tuple[int, ...]:
    """The large tensor's dimensions in the order of the small one's; those of one element stay behind the one before
    them."""
    at, keys = -1, []
    for d, s in enumerate(stretches):
        at = s.along if s.along is not None and s.count > 1 else at
        keys.append((at, d))
    return tuple(d for _, d in sorted(keys))


# -- scatter ------------------------------------------------------------------------------------------------------


def scatter(ctx: Context, op: Op) -> bool:
    """A scatter at known positions of split dimensions; False if it is none, or combines in a way of its own."""
    if len(op.results) != 1:
        return False
    target, _, update = op.operands
    result = op.results[0]
    state, shape = ctx.state(target), target.type.shape
    if not any(map(_any_split, (state.dims, ctx.want(result), ctx.state(update).dims))):
        return False
    combine = _combination(op)
    stretches = None if combine is None else written(op)
    if stretches is None:
        return False
    candidates = [ctx.want(result)]
    if state.dims is not None:
        candidates.append(state.dims)
    if (mine := ctx.state(update).dims) is not None:
        candidates.append(_mapped(mine, stretches))
    candidates = [dims for dims in dict.fromkeys(candidates) if _splits(dims, stretches, shape)]
    if not candidates:
        return False
    part = _aligned(ctx, op, update, stretches)
    best, inner = min(
        ((dims, _cheapest(ctx, part, stretches, dims, shape)) for dims in candidates),
        key=lambda c: ctx.move_cost(target, c[0]) + c[1][0] + ctx.later_cost(result, c[0]),
    )
    placed = _placed(ctx, part, stretches, inner[1], best, shape)
    base = ctx.get(target, best)
    new = placed
    if combine != "set":
        new = ctx.emit(f"stablehlo.{combine}", (base, placed), base.shape, base.dtype)
    mask = _inside(ctx, stretches, best, base.shape, shape)
    ctx.bind(result, best, ctx.emit("stablehlo.select", (mask, new, base), base.shape, base.dtype))
    return True


def _combination(op: Op) -> str | None:
    """The operation that puts old and new elements together; "set" if the new one is taken."""
    body = op.regions[0]
    if len(body.ops) == 1 and list(body.terminator.operands) == [body.args[1]]:
        return "set"
    kind = reduction_kind(body)
    return None if kind is None else _COMBINE[kind]


def _aligned(ctx: Context, op: Op, update: Value, stretches: tuple[Stretch, ...]) -> Value:
    """The updates with the dimensions of the target, in increasing positions."""
    order = [s.along for s in stretches if s.along is not None and s.count > 1]
    counts, have = tuple(s.count for s in stretches), ctx.want(update)
    want = _mapped(have, stretches)
    steps = []
    kept = [j for j in range(len(update.type.shape)) if j in order]
    if order != kept:
        rest = [j for j in range(len(update.type.shape)) if j not in order]
        permutation = (*order, *rest)
        moved = [tuple(x[j] for j in permutation) for x in (update.type.shape, have)]
        steps.append(("stablehlo.transpose", {"permutation": permutation}, *moved))
        if moved[0] != counts:
            steps.append(("stablehlo.reshape", {}, counts, want))
    elif update.type.shape != counts:
        steps.append(("stablehlo.reshape", {}, counts, want))
    flipped = tuple(d for d, s in enumerate(stretches) if s.step < 0 and s.count > 1)
    if flipped:
        steps.append(("stablehlo.reverse", {"dimensions": flipped}, counts, want))
    return _follow(ctx, op, update, steps)


def _cheapest(ctx: Context, part: Value, stretches, dims: Dims, shape) -> tuple[float, Dims]:
    """(bytes, layout of the updates) of the cheapest way to bring them to their places in a target laid out as `dims`:
    split like it, and moved by intervals, or whole where that costs less."""
    changed = [d for d, (s, n) in enumerate(zip(stretches, shape)) if dims[d] and not s.is_whole(n)]
    short = [d for d in changed if stretches[d].count < ctx.atoms.product(dims[d])]
    found = []
    for whole in (short, changed):
        inner = tuple(() if d in whole else atoms for d, atoms in enumerate(dims))
        bits = ctx.bits(part) * ctx.elements(shape, dims)
        moved = sum(bits * _lacking(ctx, stretches[d], dims[d], shape[d]) for d in changed if d not in whole)
        found.append((ctx.move_cost(part, inner) + moved, inner))
    return min(found, key=lambda c: c[0])


def _lacking(ctx: Context, s: Stretch, atoms, size: int) -> float:
    """The largest share of its piece of a dimension that a device receives."""
    p = ctx.atoms.product(atoms)
    have, piece, step = -(-s.count // p), -(-size // p), abs(s.step)
    most = 0
    for c in range(p):
        needs = range(max(0, -(-(c * piece - s.first) // step)), min(s.count, -(-((c + 1) * piece - s.first) // step)))
        held = range(max(needs.start, c * have), min(needs.stop, (c + 1) * have))
        most = max(most, len(needs) - len(held))
    return most / piece


def _placed(ctx: Context, part: Value, stretches, inner: Dims, dims: Dims, shape) -> Ref:
    """The updates where the target has them, in a piece of it; what lies between and around them is arbitrary."""
    ref = ctx.get(part, inner)
    realiser, region = ctx.realiser, ctx.region
    changed = [d for d, (s, n) in enumerate(zip(stretches, shape)) if not s.is_whole(n)]
    for d in sorted(changed, key=lambda d: not (dims[d] and inner[d])):  # sent before it grows
        s, n, step = stretches[d], shape[d], abs(stretches[d].step)
        if dims[d] and inner[d]:
            ref = _moved(ctx, ref, d, dims[d], s, n)
            continue
        piece = -(-n // ctx.atoms.product(dims[d])) if dims[d] else n
        high = piece * ctx.atoms.product(dims[d]) - s.first - (s.count - 1) * step - 1
        ref = realiser.pad(region, ref, d, s.first, high, loc=ctx.loc, inner=step - 1)
        if dims[d]:
            ref = realiser.window(region, ref, d, realiser.offset(region, dims[d], piece), piece, ctx.loc)
    return ref


def _moved(ctx: Context, ref: Ref, d: int, atoms, s: Stretch, size: int) -> Ref:
    """Along one dimension. Elements of a piece are set apart first, so that the pieces lie side by side again and
    mostly where they belong."""
    step, count, p = abs(s.step), s.count, ctx.atoms.product(atoms)
    lead = min(s.first, step - 1)
    if step > 1:
        ref = ctx.realiser.pad(ctx.region, ref, d, lead, step - 1 - lead, loc=ctx.loc, inner=step - 1)
        count *= step
    given = count if -(-count // p) == ref.shape[d] else p * ref.shape[d]
    at = s.first - lead
    run = Run(0, 0, at, min(count, size - at))
    return assemble(ctx, d, atoms, [ref], [given], size, [run], ctx.realiser.zero(ctx.region, (), ref.dtype))


def _inside(ctx: Context, stretches, dims: Dims, local, shape) -> Ref:
    """Which elements of a piece of the target are written (i1)."""
    mask = None
    for d, (s, n) in enumerate(zip(stretches, shape)):
        if s.is_whole(n):
            continue
        where = ctx.realiser.positions(ctx.region, local, d, dims[d], local[d])
        step, last = abs(s.step), s.first + (s.count - 1) * abs(s.step)
        tests = [("EQ", s.first)] if s.count == 1 else []
        if s.count > 1:
            tests = [("GE", s.first)] * (s.first > 0) + [("LE", last)] * (last < n - 1)
        found = [_compared(ctx, where, direction, bound) for direction, bound in tests]
        if s.count > 1 and step > 1:
            every = ctx.realiser.constant(ctx.region, local, "i32", str(step))
            rest = ctx.region.shared("stablehlo.remainder", (where, every), local, "i32")
            found.append(_compared(ctx, rest, "EQ", s.first % step))
        for test in found:
            mask = test if mask is None else ctx.region.shared("stablehlo.and", (mask, test), local, "i1")
    assert mask is not None
    return mask


def _compared(ctx: Context, where: Ref, direction: str, bound: int) -> Ref:
    other = ctx.realiser.constant(ctx.region, where.shape, "i32", str(bound))
    attrs = f"comparison_direction = #stablehlo<comparison_direction {direction}>"
    return ctx.region.shared("stablehlo.compare", (where, other), where.shape, "i1", attrs)
