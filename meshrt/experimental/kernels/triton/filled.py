"""Tensors of sizes that are no powers of two: filled up to the next one, and what masks the rest where it matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith
from jaxlib.triton import dialect as tt

from meshrt.experimental.kernels.mlir.walk import Walk

__all__ = ["counted", "filled", "is_filled", "with_rest"]

_I32 = np.dtype(np.int32)


def filled(shape: Sequence[int]) -> tuple[int, ...]:
    """The sizes of the tensor of an array of this shape."""
    return tuple([1 << (n - 1).bit_length() for n in shape])


def is_filled(shape: Sequence[int]) -> bool:
    """Whether the tensor of an array has elements that the array has not."""
    return filled(shape) != tuple(shape)


def counted(walk: Walk, shape: Sequence[int], axis: int) -> ir.Value:
    """A tensor of an array's shape that holds the index along an axis."""
    size = filled(shape)[axis]
    count = tt.make_range(walk.like((size,), _I32), 0, size)
    middle = [size if d == axis else 1 for d in range(len(shape))]
    count = walk.reshaped(count, middle, _I32)
    kind = walk.like(shape, _I32)
    return count if count.type == kind else tt.broadcast(kind, count)


def with_rest(walk: Walk, x: ir.Value, shape: Sequence[int], dtype: Any, axes: Sequence[int], value: Any) -> ir.Value:
    """`x`, an array of this shape, with `value` in what its tensor has beyond the array's end along some axes."""
    for d in axes:
        if shape[d] == filled(shape)[d]:
            continue
        inside = arith.cmpi(arith.CmpIPredicate.slt, counted(walk, shape, d), walk.constant(shape[d], shape, _I32))
        x = arith.select(inside, x, walk.constant(value, shape, dtype))
    return x
