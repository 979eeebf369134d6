"""Windows of sparse arrays at places that may be traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import errors, lax
from meshrt.contexts import usual_promotion
from meshrt.experimental.sparse.arrays import BCOO
from meshrt.experimental.sparse.coordinates import bcoo_update_layout
from meshrt.experimental.sparse.shapes import bcoo_dynamic_slice, bcoo_reshape, bcoo_squeeze, bcoo_transpose
from meshrt.shape_dtype import ShapeDtypeStruct
from meshrt.staging import eval_shape
from meshrt.transforms.vmap import vmap

__all__ = ["bcoo_gather"]

_CLAMPED = (lax.GatherScatterMode.PROMISE_IN_BOUNDS, lax.GatherScatterMode.CLIP)


@usual_promotion
def bcoo_gather(
    operand: BCOO,
    start_indices: Any,
    dimension_numbers: lax.GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: Any = None,
    fill_value: Any = None,
) -> BCOO:
    """Windows of a sparse array, as of `lax.gather`. What the indices run over becomes batch dimensions.

    Args:
      mode: None, "promise_in_bounds" or "clip".

    Raises:
      UnsupportedError: another mode, or batching dimensions among the `dimension_numbers`.

    >>> m = sparse.BCOO.fromdense(jnp.eye(3))
    >>> numbers = lax.GatherDimensionNumbers((1,), (0,), (0,))
    >>> sparse.bcoo_gather(m, jnp.array([[1]]), numbers, (1, 3)).todense()
    Array([[0., 1., 0.]], dtype=float32)
    """
    mode = lax.GatherScatterMode.PROMISE_IN_BOUNDS if mode is None else lax.GatherScatterMode.from_any(mode)
    numbers, at = dimension_numbers, jnp.asarray(start_indices)
    if mode not in _CLAMPED:
        raise errors.UnsupportedError(f"bcoo_gather: mode={mode} not yet supported; use 'clip' or 'promise_in_bounds'.")
    if numbers.operand_batching_dims:
        raise errors.UnsupportedError("bcoo_gather: operand_batching_dims are not supported; use vmap")
    dense = lambda x, i: lax.gather(x, i, numbers, slice_sizes, mode=mode)
    shape = eval_shape(dense, ShapeDtypeStruct(operand.shape, operand.dtype), at).shape
    windows = _windows(operand, at, numbers, tuple(slice_sizes))
    rank = at.ndim - 1
    windows = bcoo_reshape(windows, new_sizes=(*at.shape[:-1], *windows.shape[1:]))
    # Dimensions of the indices come first; the window's go where `offset_dims` says.
    order = [0] * windows.ndim
    others = [d for d in range(windows.ndim) if d not in numbers.offset_dims]
    for source, place in enumerate([*others, *numbers.offset_dims]):
        order[place] = source
    if order == list(range(windows.ndim)):
        return windows
    if sorted(order[:rank]) != list(range(rank)) or windows.n_batch > rank:
        windows = bcoo_update_layout(windows, n_batch=0, on_inefficient=None)
    out = bcoo_transpose(windows, permutation=order)
    if out.shape != shape:
        raise errors.InternalError(f"bcoo_gather of {operand}: windows {out.shape} where {shape} was expected")
    return out


def _windows(operand: BCOO, at: Any, numbers: lax.GatherDimensionNumbers, sizes: tuple[int, ...]) -> BCOO:
    """One window for each index, [number of indices, *window without collapsed dimensions]."""
    flat = at.reshape(-1, at.shape[-1])

    def window(index: Any) -> BCOO:
        begin: list[Any] = [jnp.zeros((), at.dtype)] * operand.ndim
        for i, axis in enumerate(numbers.start_index_map):
            begin[axis] = index[i]
        return bcoo_squeeze(bcoo_dynamic_slice(operand, begin, sizes), dimensions=numbers.collapsed_slice_dims)

    found: BCOO = vmap(window)(flat)
    batch = (flat.shape[0], *np.broadcast_shapes(found.data.shape[1 : found.n_batch], found.shape[1 : found.n_batch]))
    return BCOO(
        (_grown(found.data, batch), _grown(found.indices, batch)), shape=found.shape,
        unique_indices=found.unique_indices,
    )  # fmt: skip


def _grown(part: Any, batch: tuple[int, ...]) -> Any:
    return jnp.broadcast_to(part, (*batch, *part.shape[len(batch) :]))
