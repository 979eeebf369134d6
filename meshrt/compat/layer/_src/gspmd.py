"""Shardings given as XLA's are NamedShardings here, over a mesh of one axis for each dimension that is split, which
remember what they were given as."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.compat.layer._src.op_shardings import get_num_ways_dim_sharded
from meshrt.sharding import Mesh, NamedSharding, PartitionSpec
from meshrt.xla.jaxlib_api import HloSharding

__all__ = ["GSPMDSharding", "parse_flatten_op_sharding"]


class GSPMDSharding(NamedSharding):
    """`GSPMDSharding(devices, hlo_sharding)`: the sharding that gives each device the same part."""

    __slots__ = ("_hlo_sharding",)

    _hlo_sharding: Any

    def __new__(cls, devices: Sequence[Any], op_sharding: Any, *, memory_kind: str | None = None) -> GSPMDSharding:
        read = op_sharding if isinstance(op_sharding, HloSharding) else HloSharding.from_proto(op_sharding)
        placed, spec = np.array(list(devices), dtype=object), PartitionSpec()
        names = ["replicas"]
        if not read.is_replicated() and len(placed) > 1:
            parts, replicas = get_num_ways_dim_sharded(read)
            placed = placed[np.array(read.tile_assignment_devices()).reshape(*parts, replicas)]
            names = [*(f"dim{d}" for d in range(len(parts))), "replicas"]
            spec = PartitionSpec(*(name if n > 1 else None for name, n in zip(names, parts)))
        like = NamedSharding(Mesh(placed, names), spec, memory_kind=memory_kind)
        made = object.__new__(cls)
        for name, value in {
            **{slot: getattr(like, slot) for slot in NamedSharding.__slots__},
            "_hlo_sharding": read,
        }.items():
            object.__setattr__(made, name, value)
        for name in ("signatures", "native", "places"):
            object.__setattr__(made, name, {})
        # One object for all that put the same parts on the same devices, as of every sharding.
        kept: GSPMDSharding = like.mesh._shardings.setdefault((cls, spec, like.memory_kind), made)
        return kept

    @classmethod
    def get_replicated(cls, device_assignment: Sequence[Any], *, memory_kind: str | None = None) -> GSPMDSharding:
        """The one that gives every device the whole."""
        return cls(device_assignment, HloSharding.replicate(), memory_kind=memory_kind)

    def with_memory_kind(self, kind: str | None) -> GSPMDSharding:
        """The same parts in another memory of the devices; ShardingError if they have none of this kind."""
        return GSPMDSharding(self._given_devices(), self._hlo_sharding, memory_kind=kind)

    def _given_devices(self) -> list[Any]:
        """The devices as XLA's sharding counts them."""
        if self._hlo_sharding.is_replicated():
            return list(self.device_assignment)
        order = self._hlo_sharding.tile_assignment_devices()
        return [device for _, device in sorted(zip(order, self.device_assignment))]

    def __reduce__(self) -> tuple[Any, ...]:
        named = Mesh(np.array(self._given_devices(), dtype=object), ("devices",))  # which knows how to find its devices
        return (_rebuilt, (named, self._hlo_sharding.to_proto(), self.other_memory))

    def __repr__(self) -> str:
        kind = f", memory_kind={self.memory_kind}" if self.memory_kind is not None else ""
        return f"GSPMDSharding({self._hlo_sharding!r}{kind})"


def _rebuilt(named: Mesh, op_sharding: Any, memory_kind: str | None) -> GSPMDSharding:
    return GSPMDSharding(list(named.devices.flat), op_sharding, memory_kind=memory_kind)


def _tile_steps(order: np.ndarray, mesh_shape: Sequence[int], axis: int) -> list[int]:
    """How far one step along a mesh axis goes along each dimension of the tiles."""
    here = np.argwhere(order == 0)[0]
    there = np.argwhere(order == math.prod(mesh_shape[axis + 1 :]))[0]
    return [int(b - a) for a, b in zip(here, there)]


def parse_flatten_op_sharding(hlo_sharding: Any, mesh: Any) -> list[PartitionSpec]:
    """The specs over `mesh` that XLA's sharding is, one for each part of a tuple. ArgumentValueError if it is none."""
    read = hlo_sharding if isinstance(hlo_sharding, HloSharding) else HloSharding.from_proto(hlo_sharding)
    if read.tuple_elements():
        return [spec for part in read.tuple_elements() for spec in parse_flatten_op_sharding(part, mesh)]
    if read.is_replicated():
        return [PartitionSpec()]
    parts, replicas = get_num_ways_dim_sharded(read)
    order = np.array(read.tile_assignment_devices()).reshape(*parts, replicas)
    sizes = tuple(mesh.shape.values())
    axes: list[list[tuple[int, Any]]] = [[] for _ in parts]
    for i, name in enumerate(mesh.axis_names):
        for d, step in enumerate(_tile_steps(order, sizes, i)[: len(parts)] if sizes[i] > 1 else ()):
            if step:
                axes[d].append((step, name))
    entries: list[Any] = []
    for found, count in zip(axes, parts):
        names = [name for _, name in sorted(found, key=lambda pair: -pair[0])]
        if math.prod(mesh.shape[name] for name in names) != count:
            raise errors.ArgumentValueError(f"the axes of {mesh} do not make the {count} parts of {hlo_sharding}")
        entries.append(None if not names else names[0] if len(names) == 1 else tuple(names))
    while entries and entries[-1] is None:
        entries.pop()
    return [PartitionSpec(*entries)]
