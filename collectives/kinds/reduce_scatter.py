"""The operands of a group are combined element by element; every device gets its part along a dimension."""

from __future__ import annotations

from .record import CollectiveKind

__all__ = ["KIND"]


def sent(n: int, operand: float) -> float:
    """On a ring, each of n - 1 steps passes on the sum so far of an n-th of the operand."""
    return (n - 1) / n * operand


KIND = CollectiveKind(
    "reduce_scatter",
    "reduce-scatter",
    sent,
    "ring",
    "stablehlo.reduce_scatter",
    primitive="reduce_scatter",
    transpose="all_gather",
    splits="scatter_dimension",
    reduces=True,
)
