"""The kinds of memory of a device.

A sharding names one by `memory_kind`: "device" (what it computes with), "pinned_host" or "unpinned_host" (the host's,
beside it). None is the device's default one.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from meshrt import errors

__all__ = ["Space", "check_kind", "default_kind", "kind_of"]


class Space(enum.Enum):
    """Where an array is, whatever its sharding: `device_put(x, meshrt.memory.Space.Host)`."""

    Device = "device"
    Host = "host"
    Any = "any"

    def __repr__(self) -> str:
        return f"MemorySpace.{self.name}"


def default_kind(device: Any) -> str | None:
    """The kind of the memory that a device computes with; None where the platform does not tell."""
    try:
        kind: str = device.default_memory().kind
    except (AttributeError, NotImplementedError, RuntimeError):
        return None
    return kind


def check_kind(devices: Sequence[Any], kind: str | None) -> None:
    """Raises ShardingError unless `devices` have memory of this kind."""
    if kind is None:
        return
    device = devices[0]
    kinds = [m.kind for m in device.addressable_memories()]
    if kind not in kinds and device.process_index == device.client.process_index():
        raise errors.ShardingError(
            f"Could not find memory addressable by device {device.device_kind}. Device {device.device_kind} can "
            f"address the following memory kinds: {', '.join(kinds)}. Got memory kind: {kind}; use one of these, or "
            "memory_kind=None for the default"
        )


def kind_of(space: Space, device: Any) -> str | None:
    """The kind of memory that a Space is on a device; None is the default one."""
    if space is Space.Device:
        return None
    kinds = [m.kind for m in device.addressable_memories()]
    found = next((k for k in ("pinned_host", "unpinned_host") if k in kinds), None)
    if found is None:
        raise errors.UnsupportedError(f"{device.device_kind} devices have no memory on the host beside them: {kinds}")
    return found
