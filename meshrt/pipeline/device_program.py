"""What is handed to a compiler for a mesh."""

from __future__ import annotations

from typing import NamedTuple

from meshrt.sharding.named import NamedSharding

__all__ = ["DeviceProgram"]


class DeviceProgram(NamedTuple):
    """What compiling takes: a module, XLA's `mode` for it, and the boundary's shardings over the AbstractMesh."""

    module: str
    mode: str
    arg_shardings: tuple[NamedSharding, ...]
    out_shardings: tuple[NamedSharding, ...]
