"""The public `lax` functions of the elementwise primitives."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.pointwise import stretched
from meshrt.core.operators import ArrayOperators
from meshrt.core.primitive import Primitive
from meshrt.core.types import aval_of
from meshrt.primitives import conversion, gamma
from meshrt.primitives import elementwise as e
from meshrt.primitives.conversion import bitcast_convert_type, convert_element_type_p, reduce_precision_p
from meshrt.primitives.identity import copy_p, optimization_barrier, stop_gradient
from meshrt.primitives.random import random_unwrap
from meshrt.primitives.reduce import reduce_and_p, reduce_or_p
from meshrt.primitives.selection import select_n

__all__ = [
    "RoundingMethod", "abs", "acos", "acosh", "add", "asin", "asinh", "atan", "atan2", "atanh", "bitcast_convert_type",
    "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "cbrt", "ceil", "clamp", "clz", "complex", "conj",
    "convert_element_type", "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1",
    "floor", "ge", "gt", "imag", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt", "max",
    "min", "mul", "ne", "neg", "nextafter", "optimization_barrier", "polygamma", "population_count", "pow", "real",
    "reciprocal", "reduce_precision", "rem", "round", "rsqrt", "select", "select_n", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square", "stop_gradient", "sub",
    "tan", "tanh",
]  # fmt: skip


def _unary(primitive: Primitive, doc: str) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        return primitive.bind(x)

    return _named(function, primitive.name, f"Elementwise {doc}.")


def _approximate(primitive: Primitive, doc: str) -> Callable[..., Any]:
    """A function that some hardware can compute with several accuracies."""

    def function(x: Any, accuracy: Any = None) -> Any:
        if accuracy is not None:
            return primitive.bind(x, accuracy=accuracy)
        return primitive.bind(x)

    return _named(function, primitive.name, f"Elementwise {doc}.")


def _named(function: Callable[..., Any], name: str, doc: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


_OPERANDS = (
    "Operands have one dtype (nothing is promoted), and one rank unless they are scalars; dimensions of size 1 are "
    "stretched."
)


def _binary(primitive: Primitive, doc: str) -> Callable[[Any, Any], Any]:
    def function(x: Any, y: Any) -> Any:
        if isinstance(x, ArrayOperators) and isinstance(y, ArrayOperators) and x.aval.shape == y.aval.shape:
            return primitive.bind(x, y)
        return primitive.bind(*stretched(primitive.name, x, y))

    return _named(function, primitive.name, f"Elementwise {doc}. {_OPERANDS}")


def _equality(primitive: Primitive, joined: Primitive, doc: str) -> Callable[[Any, Any], Any]:
    """As `_binary`, of typed keys as well: `joined` reduces what `primitive` says of their words."""
    numbers = _binary(primitive, doc)

    def function(x: Any, y: Any) -> Any:
        if isinstance(x, ArrayOperators) and isinstance(y, ArrayOperators) and x.aval.is_key:
            if x.aval == y.aval:
                words = primitive.bind(random_unwrap(x), random_unwrap(y))
                return joined.bind(words, axes=tuple(range(x.aval.ndim, words.aval.ndim)))
        return numbers(x, y)

    return _named(function, primitive.name, f"Elementwise {doc}. {_OPERANDS}")


neg = _unary(e.neg_p, "negation")
exp = _approximate(e.exp_p, "exponential")
exp2 = _approximate(e.exp2_p, "power of two")
log = _approximate(e.log_p, "natural logarithm")
log1p = _approximate(e.log1p_p, "log(1 + x)")
expm1 = _approximate(e.expm1_p, "exp(x) - 1")
sqrt = _approximate(e.sqrt_p, "square root")
rsqrt = _approximate(e.rsqrt_p, "reciprocal square root")
cbrt = _approximate(e.cbrt_p, "cube root")
sin = _approximate(e.sin_p, "sine")
cos = _approximate(e.cos_p, "cosine")
tan = _approximate(e.tan_p, "tangent")
asin = _unary(e.asin_p, "inverse sine")
acos = _unary(e.acos_p, "inverse cosine")
atan = _unary(e.atan_p, "inverse tangent")
sinh = _unary(e.sinh_p, "hyperbolic sine")
cosh = _unary(e.cosh_p, "hyperbolic cosine")
tanh = _approximate(e.tanh_p, "hyperbolic tangent")
asinh = _unary(e.asinh_p, "inverse hyperbolic sine")
acosh = _unary(e.acosh_p, "inverse hyperbolic cosine")
atanh = _unary(e.atanh_p, "inverse hyperbolic tangent")
logistic = _approximate(e.logistic_p, "logistic function 1 / (1 + exp(-x))")
erf = _unary(gamma.erf_p, "error function")
erfc = _unary(gamma.erfc_p, "complementary error function")
erf_inv = _unary(gamma.erf_inv_p, "inverse error function")
lgamma = _unary(gamma.lgamma_p, "logarithm of the absolute value of the gamma function")
digamma = _unary(gamma.digamma_p, "digamma function")
abs = _unary(e.abs_p, "absolute value")
sign = _unary(e.sign_p, "sign")
floor = _unary(e.floor_p, "largest integer not above x")
ceil = _unary(e.ceil_p, "smallest integer not below x")
is_finite = _unary(e.is_finite_p, "test for finite values")
bitwise_not = _unary(e.not_p, "complement of bits")
population_count = _unary(e.population_count_p, "number of set bits")
clz = _unary(e.clz_p, "number of leading zero bits")
real = _unary(e.real_p, "real part")
imag = _unary(e.imag_p, "imaginary part")
add = _binary(e.add_p, "sum")
sub = _binary(e.sub_p, "difference")
div = _binary(e.div_p, "quotient; integers are divided towards zero")
_mul = _binary(e.mul_p, "product")
complex = _binary(e.complex_p, "complex number of a real and an imaginary part")
max = _binary(e.max_p, "maximum")
min = _binary(e.min_p, "minimum")
rem = _binary(e.rem_p, "remainder with the sign of the dividend")
atan2 = _binary(e.atan2_p, "angle of the point (y, x)")
bitwise_and = _binary(e.and_p, "and of bits")
bitwise_or = _binary(e.or_p, "or of bits")
bitwise_xor = _binary(e.xor_p, "exclusive or of bits")
shift_left = _binary(e.shift_left_p, "left shift")
shift_right_logical = _binary(e.shift_right_logical_p, "right shift filling with zeros")
shift_right_arithmetic = _binary(e.shift_right_arithmetic_p, "right shift filling with the sign")
eq = _equality(e.eq_p, reduce_and_p, "x == y, also of keys")
ne = _equality(e.ne_p, reduce_or_p, "x != y, also of keys")
lt = _binary(e.lt_p, "x < y")
le = _binary(e.le_p, "x <= y")
gt = _binary(e.gt_p, "x > y")
ge = _binary(e.ge_p, "x >= y")


def mul(x: Any, y: Any, *, out_dtype: Any = None) -> Any:
    """Elementwise product, computed in `out_dtype` if one is given. Else operands are as those of `add`."""
    if out_dtype is not None:
        x, y = (conversion.convert_element_type(v, out_dtype) for v in (x, y))
    return _mul(x, y)


def nextafter(x1: Any, x2: Any) -> Any:
    """Elementwise next representable value after x1 towards x2. Operands are as those of `add`."""
    return e.nextafter_p.bind(*stretched("nextafter", x1, x2))


def polygamma(m: Any, x: Any) -> Any:
    """Elementwise polygamma function of order m. Operands are as those of `add`."""
    return gamma.polygamma_p.bind(*stretched("polygamma", m, x))


class RoundingMethod(enum.IntEnum):
    """How `round` breaks ties."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


def round(x: Any, rounding_method: int = RoundingMethod.AWAY_FROM_ZERO) -> Any:
    """Elementwise nearest integer."""
    return e.round_p.bind(x, rounding_method=int(rounding_method))


def integer_pow(x: Any, y: int) -> Any:
    """Elementwise x**y for a Python int y."""
    if y == 1:
        return x if isinstance(x, ArrayOperators) else copy_p.bind(x)
    if y < 0 and dtypes.issubdtype(aval_of(x).dtype, np.integer):
        raise errors.ArgumentTypeError(
            f"Integers cannot be raised to negative powers, got integer_pow({aval_of(x).str_short()}, {y}); convert "
            "to a floating dtype"
        )
    return e.integer_pow_p.bind(x, y=int(y))


_WITH_CONJUGATES = frozenset(map(np.dtype, (np.float32, np.float64, np.complex64, np.complex128)))


def conj(x: Any) -> Any:
    """The complex conjugate; of real floating numbers as complex ones."""
    if aval_of(x).dtype not in _WITH_CONJUGATES:
        raise errors.ArgumentTypeError(
            f"conj does not accept operands such as {aval_of(x).str_short()}: it takes float32, float64 and complex "
            "numbers; use meshrt.numpy.conj"
        )
    if aval_of(x).dtype not in (np.float32, np.float64):
        return e.conj(x)
    out = e.complex(x, None)
    if not aval_of(x).weak_type:
        return out
    return convert_element_type_p.bind(out, new_dtype=aval_of(out).dtype, weak_type=True)


def convert_element_type(operand: Any, new_dtype: Any) -> Any:
    """An array of `operand` with elements of `new_dtype`."""
    converted = conversion.convert_element_type(operand, new_dtype)
    if isinstance(converted, ArrayOperators):
        return converted
    return convert_element_type_p.bind(converted, new_dtype=aval_of(converted).dtype, weak_type=False)


def square(x: Any) -> Any:
    """Elementwise x * x."""
    return e.integer_pow_p.bind(x, y=2)


def reciprocal(x: Any) -> Any:
    """Elementwise 1 / x."""
    return integer_pow(x, -1)


def pow(x: Any, y: Any) -> Any:
    """Elementwise x**y of a floating or complex x; y has its dtype, or is an integer.

    A Python int becomes `integer_pow`.
    """
    if not dtypes.issubdtype(aval_of(x).dtype, np.inexact):
        raise errors.ArgumentTypeError(
            f"pow: the first operand must be floating or complex, not {aval_of(x).str_short()}; use lax.integer_pow, "
            "or meshrt.numpy.power, which promotes"
        )
    if isinstance(y, int) and not isinstance(y, bool):
        return integer_pow(x, y)
    return e.pow_p.bind(*stretched("pow", x, y))


def clamp(min: Any, x: Any, max: Any) -> Any:
    """`x` limited to [min, max]; the bounds are scalars or of x's shape, all of one dtype (nothing is promoted)."""
    return e.clamp_p.bind(min, x, max)


def select(pred: Any, on_true: Any, on_false: Any) -> Any:
    """Elementwise choice by a boolean."""
    return select_n(pred, on_false, on_true)


def reduce_precision(operand: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """Rounds to a narrower floating format, in place."""
    if exponent_bits < 1 or mantissa_bits < 0:
        raise errors.ArgumentValueError(
            f"reduce_precision needs at least 1 exponent bit and 0 mantissa bits, got {exponent_bits}, {mantissa_bits}"
        )
    return reduce_precision_p.bind(operand, exponent_bits=int(exponent_bits), mantissa_bits=int(mantissa_bits))
