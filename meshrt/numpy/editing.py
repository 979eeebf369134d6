"""Arrays with elements put in, taken out or replaced."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.dimensions.arithmetic import ceil_div
from meshrt.core.dimensions.expression import is_symbolic_dim, min_dim
from meshrt.core.operators import ArrayOperators
from meshrt.core.trace import not_concrete
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import array, asarray, operand_array
from meshrt.numpy.choose import choose as where
from meshrt.numpy.creation import indices as index_grid
from meshrt.numpy.division import remainder
from meshrt.numpy.filled import full, ones, zeros_like
from meshrt.numpy.grids import diag_indices, unravel_index
from meshrt.numpy.indexing import take, take_static
from meshrt.numpy.joining import concatenate, stack
from meshrt.numpy.logic import logical_or
from meshrt.numpy.operands import (
    AxisError,
    ShapeError,
    canonical_axes,
    canonical_axis,
    common_shape,
    is_unknown,
    operand,
    refuse_traced,
    unsupported_argument,
)
from meshrt.numpy.padding import tile
from meshrt.numpy.positions import nonzero
from meshrt.numpy.reductions import any as any_
from meshrt.numpy.selection import clip
from meshrt.numpy.shapes import broadcast_arrays, broadcast_to, moveaxis, ravel, reshape
from meshrt.numpy.sorting import argsort

__all__ = [
    "block", "choose", "delete", "fill_diagonal", "insert", "place", "put", "put_along_axis",
    "trim_zeros",
]  # fmt: skip


def concrete(name: str, argument: str, x: Any, fix: str) -> np.ndarray:
    """The values of ``x``, an argument of ``name`` that the shape of its result depends on.

    Raises:
      ConcretizationError: they are not known while tracing.
    """
    get = getattr(x, "concrete", None)
    value = x if get is None else get()
    if value is None:
        raise not_concrete(
            x, f"The size of the result depends on the values of argument '{argument}' of jnp.{name}; {fix}"
        )
    return np.asarray(value)


def not_in_place(name: str, inplace: bool) -> None:
    if inplace:
        raise errors.ArgumentValueError(
            f"jax.numpy.{name} cannot modify arrays in-place, because JAX arrays are immutable. Pass inplace=False and "
            "use the result"
        )


def _repeated_to(x: Any, size: int) -> Any:
    """A vector of ``size`` elements, those of ``x`` again and again."""
    return tile(x, ceil_div(size, x.size))[:size]


# ----------------------------------------------------------------------------------------------------------
# Putting in and taking out.


def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Any:
    """``arr`` with ``values`` put in before the positions ``obj`` along ``axis`` (flattened by default).

    Args:
      arr: an array, or what `asarray` makes one of.
      obj: where: an int, a slice or an array of ints.
      values: what is inserted.
      axis: the dimension to work along; negative numbers count from the end.

    >>> jnp.insert(jnp.array([1, 2, 3]), 1, 9)
    Array([1, 9, 2, 3], dtype=int32)
    """
    a, given = operand_array("insert", arr), operand_array("insert", values, 2)
    positions = _slice_positions(obj, a, axis) if isinstance(obj, slice) else operand_array("insert", obj, 1)
    a, axis = (ravel(a), 0) if axis is None else (a, canonical_axis(axis, a.ndim, "insert"))
    if positions.ndim > 1:
        raise ShapeError(f"insert: positions must be a slice, an integer or a vector, got shape {positions.shape}")
    if not dtypes.issubdtype(positions.dtype, np.integer):
        if positions.size or isinstance(obj, ArrayOperators):
            raise errors.ArgumentValueError(f"insert needs integer positions, got dtype {positions.dtype}")
        positions = el.convert_element_type(positions, dtypes.default_int_dtype())
    given = array(given, ndmin=a.ndim, dtype=a.dtype, copy=False)
    if positions.size == 1:
        if positions.ndim == 0:
            given = moveaxis(given, 0, axis)
        positions = full(given.shape[axis], ravel(positions)[0])
    n, (count,) = a.shape[axis], common_shape("insert", positions.shape, (given.shape[axis],))
    positions = clip(where(positions < 0, positions + n, positions), 0, n)
    positions = broadcast_to(positions, (count,))
    ordered = argsort(positions)
    positions = positions.at[ordered].add(lax.iota(positions.dtype, count))
    kept = ones(n + count, dtype=bool).at[positions].set(False)
    (own,) = nonzero(kept, size=n)
    before = (slice(None),) * axis
    out = zeros_like(a, shape=(*a.shape[:axis], n + count, *a.shape[axis + 1 :]))
    return out.at[(*before, positions)].set(given).at[(*before, own)].set(a)


def _slice_positions(obj: slice, a: Any, axis: int | None) -> Any:
    size = a.size if axis is None else a.shape[canonical_axis(axis, a.ndim, "insert")]
    return asarray(np.arange(*obj.indices(size), dtype=dtypes.default_int_dtype()))


def trim_zeros(filt: Any, trim: str = "fb", axis: Any = None) -> Any:
    """``filt``, which must be concrete, without the zeros at the front ("f") and back ("b") of ``axis`` (all).

    Args:
      filt: an array.
      trim: "f", "b" or "fb": at the front, the back or both.
      axis: the dimension to work along; negative numbers count from the end.

    >>> jnp.trim_zeros(jnp.array([0, 1, 2, 0]))
    Array([1, 2], dtype=int32)
    """
    x = operand_array("trim_zeros", filt)
    nonzeros = concrete("trim_zeros", "filt", x, "slice the array by static positions") != 0
    front, back = "f" in trim.lower(), "b" in trim.lower()
    if not (front or back):
        return x

    def kept(dim: int) -> slice:
        used = np.flatnonzero(nonzeros.any(tuple(i for i in range(x.ndim) if i != dim)))
        if not used.size:
            return slice(0, 0)
        return slice(int(used[0]) if front else None, int(used[-1]) + 1 if back else None)

    axes = canonical_axes(axis, x.ndim, "trim_zeros")
    return x[tuple(kept(i) if i in axes else slice(None) for i in range(x.ndim))]


# ----------------------------------------------------------------------------------------------------------
# Replacing.


def place(arr: Any, mask: Any, vals: Any, *, inplace: bool = True) -> Any:
    """``arr`` with the elements where ``mask`` is true replaced by ``vals`` in turn, again and again.

    Args:
      arr: an array, or what `asarray` makes one of.
      mask: a boolean array.
      vals: the values, repeated as needed.
      inplace: must be False: a new array is returned.

    >>> jnp.place(jnp.array([1, 2, 3]), jnp.array([True, False, True]), jnp.array([8, 9]), inplace=False)
    Array([8, 2, 9], dtype=int32)
    """
    a, flags, given = (operand_array("place", x, i) for i, x in enumerate((arr, mask, vals)))
    not_in_place("place", inplace)
    given = ravel(given)
    if a.size != flags.size:
        raise ShapeError(f"place: arr and mask must be the same size, got {a.size} and {flags.size} elements")
    if not given.size:
        raise errors.ArgumentValueError("Cannot place values from an empty array")
    if not a.size:
        return a
    (positions,) = nonzero(ravel(flags), size=flags.size, fill_value=flags.size)
    flat = ravel(a).at[positions].set(_repeated_to(given, flags.size), mode="drop")
    return reshape(flat, a.shape)


def put(a: Any, ind: Any, v: Any, mode: str | None = None, *, inplace: bool = True) -> Any:
    """``a`` with the elements at positions ``ind`` of the flattened array replaced by ``v``, again and again.

    Args:
      mode: out of bounds, None drops values, "clip" takes the nearest position, "wrap" counts around.

    >>> jnp.put(jnp.zeros(3), jnp.array([0, 2]), jnp.array([1.0, 2.0]), inplace=False)
    Array([1., 0., 2.], dtype=float32)
    """
    not_in_place("put", inplace)
    x, positions, given = (operand_array("put", y, i) for i, y in enumerate((a, ind, v)))
    positions, given = ravel(positions), ravel(given)
    if not x.size or not positions.size or not given.size:
        return x
    given = _repeated_to(given, positions.size)
    match mode:
        case None:
            scatter = "drop"
        case "clip":
            positions, scatter = clip(positions, 0, x.size - 1), "promise_in_bounds"
        case "wrap":
            positions, scatter = remainder(positions, x.size), "promise_in_bounds"
        case "raise":
            raise errors.UnsupportedError("put: mode='raise' is not supported; use 'clip' or 'wrap'")
        case _:
            raise errors.ArgumentValueError(f"put: mode must be None, 'clip' or 'wrap', got {mode!r}")
    return x.at[unravel_index(positions, x.shape)].set(given, mode=scatter)


def put_along_axis(
    arr: Any, indices: Any, values: Any, axis: int | None, inplace: bool = True, *, mode: str | None = None
) -> Any:
    """``arr`` with elements replaced at ``indices`` along ``axis``; it has a dimension for each of ``arr``'s.

    Args:
      arr: an array, or what `asarray` makes one of.
      indices: integers: positions.
      values: what is written; it broadcasts with `indices`.
      axis: the dimension to work along; negative numbers count from the end.
      inplace: must be False: a new array is returned.
      mode: what happens out of bounds, as for `x.at[...].set`.

    >>> jnp.put_along_axis(jnp.zeros((2, 2)), jnp.array([[0], [1]]), 9.0, axis=1, inplace=False)
    Array([[9., 0.],
           [0., 9.]], dtype=float32)
    """
    not_in_place("put_along_axis", inplace)
    a, index, given = (operand_array("put_along_axis", x, i) for i, x in enumerate((arr, indices, values)))
    shape = a.shape
    a, axis = (ravel(a), 0) if axis is None else (a, canonical_axis(axis, a.ndim, "put_along_axis"))
    if a.ndim != index.ndim:
        raise ShapeError(f"put_along_axis: the array has {a.ndim} dimensions and the indices {index.ndim}")
    try:
        given = broadcast_to(given, index.shape)
    except ValueError:
        raise ShapeError(
            f"put_along_axis: values of shape {given.shape} do not broadcast to indices of shape {index.shape}"
        ) from None
    where_to = tuple(
        index if i == axis else lax.broadcasted_iota(np.int32, _ones_but(a.shape, i), i) for i in range(a.ndim)
    )
    return reshape(a.at[where_to].set(given, mode=mode), shape)


def _ones_but(shape: Sequence[int], dim: int) -> tuple[int, ...]:
    return tuple(n if i == dim else 1 for i, n in enumerate(shape))


def fill_diagonal(a: Any, val: Any, wrap: bool = False, *, inplace: bool = True) -> Any:
    """A copy of ``a`` with ``val``, again and again, on the main diagonal; needs ``inplace=False``.

    Args:
      a: an array, or what `asarray` makes one of.
      val: a scalar, or the values in order.
      wrap: go on with the diagonal below the square part of a tall matrix.
      inplace: must be False: a new array is returned.

    >>> jnp.fill_diagonal(jnp.zeros((2, 2)), 1.0, inplace=False)
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    if inplace:
        raise errors.UnsupportedError("fill_diagonal: JAX arrays are immutable, must use inplace=False")
    if wrap:
        raise errors.UnsupportedError("fill_diagonal: wrap=True is not implemented, must use wrap=False")
    x, value = operand_array("fill_diagonal", a), operand_array("fill_diagonal", val, 1)
    if x.ndim < 2 or (x.ndim > 2 and len(set(x.shape)) != 1):
        raise ShapeError(f"fill_diagonal needs a matrix, or dimensions of one size, got shape {x.shape}")
    count = functools.reduce(min_dim, x.shape)
    return x.at[diag_indices(count, x.ndim)].set(_repeated_to(ravel(value), count) if value.ndim else value)


# ----------------------------------------------------------------------------------------------------------
# Choosing and joining.


def choose(a: Any, choices: Any, out: None = None, mode: str = "raise") -> Any:
    """For each element of ``a``, an integer, that element of the array ``choices[a]``; all broadcast together.

    Args:
      mode: out of bounds, "raise" refuses (``a`` must be concrete), "clip" takes the nearest, "wrap" counts around.

    >>> jnp.choose(jnp.array([0, 1, 0]), [jnp.array([1, 2, 3]), jnp.array([10, 20, 30])])
    Array([ 1, 20,  3], dtype=int32)
    """
    unsupported_argument("choose", "out", out)
    index, given = operand_array("choose", a), [operand_array("choose", c, i + 1) for i, c in enumerate(choices)]
    if not dtypes.issubdtype(index.dtype, np.integer):
        raise errors.ArgumentValueError(f"choose: `a` array must be integer typed, got dtype {index.dtype}")
    match mode:
        case "raise":
            refuse_traced("jnp.choose", index)
            if any_(logical_or(index < 0, index >= len(given))):
                raise errors.ArgumentValueError(
                    f"invalid entry in choice array: choose got a position outside of {len(given)} choices"
                )
        case "wrap":
            index = remainder(index, len(given))
        case "clip":
            index = clip(index, 0, len(given) - 1)
        case _:
            raise errors.ArgumentValueError(f"choose: mode must be 'raise', 'clip' or 'wrap', got {mode!r}")
    index, *given = broadcast_arrays(index, *given)
    return stack(given)[(index, *index_grid(index.shape, sparse=True))]


def block(arrays: Any) -> Any:
    """An array of nested lists of arrays: the innermost are joined along the last dimension, and so on outwards.

    >>> jnp.block([[jnp.ones((2, 1)), jnp.zeros((2, 2))]])
    Array([[1., 0., 0.],
           [1., 0., 0.]], dtype=float32)
    """
    return _block(arrays)[0]


def _block(x: Any) -> tuple[Any, int]:
    """(array, one more than the depth of lists)."""
    if isinstance(x, tuple):
        raise errors.ArgumentValueError(f"block does not allow tuples, got {x}; write lists")
    if not isinstance(x, list):
        return operand_array("block", x), 1
    if not x:
        raise errors.ArgumentValueError("block does not allow empty lists")
    parts, depths = zip(*map(_block, x))
    if len(set(depths)) > 1:
        raise errors.ArgumentValueError(f"block: lists of depths beside each other differ: {sorted(set(depths))}")
    rank = functools.reduce(max, (p.ndim for p in parts), depths[0])
    grown = [reshape(p, (1,) * (rank - p.ndim) + p.shape) for p in parts]
    return concatenate(grown, -depths[0]), depths[0] + 1


def delete(arr: Any, obj: Any, axis: int | None = None, *, assume_unique_indices: bool = False) -> Any:
    """``arr`` without the positions ``obj`` (a number, a slice, an array) along ``axis``.

    An array that is traced needs ``assume_unique_indices``: how many elements are left is else not known.

    Raises:
      ConcretizationTypeError: ``obj`` is traced, and may hold a position twice.

    >>> jnp.delete(jnp.array([1, 2, 3]), 1)
    Array([1, 3], dtype=int32)
    """
    x = ravel(arr) if axis is None else operand_array("delete", arr)
    axis = 0 if axis is None else canonical_axis(axis, x.ndim, "delete")
    n = x.shape[axis]
    if isinstance(obj, ArrayOperators) and (assume_unique_indices or obj.ndim == 0):
        if dtypes.issubdtype(obj.dtype, np.integer):  # how many others are chosen is not known from their type
            return _delete_distinct(x, ravel(obj), axis)
    if not isinstance(obj, slice):
        obj = int(obj) if isinstance(obj, bool) else obj
        obj = operand("delete", obj, 1)
        if is_unknown(obj):
            raise not_concrete(
                obj,
                "The positions that jnp.delete leaves out decide on the size of its result: give "
                "assume_unique_indices=True if they are distinct",
            )
        obj = np.asarray(obj)
        if obj.dtype.kind not in "biu":
            raise errors.ArgumentValueError(f"delete: positions must be integers or booleans, got dtype {obj.dtype}")
        if is_symbolic_dim(n):
            return _delete_one(x, obj, axis)
        if obj.dtype == bool and obj.shape != (n,):
            raise errors.ArgumentValueError(
                f"delete: for boolean indices, obj must be one-dimensional with length {n}, the size of axis {axis}; "
                f"got shape {obj.shape}"
            )
        outside = obj[(obj < -n) | (obj >= n)] if obj.dtype != bool else obj[:0]
        if outside.size:
            raise AxisError(f"delete: index {outside.flat[0]} is out of bounds for axis {axis} with size {n}")
        obj = obj if obj.dtype == bool else obj.astype(int)
    return take_static(x, np.delete(np.arange(n), obj), axis)


def _delete_one(x: Any, position: np.ndarray, axis: int) -> Any:
    """``x`` of a symbolic size without one element."""
    if position.ndim or position.dtype == bool:
        raise errors.UnsupportedError(
            f"delete: several positions along axis {axis} with the symbolic size {x.shape[axis]}, where they may be "
            "the same ones counted from either end; delete one at a time, or give them as an array with "
            "assume_unique_indices=True"
        )
    n, k = x.shape[axis], int(position)
    if not -n <= k < n:
        raise AxisError(f"delete: index {k} is out of bounds for axis {axis} with size {n}")
    k = k + n if k < 0 else k
    return lax.concatenate([lax.slice_in_dim(x, 0, k, axis=axis), lax.slice_in_dim(x, k + 1, n, axis=axis)], axis)


def _delete_distinct(x: Any, positions: Any, axis: int) -> Any:
    """Without distinct positions: what is left stands where as many positions as are deleted before it are skipped."""
    n, count = x.shape[axis], positions.shape[0]
    positions = where(el.lt_p.bind(positions, 0), positions + n, positions)
    moved = lax.sort(lax.clamp(np.asarray(0, positions.dtype), positions, np.asarray(n, positions.dtype))) - lax.iota(
        positions.dtype, count
    )
    left = lax.iota(positions.dtype, max(n - count, 0))
    skipped = lax.reduce_sum(el.convert_element_type(el.ge_p.bind(*_pairwise(left, moved)), positions.dtype), (0,))
    return take(x, left + skipped, axis=axis, mode="clip")


def _pairwise(a: Any, b: Any) -> list[Any]:
    """The vectors as rows of one matrix and as columns of another, of equal shapes."""
    shape = (b.shape[0], a.shape[0])
    return [lax.broadcast_in_dim(v, shape, (d,)) for v, d in ((a, 1), (b, 0))]
