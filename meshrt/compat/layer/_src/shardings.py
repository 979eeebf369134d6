"""What `jax._src.sharding` and `jax._src.sharding_impls` compute of shardings."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from meshrt import errors
from meshrt.compat.layer._src.core import physical_aval
from meshrt.sharding import NamedSharding, PartitionSpec

__all__ = [
    "NonUniformShardingError", "array_mapping_to_axis_resources", "common_devices_indices_map", "device_replica_id_map",
    "flatten_spec", "get_array_mapping", "get_process_index_and_count", "local_to_global_shape",
    "make_key_array_phys_sharding", "named_sharding_to_xla_hlo_sharding", "num_addressable_indices",
    "physical_sharding", "remove_size_one_mesh_axis",
]  # fmt: skip


class NonUniformShardingError(errors.MeshrtError, ValueError):
    """The processes of a job hold pieces of an array that no single number describes."""


def common_devices_indices_map(s: Any, global_shape: Sequence[int]) -> dict[Any, tuple[slice, ...]]:
    """By device, the part of an array of `global_shape` that it has."""
    found: dict[Any, tuple[slice, ...]] = s.devices_indices_map(tuple(global_shape))
    return found


def _hashable(index: Sequence[slice]) -> tuple[tuple[Any, Any, Any], ...]:
    return tuple((i.start, i.stop, i.step) for i in index)


def device_replica_id_map(sharding: Any, global_shape: Sequence[int]) -> dict[Any, int]:
    """By device, how many devices before it have the same part of an array."""
    count: dict[Any, int] = {}
    found = {}
    for device, index in sharding.devices_indices_map(tuple(global_shape)).items():
        key = _hashable(index)
        found[device] = count.get(key, 0)
        count[key] = found[device] + 1
    return found


def num_addressable_indices(tensor_sharding: Any, dim: int, global_shape: Sequence[int]) -> int:
    """How many indices of dimension `dim` the devices of this process have elements at."""
    mine = tensor_sharding.addressable_devices_indices_map(tuple(global_shape)).values()
    return len({i for index in mine for i in range(*index[dim].indices(global_shape[dim]))})


def _parts_by_process(sharding: Any, dim: int, ndims: int) -> dict[int, frozenset[Any]]:
    """By process, the parts of dimension `dim` that its devices have, of a shape that every sharding divides."""
    shape = tuple(sharding.tiling(ndims))
    found: dict[int, set[Any]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        found.setdefault(device.process_index, set()).add(_hashable(index[dim : dim + 1]))
    return {process: frozenset(parts) for process, parts in found.items()}


def get_process_index_and_count(tensor_sharding: Any, dim: int, ndims: int) -> tuple[int, int]:
    """Which part of dimension `dim` this process holds, and of how many; NonUniformShardingError if processes hold
    overlapping parts, or parts of several sizes."""
    groups = _parts_by_process(tensor_sharding, dim, ndims)
    different = sorted(set(groups.values()), key=lambda parts: min(p[0][0] or 0 for p in parts))
    if len({p for parts in different for p in parts}) != sum(map(len, different)) or len({*map(len, different)}) > 1:
        raise NonUniformShardingError(f"the processes hold no equal parts of dimension {dim} under {tensor_sharding}")
    mine = next(iter(tensor_sharding.addressable_devices)).process_index
    return different.index(groups[mine]), len(different)


def local_to_global_shape(sharding: Any, local_shape: Sequence[int]) -> tuple[int | None, ...]:
    """The shape of the array of which this process holds one of `local_shape`; None where that does not follow."""
    sizes: list[int | None] = []
    for dim, size in enumerate(local_shape):
        try:
            sizes.append(size * get_process_index_and_count(sharding, dim, len(local_shape))[1])
        except NonUniformShardingError:
            sizes.append(None)
    return tuple(sizes)


def array_mapping_to_axis_resources(array_mapping: Mapping[Hashable, int]) -> PartitionSpec:
    """The spec of an array whose dimension `array_mapping[axis]` each mesh axis splits."""
    split: dict[int, list[Hashable]] = {}
    for axis, dim in array_mapping.items():
        split.setdefault(dim, []).append(axis)
    entries = [split.get(d, []) for d in range(max(split, default=-1) + 1)]
    return PartitionSpec(*(None if not e else e[0] if len(e) == 1 else tuple(e) for e in entries))


def flatten_spec(spec: PartitionSpec) -> list[Any]:
    """The entries of a spec, those of several axes as that many."""
    return [axis for entry in spec for axis in (entry if isinstance(entry, tuple) else (entry,))]


def get_array_mapping(axis_resources: PartitionSpec) -> OrderedDict[Any, int]:
    """By mesh axis, the dimension that it splits."""
    named = [(axis, d) for d, e in enumerate(axis_resources) for axis in (e if isinstance(e, tuple) else (e,))]
    return OrderedDict((axis, d) for axis, d in named if axis is not None and axis is not PartitionSpec.UNCONSTRAINED)


def remove_size_one_mesh_axis(spec: PartitionSpec, mesh: Any) -> PartitionSpec:
    """The spec without the axes that split nothing."""
    sizes = dict(mesh.shape)

    def kept(entry: Any) -> Any:
        if isinstance(entry, tuple):
            left = tuple(axis for axis in entry if sizes[axis] != 1)
            return left[0] if len(left) == 1 else left or None
        return None if sizes.get(entry) == 1 else entry

    return spec.update(partitions=tuple(map(kept, spec)))


def physical_sharding(aval: Any, sharding: Any) -> Any:
    """The sharding of the numbers that keys of a type consist of, with entries for their own dimensions, which are
    whole on each device."""
    if not isinstance(sharding, NamedSharding) or sharding.mesh.size == 1:
        return sharding
    own = (None,) * (physical_aval(aval).ndim - aval.ndim)
    return sharding.update(spec=sharding.spec.update(partitions=(*sharding.spec, *own)))


make_key_array_phys_sharding = physical_sharding


def named_sharding_to_xla_hlo_sharding(self: Any, num_dimensions: int) -> Any:
    """The sharding of arrays of `num_dimensions` as XLA has it."""
    return self._to_xla_hlo_sharding(num_dimensions)
