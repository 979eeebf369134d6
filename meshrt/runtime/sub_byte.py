"""Types below a byte: how their values get to the host."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from meshrt.core.types import ShapedArray
from meshrt.runtime.signature import signature

__all__ = ["WIDER", "widened"]

# XLA stores these packed, and hands them over only after a conversion.
WIDER = {
    np.dtype(ml_dtypes.int2): "int8", np.dtype(ml_dtypes.uint2): "uint8", np.dtype(ml_dtypes.int4): "int8",
    np.dtype(ml_dtypes.uint4): "uint8", np.dtype(ml_dtypes.float4_e2m1fn): "float32",
}  # fmt: skip


def widened(array: Any) -> Any:
    """The values of an array of a type below a byte in the next type that NumPy and XLA share, converted on device."""
    from meshrt.lowering.types import mlir_type  # lowering and executables stand above arrays
    from meshrt.runtime.executable import ResultPlan, compile_program

    sharding = array.sharding
    wide = ShapedArray(array.shape, np.dtype(WIDER[array.dtype]))
    part = sharding.shard_shape(array.shape)
    before, after = mlir_type(array.aval.with_shape(part)), mlir_type(wide.with_shape(part))
    text = f"""module @widen {{ func.func public @main(%x: {before}) -> {after} {{
      %y = stablehlo.convert %x : ({before}) -> {after}
      return %y : {after} }} }}"""
    devices = sharding.device_assignment
    program = compile_program(text, num_devices=len(devices), backend=devices[0].platform)
    return program.load(devices).execute([array._buf], ResultPlan([signature(wide, sharding)]))[0]
