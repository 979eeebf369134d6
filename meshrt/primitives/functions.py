"""The public `lax` functions of the elementwise primitives."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.kinds import not_accepted
from meshrt.core.basic.pointwise import stretched
from meshrt.core.operators import ArrayOperators
from meshrt.core.primitive import Primitive
from meshrt.core.types import aval_of
from meshrt.primitives import conversion, gamma
from meshrt.primitives import elementwise as e
from meshrt.primitives.bitcast import bitcast_convert_type
from meshrt.primitives.clamp import clamp_p
from meshrt.primitives.conversion import convert_element_type_p, elements_of, reduce_precision_p
from meshrt.primitives.identity import copy_p, optimization_barrier, stop_gradient
from meshrt.primitives.random import random_unwrap
from meshrt.primitives.reduce import reduce_and_p, reduce_or_p
from meshrt.primitives.selection import select_n
from meshrt.primitives.traced_scalars import as_constant

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


def _unary(primitive: Primitive, doc: str, example: str, name: str = "") -> Callable[[Any], Any]:
    """`name` where the primitive has another one."""

    def function(x: Any) -> Any:
        return primitive.bind(x)

    return _named(function, name or primitive.name, f"Elementwise {doc}.", example)


def _approximate(primitive: Primitive, doc: str, example: str) -> Callable[..., Any]:
    """A function that some hardware can compute with several accuracies."""

    def function(x: Any, *, accuracy: Any = None) -> Any:
        if accuracy is not None:
            return primitive.bind(x, accuracy=accuracy)
        return primitive.bind(x)

    return _named(function, primitive.name, f"Elementwise {doc}.", example)


def _named(function: Callable[..., Any], name: str, doc: str, example: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc}\n\n{example}\n"
    return function


_OPERANDS = (
    "Operands have one dtype (nothing is promoted), and one rank unless they are scalars; dimensions of size 1 are "
    "stretched."
)


def _binary(primitive: Primitive, doc: str, example: str, name: str = "") -> Callable[[Any, Any], Any]:
    """`name` where the primitive has another one."""

    def function(x: Any, y: Any) -> Any:
        if isinstance(x, ArrayOperators) and isinstance(y, ArrayOperators) and x.aval.shape == y.aval.shape:
            return primitive.bind(x, y)
        return primitive.bind(*stretched(primitive.name, x, y))

    return _named(function, name or primitive.name, f"Elementwise {doc}. {_OPERANDS}", example)


def numbers_of(x: Any) -> Any:
    """The physical array of keys, or of another extended dtype, for comparisons."""
    return random_unwrap(x) if x.aval.is_key else elements_of(x)


def _equality(primitive: Primitive, joined: Primitive, doc: str, example: str) -> Callable[[Any, Any], Any]:
    """As `_binary`, of extended dtypes as well: `joined` reduces what `primitive` says of the numbers of an element."""
    numbers = _binary(primitive, doc, example)

    def function(x: Any, y: Any) -> Any:
        if isinstance(x, ArrayOperators) and isinstance(y, ArrayOperators) and x.aval.is_extended:
            if x.aval == y.aval:
                said = primitive.bind(numbers_of(x), numbers_of(y))
                return joined.bind(said, axes=tuple(range(x.aval.ndim, said.aval.ndim)))
        return numbers(x, y)

    return _named(function, primitive.name, f"Elementwise {doc}. {_OPERANDS}", example)


neg = _unary(e.neg_p, "negation", ">>> print(lax.neg(jnp.array([1, -2])))\n[-1  2]")
exp = _approximate(e.exp_p, "exponential", ">>> print(lax.exp(2.0))\n7.389056")
exp2 = _approximate(e.exp2_p, "power of two", ">>> print(lax.exp2(2.0))\n4.0")
log = _approximate(e.log_p, "natural logarithm", ">>> print(lax.log(2.0))\n0.6931472")
log1p = _approximate(e.log1p_p, "log(1 + x)", ">>> print(lax.log1p(2.0))\n1.0986123")
expm1 = _approximate(e.expm1_p, "exp(x) - 1", ">>> print(lax.expm1(2.0))\n6.389056")
sqrt = _approximate(e.sqrt_p, "square root", ">>> print(lax.sqrt(2.0))\n1.4142135")
rsqrt = _approximate(e.rsqrt_p, "reciprocal square root", ">>> print(lax.rsqrt(2.0))\n0.70710677")
cbrt = _approximate(e.cbrt_p, "cube root", ">>> print(lax.cbrt(2.0))\n1.2599211")
sin = _approximate(e.sin_p, "sine", ">>> print(lax.sin(2.0))\n0.9092974")
cos = _approximate(e.cos_p, "cosine", ">>> print(lax.cos(2.0))\n-0.41614684")
tan = _approximate(e.tan_p, "tangent", ">>> print(lax.tan(2.0))\n-2.1850398")
asin = _unary(e.asin_p, "inverse sine", ">>> print(lax.asin(0.5))\n0.5235988")
acos = _unary(e.acos_p, "inverse cosine", ">>> print(lax.acos(0.5))\n1.0471976")
atan = _unary(e.atan_p, "inverse tangent", ">>> print(lax.atan(2.0))\n1.1071488")
sinh = _unary(e.sinh_p, "hyperbolic sine", ">>> print(lax.sinh(2.0))\n3.6268604")
cosh = _unary(e.cosh_p, "hyperbolic cosine", ">>> print(lax.cosh(2.0))\n3.7621958")
tanh = _approximate(e.tanh_p, "hyperbolic tangent", ">>> print(lax.tanh(2.0))\n0.9640276")
asinh = _unary(e.asinh_p, "inverse hyperbolic sine", ">>> print(lax.asinh(2.0))\n1.4436355")
acosh = _unary(e.acosh_p, "inverse hyperbolic cosine", ">>> print(lax.acosh(2.0))\n1.316958")
atanh = _unary(e.atanh_p, "inverse hyperbolic tangent", ">>> print(lax.atanh(0.5))\n0.54930615")
logistic = _approximate(e.logistic_p, "logistic function 1 / (1 + exp(-x))", ">>> print(lax.logistic(2.0))\n0.880797")
erf = _unary(gamma.erf_p, "error function", ">>> print(lax.erf(2.0))\n0.9953222")
erfc = _unary(gamma.erfc_p, "complementary error function", ">>> print(lax.erfc(2.0))\n0.004677735")
erf_inv = _unary(gamma.erf_inv_p, "inverse error function", ">>> print(lax.erf_inv(0.5))\n0.47693628")
lgamma = _unary(
    gamma.lgamma_p, "logarithm of the absolute value of the gamma function", ">>> print(lax.lgamma(2.0))\n0.0"
)
digamma = _unary(gamma.digamma_p, "digamma function", ">>> print(lax.digamma(2.0))\n0.42278463")
abs = _unary(e.abs_p, "absolute value", ">>> print(lax.abs(jnp.array([1, -2])))\n[1 2]")
sign = _unary(e.sign_p, "sign", ">>> print(lax.sign(jnp.array([3, 0, -2])))\n[ 1  0 -1]")
floor = _unary(e.floor_p, "largest integer not above x", ">>> print(lax.floor(jnp.array([1.5, -1.5])))\n[ 1. -2.]")
ceil = _unary(e.ceil_p, "smallest integer not below x", ">>> print(lax.ceil(jnp.array([1.5, -1.5])))\n[ 2. -1.]")
is_finite = _unary(
    e.is_finite_p, "test for finite values", ">>> print(lax.is_finite(jnp.array([1.0, jnp.inf])))\n[ True False]"
)
bitwise_not = _unary(
    e.not_p, "complement of bits", ">>> print(lax.bitwise_not(jnp.array([0, 5])))\n[-1 -6]", "bitwise_not"
)
population_count = _unary(
    e.population_count_p, "number of set bits", ">>> print(lax.population_count(jnp.array([7, 8])))\n[3 1]"
)
clz = _unary(e.clz_p, "number of leading zero bits", ">>> print(lax.clz(jnp.int32(1)))\n31")
real = _unary(e.real_p, "real part", ">>> print(lax.real(jnp.array([1 + 2j])))\n[1.]")
imag = _unary(e.imag_p, "imaginary part", ">>> print(lax.imag(jnp.array([1 + 2j])))\n[2.]")
add = _binary(e.add_p, "sum", ">>> print(lax.add(jnp.array([5, 3]), jnp.array([3, 3])))\n[8 6]")
sub = _binary(e.sub_p, "difference", ">>> print(lax.sub(jnp.array([5, 3]), jnp.array([3, 3])))\n[2 0]")
div = _binary(
    e.div_p, "quotient; integers are divided towards zero", ">>> print(lax.div(jnp.array([7, -7]), 2))\n[ 3 -3]"
)
_mul = _binary(e.mul_p, "product", "")
complex = _binary(
    e.complex_p, "complex number of a real and an imaginary part", ">>> print(lax.complex(1.0, 2.0))\n(1+2j)"
)
max = _binary(e.max_p, "maximum", ">>> print(lax.max(jnp.array([5, 3]), jnp.array([3, 3])))\n[5 3]")
min = _binary(e.min_p, "minimum", ">>> print(lax.min(jnp.array([5, 3]), jnp.array([3, 3])))\n[3 3]")
rem = _binary(
    e.rem_p,
    "remainder with the sign of the dividend",
    ">>> print(lax.rem(jnp.array([5, 3]), jnp.array([3, 3])))\n[2 0]",
)
atan2 = _binary(e.atan2_p, "angle of the point (y, x)", ">>> print(lax.atan2(1.0, 1.0))\n0.7853982")
bitwise_and = _binary(
    e.and_p,
    "and of bits",
    ">>> print(lax.bitwise_and(jnp.array([5, 3]), jnp.array([3, 3])))\n[1 3]",
    "bitwise_and",
)
bitwise_or = _binary(
    e.or_p, "or of bits", ">>> print(lax.bitwise_or(jnp.array([5, 3]), jnp.array([3, 3])))\n[7 3]", "bitwise_or"
)
bitwise_xor = _binary(
    e.xor_p,
    "exclusive or of bits",
    ">>> print(lax.bitwise_xor(jnp.array([5, 3]), jnp.array([3, 3])))\n[6 0]",
    "bitwise_xor",
)
shift_left = _binary(e.shift_left_p, "left shift", ">>> print(lax.shift_left(jnp.array([-8, 8]), 1))\n[-16  16]")
shift_right_logical = _binary(
    e.shift_right_logical_p,
    "right shift filling with zeros",
    ">>> print(lax.shift_right_logical(jnp.array([-8, 8]), 1))\n[2147483644          4]",
)
shift_right_arithmetic = _binary(
    e.shift_right_arithmetic_p,
    "right shift filling with the sign",
    ">>> print(lax.shift_right_arithmetic(jnp.array([-8, 8]), 1))\n[-4  4]",
)
eq = _equality(
    e.eq_p,
    reduce_and_p,
    "x == y, also of keys",
    ">>> print(lax.eq(jnp.array([5, 3]), jnp.array([3, 3])))\n[False  True]",
)
ne = _equality(
    e.ne_p,
    reduce_or_p,
    "x != y, also of keys",
    ">>> print(lax.ne(jnp.array([5, 3]), jnp.array([3, 3])))\n[ True False]",
)
lt = _binary(e.lt_p, "x < y", ">>> print(lax.lt(jnp.array([5, 3]), jnp.array([3, 3])))\n[False False]")
le = _binary(e.le_p, "x <= y", ">>> print(lax.le(jnp.array([5, 3]), jnp.array([3, 3])))\n[False  True]")
gt = _binary(e.gt_p, "x > y", ">>> print(lax.gt(jnp.array([5, 3]), jnp.array([3, 3])))\n[ True False]")
ge = _binary(e.ge_p, "x >= y", ">>> print(lax.ge(jnp.array([5, 3]), jnp.array([3, 3])))\n[ True  True]")


def mul(x: Any, y: Any, *, out_dtype: Any = None) -> Any:
    """Elementwise product, computed in `out_dtype` if one is given. Else operands are as those of `add`.

    Args:
      x: an array.
      y: an array of the same dtype.
      out_dtype: the dtype to compute in.

    >>> lax.mul(jnp.array([1, 2]), jnp.array([3, 4]))
    Array([3, 8], dtype=int32)
    """
    if out_dtype is not None:
        x, y = (conversion.convert_element_type(v, out_dtype) for v in (x, y))
    if aval_of(x).dtype == aval_of(y).dtype == np.bool_:
        raise errors.ArgumentTypeError(not_accepted("mul", np.dtype(bool), "iufc", 0))
    return _mul(x, y)


def nextafter(x1: Any, x2: Any) -> Any:
    """Elementwise next representable value after x1 towards x2. Operands are as those of `add`.

    Args:
      x1: an array.
      x2: an array of the same dtype.

    >>> lax.nextafter(jnp.float32(1), jnp.float32(2)) - 1
    Array(1.1920929e-07, dtype=float32)
    """
    return e.nextafter_p.bind(*stretched("nextafter", x1, x2))


def polygamma(m: Any, x: Any) -> Any:
    """Elementwise polygamma function of order m. Operands are as those of `add`.

    Args:
      m: an array of the same dtype.
      x: an array.

    >>> lax.polygamma(1.0, 1.0)
    Array(1.644934, dtype=float32, weak_type=True)
    """
    return gamma.polygamma_p.bind(*stretched("polygamma", m, x))


class RoundingMethod(enum.IntEnum):
    """How `round` breaks ties."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


def round(x: Any, rounding_method: int = RoundingMethod.AWAY_FROM_ZERO) -> Any:
    """Elementwise nearest integer.

    Args:
      x: an array.
      rounding_method: a `RoundingMethod`; ValueError for a number that is none.

    >>> lax.round(jnp.array([0.5, 1.5]))
    Array([1., 2.], dtype=float32)
    >>> lax.round(jnp.array([0.5, 1.5]), lax.RoundingMethod.TO_NEAREST_EVEN)
    Array([0., 2.], dtype=float32)
    """
    return e.round_p.bind(x, rounding_method=int(RoundingMethod(rounding_method)))


def integer_pow(x: Any, y: int) -> Any:
    """Elementwise x**y for a Python int y.

    Args:
      x: an array.
      y: an int.

    >>> lax.integer_pow(jnp.array([1.0, 2.0]), 3)
    Array([1., 8.], dtype=float32)
    """
    if isinstance(y, ArrayOperators | np.ndarray) and y.ndim:
        raise errors.ArgumentTypeError(f"integer_pow: y must be an int, got an array of shape {y.shape}; use lax.pow")
    if y == 1:
        return x if isinstance(x, ArrayOperators) else copy_p.bind(x)
    if y < 0 and dtypes.issubdtype(aval_of(x).dtype, np.integer):
        raise errors.ArgumentTypeError(
            f"Integers cannot be raised to negative powers, got integer_pow({aval_of(x).short()}, {y}); convert "
            "to a floating dtype"
        )
    return e.integer_pow_p.bind(x, y=int(y))


_WITH_CONJUGATES = frozenset(map(np.dtype, (np.float32, np.float64, np.complex64, np.complex128)))


def conj(x: Any) -> Any:
    """The complex conjugate; of real floating numbers as complex ones.

    >>> lax.conj(jnp.array([1 + 2j]))
    Array([1.-2.j], dtype=complex64)
    """
    if aval_of(x).dtype not in _WITH_CONJUGATES:
        raise errors.ArgumentTypeError(
            f"conj does not accept dtype {aval_of(x).dtype}. Accepted dtypes are float32, float64 and complex "
            "numbers; use meshrt.numpy.conj"
        )
    if aval_of(x).dtype not in (np.float32, np.float64):
        return e.conj(x)
    out = e.complex(x, None)
    if not aval_of(x).weak_type:
        return out
    return convert_element_type_p.bind(out, new_dtype=aval_of(out).dtype, weak_type=True)


def convert_element_type(operand: Any, new_dtype: Any) -> Any:
    """An array of `operand` with elements of `new_dtype`.

    Args:
      operand: an array.
      new_dtype: the dtype of the result.

    >>> lax.convert_element_type(jnp.array([1.7, -1.7]), jnp.int32)
    Array([ 1, -1], dtype=int32)
    """
    converted = conversion.convert_element_type(operand, new_dtype)
    if isinstance(converted, ArrayOperators):
        return converted
    traced = as_constant(converted)
    if traced is not None:
        return traced
    return convert_element_type_p.bind(converted, new_dtype=aval_of(converted).dtype, weak_type=False)


def square(x: Any) -> Any:
    """Elementwise x * x.

    >>> lax.square(jnp.array([2, 3]))
    Array([4, 9], dtype=int32)
    """
    return e.integer_pow_p.bind(x, y=2)


def reciprocal(x: Any) -> Any:
    """Elementwise 1 / x.

    >>> lax.reciprocal(jnp.array([2.0, 4.0]))
    Array([0.5 , 0.25], dtype=float32)
    """
    return integer_pow(x, -1)


def pow(x: Any, y: Any) -> Any:
    """Elementwise x**y of a floating or complex x; y has its dtype, or is an integer.

    A Python int becomes `integer_pow`.

    Args:
      x: an array.
      y: an array of the same dtype.

    >>> lax.pow(jnp.array([2.0, 3.0]), jnp.array([3.0, 2.0]))
    Array([8., 9.], dtype=float32)
    """
    if not dtypes.issubdtype(aval_of(x).dtype, np.inexact):
        raise errors.ArgumentTypeError(
            f"pow: the first operand must be floating or complex, not {aval_of(x).short()}; use lax.integer_pow, "
            "or meshrt.numpy.power, which promotes"
        )
    return e.pow_p.bind(*stretched("pow", x, y))


def clamp(min: Any, x: Any, max: Any) -> Any:
    """`x` limited to [min, max]; the bounds are scalars or of x's shape, all of one dtype (nothing is promoted).

    Args:
      min: the lower bound.
      x: an array.
      max: the upper bound.

    >>> lax.clamp(0.0, jnp.array([-1.0, 0.5, 2.0]), 1.0)
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    return clamp_p.bind(min, x, max)


def select(pred: Any, on_true: Any, on_false: Any) -> Any:
    """Elementwise choice by a boolean.

    Args:
      pred: booleans.
      on_true: taken where the predicate is True.
      on_false: taken where it is False.

    >>> lax.select(jnp.array([True, False]), jnp.array([1, 2]), jnp.array([3, 4]))
    Array([1, 4], dtype=int32)
    """
    return select_n(pred, on_false, on_true)


def reduce_precision(operand: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """Rounds to a narrower floating format, in place.

    Args:
      operand: an array.
      exponent_bits: bits of the exponent.
      mantissa_bits: bits of the mantissa.

    >>> lax.reduce_precision(jnp.float32(1.2345), 8, 3)
    Array(1.25, dtype=float32)
    """
    exponent_bits, mantissa_bits = operator.index(exponent_bits), operator.index(mantissa_bits)
    if exponent_bits < 1:
        raise errors.ArgumentValueError(f"reduce_precision: exponent_bits must be positive; got {exponent_bits}")
    if mantissa_bits < 0:
        raise errors.ArgumentValueError(f"reduce_precision: mantissa_bits must be non-negative; got {mantissa_bits}")
    return reduce_precision_p.bind(operand, exponent_bits=exponent_bits, mantissa_bits=mantissa_bits)
