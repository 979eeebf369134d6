"""An all-to-all whose parts have sizes that are known at run time; XLA makes it of a custom call of that name."""

from __future__ import annotations

from .record import CollectiveKind

__all__ = ["KIND"]


def sent(n: int, operand: float) -> float:
    """As an all-to-all of equal parts: sizes are not known before the program runs."""
    return (n - 1) / n * operand


KIND = CollectiveKind(
    "ragged_all_to_all",
    "ragged-all-to-all",
    sent,
    "exchange",
    None,
    primitive="ragged_all_to_all",
    transpose="ragged_all_to_all",
    everyone=False,
)
