"""Host memory shared with devices: arrays that CPU devices use in place, and NumPy views of their buffers."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["HostMemory", "aligned_empty", "private_copies"]

# Host memory that starts at a multiple of this is used in place by CPU devices (XLA's kMinAlign).
_ALIGNMENT = 64


def private_copies(shards: Sequence[Any]) -> list[Any]:
    """Copies of the host arrays in aligned memory; the same array (for several devices) is copied once."""
    copies: dict[int, np.ndarray] = {}
    out = []
    for shard in shards:
        if isinstance(shard, np.ndarray):
            copy = copies.get(id(shard))
            if copy is None:
                copy = copies[id(shard)] = aligned_empty(shard.shape, shard.dtype)
                copy[...] = shard
            shard = copy
        out.append(shard)
    return out


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array whose memory CPU devices can use without copying."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)


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
