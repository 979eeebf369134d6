"""Every device of a group cuts its operand into a part for each; what arrives is put together along a dimension."""

from __future__ import annotations

from .record import CollectiveKind

__all__ = ["KIND"]


def sent(n: int, operand: float) -> float:
    """All of the operand leaves but a device's own n-th."""
    return (n - 1) / n * operand


KIND = CollectiveKind(
    "all_to_all",
    "all-to-all",
    sent,
    "exchange",
    "stablehlo.all_to_all",
    primitive="all_to_all",
    transpose="all_to_all",
    splits="split_dimension",
    joins="concat_dimension",
    counts="split_count",
)
