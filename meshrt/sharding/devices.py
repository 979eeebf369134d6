"""How this package comes to devices: by what the runtime hands in, as it alone knows the clients.

A mesh holds devices and asks for none; only the defaults of `make_mesh` and pickled meshes, which name devices by id,
have to look them up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors

__all__ = ["lookup", "lookup_by_id", "provide"]

_devices: Callable[[str | None], Sequence[Any]] | None = None


def provide(devices: Callable[[str | None], Sequence[Any]]) -> None:
    """`devices(platform)` gives all devices of a platform (None: the default one), in order of id."""
    global _devices
    _devices = devices


def lookup(platform: str | None = None) -> Sequence[Any]:
    """All devices of a platform, which starts it if need be. BackendError where no runtime has been imported."""
    if _devices is None:
        raise errors.BackendError("no runtime has said which devices there are; import meshrt, or pass devices")
    return _devices(platform)


def lookup_by_id(platform: str, ids: Sequence[int], what: str) -> list[Any]:
    """The devices of these ids. MeshError, calling it `what`, if this process does not have them."""
    by_id = {d.id: d for d in lookup(platform)}
    missing = [i for i in ids if i not in by_id]
    if missing:
        raise errors.MeshError(
            f"{what} has {platform} devices with ids {missing}, which this process does not have (it has "
            f"{sorted(by_id)}); start with as many devices as when it was pickled"
        )
    return [by_id[i] for i in ids]
