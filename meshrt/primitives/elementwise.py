"""Elementwise primitives: arithmetic, comparisons, bits, conversions, selection.

Derivatives follow JAX's conventions (no conjugation in transposes; ties of max and min share the tangent evenly).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.pointwise import binary_operands, nary, reduce_to, spread
from meshrt.transforms.tools import is_undefined

# ---------------------------------------------------------------------------------------------------------------------
# Linear arithmetic


def _neg_transpose(ct, x):
    return [neg_p.bind(ct)]


def _add_transpose(ct, x, y):
    return [reduce_to(ct, x.aval) if is_undefined(x) else None, reduce_to(ct, y.aval) if is_undefined(y) else None]


def _sub_transpose(ct, x, y):
    return [
        reduce_to(ct, x.aval) if is_undefined(x) else None,
        reduce_to(neg_p.bind(ct), y.aval) if is_undefined(y) else None,
    ]


def _mul_transpose(ct, x, y):
    if is_undefined(x):
        return [reduce_to(mul_p.bind(ct, y), x.aval), None]
    return [None, reduce_to(mul_p.bind(x, ct), y.aval)]


def _div_transpose(ct, x, y):
    return [reduce_to(div_p.bind(ct, y), x.aval), None]


def _add_jvp(primals, tangents):
    x, y = primals
    tx, ty = tangents
    out = add_p.bind(x, y)
    shape = aval_of(out).shape
    if tx is None or ty is None:
        return out, spread(ty if tx is None else tx, shape)
    return out, add_p.bind(tx, ty)


def _sub_jvp(primals, tangents):
    x, y = primals
    tx, ty = tangents
    out = sub_p.bind(x, y)
    shape = aval_of(out).shape
    if ty is None:
        return out, spread(tx, shape)
    if tx is None:
        return out, spread(neg_p.bind(ty), shape)
    return out, sub_p.bind(tx, ty)


neg_p = nary("neg", "stablehlo.negate", 1, derivatives=[lambda t, o, x: neg_p.bind(t)], transpose=_neg_transpose)
add_p = nary("add", "stablehlo.add", 2, jvp=_add_jvp, transpose=_add_transpose)
sub_p = nary("sub", "stablehlo.subtract", 2, jvp=_sub_jvp, transpose=_sub_transpose)
mul_p = nary(
    "mul", "stablehlo.multiply", 2, kinds="biufc", transpose=_mul_transpose,
    derivatives=[lambda t, o, x, y: mul_p.bind(t, y), lambda t, o, x, y: mul_p.bind(x, t)],
)  # fmt: skip
div_p = nary(
    "div", "stablehlo.divide", 2, transpose=_div_transpose,
    derivatives=[lambda t, o, x, y: div_p.bind(t, y), lambda t, o, x, y: neg_p.bind(mul_p.bind(t, div_p.bind(o, y)))],
)  # fmt: skip

# The zero tangent as an equation, for loop carries that must have one.
linear_zero_p = Primitive(
    "linear_zero",
    lambda aval: aval,
    lower=lambda ctx, eqn: ctx.full(0, eqn.params["aval"]),
    transpose=lambda ct, aval: [],
)

# ---------------------------------------------------------------------------------------------------------------------
# Unary functions


def _scalar(x: Any, value: float) -> Any:
    return np.asarray(value, aval_of(x).dtype)[()]


def _unary(name: str, op: str, derivative: Any = None, kinds: str = "fc", **kw: Any) -> Primitive:
    return nary(name, op, 1, kinds=kinds, derivatives=None if derivative is None else [derivative], **kw)


def mul(x, y):
    """Elementwise product."""
    return mul_p.bind(*binary_operands(x, y))


def add(x, y):
    """Elementwise sum."""
    return add_p.bind(*binary_operands(x, y))


def sub(x, y):
    """Elementwise difference."""
    return sub_p.bind(*binary_operands(x, y))


def div(x, y):
    """Elementwise quotient; integers are divided towards zero."""
    return div_p.bind(*binary_operands(x, y))


_chlo = "chlo."
exp_p = _unary("exp", "stablehlo.exponential", lambda t, o, x: mul_p.bind(t, o))
exp2_p = _unary(
    "exp2", "", lambda t, o, x: mul(t, mul(o, _scalar(o, math.log(2)))),
    lower=lambda ctx, eqn, x: ctx.op(
        "stablehlo.exponential",
        [ctx.op("stablehlo.multiply", [x, ctx.full(math.log(2), eqn.outvars[0].aval)], eqn.outvars[0].aval)],
        eqn.outvars[0].aval,
    ),
)  # fmt: skip
log_p = _unary("log", "stablehlo.log", lambda t, o, x: div_p.bind(t, x))
log1p_p = _unary("log1p", "stablehlo.log_plus_one", lambda t, o, x: div_p.bind(t, add(x, 1)))
expm1_p = _unary("expm1", "stablehlo.exponential_minus_one", lambda t, o, x: mul_p.bind(t, add(o, 1)))
sqrt_p = _unary("sqrt", "stablehlo.sqrt", lambda t, o, x: mul_p.bind(t, div(0.5, o)))
rsqrt_p = _unary("rsqrt", "stablehlo.rsqrt", lambda t, o, x: mul_p.bind(t, mul(-0.5, div_p.bind(o, x))))
cbrt_p = _unary("cbrt", "stablehlo.cbrt", lambda t, o, x: mul_p.bind(t, mul(1 / 3, div_p.bind(o, x))), kinds="f")
sin_p = _unary("sin", "stablehlo.sine", lambda t, o, x: mul_p.bind(t, cos_p.bind(x)))
cos_p = _unary("cos", "stablehlo.cosine", lambda t, o, x: neg_p.bind(mul_p.bind(t, sin_p.bind(x))))
tan_p = _unary("tan", "stablehlo.tan", lambda t, o, x: mul_p.bind(t, add(mul_p.bind(o, o), 1)))
tanh_p = _unary("tanh", "stablehlo.tanh", lambda t, o, x: mul_p.bind(t, sub(1, mul_p.bind(o, o))))
logistic_p = _unary("logistic", "stablehlo.logistic", lambda t, o, x: mul_p.bind(t, mul_p.bind(o, sub(1, o))))
asin_p = _unary("asin", _chlo + "asin", lambda t, o, x: mul_p.bind(t, rsqrt_p.bind(sub(1, mul_p.bind(x, x)))))
acos_p = _unary(
    "acos", _chlo + "acos", lambda t, o, x: neg_p.bind(mul_p.bind(t, rsqrt_p.bind(sub(1, mul_p.bind(x, x)))))
)
atan_p = _unary("atan", _chlo + "atan", lambda t, o, x: div_p.bind(t, add(mul_p.bind(x, x), 1)))
sinh_p = _unary("sinh", _chlo + "sinh", lambda t, o, x: mul_p.bind(t, cosh_p.bind(x)))
cosh_p = _unary("cosh", _chlo + "cosh", lambda t, o, x: mul_p.bind(t, sinh_p.bind(x)))
asinh_p = _unary("asinh", _chlo + "asinh", lambda t, o, x: mul_p.bind(t, rsqrt_p.bind(add(mul_p.bind(x, x), 1))))
acosh_p = _unary(
    "acosh", _chlo + "acosh",
    lambda t, o, x: mul_p.bind(t, rsqrt_p.bind(mul_p.bind(sub(x, 1), add(x, 1)))),
)  # fmt: skip
atanh_p = _unary("atanh", _chlo + "atanh", lambda t, o, x: div_p.bind(t, mul_p.bind(sub(1, x), add(x, 1))))
erf_p = _unary(
    "erf", _chlo + "erf",
    lambda t, o, x: mul_p.bind(t, mul(2 / math.sqrt(math.pi), exp_p.bind(neg_p.bind(mul_p.bind(x, x))))), kinds="f",
)  # fmt: skip
erfc_p = _unary(
    "erfc", _chlo + "erfc",
    lambda t, o, x: mul_p.bind(t, mul(-2 / math.sqrt(math.pi), exp_p.bind(neg_p.bind(mul_p.bind(x, x))))), kinds="f",
)  # fmt: skip
erf_inv_p = _unary(
    "erf_inv", _chlo + "erf_inv",
    lambda t, o, x: mul_p.bind(t, mul(math.sqrt(math.pi) / 2, exp_p.bind(mul_p.bind(o, o)))), kinds="f",
)  # fmt: skip
lgamma_p = _unary("lgamma", _chlo + "lgamma", lambda t, o, x: mul_p.bind(t, digamma_p.bind(x)), kinds="f")
digamma_p = _unary("digamma", _chlo + "digamma", lambda t, o, x: mul_p.bind(t, polygamma_p.bind(_ones(x), x)), kinds="f")
polygamma_p = nary(
    "polygamma", _chlo + "polygamma", 2, kinds="f",
    derivatives=[None, lambda t, o, m, x: mul_p.bind(t, polygamma_p.bind(add(m, 1), x))],
)  # fmt: skip
floor_p = _unary("floor", "stablehlo.floor", kinds="f")
ceil_p = _unary("ceil", "stablehlo.ceil", kinds="f")
_ROUND = {0: "stablehlo.round_nearest_afz", 1: "stablehlo.round_nearest_even"}
round_p = _unary(
    "round", "", kinds="f",
    lower=lambda ctx, eqn, x: ctx.op(_ROUND[eqn.params["rounding_method"]], [x], eqn.outvars[0].aval),
)  # fmt: skip
sign_p = _unary("sign", "stablehlo.sign", kinds="ifc")
not_p = _unary("not", "stablehlo.not", kinds="biu")
population_count_p = _unary("population_count", "stablehlo.popcnt", kinds="iu")
clz_p = _unary("clz", "stablehlo.count_leading_zeros", kinds="iu")
is_finite_p = _unary("is_finite", "stablehlo.is_finite", kinds="f", out_dtype=lambda a: np.dtype(bool))


def _ones(x):
    from meshrt.primitives.reshape import full

    aval = aval_of(x)
    return full(aval.shape, 1, aval.dtype)


def _abs_derivative(t, o, x):
    if dtypes.issubdtype(aval_of(x).dtype, np.complexfloating):
        unit = div_p.bind(conj(x), complex(_where_zero(o), None))
        return real_p.bind(mul_p.bind(t, unit))
    return mul_p.bind(t, sign_p.bind(x))


def _where_zero(o):
    return select_n_p.bind(eq_p.bind(o, _scalar(o, 0)), o, _ones(o))


abs_p = _unary(
    "abs", "stablehlo.abs", _abs_derivative, kinds="ifc",
    out_dtype=lambda a: np.empty((), a.dtype).real.dtype if a.dtype.kind == "c" else a.dtype,
)  # fmt: skip
real_p = _unary(
    "real", "stablehlo.real", lambda t, o, x: real_p.bind(t), kinds="c",
    out_dtype=lambda a: np.empty((), a.dtype).real.dtype,
    transpose=lambda ct, x: [complex(ct, None)],
)  # fmt: skip
imag_p = _unary(
    "imag", "stablehlo.imag", lambda t, o, x: imag_p.bind(t), kinds="c",
    out_dtype=lambda a: np.empty((), a.dtype).real.dtype,
    transpose=lambda ct, x: [complex(mul(ct, 0.0), neg_p.bind(ct))],
)  # fmt: skip
complex_p = nary(
    "complex", "stablehlo.complex", 2, kinds="f",
    out_dtype=lambda x, y: np.dtype(np.complex64 if x.dtype == np.float32 else np.complex128),
    derivatives=[lambda t, o, x, y: complex(t, None), lambda t, o, x, y: complex(None, t)],
    transpose=lambda ct, x, y: [
        reduce_to(real_p.bind(ct), x.aval) if is_undefined(x) else None,
        reduce_to(imag_p.bind(neg_p.bind(ct)), y.aval) if is_undefined(y) else None,
    ],
)  # fmt: skip


def complex(re: Any, im: Any) -> Any:
    """A complex array from its parts; None stands for zeros."""
    if re is None:
        re = mul(im, 0.0)
    if im is None:
        im = mul(re, 0.0)
    return complex_p.bind(re, im)


def conj(x: Any) -> Any:
    """The complex conjugate (the identity on real arrays)."""
    if not dtypes.issubdtype(aval_of(x).dtype, np.complexfloating):
        return x
    return complex_p.bind(real_p.bind(x), neg_p.bind(imag_p.bind(x)))


def _power(ctx, x, n: int, aval):
    """x**n by squaring."""
    result, base = None, x
    k = abs_int = n if n >= 0 else -n
    while k:
        if k & 1:
            result = base if result is None else ctx.op("stablehlo.multiply", [result, base], aval)
        k >>= 1
        if k:
            base = ctx.op("stablehlo.multiply", [base, base], aval)
    if abs_int == 0:
        result = ctx.full(1, aval)
    return ctx.op("stablehlo.divide", [ctx.full(1, aval), result], aval) if n < 0 else result


def _integer_pow_derivative(t, o, x, y):
    if y == 0:
        return None
    if y == 1:
        return t
    return mul_p.bind(t, mul(integer_pow_p.bind(x, y=y - 1) if y != 2 else x, y))


integer_pow_p = _unary(
    "integer_pow", "", _integer_pow_derivative, kinds="iufc",
    lower=lambda ctx, eqn, x: _power(ctx, x, eqn.params["y"], eqn.outvars[0].aval),
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# Binary functions


def _extremum(name: str, op: str) -> Primitive:
    def side(index):
        def derivative(t, o, x, y):
            mine, other = (x, y) if index == 0 else (y, x)
            half = mul(0.5, eq_mask(x, y, t))
            return mul_p.bind(t, add_p.bind(spread(winner(mine, other, t), aval_of(o).shape), spread(half, aval_of(o).shape)))

        return derivative

    def winner(mine, other, t):
        compare = gt_p if name == "max" else lt_p
        return convert_element_type(compare.bind(mine, other), aval_of(t).dtype)

    def eq_mask(x, y, t):
        return convert_element_type(eq_p.bind(x, y), aval_of(t).dtype)

    return nary(name, op, 2, kinds="biufc", derivatives=[side(0), side(1)])


def _pow_x(t, o, x, y):
    return mul_p.bind(t, mul_p.bind(y, pow_p.bind(x, sub(y, 1))))


def _pow_y(t, o, x, y):
    zero = _scalar(x, 0)
    safe = select_n(eq_p.bind(x, zero), x, _ones(x))
    return mul_p.bind(t, mul_p.bind(o, log_p.bind(safe)))


max_p = _extremum("max", "stablehlo.maximum")
min_p = _extremum("min", "stablehlo.minimum")
pow_p = nary("pow", "stablehlo.power", 2, derivatives=[_pow_x, _pow_y])
rem_p = nary(
    "rem", "stablehlo.remainder", 2, kinds="iuf",
    derivatives=[
        lambda t, o, x, y: t,
        lambda t, o, x, y: neg_p.bind(mul_p.bind(t, mul_p.bind(sign_p.bind(div_p.bind(x, y)), floor_p.bind(abs_p.bind(div_p.bind(x, y)))))),
    ],
)  # fmt: skip
atan2_p = nary(
    "atan2", "stablehlo.atan2", 2, kinds="f",
    derivatives=[
        lambda t, o, x, y: mul_p.bind(t, div_p.bind(y, add_p.bind(mul_p.bind(x, x), mul_p.bind(y, y)))),
        lambda t, o, x, y: mul_p.bind(t, neg_p.bind(div_p.bind(x, add_p.bind(mul_p.bind(x, x), mul_p.bind(y, y))))),
    ],
)  # fmt: skip
nextafter_p = nary("nextafter", _chlo + "next_after", 2, kinds="f")
and_p = nary("and", "stablehlo.and", 2, kinds="biu")
or_p = nary("or", "stablehlo.or", 2, kinds="biu")
xor_p = nary("xor", "stablehlo.xor", 2, kinds="biu")
shift_left_p = nary("shift_left", "stablehlo.shift_left", 2, kinds="iu")
shift_right_logical_p = nary("shift_right_logical", "stablehlo.shift_right_logical", 2, kinds="iu")
shift_right_arithmetic_p = nary("shift_right_arithmetic", "stablehlo.shift_right_arithmetic", 2, kinds="iu")


def _compare(name: str, direction: str, kinds: str) -> Primitive:
    def attrs(aval):
        kind = aval.dtype
        how = "FLOAT" if dtypes.issubdtype(kind, np.inexact) else (
            "UNSIGNED" if kind == np.bool_ or dtypes.issubdtype(kind, np.unsignedinteger) else "SIGNED")
        return (f"comparison_direction = #stablehlo<comparison_direction {direction}>, "
                f"compare_type = #stablehlo<comparison_type {how}>")

    return nary(name, "stablehlo.compare", 2, kinds=kinds, out_dtype=lambda x, y: np.dtype(bool), attrs=attrs)


eq_p = _compare("eq", "EQ", "biufc")
ne_p = _compare("ne", "NE", "biufc")
lt_p = _compare("lt", "LT", "biuf")
le_p = _compare("le", "LE", "biuf")
gt_p = _compare("gt", "GT", "biuf")
ge_p = _compare("ge", "GE", "biuf")

# ---------------------------------------------------------------------------------------------------------------------
# Conversions


def _convert_infer(x, *, new_dtype, weak_type):
    return ShapedArray(x.shape, new_dtype, weak_type)


def _convert_jvp(primals, tangents, *, new_dtype, weak_type):
    (x,), (t,) = primals, tangents
    out = convert_element_type_p.bind(x, new_dtype=new_dtype, weak_type=weak_type)
    if t is None or not dtypes.issubdtype(new_dtype, np.inexact):
        return out, None
    return out, convert_element_type_p.bind(t, new_dtype=new_dtype, weak_type=weak_type)


def _convert_transpose(ct, x, *, new_dtype, weak_type):
    return [convert_element_type(ct, x.aval.dtype, x.aval.weak_type)]


def _convert_lower(ctx, eqn, x):
    source, out = eqn.invars[0].aval, eqn.outvars[0].aval
    if source.dtype == out.dtype:
        return x
    if source.dtype.kind == "c" and out.dtype.kind != "c":
        x = ctx.op("stablehlo.real", [x], ShapedArray(source.shape, np.empty((), source.dtype).real.dtype))
    elif dtypes.issubdtype(source.dtype, np.floating) and dtypes.issubdtype(out.dtype, np.unsignedinteger):
        # Negative floats wrap around, as in NumPy: go through the signed type.
        signed = ShapedArray(source.shape, np.dtype(f"int{max(out.dtype.itemsize * 8, 32)}"))
        x = ctx.op("stablehlo.convert", [x], signed) if out.dtype.itemsize < 4 else x
    if out.dtype == np.bool_ and source.dtype != np.bool_:
        kind = "FLOAT" if dtypes.issubdtype(source.dtype, np.inexact) else "SIGNED"
        attrs = f"comparison_direction = #stablehlo<comparison_direction NE>, compare_type = #stablehlo<comparison_type {kind}>"
        return ctx.op("stablehlo.compare", [x, ctx.full(0, source.strong())], out, attrs)
    return ctx.op("stablehlo.convert", [x], out)


def _same_dim(primitive):
    return lambda size, args, dims, params: (primitive().bind(*args, **params), dims[0])


convert_element_type_p = Primitive(
    "convert_element_type", _convert_infer, lower=_convert_lower, jvp=_convert_jvp, transpose=_convert_transpose,
    batch=_same_dim(lambda: convert_element_type_p),
)  # fmt: skip


def convert_element_type(x: Any, new_dtype: Any, weak_type: bool = False) -> Any:
    """`x` with elements of `new_dtype` (canonicalized)."""
    new_dtype = dtypes.canonicalize_dtype(dtypes.dtype(new_dtype))
    aval = aval_of(x)
    if isinstance(aval.dtype, dtypes.ExtendedDType) or isinstance(new_dtype, dtypes.ExtendedDType):
        if aval.dtype == new_dtype:
            return x
        raise errors.ArgumentTypeError(f"cannot convert {aval.str_short()} to {new_dtype}: use meshrt.random.key_data")
    if aval.dtype == new_dtype and aval.weak_type == weak_type and type(x) not in (bool, int, float):
        return x
    if isinstance(x, bool | int | float | np.generic):
        if not weak_type:
            return np.asarray(x).astype(new_dtype)[()]
    return convert_element_type_p.bind(x, new_dtype=new_dtype, weak_type=weak_type)


def _bitcast_infer(x, *, new_dtype):
    old, new = dtypes.itemsize_bits(x.dtype), dtypes.itemsize_bits(new_dtype)
    if old == new:
        return ShapedArray(x.shape, new_dtype)
    if old < new:
        if not x.shape or x.shape[-1] * old != new:
            raise errors.ArgumentTypeError(
                f"bitcast_convert_type of {x.str_short()} to {new_dtype} needs a last dimension of size {new // old}")
        return ShapedArray(x.shape[:-1], new_dtype)
    return ShapedArray((*x.shape, old // new), new_dtype)


def _bitcast_batch(size, args, dims, params):
    from meshrt.transforms.batching import move_dim

    return bitcast_convert_type_p.bind(move_dim(args[0], dims[0], 0), **params), 0


bitcast_convert_type_p = Primitive(
    "bitcast_convert_type", _bitcast_infer, batch=_bitcast_batch,
    lower=lambda ctx, eqn, x: ctx.op("stablehlo.bitcast_convert", [x], eqn.outvars[0].aval),
    jvp=lambda primals, tangents, **params: (bitcast_convert_type_p.bind(*primals, **params), None),
)  # fmt: skip


def bitcast_convert_type(x: Any, new_dtype: Any) -> Any:
    """Reinterprets the bits of `x`; a change of width splits or merges the last dimension."""
    return bitcast_convert_type_p.bind(x, new_dtype=dtypes.canonicalize_dtype(dtypes.dtype(new_dtype)))


reduce_precision_p = nary(
    "reduce_precision", "stablehlo.reduce_precision", 1, kinds="f",
    attrs=lambda a, exponent_bits, mantissa_bits: f"exponent_bits = {exponent_bits} : i32, mantissa_bits = {mantissa_bits} : i32",
    derivatives=[lambda t, o, x, **p: reduce_precision_p.bind(t, **p)],
    transpose=lambda ct, x, **p: [reduce_precision_p.bind(ct, **p)],
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# Selection


def _select_infer(which, *cases):
    shape = cases[0].shape
    for c in cases:
        if c.shape != shape or c.dtype != cases[0].dtype:
            raise errors.ArgumentTypeError(
                f"select_n needs cases of one type but got {', '.join(x.str_short() for x in cases)}")
    if which.shape != shape and which.shape:
        raise errors.ArgumentTypeError(f"select_n: the predicate {which.str_short()} has another shape than the cases {cases[0].str_short()}")
    if which.dtype == np.bool_ and len(cases) > 2 or which.dtype not in (np.dtype(bool), np.dtype(np.int32)):
        raise errors.ArgumentTypeError(f"select_n: a predicate {which.str_short()} cannot choose among {len(cases)} cases; use bool for 2, int32 for more")
    return ShapedArray(shape, cases[0].dtype, all(c.weak_type for c in cases))


def _select_lower(ctx, eqn, which, *cases):
    out = eqn.outvars[0].aval
    kind = eqn.invars[0].aval
    if out.is_key and kind.ndim:
        kind, which = ShapedArray(out.physical().shape, kind.dtype), ctx.broadcast(
            which, kind, ShapedArray(out.physical().shape, kind.dtype), range(kind.ndim))
    if kind.dtype == np.bool_:
        return ctx.op("stablehlo.select", [which, cases[-1], cases[0]], out) if len(cases) == 2 else cases[0]
    return _select_tree(ctx, which, kind, cases, 0, out)


def _select_tree(ctx, which, kind, cases, offset, out):
    """A binary tree of selects on an integer index."""
    if len(cases) == 1:
        return cases[0]
    middle = len(cases) // 2
    attrs = ("comparison_direction = #stablehlo<comparison_direction LT>, compare_type = #stablehlo<comparison_type SIGNED>")
    less = ctx.op("stablehlo.compare", [which, ctx.full(offset + middle, kind.strong())], ShapedArray(kind.shape, np.dtype(bool)), attrs)
    low = _select_tree(ctx, which, kind, cases[:middle], offset, out)
    high = _select_tree(ctx, which, kind, cases[middle:], offset + middle, out)
    return ctx.op("stablehlo.select", [less, low, high], out)


def _select_jvp(primals, tangents):
    from meshrt.transforms.tools import instantiate

    which, *cases = primals
    out = select_n_p.bind(which, *cases)
    if all(t is None for t in tangents[1:]):
        return out, None
    return out, select_n_p.bind(which, *[instantiate(t, c) for t, c in zip(tangents[1:], cases)])


def _select_transpose(ct, which, *cases):
    from meshrt.transforms.tools import zeros

    zero = zeros(aval_of(ct))
    return [None] + [
        select_n_p.bind(which, *[ct if i == j else zero for j in range(len(cases))]) if is_undefined(c) else None
        for i, c in enumerate(cases)
    ]


def _select_batch(size, args, dims, params):
    from meshrt.transforms.batching import bring_to_front

    which, *cases = args
    if dims[0] is None and aval_of(which).ndim == 0:
        cases = [bring_to_front(size, c, d) for c, d in zip(cases, dims[1:])]
        return select_n_p.bind(which, *cases), 0
    cases = [bring_to_front(size, c, d) for c, d in zip(cases, dims[1:])]
    which = bring_to_front(size, which, dims[0])
    if aval_of(which).ndim == 1 and aval_of(cases[0]).ndim > 1:
        from meshrt.primitives.reshape import broadcast_in_dim

        which = broadcast_in_dim(which, aval_of(cases[0]).shape, (0,))
    return select_n_p.bind(which, *cases), 0


select_n_p = Primitive(
    "select_n", _select_infer, lower=_select_lower, jvp=_select_jvp, transpose=_select_transpose, batch=_select_batch
)


def select_n(which: Any, *cases: Any) -> Any:
    """Chooses elementwise among `cases` by `which` (bool: False takes the first)."""
    return select_n_p.bind(which, *cases)


def _clamp_infer(lo, x, hi):
    for bound in (lo, hi):
        if bound.dtype != x.dtype or bound.shape not in ((), x.shape):
            raise errors.ArgumentTypeError(
                f"clamp needs bounds like its operand (or scalars) but got {lo.str_short()}, {x.str_short()}, {hi.str_short()}")
    return ShapedArray(x.shape, x.dtype, x.weak_type)


def _clamp_jvp(primals, tangents):
    lo, x, hi = primals
    out = clamp_p.bind(*primals)
    total = None
    from meshrt.transforms.tools import add_tangents

    def masked(condition, t):
        t = spread(t, aval_of(out).shape)
        return select_n_p.bind(condition, mul(t, 0.0), t)

    below, above = spread(gt_p.bind(lo, x), aval_of(out).shape), spread(lt_p.bind(hi, x), aval_of(out).shape)
    if tangents[1] is not None:
        total = masked(and_p.bind(gt_p.bind(x, lo), lt_p.bind(x, hi)), tangents[1])
    if tangents[0] is not None:
        total = add_tangents(total, masked(below, tangents[0]))
    if tangents[2] is not None:
        total = add_tangents(total, masked(above, tangents[2]))
    return out, total


def _clamp_batch(size, args, dims, params):
    lo, x, hi = args
    if dims[0] is None and dims[2] is None and aval_of(lo).ndim == aval_of(hi).ndim == 0:
        return clamp_p.bind(lo, x, hi), dims[1]
    bounded, dim = max_p.batch(size, [lo, x], dims[:2], {})
    return min_p.batch(size, [bounded, hi], [dim, dims[2]], {})


clamp_p = Primitive(
    "clamp", _clamp_infer, jvp=_clamp_jvp, batch=_clamp_batch,
    lower=lambda ctx, eqn, lo, x, hi: ctx.op("stablehlo.clamp", [lo, x, hi], eqn.outvars[0].aval),
)  # fmt: skip


def clamp(min: Any, x: Any, max: Any) -> Any:
    """`x` limited to [min, max]; the bounds are scalars or of x's shape."""
    dtype = aval_of(x).dtype
    bounds = [np.asarray(b, dtype)[()] if isinstance(b, int | float) else b for b in (min, max)]
    return clamp_p.bind(bounds[0], x, bounds[1])


# ---------------------------------------------------------------------------------------------------------------------
# Identities with a meaning

copy_p = nary(
    "copy", "", 1, kinds="biufc", lower=lambda ctx, eqn, x: x,
    derivatives=[lambda t, o, x: t], transpose=lambda ct, x: [ct],
)  # fmt: skip

stop_gradient_p = Primitive(
    "stop_gradient", lambda x: x, lower=lambda ctx, eqn, x: x,
    jvp=lambda primals, tangents: (stop_gradient_p.bind(*primals), None),
    batch=lambda size, args, dims, params: (args[0], dims[0]),
)  # fmt: skip


def stop_gradient(x: Any) -> Any:
    """The identity, with a zero derivative. Works on pytrees."""
    from meshrt import tree_util

    return tree_util.tree_map(
        lambda leaf: stop_gradient_p.bind(leaf) if aval_of(leaf).is_differentiable else leaf, x
    )


def _barrier_jvp(primals, tangents):
    out = optimization_barrier_p.bind(*primals)
    live = [t for t in tangents if t is not None]
    moved = iter(optimization_barrier_p.bind(*live)) if live else iter(())
    return out, [None if t is None else next(moved) for t in tangents]


def _barrier_transpose(cts, *xs):
    live = [c for c in cts if c is not None]
    moved = iter(optimization_barrier_p.bind(*live))
    return [None if c is None else next(moved) for c in cts]


optimization_barrier_p = Primitive(
    "optimization_barrier", lambda *xs: xs, multiple_results=True, jvp=_barrier_jvp, transpose=_barrier_transpose,
    batch=lambda size, args, dims, params: (optimization_barrier_p.bind(*args), dims),
    lower=lambda ctx, eqn, *xs: ctx.ops("stablehlo.optimization_barrier", xs, [v.aval for v in eqn.outvars]),
)  # fmt: skip


def optimization_barrier(operand: Any) -> Any:
    """The identity on a pytree, across which the compiler moves nothing."""
    from meshrt import tree_util

    leaves, tree = tree_util.tree_flatten(operand)
    return tree_util.tree_unflatten(tree, optimization_barrier_p.bind(*leaves))


