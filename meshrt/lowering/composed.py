"""Lowering rules of primitives that are programs of other primitives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core import source
from meshrt.core.jaxpr import Eqn, Jaxpr
from meshrt.core.trace import Tracer, trace_to_jaxpr
from meshrt.core.types import ShapedArray
from meshrt.lowering.context import LoweringContext

__all__ = ["with_constants", "write_composed"]


def write_composed(
    ctx: LoweringContext,
    eqn: Eqn,
    operands: Sequence[Any],
    avals: Sequence[ShapedArray],
    fun: Callable[..., Sequence[Any]],
) -> list[Any]:
    """Writes what `fun` computes of arrays with these types, at the line of `eqn`.

    What `fun` captures is written as constants, into each program anew: let it be small.

    Raises:
      LeakedTracerError: it captures a value that is being traced.
    """
    previous = source.set_replay(eqn.source)
    try:
        closed = trace_to_jaxpr(fun, [ShapedArray(a.shape, a.dtype) for a in avals], eqn.primitive.name)
    finally:
        source.set_replay(previous)
    captured = [c for c in closed.consts if isinstance(c, Tracer)]
    if captured:
        raise errors.LeakedTracerError(
            f"the program of the primitive '{eqn.primitive.name}' captures a traced value of type "
            f"{captured[0].aval.short()}; pass it as an operand"
        )
    constants = [ctx.array(np.asarray(c)) for c in closed.consts]
    return ctx.jaxpr(with_constants(closed.jaxpr), [*constants, *operands])


def with_constants(jaxpr: Jaxpr) -> Jaxpr:
    """The same program with its captured values as leading arguments."""
    return Jaxpr((), (*jaxpr.constvars, *jaxpr.invars), jaxpr.outvars, jaxpr.eqns, jaxpr.effects, name=jaxpr.name)
