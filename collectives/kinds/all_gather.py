"""Every device of a group gets the operands of all, put together along a dimension."""

from __future__ import annotations

from .record import CollectiveKind

__all__ = ["KIND"]


def sent(n: int, operand: float) -> float:
    """On a ring, each of n - 1 steps passes one operand on."""
    return (n - 1) * operand


KIND = CollectiveKind(
    "all_gather",
    "all-gather",
    sent,
    "ring",
    "stablehlo.all_gather",
    primitive="all_gather",
    transpose="reduce_scatter",
    joins="all_gather_dim",
    uniform=True,
    lists_operands=True,
)
