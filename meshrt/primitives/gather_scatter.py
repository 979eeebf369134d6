"""What gather and scatter share: dimension numbers, modes, bounds; and the builder of scatter primitives.

The index vector is always the last dimension of the indices. Dimensions in `operand_batching_dims` pair with those in
`start_indices_batching_dims`; vmap uses them, so that a batch dimension stays a plain batch dimension for propagation
and partitioning.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.kinds import has_kind, not_accepted
from meshrt.core.basic.shapes import bring_to_front, move_dim
from meshrt.core.completion import OUT_SHARDING
from meshrt.core.dimensions.expression import DimExpr, min_dim
from meshrt.core.explicit import Application, Spec
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.types import ShapedArray
from meshrt.lowering.context import LoweringContext
from meshrt.lowering.types import mlir_type
from meshrt.primitives.computation import combining_region
from meshrt.primitives.dimension_numbers import check_scatter

__all__ = ["GatherDimensionNumbers", "GatherScatterMode", "ScatterDimensionNumbers"]


class GatherDimensionNumbers(NamedTuple):
    """How the dimensions of operand, indices and result of a gather relate.

    `offset_dims`: dimensions of the result that come from the window; the others come from the indices.
    `collapsed_slice_dims`: operand dimensions of window size 1 that the result lacks.
    `start_index_map`: the operand dimension that each entry of an index vector positions.
    `operand_batching_dims`, `start_indices_batching_dims`: dimensions walked in step.
    """

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()


class ScatterDimensionNumbers(NamedTuple):
    """How the dimensions of operand, indices and updates of a scatter relate.

    `update_window_dims`: dimensions of the updates that belong to the window; the others come from the indices.
    `inserted_window_dims`: operand dimensions of window size 1 that the updates lack.
    `scatter_dims_to_operand_dims`: the operand dimension that each entry of an index vector positions.
    `operand_batching_dims`, `scatter_indices_batching_dims`: dimensions walked in step.
    """

    update_window_dims: Sequence[int]
    inserted_window_dims: Sequence[int]
    scatter_dims_to_operand_dims: Sequence[int]
    operand_batching_dims: Sequence[int] = ()
    scatter_indices_batching_dims: Sequence[int] = ()

    def inverse(self) -> GatherDimensionNumbers:
        """The gather that reads where this scatter writes."""
        return GatherDimensionNumbers(*map(tuple, self))


class GatherScatterMode(enum.Enum):
    """What becomes of windows that reach out of bounds.

    CLIP moves them inside. FILL_OR_DROP fills the whole gathered window with a constant, or drops the scattered one.
    PROMISE_IN_BOUNDS leaves it to the compiler (which clips gathers and drops scatters). ONE_HOT asks for a product
    with a one-hot matrix, which `take_along_axis` writes; a scatter drops, and a gather in it cannot be compiled.
    """

    CLIP = enum.auto()
    FILL_OR_DROP = enum.auto()
    PROMISE_IN_BOUNDS = enum.auto()
    ONE_HOT = enum.auto()

    @staticmethod
    def from_any(mode: str | GatherScatterMode | None) -> GatherScatterMode:
        """The mode for "clip", "fill", "drop", "promise_in_bounds", "one_hot", a mode, or None (FILL_OR_DROP)."""
        if isinstance(mode, GatherScatterMode):
            return mode
        if mode is None:
            return GatherScatterMode.FILL_OR_DROP
        try:
            return _MODES[mode]
        except (KeyError, TypeError):
            raise errors.ArgumentValueError(
                f'Unknown gather mode "{mode}" for indices out of bounds; known: {", ".join(map(repr, _MODES))}'
            ) from None


_MODES = {
    "clip": GatherScatterMode.CLIP,
    "fill": GatherScatterMode.FILL_OR_DROP,
    "drop": GatherScatterMode.FILL_OR_DROP,
    "promise_in_bounds": GatherScatterMode.PROMISE_IN_BOUNDS,
    "one_hot": GatherScatterMode.ONE_HOT,
}


def index_bounds(shape: Sequence[Any], sizes: Sequence[Any], index_map: Sequence[int], dtype: Any) -> list[Any]:
    """The largest index in each indexed dimension for which a window lies inside, and which `dtype` holds."""
    limit = int(dtypes.iinfo(dtype).max)
    bounds = [shape[i] - sizes[i] for i in index_map]
    return [b if isinstance(b, DimExpr) else min(b, limit) for b in bounds]


def window_sizes(
    operand_shape: Sequence[Any], updates_shape: Sequence[Any], d: ScatterDimensionNumbers
) -> tuple[Any, ...]:
    """The window's size in each dimension of the operand."""
    window = iter([updates_shape[i] for i in d.update_window_dims])
    hidden = {*d.inserted_window_dims, *d.operand_batching_dims}
    return tuple([min_dim(n, 1) if i in hidden else next(window) for i, n in enumerate(operand_shape)])


def shifted(dims: Sequence[int]) -> tuple[int, ...]:
    """Dimension numbers after a dimension was added in front."""
    return tuple([d + 1 for d in dims])


# ----------------------------------------------------------------------------------------------------------
# Scatter: types, lowering, batching


def _infer(name: str, kinds: str = "") -> Callable[..., ShapedArray]:
    def infer(
        operand: ShapedArray,
        indices: ShapedArray,
        updates: ShapedArray,
        *,
        dimension_numbers: Any,
        indices_are_sorted: bool,
        unique_indices: bool,
        mode: Any,
    ) -> ShapedArray:
        d = dimension_numbers
        if kinds and not has_kind(operand.dtype, kinds):
            raise errors.ArgumentTypeError(not_accepted(name, operand.dtype, kinds, 0))
        if operand.dtype != updates.dtype:
            raise errors.ArgumentTypeError(
                f"lax.scatter requires arguments to have the same dtypes, got {operand.dtype}, {updates.dtype}. "
                f"{name} takes updates of the operand's dtype: convert one of them"
            )
        check_scatter(
            name, operand, indices, updates, d.update_window_dims, d.inserted_window_dims,
            d.scatter_dims_to_operand_dims, d.operand_batching_dims, d.scatter_indices_batching_dims,
        )  # fmt: skip
        return ShapedArray(operand.shape, operand.dtype, operand.weak_type)

    return infer


# ----------------------------------------------------------------------------------------------------------
# Lowering


def _clamped(ctx: LoweringContext, p: Any, operand: Any, indices_aval: Any, updates: Any, indices: Any) -> Any:
    d, dtype = p["dimension_numbers"], indices_aval.dtype
    sizes = window_sizes(operand.shape, updates.shape, d)
    upper = index_bounds(operand.shape, sizes, d.scatter_dims_to_operand_dims, dtype)
    if not upper:
        return indices
    high = ctx.broadcast(
        ctx.sizes(upper, dtype), ShapedArray((len(upper),), dtype), indices_aval, [indices_aval.ndim - 1]
    )
    return ctx.op("stablehlo.clamp", [ctx.scalar(0, dtype), indices, high], indices_aval)


def signed_indices(ctx: LoweringContext, indices: Any, aval: ShapedArray) -> tuple[Any, ShapedArray]:
    """Indices, and their type, of which XLA reads constants as they are meant: it takes those of unsigned types for
    signed numbers of their width, which would make -56 of 200 in uint8. Numbers of 32 bits and more are as good as
    never so large."""
    if not dtypes.issubdtype(aval.dtype, np.unsignedinteger) or dtypes.iinfo(aval.dtype).bits >= 32:
        return indices, aval
    wide = np.dtype(np.int32)
    return ctx.convert(indices, aval, wide), aval.update(dtype=wide)


def _is_short(shape: Sequence[Any], dtype: Any) -> bool:
    """Whether integers of this type do not hold all sizes: XLA compares the indices of scatters with the last place for
    a window, as a number of their own type."""
    info = dtypes.iinfo(dtype)
    return info.bits < 32 and any(isinstance(n, DimExpr) or n > info.max for n in shape)


def _lower(combine: str | None, extremum: Primitive | None = None) -> Callable[..., Any]:
    """Lowering with the update computation `combine` (None replaces, unless a parameter has the computation)."""

    def lower(ctx: LoweringContext, eqn: Eqn, operand: Any, indices: Any, updates: Any) -> Any:
        p, out = eqn.params, eqn.outvars[0].aval
        d = p["dimension_numbers"]
        indices, index_aval = signed_indices(ctx, indices, eqn.invars[1].aval)
        if p["mode"] is GatherScatterMode.CLIP:
            indices = _clamped(ctx, p, eqn.invars[0].aval, index_aval, eqn.invars[2].aval, indices)
        if _is_short(eqn.invars[0].aval.shape, index_aval.dtype):
            indices = ctx.convert(indices, index_aval, np.dtype(np.int32))
        window = list(d.update_window_dims)
        if out.is_extended:
            updated = eqn.invars[2].aval
            window += range(updated.ndim, updated.physical().ndim)
        numbers = (
            f"#stablehlo.scatter<update_window_dims = {window}, inserted_window_dims = {list(d.inserted_window_dims)}, "
            f"input_batching_dims = {list(d.operand_batching_dims)}, "
            f"scatter_indices_batching_dims = {list(d.scatter_indices_batching_dims)}, "
            f"scatter_dims_to_operand_dims = {list(d.scatter_dims_to_operand_dims)}, "
            f"index_vector_dim = {index_aval.ndim - 1}>"
        )
        attrs = (
            f"indices_are_sorted = {str(p['indices_are_sorted']).lower()}, scatter_dimension_numbers = {numbers}, "
            f"unique_indices = {str(p['unique_indices']).lower()}"
        )
        if "update_jaxpr" in p:
            return ctx.op("stablehlo.scatter", [operand, indices, updates], out, attrs, [ctx.region(p["update_jaxpr"])])
        dtype = out.physical().dtype
        if combine is None:
            kind = mlir_type(ShapedArray((), dtype))
            body = ctx.body.body([kind, kind])
            body.ret([body.args[1]])
        else:
            body = combining_region(ctx, combine, dtype, extremum)
        return ctx.op("stablehlo.scatter", [operand, indices, updates], out, attrs, [body])

    return lower


def _batch(get: Callable[[], Primitive]) -> Callable[..., Any]:
    def batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
        operand, indices, updates = args
        d = params["dimension_numbers"]
        operand = bring_to_front(size, operand, dims[0])
        updates = bring_to_front(size, updates, dims[2])
        window, inserted = shifted(d.update_window_dims), shifted(d.inserted_window_dims)
        mapped, batching = shifted(d.scatter_dims_to_operand_dims), shifted(d.operand_batching_dims)
        if dims[1] is None:
            d = ScatterDimensionNumbers((0, *window), inserted, mapped, batching, d.scatter_indices_batching_dims)
        else:
            indices = move_dim(indices, dims[1], 0)
            d = ScatterDimensionNumbers(
                window, inserted, mapped, (0, *batching), (0, *shifted(d.scatter_indices_batching_dims))
            )
        return get().bind(operand, indices, updates, **{**params, "dimension_numbers": d}), 0

    return batch


def _scatter_explicit(app: Application) -> list[Spec] | None:
    """The operand stays split as it is, where what is written lies in one part of it and is known there."""
    if OUT_SHARDING in app.params:
        return None
    d = app.params["dimension_numbers"]
    (operand, indices, updates), (x, index, u) = app.specs, app.avals
    batched, window = d.scatter_indices_batching_dims, d.update_window_dims
    places = [i for i in range(u.ndim) if i not in window]  # in the updates, of the dimensions of the indices
    update_batched = [places[i] for i in batched]
    kept = [i for i in range(x.ndim) if i not in d.inserted_window_dims and i not in d.operand_batching_dims]
    groups = [
        {operand[i], indices[j], updates[k]} - {None}
        for i, j, k in zip(d.operand_batching_dims, batched, update_batched)
    ]
    clear = all(len(g) <= 1 for g in groups)
    clear = clear and all(
        updates[k] in (None, operand[i]) and (u.shape[k] == x.shape[i] or operand[i] is None)
        for k, i in zip(window, kept)
    )
    clear = clear and all(operand[i] is None for i in d.inserted_window_dims)
    clear = clear and all(updates[k] is None for k in places if k not in update_batched)
    clear = clear and all(e is None for i, e in enumerate(indices) if i not in batched)
    if not clear:
        app.refuse(
            "Use `.at[...].set/add/mul/...(out_sharding=)` to provide output PartitionSpec for the scatter update as "
            "out sharding could not be resolved unambiguously (or would require collectives on inputs). Got "
            f"operand={x.short()}, indices={index.short()}, updates={u.short()}.",
            "give `x.at[...].set(y, out_sharding=P(...))`",
        )
    out = list(operand)
    for i, g in zip(d.operand_batching_dims, groups):
        out[i] = next(iter(g), None)
    return [tuple(out)]


def scatter_primitive(
    name: str,
    combine: str | None,
    jvp: Callable[..., Any],
    transpose: Callable[..., Any] | None = None,
    finite: bool = False,
    kinds: str = "",
    extremum: Primitive | None = None,
) -> Primitive:
    """Declares a scatter that combines with the binary StableHLO operation `combine` (None replaces), for operands of
    these kinds of dtype; of all, if none are named. `extremum` is the primitive of a maximum or minimum."""
    primitive: Primitive = Primitive(
        name, _infer(name, kinds), lower=_lower(combine, extremum), jvp=jvp, transpose=transpose,
        batch=_batch(lambda: primitive), finite=finite, space=lambda avals: avals[0].memory_space,
        explicit=_scatter_explicit, absent=NOT_LINEAR if transpose is None else {},
    )  # fmt: skip
    return primitive


def applying_primitive(name: str) -> Primitive:
    """A scatter whose parameter `update_jaxpr` says what becomes of an element and an update."""

    def infer(*avals: ShapedArray, update_jaxpr: Any, **params: Any) -> ShapedArray:
        return checked(*avals, **params)

    checked = _infer(name)
    primitive: Primitive = Primitive(
        name, infer, lower=_lower(None), batch=_batch(lambda: primitive), cache_types=False, typed=False,
        space=lambda avals: avals[0].memory_space, explicit=_scatter_explicit,
        absent={"jvp": "how often its function is applied to an element is not known", **NOT_LINEAR},
    )  # fmt: skip
    return primitive
