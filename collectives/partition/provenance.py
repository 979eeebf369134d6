"""The causes of collectives, for the communication plan: the operation that left a partial sum, or the annotation,
operation or function boundary that asks for a value in another layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propagation.program import Func, Op, Value

from ..emit import LocalValue
from ..layout import Dims
from ..reshard import ReshardPlan, ReshardStep

if TYPE_CHECKING:
    from .context import Context
    from .state import State

__all__ = ["asked", "cause_of", "maker"]

RESHARD = "reshard"


def asked(ctx: Context, value: Value, dims: Dims, because: str) -> LocalValue:
    """`value` laid out as `dims`, because an annotation or the edge of a program, function or loop says so."""
    outer, ctx.because = ctx.because, because
    try:
        return ctx.get(value, dims)
    finally:
        ctx.because = outer


def maker(ctx: Context, value: Value) -> Op | None:
    """The operation that made `value`, a result of the current one, unreduced: the current one, or the one that made
    its unreduced operand. None for arguments."""
    op = ctx.op
    if value.is_argument or not isinstance(op, Op):
        return None
    for v in op.operands:
        state = ctx.env.get(v)
        if state is not None and state.partial is not None and not state.versions and state.partial.op is not None:
            return state.partial.op
    return op


def cause_of(ctx: Context, state: State, plan: ReshardPlan, step: ReshardStep) -> tuple[Op | Func, str]:
    """(operation, why) of a step of a reshard, for the plan."""
    if plan.unreduced and step.reduces:
        made = state.partial.op if state.partial is not None else None
        return (ctx.op if made is None else made), "partial sum"
    return ctx.op, ctx.because
