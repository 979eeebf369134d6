"""Elementwise primitives that are written as functions of other primitives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes
from meshrt.core.basic.pointwise import nary
from meshrt.core.basic.shapes import broadcast_in_dim
from meshrt.core.explicit import Application, Spec
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.composed import write_composed
from meshrt.lowering.context import LoweringContext
from meshrt.lowering.explicit import by_rule
from meshrt.primitives.conversion import convert_element_type

__all__: list[str] = []

# What primitives that stand for programs of others compute: functions of operands and parameters. Where a back end has
# no rule of its own for such a primitive, it writes its program.
PROGRAMS: dict[Primitive, Callable[..., Any]] = {}


def written(
    name: str,
    arity: int,
    function: Callable[..., Any],
    derivatives: Sequence[Callable[..., Any] | None] | None = None,
) -> Primitive:
    """A primitive of floating arrays of one shape and dtype whose program is that of `function`.

    `function` is given float32 or float64 arrays: narrower ones are widened before and rounded after it.
    """

    def write(ctx: LoweringContext, eqn: Eqn, refs: Sequence[Any]) -> Any:
        out = eqn.outvars[0].aval
        avals = [ShapedArray(out.shape, out.dtype)] * arity
        (ref,) = write_composed(ctx, eqn, refs, avals, lambda *operands: [widened(function)(*operands)])
        return ref

    primitive = nary(name, "", arity, kinds="f", write=write, derivatives=derivatives, explicit=_explicit)

    def program(*operands: Any, **_: Any) -> Any:
        shape = max((aval_of(x).shape for x in operands), key=len)
        return widened(function)(
            *[x if aval_of(x).shape == shape else broadcast_in_dim(x, shape, ()) for x in operands]
        )

    PROGRAMS[primitive] = program
    return primitive


def _explicit(app: Application) -> list[Spec]:
    """Every dimension passes through all operands that are not scalars, whatever loops the function has."""
    from propagation.rules.builder import RuleBuilder  # start-up time: programs of Auto axes never ask

    (out,) = app.types
    return by_rule(app, RuleBuilder([a.shape for a in app.avals], [out.shape]).add_pointwise(out.shape).build())


def widened(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of arrays of one floating dtype, calculated in float32 at least."""

    def calculate(*operands: Any) -> Any:
        dtype = aval_of(operands[0]).dtype
        if dtypes.finfo(dtype).bits >= 32:
            return function(*operands)
        return convert_element_type(function(*(convert_element_type(x, np.float32) for x in operands)), dtype)

    return calculate
