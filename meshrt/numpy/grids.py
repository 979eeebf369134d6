"""Grids of indices: open and dense meshes, index arrays of diagonals and triangles, flat and separate positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.contexts import numpy_dtype_promotion
from meshrt.core.dimensions.arithmetic import is_surely
from meshrt.core.dimensions.expression import as_size, is_symbolic_shape, non_negative_dim
from meshrt.core.operators import ArrayOperators
from meshrt.core.trace import not_concrete
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import array, asarray, operand_array, promoted
from meshrt.numpy.choose import choose
from meshrt.numpy.creation import arange, linspace, meshgrid, tri
from meshrt.numpy.division import divmod as divmod_
from meshrt.numpy.division import remainder
from meshrt.numpy.filled import ones
from meshrt.numpy.joining import concatenate, stack
from meshrt.numpy.logic import logical_not, logical_or
from meshrt.numpy.operands import ShapeError, refuse_traced, static_int, static_size
from meshrt.numpy.positions import nonzero
from meshrt.numpy.reductions import any as any_
from meshrt.numpy.selection import clip
from meshrt.numpy.shapes import expand_dims, transpose

__all__ = [
    "c_", "diag_indices", "diag_indices_from", "ix_", "mask_indices", "mgrid", "ogrid", "r_", "ravel_multi_index",
    "tril_indices", "tril_indices_from", "triu_indices", "triu_indices_from", "unravel_index",
]  # fmt: skip


# ----------------------------------------------------------------------------------------------------------
# What is written with slices: mgrid, ogrid, r_, c_.


def _range(name: str, s: slice) -> Any:
    """start:stop:step as a vector; an imaginary step is a number of points, the last of which is ``stop``."""
    for which, part in (("start", s.start), ("stop", s.stop), ("step", s.step)):
        if isinstance(part, ArrayOperators) and part.ndim == 0:
            static = getattr(part, "concrete", None)
            if static is None or static() is None:
                raise not_concrete(part, f"It arose in slice {which} of jnp.{name}. Use linspace for traced ends")
    start, step = s.start or 0, s.step or 1
    if np.iscomplex(step):
        return linspace(start, s.stop, int(abs(step)))
    return arange(start, s.stop, step)


class _Grid:
    """``mgrid`` and ``ogrid``: coordinates of a grid, one slice per dimension."""

    def __init__(self, name: str, is_open: bool):
        self._name, self._open = name, is_open

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return _range(self._name, key)
        with numpy_dtype_promotion("standard"):  # the ranges of one grid are no operands that a user put together
            vectors = promoted(self._name, *(_range(self._name, k) for k in key)) if key else []
        grid = meshgrid(*vectors, indexing="ij", sparse=self._open)
        if self._open:
            return grid
        return stack(grid, 0) if grid else arange(0)

    def __repr__(self) -> str:
        return f"<meshrt.numpy.{self._name}>"


class _Joined:
    """``r_`` and ``c_``: what stands in the brackets, joined along one dimension."""

    def __init__(self, name: str, axis: int, ndmin: int, first: int):
        self._name, self._settings = name, (axis, ndmin, first)

    def __getitem__(self, key: Any) -> Any:
        items = key if isinstance(key, tuple) else (key,)
        axis, ndmin, first, matrix = *self._settings, -1
        if items and isinstance(items[0], str):
            axis, ndmin, first, matrix = self._directive(items[0])
            items = items[1:]
        out = concatenate([self._part(item, ndmin, first) for item in items], axis)
        return expand_dims(out, matrix) if matrix != -1 and out.ndim == 1 else out

    def _directive(self, text: str) -> tuple[int, int, int, int]:
        """ "axis,ndmin,first": the dimension to join, the least number of them, where the first of an item's goes."""
        axis, ndmin, first = self._settings
        if text in ("r", "c"):
            return axis, ndmin, first, int(text == "c")
        try:
            given = [int(part) for part in text.split(",")][:3]
        except ValueError:
            raise errors.ArgumentValueError(
                f"{self._name}: could not understand directive {text!r}; write 'r', 'c' or 'axis,ndmin,first'"
            ) from None
        axis, ndmin, first = (*given, *self._settings[len(given) :])
        return axis, ndmin, first, -1

    def _part(self, item: Any, ndmin: int, first: int) -> Any:
        if isinstance(item, str):
            raise errors.ArgumentValueError(f"{self._name}: a string directive must be placed at the beginning")
        own = _range(self._name, item) if isinstance(item, slice) else asarray(item)
        missing = ndmin - (0 if isinstance(item, slice) else own.ndim)
        x = array(own, copy=False, ndmin=ndmin)
        if first == -1 or missing <= 0:
            return x
        turn = ndmin - abs(ndmin + first + 1) % ndmin
        order = tuple(range(ndmin))
        return transpose(x, (*order[turn:], *order[:turn]))

    def __len__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"<meshrt.numpy.{self._name}>"


mgrid, ogrid = _Grid("mgrid", is_open=False), _Grid("ogrid", is_open=True)
r_, c_ = _Joined("r_", 0, 1, -1), _Joined("c_", -1, 2, 0)


def ix_(*args: Any) -> tuple[Any, ...]:
    """Index vectors shaped to select the grid of all their combinations, one dimension each.

    >>> [i.shape for i in jnp.ix_(jnp.array([0, 1]), jnp.array([2, 3, 4]))]
    [(2, 1), (1, 3)]
    """
    out = []
    for i, a in enumerate(args):
        x = operand_array("ix_", a, i)
        if x.ndim != 1:
            raise ShapeError(f"Arguments to jax.numpy.ix_ must be 1-dimensional, got shape {x.shape} of argument {i}")
        if x.dtype == np.bool_:
            raise errors.UnsupportedError("ix_ of booleans is not supported; pass jnp.nonzero(x)[0]")
        shape = [1] * len(args)
        shape[i] = x.shape[0]
        x = x if x.size else el.convert_element_type(x, dtypes.default_int_dtype())
        out.append(lax.broadcast_in_dim(x, tuple(shape), (i,)))
    return tuple(out)


# ----------------------------------------------------------------------------------------------------------
# Diagonals, triangles, masks.


def diag_indices(n: int, ndim: int = 2) -> tuple[Any, ...]:
    """The positions on the main diagonal of an array of ``ndim`` dimensions of size ``n``.

    Args:
      n: the size of each dimension.
      ndim: the number of dimensions.

    >>> jnp.diag_indices(2)
    (Array([0, 1], dtype=int32), Array([0, 1], dtype=int32))
    """
    n, ndim = static_size(n, "diag_indices: n"), static_int(ndim, "diag_indices: ndim")
    if n < 0 or ndim < 0:
        raise errors.ArgumentValueError(f"diag_indices: n and ndim must not be negative, got {n} and {ndim}")
    return (lax.iota(dtypes.default_int_dtype(), n),) * ndim


def diag_indices_from(arr: Any) -> tuple[Any, ...]:
    """The positions on the main diagonal of ``arr``, whose dimensions are of one size.

    >>> jnp.diag_indices_from(jnp.ones((2, 2)))
    (Array([0, 1], dtype=int32), Array([0, 1], dtype=int32))
    """
    x = operand_array("diag_indices_from", arr)
    if x.ndim < 2:
        raise ShapeError(f"input array must be at least 2-d, got shape {x.shape}")
    if len(set(x.shape)) != 1:
        raise ShapeError(f"All dimensions of input must be of equal length, got shape {x.shape}")
    return diag_indices(x.shape[0], x.ndim)


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Any, Any]:
    """Rows and columns of the elements on and below diagonal ``k`` of an n by m matrix.

    Args:
      n: the number of rows.
      k: the number of the diagonal; 0 is the main one.
      m: the number of columns; by default as many.

    >>> jnp.tril_indices(2)
    (Array([0, 1, 1], dtype=int32), Array([0, 0, 1], dtype=int32))
    """
    n, m, k = _rows_columns_diagonal("tril_indices", n, m, k)
    if is_symbolic_shape((n, k, m)):
        return nonzero(tri(n, m, k, dtype=bool), size=_below(n, m, k))
    return tuple(asarray(i.astype(dtypes.default_int_dtype())) for i in np.tril_indices(n, k, m))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Any, Any]:
    """Rows and columns of the elements on and above diagonal ``k`` of an n by m matrix.

    Args:
      n: the number of rows.
      k: the number of the diagonal; 0 is the main one.
      m: the number of columns; by default as many.

    >>> jnp.triu_indices(2)
    (Array([0, 0, 1], dtype=int32), Array([0, 1, 1], dtype=int32))
    """
    n, m, k = _rows_columns_diagonal("triu_indices", n, m, k)
    if is_symbolic_shape((n, k, m)):
        return nonzero(logical_not(tri(n, m, k - 1, dtype=bool)), size=_above(n, m, k))
    return tuple(asarray(i.astype(dtypes.default_int_dtype())) for i in np.triu_indices(n, k, m))


def _rows_columns_diagonal(name: str, n: Any, m: Any, k: Any) -> tuple[Any, Any, Any]:
    n = static_size(n, f"{name}: n")
    m, k = n if m is None else static_size(m, f"{name}: m"), static_size(k, f"{name}: the diagonal k")
    if any(isinstance(size, int) and size < 0 for size in (n, m)):
        raise errors.ArgumentTypeError(f"{name}: sizes must have every element be nonnegative, got {(n, m)}")
    return n, m, k


def _below(n: Any, m: Any, k: Any) -> Any:
    """How many elements of an n by m matrix lie on and below diagonal k: of each row as many as its number and k say,
    and no more than there are columns."""

    def up_to(row: Any) -> Any:
        row = non_negative_dim(row)
        return row * (row + 1) // 2

    return non_negative_dim(up_to(n + k) - up_to(k) - (up_to(n + k - m) - up_to(k - m)))


def _above(n: Any, m: Any, k: Any) -> Any:
    """How many lie on and above it."""
    return non_negative_dim(n * m - _below(n, m, k - 1))


def _of_matrix(name: str, arr: Any) -> tuple[int, int]:
    shape = arr.shape if hasattr(arr, "shape") else operand_array(name, arr).shape
    if len(shape) != 2:
        raise ShapeError(f"{name} needs a matrix, got shape {shape}")
    return shape


def tril_indices_from(arr: Any, k: int = 0) -> tuple[Any, Any]:
    """The positions on and below diagonal ``k`` of the matrix ``arr``.

    Args:
      arr: an array, or what `asarray` makes one of.
      k: the number of the diagonal; 0 is the main one.

    >>> jnp.tril_indices_from(jnp.ones((2, 2)))
    (Array([0, 1, 1], dtype=int32), Array([0, 0, 1], dtype=int32))
    """
    n, m = _of_matrix("tril_indices_from", arr)
    return tril_indices(n, k, m)


def triu_indices_from(arr: Any, k: int = 0) -> tuple[Any, Any]:
    """The positions on and above diagonal ``k`` of the matrix ``arr``.

    Args:
      arr: an array, or what `asarray` makes one of.
      k: the number of the diagonal; 0 is the main one.

    >>> jnp.triu_indices_from(jnp.ones((2, 2)))
    (Array([0, 0, 1], dtype=int32), Array([0, 1, 1], dtype=int32))
    """
    n, m = _of_matrix("triu_indices_from", arr)
    return triu_indices(n, k, m)


def mask_indices(n: int, mask_func: Callable[..., Any], k: int = 0, *, size: int | None = None) -> tuple[Any, ...]:
    """The positions in an (n, n) matrix that ``mask_func(ones, k)`` leaves nonzero; ``size`` is how many.

    Args:
      n: the size of the square matrix.
      mask_func: a function such as `triu` of a matrix and `k`.
      k: passed on to the function.
      size: how many elements the result has, so that its shape is known to `jit`; by default as many as are found.

    >>> jnp.mask_indices(2, jnp.triu)
    (Array([0, 0, 1], dtype=int32), Array([0, 1, 1], dtype=int32))
    """
    return nonzero(mask_func(ones((n, n)), k), size=size)


# ----------------------------------------------------------------------------------------------------------
# Flat and separate positions.


def ravel_multi_index(
    multi_index: Sequence[Any], dims: Sequence[int], mode: str = "raise", order: str = "C", *, dtype: Any = None
) -> Any:
    """The positions in the flattened array of positions given per dimension.

    Args:
      mode: out of bounds, "raise" refuses (positions must be concrete), "clip" takes the nearest, "wrap" counts
        around, "ignore" does nothing.
      order: how the array is flattened, "C" or "F".

    >>> jnp.ravel_multi_index((jnp.array([0, 1]), jnp.array([2, 0])), (2, 3))
    Array([2, 3], dtype=int32)
    """
    sizes = tuple(static_size(d, "ravel_multi_index: dims") for d in dims)
    parts = [operand_array("ravel_multi_index", i, k) for k, i in enumerate(multi_index)]
    if len(parts) != len(sizes):
        raise errors.ArgumentValueError(f"ravel_multi_index: {len(parts)} index arrays for {len(sizes)} dimensions")
    if dtype is None:
        dtype = dtypes.result_type(int, *parts)
    else:
        dtype = dtypes.check_user_dtype(dtype, "ravel_multi_index")
    if not dtypes.issubdtype(dtype, np.integer):
        raise errors.ArgumentValueError(f"ravel_multi_index: dtype={dtype} is no integer type")
    if is_surely(lambda: math.prod(sizes) - 1 > dtypes.iinfo(dtype).max):
        raise errors.ArgumentValueError(
            f"ravel_multi_index: dtype={dtype} cannot hold the positions in an array of shape {sizes}; give a wider one"
        )
    for x in parts:
        if not dtypes.issubdtype(x.dtype, np.integer):
            raise errors.ArgumentTypeError(f"ravel_multi_index needs integer positions, got dtype {x.dtype}")
    parts = _bounded(parts, sizes, mode)
    if order not in ("C", "F"):
        raise errors.ArgumentValueError(f"ravel_multi_index: order must be 'C' or 'F', got {order!r}")
    out, stride = asarray(0, dtype), 1
    for x, n in zip(*((parts, sizes) if order == "F" else (parts[::-1], sizes[::-1]))):
        out = out + el.convert_element_type(x, dtype) * stride
        stride *= n
    return out


def _bounded(parts: list[Any], sizes: tuple[int, ...], mode: str) -> list[Any]:
    match mode:
        case "raise":
            refuse_traced("ravel_multi_index", *parts)
            for x, n in zip(parts, sizes):
                if any_(logical_or(x < 0, x >= n)):
                    raise errors.ArgumentValueError(
                        f"invalid entry in coordinates array: ravel_multi_index got a position outside a size of {n}"
                    )
            return parts
        case "clip":
            return [clip(x, 0, n - 1) for x, n in zip(parts, sizes)]
        case "wrap":
            return [remainder(x, n) for x, n in zip(parts, sizes)]
        case "ignore":
            return parts
    raise errors.ArgumentValueError(f"ravel_multi_index: mode is 'raise', 'clip', 'wrap' or 'ignore', not {mode!r}")


def unravel_index(indices: Any, shape: Any) -> tuple[Any, ...]:
    """Positions per dimension of positions in the flattened array; those out of bounds become the nearest.

    Args:
      indices: integers: positions.
      shape: sizes of the result.

    >>> jnp.unravel_index(jnp.array([2, 3]), (2, 3))
    (Array([0, 1], dtype=int32), Array([2, 0], dtype=int32))
    """
    rest = operand_array("unravel_index", indices)
    sizes = list(shape) if np.iterable(shape) else [shape]
    if any(np.ndim(n) != 0 for n in sizes):
        raise errors.ArgumentValueError(f"unravel_index: a shape is one size or a sequence of them, got {shape}")
    out: list[Any] = []
    for n in reversed(sizes):
        rest, position = divmod_(rest, n if isinstance(n, ArrayOperators) else as_size(n))
        out.append(position)
    above = rest > 0
    unsigned = dtypes.issubdtype(rest.dtype, np.unsignedinteger)
    below = asarray(False) if unsigned else rest < -1
    return tuple(choose(above, n - 1, choose(below, 0, i)) for n, i in zip(sizes, reversed(out)))
