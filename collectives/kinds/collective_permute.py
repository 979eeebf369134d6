"""Devices send their operand to at most one other each; a device that nobody sends to gets zeros."""

from __future__ import annotations

from .record import CollectiveKind

__all__ = ["KIND"]


def sent(n: int, operand: float) -> float:
    """The payload of a device that sends to another one, whatever the number of devices."""
    return operand


KIND = CollectiveKind(
    "collective_permute",
    "collective-permute",
    sent,
    "shift",
    "stablehlo.collective_permute",
    primitive="ppermute",
    transpose="collective_permute",
    pairs=True,
    everyone=False,
    lists_operands=True,
)
