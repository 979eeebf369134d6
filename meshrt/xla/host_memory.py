"""Host memory shared with devices: arrays that CPU devices use in place, and NumPy views of their buffers."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.heuristics import (
    COPIED_AT_ONCE_BYTES,
    COPYING_THREADS,
    PARALLEL_COPY_BYTES,
    POOLED_BLOCK_BYTES,
    POOLED_BYTES,
)

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["HostMemory", "aligned_empty", "aligned_zeros", "is_aligned", "private_copies"]

# Host memory that starts at a multiple of this is used in place by CPU devices (XLA's kMinAlign).
_ALIGNMENT = 64


def private_copies(shards: Sequence[Any]) -> list[Any]:
    """Copies of the host arrays in aligned memory; the same array (for several devices) is copied once."""
    values = {id(shard): shard for shard in shards if isinstance(shard, np.ndarray)}
    sizes = {key: value.nbytes for key, value in values.items()}
    if sum(sizes.values()) < PARALLEL_COPY_BYTES:
        copies = _copied_together(values, sizes)
    else:
        copies = {key: aligned_empty(value.shape, value.dtype) for key, value in values.items()}
        _copy_in_parallel([(copies[key], value) for key, value in values.items()])
    return [copies.get(id(shard), shard) for shard in shards]


def _copied_together(values: dict[int, np.ndarray], sizes: dict[int, int]) -> dict[int, np.ndarray]:
    """Copies in one allocation."""
    memory = np.empty(sum(sizes.values()) + _ALIGNMENT * (len(sizes) + 1), np.uint8)
    start = -_address(memory) % _ALIGNMENT
    copies = {}
    for key, value in values.items():
        # A constructor call costs less than a slice, a view and a reshape.
        copies[key] = copy = np.ndarray(value.shape, value.dtype, memory, start)
        copy[...] = value
        start += sizes[key] + -sizes[key] % _ALIGNMENT
    return copies


def _copy_in_parallel(todo: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """Copies each second array into the first, in pieces, by several threads: fresh memory costs a page fault per page,
    which takes as long as the copy."""
    pieces: list[tuple[np.ndarray, np.ndarray]] = []
    for copy, value in todo:
        count = -(-value.nbytes // COPIED_AT_ONCE_BYTES) if value.ndim else 1
        rows = -(-len(value) // count) if count > 1 else 0
        pieces += [(copy[i : i + rows], value[i : i + rows]) for i in range(0, len(value), rows)] if rows else [
            (copy, value)
        ]  # fmt: skip
    for _ in _copiers().map(lambda pair: np.copyto(*pair), pieces):
        pass


@functools.cache
def _copiers() -> ThreadPoolExecutor:
    # Start-up time: most programs copy nothing large.
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(min(os.cpu_count() or 1, COPYING_THREADS), thread_name_prefix="meshrt-copy")


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array whose memory CPU devices can use without copying."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes >= POOLED_BLOCK_BYTES:
        return np.asarray(_Block(nbytes)).view(dtype).reshape(shape)
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -_address(memory) % _ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def _address(memory: np.ndarray) -> int:
    """Where an array's elements begin; in a quarter of the time that `memory.ctypes.data` takes."""
    address: int = memory.__array_interface__["data"][0]
    return address


class _Pool:
    """Large blocks that nobody uses any more, by size, the oldest first: input pipelines ask for the same sizes step by
    step, and the pages of fresh memory cost more than the copy into them."""

    def __init__(self) -> None:
        self._free: dict[int, list[np.ndarray]] = {}
        self._bytes = 0
        # A block may be dropped by a collection of garbage that runs inside `take`.
        self._lock = threading.RLock()

    def take(self, nbytes: int) -> np.ndarray:
        with self._lock:
            kept = self._free.get(nbytes)
            if kept:
                self._bytes -= nbytes
                return kept.pop()
        return np.empty(nbytes + _ALIGNMENT, np.uint8)

    def give(self, nbytes: int, memory: np.ndarray) -> None:
        with self._lock:
            while self._bytes + nbytes > POOLED_BYTES and self._free:
                size = next(iter(self._free))  # the size that was given back first
                if self._free[size]:
                    self._free[size].pop(0)
                    self._bytes -= size
                if not self._free[size]:
                    del self._free[size]
            if nbytes <= POOLED_BYTES:
                self._free.setdefault(nbytes, []).append(memory)
                self._bytes += nbytes


_pool = _Pool()


class _Block:
    """Aligned memory of the pool; goes back when the last array over it is gone."""

    def __init__(self, nbytes: int):
        self._nbytes, self._memory = nbytes, _pool.take(nbytes)
        address = _address(self._memory)
        address += -address % _ALIGNMENT
        self.__array_interface__ = {"version": 3, "data": (address, False), "shape": (nbytes,), "typestr": "|u1"}

    def __del__(self, pool: _Pool = _pool) -> None:  # names of the module may be gone at the end of the process
        pool.give(self._nbytes, self._memory)


def is_aligned(value: np.ndarray) -> bool:
    """Whether CPU devices can use the memory of a (contiguous) array in place."""
    return _address(value) % _ALIGNMENT == 0


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """As `aligned_empty`, zeros."""
    out = aligned_empty(shape, dtype)
    out[...] = np.zeros((), dtype)
    return out


class _DLTensor(ctypes.Structure):
    """The head of a DLPack capsule's DLManagedTensor (a stable ABI): https://dmlc.github.io/dlpack."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


class HostMemory:
    """A buffer's memory as NumPy reads it; holds the capsule, which keeps the memory from being freed or reused."""

    def __init__(self, capsule: Any, itemsize: int):
        tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
        ndim = tensor.ndim
        shape = tuple(tensor.shape[:ndim])
        strides = tuple(s * itemsize for s in tensor.strides[:ndim]) if tensor.strides else None
        self._capsule = capsule
        self.address = tensor.data + tensor.byte_offset
        self.__array_interface__ = {
            "version": 3, "data": (self.address, True), "shape": shape, "strides": strides, "typestr": f"|V{itemsize}",
        }  # fmt: skip
