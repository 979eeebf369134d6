"""What a layout other than the one propagation chose would cost later, seen from the operations that use the value.

Propagation gives every value one sharding; where it conflicts with how the value is made, moving the value is not the
only way: a pointwise operation can work in the other layout, one that renames positions carries it on, and a
contraction may rather move its result. The estimate follows uses through such operations for a few steps; everything
else is taken to need what propagation chose.
"""

from __future__ import annotations

from propagation.attributes import dot_dims, integers
from propagation.program import Op, Value

from ..layout import Dims
from .batch import along_batch
from .context import Context
from .elementwise import PARTITION as POINTWISE
from .fourier import in_place
from .reshape import carried, renamed

__all__ = ["extra_cost"]

DEPTH = 8
USES = 3


def extra_cost(ctx: Context, value: Value, dims: Dims, depth: int = DEPTH) -> float:
    """Bytes that the users of `value` would send if it stayed in `dims`, more than they do in any case."""
    want = ctx.want(value)
    if not 0 < len(value.uses) <= USES:
        return 0.0 if dims == want else ctx.planner.cost(value.type.shape, ctx.bits(value), dims, want)
    if dims == want:
        return _conflicts(ctx, value, depth)
    move = ctx.planner.cost(value.type.shape, ctx.bits(value), dims, want)
    if not depth or not move:
        return move
    key = (value, dims, depth)
    found = ctx.estimates.get(key)
    if found is None:
        found, settled = 0.0, 0.0
        for use in value.uses:
            already = _conflict(ctx, use.op, value, depth - 1)
            settled += already
            more = _by(ctx, use.op, value, dims, depth - 1) - _by(ctx, use.op, value, want, depth - 1)
            found += max(0.0, already + more)
        found = ctx.estimates[key] = min(found, move + settled)
    return found


def _conflicts(ctx: Context, value: Value, depth: int) -> float:
    """Bytes that the users of `value` send although it is laid out as propagation chose, because propagation chose
    something else for their results."""
    if not depth or not 0 < len(value.uses) <= USES:
        return 0.0
    key = (value, (), depth)
    found = ctx.estimates.get(key)
    if found is None:
        found = ctx.estimates[key] = sum(_conflict(ctx, use.op, value, depth - 1) for use in value.uses)
    return found


def _conflict(ctx: Context, op: Op, value: Value, depth: int) -> float:
    """The same for one of them."""
    want = ctx.want(value)
    if op.name == "func.return" and value in ctx.returned_as:
        return _conflicts(ctx, ctx.returned_as[value], depth)
    if op.name in POINTWISE and len(op.results) == 1 and op.results[0].type.shape == value.type.shape:
        result, after = op.results[0], want
    else:
        after = renamed(op, want, ctx.sizes)
        if after is None and op.name == "stablehlo.reshape":  # what it cannot carry on is gathered
            kept, _ = carried(value.type.shape, want, op.results[0].type.shape, ctx.sizes)
            return ctx.planner.cost(value.type.shape, ctx.bits(value), want, kept)
        if after is None or op.results[0].type.size != value.type.size:
            return 0.0
        result = op.results[0]
    wanted = ctx.want(result)
    if after == wanted:
        return _conflicts(ctx, result, depth)
    return ctx.planner.cost(result.type.shape, ctx.bits(result), after, wanted)


def _by(ctx: Context, op: Op, value: Value, dims: Dims, depth: int) -> float:
    """What one operation has to send if it finds `value` in `dims`, with what follows from its result."""
    move = ctx.planner.cost(value.type.shape, ctx.bits(value), dims, ctx.want(value))
    if op.name in POINTWISE and len(op.results) == 1 and op.results[0].type.shape == value.type.shape:
        others = [v for v in op.operands if v is not value]
        stay = sum(reach(ctx, v, dims, depth) for v in others) + extra_cost(ctx, op.results[0], dims, depth)
        wanted = ctx.want(op.results[0])
        if wanted == ctx.want(value):
            return min(move, stay)
        go = ctx.planner.cost(value.type.shape, ctx.bits(value), dims, wanted)
        return min(go + sum(reach(ctx, v, wanted, 0) for v in others), stay)
    if (after := renamed(op, dims, ctx.sizes)) is not None:
        return min(move, extra_cost(ctx, op.results[0], _filled(ctx, op.results[0], after), depth))
    if op.name == "func.return" and value in ctx.returned_as:
        return min(move, extra_cost(ctx, ctx.returned_as[value], dims, depth))
    if op.name == "stablehlo.dot_general":
        return min(move + _dot(ctx, op, value, ctx.want(value)), _dot(ctx, op, value, dims))
    if (layouts := along_batch(op, value, dims)) is not None:
        others = [reach(ctx, v, d, depth) for v, d in zip(op.operands, layouts[0]) if v is not value]
        return min(move, sum(others) + sum(extra_cost(ctx, r, d, depth) for r, d in zip(op.results, layouts[1])))
    if op.name == "stablehlo.fft":
        return min(move, in_place(ctx, op, dims) + extra_cost(ctx, op.results[0], dims, depth))
    return move


def _filled(ctx: Context, result: Value, dims: Dims) -> Dims:
    """`dims` with what propagation gave the dimensions that they leave whole (a broadcast makes any part of those)."""
    if result.op.name != "stablehlo.broadcast_in_dim":
        return dims
    used = {a for d in dims for a in d}
    return tuple(d or tuple(a for a in w if a not in used) for d, w in zip(dims, ctx.want(result)))


def reach(ctx: Context, value: Value, dims: Dims, depth: int) -> float:
    """What it costs to have a value, perhaps one that is not made yet, in `dims`."""
    if value in ctx.env:
        return ctx.cost(value, dims)
    op = value.op
    shape = value.type.shape
    if op is not None and depth:
        if op.name in POINTWISE:
            return sum(reach(ctx, v, dims if v.type.shape == shape else (), depth - 1) for v in op.operands)
        if op.name == "stablehlo.broadcast_in_dim":
            inner = op.operands[0]
            place = integers(op.attrs["broadcast_dimensions"]) if inner.type.shape else ()
            kept = tuple(dims[j] if shape[j] == n else () for j, n in zip(place, inner.type.shape))
            return reach(ctx, inner, kept, depth - 1)
    return ctx.planner.cost(shape, ctx.bits(value), ctx.want(value), dims)


def _dot(ctx: Context, op: Op, value: Value, dims: Dims) -> float:
    """The cheaper of the ways that keep `value` in `dims`: the other operand follows it, or is taken as it is; the
    result follows from both and is moved afterwards."""
    a, b = op.operands
    if a is b:
        return 0.0
    left = value is a
    other, result = (b, a)[not left], op.results[0]
    d = dot_dims(op.attrs["dot_dimension_numbers"])
    mine = (*zip(d.lhs_batch, d.rhs_batch), *zip(d.lhs_contract, d.rhs_contract))
    pairs = dict(mine if left else [(j, i) for i, j in mine])
    batch, contract = (d.lhs_batch, d.lhs_contract) if left else (d.rhs_batch, d.rhs_contract)
    follow: list[tuple[int, ...]] = [()] * len(other.type.shape)
    for i, j in pairs.items():
        follow[j] = dims[i]
    used = {x for atoms in dims for x in atoms}
    have = ctx.state(other).dims if other in ctx.env else ctx.want(other)
    have = ctx.want(other) if have is None else have
    for j, atoms in enumerate(have):
        if j not in pairs.values() and not used & set(atoms):
            follow[j] = atoms
    pending = tuple(sorted(x for i in contract for x in dims[i]))
    free = [dims[i] for i in range(len(dims)) if i not in batch and i not in contract]
    theirs = [follow[j] for j in range(len(follow)) if j not in pairs.values()]
    out = (*[dims[i] for i in batch], *free, *theirs) if left else (*[dims[i] for i in batch], *theirs, *free)
    cost = reach(ctx, other, tuple(follow), 1)
    return cost + ctx.planner.cost(result.type.shape, ctx.bits(result), tuple(out), ctx.want(result), pending)
