"""Arrays put together along a dimension, old or new, and one taken apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, lax
from meshrt.core.dimensions.expression import is_symbolic_dim
from meshrt.core.operators import ArrayOperators
from meshrt.core.types import aval_of
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray, operand_array
from meshrt.numpy.operands import ShapeError, canonical_axis, unsupported_argument
from meshrt.numpy.shapes import atleast_1d, atleast_2d, atleast_3d, expand_dims, moveaxis, ravel, reshape, transpose

__all__ = ["append", "column_stack", "concat", "concatenate", "dstack", "hstack", "stack", "unstack", "vstack"]


def _same_dtype(name: str, arrays: Sequence[Any], dtype: Any) -> list[Any]:
    xs = [operand_array(name, a, i) for i, a in enumerate(arrays)]
    if dtype is not None:
        return [asarray(x, dtype) for x in xs]
    first = xs[0].dtype
    if all(x.dtype == first for x in xs):
        return xs
    target, weak = dtypes.promote_dtypes(*((x.dtype, aval_of(x).weak_type) for x in xs))
    return [el.convert_element_type(x, target, weak) for x in xs]


def concatenate(arrays: Any, axis: int | None = 0, dtype: Any = None) -> Any:
    """Arrays joined along an existing dimension; ``axis=None`` flattens them first.

    Args:
      arrays: a sequence of arrays that agree in all other dimensions.
      axis: the dimension to join along; None for all elements in one row.
      dtype: the dtype of the result; by default the one that follows from the operands.

    Returns:
      An array of the promoted dtype.

    Raises:
      TypeError, ValueError: the shapes do not fit, or there is nothing to join.

    >>> jnp.concatenate([jnp.ones((1, 2)), jnp.zeros((1, 2))], axis=0)
    Array([[1., 1.],
           [0., 0.]], dtype=float32)
    """
    if _has_symbolic_count(arrays):
        return _items_joined(asarray(arrays, dtype), axis)
    if isinstance(arrays, (ArrayOperators, np.ndarray)):
        arrays = unstack(arrays)
    if not len(arrays):
        raise ShapeError("Need at least one array to concatenate.")
    xs = _same_dtype("concatenate", arrays, dtype)
    if axis is None:
        return concatenate([ravel(x) for x in xs], 0)
    if xs[0].ndim == 0:
        raise ShapeError("concatenate: Zero-dimensional arrays cannot be concatenated. Use stack")
    axis = canonical_axis(axis, xs[0].ndim, "concatenate")
    return xs[0] if len(xs) == 1 else lax.concatenate(xs, axis)


def _has_symbolic_count(arrays: Any) -> bool:
    """Whether it is an array with a symbolic size in the place of the number of arrays: it cannot be taken apart."""
    return isinstance(arrays, ArrayOperators) and arrays.ndim > 0 and is_symbolic_dim(arrays.shape[0])


def _items_joined(x: Any, axis: int | None) -> Any:
    """What stands along the first dimension of an array, joined."""
    if axis is None:
        return ravel(x)
    if x.ndim == 1:
        raise ShapeError("concatenate: Zero-dimensional arrays cannot be concatenated. Use stack")
    axis = canonical_axis(axis, x.ndim - 1, "concatenate")
    count, *sizes = x.shape
    sizes[axis] = count * sizes[axis]
    return reshape(moveaxis(x, 0, axis), sizes)


def concat(arrays: Any, /, *, axis: int | None = 0) -> Any:
    """As :func:`concatenate`.

    Args:
      arrays: arrays.
      axis: the dimension to work along; negative numbers count from the end.

    >>> jnp.concat([jnp.array([1, 2]), jnp.array([3])])
    Array([1, 2, 3], dtype=int32)
    """
    return concatenate(arrays, axis)


def stack(arrays: Any, axis: int = 0, out: None = None, dtype: Any = None) -> Any:
    """Arrays of one shape joined along a new dimension at position ``axis`` of the result.

    Args:
      arrays: a sequence of arrays of one shape.
      axis: where the new dimension goes.
      out: must be None: arrays are not written to.
      dtype: the dtype of the result; by default the one that follows from the operands.

    Returns:
      An array with one dimension more.

    Raises:
      ValueError: the shapes differ, or there is nothing to stack.

    >>> jnp.stack([jnp.array([1, 2]), jnp.array([3, 4])], axis=1)
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    unsupported_argument("stack", "out", out)
    if not _has_symbolic_count(arrays) and not len(arrays):
        raise ShapeError("Need at least one array to stack.")
    if isinstance(arrays, (ArrayOperators, np.ndarray)):
        return moveaxis(asarray(arrays, dtype), 0, axis)
    xs = _same_dtype("stack", arrays, dtype)
    if any(x.shape != xs[0].shape for x in xs):
        differing = "different numbers of dimensions" if len({x.ndim for x in xs}) > 1 else "different shapes"
        raise ShapeError(
            f"Cannot stack arrays with {differing}. All input arrays must have the same shape. Got "
            f"{', '.join(str(x.shape) for x in xs)}."
        )
    axis = canonical_axis(axis, xs[0].ndim + 1, "stack")
    return lax.concatenate([expand_dims(x, axis) for x in xs], axis)


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    """The slices of ``x`` along ``axis``.

    Args:
      x: an array, or what `asarray` makes one of.
      axis: the dimension to work along; negative numbers count from the end.

    >>> jnp.unstack(jnp.array([[1, 2], [3, 4]]))
    (Array([1, 2], dtype=int32), Array([3, 4], dtype=int32))
    """
    x = operand_array("unstack", x)
    if x.ndim == 0:
        raise ShapeError("Unstack requires arrays with at least one dimension, got a scalar")
    axis = canonical_axis(axis, x.ndim, "unstack")
    return tuple(lax.index_in_dim(x, i, axis, keepdims=False) for i in range(x.shape[axis]))


def vstack(tup: Any, dtype: Any = None) -> Any:
    """Arrays joined along the first of at least two dimensions.

    Args:
      tup: a sequence of arrays, or one array whose first dimension is taken apart.
      dtype: the dtype of the result; by default the one that follows from the operands.

    >>> jnp.vstack([jnp.array([1, 2]), jnp.array([3, 4])])
    Array([[1, 2],
           [3, 4]], dtype=int32)
    """
    return concatenate(_grown(tup, atleast_2d, {0: (1, 2), 1: (1,)}), 0, dtype)


def hstack(tup: Any, dtype: Any = None) -> Any:
    """Arrays joined along the second dimension, vectors along the first.

    Args:
      tup: a sequence of arrays, or one array whose first dimension is taken apart.
      dtype: the dtype of the result; by default the one that follows from the operands.

    >>> jnp.hstack([jnp.array([1, 2]), jnp.array([3])])
    Array([1, 2, 3], dtype=int32)
    """
    xs = _grown(tup, atleast_1d, {0: (1,)})
    rank = xs[0].ndim if isinstance(xs, list) else xs.ndim - 1
    return concatenate(xs, 0 if rank == 1 else 1, dtype)


def dstack(tup: Any, dtype: Any = None) -> Any:
    """Arrays joined along the third of at least three dimensions.

    Args:
      tup: a sequence of arrays, or one array whose first dimension is taken apart.
      dtype: the dtype of the result; by default the one that follows from the operands.

    >>> jnp.dstack([jnp.array([1, 2]), jnp.array([3, 4])]).shape
    (1, 2, 2)
    """
    return concatenate(_grown(tup, atleast_3d, {0: (1, 2, 3), 1: (1, 3), 2: (3,)}), 2, dtype)


def column_stack(tup: Any) -> Any:
    """Vectors as columns, and matrices, joined along the second dimension.

    >>> jnp.column_stack([jnp.array([1, 2]), jnp.array([3, 4])])
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    column = lambda a: x if (x := operand_array("column_stack", a)).ndim > 1 else transpose(atleast_2d(x))
    return concatenate(_grown(tup, column, {0: (1, 2), 1: (2,)}), 1)


def _grown(tup: Any, grow: Callable[[Any], Any], new: Mapping[int, tuple[int, ...]]) -> Any:
    """Every array with the dimensions that it lacks. Those that stand along a symbolic size of one array stay in it;
    `new` has the places in it of new dimensions, by the rank of each."""
    if _has_symbolic_count(tup):
        return expand_dims(tup, new.get(tup.ndim - 1, ()))
    items = [grow(a) for a in (unstack(tup) if isinstance(tup, (ArrayOperators, np.ndarray)) else tup)]
    if not items:
        raise ShapeError("Need at least one array to concatenate")
    return items


def append(arr: Any, values: Any, axis: int | None = None) -> Any:
    """``values`` joined to the end of ``arr``.

    Args:
      arr: an array, or what `asarray` makes one of.
      values: what is put behind it.
      axis: the dimension to join along; by default both are flattened.

    >>> jnp.append(jnp.array([1, 2]), jnp.array([3]))
    Array([1, 2, 3], dtype=int32)
    """
    return concatenate([arr, values], axis)
