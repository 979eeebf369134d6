"""Every device of a group gets the operand of the first; a device in no group gets zeros."""

from __future__ import annotations

from .record import CollectiveKind

__all__ = ["KIND"]


def sent(n: int, operand: float) -> float:
    """Along a chain, in pieces, each device passes the operand on once; the last has nobody to pass it to."""
    return operand if n > 1 else 0.0


# Its transpose, a sum that only the first device gets, is an all-reduce whose result the others drop.
KIND = CollectiveKind(
    "collective_broadcast",
    "collective-broadcast",
    sent,
    "ring",
    "stablehlo.collective_broadcast",
    primitive="pbroadcast",
    uniform=True,
    everyone=False,
)
