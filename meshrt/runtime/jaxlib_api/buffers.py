"""Shardings and buffers as C++ code knows them."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Sequence
from typing import Any

import jaxlib._jax as _jax
import numpy as np
from jaxlib import xla_client as _xc

from meshrt import errors
from meshrt.runtime.host_memory import HostMemory, private_copies
from meshrt.runtime.jaxlib_api.names import Buffer, XlaError

__all__ = [
    "NativeSharding", "assemble", "block_until_ready", "buffer_address", "clear_device_caches", "collect_garbage",
    "copy_to_devices", "deleted_buffer", "device_list", "hlo_sharding", "native_sharding", "put", "reorder",
    "result_handler", "rewrap", "shard_to_numpy", "shards", "start_copy_to_host", "to_dlpack",
]  # fmt: skip


class NativeSharding(_jax.GSPMDSharding):
    """What C++ code wants to know of a sharding. JAX's own classes cannot be used: their constructors import jax."""

    memory_kind: str | None = None

    def _to_xla_hlo_sharding(self, ndim: int) -> Any:
        return self._hlo_sharding

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


class _KindedSharding(NativeSharding):
    def __init__(self, devices: Any, hlo: Any, memory_kind: str):
        super().__init__(devices, hlo, memory_kind=memory_kind)
        self.memory_kind = memory_kind


@functools.lru_cache(4096)
def device_list(devices: tuple) -> Any:
    """jaxlib's list of these devices."""
    return _jax.DeviceList(devices)


@functools.lru_cache(8)
def deleted_buffer(device: Any) -> Buffer:
    """A buffer that was deleted, to stand in for one that is given up.

    Deleting a buffer aborts the process where a NumPy view or a DLPack consumer still reads its memory; dropping the
    reference does not, and frees the memory as soon as nobody reads it.
    """
    sharding = NativeSharding(device_list((device,)), _xc.HloSharding.replicate())
    buffer = put(_Scalar(), sharding, [np.zeros((), np.float32)], [device])
    buffer.delete()
    return buffer


class _Scalar:
    shape, dtype, weak_type = (), np.dtype("float32"), False


def clear_device_caches() -> None:
    """Drops every device that this module remembers."""
    device_list.cache_clear()
    deleted_buffer.cache_clear()
    _with_first.cache_clear()


def native_sharding(
    devices: tuple, tiling: tuple[int, ...], tiles: np.ndarray, memory_kind: str | None = None
) -> NativeSharding:
    """The C++ counterpart of a sharding.

    Args:
      devices: the device assignment.
      tiling: parts per dimension.
      tiles: int64[num_devices, ndim], the part of each dimension that each device holds.
    """
    hlo = hlo_sharding(len(devices), tiling, tiles)
    if memory_kind is None:
        return NativeSharding(device_list(devices), hlo)
    return _KindedSharding(device_list(devices), hlo, memory_kind)


def hlo_sharding(num_devices: int, tiling: tuple[int, ...], tiles: np.ndarray) -> Any:
    """XLA's form: `{devices=[...]...}` over positions in the device assignment, or replicated."""
    parts = int(np.prod(tiling, dtype=np.int64)) if tiling else 1
    if parts == 1:
        return _xc.HloSharding.replicate()
    flat = np.ravel_multi_index(tuple(tiles.T), tiling)
    order = np.argsort(flat, kind="stable").astype(np.int64)  # positions grouped by tile, in order of tiles
    copies = num_devices // parts
    if copies == 1:
        return _xc.HloSharding.subgroup_with_device_ordering(np.ascontiguousarray(order.reshape(tiling)))
    assignment = np.ascontiguousarray(order.reshape(*tiling, copies))
    return _xc.HloSharding.subgroup_with_device_ordering(assignment, [_xc.OpSharding.Type.REPLICATED])


def put(aval: Any, sharding: Any, shards: Sequence[Any], devices: Sequence[Any], *, may_alias: bool = True) -> Buffer:
    """A buffer from one host array (or single-device buffer) per addressable device.

    With `may_alias` an aligned host array may be used in place (CPU), so it must never change afterwards.

    Raises:
      CompileOnlyError: a device stands for hardware that is not here.
    """
    # Asked to copy, jaxlib fails on partly replicated shardings (bad_function_call), so it is given private copies.
    if not may_alias:
        shards = private_copies(shards)
    # enable_x64 is passed so that the process-wide x64 slot, which belongs to JAX when it is imported, plays no part.
    try:
        return _jax.batched_device_put(
            aval, sharding, shards, list(devices), True, force_copy=False, enable_x64=True,
            host_buffer_semantics=_jax.HostBufferSemantics.ZERO_COPY,
        )  # fmt: skip
    except XlaError as e:
        if "compile-only" not in str(e):
            raise
        raise errors.CompileOnlyError(
            f"{devices[0]} stands for a device of hardware that is not here: no array can lie there. Describe the "
            "argument with meshrt.ShapeDtypeStruct(shape, dtype, sharding=...), and compile with "
            "jit(f).lower(...).compile()"
        ) from e


def assemble(aval: Any, sharding: Any, pieces: list[Buffer]) -> Buffer:
    """One buffer over several devices from single-device buffers, without copying."""
    return _jax.ArrayImpl(aval, sharding, pieces, True, _skip_checks=True)


def rewrap(buffer: Buffer, aval: Any, sharding: Any) -> Buffer:
    """The same memory with another type and sharding."""
    return buffer._rewrap_with_aval_and_sharding(aval, sharding)


def copy_to_devices(buffers: Sequence[Buffer], devices: Sequence[tuple], shardings: Sequence[Any]) -> list[Buffer]:
    """Shard *i* of each buffer onto device *i* of its device list; always into new memory."""
    # DONATE_INPUT would abort the process where a NumPy view of the buffer is alive.
    lists = [device_list(tuple(d)) for d in devices]
    kinds = [_jax.ArrayCopySemantics.ALWAYS_COPY] * len(buffers)
    return _jax.batched_copy_array_to_devices_with_sharding(list(buffers), lists, list(shardings), kinds)


def reorder(buffer: Buffer, sharding: Any) -> Buffer:
    """The same shards on the same devices, listed in the order of `sharding`'s devices."""
    return _jax.reorder_shards(buffer, sharding, _jax.ArrayCopySemantics.REUSE_INPUT)


def shard_to_numpy(
    buffer: Buffer, devices: tuple, position: int, dtype: np.dtype, memory_kind: str | None = None
) -> np.ndarray:
    """Addressable shard `position` of a buffer, read-only; shares the buffer's memory where that is the host's.

    `devices` are the addressable devices of the buffer, in order. Not for element types below a byte.

    `ArrayImpl._arrays` and its methods that give NumPy arrays would import jax, since their C++ code looks for
    `jax.core`. DLPack reads the first shard without that, and any shard can be listed first.
    """
    if position:
        buffer = _shard_first(buffer, devices, position, memory_kind)
    buffer.block_until_ready()
    if devices[0].platform != "cpu":
        return buffer._single_device_array_to_np_array_did_copy()[0]
    memory = HostMemory(_jax.buffer_to_dlpack_managed_tensor(buffer, stream=None), dtype.itemsize)
    return np.asarray(memory).view(dtype)


def _shard_first(buffer: Buffer, devices: tuple, position: int, memory_kind: str | None) -> Buffer:
    return reorder(buffer, _with_first(devices, position, memory_kind))


@functools.lru_cache(1024)
def _with_first(devices: tuple, position: int, memory_kind: str | None) -> NativeSharding:
    order = (devices[position], *devices[:position], *devices[position + 1 :])
    everywhere = _xc.HloSharding.replicate()
    if memory_kind is None:
        return NativeSharding(_jax.DeviceList(order), everywhere)
    return _KindedSharding(_jax.DeviceList(order), everywhere, memory_kind)


def buffer_address(buffer: Buffer) -> int:
    """Where the first shard lies in its device's memory."""
    return HostMemory(_jax.buffer_to_dlpack_managed_tensor(buffer, stream=None), 1).address


def shards(buffer: Buffer) -> list[Buffer]:
    """The addressable shards as single-device buffers. Imports jax where it is installed; not needed on CPU."""
    return buffer._arrays


def start_copy_to_host(buffer: Buffer) -> None:
    """Begins to fetch the first shard; nothing needs fetching from a CPU device."""
    if buffer.platform() != "cpu":
        buffer._copy_single_device_array_to_host_async()


# jaxlib notes the Python frames of each launch, and frees them only here: elsewhere it may not hold the interpreter's
# lock. Python's own collector asks for it too, but a loop of steps may go on for long without it.
collect_garbage: Callable[[], None] = _jax.collect_garbage


def _collect_with_python(phase: str, info: Any, collect: Callable[[], None] = collect_garbage) -> None:
    if phase == "stop":  # also when a process ends, and the names of this module are gone
        collect()


gc.callbacks.append(_collect_with_python)


def block_until_ready(buffers: list[Buffer]) -> None:
    """Waits for all; raises what their computation raised."""
    _jax.batched_block_until_ready(buffers)
    collect_garbage()


def to_dlpack(buffer: Buffer, stream: Any = None) -> Any:
    """A DLPack capsule of a single-device buffer."""
    return _jax.buffer_to_dlpack_managed_tensor(buffer, stream=stream)


_HANDLER_OPTIONS = {"_skip_checks": True} if "_skip_checks" in (_jax.array_result_handler.__doc__ or "") else {}


def result_handler(aval: Any, sharding: Any) -> Any:
    """Wraps one output of an execution as a buffer; made once per output."""
    # 0.10.2 checks results with a method that only JAX adds to the class, unless told not to.
    return _jax.array_result_handler(aval, sharding, True, **_HANDLER_OPTIONS)
