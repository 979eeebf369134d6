"""Elements of arrays as bytes: names of their types in safetensors' files, and types that those do not have.

Elements below a byte are packed, the first into the lowest bits. Where safetensors has no name for a type its bytes are
stored as `U8`, and the manifest alone says what they are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes  # makes bfloat16 and its like known to NumPy by name
import numpy as np

__all__ = ["bits_of", "dtype_named", "name_of", "pack", "size_of", "stored_as", "unpack"]

_NAMES = {
    "bool": "BOOL", "int8": "I8", "uint8": "U8", "int16": "I16", "uint16": "U16", "float16": "F16", "bfloat16": "BF16",
    "int32": "I32", "uint32": "U32", "float32": "F32", "int64": "I64", "uint64": "U64", "float64": "F64",
    "complex64": "C64", "float8_e5m2": "F8_E5M2", "float8_e4m3fn": "F8_E4M3", "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip
_BITS = {"int2": 2, "uint2": 2, "int4": 4, "uint4": 4, "float4_e2m1fn": 4}
# NumPy's own types that have a size or a unit, which their text has: "<M8[ns]", "<U5".
_PARAMETRIC = "mMUS"


@functools.cache
def name_of(dtype: np.dtype) -> str | None:
    """The name of a dtype in a manifest; None if its elements are not plain bytes."""
    if dtype.kind in _PARAMETRIC:
        return dtype.newbyteorder("<").str
    if dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None:
        return None
    name = dtype.name
    return name if name in _NAMES or name in _BITS or name == "complex128" or hasattr(ml_dtypes, name) else None


def dtype_named(name: str) -> np.dtype:
    """The dtype of a name that `name_of` gave; TypeError or ValueError if it is none."""
    if name[:1] == "<" and name[1:2] in _PARAMETRIC:
        return np.dtype(name)
    found = np.dtype(getattr(ml_dtypes, name, name))
    if name_of(found) != name:
        raise ValueError(f"{name!r} is not an element type of checkpoints")
    return found


@functools.cache
def bits_of(dtype: np.dtype) -> int:
    return _BITS.get(dtype.name, 8 * dtype.itemsize)


def size_of(shape: Sequence[int], dtype: np.dtype) -> int:
    """Bytes that an array takes in a file."""
    return -(-math.prod(shape) * bits_of(dtype) // 8)


def stored_as(shape: Sequence[int], dtype: np.dtype) -> tuple[str, list[int]]:
    """Element type and shape that a file of safetensors tells for it."""
    name = _NAMES.get(dtype.name)
    return (name, list(shape)) if name is not None else ("U8", [size_of(shape, dtype)])


def pack(value: np.ndarray) -> np.ndarray:
    """The bytes of an array, row by row; shares its memory where they lie so already."""
    flat = np.ascontiguousarray(value).reshape(-1)
    bits = _BITS.get(value.dtype.name)
    if bits is None:
        return flat.astype(flat.dtype.newbyteorder("<"), copy=False).view(np.uint8) if flat.size else _NOTHING
    per = 8 // bits
    padded = np.zeros(-(-flat.size // per) * per, np.uint8)
    padded[: flat.size] = flat.view(np.uint8) & ((1 << bits) - 1)
    columns = padded.reshape(-1, per) << (bits * np.arange(per, dtype=np.uint8))
    packed: np.ndarray = np.bitwise_or.reduce(columns, axis=1)
    return packed


def unpack(data: Any, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """The array of these bytes; shares their memory unless its elements are below a byte."""
    bits = _BITS.get(dtype.name)
    if bits is None:
        return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype, copy=False).reshape(shape)
    per = 8 // bits
    columns = np.frombuffer(data, np.uint8)[:, None] >> (bits * np.arange(per, dtype=np.uint8))
    flat = (columns & ((1 << bits) - 1)).reshape(-1)[: math.prod(shape)]
    if dtype.name.startswith("int"):  # the sign fills the byte
        flat = ((flat << (8 - bits)).view(np.int8) >> (8 - bits)).view(np.uint8)
    return flat.view(dtype).reshape(shape)


_NOTHING = np.empty(0, np.uint8)
