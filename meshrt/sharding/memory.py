"""The kinds of memory of a device.

A sharding names one by `memory_kind`: "device" (what it computes with), "pinned_host" or "unpinned_host" (the host's,
beside it). None stands for the default one, by whose name it is known where the devices are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt import errors
from meshrt.core.spaces import Space

__all__ = ["Space", "default_kind", "kind_of", "resolved_kind"]


# What devices call their memories.
_KINDS = ("device", "pinned_host", "unpinned_host")


def default_kind(device: Any) -> str | None:
    """The kind of the memory that a device computes with; None where the platform does not tell."""
    try:
        kind: str = device.default_memory().kind
    except (AttributeError, NotImplementedError, RuntimeError):
        return None
    return kind


def resolved_kind(devices: Sequence[Any] | None, kind: str | None) -> tuple[str | None, str | None]:
    """The name of a kind of memory on `devices` (None: not known yet), and the same where it is not the default, else
    None. ShardingError if they have no such memory, or no device has.
    """
    if devices is None:
        if kind is not None and kind not in _KINDS:
            raise errors.ShardingError(
                f"Got invalid memory kind: {kind}. Valid memory kinds are: {', '.join(_KINDS)}; use one of these, or "
                "memory_kind=None for the default"
            )
        return kind, None if kind == "device" else kind
    default = default_kind(devices[0])
    if kind is None or kind == default:
        return default, None
    _check_kind(devices[0], kind)
    return kind, kind


def _check_kind(device: Any, kind: str) -> None:
    """Raises ShardingError unless `device` has memory of this kind."""
    kinds = [m.kind for m in device.addressable_memories()]
    if kind not in kinds and device.process_index == device.client.process_index():
        raise errors.ShardingError(
            f"Could not find memory addressable by device {device.device_kind}. Device {device.device_kind} can "
            f"address the following memory kinds: {', '.join(kinds)}. Got memory kind: {kind}; use one of these, or "
            "memory_kind=None for the default"
        )


def kind_of(space: Space, device: Any) -> str | None:
    """The kind of memory that a Space is on a device; None is the default one. UnsupportedError for the host's where
    there is none beside the device."""
    if space is Space.Device:
        return None
    kinds = [m.kind for m in device.addressable_memories()]
    found = next((k for k in ("pinned_host", "unpinned_host") if k in kinds), None)
    if found is None:
        raise errors.UnsupportedError(f"{device.device_kind} devices have no memory on the host beside them: {kinds}")
    return found
