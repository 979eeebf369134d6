"""Elements at other places: what shapes, slices, concatenations and gathers of values come to.

Triton has one instruction for it, `tt.gather`, which takes elements along one dimension. Where elements move along one
dimension only, their places there are counted; else the whole array is one row, and its places are counted in that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith
from jaxlib.triton import dialect as tt

from meshrt import lax
from meshrt.core.basic import shapes
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.types import aval_of
from meshrt.experimental.kernels import values
from meshrt.experimental.kernels.mlir.walk import Rule, Walk, written
from meshrt.experimental.kernels.triton.filled import counted, filled, is_filled
from meshrt.primitives import concatenate, gather, slice
from meshrt.primitives.gather_scatter import GatherScatterMode, index_bounds

__all__ = ["RULES", "only", "reshaped", "strided"]

_I32 = np.dtype(np.int32)


def _compared(test: Any, x: Any, bound: Any) -> Any:
    return test(x, lax.broadcast_in_dim(bound, aval_of(x).shape, ()))


def _number(walk: Walk, value: int, shape: Sequence[int]) -> ir.Value:
    return walk.constant(value, shape, _I32)


def _within(walk: Walk, places: ir.Value, shape: Sequence[int], most: int) -> ir.Value:
    """Places from 0 to `most`: those that the tensor has beyond the array are anywhere."""
    return arith.minsi(arith.maxsi(places, _number(walk, 0, shape)), _number(walk, most, shape))


def along(walk: Walk, x: ir.Value, shape: Sequence[int], out: Sequence[int], axis: int, places: ir.Value) -> ir.Value:
    """The elements of an array of `shape` at places along one axis, as an array of the shape `out`, whose other
    dimensions are the same."""
    element = ir.RankedTensorType(x.type).element_type
    kind = walk.shaped(out, element)
    if shape[axis] == 1:
        return x if x.type == kind else tt.broadcast(kind, x)
    return tt.gather(x, _within(walk, places, out, filled(shape)[axis] - 1), axis, results=[kind])


def taken(walk: Walk, x: ir.Value, shape: Sequence[int], out: Sequence[int], places: Sequence[ir.Value]) -> ir.Value:
    """The elements of an array of `shape` at places of all its dimensions, tensors of the shape `out`."""
    element = ir.RankedTensorType(x.type).element_type
    sizes = filled(shape)
    total: ir.Value | None = None
    for d, at in enumerate(places):
        step = math.prod(sizes[d + 1 :])
        at = at if step == 1 else arith.muli(at, _number(walk, step, out))
        total = at if total is None else arith.addi(total, at)
    assert total is not None
    row, found = (math.prod(sizes),), (math.prod(filled(out)),)
    if len(sizes) != 1:
        x = tt.reshape(walk.shaped(row, element), x)
    total = _within(walk, total, out, row[0] - 1)
    if len(out) != 1:
        total = tt.reshape(walk.like(found, _I32), total)
    x = tt.gather(x, total, 0, results=[walk.shaped(found, element)])
    return x if len(out) == 1 else tt.reshape(walk.shaped(out, element), x)


def only(walk: Walk, x: ir.Value) -> ir.Value:
    """The element of a tensor that has one."""
    while isinstance(x.type, ir.RankedTensorType):
        op = tt.ReduceOp([x], 0)
        kind = ir.RankedTensorType(x.type).element_type
        entry = op.regions[0].blocks.append(kind, kind)
        with ir.InsertionPoint(entry):
            tt.reduce_return([entry.arguments[0]])
        x = op.result[0]
    return x


# ----------------------------------------------------------------------------------------------------------------------
# Shapes


def reshaped(walk: Walk, x: ir.Value, shape: Sequence[int], out: Sequence[int], dtype: Any) -> ir.Value:
    """The array of `shape` with its elements in another shape, both of one dimension at least."""
    same_order = [n for n in shape if n != 1] == [n for n in out if n != 1]
    if same_order or not is_filled((*shape, *out)):
        return walk.reshaped(x, out, dtype)
    total: Any = None
    for d in range(len(out)):
        step = math.prod(out[d + 1 :])
        count = counted(walk, out, d)
        count = count if step == 1 else arith.muli(count, _number(walk, step, out))
        total = count if total is None else arith.addi(total, count)
    places = []
    for d, n in enumerate(shape):
        step = math.prod(shape[d + 1 :])
        at = total if step == 1 else arith.divui(total, _number(walk, step, out))
        places.append(at if d == 0 else arith.remui(at, _number(walk, n, out)))
    return taken(walk, x, shape, out, places)


def _reshape(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    aval, out = eqn.invars[0].aval, eqn.outvars[0].aval
    if aval.shape == out.shape:
        return x
    if not out.shape:
        return only(walk, x)
    if not aval.shape:
        return walk.spread(x, out.shape, out.dtype)
    return reshaped(walk, x, aval.shape, out.shape, out.dtype)


def _rev(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    shape = eqn.invars[0].aval.shape
    for d in eqn.params["dimensions"]:
        places = arith.subi(_number(walk, shape[d] - 1, shape), counted(walk, shape, d))
        x = along(walk, x, shape, shape, d, places)
    return x


def _roll(walk: Walk, eqn: Eqn, x: ir.Value, shift: ir.Value) -> ir.Value:
    shape, axis, stride = eqn.invars[0].aval.shape, eqn.params["axis"], eqn.params["stride"]
    size = _number(walk, shape[axis], shape)
    moved = walk.spread(shift, shape, _I32)
    if stride is not None:
        steps = counted(walk, shape, eqn.params["stride_axis"])
        moved = arith.addi(moved, arith.muli(steps, _number(walk, stride, shape)))
    back = arith.remsi(arith.subi(counted(walk, shape, axis), arith.remsi(moved, size)), size)
    places = arith.remsi(arith.addi(back, size), size)  # a remainder has the sign of what is divided
    return along(walk, x, shape, shape, axis, places)


def _every(walk: Walk, x: ir.Value, shape: Sequence[int], starts: Any, strides: Any, out: Sequence[int]) -> ir.Value:
    """Parts of neighbours `strides` apart."""
    now = list(shape)
    for d, (start, stride) in enumerate(zip(starts, strides)):
        if out[d] == now[d]:
            continue
        old = list(now)
        now[d] = out[d]
        steps = arith.muli(counted(walk, now, d), _number(walk, stride, now))
        x = along(walk, x, old, now, d, arith.addi(steps, _number(walk, start, now)))
    return x


def strided(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    """A slice of elements that are no neighbours."""
    p = eqn.params
    return _every(walk, x, eqn.invars[0].aval.shape, p["start_indices"], p["strides"], eqn.outvars[0].aval.shape)


def _concatenate(walk: Walk, eqn: Eqn, *xs: ir.Value) -> ir.Value:
    """Each operand's elements, moved to where it begins, from there on."""
    out, d, start = eqn.outvars[0].aval, eqn.params["dimension"], 0
    count, found = counted(walk, out.shape, d), None
    for x, operand in zip(xs, eqn.invars):
        shape = operand.aval.shape
        if start or filled(shape) != filled(out.shape):
            x = along(walk, x, shape, out.shape, d, arith.subi(count, _number(walk, start, out.shape)))
        if found is not None:
            behind = arith.cmpi(arith.CmpIPredicate.sge, count, _number(walk, start, out.shape))
            x = arith.select(behind, x, found)
        found, start = x, start + shape[d]
    assert found is not None
    return found


def _split(walk: Walk, eqn: Eqn, x: ir.Value) -> list[ir.Value]:
    shape, axis, at, parts = eqn.invars[0].aval.shape, eqn.params["axis"], 0, []
    for v, size in zip(eqn.outvars, eqn.params["sizes"]):
        starts = [at if d == axis else 0 for d in range(len(shape))]
        parts.append(_every(walk, x, shape, starts, [1] * len(shape), v.aval.shape))
        at += size
    return parts


def _pad(walk: Walk, eqn: Eqn, x: ir.Value, value: ir.Value) -> ir.Value:
    aval, out = eqn.invars[0].aval, eqn.outvars[0].aval
    shape, here = list(aval.shape), None
    for d, (low, _, interior) in enumerate(eqn.params["padding_config"]):
        if out.shape[d] == shape[d] and low == 0:
            continue
        old = list(shape)
        shape[d] = out.shape[d]
        step = interior + 1
        after = arith.subi(counted(walk, shape, d), _number(walk, low, shape))
        if low or interior or filled(old) != filled(shape):
            x = along(walk, x, old, shape, d, arith.divsi(after, _number(walk, step, shape)))
        here = _with_elements(walk, here, out.shape, d, (low, step, old[d]))
    return x if here is None else arith.select(here, x, walk.spread(value, out.shape, out.dtype))


def _with_elements(walk: Walk, here: Any, shape: Sequence[int], d: int, how: tuple[int, int, int]) -> ir.Value:
    """Where there is an element of the array along a dimension, too."""
    low, step, size = how
    after = arith.subi(counted(walk, shape, d), _number(walk, low, shape))
    tests = [(arith.CmpIPredicate.sge, after, 0), (arith.CmpIPredicate.slt, after, (size - 1) * step + 1)]
    if step != 1:
        tests.append((arith.CmpIPredicate.eq, arith.remsi(after, _number(walk, step, shape)), 0))
    for predicate, x, bound in tests:
        test = arith.cmpi(predicate, x, _number(walk, bound, shape))
        here = test if here is None else arith.andi(here, test)
    return here


# ----------------------------------------------------------------------------------------------------------------------
# Gathers


def _places(indices: Any, shape: Sequence[int], out: Sequence[int], p: Any) -> list[Any]:
    """Of a gather, per dimension of the operand the elements that it takes; last, whether each window is inside."""
    numbers, sizes = p["dimension_numbers"], p["slice_sizes"]
    outer = [d for d in range(len(out)) if d not in numbers.offset_dims]
    hidden = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    offsets = dict(zip([d for d in range(len(shape)) if d not in hidden], numbers.offset_dims))
    mapped = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims))
    spread = lambda x: lax.broadcast_in_dim(x, out, outer if aval_of(x).ndim else ())
    dtype, last = aval_of(indices).dtype, aval_of(indices).ndim - 1
    starts: dict[int, Any] = {}
    inside: Any = np.True_
    bounds = index_bounds(shape, sizes, numbers.start_index_map, dtype)
    for i, (d, bound) in enumerate(zip(numbers.start_index_map, bounds)):
        at = lax.index_in_dim(indices, i, last, keepdims=False)
        low, high = (np.asarray(n, dtype)[()] for n in (0, bound))
        starts[d] = lax.convert_element_type(lax.clamp(low, at, high), _I32)
        inside = lax.bitwise_and(lax.bitwise_and(_compared(lax.ge, at, low), _compared(lax.le, at, high)), inside)
    found = []
    for d in range(len(shape)):
        at = spread(starts.get(d, np.int32(0)))
        step = offsets.get(d, outer[mapped[d]] if d in mapped else None)
        found.append(at if step is None else lax.add(at, lax.broadcasted_iota(_I32, out, step)))
    return [*found, spread(inside)]


def _gather(walk: Walk, eqn: Eqn, x: ir.Value, indices: ir.Value) -> ir.Value:
    aval, p = eqn.invars[0].aval, eqn.params
    numbers, out = p["dimension_numbers"], eqn.outvars[0].aval.shape or (1,)
    if p["mode"] is GatherScatterMode.ONE_HOT:
        walk.refuse("a gather of mode one_hot is take_along_axis(..., mode='one_hot'), or has the mode fill or clip")
    at = lambda indices: _places(indices, aval.shape, out, p)
    *places, inside = written(walk, at, [eqn.invars[1].aval], [indices], "gather")
    axis = numbers.start_index_map[0] if numbers.start_index_map else 0
    others = tuple(d for d in range(aval.ndim) if d != axis)
    whole = len(out) == aval.ndim and all(out[d] == aval.shape[d] for d in others)
    if whole and numbers.start_index_map == (axis,) and others in (numbers.operand_batching_dims, numbers.offset_dims):
        found = along(walk, x, aval.shape, out, axis, places[axis])
    else:
        found = taken(walk, x, aval.shape, out, places)
    if p["mode"] is GatherScatterMode.FILL_OR_DROP:
        found = arith.select(inside, found, walk.constant(p["fill_value"], out, aval.dtype))
    return found if eqn.outvars[0].aval.shape else only(walk, found)


RULES: dict[Primitive, Rule] = {
    shapes.reshape_p: _reshape,
    concatenate.rev_p: _rev,
    concatenate.concatenate_p: _concatenate,
    concatenate.split_p: _split,
    slice.pad_p: _pad,
    gather.gather_p: _gather,
    values.roll_p: _roll,
}
