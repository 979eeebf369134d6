"""What the plan says of where a collective comes from: the operation that left a sum to be taken, or what asks for a
value in another layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from propagation.program import Op, Value

from ..emit import Ref
from ..layout import Dims
from ..reshard import ReshardPlan, Step

if TYPE_CHECKING:
    from .context import Context
    from .state import State

__all__ = ["asked", "cause_of", "maker"]

RESHARD = "reshard"
_SUMMING = ("all_reduce", "reduce_scatter")


def asked(ctx: Context, value: Value, dims: Dims, because: str) -> Ref:
    """`value` laid out as `dims`, because an annotation or the edge of a program, function or loop says so."""
    outer, ctx.because = ctx.because, because
    try:
        return ctx.get(value, dims)
    finally:
        ctx.because = outer


def maker(ctx: Context, value: Value) -> Op | None:
    """The operation that leaves `value`, a result of the current one, as a sum to be taken: the current one, or that
    which left its operand so. None for arguments."""
    op = ctx.op
    if value.is_argument or not isinstance(op, Op):
        return None
    for v in op.operands:
        state = ctx.env.get(v)
        if state is not None and state.partial is not None and not state.versions and state.partial.op is not None:
            return state.partial.op
    return op


def cause_of(ctx: Context, state: State, plan: ReshardPlan, step: Step) -> tuple[object, str]:
    """(operation, why) of a step by which a value is moved."""
    if plan.unreduced and step.kind in _SUMMING:
        made = state.partial.op if state.partial is not None else None
        return (ctx.op if made is None else made), "partial sum"
    return ctx.op, ctx.because
