"""Products of sparse arrays: element by element, and contractions."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, errors, lax
from meshrt.contexts import usual_promotion
from meshrt.experimental.sparse.arrays import BCOO
from meshrt.experimental.sparse.coordinates import (
    bcoo_extract,
    bcoo_sum_duplicates,
    bcoo_todense,
    bcoo_update_layout,
    over_batch,
    sparse_shape,
    whole_batch,
)
from meshrt.transforms.vmap import vmap

__all__ = [
    "bcoo_add", "bcoo_dot_general", "bcoo_dot_general_sampled", "bcoo_multiply_dense", "bcoo_multiply_sparse",
]  # fmt: skip


@usual_promotion
def bcoo_multiply_dense(sp_mat: BCOO, v: Any) -> Any:
    """The data of the product with a dense array that broadcasts to the sparse one's shape, element by element.

    Returns:
      An array of the shape of `sp_mat.data`, whose indices are those of `sp_mat`.

    Raises:
      UnsupportedError: the dense array has more dimensions, or sizes that the sparse one would have to grow to.

    >>> sparse.bcoo_multiply_dense(sparse.BCOO.fromdense(jnp.eye(2)), jnp.array([2.0, 3.0]))
    Array([2., 3.], dtype=float32)
    """
    return multiplied(sp_mat, v).data


def multiplied(sp_mat: BCOO, v: Any) -> BCOO:
    """`sp_mat` times a dense array, see `bcoo_multiply_dense`."""
    v = jnp.asarray(v)
    dtype = dtypes.result_type(sp_mat.data, v)
    if v.ndim == 0:
        return _with_data(sp_mat, (sp_mat.data * v).astype(dtype))
    if jnp.broadcast_shapes(sp_mat.shape, v.shape) != sp_mat.shape:
        raise errors.UnsupportedError(
            "multiplication between sparse and dense is only implemented where the dense array broadcasts to the "
            f"sparse one's shape, got {sp_mat.shape} and {v.shape}"
        )
    here = bcoo_extract(sp_mat, jnp.broadcast_to(v, sp_mat.shape), assume_unique=True)
    return _with_data(sp_mat, (sp_mat.data * here.data).astype(dtype))


def _with_data(mat: BCOO, data: Any) -> BCOO:
    return BCOO(
        (data, mat.indices), shape=mat.shape, indices_sorted=mat.indices_sorted, unique_indices=mat.unique_indices
    )


def _like_layouts(lhs: BCOO, rhs: BCOO) -> tuple[BCOO, BCOO]:
    """Both with the smaller numbers of batch and dense dimensions."""
    n_batch, n_dense = min(lhs.n_batch, rhs.n_batch), min(lhs.n_dense, rhs.n_dense)
    one, two = (bcoo_update_layout(m, n_batch=n_batch, n_dense=n_dense, on_inefficient=None) for m in (lhs, rhs))
    return one, two


@usual_promotion
def bcoo_multiply_sparse(lhs: BCOO, rhs: BCOO) -> BCOO:
    """The product of two sparse arrays of one shape, element by element: at the coordinates of the first.

    Raises:
      ArgumentShapeError: arrays of different shapes.

    >>> sparse.bcoo_multiply_sparse(sparse.BCOO.fromdense(jnp.eye(2)), sparse.BCOO.fromdense(jnp.eye(2))).todense()
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    if lhs.shape != rhs.shape:
        raise errors.ArgumentShapeError(f"bcoo_multiply_sparse: shapes {lhs.shape} and {rhs.shape} differ")
    one, two = _like_layouts(lhs, rhs)
    dtype = dtypes.result_type(one.data, two.data)
    limits = np.array(sparse_shape(one), one.indices.dtype)

    def product(data: Any, indices: Any, other: Any, places: Any) -> Any:
        same = ((indices[:, None] == places[None]) & (places < limits)[None]).all(-1)
        found = jnp.tensordot(same.astype(dtype), other.astype(dtype), 1)
        return data.astype(dtype) * found

    data, indices = whole_batch(one)
    return BCOO(
        (over_batch(product, one.n_batch)(data, indices, *whole_batch(two)), indices), shape=one.shape,
        indices_sorted=one.indices_sorted, unique_indices=one.unique_indices,
    )  # fmt: skip


@usual_promotion
def bcoo_add(lhs: BCOO, rhs: BCOO) -> BCOO:
    """The sum of two sparse arrays of one shape.

    Raises:
      ArgumentShapeError: arrays of different shapes.
    """
    if lhs.shape != rhs.shape:
        raise errors.ArgumentShapeError(f"addition of sparse arrays of shapes {lhs.shape} and {rhs.shape}")
    dtype = dtypes.result_type(lhs.data, rhs.data)
    if lhs.indices is rhs.indices and (lhs.n_batch, lhs.n_dense) == (rhs.n_batch, rhs.n_dense):
        return _with_data(lhs, (lhs.data + rhs.data).astype(dtype))
    one, two = _like_layouts(lhs, rhs)
    (a, i), (b, j) = whole_batch(one), whole_batch(two)
    n = one.n_batch
    data = jnp.concatenate([a.astype(dtype), b.astype(dtype)], n)
    indices = jnp.concatenate([i, j.astype(i.dtype)], n)
    joined = BCOO((data, indices), shape=one.shape)
    return joined


def add_dense(mat: BCOO, other: Any) -> Any:
    """The sum of a sparse and a dense array, which is dense.

    Raises:
      UnsupportedError: the dense array would have to grow to the sparse one's shape.
    """
    other = jnp.asarray(other)
    if jnp.broadcast_shapes(mat.shape, other.shape) != other.shape:
        raise errors.UnsupportedError(
            f"Addition between a sparse array of shape {mat.shape} and a dense one of shape {other.shape} is not "
            "implemented when the output shape is larger than that of the dense array: the result would be dense. Use "
            "todense() if that is your intent"
        )
    return bcoo_todense(mat) + other


def divide_dense(mat: BCOO, other: Any) -> BCOO:
    """The quotient of a sparse array and a dense one that broadcasts to its shape."""
    return multiplied(mat, 1.0 / jnp.asarray(other))


Numbers = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]


@usual_promotion
def bcoo_dot_general(
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: Numbers,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:
    """A contraction as of `lax.dot_general`, of sparse and dense arrays.

    Args:
      dimension_numbers: ((contracted of lhs, of rhs), (batch of lhs, of rhs)). Batch dimensions must be batch
        dimensions of sparse operands.
      precision: has no effect: products are exact to their dtype.
      preferred_element_type: dtype of the result.

    Returns:
      A dense array, or a sparse one where both operands are.

    Raises:
      ArgumentShapeError: sizes that differ.
      UnsupportedError: contracted dimensions that are dense, dense dimensions where both operands are sparse, batch
        dimensions that are sparse, a sharding asked for.

    >>> sparse.bcoo_dot_general(sparse.BCOO.fromdense(jnp.eye(2)), jnp.ones((2, 3)), dimension_numbers=(((1,), (0,)),
    ...     ((), ()))).shape
    (2, 3)
    """
    if out_sharding is not None:
        raise errors.UnsupportedError("bcoo_dot_general: out_sharding is not supported; constrain the result")
    (lc, rc), (lb, rb) = (tuple(tuple(map(operator.index, d)) for d in pair) for pair in dimension_numbers)
    for which, l, r in (("contracting", lc, rc), ("batch", lb, rb)):
        if [lhs.shape[i] for i in l] != [rhs.shape[i] for i in r]:
            raise errors.ArgumentShapeError(
                f"bcoo_dot_general: {which} dimensions {l} of {lhs.shape} and {r} of {rhs.shape} differ in size"
            )
    if not isinstance(lhs, BCOO) and not isinstance(rhs, BCOO):
        return lax.dot_general(
            lhs, rhs, ((lc, rc), (lb, rb)), precision=precision, preferred_element_type=preferred_element_type
        )
    both = isinstance(lhs, BCOO) and isinstance(rhs, BCOO)
    for mat, batch, contracted in ((lhs, lb, lc), (rhs, rb, rc)):
        if isinstance(mat, BCOO):
            if mat.n_dense and (both or any(c >= mat.n_batch + mat.n_sparse for c in contracted)):
                what = "a product of sparse arrays over" if both else "contracting over"
                raise errors.UnsupportedError(
                    f"bcoo_dot_general: {what} dense dimensions of {mat}; use update_layout before"
                )
            if any(b >= mat.n_batch for b in batch):
                raise errors.UnsupportedError(
                    f"bcoo_dot_general: batch dimensions {batch} of {mat} must be stored as batch dimensions"
                )
    if both:
        if rhs.n_batch > len(rb) and lhs.n_sparse > len(lc):
            raise errors.ArgumentValueError(
                "bcoo_spdot_general: cannot have unused batch dims on rhs with unused sparse dims on lhs. Use "
                f"update_layout(n_batch={len(rb)}) on rhs, {rhs}, before"
            )
        out = _sparse_times_sparse(lhs, rhs, lc, rc, lb, rb)
        return out if preferred_element_type is None else _with_data(out, out.data.astype(preferred_element_type))
    if isinstance(lhs, BCOO):
        out = _sparse_times_dense(lhs, jnp.asarray(rhs), lc, rc, lb, rb)
    else:
        swapped = _sparse_times_dense(rhs, jnp.asarray(lhs), rc, lc, rb, lb)
        first, rhs_free = len(lb), rhs.ndim - len(rb) - len(rc)
        order = (*range(first), *range(first + rhs_free, swapped.ndim), *range(first, first + rhs_free))
        out = swapped.transpose(order)
    return out if preferred_element_type is None else out.astype(preferred_element_type)


def _sparse_times_dense(lhs: BCOO, rhs: Any, lc: Any, rc: Any, lb: Any, rb: Any) -> Any:
    """Every element takes the part of rhs at its contracted coordinates, and goes where its free ones are."""
    n = lhs.n_batch
    dtype = dtypes.result_type(lhs.data, rhs)
    data, indices = whole_batch(lhs)
    # Batch dimensions of lhs in order: of the product, contracted, free; those of rhs that go along.
    contracted = [i for i in lc if i < n]
    free = [i for i in range(n) if i not in lb and i not in contracted]
    order = [*lb, *contracted, *free]
    data, indices = data.transpose(*order, *range(n, data.ndim)), indices.transpose(*order, n, n + 1)
    inner = [(l - n, r) for l, r in zip(lc, rc) if l >= n]
    taken = [r for l, r in zip(lc, rc) if l < n]
    rest = [i for i in range(rhs.ndim) if i not in rb and i not in rc]
    rhs = rhs.transpose(*rb, *taken, *(r for _, r in inner), *rest)
    along = np.array([l for l, _ in inner], int)
    columns = [i for i in range(lhs.n_sparse) if i not in along]
    sizes = [lhs.shape[n + i] for i in columns]
    tail = rhs.shape[len(lb) + len(contracted) + len(inner) :]
    limits = np.array(sparse_shape(lhs), indices.dtype)

    def one(data: Any, indices: Any, part: Any) -> Any:
        if inner:
            part = part.at[tuple(indices[:, i] for i in along)].get(mode="fill", fill_value=0)
        else:
            part = jnp.broadcast_to(part, (data.shape[0], *part.shape))
        inside = (indices < limits).all(-1)
        count, *dense = data.shape
        inside = inside.reshape(count, *[1] * len(dense))
        weight = jnp.where(inside, data, jnp.zeros((), data.dtype)).astype(dtype)
        part = part.reshape(count, *[1] * len(dense), *tail)
        terms = weight.reshape(*data.shape, *[1] * len(tail)) * part.astype(dtype)
        if not columns:
            return terms.sum(0).astype(dtype)
        start = jnp.zeros((*sizes, *dense, *tail), dtype)
        return start.at[tuple(indices[:, i] for i in columns)].add(terms, mode="drop")

    for _ in free:
        one = vmap(one, in_axes=(0, 0, None))
    one = over_batch(one, len(lb) + len(contracted))
    out = one(data, indices, rhs)
    return out.sum(tuple(range(len(lb), len(lb) + len(contracted)))).astype(dtype)


def _sparse_times_sparse(lhs: BCOO, rhs: BCOO, lc: Any, rc: Any, lb: Any, rb: Any) -> BCOO:
    """All pairs of elements whose contracted coordinates agree."""
    one, two = (
        bcoo_update_layout(_batch_first(m, batch), n_batch=len(batch), on_inefficient=None)
        for m, batch in ((lhs, lb), (rhs, rb))
    )
    lc, rc = _moved(lc, lb, lhs.n_batch), _moved(rc, rb, rhs.n_batch)
    n = len(lb)
    dtype = dtypes.result_type(one.data, two.data)
    left = [i for i in range(one.n_sparse) if i + n not in lc]
    right = [i for i in range(two.n_sparse) if i + n not in rc]
    sizes = tuple([one.shape[n + i] for i in left] + [two.shape[n + i] for i in right])
    ends = np.array(sparse_shape(one)), np.array(sparse_shape(two))

    def product(a: Any, i: Any, b: Any, j: Any) -> Any:
        same = (i[:, None, np.array(lc, int) - n] == j[None, :, np.array(rc, int) - n]).all(-1)
        same = same & (i < ends[0]).all(-1)[:, None] & (j < ends[1]).all(-1)[None]
        data = jnp.where(same, a[:, None].astype(dtype) * b[None].astype(dtype), 0)
        pairs = (i.shape[0], j.shape[0])
        columns = [jnp.broadcast_to(i[:, None, k], pairs) for k in left]
        columns += [jnp.broadcast_to(j[None, :, k], pairs) for k in right]
        places = jnp.stack(columns, -1) if columns else jnp.zeros((*pairs, 0), i.dtype)
        places = jnp.where(same[..., None], places, np.array(sizes, i.dtype))
        count = math.prod(pairs)
        return data.reshape(count), places.reshape(count, len(sizes))

    data, indices = over_batch(product, n)(*whole_batch(one), *whole_batch(two))
    out = BCOO((data, indices), shape=one.shape[:n] + sizes)
    most = math.prod(sizes)
    return bcoo_sum_duplicates(out, nse=most) if out.nse > most else out


def _moved(dims: Any, batch: Any, n_batch: int) -> list[int]:
    """Dimensions after `_batch_first`."""
    order = [*batch, *(i for i in range(n_batch) if i not in batch)]
    return [order.index(d) if d < n_batch else d for d in dims]


def _batch_first(mat: BCOO, batch: Sequence[int]) -> BCOO:
    order = [*batch, *(i for i in range(mat.n_batch) if i not in batch)]
    data, indices = whole_batch(mat)
    n = mat.n_batch
    shape = tuple(mat.shape[i] for i in order) + mat.shape[n:]
    return BCOO((data.transpose(*order, *range(n, data.ndim)), indices.transpose(*order, n, n + 1)), shape=shape)


@usual_promotion
def bcoo_dot_general_sampled(A: Any, B: Any, indices: Any, *, dimension_numbers: Numbers) -> Any:
    """The elements at `indices` [*batch, nse, n_sparse] of a contraction of dense arrays.

    Returns:
      Data [*batch, nse, *dense] of a sparse array with these coordinates.

    >>> sparse.bcoo_dot_general_sampled(jnp.ones((2, 3)), jnp.ones((3, 2)), jnp.array([[0, 0], [1, 1]]),
    ...     dimension_numbers=(((1,), (0,)), ((), ())))
    Array([3., 3.], dtype=float32)
    """
    whole = lax.dot_general(A, B, dimension_numbers)
    n = indices.ndim - 2

    def one(x: Any, i: Any) -> Any:
        return x.at[tuple(i[:, k] for k in range(i.shape[-1]))].get(mode="fill", fill_value=0)

    return over_batch(one, n)(whole, indices)


@usual_promotion
def matmul(lhs: Any, rhs: Any) -> Any:
    """`lhs @ rhs` as of NumPy, where at least one is sparse.

    Raises:
      ArgumentShapeError: sizes that differ.
      ArgumentValueError: an operand is a scalar.
    """
    if lhs.ndim == 0 or rhs.ndim == 0:
        raise errors.ArgumentValueError(f"matmul needs at least one dimension, got shapes {lhs.shape} and {rhs.shape}")
    left, right = lhs.ndim - 1, max(0, rhs.ndim - 2)
    if lhs.ndim > 2 and rhs.ndim > 2:
        batch = tuple(range(lhs.ndim - 2))
        return bcoo_dot_general(lhs, rhs, dimension_numbers=(((left,), (right,)), (batch, tuple(range(rhs.ndim - 2)))))
    out = bcoo_dot_general(lhs, rhs, dimension_numbers=(((left,), (right,)), ((), ())))
    if rhs.ndim > 2 and lhs.ndim == 2 and not isinstance(out, BCOO):
        out = jnp.moveaxis(out, 0, -2)
    return out
