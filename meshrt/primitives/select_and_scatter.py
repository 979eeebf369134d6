"""select_and_scatter: each window of an operand selects one element, and a source's values are combined there.

The computations that select and combine are Jaxprs. Max-pooling's derivative, whose computations are a comparison and
a sum, is `select_and_scatter_add` (`meshrt.primitives.window`), which has derivatives and can be mapped: this one has
no such rules, as JAX's has none. Programs bind it as a primitive; no public function makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.jaxpr import Eqn, Jaxpr
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.computation import with_constants
from meshrt.primitives.windowing import pairs_attribute, window_positions
from propagation.asm import i64_array

__all__ = ["select_and_scatter_p"]


def _infer(
    operand: ShapedArray,
    source: ShapedArray,
    init_value: ShapedArray,
    *,
    select_jaxpr: Jaxpr,
    select_consts: Sequence[Any],
    scatter_jaxpr: Jaxpr,
    scatter_consts: Sequence[Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> ShapedArray:
    for key, values in {"window_dimensions": window_dimensions, "window_strides": window_strides}.items():
        if any(n < 1 for n in values):
            raise errors.ArgumentTypeError(
                f"select_and_scatter {key} must have every element be positive, got {values}"
            )
    if not len(window_dimensions) == len(window_strides) == len(padding) == operand.ndim:
        raise errors.ArgumentTypeError(
            f"select_and_scatter of {operand.short()} needs one entry per dimension in window_dimensions, "
            f"window_strides and padding, got {window_dimensions}, {window_strides} and {padding}"
        )
    padded = [n + low + high for n, (low, high) in zip(operand.shape, padding)]
    expected = tuple(map(window_positions, padded, window_dimensions, window_strides))
    if source.shape != expected or init_value.shape or not operand.dtype == source.dtype == init_value.dtype:
        raise errors.ArgumentTypeError(
            f"select_and_scatter of {operand.short()} needs a source of shape {expected} and a scalar init_value, "
            f"both of its dtype, but got {source.short()} and {init_value.short()}"
        )
    _check("select", select_jaxpr, operand.dtype, np.dtype(bool))
    _check("scatter", scatter_jaxpr, operand.dtype, operand.dtype)
    return ShapedArray(operand.shape, operand.dtype)


def _check(name: str, jaxpr: Jaxpr, taken: Any, given: Any) -> None:
    """A computation takes two scalars of the operand's dtype and gives one, and does nothing else."""
    types = [(a.shape, a.dtype) for a in (*jaxpr.in_avals, *jaxpr.out_avals)]
    if types != [((), taken), ((), taken), ((), given)]:
        shown = ", ".join([a.short() for a in (*jaxpr.in_avals, *jaxpr.out_avals)])
        raise errors.ArgumentTypeError(
            f"the {name} computation of select_and_scatter takes two scalars of dtype {taken} and gives one of dtype "
            f"{given}, but its arguments and results are {shown}"
        )
    if jaxpr.effects:
        raise errors.UnsupportedError(
            f"Cannot lower effectful `{name}`: a computation of select_and_scatter only computes"
        )


def _lower(ctx: LoweringContext, eqn: Eqn, operand: Any, source: Any, init_value: Any) -> Any:
    p = eqn.params
    attrs = (
        f"padding = {pairs_attribute(p['padding'])}, window_dimensions = {i64_array(p['window_dimensions'])}, "
        f"window_strides = {i64_array(p['window_strides'])}"
    )
    bodies = [
        ctx.region(with_constants("select_and_scatter", p[f"{name}_jaxpr"], p[f"{name}_consts"]))
        for name in ("select", "scatter")
    ]
    return ctx.op("stablehlo.select_and_scatter", [operand, source, init_value], eqn.outvars[0].aval, attrs, bodies)


_AS_IN_JAX = "only select_and_scatter_add, with which max-pooling is differentiated, has one"

select_and_scatter_p = Primitive(
    "select_and_scatter", _infer, lower=_lower, cache_types=False, typed=False,
    explicit=lambda app: [app.specs[0]],
    absent=dict.fromkeys(("jvp", "transpose", "batch"), _AS_IN_JAX),
)  # fmt: skip
