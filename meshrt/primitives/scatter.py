"""Scatter primitives: an array with windows replaced by, or combined with, updates at positions held in an index array.

`scatter` (replace), `scatter_add`, `scatter_sub`, `scatter_mul`, `scatter_min`, `scatter_max`; the derivatives are in
`scatter_rules`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from meshrt import errors
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray
from meshrt.lowering.types import mlir_type
from meshrt.primitives.gather import (
    GatherDimensionNumbers,
    GatherScatterMode,
    check_dimension_numbers,
    index_bounds,
    shifted,
)

__all__ = [
    "ScatterDimensionNumbers", "scatter", "scatter_add", "scatter_max", "scatter_min", "scatter_mul", "scatter_sub",
]  # fmt: skip


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
        return GatherDimensionNumbers(*self)


def window_sizes(
    operand_shape: Sequence[int], updates_shape: Sequence[int], d: ScatterDimensionNumbers
) -> tuple[int, ...]:
    """The window's size in each dimension of the operand."""
    window = iter([updates_shape[i] for i in d.update_window_dims])
    hidden = {*d.inserted_window_dims, *d.operand_batching_dims}
    return tuple([min(n, 1) if i in hidden else next(window) for i, n in enumerate(operand_shape)])


def _infer(name: str):
    def infer(operand, indices, updates, *, dimension_numbers, indices_are_sorted, unique_indices, mode):
        d = dimension_numbers
        if operand.dtype != updates.dtype:
            raise errors.ArgumentTypeError(
                f"{name} needs updates of the operand's dtype but got operand {operand.str_short()} and updates "
                f"{updates.str_short()}; convert one of them"
            )
        check_dimension_numbers(
            name, operand, indices, d.update_window_dims, updates.ndim, d.inserted_window_dims,
            d.scatter_dims_to_operand_dims, d.operand_batching_dims, d.scatter_indices_batching_dims,
        )  # fmt: skip
        batch = tuple([n for i, n in enumerate(updates.shape) if i not in d.update_window_dims])
        if batch != indices.shape[:-1]:
            raise errors.ArgumentTypeError(
                f"{name}: updates {updates.str_short()} without their window dimensions {tuple(d.update_window_dims)} "
                f"have shape {batch}, but the indices {indices.str_short()} want {indices.shape[:-1]}"
            )
        sizes = window_sizes(operand.shape, updates.shape, d)
        if any(s > n for s, n in zip(sizes, operand.shape)):
            raise errors.ArgumentTypeError(
                f"{name}: the window {sizes} of updates {updates.str_short()} does not fit into {operand.str_short()}"
            )
        return ShapedArray(operand.shape, operand.dtype, operand.weak_type)

    return infer


# ----------------------------------------------------------------------------------------------------------
# Lowering


def _clamped(ctx, p, operand, indices_aval, updates, indices):
    d, dtype = p["dimension_numbers"], indices_aval.dtype
    sizes = window_sizes(operand.shape, updates.shape, d)
    upper = index_bounds(operand.shape, sizes, d.scatter_dims_to_operand_dims, dtype)
    if not upper.size:
        return indices
    high = ctx.broadcast(ctx.array(upper), ShapedArray(upper.shape, dtype), indices_aval, [indices_aval.ndim - 1])
    return ctx.op("stablehlo.clamp", [ctx.scalar(0, dtype), indices, high], indices_aval)


def _lower(combine: str | None):
    """Lowering with the update computation `combine` (None replaces)."""

    def lower(ctx, eqn, operand, indices, updates):
        p, out = eqn.params, eqn.outvars[0].aval
        d, index_aval = p["dimension_numbers"], eqn.invars[1].aval
        if p["mode"] is GatherScatterMode.CLIP:
            indices = _clamped(ctx, p, eqn.invars[0].aval, index_aval, eqn.invars[2].aval, indices)
        window = list(d.update_window_dims)
        if out.is_key:
            window.append(eqn.invars[2].aval.ndim)
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
        kind = mlir_type(ShapedArray((), out.physical().dtype))
        body = ctx.body.body([kind, kind])
        body.ret([body.args[1] if combine is None else body.op(combine, body.args, [kind])])
        return ctx.op("stablehlo.scatter", [operand, indices, updates], out, attrs, [body])

    return lower


def _batch(get):
    def batch(size, args, dims, params):
        from meshrt.transforms.batching import bring_to_front, move_dim

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


def _primitive(name: str, combine: str | None) -> Primitive:
    primitive = Primitive(name, _infer(name), lower=_lower(combine), batch=_batch(lambda: primitive))
    return primitive


scatter_p = _primitive("scatter", None)
scatter_add_p = _primitive("scatter_add", "stablehlo.add")
scatter_sub_p = _primitive("scatter_sub", "stablehlo.subtract")
scatter_mul_p = _primitive("scatter_mul", "stablehlo.multiply")
scatter_min_p = _primitive("scatter_min", "stablehlo.minimum")
scatter_max_p = _primitive("scatter_max", "stablehlo.maximum")


# ----------------------------------------------------------------------------------------------------------
# Public functions


def _public(primitive: Primitive, doc: str):
    def function(
        operand: Any,
        scatter_indices: Any,
        updates: Any,
        dimension_numbers: ScatterDimensionNumbers,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: str | GatherScatterMode | None = None,
    ) -> Any:
        numbers = ScatterDimensionNumbers(*(tuple(map(int, d)) for d in dimension_numbers))
        return primitive.bind(
            operand, scatter_indices, updates, dimension_numbers=numbers, indices_are_sorted=bool(indices_are_sorted),
            unique_indices=bool(unique_indices), mode=GatherScatterMode.from_any(mode),
        )  # fmt: skip

    function.__name__ = function.__qualname__ = primitive.name
    function.__doc__ = f"""`operand` with windows at `scatter_indices` {doc} `updates` (see ScatterDimensionNumbers).

    `mode` says what happens out of bounds (None: the window is dropped). `unique_indices` and `indices_are_sorted` are
    promises that help the compiler; without the first, replaced windows that overlap are written in no set order.
    """
    return function


scatter = _public(scatter_p, "replaced by")
scatter_add = _public(scatter_add_p, "increased by")
scatter_sub = _public(scatter_sub_p, "decreased by")
scatter_mul = _public(scatter_mul_p, "multiplied by")
scatter_min = _public(scatter_min_p, "limited from above to")
scatter_max = _public(scatter_max_p, "limited from below to")

# The derivative rules attach themselves to the primitives.
from meshrt.primitives import scatter_rules  # noqa: E402

scatter_rules.attach()
