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
from meshrt.lowering.types import mlir_type
from meshrt.runtime import events, jaxlib_api
from meshrt.runtime.array import Array, Signature, copy_array, shard_slices, signature
from meshrt.runtime.executable import compile_program
from meshrt.sharding.mesh import AbstractMesh
from meshrt.sharding.named import NamedSharding, Sharding
from meshrt.sharding.sdy import mesh_to_sdy_text, to_sdy_text
from meshrt.sharding.spec import PartitionSpec

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
            out._share_with(array)
            return out if may_alias else copy_array(out)
    out = Array(_moved(array, sig), sig)
    if set(source.device_assignment) == set(target.device_assignment):
        # Shards that stay where they are may not have been copied.
        if may_alias:
            out._share_with(array)
        else:
            out = copy_array(out)
    if donate:
        array._give_up("donated to device_put")
    return out


def _same_layout(a: Sharding, b: Sharding, ndim: int) -> bool:
    return a.layout_key(ndim) == b.layout_key(ndim)


def _moved(array: Array, sig: Signature) -> Any:
    source, target = array.sharding, sig.sharding
    one_client = source.device_assignment[0].client is target.device_assignment[0].client
    if one_client and _same_layout(source, target, array.ndim) and _processes(source) == _processes(target):
        return jaxlib_api.copy_to_devices([array._buf], [target.device_assignment], [sig.native])[0]
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
    if isinstance(source, NamedSharding) and isinstance(target, NamedSharding) and source.mesh is target.mesh:
        mesh = source.mesh.abstract_mesh
        program = _program_over_mesh(sig.physical, mesh, source.spec, target.spec, order[0].platform)
        return _run(program, order, array, sig, sig.native)
    # Two meshes over the same devices: the layouts are given device by device, in the order of the source.
    suffix = sig.physical.ndim - array.ndim
    tiling = target.tiling(array.ndim) + (1,) * suffix
    tiles = _padded(_reordered(target, order, array.ndim), suffix)
    before = (source.tiling(array.ndim) + (1,) * suffix, _padded(source.tile_indices(array.ndim), suffix).tobytes())
    program = _program_over_devices(sig.physical, len(order), *before, tiling, tiles.tobytes(), order[0].platform)
    out = _run(program, order, array, sig, jaxlib_api.native_sharding(order, tiling, tiles))
    if target.device_assignment == order:
        return jaxlib_api.rewrap(out, sig.physical, sig.native)
    return jaxlib_api.reorder(out, sig.native)


def _run(program: Any, devices: tuple, array: Array, sig: Signature, native: Any) -> Any:
    return program.load(devices).runner([jaxlib_api.result_handler(sig.physical, native)])([array._buf])[0]


def _reordered(sharding: Sharding, order: tuple, ndim: int) -> np.ndarray:
    """The parts of a sharding's devices, in the order of `order`."""
    place = {d: i for i, d in enumerate(sharding.device_assignment)}
    return sharding.tile_indices(ndim)[[place[d] for d in order]]


def _padded(tiles: np.ndarray, suffix: int) -> np.ndarray:
    return np.concatenate([tiles, np.zeros((len(tiles), suffix), tiles.dtype)], axis=1)


@functools.lru_cache(512)
def _program_over_mesh(
    aval: ShapedArray, mesh: AbstractMesh, before: PartitionSpec, after: PartitionSpec, platform: str
) -> Any:
    source, target = (f"sdy.sharding = {to_sdy_text(spec, aval.ndim)}" for spec in (before, after))
    header = f"  sdy.mesh @mesh = {mesh_to_sdy_text(mesh)}\n"
    return _compile(aval, mesh.size, header, source, target, True, platform)


@functools.lru_cache(512)
def _program_over_devices(
    aval: ShapedArray, n: int, tiling_in: tuple, tiles_in: bytes, tiling_out: tuple, tiles_out: bytes, platform: str
) -> Any:
    def attribute(tiling: tuple, tiles: bytes) -> str:
        rows = np.frombuffer(tiles, np.int64).reshape(n, len(tiling))
        return f'mhlo.sharding = "{jaxlib_api.hlo_sharding(n, tiling, rows)}"'

    return _compile(aval, n, "", attribute(tiling_in, tiles_in), attribute(tiling_out, tiles_out), False, platform)


def _compile(aval: ShapedArray, n: int, header: str, before: str, after: str, shardy: bool, platform: str) -> Any:
    kind = mlir_type(aval)
    text = f"""module @reshard attributes {{mhlo.num_partitions = {n} : i32, mhlo.num_replicas = 1 : i32}} {{
{header}  func.func public @main(%x: {kind} {{{before}}}) -> ({kind} {{{after}}}) {{
    return %x : {kind}
  }}
}}"""
    return compile_program(text, num_devices=n, mode="spmd", shardy=shardy, backend=platform)
