"""Where a call's meshes and devices were named, in words for errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt.sharding.mesh import Mesh

__all__ = ["Origin", "made_at", "on", "said", "way_out"]

# Where a mesh or a device was named: a text, or a function that makes it (it is needed for errors only).
Origin = str | Callable[[], str]


def way_out(first: str, second: str) -> str:
    """What to do where `first` and `second` name different devices."""
    for origin in (first, second):
        if origin.startswith("device_put at "):
            return (
                "Inside a jitted function device_put cannot move a value to other devices, only spread it over those "
                "of the program: move the array before the call or its result after it, or name a sharding over the "
                "mesh that the program runs on"
            )
    return (
        "Use shardings over the same mesh, move one of the arrays with meshrt.device_put before the call, or name an "
        "AbstractMesh where no devices are meant"
    )


def made_at(mesh: Mesh, origin: Origin) -> str:
    """An origin with the line that made its mesh."""
    return f"{said(origin)} (its mesh made at {mesh.source})"


def on(where: Mesh | Sequence[Any]) -> str:
    """The devices, and with a mesh also what it looks like and where it was made."""
    if isinstance(where, Mesh):
        return (
            f"{_ids(where.flat_devices)} on platform {_platform(where.flat_devices)} ({where}, made at {where.source})"
        )
    return f"{_ids(where)} on platform {_platform(where)}"


def _platform(devices: Sequence[Any]) -> str:
    return str(devices[0].platform).upper()


def _ids(devices: Sequence[Any]) -> str:
    return f"device ids {[d.id for d in devices]}" if len(devices) > 1 else f"device {devices[0].id}"


def said(origin: Origin) -> str:
    """An origin as a text."""
    return origin() if callable(origin) else origin
