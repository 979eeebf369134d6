"""Elementwise tests of values, and logic on their truth and bits."""

from __future__ import annotations

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
from meshrt.numpy.operands import operand, promote, promote_numeric, promote_pair, scalar_like, unsupported_argument
from meshrt.numpy.pointwise import greater, less, named
from meshrt.numpy.ufuncs import absolute, imag, real

__all__ = [
    "bitwise_count", "bitwise_invert", "bitwise_not", "fmax", "fmin", "invert", "isfinite", "isinf", "isnan",
    "isneginf", "isposinf", "logical_and", "logical_not", "logical_or", "logical_xor",
]  # fmt: skip


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
    if x.dtype.kind == "c":
        raise errors.ComplexOperandError(
            f"isposinf/isneginf are not well defined for complex types, got dtype {x.dtype}; ask of real and imag"
        )
    if not dtypes.issubdtype(x.dtype, np.floating):
        return full_like(x, False, dtype=bool)
    return el.eq_p.bind(prepare(x), np.asarray(infinity, x.dtype)[()])


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
