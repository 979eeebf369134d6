"""The walk that writes a kernel as a Triton program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
from jaxlib.mlir import ir
from jaxlib.triton import dialect as tt

from meshrt.experimental.kernels.mlir import arithmetic, control, conversions
from meshrt.experimental.kernels.mlir.walk import Walk
from meshrt.experimental.kernels.triton import arrays, composed, ordering, parts, places, pointers, products, stacks
from meshrt.experimental.kernels.triton.filled import filled

__all__ = ["TritonWalk"]

_ELEMENTS = {
    np.dtype(name): code
    for name, code in {
        "bool": "i1", "int8": "i8", "uint8": "i8", "int16": "i16", "uint16": "i16", "int32": "i32", "uint32": "i32",
        "int64": "i64", "uint64": "i64", "float16": "f16", "float32": "f32", "float64": "f64",
    }.items()
}  # fmt: skip
_ELEMENTS |= {
    np.dtype(getattr(ml_dtypes, name)): code
    for name, code in {"bfloat16": "bf16", "float8_e4m3fn": "f8E4M3FN", "float8_e5m2": "f8E5M2"}.items()
}


class TritonWalk(Walk):
    """Writes values as tensors, scalars as such, references as pointers to blocks."""

    backend: ClassVar[str] = "Triton (GPU)"
    rules = {
        **arithmetic.RULES, **conversions.RULES, **control.RULES, **pointers.RULES, **arrays.RULES, **parts.RULES,
        **places.RULES, **products.RULES, **ordering.RULES, **stacks.RULES, **composed.RULES,
    }  # fmt: skip

    def element(self, dtype: Any) -> ir.Type:
        code = _ELEMENTS.get(dtype)
        if code is None:
            self.refuse(f"Triton has no elements of {dtype}; convert with astype")
        return ir.Type.parse(code)

    def shaped(self, shape: Sequence[int], element: ir.Type) -> ir.Type:
        """Tensors have sizes that are powers of two: others are filled up, with whatever operations leave there. Those
        to which it matters mask it: loads and stores, reductions, products."""
        if any(n < 1 for n in shape):
            self.refuse(f"a GPU's programs have no arrays without elements, of shape {tuple(shape)}")
        sizes = filled(shape)
        if math.prod(sizes) > _MOST_ELEMENTS:
            self.refuse(f"an array of {tuple(shape)} has more than {_MOST_ELEMENTS} elements; take smaller blocks")
        return ir.RankedTensorType.get(list(sizes), element)

    def spread(self, value: ir.Value, shape: Sequence[int], dtype: Any) -> ir.Value:
        return tt.splat(self.like(shape, dtype), value)

    def resized(self, value: ir.Value, kind: ir.Type, old: int, new: int) -> ir.Value:
        if 8 not in (old, new):
            return super().resized(value, kind, old, new)
        return tt.fp_to_fp(kind, value, rounding=tt.RoundingMode.RTNE if new == 8 else None)

    def reshaped(self, value: ir.Value, shape: Sequence[int], dtype: Any) -> ir.Value:
        """New dimensions of size 1 are made one by one, of which compilers know more than of other shapes."""
        old = list(ir.RankedTensorType(value.type).shape)
        shape = filled(shape)
        if old == list(shape):
            return value
        before, after = _runs_of_ones(old), _runs_of_ones(shape)
        if [n for n in shape if n != 1] == [n for n in old if n != 1] and all(a >= b for a, b in zip(after, before)):
            at = 0
            for had, has in zip(before, after):
                for _ in range(has - had):
                    value = tt.expand_dims(value, at)
                at += has + 1
            return value
        return tt.reshape(self.like(shape, dtype), value)


def _runs_of_ones(shape: Sequence[int]) -> list[int]:
    """How many dimensions of size 1 there are before each other one, and at the end."""
    found = [0]
    for n in shape:
        if n == 1:
            found[-1] += 1
        else:
            found.append(0)
    return found


_MOST_ELEMENTS = 1 << 20  # what Triton takes
