"""Positions of elements: nonzero and what is picked by it. The shape of their results depends on values."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import dtypes, lax
from meshrt.core.trace import not_concrete
from meshrt.core.types import aval_of
from meshrt.lax.filled import sharding_like
from meshrt.numpy.arrays import asarray
from meshrt.numpy.choose import choose
from meshrt.numpy.cumulative import cumsum
from meshrt.numpy.division import floor_divide, remainder
from meshrt.numpy.filled import full_like, zeros
from meshrt.numpy.indexing import take
from meshrt.numpy.joining import stack
from meshrt.numpy.operands import ShapeError, canonical_axis, operand, unsupported_argument
from meshrt.numpy.reductions import sum as total
from meshrt.numpy.ufuncs import not_equal
from meshrt.sharding.named import NamedSharding

__all__ = ["argwhere", "compress", "extract", "flatnonzero", "nonzero"]


def nonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> tuple[Any, ...]:
    """Positions of nonzero elements, one index array per dimension.

    Their number depends on the values: inside traced code give ``size``, the number to return; missing ones are
    ``fill_value`` (a scalar or one per dimension, 0 by default).

    Args:
      a: an array, or what `asarray` makes one of.
      size: how many elements the result has, so that its shape is known to `jit`; by default as many as are found.
      fill_value: what fills up results that have fewer than `size` elements.

    Returns:
      A tuple with a vector of positions for each dimension.

    Raises:
      ConcretizationTypeError: under `jit` without `size`.

    >>> jnp.nonzero(jnp.array([0, 5, 7]))
    (Array([1, 2], dtype=int32),)
    >>> jnp.nonzero(jnp.array([0, 5, 7]), size=3, fill_value=-1)
    (Array([ 1,  2, -1], dtype=int32),)
    """
    a = asarray(operand("nonzero", a))
    if not isinstance(fill_value, tuple) and np.ndim(fill_value):
        raise ShapeError(f"fill_value must be a scalar or a tuple of length {a.ndim}; got {fill_value}")
    if a.ndim == 0:
        raise ShapeError(
            "Calling nonzero on 0d arrays is not allowed. Use jnp.atleast_1d(scalar).nonzero(), or x != 0, instead"
        )
    if size is None:
        concrete = getattr(a, "concrete", None)
        value = concrete() if concrete is not None else a
        if value is None:
            raise not_concrete(
                a,
                "The size argument of jnp.nonzero must be statically specified while tracing, as the size of its "
                "result depends on values; or use where with three arguments",
            )
        if fill_value is not None:  # nothing is to be filled, but results have a dtype that holds it
            return _nonzero_sized(a, int(np.count_nonzero(np.asarray(value))), fill_value)
        where = sharding_like(a, a.shape)
        if type(where) is NamedSharding:  # positions are whole on each of its devices
            if aval_of(a).explicit is not None:  # which says where axes that split it have no such order
                return _nonzero_sized(a, int(np.count_nonzero(np.asarray(value))), fill_value)
            where = where.replicated(1)
        return tuple(asarray(i.astype(dtypes.default_int_dtype()), device=where) for i in np.nonzero(np.asarray(value)))
    return _nonzero_sized(a, size, fill_value)


def _nonzero_sized(a: Any, size: int, fill_value: Any) -> tuple[Any, ...]:
    """The k-th nonzero element is where the running count reaches k + 1."""
    mask = lax.reshape(a if a.dtype == np.bool_ else not_equal(a, 0), (a.size,))
    fills = fill_value if isinstance(fill_value, tuple) else (0 if fill_value is None else fill_value,) * a.ndim
    if len(fills) != a.ndim or any(np.ndim(fill) for fill in fills):
        raise ShapeError(f"fill_value must be a scalar or a tuple of length {a.ndim}; got {fill_value}")
    if a.size == 0 or size == 0:
        return tuple(full_like(mask, 0, dtype=dtypes.default_int_dtype(), shape=(size,)) for _ in fills)
    count = cumsum(mask)
    ones = zeros((size,), dtypes.default_int_dtype()).at[count].add(1, mode="drop")
    flat = cumsum(ones)
    missing = lax.iota(ones.dtype, size) >= total(mask)
    out, stride = [], a.size
    for n, fill in zip(a.shape, fills):
        stride //= n
        out.append(choose(missing, fill, remainder(floor_divide(flat, stride), n)))
    return tuple(out)


def flatnonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """Positions of nonzero elements in the flattened array; see :func:`nonzero`.

    Args:
      a: an array, or what `asarray` makes one of.
      size: how many elements the result has, so that its shape is known to `jit`; by default as many as are found.
      fill_value: what fills up results that have fewer than `size` elements.

    >>> jnp.flatnonzero(jnp.array([[0, 1], [2, 0]]))
    Array([1, 2], dtype=int32)
    """
    a = asarray(operand("flatnonzero", a))
    return nonzero(lax.reshape(a, (a.size,)), size=size, fill_value=fill_value)[0]


def argwhere(a: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """Positions of nonzero elements as rows; see :func:`nonzero`.

    A scalar has one position, which is empty, if it is not zero, and none else.

    Args:
      a: an array, or what `asarray` makes one of.
      size: how many elements the result has, so that its shape is known to `jit`; by default as many as are found.
      fill_value: what fills up results that have fewer than `size` elements.

    >>> jnp.argwhere(jnp.array([0, 5, 7]))
    Array([[1],
           [2]], dtype=int32)
    """
    a = asarray(operand("argwhere", a))
    if a.ndim:
        return stack(nonzero(a, size=size, fill_value=fill_value), 1)
    (found,) = nonzero(lax.reshape(a, (1,)), size=size, fill_value=fill_value)
    return zeros((*found.shape, 0), found.dtype)


def compress(
    condition: Any, a: Any, axis: int | None = None, *, size: int | None = None, fill_value: Any = 0, out: None = None
) -> Any:
    """The positions of ``a`` along ``axis`` where the vector ``condition`` is true.

    Their number depends on the values: inside traced code give ``size``, the number to return; missing ones are
    ``fill_value``.

    Args:
      condition: a vector of booleans.
      a: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.
      size: how many elements the result has, so that its shape is known to `jit`; by default as many as are found.
      fill_value: what fills up results that have fewer than `size` elements.
      out: must be None: arrays are not written to.

    >>> jnp.compress(jnp.array([True, False, True]), jnp.array([1, 2, 3]))
    Array([1, 3], dtype=int32)
    """
    unsupported_argument("compress", "out", out)
    a, condition = asarray(operand("compress", a, 1)), asarray(operand("compress", condition))
    a, axis = (lax.reshape(a, (a.size,)), 0) if axis is None else (a, canonical_axis(axis, a.ndim))
    n = a.shape[axis]
    if condition.ndim != 1:
        raise ShapeError(f"compress: condition must be a 1D array, got shape {condition.shape}")
    if size is None:
        positions = nonzero(condition)[0]
        if positions.size and int(positions[-1]) >= n:
            raise ShapeError(
                f"condition contains entries that are out of bounds: beyond the {n} of axis {axis} of shape {a.shape}"
            )
        return take(a, positions, axis=axis)
    most = min(n, condition.shape[0])
    if not 0 <= size <= most:
        raise ShapeError(
            f"compress: size must be between 0 and {most}, the length of the condition along axis {axis} of shape "
            f"{a.shape}; got {size}"
        )
    positions = nonzero(lax.slice_in_dim(condition, 0, most), size=size, fill_value=n)[0]
    return take(a, positions, axis=axis, mode="fill", fill_value=fill_value)


def extract(condition: Any, arr: Any, *, size: int | None = None, fill_value: Any = 0) -> Any:
    """The elements of ``arr`` where ``condition`` is true, as a vector; ``size`` as in :func:`compress`.

    Args:
      condition: booleans, or numbers that count as True unless zero.
      arr: an array, or what `asarray` makes one of.
      size: how many elements the result has, so that its shape is known to `jit`; by default as many as are found.
      fill_value: what fills up results that have fewer than `size` elements.

    >>> jnp.extract(jnp.array([True, False, True]), jnp.array([1, 2, 3]))
    Array([1, 3], dtype=int32)
    """
    condition = asarray(operand("extract", condition))
    return compress(lax.reshape(condition, (condition.size,)), arr, size=size, fill_value=fill_value)
