"""Values that say one thing, and hold nothing."""

from __future__ import annotations

__all__ = ["UNSPECIFIED", "Mark", "UnspecifiedValue"]


class Mark:
    """Equal to all others of its class. (Dataclasses would take a third of a millisecond each to make.)"""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class UnspecifiedValue(Mark):
    """What a call says of the sharding of an argument or result that it leaves open."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UnspecifiedValue"


UNSPECIFIED = UnspecifiedValue()
