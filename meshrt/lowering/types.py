"""MLIR's spelling of our types and constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from meshrt import errors
from meshrt.core.dimensions.expression import DimExpr
from meshrt.core.types import ShapedArray

__all__ = ["check_size", "dense", "dtype_of_element", "element_type", "mlir_type", "splat"]

_UNCOUNTABLE = 1 << 63

_ELEMENTS: dict[np.dtype[Any], str] = {
    np.dtype(bool): "i1",
    np.dtype(np.int8): "i8", np.dtype(np.int16): "i16", np.dtype(np.int32): "i32", np.dtype(np.int64): "i64",
    np.dtype(np.uint8): "ui8", np.dtype(np.uint16): "ui16", np.dtype(np.uint32): "ui32", np.dtype(np.uint64): "ui64",
    np.dtype(np.float16): "f16", np.dtype(np.float32): "f32", np.dtype(np.float64): "f64",
    np.dtype(np.complex64): "complex<f32>", np.dtype(np.complex128): "complex<f64>",
    np.dtype(ml_dtypes.bfloat16): "bf16",
    np.dtype(ml_dtypes.int4): "i4", np.dtype(ml_dtypes.uint4): "ui4",
    np.dtype(ml_dtypes.int2): "i2", np.dtype(ml_dtypes.uint2): "ui2",
    np.dtype(ml_dtypes.float8_e4m3fn): "f8E4M3FN", np.dtype(ml_dtypes.float8_e5m2): "f8E5M2",
    np.dtype(ml_dtypes.float8_e4m3b11fnuz): "f8E4M3B11FNUZ", np.dtype(ml_dtypes.float8_e4m3fnuz): "f8E4M3FNUZ",
    np.dtype(ml_dtypes.float8_e5m2fnuz): "f8E5M2FNUZ", np.dtype(ml_dtypes.float8_e4m3): "f8E4M3",
    np.dtype(ml_dtypes.float8_e3m4): "f8E3M4", np.dtype(ml_dtypes.float8_e8m0fnu): "f8E8M0FNU",
    np.dtype(ml_dtypes.float4_e2m1fn): "f4E2M1FN",
}  # fmt: skip


def element_type(dtype: Any) -> str:
    """`f32`, `ui8`, `i1`, ...; UnsupportedError for a dtype that StableHLO doesn't have."""
    try:
        return _ELEMENTS[dtype]
    except KeyError:
        raise errors.UnsupportedError(f"arrays of dtype {dtype} cannot be lowered to StableHLO") from None


def dtype_of_element(text: str) -> np.dtype[Any]:
    """The dtype of an element type as MLIR writes it; UnsupportedError for one that arrays do not have."""
    for dtype, name in _ELEMENTS.items():
        if name == text:
            return dtype
    raise errors.UnsupportedError(f"no arrays have elements of type {text}")


def check_size(shape: Sequence[int | DimExpr], itemsize: int) -> None:
    """Refuses arrays that XLA's C++ code cannot count: it ends the process where it meets one.

    Args:
      shape: the array's; symbolic sizes are passed over, and zeros count as ones, as they are counted last.
      itemsize: bytes per element.

    Raises:
      DeviceMemoryError: the array has 2**63 bytes or more.
    """
    sizes = [int(d) for d in shape if not isinstance(d, DimExpr)]
    if math.prod(filter(None, sizes)) * itemsize >= _UNCOUNTABLE:
        raise errors.DeviceMemoryError(
            f"an array of shape {tuple(sizes)} with {itemsize} bytes per element is beyond 2**63 bytes, "
            "more than any device holds and any compiler counts"
        )


def mlir_type(aval: ShapedArray) -> str:
    """`tensor<8x4xf32>`, of the physical buffer."""
    if aval.mlir is None:
        physical = aval.physical()
        # A symbolic size stands in braces until `meshrt.lowering.sizes` computes it.
        check_size(physical.shape, physical.dtype.itemsize)
        dims = "".join([f"{{{d}}}x" if isinstance(d, DimExpr) else f"{d}x" for d in physical.shape])
        aval.mlir = f"tensor<{dims}{element_type(physical.dtype)}>"
    return aval.mlir


def _number(value: np.generic, dtype: np.dtype) -> str:
    if dtype == np.bool_:
        return "true" if value else "false"
    if dtype.kind in "iu" or dtype.name in ("int4", "uint4", "int2", "uint2"):
        return str(int(value))
    if dtype.kind == "c":
        part = np.dtype(np.float32 if dtype.itemsize == 8 else np.float64)
        return f"({_number(part.type(value.real), part)}, {_number(part.type(value.imag), part)})"
    width = dtype.itemsize * 2
    bits = int.from_bytes(np.asarray(value, dtype).tobytes(), "little")
    return f"0x{bits:0{width}X}"


def splat(value: Any, aval: ShapedArray) -> str:
    """The attribute `dense<v> : type` with every element equal to the scalar `value`."""
    dtype = aval.dtype
    scalar: Any = np.asarray(value, dtype)[()]
    return f"dense<{_number(scalar, dtype)}> : {mlir_type(aval)}"


def dense(array: np.ndarray) -> str:
    """The attribute `dense<...> : type` of an array."""
    aval = ShapedArray(array.shape, array.dtype).physical()
    array = array if array.dtype == aval.dtype else np.zeros(aval.shape, aval.dtype)
    if array.size == 0:
        return f"dense<> : {mlir_type(aval)}"
    if array.size == 1 or (array.size < 1 << 16 and (array == array.flat[0]).all()):
        return splat(array.flat[0], aval)
    if array.dtype == np.bool_:
        text = str(array.tolist()).replace("True", "true").replace("False", "false")
        return f"dense<{text}> : {mlir_type(aval)}"
    if array.dtype.name in ("int4", "uint4", "int2", "uint2"):
        return f"dense<{array.astype(np.int8).tolist()}> : {mlir_type(aval)}"
    return f'dense<"0x{np.ascontiguousarray(array).tobytes().hex().upper()}"> : {mlir_type(aval)}'
