"""Elementwise functions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.operators import ArrayOperators
from meshrt.core.primitive import Primitive
from meshrt.core.types import aval_of
from meshrt.dispatch import at_once
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray
from meshrt.numpy.choose import choose
from meshrt.numpy.filled import full_like
from meshrt.numpy.operands import (
    fit_shapes,
    is_unknown,
    operand,
    pairwise,
    promote,
    promote_inexact,
    promote_numeric,
    promote_pair,
    scalar_like,
    unsupported_argument,
)
from meshrt.numpy.pointwise import (  # noqa: F401
    acos,
    acosh,
    add,
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctan2,
    arctanh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    bitwise_and,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    cbrt,
    cos,
    cosh,
    divide,
    equal,
    exp,
    exp2,
    expm1,
    float_power,
    greater,
    greater_equal,
    left_shift,
    less,
    less_equal,
    log,
    log1p,
    maximum,
    minimum,
    multiply,
    named,
    nextafter,
    not_equal,
    right_shift,
    sin,
    sinh,
    sqrt,
    subtract,
    tan,
    tanh,
    true_divide,
)

__all__ = [
    "abs", "absolute", "bitwise_count", "bitwise_invert", "bitwise_not", "ceil", "conj", "conjugate",
    "copysign", "divmod", "fabs", "floor", "floor_divide", "fmax", "fmin", "fmod", "imag", "invert",
    "iscomplex", "isfinite", "isinf", "isnan", "isneginf", "isposinf", "isreal", "logical_and", "logical_not",
    "logical_or", "logical_xor", "mod", "modf", "negative", "positive", "pow", "power", "real", "reciprocal",
    "remainder", "rint", "sign", "signbit", "square", "trunc",
]  # fmt: skip


# ----------------------------------------------------------------------------------------------------------
# Signs and rounding.


@at_once(1)
def negative(x: Any, /) -> Any:
    """-x, elementwise."""
    return el.neg_p.bind(promote("negative", x)[0])


def positive(x: Any, /) -> Any:
    """+x, elementwise: x itself.

    >>> jnp.positive(jnp.array([-1, 2]))
    Array([-1,  2], dtype=int32)
    """
    return asarray(promote("positive", x)[0])


@at_once(1)
def absolute(x: Any, /) -> Any:
    """|x|, elementwise; real for complex x.

    >>> jnp.abs(jnp.array([-1.5, 2.0]))
    Array([1.5, 2. ], dtype=float32)
    """
    x = asarray(operand("absolute", x))
    if x.dtype == np.bool_ or dtypes.issubdtype(x.dtype, np.unsignedinteger):
        return x
    return el.abs_p.bind(x)


abs = absolute


@at_once(1)
def fabs(x: Any, /) -> Any:
    """|x| in floating point, elementwise.

    >>> jnp.fabs(jnp.array([-1, 2]))
    Array([1., 2.], dtype=float32)
    """
    (x,) = promote_inexact("fabs", x)
    real_only("fabs", aval_of(x).dtype)
    return el.abs_p.bind(x)


def strong_scalar(x: Any, value: float) -> Any:
    """A scalar of ``x``'s dtype that is not weak: some results of JAX's are strong, and so are ours."""
    return np.asarray(value, aval_of(x).dtype)[()]


def real_only(name: str, dtype: Any) -> None:
    if dtype.kind == "c":
        raise errors.ArgumentTypeError(f"{name} does not support complex values, got dtype {dtype}")


@at_once(1)
def sign(x: Any, /) -> Any:
    """-1, 0 or 1, elementwise; x / |x| for complex x.

    >>> jnp.sign(jnp.array([-2.0, 0.0, 5.0]))
    Array([-1.,  0.,  1.], dtype=float32)
    """
    (x,) = promote("sign", x)
    if dtypes.issubdtype(aval_of(x).dtype, np.unsignedinteger):
        return choose(el.eq_p.bind(x, scalar_like(x, 0)), scalar_like(x, 0), scalar_like(x, 1))
    return el.sign_p.bind(x)


@at_once(1)
def signbit(x: Any, /) -> Any:
    """Whether the sign bit is set, elementwise (true for -0.0).

    >>> jnp.signbit(jnp.array([-0.0, 1.0]))
    Array([ True, False], dtype=bool)
    """
    x = asarray(promote("signbit", x)[0])
    if x.dtype == np.bool_:
        return full_like(x, False)
    if dtypes.issubdtype(x.dtype, np.integer):
        return el.lt_p.bind(x, scalar_like(x, 0))
    real_only("signbit", x.dtype)
    bits = np.dtype(f"int{x.dtype.itemsize * 8}")
    return el.lt_p.bind(el.bitcast_convert_type_p.bind(x, new_dtype=bits), np.zeros((), bits)[()])


@pairwise
def copysign(x: Any, y: Any, /) -> Any:
    """|x| with the sign of y, elementwise.

    Args:
      x: an array, or what `asarray` makes one of.
      y: a second array, which broadcasts with the first.

    >>> jnp.copysign(jnp.array([1.0, 2.0]), jnp.array([-0.0, 3.0]))
    Array([-1.,  2.], dtype=float32)
    """
    x, y = promote_inexact("copysign", x, y)
    real_only("copysign", aval_of(x).dtype)
    size = el.abs_p.bind(x)
    return choose(signbit(y), el.neg_p.bind(size), size)


def _rounding(name: str, p: Primitive, doc: str, example: str) -> Callable[[Any], Any]:
    def function(x: Any, /) -> Any:
        x = asarray(operand(name, x))
        if x.dtype.kind in "biu" or dtypes.issubdtype(x.dtype, np.integer):
            return x
        real_only(name, x.dtype)
        return p.bind(x)

    return at_once(1)(named(function, name, doc, example))


floor = _rounding(
    "floor", el.floor_p, "Largest integer not above x", ">>> print(jnp.floor(jnp.array([1.5, -1.5])))\n[ 1. -2.]"
)
ceil = _rounding(
    "ceil", el.ceil_p, "Smallest integer not below x", ">>> print(jnp.ceil(jnp.array([1.5, -1.5])))\n[ 2. -1.]"
)


@at_once(1)
def trunc(x: Any) -> Any:
    """x rounded towards zero, elementwise.

    >>> jnp.trunc(jnp.array([1.7, -1.7]))
    Array([ 1., -1.], dtype=float32)
    """
    x = asarray(operand("trunc", x))
    if x.dtype.kind in "biu" or dtypes.issubdtype(x.dtype, np.integer):
        return x
    real_only("trunc", x.dtype)
    return choose(el.lt_p.bind(x, scalar_like(x, 0)), el.ceil_p.bind(x), el.floor_p.bind(x))


fix = trunc


@at_once(1)
def rint(x: Any, /) -> Any:
    """x rounded to the nearest integer, ties to even, elementwise; floating.

    >>> jnp.rint(jnp.array([0.5, 1.5, 2.4]))
    Array([0., 2., 2.], dtype=float32)
    """
    x = asarray(operand("rint", x))
    if x.dtype == np.bool_ or dtypes.issubdtype(x.dtype, np.integer):
        return x.astype(dtypes.default_float_dtype())
    if x.dtype.kind == "c":
        return el.complex(rint(real(x)), rint(imag(x)))
    return el.round_p.bind(x, rounding_method=1)


def modf(x: Any, /, out: None = None) -> Any:
    """(fraction, whole part) of x, elementwise.

    Args:
      x: an array, or what `asarray` makes one of.
      out: must be None: arrays are not written to.

    >>> jnp.modf(jnp.array([1.5, -2.25]))
    (Array([ 0.5 , -0.25], dtype=float32), Array([ 1., -2.], dtype=float32))
    """
    unsupported_argument("modf", "out", out)
    (x,) = promote_inexact("modf", x)
    whole = trunc(x)
    return el.sub_p.bind(x, whole), whole


# ----------------------------------------------------------------------------------------------------------
# Division and powers.


@pairwise
def floor_divide(x: Any, y: Any, /) -> Any:
    """x // y, elementwise: the quotient rounded down.

    Args:
      x: an array, or what `asarray` makes one of.
      y: a second array, which broadcasts with the first.

    >>> jnp.floor_divide(jnp.array([7, -7]), 2)
    Array([ 3, -4], dtype=int32)
    """
    x, y = promote_numeric("floor_divide", x, y)
    dtype = aval_of(x).dtype
    real_only("floor_divide", dtype)
    if dtypes.issubdtype(dtype, np.unsignedinteger):
        return el.div_p.bind(x, y)
    if dtypes.issubdtype(dtype, np.integer):
        quotient = el.div_p.bind(x, y)
        down = logical_and(
            not_equal(el.sign_p.bind(x), el.sign_p.bind(y)),
            not_equal(el.rem_p.bind(x, y), scalar_like(quotient, 0)),
        )
        return choose(down, el.sub_p.bind(quotient, scalar_like(quotient, 1)), quotient)
    return _float_divmod(x, y)[0]


def _float_divmod(x: Any, y: Any) -> tuple[Any, Any]:
    """Python's divmod of floats: the remainder has the sign of the divisor."""
    rest = el.rem_p.bind(x, y)
    zero = scalar_like(rest, 0)
    exact = choose(el.eq_p.bind(y, zero), x, el.sub_p.bind(x, rest))
    quotient = el.div_p.bind(exact, y)
    fix_up = logical_and(not_equal(rest, zero), not_equal(el.sign_p.bind(y), el.sign_p.bind(rest)))
    rest = choose(fix_up, el.add_p.bind(rest, y), rest)
    quotient = choose(fix_up, el.sub_p.bind(quotient, scalar_like(rest, 1)), quotient)
    return el.round_p.bind(quotient, rounding_method=0), rest


def divmod(x: Any, y: Any, /) -> Any:
    """(x // y, x % y), elementwise.

    Args:
      x: an array, or what `asarray` makes one of.
      y: a second array, which broadcasts with the first.

    >>> jnp.divmod(jnp.array([7, -7]), 3)
    (Array([ 2, -3], dtype=int32), Array([1, 2], dtype=int32))
    """
    x, y = promote_numeric("divmod", x, y)
    if dtypes.issubdtype(aval_of(x).dtype, np.integer):
        return floor_divide(x, y), remainder(x, y)
    return _float_divmod(x, y)


@pairwise
def remainder(x: Any, y: Any, /) -> Any:
    """x % y, elementwise, with the sign of y; x for integer y == 0.

    Args:
      x: an array, or what `asarray` makes one of.
      y: a second array, which broadcasts with the first.

    >>> jnp.mod(jnp.array([-7, 7]), 3)
    Array([2, 1], dtype=int32)
    """
    x, y = promote_numeric("remainder", x, y)
    y = _nonzero_divisor(y)
    rest = el.rem_p.bind(x, y)
    zero = scalar_like(rest, 0)
    other_side = el.ne_p.bind(el.lt_p.bind(rest, zero), spread_lt_zero(y, rest))
    shift = el.and_p.bind(other_side, el.ne_p.bind(rest, zero))
    return choose(shift, el.add_p.bind(rest, y), rest)


mod = remainder


def spread_lt_zero(y: Any, like: Any) -> Any:
    """y < 0, as an array or, for a static y, as a scalar."""
    return el.lt_p.bind(y, scalar_like(like, 0)) if isinstance(y, ArrayOperators) else np.less(y, 0)


def _nonzero_divisor(y: Any) -> Any:
    """Integer division by zero is undefined: divide by one instead."""
    if not dtypes.issubdtype(aval_of(y).dtype, np.integer):
        return y
    if not isinstance(y, ArrayOperators):
        return y if np.all(y) else np.where(y == 0, np.ones_like(y), y)[()]
    return choose(el.eq_p.bind(y, scalar_like(y, 0)), scalar_like(y, 1), y)


@pairwise
def fmod(x: Any, y: Any, /) -> Any:
    """Remainder of x / y with the sign of x, elementwise; 0 for integer y == 0.

    Args:
      x: an array, or what `asarray` makes one of.
      y: a second array, which broadcasts with the first.

    >>> jnp.fmod(jnp.array([-7, 7]), 3)
    Array([-1,  1], dtype=int32)
    """
    x, y = operand("fmod", x), operand("fmod", y, 1)
    integers = dtypes.issubdtype(dtypes.result_type(x, y), np.integer)  # bool is not, and keeps x
    x, y = promote_numeric("fmod", x, y)
    return el.rem_p.bind(x, _nonzero_divisor(y) if integers else y)


def power(x: Any, y: Any, /) -> Any:
    """x to the power of y, elementwise. An exponent that is one known integer becomes repeated products.

    Args:
      x: an array, or what `asarray` makes one of.
      y: a second array, which broadcasts with the first.

    >>> jnp.power(2, jnp.array([1, 2, 3]))
    Array([2, 4, 8], dtype=int32)
    """
    if isinstance(y, np.ndarray) and y.ndim == 0:
        y = y[()]
    elif isinstance(y, ArrayOperators) and y.ndim == 0 and dtypes.issubdtype(y.dtype, np.integer) and not is_unknown(y):
        y = operator.index(y)
    if isinstance(y, (int, np.integer)) and not isinstance(y, (bool, np.bool_)):
        return _integer_power(x, operator.index(y))
    x, y = operand("power", x), operand("power", y, 1)
    if dtypes.issubdtype(aval_of(y).dtype, np.integer) and dtypes.issubdtype(aval_of(x).dtype, np.inexact):
        return el.pow_p.bind(*fit_shapes("power", [x, y]))
    x, y = promote_numeric("power", x, y)
    dtype = aval_of(x).dtype
    if dtypes.issubdtype(dtype, np.integer):
        return _integer_bases(x, y)
    return el.pow_p.bind(x, y)


pow = power


def _integer_power(x: Any, n: int) -> Any:
    (x,) = promote_numeric("power", x)
    if n < 0 and dtypes.issubdtype(aval_of(x).dtype, np.integer):
        raise errors.ArgumentTypeError(
            f"integers cannot be raised to the negative power {n}; convert the base first, x.astype('float32')"
        )
    return el.integer_pow_p.bind(x, y=n)


def _integer_bases(x: Any, y: Any) -> Any:
    """Binary exponentiation with a fixed number of steps: larger exponents overflow anyway."""
    x, y = map(asarray, (x, y))
    zero, one = strong_scalar(x, 0), strong_scalar(x, 1)
    result = choose(logical_and(equal(x, zero), not_equal(y, zero)), zero, one)
    for _ in range(6):
        result = choose(not_equal(bitwise_and(y, one), zero), multiply(result, x), result)
        x = multiply(x, x)
        y = el.shift_right_logical_p.bind(y, one)
    return result


@at_once(1)
def square(x: Any, /) -> Any:
    """x * x, elementwise.

    >>> jnp.square(jnp.array([2, 3]))
    Array([4, 9], dtype=int32)
    """
    (x,) = promote_numeric("square", x)
    return el.integer_pow_p.bind(x, y=2)


@at_once(1)
def reciprocal(x: Any, /) -> Any:
    """1 / x in floating point, elementwise.

    >>> jnp.reciprocal(jnp.array([2.0, 4.0]))
    Array([0.5 , 0.25], dtype=float32)
    """
    (x,) = promote_inexact("reciprocal", x)
    return el.integer_pow_p.bind(x, y=-1)


# ----------------------------------------------------------------------------------------------------------
# Complex numbers.


def real(val: Any, /) -> Any:
    """Real part, elementwise.

    >>> jnp.real(jnp.array([1 + 2j]))
    Array([1.], dtype=float32)
    """
    x = asarray(operand("real", val))
    return el.real_p.bind(x) if x.dtype.kind == "c" else x


@at_once(1)
def imag(val: Any, /) -> Any:
    """Imaginary part, elementwise; zeros for real numbers.

    >>> jnp.imag(jnp.array([1 + 2j]))
    Array([2.], dtype=float32)
    """
    x = asarray(operand("imag", val))
    return el.imag_p.bind(x) if x.dtype.kind == "c" else full_like(x, 0)


def iscomplex(x: Any) -> Any:
    """Whether the imaginary part is not zero, elementwise.

    >>> jnp.iscomplex(jnp.array([1 + 1j, 2]))
    Array([ True, False], dtype=bool)
    """
    part = imag(x)
    return el.ne_p.bind(part, scalar_like(part, 0))


def isreal(x: Any) -> Any:
    """Whether the imaginary part is zero, elementwise.

    >>> jnp.isreal(jnp.array([1 + 1j, 2]))
    Array([False,  True], dtype=bool)
    """
    part = imag(x)
    return el.eq_p.bind(part, scalar_like(part, 0))


def conjugate(x: Any, /) -> Any:
    """Complex conjugate, elementwise.

    >>> jnp.conj(jnp.array([1 + 2j]))
    Array([1.-2.j], dtype=complex64)
    """
    x = asarray(operand("conjugate", x))
    return el.conj(x) if x.dtype.kind == "c" else x


conj = conjugate


# ----------------------------------------------------------------------------------------------------------
# Logic and tests.


def _truth(x: Any) -> Any:
    if aval_of(x).dtype == np.bool_:
        return x
    if not isinstance(x, ArrayOperators):
        return np.not_equal(x, 0)
    return el.ne_p.bind(x, scalar_like(x, 0))


def _logical(name: str, p: Primitive, doc: str, printed: str) -> Callable[[Any, Any], Any]:
    def function(x: Any, y: Any, /) -> Any:
        x, y, dtype = promote_pair(name, x, y)
        return p.bind(x, y) if dtype == np.bool_ else p.bind(_truth(x), _truth(y))

    example = f">>> print(jnp.{name}(jnp.array([0, 1, 1, 0]), jnp.array([0, 0, 1, 1])))\n{printed}"
    return at_once(2)(named(function, name, doc, example))


logical_and = _logical("logical_and", el.and_p, "Whether both are nonzero", "[False False  True False]")
logical_or = _logical("logical_or", el.or_p, "Whether at least one is nonzero", "[False  True  True  True]")
logical_xor = _logical("logical_xor", el.xor_p, "Whether exactly one is nonzero", "[False  True False  True]")


@at_once(1)
def logical_not(x: Any, /) -> Any:
    """Whether x is zero, elementwise.

    >>> jnp.logical_not(jnp.array([0, 1, 2]))
    Array([ True, False, False], dtype=bool)
    """
    return el.not_p.bind(_truth(promote("logical_not", x)[0]))


@at_once(1)
def invert(x: Any, /) -> Any:
    """Bitwise not, elementwise (of booleans: not).

    >>> jnp.bitwise_invert(jnp.array([0, 5]))
    Array([-1, -6], dtype=int32)
    """
    return el.not_p.bind(promote("invert", x)[0])


bitwise_not = bitwise_invert = invert


@at_once(1)
def bitwise_count(x: Any, /) -> Any:
    """Number of ones in |x|, elementwise; uint8.

    >>> jnp.bitwise_count(jnp.array([0, 7, -1]))
    Array([0, 3, 1], dtype=uint8)
    """
    (x,) = promote_numeric("bitwise_count", x)
    return asarray(el.population_count_p.bind(absolute(x)), dtype=np.uint8)


@at_once(1)
def isfinite(x: Any, /) -> Any:
    """Whether x is neither infinite nor NaN, elementwise.

    >>> jnp.isfinite(jnp.array([1.0, jnp.inf, jnp.nan]))
    Array([ True, False, False], dtype=bool)
    """
    x = asarray(operand("isfinite", x))
    if x.dtype.kind == "c":
        return el.and_p.bind(el.is_finite_p.bind(real(x)), el.is_finite_p.bind(imag(x)))
    if not dtypes.issubdtype(x.dtype, np.floating):
        return full_like(x, True, dtype=bool)
    return el.is_finite_p.bind(x)


@at_once(1)
def isnan(x: Any, /) -> Any:
    """Whether x is NaN, elementwise.

    >>> jnp.isnan(jnp.array([1.0, jnp.nan]))
    Array([False,  True], dtype=bool)
    """
    x = asarray(operand("isnan", x))
    return el.ne_p.bind(x, x)


@at_once(1)
def isinf(x: Any, /) -> Any:
    """Whether x is infinite, elementwise.

    >>> jnp.isinf(jnp.array([1.0, -jnp.inf]))
    Array([False,  True], dtype=bool)
    """
    x = asarray(operand("isinf", x))
    if x.dtype.kind == "c":
        return el.or_p.bind(isinf(real(x)), isinf(imag(x)))
    return _is_infinite(x, el.abs_p.bind, np.inf)


@at_once(1)
def isposinf(x: Any, /, out: None = None) -> Any:
    """Whether x is +infinity, elementwise.

    Args:
      x: an array, or what `asarray` makes one of.
      out: must be None: arrays are not written to.

    >>> jnp.isposinf(jnp.array([-jnp.inf, jnp.inf]))
    Array([False,  True], dtype=bool)
    """
    unsupported_argument("isposinf", "out", out)
    return _is_infinite(asarray(operand("isposinf", x)), lambda v: v, np.inf)


@at_once(1)
def isneginf(x: Any, /, out: None = None) -> Any:
    """Whether x is -infinity, elementwise.

    Args:
      x: an array, or what `asarray` makes one of.
      out: must be None: arrays are not written to.

    >>> jnp.isneginf(jnp.array([-jnp.inf, jnp.inf]))
    Array([ True, False], dtype=bool)
    """
    unsupported_argument("isneginf", "out", out)
    return _is_infinite(asarray(operand("isneginf", x)), lambda v: v, -np.inf)


def _is_infinite(x: Any, prepare: Callable[[Any], Any], infinity: float) -> Any:
    real_only("isinf", x.dtype)
    if not dtypes.issubdtype(x.dtype, np.floating):
        return full_like(x, False, dtype=bool)
    return el.eq_p.bind(prepare(x), scalar_like(x, infinity))


@at_once(2)
def fmax(x1: Any, x2: Any) -> Any:
    """The larger of two values, ignoring NaN, elementwise.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array, which broadcasts with the first.

    >>> jnp.fmax(jnp.array([1.0, jnp.nan]), 0.0)
    Array([1., 0.], dtype=float32)
    """
    return choose(logical_or(greater(x1, x2), isnan(x2)), x1, x2)


@at_once(2)
def fmin(x1: Any, x2: Any) -> Any:
    """The smaller of two values, ignoring NaN, elementwise.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array, which broadcasts with the first.

    >>> jnp.fmin(jnp.array([1.0, jnp.nan]), 0.0)
    Array([0., 0.], dtype=float32)
    """
    return choose(logical_or(less(x1, x2), isnan(x2)), x1, x2)
