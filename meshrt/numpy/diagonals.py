"""Diagonals of arrays: taken out, summed, and made into matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import lax
from meshrt.core.basic.shapes import reshape_p
from meshrt.core.dimensions.expression import is_symbolic_dim, min_dim, non_negative_dim
from meshrt.core.types import aval_of
from meshrt.numpy.arrays import operand_array
from meshrt.numpy.choose import choose
from meshrt.numpy.creation import arange, eye
from meshrt.numpy.operands import (
    ShapeError,
    canonical_axis,
    diagonal_number,
    is_unknown,
    static_diagonal,
    unsupported_argument,
)
from meshrt.numpy.reductions import sum as total
from meshrt.numpy.shapes import moveaxis

__all__ = ["diag", "diagflat", "diagonal", "trace"]


def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: None = None) -> Any:
    """The sum along a diagonal of two dimensions.

    Args:
      a: an array, or what `asarray` makes one of.
      offset: the number of the diagonal; 0 is the main one.
      axis1: the first of the two dimensions.
      axis2: the second of the two dimensions.
      dtype: the dtype of the result; by default the one that follows from the operands.
      out: must be None: arrays are not written to.

    >>> jnp.trace(jnp.array([[1, 2], [3, 4]]))
    Array(5, dtype=int32)
    """
    unsupported_argument("trace", "out", out)
    x, offset = operand_array("trace", a), diagonal_number(offset, "trace", "offset")
    if x.ndim >= 2:
        split, axes = aval_of(x).explicit, _two_axes(x, axis1, axis2, "trace")
        in_parts = split is not None and any(split.spec.partitions[d] is not None for d in axes)
        if in_parts or is_unknown(offset):  # devices hold parts of the diagonal only; or nobody knows yet which it is
            x = moveaxis(x, axes, (-2, -1))
            n, m = x.shape[-2:]
            on_it = eye(n, m, offset, bool)
            return total(choose(on_it, x, np.zeros((), x.dtype)), (-2, -1), dtype)
    return total(diagonal(x, offset, axis1, axis2), -1, dtype)


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The elements on a diagonal of two dimensions, as a new last dimension.

    It is a strided slice of the array with these dimensions merged, so no gather is needed.

    Args:
      a: an array, or what `asarray` makes one of.
      offset: the number of the diagonal; 0 is the main one.
      axis1: the first of the two dimensions.
      axis2: the second of the two dimensions.

    >>> jnp.diagonal(jnp.array([[1, 2], [3, 4]]))
    Array([1, 4], dtype=int32)
    """
    x = operand_array("diagonal", a)
    if x.ndim < 2:
        raise ShapeError(f"diagonal requires an array of at least two dimensions. Got shape {x.shape}")
    x = moveaxis(x, _two_axes(x, axis1, axis2, "diagonal"), (-2, -1))
    *lead, n, m = x.shape
    offset = static_diagonal(offset, "diagonal", "offset")
    count = non_negative_dim(min_dim(n + min(offset, 0), m - max(offset, 0)))
    if is_symbolic_dim(count):  # how far the last element lies behind the first is no size where there is none
        k = arange(count)
        return x[..., k - min(offset, 0), k + max(offset, 0)]
    start = offset if offset >= 0 else -offset * m
    flat = reshape_p.bind(x, new_sizes=(*lead, n * m))
    if count == 0:
        return lax.slice_in_dim(flat, 0, 0, axis=-1)
    return lax.slice_in_dim(flat, start, start + (count - 1) * (m + 1) + 1, m + 1, axis=-1)


def _two_axes(x: Any, axis1: int, axis2: int, function: str) -> tuple[int, int]:
    axes = canonical_axis(axis1, x.ndim, function), canonical_axis(axis2, x.ndim, function)
    if axes[0] == axes[1]:
        raise ShapeError(f"{function}: axis1 and axis2 can not be same, got {axis1} and {axis2}")
    return axes


def diag(v: Any, k: int = 0) -> Any:
    """A matrix with a vector on diagonal ``k``, or diagonal ``k`` of a matrix.

    Args:
      v: a vector, or a matrix.
      k: the number of the diagonal; 0 is the main one.

    >>> jnp.diag(jnp.array([1, 2]))
    Array([[1, 0],
           [0, 2]], dtype=int32)
    >>> jnp.diag(jnp.array([[1, 2], [3, 4]]))
    Array([1, 4], dtype=int32)
    """
    x = operand_array("diag", v)
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise ShapeError(f"diag input must be 1d or 2d, got shape {x.shape}")
    k = static_diagonal(k, "diag")
    n = x.size + abs(k)
    padded = lax.pad(x, np.zeros((), x.dtype)[()], [(max(0, -k), max(0, k), 0)])
    return choose(eye(n, k=k, dtype=bool), reshape_p.bind(padded, new_sizes=(n, 1)), np.zeros((), x.dtype)[()])


def diagflat(v: Any, k: int = 0) -> Any:
    """A matrix with the elements of ``v`` on diagonal ``k``.

    Args:
      v: an array, or what `asarray` makes one of.
      k: the number of the diagonal; 0 is the main one.

    >>> jnp.diagflat(jnp.array([1, 2]))
    Array([[1, 0],
           [0, 2]], dtype=int32)
    """
    x = operand_array("diagflat", v)
    return diag(lax.reshape(x, (x.size,)), k)
