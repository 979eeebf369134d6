"""Elementwise primitives: arithmetic, comparisons, bits, conversions, selection.

Derivatives follow JAX's conventions (no conjugation in transposes; ties of max and min share the tangent evenly).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt._lattice import NARROW_SIGNED, NARROW_UNSIGNED
from meshrt.core.basic.kinds import has_kind
from meshrt.core.basic.pointwise import (
    add_p,
    binary_operands,
    nary,
    no_derivative,
    reduce_to,
    same_dtype,
    spread,
)
from meshrt.core.basic.shapes import broadcast_in_dim_p, constant
from meshrt.core.explicit import added, moved, multiplied
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive, is_undefined
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.precision import accuracy_attribute
from meshrt.primitives.selection import select_n, select_n_p

# ---------------------------------------------------------------------------------------------------------------------
# Linear arithmetic


def _neg_transpose(ct: Any, x: Any) -> list[Any]:
    return [neg_p.bind(ct)]


def _sub_transpose(ct: Any, x: Any, y: Any) -> list[Any]:
    return [
        reduce_to(ct, x.aval) if is_undefined(x) else None,
        reduce_to(neg_p.bind(ct), y.aval) if is_undefined(y) else None,
    ]


def _mul_transpose(ct: Any, x: Any, y: Any) -> list[Any]:
    if is_undefined(x):
        return [reduce_to(mul_p.bind(ct, y), x.aval), None]
    return [None, reduce_to(mul_p.bind(x, ct), y.aval)]


def _div_transpose(ct: Any, x: Any, y: Any) -> list[Any]:
    return [reduce_to(div_p.bind(ct, y), x.aval), None]


def _sub_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    x, y = primals
    tx, ty = tangents
    out = sub_p.bind(x, y)
    shape = aval_of(out).shape
    if ty is None:
        return out, spread(tx, shape)
    if tx is None:
        return out, spread(neg_p.bind(ty), shape)
    return out, sub_p.bind(tx, ty)


neg_p: Primitive = nary(
    "neg",
    "stablehlo.negate",
    1,
    sums=moved,
    derivatives=[lambda t, o, x: neg_p.bind(t)],
    transpose=_neg_transpose,
    cheap=True,
    finite=True,
)
sub_p = nary(
    "sub", "stablehlo.subtract", 2, jvp=_sub_jvp, transpose=_sub_transpose, cheap=True, finite=True, sums=added
)
mul_p: Primitive = nary(
    "mul", "stablehlo.multiply", 2, kinds="biufc", transpose=_mul_transpose,
    derivatives=[lambda t, o, x, y: mul_p.bind(t, y), lambda t, o, x, y: mul_p.bind(x, t)], cheap=True, finite=True,
    sums=multiplied,
)  # fmt: skip
div_p: Primitive = nary(
    "div", "stablehlo.divide", 2, transpose=_div_transpose,
    derivatives=[lambda t, o, x, y: div_p.bind(t, y), lambda t, o, x, y: neg_p.bind(mul_p.bind(t, div_p.bind(o, y)))],
    fuses=True,
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# Unary functions


def _scalar(x: Any, value: float) -> Any:
    aval = aval_of(x)
    return constant(value, aval.dtype, aval.weak_type)


def unary(name: str, op: str, derivative: Any = None, kinds: str = "fc", **kw: Any) -> Primitive:
    return nary(name, op, 1, kinds=kinds, derivatives=None if derivative is None else [derivative], **kw)


def approximate(name: str, op: str, derivative: Any, **kw: Any) -> Primitive:
    """A function that hardware may compute with several accuracies: its parameter `accuracy`, absent by default."""
    return unary(
        name, op, lambda t, o, x, accuracy=None: derivative(t, o, x),
        attrs=lambda aval, accuracy=None: accuracy_attribute(accuracy), **kw,
    )  # fmt: skip


def mul(x: Any, y: Any) -> Any:
    """Elementwise product."""
    return mul_p.bind(*binary_operands(x, y))


def add(x: Any, y: Any) -> Any:
    """Elementwise sum."""
    return add_p.bind(*binary_operands(x, y))


def sub(x: Any, y: Any) -> Any:
    """Elementwise difference."""
    return sub_p.bind(*binary_operands(x, y))


def div(x: Any, y: Any) -> Any:
    """Elementwise quotient; integers are divided towards zero."""
    return div_p.bind(*binary_operands(x, y))


_chlo = "chlo."
exp_p = approximate("exp", "stablehlo.exponential", lambda t, o, x: mul_p.bind(t, o), fuses=True)
exp2_p = approximate(
    "exp2", "", lambda t, o, x: mul(t, mul(o, _scalar(o, math.log(2)))),
    lower=lambda ctx, eqn, x: ctx.op(
        "stablehlo.exponential",
        [ctx.op("stablehlo.multiply", [x, ctx.full(math.log(2), eqn.outvars[0].aval)], eqn.outvars[0].aval)],
        eqn.outvars[0].aval, accuracy_attribute(eqn.params.get("accuracy")),
    ), fuses=True,
)  # fmt: skip
log_p = approximate("log", "stablehlo.log", lambda t, o, x: div_p.bind(t, x), fuses=True)
log1p_p = approximate("log1p", "stablehlo.log_plus_one", lambda t, o, x: div_p.bind(t, add(x, 1)), fuses=True)
expm1_p = approximate("expm1", "stablehlo.exponential_minus_one", lambda t, o, x: mul_p.bind(t, add(o, 1)), fuses=True)
sqrt_p = approximate("sqrt", "stablehlo.sqrt", lambda t, o, x: mul_p.bind(t, div(0.5, o)), fuses=True)
rsqrt_p = approximate(
    "rsqrt", "stablehlo.rsqrt", lambda t, o, x: mul_p.bind(t, mul(-0.5, div_p.bind(o, x))), fuses=True
)
cbrt_p = approximate(
    "cbrt", "stablehlo.cbrt", lambda t, o, x: mul_p.bind(t, mul(1 / 3, integer_pow_p.bind(o, y=-2))), kinds="f"
)
sin_p = approximate("sin", "stablehlo.sine", lambda t, o, x: mul_p.bind(t, cos_p.bind(x)), fuses=True, finite=True)
cos_p: Primitive = approximate(
    "cos",
    "stablehlo.cosine",
    lambda t, o, x: neg_p.bind(mul_p.bind(t, sin_p.bind(x))),
    fuses=True,
    finite=True,
)
tan_p = approximate("tan", "stablehlo.tan", lambda t, o, x: mul_p.bind(t, add(mul_p.bind(o, o), 1)))
tanh_p = approximate(
    "tanh",
    "stablehlo.tanh",
    lambda t, o, x: mul_p.bind(t, sub(1, mul_p.bind(o, o))),
    fuses=True,
    finite=True,
)
logistic_p = approximate(
    "logistic",
    "stablehlo.logistic",
    lambda t, o, x: mul_p.bind(t, mul_p.bind(o, sub(1, o))),
    fuses=True,
    finite=True,
)
asin_p = unary("asin", _chlo + "asin", lambda t, o, x: mul_p.bind(t, rsqrt_p.bind(sub(1, mul_p.bind(x, x)))))
acos_p = unary(
    "acos", _chlo + "acos", lambda t, o, x: neg_p.bind(mul_p.bind(t, rsqrt_p.bind(sub(1, mul_p.bind(x, x)))))
)
atan_p = unary("atan", _chlo + "atan", lambda t, o, x: div_p.bind(t, add(mul_p.bind(x, x), 1)))
sinh_p = unary("sinh", _chlo + "sinh", lambda t, o, x: mul_p.bind(t, cosh_p.bind(x)))
cosh_p: Primitive = unary("cosh", _chlo + "cosh", lambda t, o, x: mul_p.bind(t, sinh_p.bind(x)))
asinh_p = unary("asinh", _chlo + "asinh", lambda t, o, x: mul_p.bind(t, rsqrt_p.bind(add(mul_p.bind(x, x), 1))))
acosh_p = unary(
    "acosh", _chlo + "acosh",
    lambda t, o, x: mul_p.bind(t, rsqrt_p.bind(sub(mul_p.bind(x, x), 1))),
)  # fmt: skip
# Two divisions: the product of both denominators would overflow, and have inf - inf in its second derivative.
atanh_p = unary("atanh", _chlo + "atanh", lambda t, o, x: div_p.bind(div_p.bind(t, sub(1, x)), add(x, 1)))
floor_p = unary("floor", "stablehlo.floor", kinds="f")
ceil_p = unary("ceil", "stablehlo.ceil", kinds="f")
_ROUND = {0: "stablehlo.round_nearest_afz", 1: "stablehlo.round_nearest_even"}
round_p = unary(
    "round", "", kinds="f",
    lower=lambda ctx, eqn, x: ctx.op(_ROUND[eqn.params["rounding_method"]], [x], eqn.outvars[0].aval),
)  # fmt: skip
sign_p = unary("sign", "", kinds="iufc", cheap=True, write=lambda ctx, eqn, refs: _write_sign(ctx, eqn, *refs))
not_p = unary("not", "stablehlo.not", kinds="biu", cheap=True)
population_count_p = unary("population_count", "stablehlo.popcnt", kinds="iu")
clz_p = unary("clz", "stablehlo.count_leading_zeros", kinds="iu")
is_finite_p = unary("is_finite", "stablehlo.is_finite", kinds="f", out_dtype=lambda a: np.dtype(bool))


def _write_sign(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    """StableHLO has signs of signed numbers; that of others is whether they are not 0."""
    out = eqn.outvars[0].aval
    if not dtypes.issubdtype(out.dtype, np.unsignedinteger):
        return ctx.op("stablehlo.sign", [x], out)
    return ctx.op("stablehlo.minimum", [x, ctx.full(1, out)], out)


def _ones(x: Any) -> Any:
    return broadcast_in_dim_p.bind(_scalar(x, 1), shape=aval_of(x).shape, broadcast_dimensions=())


def _abs_derivative(t: Any, o: Any, x: Any) -> Any:
    if dtypes.issubdtype(aval_of(x).dtype, np.complexfloating):
        unit = div_p.bind(conj(x), complex(_where_zero(o), None))
        return real_p.bind(mul_p.bind(t, unit))
    # At zero the slope is one, as in JAX.
    return select_n_p.bind(ge_p.bind(x, _scalar(x, 0)), neg_p.bind(t), t)


def _where_zero(o: Any) -> Any:
    return select_n_p.bind(eq_p.bind(o, _scalar(o, 0)), o, _ones(o))


_NARROW = frozenset([*NARROW_SIGNED, *NARROW_UNSIGNED])


def _no_narrow_integers(name: str, avals: Sequence[ShapedArray]) -> None:
    """Refuses integers of fewer than eight bits, for which few operations are defined on all platforms."""
    for a in avals:
        if a.dtype in _NARROW:
            raise errors.ArgumentTypeError(
                f"{name} does not accept dtype {a.dtype}: integers of so few bits are for arithmetic and conversions; "
                "convert with astype('int8')"
            )


abs_p = unary(
    "abs", "stablehlo.abs", _abs_derivative, kinds="ifc", check=_no_narrow_integers,
    out_dtype=lambda a: np.empty((), a.dtype).real.dtype if a.dtype.kind == "c" else a.dtype, cheap=True, finite=True,
)  # fmt: skip
real_p: Primitive = unary(
    "real", "stablehlo.real", lambda t, o, x: real_p.bind(t), kinds="c",
    out_dtype=lambda a: np.empty((), a.dtype).real.dtype,
    transpose=lambda ct, x: [complex(ct, None)], cheap=True, finite=True,
)  # fmt: skip
imag_p: Primitive = unary(
    "imag", "stablehlo.imag", lambda t, o, x: imag_p.bind(t), kinds="c",
    out_dtype=lambda a: np.empty((), a.dtype).real.dtype,
    transpose=lambda ct, x: [complex(None, neg_p.bind(ct))], cheap=True, finite=True,
)  # fmt: skip


def _floats_of_complex(name: str, avals: Sequence[ShapedArray]) -> None:
    for i, a in enumerate(avals):
        if a.dtype not in (np.float32, np.float64):
            raise errors.ArgumentTypeError(
                f"{name} does not accept dtype {a.dtype} at position {i}. Accepted dtypes at position {i} are subtypes "
                "of float32, float64. Convert with astype"
            )
    same_dtype(name, avals)


complex_p = nary(
    "complex", "stablehlo.complex", 2, kinds="f", check=_floats_of_complex,
    out_dtype=lambda x, y: np.dtype(np.complex64 if x.dtype == np.float32 else np.complex128),
    derivatives=[lambda t, o, x, y: complex(t, None), lambda t, o, x, y: complex(None, t)],
    transpose=lambda ct, x, y: [
        reduce_to(real_p.bind(ct), x.aval) if is_undefined(x) else None,
        reduce_to(imag_p.bind(neg_p.bind(ct)), y.aval) if is_undefined(y) else None,
    ], finite=True,
)  # fmt: skip


def complex(re: Any, im: Any) -> Any:
    """A complex array from its parts; None stands for zeros."""
    if re is None:
        re = _scalar(im, 0)
    if im is None:
        im = _scalar(re, 0)
    return complex_p.bind(re, im)


def conj(x: Any) -> Any:
    """The complex conjugate (the identity on real arrays)."""
    if not dtypes.issubdtype(aval_of(x).dtype, np.complexfloating):
        return x
    return complex_p.bind(real_p.bind(x), neg_p.bind(imag_p.bind(x)))


def _power(ctx: LoweringContext, x: Any, n: int, aval: ShapedArray) -> Any:
    """x**n by squaring."""
    if n == 0:
        return ctx.full(1, aval)
    result, base = None, x
    k = abs(n)
    while k:
        if k & 1:
            result = base if result is None else ctx.op("stablehlo.multiply", [result, base], aval)
        k >>= 1
        if k:
            base = ctx.op("stablehlo.multiply", [base, base], aval)
    assert result is not None  # some bit of |n| is 1
    return ctx.op("stablehlo.divide", [ctx.full(1, aval), result], aval) if n < 0 else result


def _integer_pow_derivative(t: Any, o: Any, x: Any, y: Any) -> Any:
    if y == 0:
        return None
    if y == 1:
        return t
    return mul_p.bind(t, mul(integer_pow_p.bind(x, y=y - 1) if y != 2 else x, y))


integer_pow_p: Primitive = unary(
    "integer_pow", "", _integer_pow_derivative, kinds="iufc",
    lower=lambda ctx, eqn, x: _power(ctx, x, eqn.params["y"], eqn.outvars[0].aval), cheap=True,
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# Binary functions


def _extremum(name: str, op: str) -> Primitive:
    greater = "GT" if name == "max" else "LT"

    def write(ctx: LoweringContext, eqn: Eqn, refs: Sequence[Any]) -> Any:
        """Complex numbers are ordered by their real parts, those of equal real parts by their imaginary ones."""
        out = eqn.outvars[0].aval
        if out.dtype.kind != "c":
            return ctx.op(op, refs, out)
        part = ShapedArray(out.shape, np.empty((), out.dtype).real.dtype)
        re, im = ([ctx.op(f"stablehlo.{side}", [ref], part) for ref in refs] for side in ("real", "imag"))

        def compare(pair: Sequence[Any], direction: str) -> Any:
            return ctx.op("stablehlo.compare", pair, truth, _comparison(direction, part))

        truth = ShapedArray(out.shape, np.dtype(bool))
        which = [compare(re, "EQ"), compare(im, greater), compare(re, greater)]
        return ctx.op("stablehlo.select", [ctx.op("stablehlo.select", which, truth), *refs], out)

    def side(index: Any) -> Callable[..., Any]:
        def derivative(t: Any, o: Any, x: Any, y: Any) -> Any:
            mine, other = (x, y) if index == 0 else (y, x)
            half = mul(0.5, share(eq_p.bind(x, y), t, o))
            return mul_p.bind(
                t, add_p.bind(spread(winner(mine, other, t, o), aval_of(o).shape), spread(half, aval_of(o).shape))
            )

        return derivative

    def winner(mine: Any, other: Any, t: Any, o: Any) -> Any:
        compare = gt_p if name == "max" else lt_p
        if has_kind(aval_of(mine).dtype, "c"):
            by_real, by_imag = (compare.bind(part.bind(mine), part.bind(other)) for part in (real_p, imag_p))
            tie = eq_p.bind(real_p.bind(mine), real_p.bind(other))
            wins = or_p.bind(by_real, and_p.bind(tie, by_imag))
        else:
            wins = compare.bind(mine, other)
        return share(wins, t, o)

    def share(which: Any, t: Any, o: Any) -> Any:
        return convert_element_type(which, aval_of(t).dtype, aval_of(o).weak_type)

    return nary(name, op, 2, kinds="biufc", write=write, derivatives=[side(0), side(1)], cheap=True, finite=True)


def _is_integer(aval: ShapedArray) -> bool:
    return has_kind(aval.dtype, "iu")


def _check_pow(name: str, avals: Sequence[ShapedArray]) -> None:
    if not (_is_integer(avals[1]) and has_kind(avals[0].dtype, "fc")):
        same_dtype(name, avals)


def _lower_pow(ctx: LoweringContext, eqn: Eqn, x: Any, y: Any) -> Any:
    """An integer exponent becomes one of the base's dtype."""
    out, (a, b) = eqn.outvars[0].aval, [v.aval for v in eqn.invars]
    y, b = ctx.convert(y, b, out.dtype), ShapedArray(b.shape, out.dtype)
    return ctx.op("stablehlo.power", [ctx.broadcast(x, a, out), ctx.broadcast(y, b, out)], out)


def _pow_x(t: Any, o: Any, x: Any, y: Any) -> Any:
    x = convert_element_type(x, aval_of(x).dtype)  # no weak type, as in JAX, whatever the exponent's is
    if _is_integer(aval_of(y)):
        # x**0 is constant, at zero and at infinity too: its power is taken to be 0, and not -1, there.
        lower = sub_p.bind(y, convert_element_type(ne_p.bind(y, _scalar(y, 0)), aval_of(y).dtype))
        return mul_p.bind(t, mul_p.bind(convert_element_type(y, aval_of(x).dtype), pow_p.bind(x, lower)))
    return mul_p.bind(t, mul_p.bind(y, pow_p.bind(x, sub(y, 1))))


def _pow_y(t: Any, o: Any, x: Any, y: Any) -> Any:
    zero = _scalar(x, 0)
    safe = select_n(eq_p.bind(x, zero), x, _ones(x))
    t = convert_element_type(t, aval_of(t).dtype)  # so what is pushed forward is strong, what is pulled back as weak
    return mul_p.bind(t, mul_p.bind(o, log_p.bind(safe)))


max_p = _extremum("max", "stablehlo.maximum")
min_p = _extremum("min", "stablehlo.minimum")
pow_p = nary("pow", "", 2, derivatives=[_pow_x, _pow_y], lower=_lower_pow, check=_check_pow)
rem_p = nary(
    "rem", "stablehlo.remainder", 2, kinds="iuf",
    derivatives=[
        lambda t, o, x, y: t,
        lambda t, o, x, y: neg_p.bind(
            mul_p.bind(t, mul_p.bind(sign_p.bind(div_p.bind(x, y)), floor_p.bind(abs_p.bind(div_p.bind(x, y)))))
        ),
    ],
)  # fmt: skip
atan2_p = nary(
    "atan2", "stablehlo.atan2", 2, kinds="fc",
    derivatives=[
        lambda t, o, x, y: mul_p.bind(t, div_p.bind(y, add_p.bind(mul_p.bind(x, x), mul_p.bind(y, y)))),
        lambda t, o, x, y: mul_p.bind(t, neg_p.bind(div_p.bind(x, add_p.bind(mul_p.bind(x, x), mul_p.bind(y, y))))),
    ],
)  # fmt: skip
nextafter_p = nary(
    "nextafter", _chlo + "next_after", 2, kinds="f",
    derivatives=[no_derivative("nextafter", "x1"), no_derivative("nextafter", "x2")],
)  # fmt: skip
and_p = nary("and", "stablehlo.and", 2, kinds="biu", cheap=True)
or_p = nary("or", "stablehlo.or", 2, kinds="biu", cheap=True)
xor_p = nary("xor", "stablehlo.xor", 2, kinds="biu", cheap=True)
shift_left_p = nary("shift_left", "stablehlo.shift_left", 2, kinds="iu")
shift_right_logical_p = nary("shift_right_logical", "stablehlo.shift_right_logical", 2, kinds="iu")
shift_right_arithmetic_p = nary("shift_right_arithmetic", "stablehlo.shift_right_arithmetic", 2, kinds="iu")


def _comparison(direction: str, aval: ShapedArray) -> str:
    """The attributes of `stablehlo.compare` for operands of this type."""
    kind = aval.dtype
    if dtypes.issubdtype(kind, np.inexact):
        how = "FLOAT"
    elif kind == np.bool_ or dtypes.issubdtype(kind, np.unsignedinteger):
        how = "UNSIGNED"
    else:
        how = "SIGNED"
    return (
        f"comparison_direction = #stablehlo<comparison_direction {direction}>, "
        f"compare_type = #stablehlo<comparison_type {how}>"
    )


def _compare(name: str, direction: str, kinds: str) -> Primitive:
    def attrs(aval: ShapedArray) -> str:
        return _comparison(direction, aval)

    return nary(
        name, "stablehlo.compare", 2, kinds=kinds, out_dtype=lambda x, y: np.dtype(bool), attrs=attrs, cheap=True
    )


eq_p = _compare("eq", "EQ", "biufc")
ne_p = _compare("ne", "NE", "biufc")
lt_p = _compare("lt", "LT", "biuf")
le_p = _compare("le", "LE", "biuf")
gt_p = _compare("gt", "GT", "biuf")
ge_p = _compare("ge", "GE", "biuf")
