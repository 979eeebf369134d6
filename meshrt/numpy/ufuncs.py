"""Elementwise functions: signs, rounding and the parts of complex numbers; with those of ``pointwise``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.primitive import Primitive
from meshrt.core.types import aval_of
from meshrt.dispatch import at_once
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray
from meshrt.numpy.choose import choose
from meshrt.numpy.filled import full_like
from meshrt.numpy.operands import operand, pairwise, promote, promote_inexact, scalar_like, unsupported_argument
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
    "abs", "absolute", "ceil", "conj", "conjugate", "copysign", "fabs", "floor", "imag", "iscomplex", "isreal",
    "modf", "negative", "positive", "real", "rint", "sign", "signbit", "trunc",
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
    if aval_of(x).dtype.kind == "c":
        raise errors.ArgumentTypeError("ufunc 'fabs' does not support complex dtypes")
    return el.abs_p.bind(x)


def strong_scalar(x: Any, value: float) -> Any:
    """A scalar of ``x``'s dtype that is not weak: some results of JAX's are strong, and so are ours."""
    return np.asarray(value, aval_of(x).dtype)[()]


def weak_as(out: Any, *operands: Any) -> Any:
    """A result that promotion made weak: weak if all operands are scalars, as the constants that JAX computes it with
    are not weak beside arrays, be these weak themselves."""
    aval = aval_of(out)
    if not aval.weak_type or not any(aval_of(x).ndim for x in operands):
        return out
    return el.convert_element_type(out, aval.dtype)


def real_only(name: str, dtype: Any) -> None:
    if dtype.kind == "c":
        raise errors.ComplexOperandError(f"{name} does not support complex-valued inputs, got dtype {dtype}")


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
        return el.lt_p.bind(x, np.zeros((), x.dtype)[()])
    if x.dtype.kind == "c":
        raise errors.ArgumentValueError(f"jax.numpy.signbit is not well defined for {x.dtype}")
    bits = np.dtype(f"int{x.dtype.itemsize * 8}")
    return el.lt_p.bind(el.bitcast_convert_type_p.bind(x, new_dtype=bits), np.zeros((), bits)[()])


@pairwise
def copysign(x1: Any, x2: Any, /) -> Any:
    """|x1| with the sign of x2, elementwise.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array, which broadcasts with the first.

    >>> jnp.copysign(jnp.array([1.0, 2.0]), jnp.array([-0.0, 3.0]))
    Array([-1.,  2.], dtype=float32)
    """
    x1, x2 = promote_inexact("copysign", x1, x2)
    real_only("copysign", aval_of(x1).dtype)
    size = el.abs_p.bind(x1)
    return choose(signbit(x2), el.neg_p.bind(size), size)


def _rounding(name: str, p: Primitive, doc: str, example: str) -> Callable[[Any], Any]:
    def function(x: Any, /) -> Any:
        x = asarray(operand(name, x))
        if x.dtype.kind in "biu" or dtypes.issubdtype(x.dtype, np.integer):
            return x
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
