"""What a layout other than the one propagation chose would cost later, seen from the operations that use the value.

Propagation gives every value one sharding; where it conflicts with how the value is made, moving the value is not the
only way: a pointwise operation can work in the other layout, one that renames positions carries it on, and a
contraction may rather move its result. The estimate follows uses through such operations for a few steps; everything
else is taken to need what propagation chose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from propagation.attributes import dot_dims, integers
from propagation.program import Func, Op, Value

from ..layout import Dims
from .batch import along_batch, factors_of
from .bodies import called, is_written_in_place
from .context import Context
from .elementwise import PARTITION as POINTWISE
from .factors import REDUCE, WHOLE, Factors, layout_of
from .fourier import in_place
from .gather import factors_of_gather, factors_of_scatter
from .reshape import carried, renamed

__all__ = ["extra_cost"]

DEPTH = 8
USES = 3
# Operations that keep the split of dimensions in which they change nothing, or that they sum up.
RULED = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("concatenate", "dynamic_slice", "dynamic_update_slice", "gather", "pad"),
        *("reduce", "reverse", "scatter", "slice", "sort"),
    )
)


def extra_cost(ctx: Context, value: Value, dims: Dims, depth: int = DEPTH) -> float:
    """Bytes that the users of `value` would send if it was in `dims`: to move it, to bring what they use beside it to
    where it is, and to have their results where these are wanted."""
    if not value.uses:  # as a result of a call that nobody uses
        return 0.0
    want = ctx.want(value)
    move = 0.0 if dims == want else ctx.planner.cost(value.type.shape, ctx.bits(value), dims, want)
    if not depth or len(value.uses) > USES:
        return move
    key = (value, dims, depth)
    found = ctx.estimates.get(key)
    if found is None:
        found = 0.0
        for use in value.uses:
            found += _by(ctx, use.op, value, dims, depth - 1)
        if move < found and move:
            found = min(found, move + extra_cost(ctx, value, want, depth))
        ctx.estimates[key] = found
    return found


def _by(ctx: Context, op: Op, value: Value, dims: Dims, depth: int) -> float:
    """What one operation has to send if it finds `value` in `dims`, with what follows from its result."""
    if op.name in POINTWISE and len(op.results) == 1 and op.results[0].type.shape == value.type.shape:
        return _pointwise(ctx, op, value, dims, depth)
    want = ctx.want(value)
    to = lambda layout: ctx.planner.cost(value.type.shape, ctx.bits(value), dims, layout)
    if op.name == "func.return" and value in ctx.returned_as:
        return extra_cost(ctx, ctx.returned_as[value], dims, depth)
    if op.name == "func.call" and (callee := called(ctx, op)) is not None and is_written_in_place(ctx, callee):
        return _called(ctx, op, callee, value, dims, depth)
    if (after := renamed(op, dims, ctx.sizes)) is not None:
        return _renamed(ctx, op, value, dims, after, depth)
    if op.name == "stablehlo.reshape":
        return _reshaped(ctx, op, value, dims, depth)
    if op.name == "stablehlo.dot_general":
        return _dot(ctx, op, value, dims, depth)
    if (layouts := along_batch(op, value, dims)) is not None:
        others = [reach(ctx, v, d, depth) for v, d in zip(op.operands, layouts[0]) if v is not value]
        return min(to(want), sum(others) + sum([extra_cost(ctx, r, d, depth) for r, d in zip(op.results, layouts[1])]))
    if op.name == "stablehlo.fft":
        return min(to(want), in_place(ctx, op, dims) + extra_cost(ctx, op.results[0], dims, depth))
    if op.name in ("sdy.sharding_constraint", "sdy.reshard"):
        asked = ctx.want(op.results[0])
        return to(asked) + extra_cost(ctx, op.results[0], asked, depth)
    if op.name in RULED:
        return _along(ctx, op, value, dims, depth)
    return to(want)


def _pointwise(ctx: Context, op: Op, value: Value, dims: Dims, depth: int) -> float:
    """Of a pointwise operation: the cheapest of the layouts in which it may work."""
    result = op.results[0]
    shape, bits = value.type.shape, ctx.bits(value)
    others = [v for v in op.operands if v is not value and v.type.shape == shape]
    best = math.inf
    for layout in _meetings(ctx, others, dims, ctx.want(value), ctx.want(result)):
        cost = 0.0 if layout == dims else ctx.planner.cost(shape, bits, dims, layout)
        for v in others:
            if cost < best:
                cost += reach(ctx, v, layout, depth)
        if cost < best:  # else users need not be asked
            best = min(best, cost + extra_cost(ctx, result, layout, depth))
    return best


def _called(ctx: Context, op: Op, callee: Func, value: Value, dims: Dims, depth: int) -> float:
    """Of a call whose callee is written in its place: what the users of its argument send, and those of its results."""
    returned, estimates = ctx.returned_as, ctx.estimates
    ctx.returned_as = {**returned, **dict(zip(callee.returned, op.results))}
    if ctx.calls(callee.name) > 1:
        ctx.estimates = {}  # other calls have other users
    try:
        return max(extra_cost(ctx, a, dims, depth) for a, v in zip(callee.args, op.operands) if v is value)
    finally:
        ctx.returned_as, ctx.estimates = returned, estimates


def _meetings(ctx: Context, others: Sequence[Value], *layouts: Dims) -> list[Dims]:
    """The layouts in which a pointwise operation may work: some that are given, and where its other operands are."""
    have = [ctx.env[v].dims for v in others if v in ctx.env]
    return list(dict.fromkeys([*layouts, *(d for d in have if d is not None)]))


def _renamed(ctx: Context, op: Op, value: Value, dims: Dims, after: Dims, depth: int) -> float:
    """Of an operation that gives positions other names: its result as it comes, in `after`. What is broadcast, the
    smaller of the two, may also be moved first to where its copies are wanted."""
    result = op.results[0]
    cost = extra_cost(ctx, result, _filled(ctx, result, after), depth)
    if op.name != "stablehlo.broadcast_in_dim" or not cost:
        return cost
    inner = _before_broadcast(op, ctx.want(result))
    if inner == dims or result.type.size == value.type.size:
        return cost
    move = ctx.planner.cost(value.type.shape, ctx.bits(value), dims, inner)
    return min(cost, move + extra_cost(ctx, result, ctx.want(result), depth))


def _before_broadcast(op: Op, dims: Dims) -> Dims:
    """The layout of what is broadcast such that the result can be made in `dims`."""
    value, shape = op.operands[0], op.results[0].type.shape
    place = integers(op.attrs["broadcast_dimensions"]) if value.type.shape else ()
    return tuple(dims[j] if shape[j] == n else () for j, n in zip(place, value.type.shape))


def _reshaped(ctx: Context, op: Op, value: Value, dims: Dims, depth: int) -> float:
    """Of a reshape: what it cannot carry on is gathered."""
    result = op.results[0]
    kept, after = carried(value.type.shape, dims, result.type.shape, ctx.sizes)
    return ctx.planner.cost(value.type.shape, ctx.bits(value), dims, kept) + extra_cost(ctx, result, after, depth)


def _filled(ctx: Context, result: Value, dims: Dims) -> Dims:
    """`dims` with what propagation gave the dimensions that they leave whole (a broadcast makes any part of those)."""
    if result.op.name != "stablehlo.broadcast_in_dim":
        return dims
    used = {a for d in dims for a in d}
    return tuple(d or tuple(a for a in w if a not in used) for d, w in zip(dims, ctx.want(result)))


def reach(ctx: Context, value: Value, dims: Dims, depth: int) -> float:
    """What it costs to have a value, perhaps one that is not made yet, in `dims`."""
    if value in ctx.env:
        return ctx.move_cost(value, dims)
    op = value.op
    shape = value.type.shape
    if op is not None and depth:
        if op.name in POINTWISE:
            return sum(reach(ctx, v, dims if v.type.shape == shape else (), depth - 1) for v in op.operands)
        if op.name == "stablehlo.broadcast_in_dim":
            return reach(ctx, op.operands[0], _before_broadcast(op, dims), depth - 1)
    return ctx.planner.cost(shape, ctx.bits(value), ctx.want(value), dims)


def _along(ctx: Context, op: Op, value: Value, dims: Dims, depth: int) -> float:
    """Of an operation that has factors: what it cannot keep is gathered, or everything moved to where it is wanted."""
    want = ctx.want(value)
    best = 0.0 if dims == want else ctx.planner.cost(value.type.shape, ctx.bits(value), dims, want)
    for r in op.results:
        best += extra_cost(ctx, r, ctx.want(r), depth)
    if not best:
        return best
    factors = _factors(ctx, op)
    if factors is None or op.operands.count(value) != 1:  # none: it is made in an operand's place
        return best
    mine = factors.operands[op.operands.index(value)]
    kept = tuple(x if f >= 0 and factors.kinds[f] != WHOLE else () for f, x in zip(mine, dims))
    if dims == want and kept != dims:
        return min(best, _summed(ctx, op, factors, kept, dims, depth))
    assigned: list[tuple[int, ...]] = [()] * len(factors.sizes)
    for f, x in zip(mine, kept):
        if x:
            assigned[f] = x
    cost = 0.0 if kept == dims else ctx.planner.cost(value.type.shape, ctx.bits(value), dims, kept)
    if cost < best:
        best = min(best, cost + _assigned(ctx, op, factors, value, assigned, depth, best - cost))
        more = _with_others(ctx, op, factors, value, assigned)
        if cost < best and more != assigned:
            best = min(best, cost + _assigned(ctx, op, factors, value, more, depth, best - cost))
    return best if kept == dims else min(best, _summed(ctx, op, factors, kept, dims, depth))


def _factors(ctx: Context, op: Op) -> Factors | None:
    if op.name == "stablehlo.gather":
        return factors_of_gather(op)[0]
    if op.name == "stablehlo.scatter":
        return factors_of_scatter(op)[0]
    rule = ctx.rules.rule_for(op)
    shapes = [tuple([v.type.shape for v in values]) for values in (op.operands, op.results)]
    return None if rule is None else factors_of(rule, *shapes, op.name == "stablehlo.reduce")


def _with_others(ctx: Context, op: Op, factors: Factors, value: Value, assigned: list) -> list:
    """`assigned` with what the other operands have of the axes that it does not use, at factors of their own."""
    out = list(assigned)
    used = {x for atoms in assigned for x in atoms}
    mine = factors.operands[op.operands.index(value)]
    for v, fs in zip(op.operands, factors.operands):
        have = ctx.env[v].dims if v in ctx.env else ctx.want(v)
        for f, atoms in zip(fs, have or ()):
            if atoms and f >= 0 and f not in mine and factors.kinds[f] != WHOLE and not used & set(atoms):
                out[f] = atoms
                used.update(atoms)
    return out


def _assigned(ctx: Context, op: Op, factors: Factors, value: Value, assigned: list, depth: int, limit: float) -> float:
    """What an operation sends for its other operands and later for its results if its factors are split so. Infinite if
    it is known to be `limit` or more."""
    pending = tuple(sorted(x for k, atoms in zip(factors.kinds, assigned) if k == REDUCE for x in atoms))
    cost = 0.0
    for v, f in zip(op.operands, factors.operands):
        if v is not value and f:
            cost += reach(ctx, v, layout_of(f, assigned), depth)
    for r, f in zip(op.results, factors.results):
        if cost >= limit:
            return math.inf
        cost += _resolved(ctx, r, layout_of(f, assigned), pending, depth)
    return cost


def _summed(ctx: Context, op: Op, factors: Factors, kept: Dims, dims: Dims, depth: int) -> float:
    """Of a slice of a split dimension: each device gives what it has of it, and that is added up."""
    if op.name not in ("stablehlo.slice", "stablehlo.dynamic_slice"):
        return math.inf
    pending = tuple(sorted(x for a, b in zip(dims, kept) if a != b for x in a))
    return _resolved(ctx, op.results[0], kept, pending, depth)


def _resolved(ctx: Context, result: Value, dims: Dims, pending: tuple[int, ...], depth: int) -> float:
    """What the users of a result in `dims` send, with what it takes to add it up over the axes `pending`."""
    if not pending:
        return extra_cost(ctx, result, dims, depth)
    want = ctx.want(result)
    move = ctx.planner.cost(result.type.shape, ctx.bits(result), dims, want, pending)
    return move + extra_cost(ctx, result, want, depth)


def _dot(ctx: Context, op: Op, value: Value, dims: Dims, depth: int) -> float:
    """The cheapest of the ways to contract `value`, found in `dims`: as it is, as it is wanted, whole along what is
    contracted, or such that the other operand stays."""
    a, b = op.operands
    if a is b:
        return 0.0
    left = value is a
    other = (b, a)[not left]
    d = dot_dims(op.attrs["dot_dimension_numbers"])
    mine = (*zip(d.lhs_batch, d.rhs_batch), *zip(d.lhs_contract, d.rhs_contract))
    pairs = dict(mine if left else [(j, i) for i, j in mine])
    contract = d.lhs_contract if left else d.rhs_contract
    have = ctx.state(other).dims if other in ctx.env else ctx.want(other)
    have = ctx.want(other) if have is None else have
    theirs = {x for atoms in have for x in atoms}
    alike = tuple(have[pairs[i]] if i in pairs else () if theirs & set(x) else x for i, x in enumerate(dims))
    whole = tuple(() if i in contract else x for i, x in enumerate(dims))
    shape, bits = value.type.shape, ctx.bits(value)
    best = math.inf
    for layout in dict.fromkeys((dims, ctx.want(value), whole, alike)):
        cost = 0.0 if layout == dims else ctx.planner.cost(shape, bits, dims, layout)
        if cost < best:
            best = min(best, cost + _contracted(ctx, op, left, layout, have, pairs, depth, best - cost))
    return best


def _contracted(
    ctx: Context, op: Op, left: bool, dims: Dims, have: Dims, pairs: dict[int, int], depth: int, limit: float
) -> float:
    """What a contraction sends that keeps one operand in `dims`: the other one, found in `have`, follows it along the
    `pairs` of dimensions, and the result follows from both. Infinite if it is known to be `limit` or more."""
    other, result = op.operands[left], op.results[0]
    d = dot_dims(op.attrs["dot_dimension_numbers"])
    batch, contract = (d.lhs_batch, d.lhs_contract) if left else (d.rhs_batch, d.rhs_contract)
    follow: list[tuple[int, ...]] = [()] * len(other.type.shape)
    for i, j in pairs.items():
        follow[j] = dims[i]
    used = {x for atoms in dims for x in atoms}
    for j, atoms in enumerate(have):
        if j not in pairs.values() and not used & set(atoms):
            follow[j] = atoms
    moved = reach(ctx, other, tuple(follow), 1)
    if moved >= limit:
        return math.inf
    pending = tuple(sorted(x for i in contract for x in dims[i]))
    free = [dims[i] for i in range(len(dims)) if i not in batch and i not in contract]
    theirs = [follow[j] for j in range(len(follow)) if j not in pairs.values()]
    out = (*[dims[i] for i in batch], *free, *theirs) if left else (*[dims[i] for i in batch], *theirs, *free)
    return moved + _resolved(ctx, result, out, pending, depth)
