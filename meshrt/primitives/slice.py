"""Static blocks of an array: slice, and pad, which transpose into each other.

PRNG key arrays are `uint32[..., 2]` buffers: lowering takes the physical dimension whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.basic.shapes import (
    bring_to_front,
    broadcast_in_dim,
    canonical_axis,
    insert,
    instantiate,
    linear_jvp,
    reduce_sum_p,
    reshape,
)
from meshrt.core.dimensions.arithmetic import ceil_div, is_surely
from meshrt.core.dimensions.expression import as_size, non_negative_dim
from meshrt.core.explicit import keeps, moved
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive, also, is_undefined
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.elementwise import sub_p
from meshrt.primitives.selection import select_n
from propagation.asm import i64_array

__all__ = ["index_in_dim", "pad", "slice", "slice_in_dim"]

# ----------------------------------------------------------------------------------------------------------
# slice


def _slice_infer(
    x: ShapedArray, *, start_indices: tuple[int, ...], limit_indices: tuple[int, ...], strides: tuple[int, ...] | None
) -> ShapedArray:
    steps = strides or (1,) * x.ndim
    if problem := _slice_problem(x, start_indices, limit_indices, steps):
        raise errors.ArgumentTypeError(f"slice {problem}.")
    shape = tuple([ceil_div(b - a, s) for a, b, s in zip(start_indices, limit_indices, steps)])
    return ShapedArray(shape, x.dtype, x.weak_type)


def _slice_problem(x: ShapedArray, start: Sequence[int], limit: Sequence[int], steps: Sequence[int]) -> str | None:
    """What is wrong with the bounds of a slice, if something is."""
    ends = f"got start_indices {tuple(start)} and limit_indices {tuple(limit)}"
    whole, of = "must have length equal to the number of dimensions of the operand, got", f"for operand shape {x.shape}"
    if len(start) != x.ndim:
        return f"start_indices {whole} indices {tuple(start)} {of}"
    if len(limit) != x.ndim:
        return f"limit_indices must have the same length as start_indices, {ends}"
    if len(steps) != x.ndim:
        return f"strides {whole} strides {tuple(steps)} {of}"
    if any(a < 0 for a in start):
        return f"start_indices must have every element be nonnegative, got {tuple(start)}"
    if any(b > n for b, n in zip(limit, x.shape)):
        return f"limit_indices must be less than or equal to operand shape, got limit_indices {tuple(limit)} {of}"
    if any(b < a for a, b in zip(start, limit)):
        return f"limit_indices must be greater than or equal to start_indices, {ends}"
    if any(s < 1 for s in steps):
        return f"strides must have every element be nonnegative, got {tuple(steps)}, and none may be 0"
    return None


def _slice_lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    out, p = eqn.outvars[0].aval, eqn.params
    start, limit = p["start_indices"], p["limit_indices"]
    strides = p["strides"] or (1,) * out.ndim
    if out.is_extended:
        whole = out.dtype.physical_suffix
        start, limit, strides = (*start, *(0 for _ in whole)), (*limit, *whole), (*strides, *(1 for _ in whole))
    attrs = f"start_indices = {i64_array(start)}, limit_indices = {i64_array(limit)}, strides = {i64_array(strides)}"
    return ctx.op("stablehlo.slice", [x], out, attrs)


def _slice_transpose(
    ct: Any, x: Any, *, start_indices: tuple[int, ...], limit_indices: tuple[int, ...], strides: tuple[int, ...] | None
) -> list[Any]:
    ct_shape, config = aval_of(ct).shape, []
    for i, (start, limit, n) in enumerate(zip(start_indices, limit_indices, x.aval.shape)):
        stride = strides[i] if strides else 1
        if stride != 1:
            limit = start + non_negative_dim(1 + (ct_shape[i] - 1) * stride)
        config.append((start, n - limit, stride - 1))
    return [pad_p.bind(ct, _zero(ct), padding_config=tuple(config))]


def _zero(x: Any) -> Any:
    return np.zeros((), aval_of(x).dtype)[()]


def _slice_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    (x,), (d,) = args, dims
    strides = params["strides"]
    return slice_p.bind(
        x,
        start_indices=insert(params["start_indices"], d, 0),
        limit_indices=insert(params["limit_indices"], d, size),
        strides=None if strides is None else insert(strides, d, 1),
    ), d


slice_p: Primitive = Primitive(
    "slice", _slice_infer, shown=also("strides"), lower=_slice_lower, jvp=linear_jvp(lambda: slice_p),
    transpose=_slice_transpose, batch=_slice_batch, explicit=keeps("slicing"), sums=moved, cheap=True, finite=True,
)  # fmt: skip


def slice(
    operand: Any,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Any:
    """`operand[start:limit:stride]` in every dimension, all static.

    Args:
      operand: an array.
      start_indices: where each dimension begins.
      limit_indices: where each dimension ends.
      strides: the step along each dimension.

    >>> lax.slice(jnp.arange(6), (1,), (5,), (2,))
    Array([1, 3], dtype=int32)
    """
    if strides is not None and all(s == 1 for s in strides) and len(strides) == aval_of(operand).ndim:
        strides = None
    return slice_p.bind(
        operand,
        start_indices=tuple(map(as_size, start_indices)),
        limit_indices=tuple(map(as_size, limit_indices)),
        strides=None if strides is None else tuple(map(as_size, strides)),
    )


def slice_in_dim(operand: Any, start_index: int | None, limit_index: int | None, stride: int = 1, axis: int = 0) -> Any:
    """`operand[start_index:limit_index:stride]` along `axis`; None stands for the end, negative counts from it.

    Args:
      operand: an array.
      start_index: where it begins; may be traced.
      limit_index: where it ends.
      stride: the step.
      axis: a dimension number.

    >>> lax.slice_in_dim(jnp.arange(6), 2, 5)
    Array([2, 3, 4], dtype=int32)
    """
    shape = aval_of(operand).shape
    axis = canonical_axis(axis, len(shape))
    n = shape[axis]
    start = 0 if start_index is None else as_size(start_index)
    limit = n if limit_index is None else as_size(limit_index)
    starts, limits, strides = [0] * len(shape), list(shape), [1] * len(shape)
    starts[axis] = start + n if start < 0 else start
    limits[axis] = limit + n if limit < 0 else limit
    strides[axis] = as_size(stride)
    return slice(operand, starts, limits, strides)


def index_in_dim(operand: Any, index: int, axis: int = 0, keepdims: bool = True) -> Any:
    """The static position `index` along `axis`, which stays with size 1 unless `keepdims` is False.

    Args:
      operand: an array.
      index: the position; may be traced.
      axis: a dimension number.
      keepdims: keep the dimension, with size 1.

    >>> lax.index_in_dim(jnp.array([[1, 2], [3, 4]]), 1, keepdims=False)
    Array([3, 4], dtype=int32)
    """
    shape = aval_of(operand).shape
    axis = canonical_axis(axis, len(shape))
    n, given = shape[axis], as_size(index)
    at = given + n if given < 0 else given
    if not 0 <= at < n:
        raise errors.AxisError(
            f"index {given} is out of bounds for axis {axis} with size {n}; indices from {-n} to {n - 1} exist"
        )
    out = slice_in_dim(operand, at, at + 1, 1, axis)
    return out if keepdims else reshape(out, shape[:axis] + shape[axis + 1 :])


# ----------------------------------------------------------------------------------------------------------
# pad


def _pad_infer(x: ShapedArray, value: ShapedArray, *, padding_config: Any) -> ShapedArray:
    if value.ndim:
        raise errors.ArgumentShapeError(
            f"pad: padding_value must be a scalar; got np.shape(padding_value)={value.shape}"
        )
    if x.is_extended:
        raise errors.ArgumentTypeError(f"pad does not accept dtype {x.dtype}; join arrays of it with concatenate")
    if value.dtype != x.dtype:
        raise errors.ArgumentTypeError(
            f"pad operand and padding_value must be same dtype: got {x.dtype} and {value.dtype}."
        )
    if len(padding_config) != x.ndim or any(len(c) != 3 for c in padding_config):
        raise errors.ArgumentShapeError(
            f"length of padding_config must equal the number of axes of operand, got padding_config {padding_config} "
            f"for operand shape {x.shape}; each axis has (low, high, interior)"
        )
    if any(inner < 0 for _, _, inner in padding_config):
        raise errors.ArgumentShapeError(
            f"interior padding in padding_config must be nonnegative, got padding_config {padding_config}"
        )
    sizes = zip(x.shape, padding_config)
    shape = tuple([n + non_negative_dim(n - 1) * inner + low + high for n, (low, high, inner) in sizes])
    if any(is_surely(lambda n=n: n < 0) for n in shape):
        raise errors.ArgumentShapeError(
            f"Dimension size after padding is not at least 0, got result shape {shape}, for padding_config "
            f"{padding_config} and operand shape {x.shape}"
        )
    return ShapedArray(shape, x.dtype, x.weak_type and value.weak_type)


def _pad_lower(ctx: LoweringContext, eqn: Eqn, x: Any, value: Any) -> Any:
    low, high, inner = zip(*eqn.params["padding_config"]) if eqn.params["padding_config"] else ((), (), ())
    attrs = (
        f"edge_padding_low = {i64_array(low)}, edge_padding_high = {i64_array(high)}, "
        f"interior_padding = {i64_array(inner)}"
    )
    return ctx.op("stablehlo.pad", [x, value], eqn.outvars[0].aval, attrs)


def _pad_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, padding_config: Any) -> tuple[Any, Any]:
    out = pad_p.bind(*primals, padding_config=padding_config)
    if tangents[0] is None and tangents[1] is None:
        return out, None
    parts = [instantiate(t, p) for t, p in zip(tangents, primals)]
    return out, pad_p.bind(*parts, padding_config=padding_config)


def _unpad(ct: Any, padding_config: Sequence[tuple[int, int, int]]) -> Any:
    """The elements of a padded array that come from the operand (zero where they were cut away)."""
    zero = np.zeros((), aval_of(ct).dtype)[()]
    cut = pad_p.bind(ct, zero, padding_config=tuple((-low, -high, 0) for low, high, _ in padding_config))
    strides = [inner + 1 for _, _, inner in padding_config]
    return cut if all(s == 1 for s in strides) else slice(cut, (0,) * len(strides), aval_of(cut).shape, strides)


def _pad_transpose(ct: Any, x: Any, value: Any, *, padding_config: Any) -> list[Any]:
    mine = _unpad(ct, padding_config)
    ct_value = None
    if is_undefined(value):
        total = reduce_sum_p.bind(ct, axes=tuple(range(aval_of(ct).ndim)))
        ct_value = sub_p.bind(total, reduce_sum_p.bind(mine, axes=tuple(range(aval_of(mine).ndim))))
    return [mine if is_undefined(x) else None, ct_value]


def _pad_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    (x, value), config = args, params["padding_config"]
    if dims[1] is None:
        return pad_p.bind(x, value, padding_config=insert(config, dims[0], (0, 0, 0))), dims[0]
    # A padding value for each element of the batch: pad by anything, then choose by a padded mask.
    x = bring_to_front(size, x, dims[0])
    config = ((0, 0, 0), *config)
    padded = pad_p.bind(x, np.zeros((), aval_of(x).dtype)[()], padding_config=config)
    inside = broadcast_in_dim(np.True_, aval_of(x).shape, ())
    mask = pad_p.bind(inside, np.False_, padding_config=config)
    return select_n(mask, broadcast_in_dim(value, aval_of(padded).shape, (0,)), padded), 0


pad_p = Primitive(
    "pad",
    _pad_infer,
    lower=_pad_lower,
    jvp=_pad_jvp,
    explicit=keeps("padding"),
    sums=moved,
    transpose=_pad_transpose,
    batch=_pad_batch,
    finite=True,
)


def pad(operand: Any, padding_value: Any, padding_config: Sequence[tuple[int, int, int]]) -> Any:
    """`operand` with `low`, `high` and `interior` (between elements) copies of a scalar added in each dimension.

    Negative `low` and `high` remove elements instead. Nothing is promoted: the scalar has the operand's dtype.

    Args:
      operand: an array.
      padding_value: a scalar.
      padding_config: (low, high, between elements) for each dimension; negative numbers cut off.

    >>> lax.pad(jnp.array([1, 2]), 0, [(1, 0, 1)])
    Array([0, 1, 0, 2], dtype=int32)
    """
    config = tuple(tuple(map(as_size, c)) for c in padding_config)
    return pad_p.bind(operand, padding_value, padding_config=config)
