"""Dense arrays to sparse ones and back; the order and the number of coordinates."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import errors, lax
from meshrt.contexts import usual_promotion
from meshrt.core.trace import Tracer
from meshrt.experimental.sparse.arrays import BCOO, SparseEfficiencyError, SparseEfficiencyWarning
from meshrt.jit import jit
from meshrt.numpy.operands import operand
from meshrt.transforms.vmap import vmap

__all__ = [
    "bcoo_eliminate_zeros", "bcoo_extract", "bcoo_fromdense", "bcoo_sort_indices", "bcoo_sum_duplicates",
    "bcoo_todense", "bcoo_update_layout", "over_batch", "sparse_shape", "whole_batch",
]  # fmt: skip


def sparse_shape(mat: BCOO) -> tuple[int, ...]:
    """The sizes of the sparse dimensions."""
    return mat.shape[mat.n_batch : mat.n_batch + mat.n_sparse]


def whole_batch(mat: BCOO) -> tuple[Any, Any]:
    """Data and indices whose batch dimensions are those of the shape."""
    batch = mat.shape[: mat.n_batch]
    data, indices = mat.data, mat.indices
    return (
        jnp.broadcast_to(data, batch + data.shape[mat.n_batch :]),
        jnp.broadcast_to(indices, batch + indices.shape[mat.n_batch :]),
    )


def over_batch(f: Callable[..., Any], count: int) -> Callable[..., Any]:
    """f of the rest of its arguments' dimensions, after so many leading ones."""
    for _ in range(count):
        f = vmap(f)
    return f


def _at(indices: Any) -> tuple[Any, ...]:
    return tuple(indices[:, i] for i in range(indices.shape[-1]))


@usual_promotion
def bcoo_todense(mat: BCOO) -> Any:
    """The array with all its elements.

    >>> sparse.bcoo_todense(sparse.BCOO.fromdense(jnp.eye(2)))
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    data, indices = whole_batch(mat)
    sizes, dense = sparse_shape(mat), mat.shape[mat.n_batch + mat.n_sparse :]

    def one(data: Any, indices: Any) -> Any:
        if not sizes:
            return data.sum(0).astype(data.dtype)
        return jnp.zeros(sizes + dense, data.dtype).at[_at(indices)].add(data, mode="drop")

    return over_batch(one, mat.n_batch)(data, indices)


@usual_promotion
def bcoo_fromdense(
    mat: Any, *, nse: int | None = None, n_batch: int = 0, n_dense: int = 0, index_dtype: Any = np.int32
) -> BCOO:
    """The sparse array of the elements of a dense one that are not 0.

    Args:
      mat: an array.
      nse: how many elements are specified per batch; by default as many as there are, which is not known while tracing.
      n_batch, n_dense: how many of the first and the last dimensions are stored as a whole.
      index_dtype: of the coordinates.

    Raises:
      ArgumentValueError: more dimensions than there are.
      ConcretizationError: nse is not given for a traced array.

    >>> sparse.bcoo_fromdense(jnp.eye(3)).nse
    3
    """
    x = jnp.asarray(operand("bcoo_fromdense", mat))
    n_batch, n_dense = operator.index(n_batch), operator.index(n_dense)
    n_sparse = x.ndim - n_batch - n_dense
    if min(n_batch, n_sparse, n_dense) < 0:
        raise errors.ArgumentValueError(
            f"bcoo_fromdense: n_batch={n_batch} and n_dense={n_dense} are too many for shape {x.shape}"
        )
    mask = (x != 0).any(tuple(range(n_batch + n_sparse, x.ndim)))
    if nse is None:
        nse = _largest_count("bcoo_fromdense", mask.sum(tuple(range(n_batch, mask.ndim))))
    indices = _where_true(mask, n_batch, operator.index(nse), np.dtype(index_dtype))
    data = _elements(x, indices, n_batch)
    if not n_sparse:  # all is stored as a whole: the first element is the array
        rest = jnp.arange(data.shape[n_batch]) > 0
        data = jnp.where(rest.reshape(-1, *[1] * n_dense), jnp.zeros((), data.dtype), data)
    return BCOO((data, indices), shape=x.shape, indices_sorted=True, unique_indices=True)


def _largest_count(name: str, counts: Any) -> int:
    if isinstance(counts, Tracer):
        raise errors.ConcretizationError(
            f"{name}: the nse argument must be given inside transformations, since the number of elements is not known "
            "while tracing"
        )
    return int(np.max(np.asarray(counts), initial=0))


def _where_true(mask: Any, n_batch: int, nse: int, dtype: Any) -> Any:
    """Coordinates [*batch, nse, n_sparse] of the true elements, outside the mask behind them."""
    sizes = mask.shape[n_batch:]

    def one(mask: Any) -> Any:
        if not sizes:
            return jnp.zeros((nse, 0), dtype)
        return jnp.stack(jnp.nonzero(mask, size=nse, fill_value=sizes), -1).astype(dtype)

    return over_batch(one, n_batch)(mask)


def _elements(x: Any, indices: Any, n_batch: int) -> Any:
    """Elements of a dense array at coordinates, 0 outside: [*batch, nse, *dense]."""

    def one(x: Any, indices: Any) -> Any:
        if not indices.shape[-1]:
            # All dimensions are stored as a whole: the first element is the array.
            return jnp.broadcast_to(x, (indices.shape[0], *x.shape))
        return x.at[_at(indices)].get(mode="fill", fill_value=0)

    return over_batch(one, n_batch)(x, indices)


@usual_promotion
def bcoo_extract(sparr: BCOO, arr: Any, *, assume_unique: bool | None = None) -> BCOO:
    """The elements of a dense array at the coordinates of a sparse one.

    Args:
      arr: of the shape of `sparr`.
      assume_unique: whether no coordinate occurs twice; by default what `sparr` says. Otherwise only the first of equal
        coordinates has the element.

    Raises:
      ArgumentValueError: arrays of different shapes.

    >>> sparse.bcoo_extract(sparse.BCOO.fromdense(jnp.eye(2)), jnp.array([[1.0, 2.0], [3.0, 4.0]])).data
    Array([1., 4.], dtype=float32)
    """
    x = jnp.asarray(operand("bcoo_extract", arr, 1))
    if x.shape != sparr.shape:
        raise errors.ArgumentValueError(f"shape mismatch: sparr.shape={sparr.shape} arr.shape={x.shape}")
    _, indices = whole_batch(sparr)
    data = _elements(x, indices, sparr.n_batch)
    if not (sparr.unique_indices if assume_unique is None else assume_unique):
        first = over_batch(lambda i: _first_of_equal(i)[0], sparr.n_batch)(indices)
        data = jnp.where(first.reshape(first.shape + (1,) * sparr.n_dense), data, 0)
    return BCOO(
        (data, indices), shape=sparr.shape, indices_sorted=sparr.indices_sorted, unique_indices=sparr.unique_indices
    )


def _first_of_equal(indices: Any) -> tuple[Any, Any]:
    """Of coordinates [nse, n_sparse]: which are the first of those equal to them, and where that first one is."""
    same = (indices[:, None] == indices[None]).all(-1)
    first = jnp.argmax(same, axis=1)
    return first == jnp.arange(indices.shape[0]), first


def _order(indices: Any) -> Any:
    """Places of coordinates [nse, n_sparse] in lexicographic order."""
    places = lax.iota(np.int32, indices.shape[0])
    if not indices.shape[-1]:
        return places
    return lax.sort((*_at(indices), places), dimension=0, num_keys=indices.shape[-1])[-1]


@usual_promotion
def bcoo_sort_indices(mat: BCOO) -> BCOO:
    """The array with its coordinates in lexicographic order.

    >>> sparse.bcoo_sort_indices(sparse.BCOO.fromdense(jnp.eye(2))).indices
    Array([[0, 0],
           [1, 1]], dtype=int32)
    """
    if mat.indices_sorted:
        return mat
    # Coordinates that are alike for all of a batch dimension stay so.
    data, _ = _together(mat)
    data, indices = _sorted_program(data, mat.indices, mat.n_batch)
    return BCOO((data, indices), shape=mat.shape, indices_sorted=True, unique_indices=mat.unique_indices)


def _together(mat: BCOO) -> tuple[Any, Any]:
    """Data and indices of common batch dimensions."""
    batch = np.broadcast_shapes(mat.data.shape[: mat.n_batch], mat.indices.shape[: mat.n_batch])
    return (
        jnp.broadcast_to(mat.data, batch + mat.data.shape[mat.n_batch :]),
        jnp.broadcast_to(mat.indices, batch + mat.indices.shape[mat.n_batch :]),
    )


@jit(static_argnums=2)
def _sorted_program(data: Any, indices: Any, n_batch: int) -> Any:
    order = over_batch(_order, n_batch)(indices)
    indices = jnp.take_along_axis(indices, order[..., None], -2)
    order = jnp.broadcast_to(order, data.shape[: n_batch + 1])
    return jnp.take_along_axis(data, order.reshape(order.shape + (1,) * (data.ndim - order.ndim)), n_batch), indices


@usual_promotion
def bcoo_sum_duplicates(mat: BCOO, nse: int | None = None) -> BCOO:
    """The array with every coordinate once, in order, and elements of equal ones added.

    Args:
      nse: how many there are to be, by default as many as there are; inside transformations as many as there can be.

    >>> sparse.bcoo_sum_duplicates(sparse.BCOO((jnp.array([1.0, 2.0]), jnp.array([[0], [0]])), shape=(2,)), nse=1).data
    Array([3.], dtype=float32)
    """
    data, indices = _together(mat)
    sizes = sparse_shape(mat)
    merged, ordered, counts = _merged(data, indices, sizes, mat.n_batch)
    if nse is None:
        if isinstance(counts, Tracer):
            nse = min(mat.nse, int(np.prod(sizes)))
        else:
            nse = _largest_count("bcoo_sum_duplicates", counts)
    axis = mat.n_batch
    missing = nse - mat.nse
    if missing > 0:
        fill = jnp.broadcast_to(jnp.array(sizes, ordered.dtype), (*ordered.shape[:axis], missing, len(sizes)))
        ordered = jnp.concatenate([ordered, fill], axis)
        merged = jnp.concatenate(
            [merged, jnp.zeros_like(merged, shape=(*merged.shape[:axis], missing, *merged.shape[axis + 1 :]))], axis
        )
    merged, ordered = (lax.slice_in_dim(x, 0, nse, axis=axis) for x in (merged, ordered))
    return BCOO((merged, ordered), shape=mat.shape, indices_sorted=True, unique_indices=True)


@jit(static_argnums=(2, 3))
def _merged(data: Any, indices: Any, sizes: tuple[int, ...], n_batch: int) -> Any:
    """Sorted unique coordinates first, and how many they are."""

    def one(data: Any, indices: Any) -> Any:
        count = indices.shape[0]
        limits = np.array(sizes, indices.dtype)
        inside = (indices < limits).all(-1)
        indices = jnp.where(inside[:, None], indices, limits)
        order = _order(indices)
        indices, inside, data = indices[order], inside[order], data[order]
        new = jnp.concatenate([jnp.ones(min(1, count), bool), (indices[1:] != indices[:-1]).any(-1)])
        place = jnp.cumsum(new) - 1
        weight = inside.reshape(-1, *[1] * (data.ndim - 1))
        data = jnp.zeros_like(data).at[place].add(jnp.where(weight, data, 0))
        unique = jnp.broadcast_to(limits, indices.shape).at[place].set(indices)
        return data, unique, (new & inside).sum()

    return over_batch(one, n_batch)(data, indices)


@usual_promotion
def bcoo_eliminate_zeros(mat: BCOO, nse: int | None = None) -> BCOO:
    """`bcoo_sum_duplicates` without elements that are 0."""
    data, indices = _together(mat)
    zero = ~(data != 0).any(tuple(range(mat.n_batch + 1, data.ndim)))
    indices = jnp.where(zero[..., None], np.array(sparse_shape(mat), indices.dtype), indices)
    return bcoo_sum_duplicates(BCOO((data, indices), shape=mat.shape), nse)


@usual_promotion
def bcoo_update_layout(
    mat: BCOO, *, n_batch: int | None = None, n_dense: int | None = None, on_inefficient: str | None = "error"
) -> BCOO:
    """The array with other numbers of batch and dense dimensions.

    Args:
      on_inefficient: "error" or "warn" where zeros have to be stored that were not, None to do it.

    Raises:
      ArgumentValueError: numbers that do not fit the shape.
      SparseEfficiencyError: zeros have to be stored, unless that is wanted.

    >>> sparse.bcoo_update_layout(sparse.BCOO.fromdense(jnp.eye(2)), n_batch=1, on_inefficient=None).n_batch
    1
    """
    batch = mat.n_batch if n_batch is None else operator.index(n_batch)
    dense = mat.n_dense if n_dense is None else operator.index(n_dense)
    sparse = mat.ndim - batch - dense
    if min(batch, dense, sparse) < 0:
        raise errors.ArgumentValueError(
            f"bcoo_update_layout: n_batch={batch} and n_dense={dense} do not fit shape {mat.shape}"
        )
    if (batch, dense) == (mat.n_batch, mat.n_dense):
        return mat
    if on_inefficient not in ("error", "warn", None):
        raise errors.ArgumentValueError(f"on_inefficent={on_inefficient!r}; expected one of ['error', 'warn', None].")
    if on_inefficient is not None and (batch > mat.n_batch or dense > mat.n_dense):
        what = (
            f"for shape {mat.shape}, update to n_batch={batch}, n_dense={dense} from n_batch={mat.n_batch}, "
            f"n_dense={mat.n_dense} results in inefficient storage; pass on_inefficient=None if that is wanted"
        )
        if on_inefficient == "error":
            raise SparseEfficiencyError(what)
        warnings.warn(what, SparseEfficiencyWarning, stacklevel=3)
    for_batch = batch if batch <= mat.n_batch else mat.n_batch
    out = _fewer_whole(mat, mat.n_batch - for_batch, max(0, mat.n_dense - dense))
    if (batch, dense) == (out.n_batch, out.n_dense):
        return out
    nse = min(int(np.prod(out.shape[batch : batch + sparse])), _needed(out, batch))
    return bcoo_fromdense(bcoo_todense(out), nse=nse, n_batch=batch, n_dense=dense, index_dtype=out.indices.dtype)


def _needed(mat: BCOO, n_batch: int) -> int:
    """How many elements per batch suffice, with so many batch dimensions."""
    return mat.nse * int(np.prod(mat.shape[n_batch : mat.n_batch]))


def _fewer_whole(mat: BCOO, batch: int, dense: int) -> BCOO:
    """The last so many batch dimensions and first so many dense ones become sparse: their coordinates are written."""
    data, indices = whole_batch(mat)
    for _ in range(dense):
        axis = indices.ndim - 1
        size = data.shape[axis]
        count = indices.shape[-2]
        places = jnp.broadcast_to(jnp.arange(size, dtype=indices.dtype), (*indices.shape[:-1], size))[..., None]
        wider = jnp.broadcast_to(indices[..., None, :], (*indices.shape[:-1], size, indices.shape[-1]))
        indices = jnp.concatenate([wider, places], -1)
        indices = indices.reshape(*indices.shape[:-3], count * size, indices.shape[-1])
        data = data.reshape(*data.shape[: axis - 1], count * size, *data.shape[axis + 1 :])
    for _ in range(batch):
        axis = indices.ndim - 3
        size, count = indices.shape[axis], indices.shape[-2]
        places = jnp.arange(size, dtype=indices.dtype)[:, None, None]
        places = jnp.broadcast_to(places, (*indices.shape[:-1], 1))
        indices = jnp.concatenate([places, indices], -1).reshape(
            *indices.shape[:axis], size * count, indices.shape[-1] + 1
        )
        data = data.reshape(*data.shape[:axis], size * count, *data.shape[axis + 2 :])
    sorted_ = mat.indices_sorted and not batch
    return BCOO((data, indices), shape=mat.shape, indices_sorted=sorted_, unique_indices=mat.unique_indices)
