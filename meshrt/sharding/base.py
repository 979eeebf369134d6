"""What all shardings share: which part of an array each device holds, told from how often each dimension is split.

A sharding is a value: interned, compared by identity, and never holding an array.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.sharding.set_once import SetOnce
from meshrt.xla import jaxlib_api

__all__ = ["Sharding", "fitting_sizes"]


def fitting_sizes(size: int, parts: int) -> str:
    """The nearest sizes that so many parts divide, for messages.

    >>> fitting_sizes(7, 3), fitting_sizes(2, 3)
    ('6 or 9', '3')
    """
    above = size + -size % parts
    return f"{above - parts} or {above}" if size > parts else f"{above}"


Index = tuple[slice, ...]


class Sharding(SetOnce):
    """How an array is laid out over devices, and which ones: what NamedSharding and SingleDeviceSharding share.

    >>> sharding = meshrt.NamedSharding(meshrt.make_mesh((4,), ("x",)), meshrt.P("x"))
    >>> isinstance(sharding, meshrt.sharding.Sharding), sharding.shard_shape((8, 3)), sharding.num_devices
    (True, (2, 3), 4)
    """

    # `signatures` caches the dispatch keys of arrays with this sharding, `native` jaxlib's counterparts by rank,
    # `places` what this process holds of arrays by shape.
    __slots__ = ("__weakref__", "native", "places", "signatures")

    # The kind of memory on each device; None over an AbstractMesh where none was given.
    memory_kind: str | None
    # The same where it is not the default one of the devices, else None.
    other_memory: str | None
    mesh: Any
    # Whether dimensions may be split into parts that do not divide them.
    uneven: bool = False
    signatures: dict[Any, Any]
    native: dict[Any, Any]
    places: dict[tuple[int, ...], Any]

    @property
    def unreduced_axes(self) -> frozenset[Any]:
        """The mesh axes along which devices hold addends of the value."""
        return frozenset()

    @property
    def device_assignment(self) -> tuple[Any, ...]:
        """The devices in order: shard *i* is on device *i*."""
        raise NotImplementedError

    # JAX's name for it, which scripts use.
    _device_assignment = property(lambda self: self.device_assignment)

    @property
    def is_concrete(self) -> bool:
        """Whether the devices are known."""
        return True

    @property
    def device_set(self) -> set[Any]:
        """The devices, of all processes."""
        return set(self.device_assignment)

    @property
    def num_devices(self) -> int:
        """How many devices there are, of all processes."""
        return len(self.device_assignment)

    @property
    def addressable_devices(self) -> set[Any]:
        """The devices that belong to this process."""
        return {d for d in self.device_assignment if d.process_index == d.client.process_index()}

    @property
    def _addressable_device_assignment(self) -> tuple[Any, ...]:
        # (Checkpointing libraries ask for it under this name of JAX's.)
        mine = self.addressable_devices
        return tuple(d for d in self.device_assignment if d in mine)

    @property
    def has_addressable_devices(self) -> bool:
        """Whether this process has one of the devices."""
        return bool(self.addressable_devices)

    @property
    def is_fully_addressable(self) -> bool:
        """Whether all devices belong to this process."""
        return len(self.addressable_devices) == self.num_devices

    @property
    def is_fully_replicated(self) -> bool:
        """Whether every device holds the whole value."""
        raise NotImplementedError

    def tiling(self, ndim: int) -> tuple[int, ...]:
        """Into how many parts each dimension is split. RankMismatchError if `ndim` is too small."""
        raise NotImplementedError

    def tile_indices(self, ndim: int) -> np.ndarray:
        """int64[num_devices, ndim]: which part of each dimension each device holds."""
        raise NotImplementedError

    def shard_shape(self, global_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one shard; of the largest where the sharding is uneven.

        Raises:
          IndivisibleError: a dimension is not a multiple of the parts it is split into, and the sharding is not uneven.
          RankMismatchError: there are fewer dimensions than the sharding has entries for.
        """
        tiling = self.tiling(len(global_shape))
        if self.uneven:
            return tuple(-(-s // p) for s, p in zip(global_shape, tiling))
        for dim, (size, parts) in enumerate(zip(global_shape, tiling)):
            if size % parts:
                raise self._indivisible(tuple(global_shape), dim, size, parts, tiling)
        return tuple(s // p for s, p in zip(global_shape, tiling))

    def _indivisible(
        self, shape: tuple[int, ...], dim: int, size: int, parts: int, tiling: tuple[int, ...]
    ) -> errors.IndivisibleError:
        return errors.IndivisibleError(
            f"Sharding {self!r} implies that array axis {dim} is partitioned {parts} times, but the dimension size is "
            f"{size} (full shape: {shape}, per-dimension tiling factors: {list(tiling)} should evenly divide the "
            f"shape){self._split_over(dim)}. Make the dimension {fitting_sizes(size, parts)}, or do not shard axis "
            f"{dim}. Or let the last parts be shorter: NamedSharding(mesh, spec, uneven=True)."
        )

    def _split_over(self, dim: int) -> str:
        """The mesh axes that split a dimension, for messages."""
        return ""

    def devices_indices_map(self, global_shape: tuple[int, ...]) -> dict[Any, Index]:
        """Device -> the slices of the global array that it holds; dimensions that are not split give slice(None).

        Raises:
          IndivisibleError, RankMismatchError: as `shard_shape`.
        """
        return dict(zip(self.device_assignment, self.shard_indices(tuple(global_shape))))

    def shard_indices(self, global_shape: tuple[int, ...]) -> list[Index]:
        """The slices that each device of the assignment holds, in order. Raises what `shard_shape` raises."""
        shard = self.shard_shape(global_shape)
        tiling = self.tiling(len(global_shape))
        whole = slice(None)
        if self.uneven:  # the last parts are shorter, or empty
            return [
                tuple(
                    whole if parts == 1 else slice(min(t * size, end), min((t + 1) * size, end))
                    for t, size, parts, end in zip(row, shard, tiling, global_shape)
                )
                for row in self.tile_indices(len(global_shape)).tolist()
            ]
        return [
            tuple(
                whole if parts == 1 else slice(t * size, (t + 1) * size) for t, size, parts in zip(row, shard, tiling)
            )
            for row in self.tile_indices(len(global_shape)).tolist()
        ]

    def addressable_devices_indices_map(self, global_shape: tuple[int, ...]) -> dict[Any, Index]:
        """As `devices_indices_map`, for the devices of this process."""
        mine = self.addressable_devices
        return {d: i for d, i in self.devices_indices_map(global_shape).items() if d in mine}

    def splits_evenly(self, global_shape: tuple[int, ...]) -> bool:
        """Whether every part of a value of this shape has the same size."""
        return not any(size % parts for size, parts in zip(global_shape, self.tiling(len(global_shape))))

    def is_equivalent_to(self, other: Sharding, ndim: int) -> bool:
        """Whether both put the same parts of a value of `ndim` dimensions on the same devices in the same order."""
        if self is other:
            return True
        if not isinstance(other, Sharding) or not self.is_in_memory_of(other):
            return False
        if self.is_concrete != other.is_concrete or self.num_devices != other.num_devices:
            return False
        if self.is_concrete and self.device_assignment != other.device_assignment:
            return False
        return self.layout_key(ndim) == other.layout_key(ndim)

    def is_in_memory_of(self, other: Sharding) -> bool:
        """Whether both name the same kind of memory."""
        return self.other_memory == other.other_memory

    @property
    def is_in_default_memory(self) -> bool:
        """Whether it names the memory that its devices compute with."""
        return self.other_memory is None

    def layout_key(self, ndim: int) -> tuple[Any, ...]:
        """Which device (by position) holds which part; equal keys put the same data at the same positions."""
        tiling = self.tiling(ndim)
        if math.prod(tiling) == 1:
            return (tiling, self.num_devices)
        return (tiling, self.num_devices, self.tile_indices(ndim).tobytes())

    def with_memory_kind(self, kind: str | None) -> Sharding:
        """The same split in another memory of the devices."""
        raise NotImplementedError

    def check_compatible_aval(self, aval_shape: tuple[int, ...]) -> None:
        """RankMismatchError if values of this shape have too few dimensions for the sharding."""
        self.tiling(len(aval_shape))

    def _to_xla_hlo_sharding(self, num_dimensions: int) -> Any:
        """XLA's form of the sharding for values of so many dimensions."""
        return jaxlib_api.hlo_sharding(self.num_devices, self.tiling(num_dimensions), self.tile_indices(num_dimensions))
