"""Signatures: what dispatch needs to know of an array, as one interned object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt.core.types import ShapedArray
from meshrt.runtime import jaxlib_api
from meshrt.sharding.named import Sharding

__all__ = ["Signature", "handlers", "local_positions", "native_sharding", "shard_slices", "signature"]


class Signature:
    """Type, sharding and committedness of arrays; interned, so compared and hashed by identity."""

    __slots__ = (
        "__weakref__",
        "aval",
        "committed",
        "dtype",
        "local",
        "local_devices",
        "native",
        "physical",
        "shape",
        "sharding",
    )

    aval: ShapedArray
    sharding: Sharding
    committed: bool

    def __init__(self, aval: ShapedArray, sharding: Sharding, committed: bool):
        self.aval, self.sharding, self.committed = aval, sharding, committed
        self.shape, self.dtype = aval.shape, aval.dtype
        self.physical = aval.physical()
        self.native = native_sharding(sharding, aval)
        self.local = tuple(local_positions(sharding))
        self.local_devices = tuple(sharding.device_assignment[p] for p in self.local)

    def __repr__(self) -> str:
        return f"Signature({self.aval}, {self.sharding}, committed={self.committed})"


def signature(aval: ShapedArray, sharding: Sharding, committed: bool = True) -> Signature:
    """The one Signature of these three.

    Raises:
      IndivisibleError, RankMismatchError: the sharding does not fit the shape.
      MeshError: the sharding has no devices.
    """
    key = (aval, committed)
    found = sharding.signatures.get(key)
    if found is None:
        sharding.shard_shape(aval.shape)
        found = sharding.signatures.setdefault(key, Signature(aval, sharding, committed))
    return found


def native_sharding(sharding: Sharding, aval: ShapedArray) -> Any:
    """jaxlib's counterpart of a sharding for values of this type; cached on the sharding by rank."""
    ndim, suffix = aval.ndim, aval.physical().ndim - aval.ndim
    key = (ndim, suffix)
    found = sharding.native.get(key)
    if found is None:
        tiles = sharding.tile_indices(ndim)
        if suffix:
            tiles = np.concatenate([tiles, np.zeros((len(tiles), suffix), tiles.dtype)], axis=1)
        tiling = sharding.tiling(ndim) + (1,) * suffix
        made = jaxlib_api.native_sharding(sharding.device_assignment, tiling, tiles, sharding.memory_kind)
        found = sharding.native.setdefault(key, made)
    return found


def shard_slices(value: np.ndarray, sharding: Sharding, shape: tuple[int, ...]) -> list[np.ndarray]:
    """The parts of a host value (of global `shape`) for this process's devices; equal parts are one object."""
    indices = sharding.shard_indices(shape)
    parts: dict[Any, np.ndarray] = {}
    out = []
    for p in local_positions(sharding):
        key = tuple((s.start, s.stop) for s in indices[p])
        part = parts.get(key)
        if part is None:
            part = parts[key] = value[indices[p]]
        out.append(part)
    return out


def local_positions(sharding: Sharding) -> list[int]:
    """Positions in the device assignment that belong to this process."""
    devices = sharding.device_assignment
    here = devices[0].client.process_index()
    return [i for i, d in enumerate(devices) if d.process_index == here]


def handlers(signatures: Sequence[Signature]) -> list[Any]:
    """jaxlib's makers of result buffers, one for each signature."""
    return [jaxlib_api.result_handler(s.physical, s.native) for s in signatures]
