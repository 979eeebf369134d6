"""Pointwise operations: computed where the operands already are, or where the result is wanted."""

from __future__ import annotations

import math

from propagation.program import Op, Value

from ..layout import Dims
from . import linear, recompute
from .constant import scalar_constant
from .context import Context


def pointwise(ctx: Context, op: Op) -> None:
    """A pointwise operation. Scalars beside larger operands (clamp, select) are kept whole."""
    result = op.results[0]
    rank = len(result.type.shape)
    if _all_lazy(ctx, op):
        ctx.bind_lazy(result, lambda dims: _compute(ctx, op, dims))
        return
    dims = layout(ctx, op, rank)
    ctx.bind(result, dims, _compute(ctx, op, dims))
    again = lambda refs, dims: ctx.local_copy(op, refs, [ctx.piece_shape(result, dims)])[0]
    recompute.note(ctx, op, op.operands, lambda dims: _operand_layouts(op, dims), again)


def _all_lazy(ctx: Context, op: Op) -> bool:
    env = ctx.env
    return not [v for v in op.operands if env[v].make is None]


def _operand_layouts(op: Op, dims: Dims) -> tuple[Dims, ...]:
    return tuple([dims if len(v.type.shape) == len(dims) else () for v in op.operands])


def _compute(ctx: Context, op: Op, dims: Dims):
    operands = [ctx.get(v, wanted) for v, wanted in zip(op.operands, _operand_layouts(op, dims))]
    return ctx.local_copy(op, operands, [ctx.piece_shape(op.results[0], dims)])[0]


def layout(ctx: Context, op: Op, rank: int) -> Dims:
    """Where to compute: the layout of the result, or that of an operand if moving the result later is cheaper."""
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
            if dims not in candidates:
                candidates.append(dims)
    shape, bits = result.type.shape, ctx.bits(result)
    per_element = bits * (1 + len(bound)) * ctx.redundancy
    best, best_cost = want, math.inf
    for dims in candidates if len(candidates) > 1 else ():
        cost = sum([ctx.move_cost(v, dims) for v in bound]) + ctx.elements(shape, dims) * per_element
        if cost < best_cost - 1e-6:  # else its users need not be asked
            cost += ctx.later_cost(result, dims)
            if cost < best_cost - 1e-6:
                best, best_cost = dims, cost
    return best


def add(ctx: Context, op: Op) -> None:
    if not linear.add(ctx, op, negate_second=False):
        pointwise(ctx, op)


def subtract(ctx: Context, op: Op) -> None:
    if not linear.add(ctx, op, negate_second=True):
        pointwise(ctx, op)


def multiply(ctx: Context, op: Op) -> None:
    a, b = op.operands
    if scalar_constant(a) == 1:
        _same(ctx, op, b)
    elif scalar_constant(b) == 1:
        _same(ctx, op, a)
    elif not (linear.scale(ctx, op, 0) or linear.scale(ctx, op, 1)):
        pointwise(ctx, op)


def divide(ctx: Context, op: Op) -> None:
    floating = not op.results[0].type.dtype.startswith(("i", "ui"))
    if scalar_constant(op.operands[1]) == 1:
        _same(ctx, op, op.operands[0])
    elif not (floating and linear.scale(ctx, op, 0)):
        pointwise(ctx, op)


def _same(ctx: Context, op: Op, value: Value) -> None:
    """The result is another name of `value`: the cotangent of a loss begins with ones."""
    state = ctx.state(value)
    state.uses += len(op.results[0].uses) - 1
    ctx.env[op.results[0]] = state


def negate(ctx: Context, op: Op) -> None:
    value = op.operands[0]
    if linear.deferred(ctx, value):
        dims = ctx.state(value).partial.dims
        linear.apply(ctx, op, value, dims, lambda r: ctx.emit(op.name, (r,), r.shape, r.dtype))
    else:
        pointwise(ctx, op)


def convert(ctx: Context, op: Op) -> None:
    """To the type that a pending sum has already, it stays pending."""
    value = op.operands[0]
    if value.type.dtype == op.results[0].type.dtype and linear.deferred(ctx, value):
        linear.apply(ctx, op, value, ctx.state(value).partial.dims, lambda r: r)
    else:
        pointwise(ctx, op)


_POINTWISE = [
    "abs",
    "and",
    "atan2",
    "cbrt",
    "ceil",
    "clamp",
    "compare",
    "complex",
    "cosine",
    "count_leading_zeros",
    "exponential",
    "exponential_minus_one",
    "floor",
    "imag",
    "is_finite",
    "log",
    "log_plus_one",
    "logistic",
    "maximum",
    "minimum",
    "not",
    "or",
    "popcnt",
    "power",
    "real",
    "reduce_precision",
    "remainder",
    "round_nearest_afz",
    "round_nearest_even",
    "rsqrt",
    "select",
    "shift_left",
    "shift_right_arithmetic",
    "shift_right_logical",
    "sign",
    "sine",
    "sqrt",
    "tan",
    "tanh",
    "xor",
]
_CHLO = [
    "_asin_acos_kernel",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bessel_i1e",
    "conj",
    "cosh",
    "digamma",
    "erf",
    "erf_inv",
    "erfc",
    "is_inf",
    "is_neg_inf",
    "is_pos_inf",
    "lgamma",
    "mulhi",
    "next_after",
    "polygamma",
    "sinh",
    "square",
    "zeta",
    "tan",
]

PARTITION = {
    **{f"stablehlo.{name}": pointwise for name in _POINTWISE},
    **{f"chlo.{name}": pointwise for name in _CHLO},
    "stablehlo.map": pointwise,
    "stablehlo.add": add,
    "stablehlo.subtract": subtract,
    "stablehlo.multiply": multiply,
    "stablehlo.divide": divide,
    "stablehlo.negate": negate,
    "stablehlo.convert": convert,
}
