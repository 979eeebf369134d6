"""Attributes that JAX's objects have for themselves, and that libraries and tests written for it look at.

They are put on meshrt's classes by `as_jax`, so that programs that do not call it see none of them.
"""

from __future__ import annotations

from typing import Any

from meshrt import errors
from meshrt.jit import JitFunction
from meshrt.random import key_data
from meshrt.runtime.array import Array, signature
from meshrt.runtime.assembly import make_array_from_single_device_arrays
from meshrt.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

__all__ = ["attach"]


def _on_host(x: Any) -> Any:
    return x._npy


def _keep_on_host(x: Any, value: Any) -> None:
    x._npy = value


def _made(
    x: Array, aval: Any, sharding: Any, arrays: Any = None, committed: bool = True, _skip_checks: bool = False
) -> None:
    """The constructor, which JAX's programs give a type, a sharding and one array for each device. (Here it is given a
    buffer and a signature.)"""
    if arrays is None:
        x._buf, x._sig = aval, sharding
        return
    for part in arrays:
        if part.dtype != aval.dtype:
            raise errors.ArgumentValueError(
                f"Input buffers to `Array` must have matching dtypes. Got {part.dtype}, expected {aval.dtype} for "
                f"buffer: {part}"
            )
    made = make_array_from_single_device_arrays(aval.shape, sharding, arrays, dtype=aval.dtype)
    kind = made.aval.update(weak_type=aval.weak_type)
    x._buf, x._sig = made._buf, signature(kind, made.sharding, committed)


def _of_rank(spec: PartitionSpec, ndim: int) -> PartitionSpec:
    """The spec with an entry for each dimension."""
    missing = ndim - len(spec.partitions)
    return spec.update(partitions=(*spec.partitions, *[None] * missing)) if missing > 0 else spec


_ATTRIBUTES: dict[type, dict[str, Any]] = {
    Array: {
        "__init__": _made,
        "_arrays": property(lambda x: [shard.data for shard in x.addressable_shards]),
        "_base_array": property(key_data),
        "_impl": property(lambda x: x.dtype.impl),
        "_npy_value": property(_on_host, _keep_on_host),
        "_sharding": property(lambda x: x.sharding),
    },
    JitFunction: {"_fun": property(lambda f: f.fun)},
    NamedSharding: {"_memory_kind": property(lambda s: s.memory_kind), "_logical_device_ids": None},
    PartitionSpec: {"_normalized_spec_for_aval": _of_rank, "_partitions": property(lambda s: s.partitions)},
    SingleDeviceSharding: {"_device": property(lambda s: s.device), "_memory_kind": property(lambda s: s.memory_kind)},
}


def attach() -> None:
    """Puts them there."""
    for owner, attributes in _ATTRIBUTES.items():
        for name, value in attributes.items():
            setattr(owner, name, value)
