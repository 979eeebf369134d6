"""Pointwise operations: computed in the layout of an operand or in the one wanted for the result, whichever sends less.

Sums, differences and products with a constant pass unreduced operands on (see `deferred_reduction`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from propagation.ops import POINTWISE
from propagation.program import Op, Value

from ..analysis.constants import scalar_constant
from ..decide.candidate import Candidate, as_propagated
from ..heuristics import EQUAL_COST_BYTES
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts import recompute
from ..layouts.context import Context
from ..partial_sums import deferred_reduction


def pointwise(ctx: Context, op: Op) -> None:
    """Any pointwise operation. Scalar operands beside larger ones (clamp, select) stay replicated."""
    result = op.results[0]
    rank = len(result.type.shape)
    if _all_lazy(ctx, op):
        ctx.bind_lazy(result, lambda dims: _compute(ctx, op, dims))
        return
    dims = layout(ctx, op, rank)
    ctx.bind(result, dims, _compute(ctx, op, dims))
    again = lambda refs, dims: ctx.local_copy(op, refs, [ctx.piece_shape(result, dims)])[0]
    recompute.note(ctx, op, op.operands, lambda dims: _operand_layouts(op, dims), again)


def ahead(ctx: Context, op: Op, value: Value, dims: Dims) -> Iterator[Candidate]:
    """For the look-ahead: the layouts in which a pointwise operation may work, one operand being in `dims`."""
    (result, *more), shape = op.results, value.type.shape
    if more or result.type.shape != shape:
        yield as_propagated(ctx, op, value)
        return
    others = [v for v in op.operands if v is not value and v.type.shape == shape]
    have = [ctx.env[v].dims for v in others if v in ctx.env]
    for layout in dict.fromkeys([dims, ctx.want(value), ctx.want(result), *[d for d in have if d is not None]]):
        operands = [layout if v.type.shape == shape else None for v in op.operands]
        yield Candidate(tuple(operands), (layout,))


def _all_lazy(ctx: Context, op: Op) -> bool:
    env = ctx.env
    return not [v for v in op.operands if env[v].make is None]


def _operand_layouts(op: Op, dims: Dims) -> tuple[Dims, ...]:
    return tuple([dims if len(v.type.shape) == len(dims) else () for v in op.operands])


def _compute(ctx: Context, op: Op, dims: Dims) -> LocalValue:
    operands = [ctx.get(v, wanted) for v, wanted in zip(op.operands, _operand_layouts(op, dims))]
    return ctx.local_copy(op, operands, [ctx.piece_shape(op.results[0], dims)])[0]


def layout(ctx: Context, op: Op, rank: int) -> Dims:
    """The layout to compute in: the one wanted for the result, or that of an operand if resharding the result later is
    cheaper."""
    result = op.results[0]
    want = ctx.want(result)
    env = ctx.env
    bound = [v for v in op.operands if len(v.type.shape) == rank and env[v].make is None]
    if not [v for v in bound if want not in env[v].versions]:
        return want
    candidates = [want]
    for v in bound:
        state = ctx.state(v)
        for dims in [state.dims, *state.versions]:
            if dims is not None and dims not in candidates:
                candidates.append(dims)
    shape, itemsize = result.type.shape, ctx.itemsize(result)
    per_element = itemsize * (1 + len(bound)) * ctx.redundancy
    best, best_cost = want, math.inf
    for dims in candidates if len(candidates) > 1 else ():
        cost = sum([ctx.move_cost(v, dims) for v in bound]) + ctx.elements(shape, dims) * per_element
        if cost < best_cost - EQUAL_COST_BYTES:  # else there is no need to look ahead
            cost += ctx.later_cost(result, dims)
            if cost < best_cost - EQUAL_COST_BYTES:
                best, best_cost = dims, cost
    return best


def add(ctx: Context, op: Op) -> None:
    if not deferred_reduction.add(ctx, op, negate_second=False):
        pointwise(ctx, op)


def subtract(ctx: Context, op: Op) -> None:
    if not deferred_reduction.add(ctx, op, negate_second=True):
        pointwise(ctx, op)


def multiply(ctx: Context, op: Op) -> None:
    a, b = op.operands
    if scalar_constant(a) == 1:
        _same(ctx, op, b)
    elif scalar_constant(b) == 1:
        _same(ctx, op, a)
    elif not (deferred_reduction.scale(ctx, op, 0) or deferred_reduction.scale(ctx, op, 1)):
        pointwise(ctx, op)


def divide(ctx: Context, op: Op) -> None:
    floating = not op.results[0].type.dtype.startswith(("i", "ui"))
    if scalar_constant(op.operands[1]) == 1:
        _same(ctx, op, op.operands[0])
    elif not (floating and deferred_reduction.scale(ctx, op, 0)):
        pointwise(ctx, op)


def _same(ctx: Context, op: Op, value: Value) -> None:
    """x * 1 and x / 1 are x: frontends write them, as the cotangent of a loss begins with ones."""
    state = ctx.state(value)
    ctx.use(state, len(op.results[0].uses) - 1)
    ctx.env[op.results[0]] = state


def negate(ctx: Context, op: Op) -> None:
    partial = deferred_reduction.deferred(ctx, op.operands[0])
    if partial is not None:
        deferred_reduction.apply(ctx, op, partial, partial.dims, lambda r: ctx.emit(op.name, (r,), r.shape, r.dtype))
    else:
        pointwise(ctx, op)


def convert(ctx: Context, op: Op) -> None:
    """An unreduced sum converted to its own type stays unreduced; to another one it is rounded after the sum."""
    value = op.operands[0]
    partial = deferred_reduction.deferred(ctx, value) if value.type.dtype == op.results[0].type.dtype else None
    if partial is not None:
        deferred_reduction.apply(ctx, op, partial, partial.dims, lambda r: r)
    else:
        pointwise(ctx, op)


BEHIND = dict.fromkeys([*sorted(POINTWISE), "stablehlo.map"], _operand_layouts)

AHEAD = dict.fromkeys([*sorted(POINTWISE), "stablehlo.map"], ahead)

PARTITION = {
    **dict.fromkeys(sorted(POINTWISE), pointwise),
    "stablehlo.map": pointwise,
    "stablehlo.add": add,
    "stablehlo.subtract": subtract,
    "stablehlo.multiply": multiply,
    "stablehlo.divide": divide,
    "stablehlo.negate": negate,
    "stablehlo.convert": convert,
}
