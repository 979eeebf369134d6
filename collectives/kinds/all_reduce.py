"""Every device of a group gets the operands of all, combined element by element."""

from __future__ import annotations

from .record import CollectiveKind

__all__ = ["KIND"]


def sent(n: int, operand: float) -> float:
    """On a ring, a reduce-scatter and an all-gather of an n-th of the operand: n - 1 steps each."""
    return 2 * (n - 1) / n * operand


KIND = CollectiveKind(
    "all_reduce",
    "all-reduce",
    sent,
    "ring",
    "stablehlo.all_reduce",
    phases=2,
    primitive="psum",
    transpose="all_reduce",
    reduces=True,
    uniform=True,
    abreast=frozenset({"tpu"}),
    merged_by=frozenset({"cuda"}),
)
