"""Sparse arrays in other shapes, parts of them, and their sums."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import errors, lax
from meshrt.contexts import usual_promotion
from meshrt.experimental.sparse.arrays import BCOO
from meshrt.experimental.sparse.coordinates import bcoo_sum_duplicates, sparse_shape, whole_batch
from meshrt.numpy.operands import canonical_axes, canonical_axis

__all__ = [
    "bcoo_broadcast_in_dim", "bcoo_concatenate", "bcoo_dynamic_slice", "bcoo_reduce_sum", "bcoo_reshape", "bcoo_rev",
    "bcoo_slice", "bcoo_squeeze", "bcoo_transpose",
]  # fmt: skip


def _groups(mat: BCOO) -> tuple[int, int]:
    """Where the sparse dimensions begin and end."""
    return mat.n_batch, mat.n_batch + mat.n_sparse


@usual_promotion
def bcoo_transpose(mat: BCOO, *, permutation: Sequence[int]) -> BCOO:
    """The array with its dimensions permuted, each within its group.

    Raises:
      ArgumentValueError: no permutation.
      UnsupportedError: a dimension would leave its group.

    >>> sparse.bcoo_transpose(sparse.BCOO.fromdense(jnp.ones((2, 3))), permutation=(1, 0)).shape
    (3, 2)
    """
    order = tuple(operator.index(p) for p in permutation)
    if sorted(order) != list(range(mat.ndim)):
        raise errors.ArgumentValueError(f"bcoo_transpose: {order} is no permutation of {mat.ndim} dimensions")
    start, stop = _groups(mat)
    batch, sparse, dense = order[:start], order[start:stop], order[stop:]
    if sorted(batch) != list(range(start)) or sorted(dense) != list(range(stop, mat.ndim)):
        raise errors.UnsupportedError(
            f"bcoo_transpose: permutation {order} moves dimensions between the groups of batch, sparse and dense ones "
            f"(n_batch={mat.n_batch}, n_sparse={mat.n_sparse}, n_dense={mat.n_dense}); use update_layout before"
        )
    data = mat.data.transpose(*batch, start, *(d - stop + start + 1 for d in dense))
    columns = [s - start for s in sparse]
    indices = mat.indices.transpose(*batch, start, start + 1)[..., np.array(columns, int)]
    in_order = columns == sorted(columns)
    return BCOO(
        (data, indices),
        shape=tuple(mat.shape[i] for i in order),
        indices_sorted=mat.indices_sorted and in_order,
        unique_indices=mat.unique_indices,
    )


def _inside(mat: BCOO) -> Any:
    """Which coordinates lie inside the array, [*batch, nse]."""
    return (mat.indices < np.array(sparse_shape(mat), mat.indices.dtype)).all(-1)


def _masked(data: Any, mask: Any) -> Any:
    """0 where elements are not wanted."""
    return jnp.where(mask.reshape(mask.shape + (1,) * (data.ndim - mask.ndim)), data, jnp.zeros((), data.dtype))


@usual_promotion
def bcoo_reduce_sum(mat: BCOO, *, axes: Sequence[int]) -> BCOO:
    """The sum over some dimensions, sparse too.

    >>> sparse.bcoo_reduce_sum(sparse.BCOO.fromdense(jnp.eye(3)), axes=(0,)).todense()
    Array([1., 1., 1.], dtype=float32)
    """
    axes = canonical_axes(tuple(axes), mat.ndim, "bcoo_reduce_sum")
    start, stop = _groups(mat)
    batch = [a for a in axes if a < start]
    columns = [i for i in range(mat.n_sparse) if i + start not in axes]
    dense = [a - stop + start + 1 for a in axes if a >= stop]
    data, indices = whole_batch(mat)
    if len(columns) < mat.n_sparse:
        # An element outside the array may lie inside of what is left.
        data = _masked(data, jnp.broadcast_to(_inside(mat), data.shape[: start + 1]))
    data = data.sum(tuple(dense)).astype(data.dtype)
    indices = indices[..., np.array(columns, int)]
    # Elements of batches that are added stand behind one another.
    kept = [a for a in range(start) if a not in batch]
    rest = [mat.shape[a] for a in kept]
    count = mat.nse * math.prod(mat.shape[a] for a in batch)
    data = data.transpose(*kept, *batch, *range(start, data.ndim)).reshape(*rest, count, *data.shape[start + 1 :])
    indices = indices.transpose(*kept, *batch, start, start + 1).reshape(*rest, data.shape[len(rest)], len(columns))
    shape = tuple(n for i, n in enumerate(mat.shape) if i not in axes)
    return BCOO((data, indices), shape=shape)


@usual_promotion
def bcoo_reshape(mat: BCOO, *, new_sizes: Sequence[int], dimensions: Sequence[int] | None = None) -> BCOO:
    """The array in another shape, in which each group of dimensions has as many elements as before.

    Raises:
      ArgumentValueError: a shape of another number of elements, or one in which groups do not stay apart.
      UnsupportedError: batch dimensions along which a part is the same.

    >>> sparse.bcoo_reshape(sparse.BCOO.fromdense(jnp.eye(2)), new_sizes=(4,)).todense()
    Array([1., 0., 0., 1.], dtype=float32)
    """
    sizes = tuple(operator.index(n) for n in new_sizes)
    if np.prod(mat.shape) != np.prod(sizes):
        raise errors.ArgumentValueError(f"reshape: cannot reshape array of shape {mat.shape} into shape {sizes}")
    if dimensions is not None:
        mat = bcoo_transpose(mat, permutation=dimensions)
    start, stop = _groups(mat)
    old_batch, old_sparse, old_dense = mat.shape[:start], mat.shape[start:stop], mat.shape[stop:]
    if mat.indices.shape[:start] != old_batch or mat.data.shape[:start] != old_batch:
        raise errors.UnsupportedError("reshape of arrays with broadcasted batch dimensions.")
    first = _boundary(sizes, old_batch, 0)
    last = None if first is None else _boundary(sizes, old_sparse, first)
    if first is None or last is None:
        kinds = ("batch and sparse", "n_batch") if first is None else ("sparse and dense", "n_dense")
        raise errors.ArgumentValueError(
            f"bcoo_reshape: new shape cannot mix {kinds[0]} dimensions; got shape={mat.shape} new_shape={sizes} with "
            f"{kinds[1]}={getattr(mat, kinds[1])}; use update_layout before"
        )
    if not old_dense:
        last = len(sizes)
    data, indices = whole_batch(mat)
    batch, sparse, dense = sizes[:first], sizes[first:last], sizes[last:]
    flat = jnp.zeros(indices.shape[:-1], indices.dtype)
    for i, n in enumerate(old_sparse):
        flat = flat * n + indices[..., i]
    columns = []
    for n in reversed(sparse):
        columns.append(flat % n)
        flat = flat // n
    new = jnp.stack(columns[::-1], -1) if columns else jnp.zeros((*indices.shape[:-1], 0), indices.dtype)
    new = jnp.where(_broadcast_inside(mat, indices)[..., None], new, np.array(sparse, indices.dtype))
    data, new = data.reshape(*batch, mat.nse, *dense), new.reshape(*batch, mat.nse, len(sparse))
    return BCOO((data, new), shape=sizes, indices_sorted=mat.indices_sorted, unique_indices=mat.unique_indices)


def _boundary(sizes: tuple[int, ...], group: tuple[int, ...], start: int) -> int | None:
    """Where a group of dimensions ends among new ones that it begins at `start`; None if it does so nowhere."""
    wanted = math.prod(group)
    return next((i for i in range(start, len(sizes) + 1) if math.prod(sizes[start:i]) == wanted), None)


def _broadcast_inside(mat: BCOO, indices: Any) -> Any:
    return (indices < np.array(sparse_shape(mat), indices.dtype)).all(-1)


@usual_promotion
def bcoo_broadcast_in_dim(
    mat: BCOO, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], sharding: Any = None
) -> BCOO:
    """The array with its dimensions at given places of a larger shape; those of size 1 may grow.

    New dimensions before the first sparse one are batch dimensions, from the first dense one on dense, the others
    sparse.

    Raises:
      ArgumentValueError: sizes that do not fit.
      UnsupportedError: a sharding is asked for.

    >>> sparse.bcoo_broadcast_in_dim(sparse.BCOO.fromdense(jnp.eye(2)), shape=(3, 2, 2), broadcast_dimensions=(1,
    ...     2)).shape
    (3, 2, 2)
    """
    if sharding is not None:
        raise errors.UnsupportedError("bcoo_broadcast_in_dim: sharding is not supported; shard the parts")
    sizes, places = tuple(shape), tuple(broadcast_dimensions)
    if len(places) != mat.ndim or any(n not in (1, sizes[p]) for n, p in zip(mat.shape, places)):
        raise errors.ArgumentValueError(f"bcoo_broadcast_in_dim: {mat.shape} does not go to {places} of {sizes}")
    start, stop = _groups(mat)
    n_batch = min(places[start:], default=len(sizes))
    n_dense = len(sizes) - min(places[stop:]) if mat.n_dense else 0
    n_sparse = len(sizes) - n_batch - n_dense
    data, indices = mat.data, mat.indices
    batch_places = places[:start]
    batch = [1] * n_batch
    for n, p in zip(data.shape, batch_places):
        batch[p] = max(n, indices.shape[batch_places.index(p)])
    data = jnp.broadcast_to(data, mat.shape[:start] + data.shape[start:])
    indices = jnp.broadcast_to(indices, mat.shape[:start] + indices.shape[start:])
    dense = [1] * n_dense
    for n, p in zip(mat.shape[stop:], places[stop:]):
        dense[p - n_batch - n_sparse] = n
    data = data.reshape(*batch, mat.nse, *dense)
    data = jnp.broadcast_to(data, (*sizes[:n_batch], mat.nse, *sizes[n_batch + n_sparse :]))
    indices = jnp.broadcast_to(
        indices.reshape(*batch, mat.nse, mat.n_sparse), (*sizes[:n_batch], mat.nse, mat.n_sparse)
    )
    own = {p - n_batch: i for i, p in enumerate(places[start:stop])}
    inside = (indices < np.array(sparse_shape(mat), indices.dtype)).all(-1)
    columns: list[Any] = []
    grown = [i for i in range(n_sparse) if i not in own or mat.shape[start + own[i]] != sizes[n_batch + i]]
    repeats = int(np.prod([sizes[n_batch + i] for i in grown]))
    grid = np.indices([sizes[n_batch + i] for i in grown]).reshape(len(grown), -1) if grown else None
    spread = lambda x: jnp.repeat(x, repeats, axis=n_batch)
    for i in range(n_sparse):
        if i in grown and grid is not None:
            column = jnp.tile(grid[grown.index(i)].astype(indices.dtype), mat.nse)
            columns.append(jnp.broadcast_to(column, (*indices.shape[:-2], mat.nse * repeats)))
        else:
            columns.append(spread(indices[..., own[i]]))
    new = jnp.stack(columns, -1) if columns else spread(indices)
    limits = np.array(sizes[n_batch : n_batch + n_sparse], indices.dtype)
    new = jnp.where(spread(inside)[..., None], new, limits)
    return BCOO((spread(data), new), shape=sizes, unique_indices=mat.unique_indices)


@usual_promotion
def bcoo_concatenate(operands: Sequence[BCOO], *, dimension: int) -> BCOO:
    """Sparse arrays behind one another along a dimension.

    Raises:
      ArgumentValueError: none, or shapes that differ elsewhere.
      UnsupportedError: layouts that differ.

    >>> sparse.bcoo_concatenate([sparse.BCOO.fromdense(jnp.eye(2))] * 2, dimension=0).shape
    (4, 2)
    """
    operands = list(operands)
    if not operands:
        raise errors.ArgumentValueError("bcoo_concatenate: operands are empty")
    first = operands[0]
    axis = canonical_axis(dimension, first.ndim, "bcoo_concatenate")
    others = [m.shape[:axis] + m.shape[axis + 1 :] for m in operands]
    if any(o != others[0] for o in others):
        raise errors.ArgumentValueError(f"bcoo_concatenate: shapes {[m.shape for m in operands]} differ elsewhere")
    if any((m.n_batch, m.n_dense) != (first.n_batch, first.n_dense) for m in operands):
        raise errors.UnsupportedError("bcoo_concatenate requires inputs to have matching nbatch/nsparse/ndense.")
    start, stop = _groups(first)
    sizes = list(first.shape)
    sizes[axis] = sum(m.shape[axis] for m in operands)
    limits = np.array(sizes[start:stop], first.indices.dtype)
    most = max(m.nse for m in operands)
    parts, offset = [], 0
    for m in operands:
        data, indices = whole_batch(m)
        inside = _broadcast_inside(m, indices)[..., None]
        if start <= axis < stop:
            indices = indices + np.array([offset if i == axis - start else 0 for i in range(m.n_sparse)], indices.dtype)
            offset += m.shape[axis]
        indices = jnp.where(inside, indices, limits).astype(first.indices.dtype)
        if axis >= stop:
            before, after = offset, sizes[axis] - offset - m.shape[axis]
            place = axis - stop + start + 1
            data = jnp.pad(data, [(before, after) if i == place else (0, 0) for i in range(data.ndim)])
            offset += m.shape[axis]
        if axis < start and m.nse < most:
            data = jnp.pad(data, [(0, most - m.nse) if i == start else (0, 0) for i in range(data.ndim)])
            fill = jnp.broadcast_to(limits, (*indices.shape[:-2], most - m.nse, len(limits)))
            indices = jnp.concatenate([indices, fill], -2)
        parts.append((data, indices))
    along = axis if axis < start else start
    data, indices = (jnp.concatenate(p, along) for p in zip(*parts))
    return BCOO((data, indices), shape=sizes)


@usual_promotion
def bcoo_slice(
    mat: BCOO, *, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None = None
) -> BCOO:
    """A part of the array, as of `lax.slice`. It has as many elements as the whole: those outside are 0.

    Raises:
      ArgumentValueError: bounds that do not fit the shape.

    >>> sparse.bcoo_slice(sparse.BCOO.fromdense(jnp.eye(3)), start_indices=(1, 1), limit_indices=(3, 3)).todense()
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    begin, end = tuple(map(operator.index, start_indices)), tuple(map(operator.index, limit_indices))
    steps = (1,) * mat.ndim if strides is None else tuple(map(operator.index, strides))
    if not len(begin) == len(end) == len(steps) == mat.ndim:
        raise errors.ArgumentValueError(f"bcoo_slice: bounds {begin}, {end}, {steps} do not fit shape {mat.shape}")
    if any(not 0 <= b <= e <= n or s <= 0 for b, e, s, n in zip(begin, end, steps, mat.shape)):
        raise errors.ArgumentValueError(
            f"bcoo_slice: invalid indices: start={begin}, limit={end}, strides={steps} of shape {mat.shape}"
        )
    start, stop = _groups(mat)
    shape = tuple(-(-(e - b) // s) for b, e, s in zip(begin, end, steps))
    data, indices = whole_batch(mat)
    whole = tuple(slice(b, e, s) for b, e, s in zip(begin, end, steps))
    data = data[(*whole[:start], slice(None), *whole[stop:])]
    indices = indices[whole[:start]]
    lows, highs, by = (np.array(v[start:stop], indices.dtype) for v in (begin, end, steps))
    kept = ((indices >= lows) & (indices < highs) & ((indices - lows) % by == 0)).all(-1)
    indices = jnp.where(kept[..., None], (indices - lows) // by, np.array(shape[start:stop], indices.dtype))
    whole_sparse = shape[start:stop] == sparse_shape(mat)
    out = BCOO(
        (_masked(data, kept), indices), shape=shape, indices_sorted=mat.indices_sorted and whole_sparse,
        unique_indices=mat.unique_indices,
    )  # fmt: skip
    return _no_more_than_whole(out)


def _no_more_than_whole(mat: BCOO) -> BCOO:
    """With at most as many elements as there are coordinates."""
    most = int(np.prod(sparse_shape(mat)))
    return mat if mat.nse <= most else bcoo_sum_duplicates(mat, nse=most)


@usual_promotion
def bcoo_dynamic_slice(mat: BCOO, start_indices: Sequence[Any], slice_sizes: Sequence[int]) -> BCOO:
    """A part of the array at places that may be traced, as of `lax.dynamic_slice`.

    >>> sparse.bcoo_dynamic_slice(sparse.BCOO.fromdense(jnp.eye(3)), (1, 1), (2, 2)).todense()
    Array([[1., 0.],
           [0., 1.]], dtype=float32)
    """
    sizes = tuple(map(operator.index, slice_sizes))
    if not len(sizes) == len(start_indices) == mat.ndim or any(s > n for s, n in zip(sizes, mat.shape)):
        raise errors.ArgumentShapeError(f"bcoo_dynamic_slice: slice_sizes={sizes} do not fit shape {mat.shape}")
    begin = [jnp.clip(jnp.asarray(b), 0, n - s) for b, n, s in zip(start_indices, mat.shape, sizes)]
    start, stop = _groups(mat)
    data, indices = whole_batch(mat)
    zero = jnp.zeros((), begin[0].dtype)
    places = (*begin[:start], zero, *begin[stop:])
    data = lax.dynamic_slice(data, places, (*sizes[:start], mat.nse, *sizes[stop:]))
    indices = lax.dynamic_slice(indices, (*begin[:start], zero, zero), (*sizes[:start], mat.nse, mat.n_sparse))
    limits = np.array(sizes[start:stop], indices.dtype)
    lows = jnp.stack([b.astype(indices.dtype) for b in begin[start:stop]]) if mat.n_sparse else limits
    moved = indices - lows
    kept = ((moved >= 0) & (moved < limits)).all(-1)
    indices = jnp.where(kept[..., None], moved, limits)
    return _no_more_than_whole(BCOO((_masked(data, kept), indices), shape=sizes, unique_indices=mat.unique_indices))


@usual_promotion
def bcoo_squeeze(arr: BCOO, *, dimensions: Sequence[int]) -> BCOO:
    """The array without some dimensions of size 1. ArgumentValueError if one is larger.

    >>> sparse.bcoo_squeeze(sparse.BCOO.fromdense(jnp.ones((1, 2))), dimensions=(0,)).shape
    (2,)
    """
    axes = canonical_axes(tuple(dimensions), arr.ndim, "bcoo_squeeze")
    if any(arr.shape[a] != 1 for a in axes):
        raise errors.ArgumentValueError(f"bcoo_squeeze: dimensions {axes} of shape {arr.shape} are not all 1")
    start, stop = _groups(arr)
    columns = np.array([i for i in range(arr.n_sparse) if i + start not in axes], int)
    batch = tuple(a for a in axes if a < start)
    data = (
        _masked(
            arr.data,
            jnp.broadcast_to(_inside(arr), np.broadcast_shapes(arr.data.shape[: start + 1], _inside(arr).shape)),
        )
        if len(columns) < arr.n_sparse
        else arr.data
    )
    data = jnp.squeeze(data, (*batch, *(a - stop + start + 1 for a in axes if a >= stop)))
    indices = jnp.squeeze(arr.indices, batch)[..., columns]
    shape = tuple(n for i, n in enumerate(arr.shape) if i not in axes)
    return BCOO((data, indices), shape=shape, indices_sorted=arr.indices_sorted, unique_indices=arr.unique_indices)


@usual_promotion
def bcoo_rev(operand: BCOO, dimensions: Sequence[int]) -> BCOO:
    """The array with some dimensions reversed.

    >>> sparse.bcoo_rev(sparse.BCOO.fromdense(jnp.eye(2)), (0,)).todense()
    Array([[0., 1.],
           [1., 0.]], dtype=float32)
    """
    axes = canonical_axes(tuple(dimensions), operand.ndim, "bcoo_rev")
    start, stop = _groups(operand)
    batch = [a for a in axes if a < start]
    data, indices = whole_batch(operand) if batch else (operand.data, operand.indices)
    data = lax.rev(data, [*batch, *(a - stop + start + 1 for a in axes if a >= stop)])
    indices = lax.rev(indices, batch)
    sizes = np.array(sparse_shape(operand), indices.dtype)
    turned = np.array([i + start in axes for i in range(operand.n_sparse)], bool)
    inside = (indices < sizes).all(-1, keepdims=True)
    indices = jnp.where(turned & inside, sizes - 1 - indices, indices)
    return BCOO((data, indices), shape=operand.shape, unique_indices=operand.unique_indices)
