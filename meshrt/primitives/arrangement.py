"""Arrays arranged from others: stack, unstack, tile, index_take, and shapes that broadcast to one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.shapes import broadcast_in_dim, canonical_axis, reshape
from meshrt.core.dimensions.arithmetic import broadcast_shapes as common_sizes
from meshrt.core.dimensions.expression import as_size
from meshrt.core.source import capture
from meshrt.core.types import aval_of
from meshrt.primitives.concatenate import concatenate, split
from meshrt.primitives.elementwise import add_p, lt_p, rem_p
from meshrt.primitives.gather import gather
from meshrt.primitives.gather_scatter import GatherDimensionNumbers
from meshrt.primitives.reshape import broadcast, expand_dims, squeeze
from meshrt.primitives.selection import select_n_p
from meshrt.sharding.typed import entries_of

__all__ = [
    "broadcast_shapes", "broadcast_to_rank", "index_take", "shape_as_value", "stack", "tile", "unstack",
]  # fmt: skip


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that all `shapes` broadcast to by NumPy's rules. ArgumentValueError if there is none.

    >>> lax.broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    try:
        return common_sizes(*shapes)
    except ValueError:
        listed = ", ".join(str(tuple(s)) for s in shapes)
        raise errors.ArgumentValueError(
            f"Incompatible shapes for broadcasting: {listed}; dimensions, aligned from the right, must be equal or 1"
        ) from None


def broadcast_to_rank(x: Any, rank: int) -> Any:
    """`x` with as many leading dimensions of size 1 as it takes to have `rank` dimensions.

    Args:
      x: an array.
      rank: the number of dimensions.

    >>> lax.broadcast_to_rank(jnp.ones(3), 2).shape
    (1, 3)
    """
    return broadcast(x, (1,) * (rank - aval_of(x).ndim))


def shape_as_value(shape: Sequence[int]) -> Any:
    """A shape as an array of integers.

    >>> lax.shape_as_value((2, 3))
    array([2, 3], dtype=int32)
    """
    dtype = np.int64 if any(n > np.iinfo(np.int32).max for n in shape) else np.int32
    return np.asarray(shape, dtypes.canonicalize_dtype(dtype))


def stack(operands: Sequence[Any], axis: int = 0) -> Any:
    """Arrays of one shape and dtype joined along a new dimension at position `axis` of the result.

    Raises:
      ArgumentValueError: there are none, or shapes differ.
      ArgumentTypeError: dtypes differ.

    Args:
      operands: arrays.
      axis: a dimension number.

    >>> lax.stack([jnp.array([1, 2]), jnp.array([3, 4])])
    Array([[1, 2],
           [3, 4]], dtype=int32)
    """
    avals = [aval_of(x) for x in operands]
    if not avals or any(a.shape != avals[0].shape for a in avals):
        raise errors.ArgumentValueError(
            f"stack needs arrays of one shape, but got {', '.join(a.short() for a in avals) or 'none'}"
        )
    if any(a.dtype != avals[0].dtype for a in avals):
        raise errors.ArgumentTypeError(
            f"stack needs arrays of one dtype, but got {', '.join(a.short() for a in avals)}; convert with astype"
        )
    axis = canonical_axis(axis, avals[0].ndim + 1)
    return concatenate([expand_dims(x, (axis,)) for x in operands], axis)


def unstack(x: Any, axis: int = 0) -> tuple[Any, ...]:
    """The slices of `x` along `axis`, without that dimension.

    Args:
      x: an array.
      axis: a dimension number.

    >>> lax.unstack(jnp.array([[1, 2], [3, 4]]))
    (Array([1, 2], dtype=int32), Array([3, 4], dtype=int32))
    """
    aval = aval_of(x)
    axis = canonical_axis(axis, aval.ndim)
    if aval.shape[axis] == 0:
        return ()
    return tuple(squeeze(part, (axis,)) for part in split(x, (1,) * aval.shape[axis], axis))


def tile(operand: Any, reps: Sequence[int]) -> Any:
    """`operand` laid out `reps[i]` times along each dimension i.

    Raises:
      ArgumentTypeError: there is not one count per dimension.
      ArgumentValueError: a count is negative.
      ShardingTypeError: an Explicit axis splits a dimension that is repeated, so no spec says where the copies are.

    Args:
      operand: an array.
      reps: how often along each dimension.

    >>> lax.tile(jnp.array([1, 2]), (2,))
    Array([1, 2, 1, 2], dtype=int32)
    """
    aval, counts = aval_of(operand), tuple(map(as_size, reps))
    shape = aval.shape
    if len(counts) != len(shape):
        raise errors.ArgumentTypeError(
            f"tile of {aval_of(operand).short()} needs {len(shape)} counts, one per dimension, but got {counts}"
        )
    if any(n < 0 for n in counts):
        raise errors.ArgumentValueError(f"tile cannot lay out an array {counts} times; counts are 0 or more")
    split = next((d for d, e in enumerate(entries_of(aval)) if e is not None and counts[d] != 1), None)
    if split is not None:
        raise errors.ShardingTypeError(
            f"Operand cannot be sharded on dimension {split} when the tiling is non-trivial. Got input type: "
            f"{aval.str_short(short_dtypes=False)} with reps: {counts} at {capture()}. Gather that dimension first, "
            "with meshrt.reshard, or let propagation decide with meshrt.sharding.auto_axes"
        )
    repeated = [d for d, n in enumerate(counts) if n != 1]
    if aval.explicit is not None and len(repeated) > 1:
        # The type rule of reshape follows one merge at a time.
        for d in repeated:
            operand = tile(operand, [counts[d] if i == d else 1 for i in range(len(shape))])
        return operand
    # Dimensions that stay as they are stand alone, so that the rule sees what becomes of them.
    wide, kept = [], []
    for count, size in zip(counts, shape):
        wide += [size] if count == 1 else [count, size]
        kept.append(len(wide) - 1)
    if not repeated:
        return reshape(operand, shape)  # an array, whatever was given
    return reshape(broadcast_in_dim(operand, wide, kept), [math.prod(pair) for pair in zip(counts, shape)])


def index_take(src: Any, idxs: Sequence[Any], axes: Sequence[int]) -> Any:
    """The parts of `src` at the positions that `idxs`, one array of integers [n] per axis in `axes`, name.

    Positions count from the end if they are negative, and wrap around. The result has a leading dimension of n and the
    other dimensions of `src`.

    >>> lax.index_take(jnp.array([10, 20, 30]), (jnp.array([2, 0]),), (0,))
    Array([30, 10], dtype=int32)
    """
    shape = aval_of(src).shape
    columns = [expand_dims(_wrapped(i, shape[a]), (1,)) for i, a in zip(idxs, axes, strict=True)]
    numbers = GatherDimensionNumbers(
        offset_dims=tuple(range(1, len(shape) - len(columns) + 1)), collapsed_slice_dims=tuple(sorted(axes)),
        start_index_map=tuple(axes),
    )  # fmt: skip
    sizes = tuple(1 if d in axes else n for d, n in enumerate(shape))
    return gather(src, concatenate(columns, 1), numbers, sizes)


def _wrapped(index: Any, size: int) -> Any:
    """`index` modulo `size`, from 0."""
    aval = aval_of(index)
    count, zero = np.asarray(size, aval.dtype)[()], np.asarray(0, aval.dtype)[()]
    rest = rem_p.bind(index, count)
    return select_n_p.bind(lt_p.bind(rest, zero), rest, add_p.bind(rest, count))
