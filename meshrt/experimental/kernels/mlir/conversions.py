"""Elements of another type: by value, and by bits where these are as many."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith

from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.experimental.kernels.mlir.walk import Rule, Walk, kind_of
from meshrt.primitives.conversion import convert_element_type_p

__all__ = ["RULES", "bits_of", "converted", "unequal"]

_INT32 = np.dtype(np.int32)
_FLOAT32 = np.dtype(np.float32)


def bits_of(dtype: Any) -> int:
    """How many bits an element has."""
    return 1 if dtype == np.bool_ else 8 * np.dtype(dtype).itemsize


def converted(walk: Walk, x: ir.Value, shape: Any, old: Any, new: Any) -> ir.Value:
    """`x`, of elements of type `old`, as elements of type `new`."""
    old, new = np.dtype(old), np.dtype(new)
    if old == new:
        return x
    out = walk.like(shape, new)
    match kind_of(old), kind_of(new):
        case "f", "f":
            return _float_to_float(walk, x, shape, old, new)
        case _, "b":
            if bits_of(old) == 8 and kind_of(old) == "f":
                return converted(walk, converted(walk, x, shape, old, _FLOAT32), shape, _FLOAT32, new)
            zero = walk.constant(0, shape, old)
            return unequal(walk, x, zero, shape) if kind_of(old) == "f" else arith.cmpi(arith.CmpIPredicate.ne, x, zero)
        case "b", "f":
            return converted(walk, arith.extui(walk.like(shape, _INT32), x), shape, _INT32, new)
        case "f", "i" | "u" as kind:
            if bits_of(old) < 32:
                return converted(walk, converted(walk, x, shape, old, _FLOAT32), shape, _FLOAT32, new)
            return arith.fptosi(out, x) if kind == "i" else arith.fptoui(out, x)
        case "i" | "u" as kind, "f":
            if bits_of(old) < 32:
                return converted(walk, converted(walk, x, shape, old, _INT32), shape, _INT32, new)
            if bits_of(new) < 32:
                return converted(walk, converted(walk, x, shape, old, _FLOAT32), shape, _FLOAT32, new)
            return arith.sitofp(out, x) if kind == "i" else arith.uitofp(out, x)
        case "i" | "u" | "b" as kind, "i" | "u":
            if bits_of(old) == bits_of(new):
                return x
            if bits_of(old) > bits_of(new):
                return arith.trunci(out, x)
            return arith.extsi(out, x) if kind == "i" else arith.extui(out, x)
    walk.refuse(f"elements of {old} do not become elements of {new}")


def unequal(walk: Walk, x: ir.Value, y: ir.Value, shape: Any) -> ir.Value:
    """Whether floats differ, which NaN does from itself: what is not equal. (Mosaic has no such predicate.)"""
    return arith.xori(arith.cmpf(arith.CmpFPredicate.OEQ, x, y), walk.constant(True, shape, np.dtype(bool)))


def _float_to_float(walk: Walk, x: ir.Value, shape: Any, old: np.dtype, new: np.dtype) -> ir.Value:
    if bits_of(old) == bits_of(new) or {bits_of(old), bits_of(new)} == {8, 64}:  # as many bits, or no direct way
        return converted(walk, converted(walk, x, shape, old, _FLOAT32), shape, _FLOAT32, new)
    return walk.resized(x, walk.like(shape, new), bits_of(old), bits_of(new))


def _convert(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    aval = eqn.invars[0].aval
    return converted(walk, x, aval.shape, aval.dtype, eqn.params["new_dtype"])


RULES: dict[Primitive, Rule] = {convert_element_type_p: _convert}
