"""Types below a byte: how their values get to the host."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from meshrt.core.types import ShapedArray
from meshrt.lowering.types import mlir_type
from meshrt.runtime import backend
from meshrt.runtime.executable import compile_program
from meshrt.runtime.signature import Signature, handlers, signature

__all__ = ["WIDER", "widened"]

# XLA stores these packed, and hands them over only after a conversion.
WIDER = {
    np.dtype(ml_dtypes.int2): "int8", np.dtype(ml_dtypes.uint2): "uint8", np.dtype(ml_dtypes.int4): "int8",
    np.dtype(ml_dtypes.uint4): "uint8", np.dtype(ml_dtypes.float4_e2m1fn): "float32",
}  # fmt: skip


def widened(buffer: Any, sig: Signature) -> tuple[Any, Signature]:
    """A buffer of a type below a byte in the next type that NumPy and XLA share, converted on its devices."""
    sharding = sig.sharding
    wide = ShapedArray(sig.shape, np.dtype(WIDER[sig.dtype]))
    part = sharding.shard_shape(sig.shape)
    before, after = mlir_type(sig.aval.with_shape(part)), mlir_type(wide.with_shape(part))
    text = f"""module @widen {{ func.func public @main(%x: {before}) -> {after} {{
      %y = stablehlo.convert %x : ({before}) -> {after}
      return %y : {after} }} }}"""
    devices = sharding.device_assignment
    program = compile_program(text, num_devices=len(devices), backend=backend.platform_of(devices[0]))
    result = signature(wide, sharding.with_memory_kind(None), True)  # programs return into the devices' own memory
    return program.load(devices).runner(handlers([result]))([buffer])[0], result
