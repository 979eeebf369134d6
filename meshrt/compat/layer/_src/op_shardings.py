"""`jax._src.op_shardings`: XLA's shardings, compared and as the parts that devices have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.numpy.names import missing as _missing
from meshrt.xla.jaxlib_api import HloSharding

__all__ = [
    "are_hlo_shardings_equal", "get_num_ways_dim_sharded", "is_hlo_sharding_replicated", "op_sharding_to_indices",
    "op_sharding_to_numpy_indices",
]  # fmt: skip


def _read(sharding: Any) -> Any:
    return sharding if isinstance(sharding, HloSharding) else HloSharding.from_proto(sharding)


def is_hlo_sharding_replicated(hc: Any) -> bool:
    """Whether every device has the whole."""
    hc = _read(hc)
    return bool(hc.num_devices() == 1 or hc.is_replicated())


def are_hlo_shardings_equal(h1: Any, h2: Any) -> bool:
    """Whether two shardings give every device the same part."""
    h1, h2 = _read(h1), _read(h2)
    return bool((is_hlo_sharding_replicated(h1) and is_hlo_sharding_replicated(h2)) or h1 == h2)


def get_num_ways_dim_sharded(hlo_sharding: Any, allow_partial_manual: bool = False) -> tuple[list[int], int]:
    """In how many parts each dimension is split, and how many devices have the same part."""
    hlo_sharding = _read(hlo_sharding)
    if hlo_sharding.is_replicated():
        return [], 1
    parts = list(hlo_sharding.tile_assignment_dimensions())
    kinds = len(hlo_sharding.subgroup_types())
    replicas = 1
    if hlo_sharding.replicate_on_last_tile_dim():
        replicas = parts.pop()
    elif kinds:
        replicas = math.prod(parts[-kinds:])
        parts = parts[:-kinds]
    return parts, replicas


def op_sharding_to_numpy_indices(hlo_sharding: Any, shape: Sequence[int], num_devices: int) -> np.ndarray:
    """By position of a device, the part (slices) of an array of `shape` that it has."""
    hlo_sharding = _read(hlo_sharding)
    indices = np.empty(num_devices, dtype=object)
    if hlo_sharding.is_replicated() or num_devices == 1:
        for i in range(num_devices):
            indices[i] = (slice(None),) * len(shape)
        return indices
    parts, replicas = get_num_ways_dim_sharded(hlo_sharding)
    if len(parts) != len(shape):
        raise errors.ArgumentValueError(
            f"a sharding of {len(parts)} dimensions is asked about an array of {len(shape)}"
        )
    for d, (size, count) in enumerate(zip(shape, parts)):
        if size % count:
            raise errors.ArgumentValueError(f"dimension {d} of size {size} is not divisible by its {count} parts")
    devices = iter(hlo_sharding.tile_assignment_devices())
    for position in np.ndindex(*parts):
        spans = [s // n for s, n in zip(shape, parts)]
        part = tuple(
            slice(None) if n == 1 else slice(i * span, (i + 1) * span) for i, n, span in zip(position, parts, spans)
        )
        for _ in range(replicas):
            indices[next(devices)] = part
    return indices


def op_sharding_to_indices(op_sharding: Any, shape: Sequence[int], num_devices: int) -> tuple[Any, ...]:
    """As `op_sharding_to_numpy_indices`, as a tuple."""
    return tuple(op_sharding_to_numpy_indices(op_sharding, shape, num_devices))


__getattr__ = _missing("jax._src.op_shardings", __all__)
