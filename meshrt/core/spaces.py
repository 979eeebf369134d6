"""Spaces of memory: where a value lies, as its type says it.

The memory that a device computes with is `Space.Device`, that of the host beside it `Space.Host`. A sharding names a
kind of memory; of the kinds only "pinned_host" is another space for types.
"""

from __future__ import annotations

import enum

__all__ = ["DEVICE", "Space", "kind_of_space", "space_of_kind"]


class Space(enum.Enum):
    """Where an array is, whatever its sharding: `device_put(x, meshrt.memory.Space.Host)`."""

    Device = "device"
    Host = "host"
    Any = "any"

    def __repr__(self) -> str:
        return f"MemorySpace.{self.name}"

    __str__ = __repr__


DEVICE = Space.Device


def space_of_kind(kind: str | None) -> Space:
    """The space of the values in memory of a kind."""
    return Space.Host if kind == "pinned_host" else DEVICE


def kind_of_space(space: Space) -> str:
    """The kind of memory in which values of a space lie."""
    return "pinned_host" if space is Space.Host else "device"
