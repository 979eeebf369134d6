"""Reductions that leave out NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import dtypes
from meshrt.core.types import aval_of
from meshrt.dispatch import at_once
from meshrt.numpy import prims as el
from meshrt.numpy.averages import mean, var
from meshrt.numpy.choose import choose
from meshrt.numpy.cumulative import cumprod, cumsum
from meshrt.numpy.operands import broadcast_to_shape, operand, unsupported_argument
from meshrt.numpy.reductions import any, argmax, argmin, boolean_mask, max, min, operand_array, prod, sum

__all__ = [
    "nanargmax",
    "nanargmin",
    "nancumprod",
    "nancumsum",
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
]


def _nan_replaced(name: str, a: Any, value: Any) -> tuple[Any, Any]:
    x = operand_array(name, a)
    if not dtypes.issubdtype(x.dtype, np.inexact):
        return x, None
    valid = el.eq_p.bind(x, x)
    return choose(valid, x, value if x.weak_type else np.asarray(value, x.dtype)[()]), valid


@at_once(1)
def nansum(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, initial: Any = None,
    where: Any = None,
) -> Any:  # fmt: skip
    """The sum over ``axis``, NaN counting as 0.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      dtype: the dtype of the result; by default the one that follows from the operands.
      out: must be None: arrays are not written to.
      keepdims: keep reduced dimensions, with size 1.
      initial: a scalar that the reduction starts with.
      where: a boolean array that broadcasts with the operand: which elements count.

    >>> jnp.nansum(jnp.array([1.0, jnp.nan, 3.0]))
    Array(4., dtype=float32)
    """
    where = boolean_mask("nansum", where)
    return sum(_nan_replaced("nansum", a, 0)[0], axis, dtype, out, keepdims, initial, where)


@at_once(1)
def nanprod(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, initial: Any = None,
    where: Any = None,
) -> Any:  # fmt: skip
    """The product over ``axis``, NaN counting as 1.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      dtype: the dtype of the result; by default the one that follows from the operands.
      out: must be None: arrays are not written to.
      keepdims: keep reduced dimensions, with size 1.
      initial: a scalar that the reduction starts with.
      where: a boolean array that broadcasts with the operand: which elements count.

    >>> jnp.nanprod(jnp.array([2.0, jnp.nan, 3.0]))
    Array(6., dtype=float32)
    """
    where = boolean_mask("nanprod", where)
    return prod(_nan_replaced("nanprod", a, 1)[0], axis, dtype, out, keepdims, initial, where)


@at_once(1)
def nanmax(
    a: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Any:
    """The largest element over ``axis`` that is not NaN; NaN where there is none.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      out: must be None: arrays are not written to.
      keepdims: keep reduced dimensions, with size 1.
      initial: a scalar that the reduction starts with.
      where: a boolean array that broadcasts with the operand: which elements count.

    >>> jnp.nanmax(jnp.array([1.0, jnp.nan, 3.0]))
    Array(3., dtype=float32)
    """
    return _nan_extreme("nanmax", max, -np.inf, a, axis, out, keepdims, initial, where)


@at_once(1)
def nanmin(
    a: Any, axis: Any = None, out: None = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Any:
    """The smallest element over ``axis`` that is not NaN; NaN where there is none.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      out: must be None: arrays are not written to.
      keepdims: keep reduced dimensions, with size 1.
      initial: a scalar that the reduction starts with.
      where: a boolean array that broadcasts with the operand: which elements count.

    >>> jnp.nanmin(jnp.array([1.0, jnp.nan, 3.0]))
    Array(1., dtype=float32)
    """
    return _nan_extreme("nanmin", min, np.inf, a, axis, out, keepdims, initial, where)


def _nan_extreme(
    name: str,
    reduce: Callable[..., Any],
    worst: float,
    a: Any,
    axis: Any,
    out: None,
    keepdims: bool,
    initial: Any,
    where: Any,
) -> Any:
    x, valid = _nan_replaced(name, a, worst) if _inexact(a) else (operand_array(name, a), None)
    result = reduce(x, axis, out, keepdims, initial, boolean_mask(name, where))
    if valid is None or initial is not None:
        return result
    none = el.not_p.bind(any(valid, axis, keepdims=keepdims))
    return choose(none, np.asarray(np.nan, result.dtype)[()], result)


def _inexact(a: Any) -> bool:
    return dtypes.issubdtype(aval_of(a).dtype, np.inexact)


@at_once(1)
def nanargmax(a: Any, axis: Any = None, out: None = None, keepdims: bool | None = None) -> Any:
    """The position of the first maximum that is not NaN; -1 where all are.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      out: must be None: arrays are not written to.
      keepdims: keep reduced dimensions, with size 1.

    >>> jnp.nanargmax(jnp.array([1.0, jnp.nan, 3.0]))
    Array(2, dtype=int32)
    """
    return _nan_arg("nanargmax", argmax, -np.inf, a, axis, out, keepdims)


@at_once(1)
def nanargmin(a: Any, axis: Any = None, out: None = None, keepdims: bool | None = None) -> Any:
    """The position of the first minimum that is not NaN; -1 where all are.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      out: must be None: arrays are not written to.
      keepdims: keep reduced dimensions, with size 1.

    >>> jnp.nanargmin(jnp.array([jnp.nan, 2.0, 3.0]))
    Array(1, dtype=int32)
    """
    return _nan_arg("nanargmin", argmin, np.inf, a, axis, out, keepdims)


def _nan_arg(
    name: str, find: Callable[..., Any], worst: float, a: Any, axis: Any, out: None, keepdims: bool | None
) -> Any:
    a = operand(name, a)
    if not _inexact(a):
        return find(a, axis, out, keepdims)
    x, valid = _nan_replaced(name, a, worst)
    position = find(x, axis, out, keepdims)
    some = any(valid, axis, keepdims=bool(keepdims))
    return choose(some, position, np.asarray(-1, position.dtype)[()])


@at_once(1)
def nanmean(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: bool = False, where: Any = None
) -> Any:
    """The mean over ``axis`` of elements that are not NaN.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      dtype: the dtype of the result; by default the one that follows from the operands.
      out: must be None: arrays are not written to.
      keepdims: keep reduced dimensions, with size 1.
      where: a boolean array that broadcasts with the operand: which elements count.

    >>> jnp.nanmean(jnp.array([1.0, jnp.nan, 3.0]))
    Array(2., dtype=float32)
    """
    unsupported_argument("nanmean", "out", out)
    where = boolean_mask("nanmean", where)
    if not _inexact(a):
        return mean(a, axis, dtype, keepdims=keepdims, where=where)
    x, valid = _nan_replaced("nanmean", a, 0)
    valid = valid if where is None else el.and_p.bind(valid, broadcast_to_shape(where, x.shape))
    return mean(x, axis, dtype, keepdims=keepdims, where=valid)


@at_once(1)
def nanvar(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: int = 0, keepdims: bool = False, where: Any =
    None, mean: Any = None,
) -> Any:  # fmt: skip
    """The variance over ``axis`` of elements that are not NaN.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      dtype: the dtype of the result; by default the one that follows from the operands.
      out: must be None: arrays are not written to.
      ddof: what is subtracted from the number of elements in the divisor.
      keepdims: keep reduced dimensions, with size 1.
      where: a boolean array that broadcasts with the operand: which elements count.
      mean: the mean, if it is known.

    >>> jnp.nanvar(jnp.array([1.0, jnp.nan, 3.0]))
    Array(1., dtype=float32)
    """
    unsupported_argument("nanvar", "out", out)
    where = boolean_mask("nanvar", where)
    if not _inexact(a):
        if dtype is not None and where is None:  # which elements count is said here, and decides on the dtype
            where = np.True_
        return var(a, axis, dtype, ddof=ddof, keepdims=keepdims, where=where, mean=mean)
    x, valid = _nan_replaced("nanvar", a, 0)
    valid = valid if where is None else el.and_p.bind(valid, broadcast_to_shape(where, x.shape))
    return var(x, axis, dtype, ddof=ddof, keepdims=keepdims, where=valid, mean=mean)


@at_once(1)
def nanstd(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, ddof: int = 0, keepdims: bool = False, where: Any =
    None, mean: Any = None,
) -> Any:  # fmt: skip
    """The standard deviation over ``axis`` of elements that are not NaN.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      dtype: the dtype of the result; by default the one that follows from the operands.
      out: must be None: arrays are not written to.
      ddof: what is subtracted from the number of elements in the divisor.
      keepdims: keep reduced dimensions, with size 1.
      where: a boolean array that broadcasts with the operand: which elements count.
      mean: the mean, if it is known.

    >>> jnp.nanstd(jnp.array([1.0, jnp.nan, 3.0]))
    Array(1., dtype=float32)
    """
    return el.sqrt_p.bind(nanvar(a, axis, dtype, out, ddof, keepdims, boolean_mask("nanstd", where), mean))


@at_once(1)
def nancumprod(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """As :func:`cumprod`, NaN counting as 1.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      dtype: the dtype of the result; by default the one that follows from the operands.
      out: must be None: arrays are not written to.

    >>> jnp.nancumprod(jnp.array([2.0, jnp.nan, 3.0]))
    Array([2., 2., 6.], dtype=float32)
    """
    return cumprod(_nan_replaced("nancumprod", a, 1)[0], axis, dtype, out)


@at_once(1)
def nancumsum(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """As :func:`cumsum`, NaN counting as 0.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      dtype: the dtype of the result; by default the one that follows from the operands.
      out: must be None: arrays are not written to.

    >>> jnp.nancumsum(jnp.array([2.0, jnp.nan, 3.0]))
    Array([2., 2., 5.], dtype=float32)
    """
    return cumsum(_nan_replaced("nancumsum", a, 0)[0], axis, dtype, out)
