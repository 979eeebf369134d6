"""Sums and products up to each position along a dimension, and differences of neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import dtypes, lax
from meshrt.core.dimensions.expression import min_dim, non_negative_dim
from meshrt.dispatch import at_once
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray, operand_array
from meshrt.numpy.filled import full
from meshrt.numpy.joining import concatenate
from meshrt.numpy.operands import PYTHON_SCALARS, ShapeError, broadcast_to_shape, canonical_axis, unsupported_argument
from meshrt.numpy.reductions import promoted_integer

__all__ = ["cumprod", "cumsum", "cumulative_prod", "cumulative_sum", "diff"]


def _cumulative(name: str, p: Callable[..., Any], a: Any, axis: Any, dtype: Any, out: Any) -> Any:
    unsupported_argument(name, "out", out)
    x = operand_array(name, a)
    if axis is None or (x.ndim == 0 and x.weak_type):  # Python's numbers, which are weak, have the axis of a vector
        x, axis = lax.reshape(x, (x.size,)), 0 if axis is None else axis
    axis = canonical_axis(axis, x.ndim, name)
    if dtype is None:
        result = work = promoted_integer(x.dtype) if x.dtype == np.bool_ else x.dtype
    else:
        result = work = dtypes.check_user_dtype(dtype, name)
        if result == np.bool_:
            x, work = el.convert_element_type(x, np.dtype(bool)), dtypes.default_int_dtype()
    return el.convert_element_type(p(el.convert_element_type(x, work), axis), result)


@at_once(1)
def cumsum(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """Sums of the elements up to each position along ``axis`` (of the flattened array by default).

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension; None (the default) runs over the flattened array.
      dtype: the dtype of the result; by default the one that follows from the operands.
      out: must be None: arrays are not written to.

    Returns:
      An array of the shape of `a`.

    >>> jnp.cumsum(jnp.array([1, 2, 3]))
    Array([1, 3, 6], dtype=int32)
    """
    return _cumulative("cumsum", lax.cumsum, a, axis, dtype, out)


@at_once(1)
def cumprod(a: Any, axis: int | None = None, dtype: Any = None, out: None = None) -> Any:
    """Products of the elements up to each position along ``axis`` (of the flattened array by default).

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension; None (the default) runs over the flattened array.
      dtype: the dtype of the result; by default the one that follows from the operands.
      out: must be None: arrays are not written to.

    >>> jnp.cumprod(jnp.array([1, 2, 3]))
    Array([1, 2, 6], dtype=int32)
    """
    return _cumulative("cumprod", lax.cumprod, a, axis, dtype, out)


def cumulative_sum(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """As :func:`cumsum` along a dimension that only vectors may leave out.

    Args:
      x: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      dtype: the dtype of the result; by default the one that follows from the operands.
      include_initial: put the neutral element in front.

    >>> jnp.cumulative_sum(jnp.array([2, 3]), include_initial=True)
    Array([0, 2, 5], dtype=int32)
    """
    return _array_api_cumulative("cumulative_sum", cumsum, x, axis, dtype, include_initial)


def cumulative_prod(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """As :func:`cumprod` along a dimension that only vectors may leave out.

    Args:
      x: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      dtype: the dtype of the result; by default the one that follows from the operands.
      include_initial: put the neutral element in front.

    >>> jnp.cumulative_prod(jnp.array([2, 3]), include_initial=True)
    Array([1, 2, 6], dtype=int32)
    """
    return _array_api_cumulative("cumulative_prod", cumprod, x, axis, dtype, include_initial)


def _array_api_cumulative(
    name: str, function: Callable[..., Any], x: Any, axis: int | None, dtype: Any, include_initial: bool
) -> Any:
    x = operand_array(name, x)
    if x.ndim == 0:
        raise ShapeError(
            f"The input must be non-scalar to take a cumulative {'sum' if function is cumsum else 'product'}, however "
            f"a scalar value or scalar array was given. (in {name})"
        )
    if axis is None and x.ndim > 1:
        raise ShapeError(
            f"{name}: The input array has rank {x.ndim}, however no axis was given; only vectors need none"
        )
    axis = canonical_axis(0 if axis is None else axis, x.ndim, name)
    if dtype is None and function is cumsum:  # products keep the dtypes of small integers
        dtype = promoted_integer(x.dtype)
    out = function(x, axis, dtype)
    if include_initial:
        start = full((*x.shape[:axis], 1, *x.shape[axis + 1 :]), 0 if function is cumsum else 1, out.dtype)
        out = lax.concatenate([start, out], axis)
    return out


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """Differences of neighbours along ``axis``, taken ``n`` times.

    Args:
      a: an array, or what `asarray` makes one of.
      n: how often.
      axis: the dimension to work along; negative numbers count from the end.
      prepend: values to put before the array.
      append: values to put behind the array.

    >>> jnp.diff(jnp.array([1, 4, 9]))
    Array([3, 5], dtype=int32)
    """
    x = operand_array("diff", a)
    if x.ndim == 0:
        raise ShapeError(f"diff requires input that is at least one dimensional; got {a}")
    if n < 0:
        raise ShapeError(f"order must be non-negative but got {n}")
    if n == 0:
        return x
    axis = canonical_axis(axis, x.ndim, "diff")
    edge = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    parts = [
        broadcast_to_shape(asarray(p), edge) if isinstance(p, PYTHON_SCALARS) or np.ndim(p) == 0 else p
        for p in (prepend, x, append)
        if p is not None and p is not x
    ]
    if parts:
        before = [parts[0]] if prepend is not None else []
        after = [parts[-1]] if append is not None else []
        x = concatenate([*before, x, *after], axis)
    subtract = el.ne_p.bind if x.dtype == np.bool_ else el.sub_p.bind
    for _ in range(n):
        size = x.shape[axis]
        x = subtract(
            lax.slice_in_dim(x, min_dim(1, size), size, axis=axis),
            lax.slice_in_dim(x, 0, non_negative_dim(size - 1), axis=axis),
        )
    return x
