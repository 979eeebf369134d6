"""Indexing: ``x[...]``, take and take_along_axis, over the plans of :mod:`meshrt.numpy.index_plan`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.basic.shapes import broadcast_in_dim_p, reshape_p
from meshrt.core.dimensions.arithmetic import broadcast_shapes
from meshrt.core.dimensions.expression import DimExpr, guessed, is_symbolic_shape
from meshrt.core.operators import ArrayOperators
from meshrt.core.types import aval_of
from meshrt.dispatch import at_once
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray
from meshrt.numpy.division import remainder
from meshrt.numpy.filled import full_like, zeros_like
from meshrt.numpy.index_plan import (
    DynamicSlicePlan,
    GatherPlan,
    IndexingError,
    Ramp,
    StaticSlicePlan,
    plan_take,
    tokenize,
)
from meshrt.numpy.operands import ShapeError, broadcast_to_shape, canonical_axis, operand, size_as, unsupported_argument
from meshrt.primitives.dynamic_slice import dynamic_slice_p
from meshrt.primitives.reshape import expand_dims, iota_p
from meshrt.primitives.slice import slice_p

__all__ = [
    "gather_indices", "getitem", "index_exp", "s_", "static_slice", "take", "take_along_axis",
]  # fmt: skip

index_exp = np.index_exp
s_ = np.s_

_CLAMPING = (None, "clip", "promise_in_bounds")


def getitem(
    x: Any, index: Any, *, mode: Any = None, fill_value: Any = None, indices_are_sorted: bool = False,
    unique_indices: bool = False, wrap: bool = True,
) -> Any:  # fmt: skip
    """``x[index]`` with NumPy's rules.

    Args:
      mode: what happens out of bounds. None and "promise_in_bounds": nothing is checked, and the nearest element is
        read; "clip": the nearest element, also in derivatives; "fill": ``fill_value``.
      fill_value: static scalar; by default NaN, for integers the smallest (unsigned: largest) value.
      wrap: whether negative indices count from the end.
    """
    tokens, operands = tokenize(index)
    mode = _mode_name(mode)
    plan = plan_take(tokens, x.shape, mode in _CLAMPING, wrap)
    if plan.static is not None:
        x = static_slice(x, plan.static)
    if plan.dynamic is not None:
        return _dynamic_slice(x, plan.dynamic, operands)
    if plan.gather is None:
        return x
    return _gather(x, plan.gather, operands, mode, fill_value, indices_are_sorted, unique_indices)


def _mode_name(mode: Any) -> str | None:
    if mode is None or mode in ("fill", "drop", "clip", "promise_in_bounds", "one_hot"):
        return mode
    return {
        lax.GatherScatterMode.CLIP: "clip",
        lax.GatherScatterMode.FILL_OR_DROP: "fill",
        lax.GatherScatterMode.PROMISE_IN_BOUNDS: "promise_in_bounds",
        lax.GatherScatterMode.ONE_HOT: "one_hot",
    }[lax.GatherScatterMode.from_any(mode)]


def static_slice(x: Any, plan: StaticSlicePlan) -> Any:
    """``x`` reversed, sliced, squeezed and expanded as planned."""
    if plan.turned:
        x = lax.rev(x, plan.turned)
    if plan.starts is not None:
        x = slice_p.bind(x, start_indices=plan.starts, limit_indices=plan.limits, strides=plan.strides)
    if plan.reverse:
        x = lax.rev(x, plan.reverse)
    if plan.squeeze:
        x = reshape_p.bind(x, new_sizes=plan.shape)
    return expand_dims(x, plan.newaxis) if plan.newaxis else x


def index_dtype(shape: Sequence[int]) -> np.dtype:
    """int32, or int64 where a dimension of ``shape`` has positions beyond it (and 64 bits are enabled)."""
    large = any(guessed(n) > np.iinfo(np.int32).max for n in shape)
    return np.dtype("int64" if large and dtypes.x64_enabled() else "int32")


def normalized(index: Any, wrap: int, dtype: np.dtype) -> Any:
    """An index array as ``dtype``; negative entries get ``wrap`` added, if it is not 0."""
    if not isinstance(index, ArrayOperators):
        index = np.asarray(index)
        if isinstance(wrap, DimExpr) and (index < 0).any():
            return el.select_n_p.bind(index < 0, index.astype(dtype), el.add(index.astype(dtype), size_as(wrap, dtype)))
        wrap = 0 if isinstance(wrap, DimExpr) else wrap
        return (np.where(index < 0, index + wrap, index) if wrap else index).astype(dtype)
    if index.dtype.itemsize < dtype.itemsize:
        index = el.convert_element_type(index, dtype)
    if isinstance(wrap, DimExpr) or wrap:
        own = index.dtype
        moved = el.add_p.bind(index, size_as(wrap, own))
        index = el.select_n_p.bind(el.lt_p.bind(index, np.zeros((), own)[()]), index, moved)
    return el.convert_element_type(index, dtype)


def _dynamic_slice(x: Any, plan: DynamicSlicePlan, operands: Sequence[Any]) -> Any:
    dtype = index_dtype(x.shape)
    starts = [
        normalized(operands[s[1]], s[2], dtype) if isinstance(s, tuple) else size_as(s, dtype) for s in plan.starts
    ]
    x = dynamic_slice_p.bind(x, *starts, slice_sizes=plan.sizes)
    if plan.reverse:
        x = lax.rev(x, plan.reverse)
    if plan.squeeze:
        kept = tuple(n for i, n in enumerate(x.shape) if i not in plan.squeeze)
        x = reshape_p.bind(x, new_sizes=kept)
    return expand_dims(x, plan.newaxis) if plan.newaxis else x


def gather_indices(plan: GatherPlan, operands: Sequence[Any], dtype: np.dtype) -> Any:
    """The index vectors of a gather or scatter: shape (*batch_shape, number of parts)."""
    parts = [_part(p, operands, dtype) for p in plan.parts]
    target = (*plan.batch_shape, 1)
    placed = []
    for p, value in zip(plan.parts, parts):
        dims = tuple(range(p.at, p.at + len(p.shape)))
        if isinstance(value, np.ndarray) and not is_symbolic_shape(target):
            spread = value.reshape(tuple(value.shape[i - p.at] if i in dims else 1 for i in range(len(target))))
            placed.append(np.broadcast_to(spread, target))
        elif value.shape == plan.batch_shape:
            placed.append(reshape_p.bind(value, new_sizes=target))
        else:
            placed.append(broadcast_in_dim_p.bind(value, shape=target, broadcast_dimensions=dims))
    if not placed:
        return np.zeros((*plan.batch_shape, 0), dtype)
    if all(isinstance(p, np.ndarray) for p in placed):
        return np.concatenate(placed, -1)
    if len(placed) == 1:
        return placed[0]
    return lax.concatenate(
        [np.ascontiguousarray(p) if isinstance(p, np.ndarray) else p for p in placed], len(target) - 1
    )


def _part(part: Any, operands: Sequence[Any], dtype: np.dtype) -> Any:
    if isinstance(part.value, Ramp):
        counted = iota_p.bind(dtype=dtype, shape=part.shape, dimension=0)
        start, stride = part.value
        start = normalized(operands[start[1]], 0, dtype) if isinstance(start, tuple) else size_as(start, dtype)
        return el.add_p.bind(el.mul_p.bind(counted, size_as(stride, dtype)), asarray(start))
    if isinstance(part.value, tuple):
        index = operands[part.value[1]]
        return normalized(index, part.wrap, dtype)
    if isinstance(part.value, DimExpr):
        return size_as(part.value, dtype)
    return np.asarray(part.value if type(part.value) is int else list(part.value), dtype)


def _gather(
    x: Any, plan: GatherPlan, operands: Sequence[Any], mode: Any, fill_value: Any, is_sorted: bool, unique: bool
) -> Any:
    if plan.empty:
        return full_like(x, 0, shape=plan.slice_shape) if not _is_key(x) else _empty_keys(x, plan.slice_shape)
    if plan.insert:
        x = expand_dims(x, plan.insert)
    if plan.parts:
        indices = gather_indices(plan, operands, index_dtype(x.shape))
        numbers = lax.GatherDimensionNumbers(plan.offset_dims, plan.collapsed_slice_dims, plan.start_index_map)
        x = lax.gather(
            x, indices, numbers, plan.slice_sizes, unique_indices=unique or plan.unique,
            indices_are_sorted=is_sorted or plan.unique, mode=mode or "promise_in_bounds", fill_value=fill_value,
        )  # fmt: skip
    if plan.reverse:
        x = lax.rev(x, plan.reverse)
    return expand_dims(x, plan.newaxis) if plan.newaxis else x


def _is_key(x: Any) -> bool:
    return isinstance(x.dtype, dtypes.ExtendedDType)


def _empty_keys(x: Any, shape: tuple[int, ...]) -> Any:
    if 0 in x.shape:
        return reshape_p.bind(x, new_sizes=shape)
    empty = slice_p.bind(x, start_indices=(0,) * x.ndim, limit_indices=(0,) * x.ndim, strides=None)
    return reshape_p.bind(empty, new_sizes=shape)


# ----------------------------------------------------------------------------------------------------------
# take


@at_once(2, ["mode", "unique_indices", "indices_are_sorted"])
def take(
    a: Any, indices: Any, axis: int | None = None, out: None = None, mode: str | None = None,
    unique_indices: bool = False, indices_are_sorted: bool = False, fill_value: Any = None,
) -> Any:  # fmt: skip
    """Elements of ``a`` at ``indices`` along ``axis`` (of the flattened array by default).

    Args:
      mode: out of bounds, "fill" (the default) gives ``fill_value`` or NaN, "clip" the nearest element, "wrap"
        counts around; "clip" also clamps negative indices to 0.

    >>> jnp.take(jnp.array([10, 20, 30]), jnp.array([2, 0]))
    Array([30, 10], dtype=int32)
    """
    unsupported_argument("take", "out", out)
    a = asarray(operand("take", a))
    indices = operand("take", indices, 1)
    if axis is None:
        a, axis = lax.reshape(a, (a.size,)), 0
    axis = canonical_axis(axis, a.ndim, "take")
    shape = np.shape(indices) if not hasattr(indices, "shape") else indices.shape
    n = a.shape[axis]
    if mode == "raise":
        raise errors.UnsupportedError("The 'raise' mode to jnp.take is not supported: use 'fill', 'clip' or 'wrap'")
    if mode not in (None, "fill", "clip", "wrap"):
        raise errors.ArgumentValueError(f"take: Invalid mode '{mode}' for np.take; use 'fill', 'clip' or 'wrap'")
    if n == 0 and math.prod(shape):
        raise IndexingError(f"a non-empty jnp.take() from an empty axis: dimension {axis} of shape {a.shape}")
    if not math.prod(shape):
        return zeros_like(a, shape=(*a.shape[:axis], *shape, *a.shape[axis + 1 :]))
    indices = _taken(indices, n, mode)
    numbers = lax.GatherDimensionNumbers(
        (*range(axis), *range(axis + len(shape), a.ndim + len(shape) - 1)), (axis,), (axis,)
    )
    sizes = (*a.shape[:axis], 1, *a.shape[axis + 1 :])
    mode = {None: "fill", "wrap": "promise_in_bounds"}.get(mode, mode)
    vectors = indices.reshape((*shape, 1)) if isinstance(indices, np.ndarray) else expand_dims(indices, (len(shape),))
    return lax.gather(
        a, vectors, numbers, sizes, mode=mode, unique_indices=unique_indices,
        indices_are_sorted=indices_are_sorted, fill_value=fill_value,
    )  # fmt: skip


def _taken(indices: Any, n: int, mode: str | None) -> Any:
    """Integer indices with negative or overflowing ones treated as the mode asks; without one bools are 0 and 1."""
    aval = aval_of(indices)
    if aval.dtype == np.bool_ and mode in (None, "fill"):
        indices = asarray(indices).astype(np.int32)
        aval = aval_of(indices)
    if not dtypes.issubdtype(aval.dtype, np.integer):
        raise errors.ArgumentShapeError(f"take: indices must have an integer type, got dtype {aval.dtype}")
    if mode == "wrap":
        return asarray(remainder(indices, n))
    unsigned = dtypes.issubdtype(aval.dtype, np.unsignedinteger)
    return normalized(indices, n if mode in (None, "fill") and not unsigned else 0, index_dtype((n,)))


@at_once(2, ["mode"])
def take_along_axis(
    arr: Any, indices: Any, axis: int | None = -1, mode: Any = None, fill_value: Any = None, *,
    wrap_negative_indices: bool | None = None,
) -> Any:  # fmt: skip
    """Elements of ``arr`` along ``axis`` at ``indices``, which has a dimension for each of ``arr``'s.

    The other dimensions broadcast together; they become batching dimensions of one gather, so they may be sharded.

    >>> jnp.take_along_axis(jnp.array([[3, 1], [2, 4]]), jnp.array([[1], [0]]), axis=1)
    Array([[1],
           [2]], dtype=int32)
    """
    a, indices = asarray(operand("take_along_axis", arr)), asarray(operand("take_along_axis", indices, 1))
    if not dtypes.issubdtype(indices.dtype, np.integer):
        raise errors.ArgumentTypeError(f"take_along_axis indices must be of integer type, got {indices.dtype}")
    if axis is None:
        if indices.ndim != 1:
            raise ShapeError(f"take_along_axis with axis=None needs a vector of indices, got {indices.shape}")
        a, axis = lax.reshape(a, (a.size,)), 0
    if a.ndim != indices.ndim:
        raise ShapeError(
            f"indices and arr must have the same number of dimensions; {indices.ndim} vs. {a.ndim} (in take_along_axis)"
        )
    axis = canonical_axis(axis, a.ndim, "take_along_axis")
    by_product = mode == "one_hot"
    mode = None if by_product else _mode_name(mode)
    wrap = mode != "promise_in_bounds" if wrap_negative_indices is None else wrap_negative_indices
    n = a.shape[axis]
    out = _broadcast_except(a.shape, indices.shape, axis)
    if n == 0 or 0 in out:
        return zeros_like(a, shape=out)
    unsigned = dtypes.issubdtype(indices.dtype, np.unsignedinteger)
    index = normalized(indices, n if wrap and not unsigned else 0, index_dtype((n,)))
    if by_product:
        return _one_hot_along(a, index, axis, out)
    return _gather_along(a, index, axis, "fill" if mode is None else mode, fill_value)


def _one_hot_along(a: Any, index: Any, axis: int, out: tuple[int, ...]) -> Any:
    """What ``index`` takes along ``axis``, as a product with rows of zeros with a one where they take from."""
    n, rest = a.shape[axis], tuple(i for i in range(a.ndim) if i != axis)
    others = tuple(out[i] for i in rest)
    a = broadcast_to_shape(lax.transpose(a, (*rest, axis)), (*others, n))
    index = broadcast_to_shape(lax.transpose(index, (*rest, axis)), (*others, out[axis]))
    wide = (*index.shape, n)
    columns = broadcast_in_dim_p.bind(index, shape=wide, broadcast_dimensions=tuple(range(index.ndim)))
    hot = el.eq_p.bind(columns, iota_p.bind(dtype=index.dtype, shape=wide, dimension=index.ndim))
    batch = tuple(range(len(rest)))
    numbers = (((len(rest) + 1,), (len(rest),)), (batch, batch))
    product = lax.dot_general(el.convert_element_type(hot, a.dtype), a, numbers, lax.Precision.HIGHEST, a.dtype)
    return lax.transpose(product, (*range(axis), len(rest), *range(axis, len(rest))))


def _broadcast_except(a: tuple[int, ...], b: tuple[int, ...], axis: int) -> tuple[int, ...]:
    rest = (*a[:axis], 1, *a[axis + 1 :])
    try:
        return broadcast_shapes(rest, b)
    except ValueError:
        raise ShapeError(f"take_along_axis: shapes {a} and {b} do not broadcast outside dimension {axis}") from None


def _gather_along(a: Any, index: Any, axis: int, mode: str, fill_value: Any) -> Any:
    """Dimensions of equal size are batched; one of size 1 in the indices is taken whole, in the array dropped."""
    dropped = tuple(i for i in range(a.ndim) if i != axis and index.shape[i] != 1 and a.shape[i] == 1)
    whole = tuple(i for i in range(a.ndim) if i != axis and index.shape[i] == 1)
    kept = [i for i in range(a.ndim) if i not in dropped]
    index_dims = [i for i in range(a.ndim) if i not in whole]
    batched = [i for i in kept if i != axis and i not in whole]
    numbers = lax.GatherDimensionNumbers(
        offset_dims=whole,
        collapsed_slice_dims=(kept.index(axis),),
        start_index_map=(kept.index(axis),),
        operand_batching_dims=tuple(kept.index(i) for i in batched),
        start_indices_batching_dims=tuple(index_dims.index(i) for i in batched),
    )
    sizes = tuple(a.shape[i] if i in whole else 1 for i in kept)
    if dropped:
        a = reshape_p.bind(a, new_sizes=tuple(a.shape[i] for i in kept))
    vectors = reshape_p.bind(index, new_sizes=(*(index.shape[i] for i in index_dims), 1))
    return lax.gather(a, vectors, numbers, sizes, mode=mode, fill_value=fill_value)


def take_static(x: Any, positions: np.ndarray, axis: int) -> Any:
    """Static positions along one dimension."""
    return take(x, positions.astype(np.int32), axis=axis, mode="clip")
