"""Scatter primitives: an array with windows replaced by, or combined with, updates at positions held in an index array.

`scatter` (replace), `scatter_sub`, `scatter_mul`, `scatter_min`, `scatter_max`; `scatter_add` is in `gather`. Kernels
have those of bits too: `scatter_and_p`, `scatter_or_p`, `scatter_xor_p`.

Ties of scatter_min and scatter_max share the tangent evenly among the operand and all updates that attain the value.
Where several updates replace one element, the derivative follows the one that was written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import errors, tree_util
from meshrt.core.basic.pointwise import add_p, add_tangents
from meshrt.core.basic.shapes import instantiate, reshape, zeros
from meshrt.core.primitive import Primitive, is_undefined
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.computation import scalar_jaxpr
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.elementwise import div_p, eq_p, max_p, min_p, mul_p
from meshrt.primitives.gather import linear_scatter_jvp, linear_scatter_transpose, read_back, scatter_add_p
from meshrt.primitives.gather_scatter import (
    GatherScatterMode,
    ScatterDimensionNumbers,
    applying_primitive,
    scatter_primitive,
)
from meshrt.primitives.reshape import broadcasted_iota, full
from meshrt.primitives.selection import select_n_p

__all__ = ["scatter", "scatter_add", "scatter_apply", "scatter_max", "scatter_min", "scatter_mul", "scatter_sub"]


def _known_aval(x: Any) -> ShapedArray:
    return x.aval if is_undefined(x) else aval_of(x)


# ----------------------------------------------------------------------------------------------------------
# scatter (replace)


def _replace_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    operand, indices, updates = primals
    t_operand, _, t_updates = tangents
    if t_operand is None and t_updates is None:
        return scatter_p.bind(operand, indices, updates, **params), None
    t_operand, t_updates = instantiate(t_operand, operand), instantiate(t_updates, updates)
    if params["unique_indices"]:
        out = scatter_p.bind(operand, indices, updates, **params)
        return out, scatter_p.bind(t_operand, indices, t_updates, **params)
    # Number the updates and scatter the numbers: they tell which update each element received. With all other updates
    # masked, an addition gives the same value, and it is linear.
    shape, aval = aval_of(operand).shape, aval_of(updates)
    count = np.dtype(np.uint32)
    ids = add_p.bind(reshape(broadcasted_iota(count, (aval.size,), 0), aval.shape), np.uint32(1))
    winners = scatter_p.bind(full(shape, 0, count), indices, ids, **params)
    untouched = eq_p.bind(winners, np.uint32(0))
    written = eq_p.bind(read_back(winners, indices, aval, params), ids)

    def apply(x: Any, u: Any) -> Any:
        kept = select_n_p.bind(untouched, zeros(aval_of(x)), x)
        return scatter_add_p.bind(kept, indices, select_n_p.bind(written, zeros(aval_of(u)), u), **params)

    return apply(operand, updates), apply(t_operand, t_updates)


def _replace_transpose(ct: Any, operand: Any, indices: Any, updates: Any, **params: Any) -> list[Any]:
    if not params["unique_indices"]:
        raise errors.UnsupportedError(
            "the transpose of scatter needs unique_indices=True: with overlapping windows it is not linear"
        )
    aval = _known_aval(updates)
    ct_operand = ct_updates = None
    if is_undefined(operand):
        ct_operand = scatter_p.bind(ct, indices, zeros(aval.update(dtype=aval_of(ct).dtype)), **params)
    if is_undefined(updates):
        ct_updates = read_back(ct, indices, aval, params)
    return [ct_operand, None, ct_updates]


# ----------------------------------------------------------------------------------------------------------
# scatter_mul


def _mul_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    operand, indices, updates = primals
    t_operand, _, t_updates = tangents
    out = scatter_mul_p.bind(operand, indices, updates, **params)
    total = None if t_operand is None else scatter_mul_p.bind(t_operand, indices, updates, **params)
    if t_updates is not None:
        if not params["unique_indices"]:
            raise errors.UnsupportedError(
                "scatter_mul can be differentiated with respect to its updates only with unique_indices=True"
            )
        factor = read_back(operand, indices, aval_of(updates), params)
        base = zeros(aval_of(operand).strong())
        total = add_tangents(total, scatter_add_p.bind(base, indices, mul_p.bind(t_updates, factor), **params))
    return out, total


def _mul_transpose(ct: Any, operand: Any, indices: Any, updates: Any, **params: Any) -> list[Any]:
    if is_undefined(updates):
        if not params["unique_indices"]:
            raise errors.UnsupportedError("the transpose of scatter_mul to its updates needs unique_indices=True")
        return [
            None,
            None,
            mul_p.bind(
                read_back(ct, indices, updates.aval, params),
                read_back(operand, indices, updates.aval, params),
            ),
        ]
    return [scatter_mul_p.bind(ct, indices, updates, **params), None, None]


# ----------------------------------------------------------------------------------------------------------
# scatter_min and scatter_max


def _extremum_jvp(get: Callable[[], Primitive]) -> Callable[..., Any]:
    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        operand, indices, updates = primals
        t_operand, _, t_updates = tangents
        out = get().bind(operand, indices, updates, **params)
        if t_operand is None and t_updates is None:
            return out, None
        dtype = aval_of(operand).dtype

        def flag(a: Any, b: Any) -> Any:
            return convert_element_type(eq_p.bind(a, b), dtype)

        operand_won = flag(operand, out)
        update_won = flag(updates, read_back(out, indices, aval_of(updates), params))
        winners = scatter_add_p.bind(operand_won, indices, update_won, **params)
        # An element that nobody attains (a NaN) has no winners and keeps the quotient 0 / 0.
        total = mul_p.bind(instantiate(t_operand, operand), operand_won)
        if t_updates is not None:
            total = scatter_add_p.bind(total, indices, mul_p.bind(t_updates, update_won), **params)
        return out, div_p.bind(total, winners)

    return jvp


# ----------------------------------------------------------------------------------------------------------
# Scatters of bits


def _bits_jvp(get: Callable[[], Primitive]) -> Callable[..., Any]:
    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        return get().bind(*primals, **params), None

    return jvp


# ----------------------------------------------------------------------------------------------------------
# The primitives

scatter_p = scatter_primitive("scatter", None, _replace_jvp, _replace_transpose, finite=True)
scatter_sub_p: Primitive = scatter_primitive(
    "scatter-sub",
    "stablehlo.subtract",
    linear_scatter_jvp(lambda: scatter_sub_p),
    linear_scatter_transpose(-1),
    kinds="iufc",
)
scatter_mul_p = scatter_primitive("scatter-mul", "stablehlo.multiply", _mul_jvp, _mul_transpose, kinds="iufc")
scatter_min_p: Primitive = scatter_primitive(
    "scatter-min", "stablehlo.minimum", _extremum_jvp(lambda: scatter_min_p), extremum=min_p
)
scatter_max_p: Primitive = scatter_primitive(
    "scatter-max", "stablehlo.maximum", _extremum_jvp(lambda: scatter_max_p), extremum=max_p
)
scatter_and_p: Primitive = scatter_primitive(
    "scatter-and", "stablehlo.and", _bits_jvp(lambda: scatter_and_p), kinds="iub"
)
scatter_or_p: Primitive = scatter_primitive("scatter-or", "stablehlo.or", _bits_jvp(lambda: scatter_or_p), kinds="iub")
scatter_xor_p: Primitive = scatter_primitive(
    "scatter-xor", "stablehlo.xor", _bits_jvp(lambda: scatter_xor_p), kinds="iub"
)


# ----------------------------------------------------------------------------------------------------------
# Public functions


def _public(primitive: Primitive, doc: str, printed: str) -> Callable[..., Any]:
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

    name = primitive.name.replace("-", "_")
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""`operand` with windows at `scatter_indices` {doc} `updates` (see ScatterDimensionNumbers).

    `mode` says what happens out of bounds (None: the window is dropped). `unique_indices` and `indices_are_sorted` are
    promises that help the compiler; without the first, replaced windows that overlap are written in no set order.

    >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    >>> print(lax.{name}(jnp.array([1, 4]), jnp.array([[1]]), jnp.array([3]), numbers))
    {printed}
    """
    return function


scatter = _public(scatter_p, "replaced by", "[1 3]")
scatter_add = _public(scatter_add_p, "increased by", "[1 7]")
scatter_sub = _public(scatter_sub_p, "decreased by", "[1 1]")
scatter_mul = _public(scatter_mul_p, "multiplied by", "[ 1 12]")
scatter_min = _public(scatter_min_p, "limited from above to", "[1 3]")
scatter_max = _public(scatter_max_p, "limited from below to", "[1 4]")
# No names of JAX's: for atomic updates of kernels, and for programs from files.
scatter_and = _public(scatter_and_p, "reduced to the bits of", "[1 0]")
scatter_or = _public(scatter_or_p, "with the bits of", "[1 7]")
scatter_xor = _public(scatter_xor_p, "with the bits flipped of", "[1 7]")


scatter_apply_p = applying_primitive("scatter_apply")


def scatter_apply(
    operand: Any,
    scatter_indices: Any,
    func: Callable[[Any], Any],
    dimension_numbers: ScatterDimensionNumbers,
    *,
    update_shape: Sequence[int] = (),
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: str | GatherScatterMode | None = None,
) -> Any:
    """`operand` with `func` of its elements in windows at `scatter_indices`, as often as they are named.

    Windows are laid out like updates of `update_shape` in `scatter`, whose other arguments these are. There is no
    derivative.

    >>> import numpy as np
    >>> from meshrt import lax
    >>> numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    >>> twice = np.array([[1], [1]])
    >>> print(lax.scatter_apply(np.ones(3, np.float32), twice, lambda x: 2 * x, numbers, update_shape=(2,)))
    [1. 4. 1.]
    """
    aval = aval_of(operand)
    scalar = ShapedArray((), aval.dtype)
    leaf = tree_util.tree_structure(0)
    jaxpr = scalar_jaxpr("scatter_apply", lambda x, _: convert_element_type(func(x), aval.dtype), [scalar], leaf)
    numbers = ScatterDimensionNumbers(*(tuple(map(int, d)) for d in dimension_numbers))
    return scatter_apply_p.bind(
        operand, scatter_indices, full(tuple(update_shape), 0, aval.dtype), update_jaxpr=jaxpr,
        dimension_numbers=numbers, indices_are_sorted=bool(indices_are_sorted), unique_indices=bool(unique_indices),
        mode=GatherScatterMode.from_any(mode),
    )  # fmt: skip
