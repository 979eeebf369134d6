"""Shardings given as XLA's are NamedShardings here: over a mesh of one axis for each dimension that is split."""

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


class GSPMDSharding:
    """`GSPMDSharding(devices, hlo_sharding)` is a NamedSharding that gives each device the same part."""

    def __new__(cls, devices: Sequence[Any], op_sharding: Any, *, memory_kind: str | None = None) -> Any:
        read = op_sharding if isinstance(op_sharding, HloSharding) else HloSharding.from_proto(op_sharding)
        devices = list(devices)
        if read.is_replicated() or len(devices) == 1:
            return cls.get_replicated(devices, memory_kind=memory_kind)
        parts, replicas = get_num_ways_dim_sharded(read)
        order = np.array(read.tile_assignment_devices()).reshape(*parts, replicas)
        names = [f"dim{d}" for d in range(len(parts))]
        placed = np.array(devices, dtype=object)[order]
        spec = PartitionSpec(*(name if n > 1 else None for name, n in zip(names, parts)))
        return NamedSharding(Mesh(placed, (*names, "replicas")), spec, memory_kind=memory_kind)

    @staticmethod
    def get_replicated(device_assignment: Sequence[Any], *, memory_kind: str | None = None) -> Any:
        """The one that gives every device the whole."""
        mesh = Mesh(np.array(list(device_assignment), dtype=object), ("replicas",))
        return NamedSharding(mesh, PartitionSpec(), memory_kind=memory_kind)


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
