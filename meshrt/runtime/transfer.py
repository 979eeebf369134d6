"""Moving values: from the host to devices and back, and from one sharding to another."""

from __future__ import annotations

import copyreg
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import config, dtypes, errors, tree_util
from meshrt.core.types import ShapedArray, aval_of
from meshrt.runtime import backend, jaxlib_api, reshard
from meshrt.runtime.array import Array, Signature, copy_array, local_positions, shard_slices, signature
from meshrt.sharding.named import Sharding, SingleDeviceSharding

__all__ = [
    "SCALARS",
    "block_until_ready",
    "buffer_of",
    "copy_to_host_async",
    "device_get",
    "from_numpy",
    "make_array_from_callback",
    "make_array_from_process_local_data",
    "make_array_from_single_device_arrays",
    "put_leaf",
    "put_value",
    "scalar",
    "scalar_beside",
]


# ----------------------------------------------------------------------------------------------------------
# From the host.


def from_numpy(
    value: Any,
    sharding: Sharding | None = None,
    *,
    weak_type: bool = False,
    key_type: Any = None,
    may_alias: bool = False,
) -> Array:
    """An Array of a host value.

    Args:
      value: anything that NumPy makes an array of; of keys, their uint32 words.
      sharding: where to put it; by default the default device, uncommitted.
      key_type: the dtype of the result if it is a key array.
      may_alias: the value never changes, so the device may use its memory.
    """
    value = np.asarray(value)
    if key_type is not None:
        aval = ShapedArray(value.shape[: value.ndim - len(key_type.physical_suffix)], key_type)
    else:
        aval = ShapedArray(value.shape, dtypes.canonicalize_dtype(value.dtype), weak_type)
    committed = sharding is not None
    if sharding is None:
        sharding = SingleDeviceSharding(backend.default_device())
    sig = signature(aval, sharding, committed)
    return Array(buffer_of(value, sig, may_alias=may_alias), sig)


def buffer_of(value: Any, sig: Signature, *, may_alias: bool = False) -> Any:
    """A buffer of a host value (NumPy array, scalar) laid out as `sig` says; converts to its dtype."""
    physical = sig.physical
    if physical.dtype == dtypes.float0:
        raise errors.UnsupportedError(
            f"an array of dtype float0 ({physical.shape}) has no data to put on a device; it is the tangent of an "
            "integer "
            "or boolean value: leave it out"
        )
    try:
        host = np.asarray(value, dtype=physical.dtype)
    except OverflowError:
        raise errors.IntegerOverflowError(
            f"An overflow was encountered: {value!r} does not fit into {physical.dtype}. Pass a NumPy value of a "
            "wider dtype "
            "with meshrt.config.update('enable_x64', True), or a smaller number."
        ) from None
    sharding = sig.sharding
    devices = sharding.device_assignment
    if len(devices) == 1:
        return jaxlib_api.put(physical, sig.native, [host], devices, may_alias=may_alias)
    parts = shard_slices(host, sharding, sig.shape)
    return jaxlib_api.put(physical, sig.native, parts, sig.local_devices, may_alias=may_alias)


# Scalars whose value and type are a key. Complex ones have two zeros each way and are left out.
SCALARS = (bool, int, float, np.bool_, np.integer, np.floating)


def scalar(value: Any, sig: Signature) -> Array:
    """One of SCALARS laid out as `sig` says, kept for the next time: most are constants of a script.

    Nobody may donate it.
    """
    return _scalar(value, _sign(value), sig)


def scalar_beside(value: Any, neighbour: Array) -> Array:
    """One of SCALARS as an array on the one device of `neighbour`, kept as `scalar` is; not committed."""
    return _beside(value, _sign(value), neighbour._sig.sharding, config.trace_key())


def _sign(value: Any) -> float:
    """Tells 0.0 from -0.0, which are equal."""
    return 1.0 if value else math.copysign(1.0, value)


@functools.lru_cache(maxsize=4096, typed=True)
def _scalar(value: Any, sign: float, sig: Signature) -> Array:
    return Array(buffer_of(value, sig), sig)


@functools.lru_cache(maxsize=4096, typed=True)
def _beside(value: Any, sign: float, sharding: Any, settings: tuple) -> Array:
    return scalar(value, signature(aval_of(value), sharding, False))


backend.on_clear(_scalar.cache_clear)
backend.on_clear(_beside.cache_clear)


# ----------------------------------------------------------------------------------------------------------
# From one place to another.


def put_value(value: Any, sharding: Sharding, *, may_alias: bool) -> Array:
    """A value (no tracer) where `sharding` says, now, whatever is being traced."""
    return put_leaf(value, sharding, False, may_alias)


def put_leaf(leaf: Any, target: Sharding | None, donate: bool | None, may_alias: bool | None) -> Any:
    """One leaf of `device_put` (see there) that is no tracer; without a target an Array stays where it is."""
    if type(leaf) is Array:
        if target is None:
            return leaf if may_alias is not False else copy_array(leaf)
        return reshard.reshard(leaf, target, donate=bool(donate), may_alias=may_alias is not False)
    aval = aval_of(leaf)
    if target is None:
        sig = signature(aval, SingleDeviceSharding(backend.default_device()), False)
    else:
        sig = signature(aval, target, True)
    return Array(buffer_of(leaf, sig, may_alias=bool(may_alias)), sig)


def _reduce(array: Array) -> tuple[Any, ...]:
    key_type = array.aval.dtype if array.aval.is_key else None
    return _rebuild, (np.asarray(array._value), key_type, array.weak_type)


def _rebuild(value: np.ndarray, key_type: Any, weak_type: bool) -> Array:
    return from_numpy(value, weak_type=weak_type, key_type=key_type)


# Pickled arrays come back on the default device; here, as arrays do not know how they are made.
copyreg.pickle(Array, _reduce)


# ----------------------------------------------------------------------------------------------------------
# Back to the host, and waiting.


def copy_to_host_async(x: Any) -> Any:
    """Begins to fetch every array of a tree; returns the tree."""
    for leaf in tree_util.tree_leaves(x):
        if type(leaf) is Array:
            leaf.copy_to_host_async()
    return x


def device_get(x: Any) -> Any:
    """The tree with NumPy arrays in place of arrays (read-only); other leaves stay."""
    copy_to_host_async(x)
    return tree_util.tree_map(lambda leaf: leaf.__array__() if type(leaf) is Array else leaf, x)


def block_until_ready(x: Any) -> Any:
    """Waits until every array of a tree has been computed; returns the tree. Raises what a computation raised."""
    arrays = [leaf for leaf in tree_util.tree_leaves(x) if type(leaf) is Array]
    try:
        jaxlib_api.block_until_ready([a._buf for a in arrays])
    except jaxlib_api.XlaError:
        for a in arrays:
            a.block_until_ready()  # finds the one that failed, and says why
        raise
    return x


# ----------------------------------------------------------------------------------------------------------
# From parts.


def make_array_from_callback(
    shape: Sequence[int], sharding: Sharding, data_callback: Callable[[tuple[slice, ...]], Any], dtype: Any = None
) -> Array:
    """An Array whose parts `data_callback(index)` gives, asked once for each part that this process holds.

    Args:
      shape: the global shape.
      data_callback: slices of the global array -> its values there.
      dtype: the dtype of the result; needed if this process holds no part.
    """
    shape = tuple(int(s) for s in shape)
    shard_shape = sharding.shard_shape(shape)
    indices = sharding.shard_indices(shape)
    positions = local_positions(sharding)
    if not positions and dtype is None:
        raise errors.ArgumentValueError(
            "make_array_from_callback: this process holds no part of the array, so its dtype is unknown; pass dtype="
        )
    cache: dict[tuple, np.ndarray] = {}
    parts = []
    for p in positions:
        key = tuple((s.start, s.stop) for s in indices[p])
        part = cache.get(key)
        if part is None:
            part = np.asarray(data_callback(indices[p]), dtype=dtype)
            if part.shape != shard_shape:
                raise errors.ArgumentValueError(
                    f"make_array_from_callback: the callback gave an array of shape {part.shape} for index "
                    f"{indices[p]}, "
                    f"but {sharding!r} needs shape {shard_shape} there"
                )
            cache[key] = part
        parts.append(part)
    kinds = {part.dtype for part in cache.values()}
    if len(kinds) > 1:
        raise errors.ArgumentValueError(
            f"make_array_from_callback: the callback gave arrays of different dtypes: {sorted(map(str, kinds))}; "
            "pass dtype="
        )
    found = dtype if dtype is not None else kinds.pop()
    sig = signature(ShapedArray(shape, dtypes.canonicalize_dtype(np.dtype(found))), sharding, True)
    return _from_parts(parts, positions, sig)


def _from_parts(parts: Sequence[Any], positions: Sequence[int], sig: Signature) -> Array:
    devices = sig.sharding.device_assignment
    parts = [np.asarray(p, dtype=sig.physical.dtype) for p in parts]
    return Array(jaxlib_api.put(sig.physical, sig.native, parts, [devices[p] for p in positions], may_alias=False), sig)


def make_array_from_process_local_data(
    sharding: Sharding, local_data: Any, global_shape: Sequence[int | None] | None = None
) -> Array:
    """A global Array from the part of the data that each process has.

    Args:
      sharding: the sharding of the result.
      local_data: this process's rows (or whatever the sharding splits between processes); along a dimension where its
        size equals the global one it is taken to be the whole.
      global_shape: the shape of the result; None (for all, or a dimension) infers it from the local sizes.

    Raises:
      ArgumentValueError: the local sizes fit neither the whole nor this process's part.
    """
    local = np.asarray(local_data)
    ndim = local.ndim
    tiling, tiles = sharding.tiling(ndim), sharding.tile_indices(ndim)
    positions = local_positions(sharding)
    if not positions:
        raise errors.ArgumentValueError(
            "make_array_from_process_local_data: this process holds no part of the sharding"
        )
    mine = [sorted(set(tiles[positions, d].tolist())) for d in range(ndim)]
    shape = _global_shape(local.shape, global_shape, tiling, mine)
    sig = signature(ShapedArray(shape, dtypes.canonicalize_dtype(local.dtype)), sharding, True)
    shard_shape = sharding.shard_shape(shape)
    parts = []
    for p in positions:
        index = []
        for d in range(ndim):
            whole = local.shape[d] == shape[d]
            start = int(tiles[p, d]) if whole else mine[d].index(int(tiles[p, d]))
            index.append(slice(start * shard_shape[d], (start + 1) * shard_shape[d]))
        parts.append(local[tuple(index)])
    return _from_parts(parts, positions, sig)


def _global_shape(
    local: tuple[int, ...], given: Sequence[int | None] | None, tiling: tuple[int, ...], mine: list[list[int]]
) -> tuple[int, ...]:
    if given is not None and len(given) != len(local):
        raise errors.ArgumentValueError(
            f"make_array_from_process_local_data: global_shape {tuple(given)} and local data of shape {local} differ "
            "in rank"
        )
    out = []
    for d, size in enumerate(local):
        share = len(mine[d])
        asked = None if given is None else given[d]
        if asked is None:
            if size % share:
                raise errors.IndivisibleError(
                    f"make_array_from_process_local_data: this process holds {share} of the {tiling[d]} parts of "
                    "dimension "
                    f"{d}, but the local size {size} is not a multiple of {share}; make it {size + -size % share}"
                )
            asked = size // share * tiling[d]
        elif size != asked and size * tiling[d] != asked * share:
            raise errors.ArgumentValueError(
                f"make_array_from_process_local_data: dimension {d} of the local data has size {size}, but it must "
                "be the "
                f"whole {asked} or this process's part {asked * share // tiling[d]} ({share} of {tiling[d]} parts)"
            )
        out.append(int(asked))
    return tuple(out)


def make_array_from_single_device_arrays(
    shape: Sequence[int], sharding: Sharding, arrays: Sequence[Array], *, dtype: Any = None
) -> Array:
    """An Array from one Array per device of this process, in the order of the sharding or any other; does not copy.

    Raises:
      ArgumentValueError: wrong number, devices, shapes or dtypes.
    """
    shape = tuple(int(s) for s in shape)
    if not isinstance(arrays, Sequence) or any(type(a) is not Array for a in arrays):
        raise errors.ArgumentTypeError("make_array_from_single_device_arrays takes a list of meshrt.Arrays")
    devices = sharding.device_assignment
    wanted = [devices[p] for p in local_positions(sharding)]
    by_device = {}
    for a in arrays:
        if a.sharding.num_devices != 1:
            raise errors.ArgumentValueError(f"each array must be on one device. Got one with sharding {a.sharding!r}")
        by_device[a.device] = a
    if len(by_device) != len(arrays) or set(by_device) != set(wanted):
        raise errors.ArgumentValueError(
            f"make_array_from_single_device_arrays needs one array on each of this process's devices of the sharding, "
            f"{[d.id for d in wanted]}. Got arrays on {[a.device.id for a in arrays]}"
        )
    if not arrays and dtype is None:
        raise errors.ArgumentValueError("this process holds no part of the array, so its dtype is unknown; pass dtype=")
    kind = arrays[0].dtype if arrays else dtype
    sig = signature(ShapedArray(shape, kind), sharding, True)
    shard_shape = sharding.shard_shape(shape)
    for a in arrays:
        a._check()
        if a.shape != shard_shape or a.dtype != kind:
            raise errors.ArgumentValueError(
                f"Expected shard shape {shard_shape} and dtype {kind} for {sharding!r} and global shape {shape}. Got "
                f"{a.aval} on device {a.device}"
            )
    return Array(jaxlib_api.assemble(sig.physical, sig.native, [by_device[d]._buf for d in wanted]), sig)
