"""gather, windows of an array at positions held in an index array; and scatter_add, its transpose.

Dimension numbers and modes are in `gather_scatter`, the other scatters in `scatter`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.reducer import lower_reduce
from meshrt.core.basic.shapes import broadcast_in_dim, canonical_shape, instantiate, move_dim, zeros
from meshrt.core.completion import OUT_SHARDING
from meshrt.core.dimensions.expression import DimExpr, min_dim
from meshrt.core.explicit import Application
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive, also, is_undefined
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.dimension_numbers import check_gather
from meshrt.primitives.elementwise import neg_p
from meshrt.primitives.gather_scatter import (
    GatherDimensionNumbers,
    GatherScatterMode,
    ScatterDimensionNumbers,
    index_bounds,
    scatter_primitive,
    shifted,
    signed_indices,
    window_sizes,
)
from propagation.asm import i64_array

__all__ = ["gather"]


def _infer(
    operand: ShapedArray,
    indices: ShapedArray,
    *,
    dimension_numbers: Any,
    slice_sizes: tuple[int, ...],
    unique_indices: bool,
    indices_are_sorted: bool,
    mode: Any,
    fill_value: Any,
) -> ShapedArray:
    d = dimension_numbers
    rank = len(d.offset_dims) + indices.ndim - 1
    check_gather(
        operand, indices, d.offset_dims, d.collapsed_slice_dims, d.start_index_map, d.operand_batching_dims,
        d.start_indices_batching_dims, slice_sizes,
    )  # fmt: skip
    hidden = {*d.collapsed_slice_dims, *d.operand_batching_dims}
    window = iter([s for i, s in enumerate(slice_sizes) if i not in hidden])
    batch = iter(indices.shape[:-1])
    shape = tuple([next(window) if i in d.offset_dims else next(batch) for i in range(rank)])
    return ShapedArray(shape, operand.dtype, operand.weak_type)


# ----------------------------------------------------------------------------------------------------------
# Lowering


def _lower(ctx: LoweringContext, eqn: Eqn, operand: Any, indices: Any) -> Any:
    p, out = eqn.params, eqn.outvars[0].aval
    if p["mode"] is GatherScatterMode.ONE_HOT:
        raise errors.UnsupportedError(
            "a gather of mode one_hot cannot be compiled; use jnp.take_along_axis(..., mode='one_hot'), which "
            "multiplies by a one-hot matrix, or the mode 'fill', 'clip' or 'promise_in_bounds'"
        )
    if any(s > n for s, n in zip(p["slice_sizes"], eqn.invars[0].aval.shape)):
        return ctx.full(0, out.physical())  # there are no indices, so nothing is read; the compiler would object
    indices, index_aval = signed_indices(ctx, indices, eqn.invars[1].aval)
    gathered = _lower_gather(ctx, p, operand, indices, index_aval, out)
    if p["mode"] is not GatherScatterMode.FILL_OR_DROP:
        return gathered
    mask = _lower_in_bounds(ctx, p, eqn.invars[0].aval, index_aval, indices)
    physical = out.physical()
    offset = p["dimension_numbers"].offset_dims
    mask_aval = ShapedArray(index_aval.shape[:-1], np.dtype(bool))
    spread_aval = ShapedArray(physical.shape, np.dtype(bool))
    mask = ctx.broadcast(mask, mask_aval, spread_aval, [i for i in range(out.ndim) if i not in offset])
    return ctx.op("stablehlo.select", [mask, gathered, ctx.full(_fill_as(physical.dtype, p), physical)], out)


def _fill_as(dtype: np.dtype, p: Any) -> Any:
    """The value for what lies out of bounds, in integers as NumPy casts it: cut, or wrapped around."""
    if not dtypes.issubdtype(dtype, np.integer):
        return p["fill_value"]
    with np.errstate(invalid="ignore"):
        return int(np.asarray(p["fill_value"]).astype(dtype))


def _lower_gather(ctx: LoweringContext, p: Any, operand: Any, indices: Any, indices_aval: Any, out: Any) -> Any:
    d, sizes, offset = p["dimension_numbers"], p["slice_sizes"], p["dimension_numbers"].offset_dims
    if out.is_extended:
        sizes = (*sizes, *out.dtype.physical_suffix)
        offset = (*offset, *range(out.ndim, out.physical().ndim))
    numbers = (
        f"#stablehlo.gather<offset_dims = {list(offset)}, collapsed_slice_dims = {list(d.collapsed_slice_dims)}, "
        f"operand_batching_dims = {list(d.operand_batching_dims)}, "
        f"start_indices_batching_dims = {list(d.start_indices_batching_dims)}, "
        f"start_index_map = {list(d.start_index_map)}, index_vector_dim = {indices_aval.ndim - 1}>"
    )
    attrs = (
        f"dimension_numbers = {numbers}, indices_are_sorted = {str(p['indices_are_sorted']).lower()}, "
        f"slice_sizes = {i64_array(sizes)}"
    )
    return ctx.op("stablehlo.gather", [operand, indices], out, attrs)


def _lower_in_bounds(ctx: LoweringContext, p: Any, operand: Any, aval: ShapedArray, indices: Any) -> Any:
    """A mask over the index vectors: whether the whole window lies inside."""
    dtype = aval.dtype
    upper = index_bounds(operand.shape, p["slice_sizes"], p["dimension_numbers"].start_index_map, dtype)
    signed = "UNSIGNED" if dtypes.issubdtype(dtype, np.unsignedinteger) else "SIGNED"
    flags = ShapedArray(aval.shape, np.dtype(bool))
    out = ShapedArray(aval.shape[:-1], np.dtype(bool))

    def compare(direction: str, bound: Any) -> Any:
        attrs = (
            f"comparison_direction = #stablehlo<comparison_direction {direction}>, "
            f"compare_type = #stablehlo<comparison_type {signed}>"
        )
        return ctx.op("stablehlo.compare", [indices, bound], flags, attrs)

    if not upper:
        return ctx.full(True, out)
    if len(set(upper)) == 1 and not isinstance(upper[0], DimExpr):
        bound = ctx.full(upper[0], aval)
    else:
        bound = ctx.broadcast(ctx.sizes(upper, dtype), ShapedArray((len(upper),), dtype), aval, [aval.ndim - 1])
    inside = compare("LE", bound)
    if signed == "SIGNED":
        inside = ctx.op("stablehlo.and", [compare("GE", ctx.full(0, aval)), inside], flags)
    if aval.shape[-1] == 1:
        return ctx.op("stablehlo.reshape", [inside], out)
    return lower_reduce(ctx, "stablehlo.and", inside, flags, out, (aval.ndim - 1,), True)


# ----------------------------------------------------------------------------------------------------------
# Derivatives and batching


def _tangent_params(params: dict[str, Any]) -> Any:
    fill = 0 if params["mode"] is GatherScatterMode.FILL_OR_DROP else None
    return {**params, "fill_value": fill}


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    operand, indices = primals
    out = gather_p.bind(operand, indices, **params)
    t = tangents[0]
    return out, None if t is None else gather_p.bind(t, indices, **_tangent_params(params))


def _transpose(
    ct: Any,
    operand: Any,
    indices: Any,
    *,
    dimension_numbers: Any,
    unique_indices: bool,
    indices_are_sorted: bool,
    mode: Any,
    **_: Any,
) -> list[Any]:
    d = dimension_numbers
    numbers = ScatterDimensionNumbers(
        d.offset_dims,
        d.collapsed_slice_dims,
        d.start_index_map,
        d.operand_batching_dims,
        d.start_indices_batching_dims,
    )
    base = zeros(operand.aval.update(dtype=aval_of(ct).dtype).strong())
    out = scatter_add_p.bind(
        base, indices, ct, dimension_numbers=numbers, indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices, mode=mode,
    )  # fmt: skip
    return [out, None]


def _batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    (operand, indices), n, sizes = args, params["dimension_numbers"], params["slice_sizes"]
    if dims[0] is not None:
        operand = move_dim(operand, dims[0], 0)
        n = n._replace(
            collapsed_slice_dims=shifted(n.collapsed_slice_dims), start_index_map=shifted(n.start_index_map),
            operand_batching_dims=shifted(n.operand_batching_dims),
        )  # fmt: skip
    if dims[1] is not None:
        indices = move_dim(indices, dims[1], 0)
        n = n._replace(start_indices_batching_dims=shifted(n.start_indices_batching_dims))
    offset = shifted(n.offset_dims)
    if dims[1] is None:
        n, sizes = n._replace(offset_dims=(0, *offset)), (size, *sizes)
    elif dims[0] is None:
        n = n._replace(offset_dims=offset)
    else:
        sizes = (min_dim(size, 1), *sizes)
        n = n._replace(
            offset_dims=offset, operand_batching_dims=(0, *n.operand_batching_dims),
            start_indices_batching_dims=(0, *n.start_indices_batching_dims),
        )  # fmt: skip
    return gather_p.bind(operand, indices, **{**params, "dimension_numbers": n, "slice_sizes": sizes}), 0


def _gather_explicit(app: Application) -> None:
    """Dimensions that are indexed into must not be split, nor must those of the indices that are not batched."""
    if OUT_SHARDING in app.params:
        return
    d, sizes = app.params["dimension_numbers"], app.params["slice_sizes"]
    operand, indices = app.specs
    clear = all(operand[i] is None or sizes[i] == app.avals[0].shape[i] for i in d.start_index_map)
    clear = clear and all(
        None in (operand[i], indices[j]) or operand[i] == indices[j]
        for i, j in zip(d.operand_batching_dims, d.start_indices_batching_dims)
    )
    clear = clear and all(e is None for i, e in enumerate(indices) if i not in d.start_indices_batching_dims)
    if not clear:
        app.refuse(
            "Use `.at[...].get(out_sharding=)` to provide output PartitionSpec for the gather indexing as out sharding "
            "could not be resolved unambiguously (or would require collectives on inputs). Got "
            f"operand={app.avals[0].short()}, indices={app.avals[1].short()}.",
            "give `x.at[...].get(out_sharding=P(...))`",
        )


gather_p = Primitive(
    "gather", _infer, shown=also("fill_value"), lower=_lower, jvp=_jvp, transpose=_transpose, batch=_batch,
    explicit=_gather_explicit, reads_part=True, finite=True,
)  # fmt: skip


# ----------------------------------------------------------------------------------------------------------
# scatter_add


def read_back(source: Any, indices: Any, updates: ShapedArray, params: dict[str, Any]) -> Any:
    """Gathers from `source` the windows that a scatter with `params` writes to (zeros for those that it drops)."""
    d, mode = params["dimension_numbers"], params["mode"]
    return gather_p.bind(
        source, indices, dimension_numbers=d.inverse(),
        slice_sizes=window_sizes(aval_of(source).shape, updates.shape, d),
        unique_indices=params["unique_indices"], indices_are_sorted=params["indices_are_sorted"], mode=mode,
        fill_value=0 if mode is GatherScatterMode.FILL_OR_DROP else None,
    )  # fmt: skip


def linear_scatter_jvp(get: Callable[[], Primitive]) -> Callable[..., Any]:
    """scatter_add and scatter_sub are linear in operand and updates together."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        operand, indices, updates = primals
        out = get().bind(operand, indices, updates, **params)
        t_operand, _, t_updates = tangents
        if t_updates is None:
            return out, t_operand
        return out, get().bind(instantiate(t_operand, operand), indices, t_updates, **params)

    return jvp


def linear_scatter_transpose(sign: int) -> Callable[..., Any]:
    """Cotangents of scatter_add (`sign` 1) and scatter_sub (-1): the updates get what is read where they went."""

    def transpose(ct: Any, operand: Any, indices: Any, updates: Any, **params: Any) -> list[Any]:
        ct_updates = None
        if is_undefined(updates):
            ct_updates = read_back(ct, indices, updates.aval, params)
            ct_updates = neg_p.bind(ct_updates) if sign < 0 else ct_updates
        return [ct if is_undefined(operand) else None, None, ct_updates]

    return transpose


scatter_add_p: Primitive = scatter_primitive(
    "scatter-add",
    "stablehlo.add",
    linear_scatter_jvp(lambda: scatter_add_p),
    linear_scatter_transpose(1),
    finite=True,
    kinds="iufc",
)


# ----------------------------------------------------------------------------------------------------------
# Public functions


def _default_fill(dtype: Any) -> Any:
    """NaN for inexact types, the most negative value for signed integers, the largest for unsigned ones and keys, True
    for bool.

    Raises:
      ArgumentValueError: other extended dtypes.
    """
    if isinstance(dtype, dtypes.KeyType):
        return np.iinfo(np.uint32).max
    if isinstance(dtype, dtypes.ExtendedDType):
        raise errors.ArgumentValueError(
            f"Unsupported dtype for gather fill_value {dtype}: give a fill_value, or another mode, such as 'clip'"
        )
    if dtypes.issubdtype(dtype, np.inexact):
        return np.nan
    if dtype == np.bool_:
        return True
    info = dtypes.iinfo(dtype)
    return int(info.max if dtypes.issubdtype(dtype, np.unsignedinteger) else info.min)


def gather(
    operand: Any,
    start_indices: Any,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: str | GatherScatterMode | None = None,
    fill_value: Any = None,
) -> Any:
    """Windows of `operand` of shape `slice_sizes` at the positions in `start_indices` (see GatherDimensionNumbers).

    `mode` says what happens out of bounds (None: PROMISE_IN_BOUNDS). `fill_value` is used by FILL_OR_DROP; its default
    is NaN for inexact types, the smallest value of signed integers, the largest of unsigned ones, True for bool.
    `unique_indices` and `indices_are_sorted` are promises that help the compiler.

    Args:
      operand: an array.
      start_indices: where each window begins, along the last dimension.
      dimension_numbers: `GatherDimensionNumbers`.
      slice_sizes: the sizes of the slice, known when traced.
      unique_indices: the windows are known not to overlap.
      indices_are_sorted: the indices are known to ascend.
      mode: what happens out of bounds: "fill", "clip" or "promise_in_bounds".
      fill_value: what "fill" gives.

    >>> lax.gather(jnp.array([10, 20, 30]), jnp.array([[2], [0]]), lax.GatherDimensionNumbers((), (0,), (0,)), (1,))
    Array([30, 10], dtype=int32)
    """
    mode = GatherScatterMode.PROMISE_IN_BOUNDS if mode is None else GatherScatterMode.from_any(mode)
    if mode is not GatherScatterMode.FILL_OR_DROP:
        fill_value = None
    elif fill_value is None:
        fill_value = _default_fill(aval_of(operand).dtype)
    elif aval_of(fill_value).ndim or not isinstance(fill_value, bool | int | float | complex | np.generic | np.ndarray):
        raise errors.ArgumentTypeError(f"fill_value must be a scalar known while tracing but got {fill_value!r}")
    else:
        fill_value = fill_value.item() if isinstance(fill_value, np.generic | np.ndarray) else fill_value
    numbers = GatherDimensionNumbers(*(tuple(map(int, d)) for d in dimension_numbers))
    return gather_p.bind(
        operand, start_indices, dimension_numbers=numbers, slice_sizes=canonical_shape(slice_sizes, "slice size"),
        unique_indices=bool(unique_indices), indices_are_sorted=bool(indices_are_sorted), mode=mode,
        fill_value=fill_value,
    )  # fmt: skip


def take_along(operand: Any, positions: Any, axis: int) -> Any:
    """`operand[..., positions, ...]` along `axis`, element by element; other dimensions agree in size.

    `positions` (integers, in bounds) has the operand's rank. All other dimensions are batching dimensions.
    """
    shape, out = aval_of(operand).shape, aval_of(positions).shape
    others = tuple([i for i in range(len(shape)) if i != axis])
    numbers = GatherDimensionNumbers((), (axis,), (axis,), others, others)
    indices = broadcast_in_dim(positions, (*out, 1), range(len(out)))
    sizes: list[Any] = [min_dim(n, 1) for n in shape]
    return gather(operand, indices, numbers, sizes)
