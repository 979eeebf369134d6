"""The look-ahead: what leaving a value in a layout would cost at the operations that use it.

Propagation gives every value one sharding. Where a value is computed in another layout, resharding it at once is not
the only way: a pointwise operation can work in that layout, a transpose or reshape carries it on, a contraction may
rather reshard its result. The estimate follows uses through such operations for `LOOKAHEAD_STEPS` steps; every other
operation is taken to need its operands as propagation laid them out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from propagation.attributes import dot_dims, integers
from propagation.ops import POINTWISE
from propagation.program import Func, Op, Value

from ..analysis.bodies import called, is_written_in_place
from ..heuristics import LOOKAHEAD_STEPS, LOOKAHEAD_USES
from ..layout import Dims
from ..layouts.context import Context
from ..layouts.factors import REDUCE, WHOLE, Factors, layout_of
from ..ops.batch import along_batch, factors_of
from ..ops.fft import in_place
from ..ops.gather import factors_of_gather, factors_of_scatter
from ..ops.reshape import carried, renamed

__all__ = ["extra_cost"]

_POINTWISE = POINTWISE | {"stablehlo.map"}
# Operations whose factors tell what becomes of a layout: they keep the split of some dimensions, or sum over it.
RULED = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("concatenate", "dynamic_slice", "dynamic_update_slice", "gather", "pad"),
        *("reduce", "reverse", "scatter", "slice", "sort"),
    )
)


def extra_cost(ctx: Context, value: Value, dims: Dims, depth: int = LOOKAHEAD_STEPS) -> float:
    """Bytes that the users of `value` would send if it was in `dims`: to reshard it, to reshard their other operands to
    match, and to bring their results to their wanted layouts."""
    if not value.uses:  # as a result of a call that nobody uses
        return 0.0
    want = ctx.want(value)
    move = 0.0 if dims == want else ctx.planner.cost(value.type.shape, ctx.itemsize(value), dims, want)
    if not depth or len(value.uses) > LOOKAHEAD_USES:
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
    """`extra_cost` of one use, by `op`."""
    if op.name in _POINTWISE and len(op.results) == 1 and op.results[0].type.shape == value.type.shape:
        return _pointwise(ctx, op, value, dims, depth)
    want = ctx.want(value)
    to = lambda layout: ctx.planner.cost(value.type.shape, ctx.itemsize(value), dims, layout)
    if op.name == "func.return" and value in ctx.returned_as:
        return extra_cost(ctx, ctx.returned_as[value], dims, depth)
    if op.name == "func.call" and (callee := called(ctx, op)) is not None and is_written_in_place(ctx, op, callee):
        return _called(ctx, op, callee, value, dims, depth)
    if (after := renamed(op, dims, ctx.sizes)) is not None:
        return _renamed(ctx, op, value, dims, after, depth)
    if op.name == "stablehlo.reshape":
        return _reshaped(ctx, op, value, dims, depth)
    if op.name == "stablehlo.dot_general":
        return _dot(ctx, op, value, dims, depth)
    if (layouts := along_batch(ctx, op, value, dims)) is not None:
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
    """Of a pointwise operation: by the cheapest layout that it may work in."""
    result = op.results[0]
    shape, itemsize = value.type.shape, ctx.itemsize(value)
    others = [v for v in op.operands if v is not value and v.type.shape == shape]
    best = math.inf
    for layout in _meetings(ctx, others, dims, ctx.want(value), ctx.want(result)):
        cost = 0.0 if layout == dims else ctx.planner.cost(shape, itemsize, dims, layout)
        for v in others:
            if cost < best:
                cost += reach(ctx, v, layout, depth)
        if cost < best:  # else there is no need to look ahead
            best = min(best, cost + extra_cost(ctx, result, layout, depth))
    return best


def _called(ctx: Context, op: Op, callee: Func, value: Value, dims: Dims, depth: int) -> float:
    """Of a call that is inlined: that of the callee's argument."""
    returned, estimates = ctx.returned_as, ctx.estimates
    ctx.returned_as = {**returned, **dict(zip(callee.returned, op.results))}
    if ctx.calls(callee.name) > 1:
        ctx.estimates = {}  # other calls have other users
    try:
        return max(extra_cost(ctx, a, dims, depth) for a, v in zip(callee.args, op.operands) if v is value)
    finally:
        ctx.returned_as, ctx.estimates = returned, estimates


def _meetings(ctx: Context, others: Sequence[Value], *layouts: Dims) -> list[Dims]:
    """The layouts in which a pointwise operation may work: given ones, and those of its other operands."""
    have = [ctx.env[v].dims for v in others if v in ctx.env]
    return list(dict.fromkeys([*layouts, *(d for d in have if d is not None)]))


def _renamed(ctx: Context, op: Op, value: Value, dims: Dims, after: Dims, depth: int) -> float:
    """Of a transpose, reshape or broadcast that turns layout `dims` into `after` without communication. The operand of
    a broadcast, which is smaller than the result, may also be resharded first to give the result its wanted layout."""
    result = op.results[0]
    cost = extra_cost(ctx, result, _filled(ctx, result, after), depth)
    if op.name != "stablehlo.broadcast_in_dim" or not cost:
        return cost
    inner = _before_broadcast(op, ctx.want(result))
    if inner == dims or result.type.size == value.type.size:
        return cost
    move = ctx.planner.cost(value.type.shape, ctx.itemsize(value), dims, inner)
    return min(cost, move + extra_cost(ctx, result, ctx.want(result), depth))


def _before_broadcast(op: Op, dims: Dims) -> Dims:
    """The layout of the operand of a broadcast whose result is in `dims`."""
    value, shape = op.operands[0], op.results[0].type.shape
    place = integers(op.attrs["broadcast_dimensions"]) if value.type.shape else ()
    return tuple(dims[j] if shape[j] == n else () for j, n in zip(place, value.type.shape))


def _reshaped(ctx: Context, op: Op, value: Value, dims: Dims, depth: int) -> float:
    """Of a reshape that cannot carry on all of `dims`: the rest is gathered first."""
    result = op.results[0]
    kept, after = carried(value.type.shape, dims, result.type.shape, ctx.sizes)
    return ctx.planner.cost(value.type.shape, ctx.itemsize(value), dims, kept) + extra_cost(ctx, result, after, depth)


def _filled(ctx: Context, result: Value, dims: Dims) -> Dims:
    """For the result of a broadcast, `dims` with the wanted axes at dimensions that they leave whole: of those every
    device makes its part without communication."""
    if result.op is None or result.op.name != "stablehlo.broadcast_in_dim":
        return dims
    used = {a for d in dims for a in d}
    return tuple(d or tuple(a for a in w if a not in used) for d, w in zip(dims, ctx.want(result)))


def reach(ctx: Context, value: Value, dims: Dims, depth: int) -> float:
    """Bytes of having a value in `dims`, also of one whose operation is not partitioned yet."""
    if value in ctx.env:
        return ctx.move_cost(value, dims)
    op = value.op
    shape = value.type.shape
    if op is not None and depth:
        if op.name in _POINTWISE:
            return sum(reach(ctx, v, dims if v.type.shape == shape else (), depth - 1) for v in op.operands)
        if op.name == "stablehlo.broadcast_in_dim":
            return reach(ctx, op.operands[0], _before_broadcast(op, dims), depth - 1)
    return ctx.planner.cost(shape, ctx.itemsize(value), ctx.want(value), dims)


def _along(ctx: Context, op: Op, value: Value, dims: Dims, depth: int) -> float:
    """Of an operation with factors: split along the factors that `dims` splits, gathering the rest, with or without the
    axes of other operands; or with `value` in its wanted layout."""
    want = ctx.want(value)
    best = 0.0 if dims == want else ctx.planner.cost(value.type.shape, ctx.itemsize(value), dims, want)
    for r in op.results:
        best += extra_cost(ctx, r, ctx.want(r), depth)
    if not best:
        return best
    factors = _factors(ctx, op)
    if factors is None or op.operands.count(value) != 1:  # none: computed in an operand's layout
        return best
    mine = factors.operands[op.operands.index(value)]
    kept = tuple(x if f >= 0 and factors.kinds[f] != WHOLE else () for f, x in zip(mine, dims))
    if dims == want and kept != dims:
        return min(best, _summed(ctx, op, factors, kept, dims, depth))
    assigned: list[tuple[int, ...]] = [()] * len(factors.sizes)
    for f, x in zip(mine, kept):
        if x:
            assigned[f] = x
    cost = 0.0 if kept == dims else ctx.planner.cost(value.type.shape, ctx.itemsize(value), dims, kept)
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
    """`assigned` plus the axes that other operands have at factors of their own, as far as they are still free."""
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
    """Bytes that an operation sends for its other operands, and later for its results, under an assignment of axes to
    factors. Infinite if known to be `limit` or more."""
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
    """Of a slice of a split dimension by masked lookup: each device contributes what it holds, and a sum follows."""
    if op.name not in ("stablehlo.slice", "stablehlo.dynamic_slice"):
        return math.inf
    pending = tuple(sorted(x for a, b in zip(dims, kept) if a != b for x in a))
    return _resolved(ctx, op.results[0], kept, pending, depth)


def _resolved(ctx: Context, result: Value, dims: Dims, pending: tuple[int, ...], depth: int) -> float:
    """`extra_cost` of a result in `dims` that is unreduced over the axes `pending`, its reduction included."""
    if not pending:
        return extra_cost(ctx, result, dims, depth)
    want = ctx.want(result)
    move = ctx.planner.cost(result.type.shape, ctx.itemsize(result), dims, want, pending)
    return move + extra_cost(ctx, result, want, depth)


def _dot(ctx: Context, op: Op, value: Value, dims: Dims, depth: int) -> float:
    """Of a contraction of `value`: in layout `dims`, in its wanted layout, with its contracted dimensions gathered, or
    in a layout that lets the other operand stay; the cheapest."""
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
    shape, itemsize = value.type.shape, ctx.itemsize(value)
    best = math.inf
    for layout in dict.fromkeys((dims, ctx.want(value), whole, alike)):
        cost = 0.0 if layout == dims else ctx.planner.cost(shape, itemsize, dims, layout)
        if cost < best:
            best = min(best, cost + _contracted(ctx, op, left, layout, have, pairs, depth, best - cost))
    return best


def _contracted(
    ctx: Context, op: Op, left: bool, dims: Dims, have: Dims, pairs: dict[int, int], depth: int, limit: float
) -> float:
    """Bytes of a contraction with one operand in `dims` (the left one, if `left`): the other one, which is in `have`,
    is resharded to match along the `pairs` of batch and contracted dimensions, and the result follows from both.
    Infinite if known to be `limit` or more."""
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
