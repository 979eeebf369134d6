"""From one sharding to another, outside compiled functions.

The cheapest way that fits is taken: sharing the buffer, listing its shards in another order, copying shard by shard
to other devices, a compiled program over the same devices, or through the host.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from meshrt import errors
from meshrt.core.types import ShapedArray
from meshrt.lowering.types import mlir_type
from meshrt.runtime import backend, events, guards
from meshrt.runtime.array import Array, Signature, copied, copy_array, shard_slices, signature
from meshrt.runtime.executable import compile_program
from meshrt.runtime.layouts import relayout
from meshrt.sharding.mesh import AbstractMesh
from meshrt.sharding.named import NamedSharding, Sharding
from meshrt.sharding.sdy import mesh_to_sdy_text, to_sdy_text
from meshrt.sharding.spec import PartitionSpec
from meshrt.xla import jaxlib_api

__all__ = ["reshard"]


def reshard(
    array: Array, target: Sharding, *, donate: bool = False, may_alias: bool = True, explicit: bool = False
) -> Array:
    """`array` with another sharding, committed.

    Args:
      donate: `array` is not needed any more; it may be deleted.
      may_alias: the result may share memory with `array`.
      explicit: whether the program asked for it, as by device_put (see `meshrt.runtime.guards`).

    Raises:
      IndivisibleError: the target does not fit the shape. UnsupportedError: the parts would have to cross processes
        to devices that hold none of the array.
    """
    array._check()
    sig = signature(array.aval, target, True)
    if sig is array._sig:
        return array if may_alias else copy_array(array)
    if array._sig.layout is not None:
        return _from_row_major(array, target, donate, explicit)
    source = array.sharding
    in_order = source.device_assignment == target.device_assignment and _same_layout(source, target, array.ndim)
    if not source.is_in_memory_of(target) and not in_order:  # one thing at a time
        there = reshard(array, target.with_memory_kind(source.memory_kind), donate=donate, explicit=explicit)
        return reshard(there, target, explicit=explicit)
    if in_order:
        if source.is_in_memory_of(target):
            out = Array(jaxlib_api.rewrap(array._buf, sig.stored, sig.native), sig)
            out._share_with(array)
            return out if may_alias else copy_array(out)
    # Asked for, and between the same devices, it is a computation of theirs.
    shuffled = explicit and set(source.device_assignment) == set(target.device_assignment)
    if guards.active and not shuffled:
        guards.check("device_to_device", array.aval, target, explicit)
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


def _from_row_major(array: Array, target: Sharding, donate: bool, explicit: bool) -> Array:
    out = reshard(relayout(array, None), target, explicit=explicit)
    if donate:
        array._give_up("donated to device_put")
    return out


def _same_layout(a: Sharding, b: Sharding, ndim: int) -> bool:
    return a.layout_key(ndim) == b.layout_key(ndim)


def _moved(array: Array, sig: Signature) -> Any:
    source, target = array.sharding, sig.sharding
    one_client = source.device_assignment[0].client is target.device_assignment[0].client
    if one_client and _same_layout(source, target, array.ndim) and _processes(source) == _processes(target):
        return copied(array, sig)
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
        raise errors.DeviceAssignmentMismatchError(
            "For a reshard between processes, input and target sharding should have the same set of devices: those "
            f"that hold an array send each other its parts. device_put of {array.aval} goes from "
            f"{sorted(d.id for d in array.sharding.device_set)}, {array.sharding!r}, to "
            f"{sorted(d.id for d in target.device_set)}, {target!r}. Reshard it first to a replicated sharding over "
            "the devices that it is on, then put it"
        ) from e
    events.record("host_reshard", aval=array.aval, source=array.sharding, target=target)
    parts = shard_slices(value, target, array.shape)
    # The value is never written to, so devices whose memory is the host's may share it.
    return jaxlib_api.put(sig.stored, sig.native, parts, sig.local_devices, may_alias=True)


# ----------------------------------------------------------------------------------------------------------
# A program over the same devices: XLA's partitioner moves the parts.


def _by_program(array: Array, sig: Signature) -> Any:
    source, target = array.sharding, sig.sharding
    order = source.device_assignment
    if isinstance(source, NamedSharding) and isinstance(target, NamedSharding) and source.mesh is target.mesh:
        mesh = source.mesh.abstract_mesh
        program = _program_over_mesh(_types(array, sig), mesh, source.spec, target.spec, backend.platform_of(order[0]))
        return _run(program, order, array, sig, sig.native)
    # Two meshes over the same devices: the layouts are given device by device, in the order of the source.
    suffix = sig.physical.ndim - array.ndim
    tiling = target.tiling(array.ndim) + (1,) * suffix
    tiles = _padded(_reordered(target, order, array.ndim), suffix)
    before = (source.tiling(array.ndim) + (1,) * suffix, _padded(source.tile_indices(array.ndim), suffix).tobytes())
    program = _program_over_devices(
        _types(array, sig), len(order), *before, tiling, tiles.tobytes(), backend.platform_of(order[0])
    )
    out = _run(program, order, array, sig, jaxlib_api.native_sharding(order, tiling, tiles))
    if target.device_assignment == order:
        return jaxlib_api.rewrap(out, sig.stored, sig.native)
    return jaxlib_api.reorder(out, sig.native)


class _Types(NamedTuple):
    """A value, and what it is filled up to where it comes from and where it goes (uneven shardings)."""

    value: ShapedArray
    before: ShapedArray
    after: ShapedArray


def _types(array: Array, sig: Signature) -> _Types:
    return _Types(sig.physical, array._sig.stored, sig.stored)


def _run(program: Any, devices: tuple, array: Array, sig: Signature, native: Any) -> Any:
    return program.load(devices).runner([jaxlib_api.result_handler(sig.stored, native)])([array._buf])[0]


def _reordered(sharding: Sharding, order: tuple, ndim: int) -> np.ndarray:
    """The parts of a sharding's devices, in the order of `order`."""
    place = {d: i for i, d in enumerate(sharding.device_assignment)}
    return sharding.tile_indices(ndim)[[place[d] for d in order]]


def _padded(tiles: np.ndarray, suffix: int) -> np.ndarray:
    return np.concatenate([tiles, np.zeros((len(tiles), suffix), tiles.dtype)], axis=1)


@functools.lru_cache(512)
def _program_over_mesh(
    types: _Types, mesh: AbstractMesh, before: PartitionSpec, after: PartitionSpec, platform: str
) -> Any:
    source, target = (f"sdy.sharding = {to_sdy_text(spec, types.value.ndim)}" for spec in (before, after))
    header = f"  sdy.mesh @mesh = {mesh_to_sdy_text(mesh)}\n"
    return _compile(types, mesh.size, header, source, target, True, platform)


@functools.lru_cache(512)
def _program_over_devices(
    types: _Types, n: int, tiling_in: tuple, tiles_in: bytes, tiling_out: tuple, tiles_out: bytes, platform: str
) -> Any:
    def attribute(tiling: tuple, tiles: bytes) -> str:
        rows = np.frombuffer(tiles, np.int64).reshape(n, len(tiling))
        return f'mhlo.sharding = "{jaxlib_api.hlo_sharding(n, tiling, rows)}"'

    return _compile(types, n, "", attribute(tiling_in, tiles_in), attribute(tiling_out, tiles_out), False, platform)


def _compile(types: _Types, n: int, header: str, before: str, after: str, shardy: bool, platform: str) -> Any:
    kind, taken, given = map(mlir_type, types)
    steps, value = "", "%x"
    if taken != kind:
        bounds = ", ".join(f"0:{size}" for size in types.value.shape)
        steps, value = f"    %v = stablehlo.slice %x [{bounds}] : ({taken}) -> {kind}\n", "%v"
    if given != kind:
        zero, none = mlir_type(types.value.with_shape(())), ", ".join("0" for _ in types.value.shape)
        high = ", ".join(str(a - b) for a, b in zip(types.after.shape, types.value.shape))
        steps += (
            f"    %i = stablehlo.constant dense<0> : tensor<i32>\n"
            f"    %z = stablehlo.convert %i : (tensor<i32>) -> {zero}\n"
            f"    %y = stablehlo.pad {value}, %z, low = [{none}], high = [{high}], interior = [{none}] : "
            f"({kind}, {zero}) -> {given}\n"
        )
        value = "%y"
    text = f"""module @reshard attributes {{mhlo.num_partitions = {n} : i32, mhlo.num_replicas = 1 : i32}} {{
{header}  func.func public @main(%x: {taken} {{{before}}}) -> ({given} {{{after}}}) {{
{steps}    return {value} : {given}
  }}
}}"""
    return compile_program(text, num_devices=n, mode="spmd", shardy=shardy, backend=platform)
