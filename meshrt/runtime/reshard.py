"""From one sharding to another, outside compiled functions.

The cheapest way that fits is taken: sharing the buffer, listing its shards in another order, copying shard by shard
to other devices, a compiled program over the same devices, or through the host.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.types import ShapedArray
from meshrt.runtime import events, jaxlib_api
from meshrt.runtime.array import Array, Signature, copy_array, shard_slices, signature
from meshrt.sharding.named import Sharding

__all__ = ["reshard"]


def reshard(array: Array, target: Sharding, *, donate: bool = False, may_alias: bool = True) -> Array:
    """`array` with another sharding, committed.

    Args:
      donate: `array` is not needed any more; it may be deleted.
      may_alias: the result may share memory with `array`.

    Raises:
      IndivisibleError: the target does not fit the shape. UnsupportedError: the parts would have to cross processes
        to devices that hold none of the array.
    """
    array._check()
    sig = signature(array.aval, target, True)
    if sig is array._sig:
        return array if may_alias else copy_array(array)
    source = array.sharding
    if source.device_assignment == target.device_assignment and _same_layout(source, target, array.ndim):
        if source.memory_kind == target.memory_kind:
            out = Array(jaxlib_api.rewrap(array._buf, sig.physical, sig.native), sig)
            return out if may_alias else copy_array(out)
    out = Array(_moved(array, sig, donate), sig)
    if donate and not array.is_deleted():
        array._fate = "donated to device_put"
        array._buf.delete()
    return out


def _same_layout(a: Sharding, b: Sharding, ndim: int) -> bool:
    return a.layout_key(ndim) == b.layout_key(ndim)


def _moved(array: Array, sig: Signature, donate: bool) -> Any:
    source, target = array.sharding, sig.sharding
    one_client = source.device_assignment[0].client is target.device_assignment[0].client
    if one_client and _same_layout(source, target, array.ndim) and _processes(source) == _processes(target):
        return jaxlib_api.copy_to_devices([array._buf], [target.device_assignment], [sig.native], donate=donate)[0]
    if one_client and _same_parts(source, target, array.ndim):
        return jaxlib_api.reorder(array._buf, sig.native)
    events.record("reshard", aval=array.aval, source=source, target=target)
    on_accelerator = source.device_assignment[0].platform != "cpu"
    if one_client and source.device_set == target.device_set and source.num_devices > 1:
        if on_accelerator or not source.is_fully_addressable:
            return _by_program(array, sig)
    return _through_host(array, sig)


def _processes(sharding: Sharding) -> list[int]:
    return [d.process_index for d in sharding.device_assignment]


def _same_parts(source: Sharding, target: Sharding, ndim: int) -> bool:
    """Whether every device keeps the part it has (only the order of the devices differs)."""
    if source.tiling(ndim) != target.tiling(ndim) or source.device_set != target.device_set:
        return False
    held = dict(zip(source.device_assignment, source.tile_indices(ndim).tolist()))
    return all(held[d] == row for d, row in zip(target.device_assignment, target.tile_indices(ndim).tolist()))


def _through_host(array: Array, sig: Signature) -> Any:
    target = sig.sharding
    try:
        value = array._value
    except errors.NonAddressableError as e:
        raise errors.UnsupportedError(
            f"device_put of {array.aval} from {array.sharding!r} to {target!r} would move parts between processes; "
            "only the "
            "devices that hold the array can do so among themselves. Reshard it there first (to a replicated sharding "
            "over the same devices), then put it."
        ) from e
    events.record("host_reshard", aval=array.aval, source=array.sharding, target=target)
    parts = shard_slices(value, target, array.shape)
    # The value is never written to, so devices whose memory is the host's may share it.
    return jaxlib_api.put(sig.physical, sig.native, parts, sig.local_devices, may_alias=True)


# ----------------------------------------------------------------------------------------------------------
# A program over the same devices: XLA's partitioner moves the parts.


def _by_program(array: Array, sig: Signature) -> Any:
    source, target = array.sharding, sig.sharding
    order = source.device_assignment
    place = {d: i for i, d in enumerate(order)}
    ndim = array.ndim
    tiles = target.tile_indices(ndim)
    by_source = np.empty_like(tiles)
    for row, device in enumerate(target.device_assignment):
        by_source[place[device]] = tiles[row]
    suffix = sig.physical.ndim - ndim
    run = _program(
        sig.physical,
        len(order),
        source.tiling(ndim) + (1,) * suffix,
        _padded(source.tile_indices(ndim), suffix).tobytes(),
        target.tiling(ndim) + (1,) * suffix,
        _padded(by_source, suffix).tobytes(),
    )
    loaded = run.load(order)
    in_order = jaxlib_api.native_sharding(order, target.tiling(ndim) + (1,) * suffix, _padded(by_source, suffix))
    plan = [jaxlib_api.result_handler(sig.physical, in_order)]
    (out,) = loaded.execute_with([array._buf], plan)
    if target.device_assignment == order:
        return jaxlib_api.rewrap(out, sig.physical, sig.native)
    return jaxlib_api.reorder(out, sig.native)


def _padded(tiles: np.ndarray, suffix: int) -> np.ndarray:
    return np.concatenate([tiles, np.zeros((len(tiles), suffix), tiles.dtype)], axis=1)


@functools.lru_cache(512)
def _program(aval: ShapedArray, n: int, tiling_in: tuple, tiles_in: bytes, tiling_out: tuple, tiles_out: bytes) -> Any:
    from meshrt.lowering.types import mlir_type  # lowering stands above the runtime
    from meshrt.runtime.executable import compile_program

    def hlo(tiling: tuple, tiles: bytes) -> str:
        rows = np.frombuffer(tiles, np.int64).reshape(n, len(tiling))
        return str(jaxlib_api.hlo_sharding(n, tiling, rows))

    kind = mlir_type(aval)
    text = f"""module @reshard attributes {{mhlo.num_partitions = {n} : i32, mhlo.num_replicas = 1 : i32}} {{
  func.func public @main(%x: {kind} {{mhlo.sharding = "{hlo(tiling_in, tiles_in)}"}})
      -> ({kind} {{mhlo.sharding = "{hlo(tiling_out, tiles_out)}"}}) {{
    return %x : {kind}
  }}
}}"""
    return compile_program(text, num_devices=n, mode="spmd", shardy=False)
