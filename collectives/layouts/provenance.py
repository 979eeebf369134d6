"""Asking for a value in a layout for a reason of one's own, which the communication plan then names."""

from __future__ import annotations

from propagation.program import Value

from ..ir.program import LocalValue
from ..layout import Dims
from .context import Context

__all__ = ["asked"]


def asked(ctx: Context, value: Value, dims: Dims, because: str) -> LocalValue:
    """`value` laid out as `dims`, because an annotation or the edge of a program, function or loop says so."""
    outer, ctx.because = ctx.because, because
    try:
        return ctx.get(value, dims)
    finally:
        ctx.because = outer
