"""64-bit types inside of modules, where the setting `enable_x64` keeps them out of the programs that call these.

JAX's random functions count in 64 bits whatever the setting. What they do so is said by operations whose rules keep the
types that their operands have under any setting; programs that do more than that in 64 bits are called as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import lax
from meshrt.export.raising_attributes import array_of, type_of

__all__ = ["OF_ANY_WIDTH", "is_64_bit", "wide_constant"]

OF_ANY_WIDTH = frozenset([
    "stablehlo.add", "stablehlo.and", "stablehlo.broadcast_in_dim", "stablehlo.compare",
    "stablehlo.concatenate", "stablehlo.constant", "stablehlo.convert", "stablehlo.divide", "stablehlo.iota",
    "stablehlo.maximum", "stablehlo.minimum", "stablehlo.multiply", "stablehlo.negate", "stablehlo.not",
    "stablehlo.or", "stablehlo.remainder", "stablehlo.reshape", "stablehlo.select", "stablehlo.shift_left",
    "stablehlo.shift_right_arithmetic", "stablehlo.shift_right_logical", "stablehlo.slice",
    "stablehlo.subtract", "stablehlo.transpose", "stablehlo.xor",
])  # fmt: skip


def is_64_bit(dtype: Any) -> bool:
    """Whether arrays have elements of this type only where `enable_x64` is on."""
    return dtype in (np.int64, np.uint64, np.float64, np.complex128) if isinstance(dtype, np.dtype) else False


def wide_constant(op: Any) -> Any:
    """A constant of a 64-bit type by what no later setting changes: made of its halves, where the program runs."""
    kind = type_of(op.results[0])
    value = np.asarray(array_of(op, "value", kind), kind.dtype)
    part = kind.dtype if kind.dtype.kind != "c" else np.dtype(np.float64)
    halves = np.ascontiguousarray(value).reshape(-1).view(np.uint32).reshape(-1, 2)
    found = lax.bitcast_convert_type(halves, part)
    if part != kind.dtype:
        found = lax.complex(found[::2], found[1::2])
    found = lax.reshape(found, value.shape)
    return found if value.shape == kind.shape else lax.broadcast_in_dim(found, kind.shape, ())
