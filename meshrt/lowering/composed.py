"""Lowering rules of primitives that are programs of other primitives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors
from meshrt.core import source
from meshrt.core.jaxpr import Eqn
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.types import ShapedArray
from meshrt.lowering.context import LoweringContext

__all__ = ["write_composed"]


def write_composed(
    ctx: LoweringContext,
    eqn: Eqn,
    operands: Sequence[Any],
    avals: Sequence[ShapedArray],
    fun: Callable[..., Sequence[Any]],
) -> list[Any]:
    """Writes what `fun` computes of arrays with these types, at the line of `eqn`.

    `fun` may capture scalars only: an array would be a constant of each program that this is written into.
    """
    previous = source.set_replay(eqn.source)
    try:
        closed = trace_to_jaxpr(fun, [ShapedArray(a.shape, a.dtype) for a in avals], eqn.primitive.name)
    finally:
        source.set_replay(previous)
    if closed.consts:
        raise errors.InternalError(f"the program of {eqn.primitive.name} captures arrays")
    return ctx.jaxpr(closed.jaxpr, operands)
