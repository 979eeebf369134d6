"""Signatures: what dispatch needs to know of an array, as one interned object."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from meshrt.core.interning import sweep
from meshrt.core.types import ShapedArray
from meshrt.heuristics import KEPT_SHAPES, KEPT_SIGNATURES
from meshrt.sharding.layout import Layout
from meshrt.sharding.named import Sharding
from meshrt.sharding.typed import typed
from meshrt.xla import jaxlib_api
from meshrt.xla.host_memory import aligned_zeros

__all__ = [
    "Signature", "extents", "filled", "handlers", "local_positions", "native_sharding", "shard_slices", "signature",
]  # fmt: skip


class Signature:
    """Type, sharding and committedness of arrays; interned, so compared and hashed by identity.

    physical  the type of the value as devices know it: a key's words
    stored    the type of the buffer: `physical`, where parts differ in size filled up to parts of the largest
    layout    the order of elements in memory; None is row-major, as programs take and return them
    parts     the physical shapes of this process's parts where they differ; None where all are alike
    """

    __slots__ = (
        "__weakref__",
        "aval",
        "committed",
        "dtype",
        "layout",
        "local",
        "local_devices",
        "native",
        "parts",
        "physical",
        "shape",
        "sharding",
        "stored",
    )

    aval: ShapedArray
    sharding: Sharding
    committed: bool

    def __init__(self, aval: ShapedArray, sharding: Sharding, committed: bool, layout: Layout | None = None):
        self.aval, self.sharding, self.committed, self.layout = aval, sharding, committed, layout
        self.shape, self.dtype = aval.shape, aval.dtype
        self.physical = self.stored = aval.physical()
        self.parts: tuple[tuple[int, ...], ...] | None = None
        self.native = native_sharding(sharding, aval)
        self.local = tuple(local_positions(sharding))
        self.local_devices = tuple(sharding.device_assignment[p] for p in self.local)
        if sharding.uneven and not sharding.splits_evenly(aval.shape):
            self._pad()

    def _pad(self) -> None:
        sharding, suffix = self.sharding, self.physical.shape[self.aval.ndim :]
        tiling = sharding.tiling(self.aval.ndim)
        whole = tuple(n * parts for n, parts in zip(sharding.shard_shape(self.shape), tiling))
        self.stored = self.physical.with_shape(whole + suffix)
        indices = sharding.shard_indices(self.shape)
        self.parts = tuple(extents(indices[p], self.shape) + suffix for p in self.local)

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """The physical shape of one device's buffer."""
        return self.sharding.shard_shape(self.shape) + self.physical.shape[self.aval.ndim :]

    def __repr__(self) -> str:
        return f"Signature({self.aval}, {self.sharding}, committed={self.committed})"


def signature(aval: ShapedArray, sharding: Sharding, committed: bool = True, layout: Layout | None = None) -> Signature:
    """The one Signature of these; its type says how Explicit axes split the array, whatever `aval` says.

    Raises:
      IndivisibleError, RankMismatchError: the sharding does not fit the shape.
      MeshError: the sharding has no devices.
    """
    key = (aval, committed) if layout is None else (aval, committed, layout)
    found = sharding.signatures.get(key)
    if found is None:
        sharding.shard_shape(aval.shape)
        made = typed(aval, sharding)
        if made is not aval:
            found = signature(made, sharding, committed, layout)
        else:
            found = Signature(aval, sharding, committed, layout)
        with _lock:
            kept = sharding.signatures
            # Each time as many as that were added.
            if len(kept) >= KEPT_SIGNATURES and len(kept) % KEPT_SIGNATURES == 0:
                sweep(kept)
            found = kept.setdefault(key, found)
    return found


_lock = threading.Lock()


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
        made = jaxlib_api.native_sharding(sharding.device_assignment, tiling, tiles, sharding.other_memory)
        found = sharding.native.setdefault(key, made)
    return found


def extents(index: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the part `index` (as a sharding's `shard_indices` has it) of an array of `shape`."""
    return tuple(n if s.stop is None else s.stop - s.start for s, n in zip(index, shape))


def filled(part: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A part in a buffer of `shape`, zeros behind its end; itself if it has that shape."""
    if part.shape == shape:
        return part
    out = aligned_zeros(shape, part.dtype)
    out[tuple(map(slice, part.shape))] = part
    return out


def shard_slices(value: np.ndarray, sharding: Sharding, shape: tuple[int, ...]) -> list[np.ndarray]:
    """What this process's devices hold of a host value (of global `shape`); equal parts are one object."""
    held = local_parts(sharding, shape)
    if sharding.uneven:
        largest = sharding.shard_shape(shape) + value.shape[len(shape) :]
        parts = [filled(value[index], largest) for index in held.indices]
    else:
        parts = [value[index] for index in held.indices]
    return [parts[k] for k in held.which]


class LocalParts(NamedTuple):
    """What this process holds of arrays of one shape: the different parts, and which of them each of its devices has.

    `positions` are its devices' places in the device assignment.
    """

    indices: tuple[tuple[slice, ...], ...]
    which: tuple[int, ...]
    positions: tuple[int, ...]


def local_parts(sharding: Sharding, shape: tuple[int, ...]) -> LocalParts:
    """Made once per sharding and shape."""
    found: LocalParts | None = sharding.places.get(shape)
    if found is None:
        positions = tuple(local_positions(sharding))
        indices, tiles = sharding.shard_indices(shape), sharding.tile_indices(len(shape)).tolist()
        seen: dict[tuple[int, ...], int] = {}
        which = tuple(seen.setdefault(tuple(tiles[p]), len(seen)) for p in positions)
        first = [positions[which.index(k)] for k in range(len(seen))]
        made = LocalParts(tuple(indices[p] for p in first), which, positions)
        if len(sharding.places) >= KEPT_SHAPES:
            sharding.places.clear()
        found = sharding.places.setdefault(shape, made)
    return found


def local_positions(sharding: Sharding) -> list[int]:
    """Positions in the device assignment that belong to this process."""
    devices = sharding.device_assignment
    here = devices[0].client.process_index()
    return [i for i, d in enumerate(devices) if d.process_index == here]


def handlers(signatures: Sequence[Signature]) -> list[Any]:
    """jaxlib's makers of result buffers, one for each signature."""
    return [jaxlib_api.result_handler(s.stored, s.native) for s in signatures]
