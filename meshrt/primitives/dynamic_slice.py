"""Blocks of an array at positions that are known only when the program runs: dynamic_slice, dynamic_update_slice.

PRNG key arrays are `uint32[..., 2]` buffers: lowering takes the physical dimension whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.shapes import (
    batch_together,
    canonical_axis,
    canonical_shape,
    insert,
    instantiate,
    move_dim,
    repeated,
    reshape,
    zeros,
)
from meshrt.core.dimensions.expression import DimExpr, as_size
from meshrt.core.explicit import Application, Spec, joined, keeps, moved
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive, is_undefined
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.concatenate import concatenate
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.elementwise import add, lt_p
from meshrt.primitives.gather import gather_p
from meshrt.primitives.gather_scatter import (
    GatherDimensionNumbers,
    GatherScatterMode,
    ScatterDimensionNumbers,
    signed_indices,
)
from meshrt.primitives.reshape import expand_dims
from meshrt.primitives.scatter import scatter_p
from meshrt.primitives.selection import select_n
from meshrt.primitives.slice import slice_in_dim
from propagation.asm import i64_array

__all__ = [
    "dynamic_index_in_dim", "dynamic_slice", "dynamic_slice_in_dim", "dynamic_update_index_in_dim",
    "dynamic_update_slice", "dynamic_update_slice_in_dim",
]  # fmt: skip


def _check_starts(name: str, x: ShapedArray, starts: Sequence[ShapedArray], sizes: Sequence[int]) -> None:
    if len(starts) != x.ndim or len(sizes) != x.ndim:
        raise errors.ArgumentShapeError(
            f"{name} of {x.short()} needs one start index and one size per dimension, but got {len(starts)} start "
            f"indices and sizes {tuple(sizes)}"
        )
    if any(s < 0 for s in sizes):
        raise errors.ArgumentShapeError(
            f"slice slice_sizes must be greater than or equal to zero, got slice_sizes of {tuple(sizes)}."
        )
    if any(s > n for s, n in zip(sizes, x.shape)):
        raise errors.ArgumentShapeError(
            f"{name} update shape must be smaller than operand shape, got update shape {tuple(sizes)} for operand "
            f"shape {x.shape}."
            if name == "dynamic_update_slice"
            else f"slice slice_sizes must be less than or equal to operand shape, got slice_sizes {tuple(sizes)} for "
            f"operand shape {x.shape}."
        )
    for s in starts:
        if s.ndim or s.is_key or not dtypes.issubdtype(s.dtype, np.integer) or s.dtype != starts[0].dtype:
            raise errors.ArgumentTypeError(
                f"{name} needs integer scalars of one dtype as start indices but got "
                f"{', '.join(a.short() for a in starts)}"
            )


def _dynamic_slice_infer(x: ShapedArray, *starts: ShapedArray, slice_sizes: tuple[int, ...]) -> ShapedArray:
    _check_starts("dynamic_slice", x, starts, slice_sizes)
    return ShapedArray(slice_sizes, x.dtype, x.weak_type)


def _physical_starts(ctx: LoweringContext, aval: ShapedArray, eqn_starts: Any, refs: Any) -> Any:
    """Start indices of the physical buffer: a PRNG key's own dimensions are taken whole."""
    signed = [signed_indices(ctx, r, v.aval) for r, v in zip(refs, eqn_starts)]
    refs = [r for r, _ in signed]
    if not aval.is_extended:
        return refs
    dtype = signed[0][1].dtype if signed else dtypes.default_int_dtype()
    return [*refs, *(ctx.scalar(0, dtype) for _ in aval.dtype.physical_suffix)]


def _dynamic_slice_lower(ctx: LoweringContext, eqn: Eqn, x: Any, *starts: Any) -> Any:
    out = eqn.outvars[0].aval
    refs = _physical_starts(ctx, out, eqn.invars[1:], starts)
    if not refs:
        return x
    return ctx.op("stablehlo.dynamic_slice", [x, *refs], out, f"slice_sizes = {i64_array(out.physical().shape)}")


def _dynamic_slice_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, slice_sizes: tuple[int, ...]
) -> tuple[Any, Any]:
    x, *starts = primals
    out = dynamic_slice_p.bind(x, *starts, slice_sizes=slice_sizes)
    t = tangents[0]
    return out, None if t is None else dynamic_slice_p.bind(t, *starts, slice_sizes=slice_sizes)


def _dynamic_slice_transpose(ct: Any, x: Any, *starts: Any, slice_sizes: tuple[int, ...]) -> list[Any]:
    base = zeros(x.aval.update(dtype=aval_of(ct).dtype))
    return [dynamic_update_slice_p.bind(base, ct, *starts), *[None] * len(starts)]


def _whole_window(ndim: int) -> GatherDimensionNumbers:
    """Dimension numbers of a gather (or scatter) of one window in place of a dynamic slice, and its index vector."""
    return GatherDimensionNumbers(tuple(range(ndim)), (), tuple(range(ndim)))


def _stack_starts(size: int, starts: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, int | None]:
    """Scalar start indices as one vector, batched along dimension 0 if any of them is."""
    if all(d is None for d in dims):
        return concatenate([reshape(s, (1,)) for s in starts], 0), None
    columns = [reshape(s, (size, 1)) if d is not None else expand_dims(s, (0,)) for s, d in zip(starts, dims)]
    columns = [batch_together(size, [c], [None])[0][0] if d is None else c for c, d in zip(columns, dims)]
    return concatenate(columns, 1), 0


def _dynamic_slice_batch(
    size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]
) -> tuple[Any, Any]:
    x, *starts = args
    if all(d is None for d in dims[1:]):
        d, dtype = dims[0], aval_of(starts[0]).dtype if starts else dtypes.default_int_dtype()
        at = insert(starts, d, np.zeros((), dtype)[()])
        return dynamic_slice_p.bind(x, *at, slice_sizes=insert(params["slice_sizes"], d, size)), d

    indices, index_dim = _stack_starts(size, starts, dims[1:])
    gather_params = {
        "dimension_numbers": _whole_window(len(starts)), "slice_sizes": params["slice_sizes"], "unique_indices": True,
        "indices_are_sorted": True, "mode": GatherScatterMode.CLIP, "fill_value": None,
    }  # fmt: skip
    assert gather_p.batch is not None
    return gather_p.batch(size, [x, indices], [dims[0], index_dim], gather_params)


dynamic_slice_p = Primitive(
    "dynamic_slice", _dynamic_slice_infer, lower=_dynamic_slice_lower, jvp=_dynamic_slice_jvp,
    transpose=_dynamic_slice_transpose, batch=_dynamic_slice_batch, explicit=keeps("dynamic_slice"), sums=moved,
    reads_part=True, finite=True,
)  # fmt: skip


def _dus_infer(x: ShapedArray, update: ShapedArray, *starts: ShapedArray) -> ShapedArray:
    if update.ndim != x.ndim:
        raise errors.ArgumentTypeError(
            "dynamic_update_slice update must have the same rank as operand, got update shape "
            f"{update.shape} for operand shape {x.shape}."
        )
    if update.dtype != x.dtype:
        raise errors.ArgumentTypeError(
            f"lax.dynamic_update_slice requires arguments to have the same dtypes, got {x.dtype}, {update.dtype}. "
            "Convert one of them with astype"
        )
    _check_starts("dynamic_update_slice", x, starts, update.shape)
    return ShapedArray(x.shape, x.dtype, all(a.weak_type for a in (x, update, *starts)))


def _dus_lower(ctx: LoweringContext, eqn: Eqn, x: Any, update: Any, *starts: Any) -> Any:
    out = eqn.outvars[0].aval
    refs = _physical_starts(ctx, out, eqn.invars[2:], starts)
    return ctx.op("stablehlo.dynamic_update_slice", [x, update, *refs], out) if refs else update


def _dus_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    x, update, *starts = primals
    out = dynamic_update_slice_p.bind(x, update, *starts)
    tx, tu = tangents[:2]
    if tx is None and tu is None:
        return out, None
    return out, dynamic_update_slice_p.bind(instantiate(tx, x), instantiate(tu, update), *starts)


def _dus_transpose(ct: Any, x: Any, update: Any, *starts: Any) -> list[Any]:
    kind = update.aval if is_undefined(update) else aval_of(update)
    shape = kind.shape
    ct_x = ct_update = None
    if is_undefined(x):
        ct_x = dynamic_update_slice_p.bind(ct, zeros(kind.update(dtype=aval_of(ct).dtype)), *starts)
    if is_undefined(update):
        ct_update = dynamic_slice_p.bind(ct, *starts, slice_sizes=shape)
    return [ct_x, ct_update, *[None] * len(starts)]


def _dus_batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    x, update, *starts = args
    if all(d is None for d in dims[2:]):
        d = dims[1] if dims[0] is None else dims[0]  # the update is moved: it may be the smaller one
        x, update = (repeated(size, v, d) if at is None else move_dim(v, at, d) for v, at in zip(args[:2], dims[:2]))
        dtype = aval_of(starts[0]).dtype if starts else dtypes.default_int_dtype()
        return dynamic_update_slice_p.bind(x, update, *insert(starts, d, np.zeros((), dtype)[()])), d

    indices, index_dim = _stack_starts(size, starts, dims[2:])
    whole = tuple(range(len(starts)))
    scatter_params = {
        "dimension_numbers": ScatterDimensionNumbers(whole, (), whole), "indices_are_sorted": True,
        "unique_indices": True, "mode": GatherScatterMode.CLIP,
    }  # fmt: skip
    assert scatter_p.batch is not None
    return scatter_p.batch(size, [x, indices, update], [dims[0], index_dim, dims[1]], scatter_params)


def _dus_explicit(app: Application) -> list[Spec]:
    x, update = app.avals[:2]
    if app.specs[0] != app.specs[1]:
        app.refuse(
            "dynamic_update_slice operand sharding must be equal to update sharding, got operand sharding "
            f"{x.short()} and update sharding {update.short()}."
        )
    return [app.specs[0]]


dynamic_update_slice_p = Primitive(
    "dynamic_update_slice",
    _dus_infer,
    lower=_dus_lower,
    jvp=_dus_jvp,
    transpose=_dus_transpose,
    batch=_dus_batch,
    space=lambda avals: avals[0].memory_space,
    explicit=_dus_explicit,
    sums=joined,
    finite=True,
)


def _normalized_starts(
    name: str, operand: ShapedArray, start_indices: Any, allow_negative: bool | Sequence[bool]
) -> list[Any]:
    """Scalars of one integer dtype, with negative ones counted from the end where that is allowed."""
    if not isinstance(start_indices, list | tuple):
        vector = aval_of(start_indices)
        if vector.ndim != 1:
            raise errors.ArgumentShapeError(f"Slice indices must be a 1D sequence, got {vector.shape}")
        start_indices = [reshape(slice_in_dim(start_indices, i, i + 1), ()) for i in range(vector.shape[0])]
    if len(start_indices) != operand.ndim:
        raise errors.ArgumentShapeError(
            f"Length of slice indices must match number of operand dimensions ({len(start_indices)} vs {operand.shape})"
        )
    kinds = [aval_of(i).dtype for i in start_indices]
    if any(k != kinds[0] for k in kinds) or not all(dtypes.issubdtype(k, np.integer) for k in kinds):
        raise errors.ArgumentTypeError(
            f"index arguments to {name} must be integers of the same type, got: {', '.join(map(str, kinds))}; convert "
            "them with astype"
        )
    allow = [allow_negative] * operand.ndim if isinstance(allow_negative, bool) else list(allow_negative)
    result = []
    for i, n, negative in zip(start_indices, operand.shape, allow):
        if isinstance(i, DimExpr):
            result.append(convert_element_type(i, kinds[0]))
            continue
        if isinstance(i, int | np.integer):
            result.append(int(i) + n if i < 0 and negative else _nonnegative(int(i), n))
            continue
        aval = aval_of(i)
        if negative and not dtypes.issubdtype(aval.dtype, np.unsignedinteger):
            sized = isinstance(n, DimExpr)
            bound = convert_element_type(n, aval.dtype) if sized else np.asarray(n).astype(aval.dtype)[()]
            i = select_n(lt_p.bind(i, np.zeros((), aval.dtype)[()]), i, add(i, bound))
        result.append(i)
    return [np.asarray(i, kinds[0])[()] if type(i) is int else i for i in result]


def _nonnegative(index: int, size: int) -> int:
    if index < 0:
        raise errors.AxisError(
            f"index {index} is out of bounds for a dimension of size {size}: allow_negative_indices=False was given"
        )
    return index


def dynamic_slice(
    operand: Any,
    start_indices: Any,
    slice_sizes: Sequence[int],
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Any:
    """The block of `slice_sizes` at `start_indices` (integer scalars, may be traced).

    A block that would reach over the end is moved back inside. Negative indices count from the end where
    `allow_negative_indices`.

    Args:
      operand: an array.
      start_indices: where each dimension begins.
      slice_sizes: the sizes of the slice, known when traced.
      allow_negative_indices: negative starts count from the end.

    >>> lax.dynamic_slice(jnp.arange(6), (2,), (3,))
    Array([2, 3, 4], dtype=int32)
    >>> lax.dynamic_slice(jnp.arange(6), (5,), (3,))
    Array([3, 4, 5], dtype=int32)
    """
    starts = _normalized_starts("dynamic_slice", aval_of(operand), start_indices, allow_negative_indices)
    return dynamic_slice_p.bind(operand, *starts, slice_sizes=canonical_shape(slice_sizes, "slice size"))


def dynamic_update_slice(
    operand: Any, update: Any, start_indices: Any, *, allow_negative_indices: bool | Sequence[bool] = True
) -> Any:
    """`operand` with the block at `start_indices` replaced by `update`; positions as in `dynamic_slice`.

    Args:
      operand: an array.
      update: what is written.
      start_indices: where each dimension begins.
      allow_negative_indices: negative starts count from the end.

    >>> lax.dynamic_update_slice(jnp.zeros(4), jnp.ones(2), (1,))
    Array([0., 1., 1., 0.], dtype=float32)
    """
    starts = _normalized_starts("dynamic_update_slice", aval_of(operand), start_indices, allow_negative_indices)
    return dynamic_update_slice_p.bind(operand, update, *starts)


def _single_start(operand: Any, start: Any, axis: int, allow: bool) -> tuple[list[Any], list[bool], int]:
    ndim = aval_of(operand).ndim
    axis = canonical_axis(axis, ndim)
    kind = aval_of(start).dtype
    first = np.zeros((), kind)[()] if dtypes.issubdtype(kind, np.integer) else 0
    starts: list[Any] = [first] * ndim
    starts[axis] = start
    return starts, [allow if i == axis else False for i in range(ndim)], axis


def dynamic_slice_in_dim(
    operand: Any, start_index: Any, slice_size: int, axis: int = 0, *, allow_negative_indices: bool = True
) -> Any:
    """`dynamic_slice` along one axis.

    Args:
      operand: an array.
      start_index: where it begins; may be traced.
      slice_size: its size, known when traced.
      axis: a dimension number.
      allow_negative_indices: negative starts count from the end.

    >>> lax.dynamic_slice_in_dim(jnp.arange(6), 2, 3)
    Array([2, 3, 4], dtype=int32)
    """
    starts, allow, axis = _single_start(operand, start_index, axis, allow_negative_indices)
    sizes = list(aval_of(operand).shape)
    sizes[axis] = as_size(slice_size)
    return dynamic_slice(operand, starts, sizes, allow_negative_indices=allow)


def dynamic_index_in_dim(
    operand: Any, index: Any, axis: int = 0, keepdims: bool = True, *, allow_negative_indices: bool = True
) -> Any:
    """The position `index` along `axis`, which stays with size 1 unless `keepdims` is False.

    Args:
      operand: an array.
      index: the position; may be traced.
      axis: a dimension number.
      keepdims: keep the dimension, with size 1.
      allow_negative_indices: negative starts count from the end.

    >>> lax.dynamic_index_in_dim(jnp.array([10, 20, 30]), 1)
    Array([20], dtype=int32)
    """
    shape = aval_of(operand).shape
    axis = canonical_axis(axis, len(shape))
    out = dynamic_slice_in_dim(operand, index, 1, axis, allow_negative_indices=allow_negative_indices)
    return out if keepdims else reshape(out, shape[:axis] + shape[axis + 1 :])


def dynamic_update_slice_in_dim(
    operand: Any, update: Any, start_index: Any, axis: int, *, allow_negative_indices: bool = True
) -> Any:
    """`dynamic_update_slice` along one axis.

    Args:
      operand: an array.
      update: what is written.
      start_index: where it begins; may be traced.
      axis: a dimension number.
      allow_negative_indices: negative starts count from the end.

    >>> lax.dynamic_update_slice_in_dim(jnp.zeros(4), jnp.ones(2), 1, 0)
    Array([0., 1., 1., 0.], dtype=float32)
    """
    starts, allow, _ = _single_start(operand, start_index, axis, allow_negative_indices)
    return dynamic_update_slice(operand, update, starts, allow_negative_indices=allow)


def dynamic_update_index_in_dim(
    operand: Any, update: Any, index: Any, axis: int, *, allow_negative_indices: bool = True
) -> Any:
    """`operand` with position `index` along `axis` replaced by `update`, which may lack that axis.

    Args:
      operand: an array.
      update: what is written.
      index: the position; may be traced.
      axis: a dimension number.
      allow_negative_indices: negative starts count from the end.

    >>> lax.dynamic_update_index_in_dim(jnp.zeros(3), 9.0, 1, 0)
    Array([0., 9., 0.], dtype=float32)
    """
    ndim = aval_of(operand).ndim
    axis = canonical_axis(axis, ndim)
    if aval_of(update).ndim != ndim:
        if aval_of(update).ndim + 1 != ndim:
            raise errors.ArgumentTypeError(
                f"dynamic_update_index_in_dim of {aval_of(operand).short()} got an update "
                f"{aval_of(update).short()}: it needs the same rank, or one less"
            )
        update = expand_dims(update, (axis,))
    return dynamic_update_slice_in_dim(operand, update, index, axis, allow_negative_indices=allow_negative_indices)
