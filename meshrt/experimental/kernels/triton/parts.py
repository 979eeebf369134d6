"""Parts of arrays that are values of a program: scratch memory, which programs carry, is read and written so.

There is no instruction for it: one row is what is left of all where the others are masked; several are gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith
from jaxlib.triton import dialect as tt

from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.experimental.kernels.mlir.conversions import bits_of, converted
from meshrt.experimental.kernels.mlir.walk import Rule, Walk, kind_of
from meshrt.experimental.kernels.triton.filled import counted, filled
from meshrt.experimental.kernels.triton.places import strided
from meshrt.primitives import dynamic_slice, slice

__all__ = ["RULES"]

_I32 = np.dtype(np.int32)


def _clamped(walk: Walk, start: Any, most: int) -> ir.Value:
    """Where a part begins, moved to where it fits."""
    if isinstance(start, int):
        return walk.i32(start)
    if not isinstance(start.type, ir.IntegerType):
        walk.refuse("a part of an array begins at a whole number; convert with astype")
    number = lambda n: arith.constant(start.type, n)
    start = arith.minsi(arith.maxsi(start, number(0)), number(most))
    return start if start.type.width == 32 else arith.trunci(walk.element(_I32), start)


def _spread(walk: Walk, value: ir.Value, shape: Sequence[int]) -> ir.Value:
    return walk.spread(value, shape, _I32)


def _compared(walk: Walk, how: str, x: ir.Value, y: ir.Value) -> ir.Value:
    return arith.cmpi(getattr(arith.CmpIPredicate, how), x, y)


def _gathered(walk: Walk, x: ir.Value, places: ir.Value, axis: int) -> ir.Value:
    sizes = list(ir.RankedTensorType(places.type).shape)
    kind = ir.RankedTensorType.get(sizes, ir.RankedTensorType(x.type).element_type)
    return tt.gather(x, places, axis, results=[kind])


def _one(walk: Walk, x: ir.Value, shape: list[int], dtype: Any, axis: int, start: ir.Value) -> ir.Value:
    """The elements at one place of an axis, with all their bits, as an array in which that axis has the size 1."""
    here = _compared(walk, "eq", counted(walk, shape, axis), _spread(walk, start, shape))
    sort = kind_of(dtype)
    code = np.dtype(bool if sort == "b" else f"int{bits_of(dtype)}")
    bits = tt.bitcast(walk.like(shape, code), x) if sort == "f" else x
    bits = arith.select(here, bits, walk.constant(0, shape, code))
    op = tt.ReduceOp([bits], axis)
    element = walk.element(code)
    entry = op.regions[0].blocks.append(element, element)
    with ir.InsertionPoint(entry):
        tt.reduce_return([arith.ori(*entry.arguments)])
    out = [1 if d == axis else n for d, n in enumerate(shape)]
    found = op.result[0]
    found = walk.reshaped(found, out, code) if len(shape) > 1 else walk.spread(found, out, code)
    return tt.bitcast(walk.like(out, dtype), found) if sort == "f" else found


def _part(walk: Walk, x: ir.Value, aval: Any, starts: Sequence[Any], sizes: Sequence[int]) -> ir.Value:
    shape = list(aval.shape)
    for d, (start, size) in enumerate(zip(starts, sizes)):
        if size == shape[d]:
            continue
        at = _clamped(walk, start, shape[d] - size)
        if size == 1:
            x = _one(walk, x, shape, aval.dtype, d, at)
            shape[d] = 1
            continue
        shape[d] = size
        places = arith.addi(counted(walk, shape, d), _spread(walk, at, shape))
        most = filled(aval.shape)[d] - 1  # what the tensor has beyond the part is anything that is there
        x = _gathered(walk, x, arith.minsi(places, walk.constant(most, shape, _I32)), d)
    return x


def _numbers(walk: Walk, eqn: Eqn, starts: Sequence[ir.Value]) -> list[ir.Value]:
    """Where a part begins: narrow numbers as words, and those without sign as the greatest word at most, as the largest
    of them look negative in their width."""
    kinds = [v.aval.dtype for v in eqn.invars[len(eqn.invars) - len(starts) :]]
    return [_number(walk, s, k) for s, k in zip(starts, kinds)]


def _number(walk: Walk, start: ir.Value, dtype: Any) -> ir.Value:
    if bits_of(dtype) < 32:
        return converted(walk, start, (), dtype, _I32)
    if kind_of(dtype) != "u":
        return start
    return arith.minui(start, arith.constant(start.type, np.iinfo(_I32).max))


def _dynamic_slice(walk: Walk, eqn: Eqn, x: ir.Value, *starts: ir.Value) -> ir.Value:
    return _part(walk, x, eqn.invars[0].aval, _numbers(walk, eqn, starts), eqn.params["slice_sizes"])


def _slice(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    if any(s != 1 for s in eqn.params["strides"] or ()):
        return strided(walk, eqn, x)
    return _part(walk, x, eqn.invars[0].aval, list(eqn.params["start_indices"]), eqn.outvars[0].aval.shape)


def _dynamic_update_slice(walk: Walk, eqn: Eqn, x: ir.Value, update: ir.Value, *starts: ir.Value) -> ir.Value:
    aval, given = eqn.invars[0].aval, eqn.invars[1].aval
    shape, inside = list(given.shape), None
    for d, (start, size) in enumerate(zip(_numbers(walk, eqn, starts), given.shape)):
        if size == aval.shape[d]:
            continue
        at = _clamped(walk, start, aval.shape[d] - size)
        shape[d] = aval.shape[d]
        if size == 1:
            update = tt.broadcast(walk.like(shape, aval.dtype), update)
        else:
            away = arith.subi(counted(walk, shape, d), _spread(walk, at, shape))
            low, high = walk.constant(0, shape, _I32), walk.constant(size - 1, shape, _I32)
            update = _gathered(walk, update, arith.minsi(arith.maxsi(away, low), high), d)
        place, begin = counted(walk, aval.shape, d), _spread(walk, at, aval.shape)
        end = arith.addi(begin, walk.constant(size, aval.shape, _I32))
        here = arith.andi(_compared(walk, "sge", place, begin), _compared(walk, "slt", place, end))
        inside = here if inside is None else arith.andi(inside, here)
    return update if inside is None else arith.select(inside, update, x)


RULES: dict[Primitive, Rule] = {
    dynamic_slice.dynamic_slice_p: _dynamic_slice,
    dynamic_slice.dynamic_update_slice_p: _dynamic_update_slice,
    slice.slice_p: _slice,
}
