"""The look-ahead: what leaving a value in a layout would cost at the operations that use it.

Propagation gives every value one sharding. Where a value is computed in another layout, resharding it at once is not
the only way: a pointwise operation can work in that layout, a transpose or reshape carries it on, a contraction may
rather reshard its result. The estimate follows uses through such operations for `LOOKAHEAD_STEPS` steps; every other
operation is taken to need its operands as propagation laid them out."""

from __future__ import annotations

import math

from propagation.program import Func, Op, Value

from ..analysis.bodies import called, is_written_in_place
from ..decide.candidate import Candidate, as_propagated
from ..heuristics import LOOKAHEAD_STEPS, LOOKAHEAD_USES
from ..ir.overlay import Overlay
from ..layout import Dims
from ..layouts.context import Context
from .families import ahead, behind

__all__ = ["extra_cost"]


def extra_cost(ctx: Context, value: Value, dims: Dims, depth: int = LOOKAHEAD_STEPS) -> float:
    """Bytes that the users of `value` would send if it was in `dims`: to reshard it, to reshard their other operands to
    match, and to bring their results to their wanted layouts."""
    if not value.uses:  # as a result of a call that nobody uses
        return 0.0
    key = (value, dims, depth)
    found = ctx.estimates.get(key)
    if found is not None:
        return found
    want = ctx.want(value)
    move = 0.0 if dims == want else ctx.planner.cost(value.type.shape, ctx.itemsize(value), dims, want)
    if not depth or len(value.uses) > LOOKAHEAD_USES:
        return move
    most = math.inf if dims == want else move + extra_cost(ctx, value, want, depth)
    found = 0.0
    for use in value.uses:
        if found >= most:
            break
        found += _by(ctx, use.op, value, dims, depth - 1, most - found)
    ctx.estimates[key] = found = min(found, most)
    return found


def _by(ctx: Context, op: Op, value: Value, dims: Dims, depth: int, limit: float) -> float:
    """`extra_cost` of one use, by `op`: that of the cheapest way in which its family says it may be done. Infinite if
    known to be `limit` or more. To enter or leave a function that is written in place is no step; a value that another
    function returns is brought to where it leaves that, wherever propagation has it."""
    if op.name == "func.return" and value in ctx.returned_as:
        return extra_cost(ctx, ctx.returned_as[value], dims, depth + 1)
    end = ctx.ends.get(value) if op.name == "func.return" and ctx.holds_for_others else None
    if end is not None and value not in ctx.left_partial:
        return ctx.planner.cost(value.type.shape, ctx.itemsize(value), dims, end[0])
    if op.name == "func.call" and (callee := called(ctx, op)) is not None and is_written_in_place(ctx, op, callee):
        return _called(ctx, op, callee, value, dims, depth)
    family = ahead().get(op.name)
    best: float | None = None
    for candidate in (as_propagated(ctx, op, value),) if family is None else family(ctx, op, value, dims):
        cost = _cost(ctx, op, candidate, value, dims, depth, limit)
        best = cost if best is None else min(best, cost)
        if not best:
            break
        limit = min(limit, best)
    return best or 0.0


def _cost(
    ctx: Context, op: Op, candidate: Candidate, value: Value, dims: Dims, depth: int, limit: float
) -> float:  # fmt: skip
    """Bytes of doing `op` in one way, `value` being in `dims`: its own and those of its work, those of resharding
    `value` and its other operands, and those of its results later. Infinite if known to be `limit` or more."""
    operands, results, _, parts, sent, cost = candidate
    if sent:
        cost += candidate.price(ctx.message)
    moved = dims
    for v, layout in zip(op.operands, operands):
        if v is value and layout is not None and layout != moved:
            moved = layout
            cost += ctx.planner.cost(value.type.shape, ctx.itemsize(value), dims, layout)
    if len(operands) > 1:
        for v, layout in zip(op.operands, operands):
            if v is not value and layout is not None:
                if cost >= limit:
                    return math.inf
                cost += _reach(ctx, v, layout, depth)
    for result, layout in zip(op.results, results):
        if cost >= limit:
            return math.inf
        if layout is not None:
            for pending in parts:
                if pending:
                    cost += _resolved(ctx, result, layout, pending, depth)
                else:
                    cost += extra_cost(ctx, result, layout, depth)
    return cost


def _called(ctx: Context, op: Op, callee: Func, value: Value, dims: Dims, depth: int) -> float:
    """Of a call that is inlined: that of the callee's argument."""
    returned, estimates = ctx.returned_as, ctx.estimates
    ctx.returned_as = Overlay(returned)
    ctx.returned_as.update(zip(callee.returned, op.results))
    if ctx.calls(callee.name) > 1:
        ctx.estimates = {}  # other calls have other users
    try:
        return max(extra_cost(ctx, a, dims, depth + 1) for a, v in zip(callee.args, op.operands) if v is value)
    finally:
        ctx.returned_as, ctx.estimates = returned, estimates


def _reach(ctx: Context, value: Value, dims: Dims, depth: int) -> float:
    """Bytes of having a value in `dims`, also of one whose operation is not partitioned yet."""
    if value in ctx.env:
        return ctx.move_cost(value, dims)
    op = value.op
    shape = value.type.shape
    family = behind().get(op.name) if op is not None and depth else None
    if family is not None and op is not None:
        return sum([_reach(ctx, v, layout, depth - 1) for v, layout in zip(op.operands, family(op, dims))])
    return ctx.planner.cost(shape, ctx.itemsize(value), ctx.want(value), dims)


def _resolved(ctx: Context, result: Value, dims: Dims, pending: tuple[int, ...], depth: int) -> float:
    """`extra_cost` of a result in `dims` that is unreduced over the axes `pending`, its reduction included."""
    want = ctx.want(result)
    move = ctx.planner.cost(result.type.shape, ctx.itemsize(result), dims, want, pending)
    return move + extra_cost(ctx, result, want, depth)
