"""Choosing between values: where, clip, select, and comparison of whole arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.types import aval_of
from meshrt.dispatch import at_once
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray
from meshrt.numpy.choose import choose
from meshrt.numpy.logic import isfinite, isnan, isneginf, isposinf
from meshrt.numpy.operands import (
    ADAPTING,
    PYTHON_SCALARS,
    ShapeError,
    beside,
    operand,
    promote_inexact,
    scalar_like,
    static_int,
    unsupported_argument,
)
from meshrt.numpy.positions import nonzero
from meshrt.numpy.ufuncs import equal, imag, maximum, minimum, real
from meshrt.primitives.reduce import reduce_and_p
from meshrt.runtime.array import Array

__all__ = [
    "allclose", "around", "array_equal", "array_equiv", "clip", "isclose", "nan_to_num", "round",
    "select", "where",
]  # fmt: skip


def where(condition: Any, x: Any = None, y: Any = None, /, *, size: int | None = None, fill_value: Any = None) -> Any:
    """``x`` where ``condition`` is true (nonzero), else ``y``; all three broadcast together.

    With one argument it is ``numpy.nonzero``, whose result has a shape that depends on values: then the condition
    must be concrete, or ``size`` must be given.

    Args:
      condition: booleans, or numbers that count as True unless zero.
      x: taken where True.
      y: taken where False.
      size: with one argument: how many positions the result has.
      fill_value: with one argument: what fills up the result.

    Returns:
      An array of the broadcast shape and the promoted dtype; with one argument a tuple of positions per dimension.

    >>> jnp.where(jnp.array([True, False]), jnp.array([1, 2]), 0)
    Array([1, 0], dtype=int32)
    """
    if x is None and y is None:
        return nonzero(condition, size=size, fill_value=fill_value)
    if x is None or y is None:
        place = 1 if x is None else 2
        raise errors.ArgumentTypeError(
            f"where requires ndarray or scalar arguments, got {type(None)} at position {place}: it needs both of its "
            "last two arguments, or none of them"
        )
    if size is not None or fill_value is not None:
        raise errors.ArgumentValueError("where: size and fill_value belong to the form with one argument")
    return choose(condition, x, y)


def clip(arr: Any = None, /, min: Any = None, max: Any = None) -> Any:
    """``arr`` limited to [min, max]; either bound may be None.

    Args:
      arr: an array.
      min: the lower bound, or None.
      max: the upper bound, or None.

    Returns:
      An array like `arr`.

    >>> jnp.clip(jnp.array([-2, 0.5, 3]), 0, 1)
    Array([0. , 0.5, 1. ], dtype=float32)
    """

    if arr is None:
        raise errors.ArgumentValueError("No input was provided to the clip function: give arr")
    for i, v in enumerate((arr, min, max)):
        if (v is not None or not i) and _is_complex(v, i):
            raise errors.ArgumentValueError(
                "Clip received a complex value: Complex values have no ordering and cannot be clipped; "
                "clip real and imaginary parts"
            )
    if min is not None and max is not None:
        if type(arr) is Array:
            min, max = (beside(v, arr) if type(v) in ADAPTING else v for v in (min, max))
        return _between(arr, min, max)
    if min is not None:
        arr = maximum(min, arr)
    if max is not None:
        arr = minimum(max, arr)
    return asarray(arr)


def _is_complex(x: Any, position: int) -> bool:
    if isinstance(x, PYTHON_SCALARS):
        return isinstance(x, complex)
    return aval_of(operand("clip", x, position)).dtype.kind == "c"


@at_once(3)
def _between(arr: Any, low: Any, high: Any) -> Any:
    return asarray(minimum(high, maximum(low, arr)))


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    """For each element the choice that belongs to the first true condition, else ``default``.

    Args:
      condlist: boolean arrays.
      choicelist: an array for each.
      default: taken where none is True.

    >>> jnp.select([jnp.array([True, False]), jnp.array([True, True])], [jnp.array([1, 2]), jnp.array([3, 4])])
    Array([1, 4], dtype=int32)
    """
    if len(condlist) != len(choicelist):
        raise ShapeError(
            f"select: condlist must have length equal to choicelist ({len(condlist)} vs {len(choicelist)})"
        )
    if not len(condlist):  # (it may be an array)
        raise ShapeError("select: condlist must be non-empty")
    dtype, weak = dtypes.promote_dtypes(*map(dtypes.dtype_and_weak_type, (default, *choicelist)))
    out = default
    for condition, choice in zip(reversed(condlist), reversed(choicelist)):
        out = where(condition, choice, out)
    return el.convert_element_type(out, dtype, weak)


@at_once(1)
def nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    """NaN becomes ``nan``; infinities become ``posinf`` and ``neginf`` (by default the largest finite values).

    Args:
      x: an array, or what `asarray` makes one of.
      copy: has no effect.
      nan: what replaces NaNs.
      posinf: what replaces infinities; the largest number by default.
      neginf: what replaces negative infinities; the least number by default.

    >>> jnp.nan_to_num(jnp.array([jnp.nan, 1.0]), nan=0.0)
    Array([0., 1.], dtype=float32)
    """

    x = asarray(operand("nan_to_num", x))
    if not dtypes.issubdtype(x.dtype, np.inexact):
        return x
    if x.dtype.kind == "c":
        parts = [nan_to_num(p(x), copy, nan, posinf, neginf) for p in (real, imag)]
        return el.complex(*parts)
    info = dtypes.finfo(x.dtype)
    high = info.max if posinf is None else posinf
    low = info.min if neginf is None else neginf
    out = where(isnan(x), asarray(nan, x.dtype), x)
    out = where(isposinf(out), asarray(high, x.dtype), out)
    return where(isneginf(out), asarray(low, x.dtype), out)


def round(a: Any, decimals: int = 0, out: None = None) -> Any:
    """``a`` rounded to ``decimals`` places, ties to even.

    Args:
      a: an array, or what `asarray` makes one of.
      decimals: how many decimal places.
      out: must be None: arrays are not written to.

    >>> jnp.around(jnp.array([1.25, 2.675]), 1)
    Array([1.2, 2.7], dtype=float32)
    """

    unsupported_argument("round", "out", out)
    a = asarray(operand("round", a))
    decimals = static_int(decimals, "round: decimals")
    if a.dtype == np.bool_:
        raise errors.ArgumentValueError("data type <class 'numpy.bool'> not inexact: round takes numbers")
    if not dtypes.issubdtype(a.dtype, np.inexact):
        if decimals < 0:
            raise errors.UnsupportedError("round: integers cannot be rounded to negative decimals")
        return a
    if decimals > math.log10(float(dtypes.finfo(a.dtype).max)):
        return a
    if a.dtype.kind == "c":
        return el.complex(_round(real(a), decimals), _round(imag(a), decimals))
    return _round(a, decimals)


around = round


def _round(x: Any, decimals: int) -> Any:
    if decimals == 0:
        return el.round_p.bind(x, rounding_method=1)
    dtype = x.dtype
    x = el.convert_element_type(x, np.float32) if dtype == np.float16 else x
    factor = scalar_like(x, 10.0**decimals)
    x = el.div_p.bind(el.round_p.bind(el.mul_p.bind(x, factor), rounding_method=1), factor)
    return el.convert_element_type(x, dtype) if dtype == np.float16 else x


# ----------------------------------------------------------------------------------------------------------
# Whole arrays.


@at_once(2, ["equal_nan"])
def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """Whether |a - b| <= atol + rtol * |b|, elementwise; infinities are close to themselves, keys to equal ones.

    Args:
      a: an array, or what `asarray` makes one of.
      b: a second array.
      rtol: tolerance relative to the second array.
      atol: absolute tolerance.
      equal_nan: NaNs count as equal to each other.

    >>> jnp.isclose(jnp.array([1.0, 2.0]), jnp.array([1.0, 2.1]))
    Array([ True, False], dtype=bool)
    """
    if dtypes.issubdtype(getattr(a, "dtype", None), dtypes.prng_key):
        return equal(a, b)
    a, b = map(asarray, promote_inexact("isclose", a, b))
    real = np.dtype(dtypes.finfo(a.dtype).dtype)
    rtol, atol = (el.convert_element_type(t, real) for t in (rtol, atol))
    size = el.abs_p.bind(b)
    near = el.le_p.bind(el.abs_p.bind(el.sub_p.bind(a, b)), el.add_p.bind(atol, el.mul_p.bind(rtol, size)))
    out = el.or_p.bind(el.eq_p.bind(a, b), el.and_p.bind(isfinite(b), near))
    return el.or_p.bind(out, el.and_p.bind(isnan(a), isnan(b))) if equal_nan else out


def _all(x: Any) -> Any:
    return reduce_and_p.bind(x, axes=tuple(range(x.ndim)))


@at_once(2, ["equal_nan"])
def allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """Whether :func:`isclose` holds everywhere; a boolean scalar array.

    Args:
      a: an array, or what `asarray` makes one of.
      b: a second array.
      rtol: tolerance relative to the second array.
      atol: absolute tolerance.
      equal_nan: NaNs count as equal to each other.

    >>> jnp.allclose(jnp.array([1.0, 2.0]), jnp.array([1.0, 2.0 + 1e-7]))
    Array(True, dtype=bool)
    """
    return _all(isclose(a, b, rtol, atol, equal_nan))


@at_once(2, ["equal_nan"])
def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    """Whether two arrays have one shape and equal elements; a boolean scalar array.

    Args:
      a1: an array, or what `asarray` makes one of.
      a2: a second array.
      equal_nan: NaNs count as equal to each other.

    >>> jnp.array_equal(jnp.arange(3), jnp.array([0, 1, 2]))
    Array(True, dtype=bool)
    """

    a1, a2 = asarray(a1), asarray(a2)
    if a1.shape != a2.shape:
        return asarray(False)
    same = equal(a1, a2)
    if equal_nan and not aval_of(a1).is_key:
        same = el.or_p.bind(same, el.and_p.bind(isnan(a1), isnan(a2)))
    return _all(same)


@at_once(2)
def array_equiv(a1: Any, a2: Any) -> Any:
    """Whether two arrays broadcast together and have equal elements; a boolean scalar array.

    Args:
      a1: an array, or what `asarray` makes one of.
      a2: a second array.

    >>> jnp.array_equiv(jnp.ones((2, 3)), jnp.ones(3))
    Array(True, dtype=bool)
    """

    a1, a2 = asarray(a1), asarray(a2)
    try:
        return _all(equal(a1, a2))
    except dtypes.TypePromotionError:  # no equal dtypes under numpy_dtype_promotion="strict"
        return asarray(False)
    except ShapeError:
        if a1.ndim == a2.ndim:  # JAX takes it for a mistake
            raise
        return asarray(False)
