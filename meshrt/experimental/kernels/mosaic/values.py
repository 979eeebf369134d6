"""Instructions of a TPU's core on values that kernels name, and what is printed."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, memref, vector
from jaxlib.mosaic.python import tpu

from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.experimental.kernels import hints, values
from meshrt.experimental.kernels.mlir.arithmetic import same
from meshrt.experimental.kernels.mlir.walk import Rule, Walk, kind_of, through
from meshrt.experimental.kernels.mosaic.types import memory_type
from meshrt.primitives import elementwise

__all__ = ["RULES"]


def _roll(walk: Walk, eqn: Eqn, x: ir.Value, shift: ir.Value) -> ir.Value:
    stride, along = eqn.params["stride"], eqn.params["stride_axis"]
    return tpu.dynamic_rotate(x, shift, eqn.params["axis"], stride=stride, stride_dimension=along)


def _reciprocal(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    aval = eqn.invars[0].aval
    if aval.shape and aval.dtype == np.float32:
        return tpu.reciprocal(x, approx=eqn.params["approx"], full_range=eqn.params["full_range"])
    exact = lambda v, **_: elementwise.div_p.bind(np.asarray(1, aval.dtype)[()], v)
    out: ir.Value = through(exact)(walk, eqn, x)
    return out


def _pack(walk: Walk, eqn: Eqn, *xs: ir.Value) -> ir.Value:
    kind = ir.TypeAttr.get(walk.element(eqn.params["packed_dtype"]))
    return tpu.pack_elementwise(walk.type_of(eqn.outvars[0].aval), list(xs), kind)


def _unpack(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    kind = ir.TypeAttr.get(walk.element(eqn.params["packed_dtype"]))
    return tpu.unpack_elementwise(walk.type_of(eqn.outvars[0].aval), x, kind, eqn.params["index"])


def _multiple_of(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    (count, *_), aval = eqn.params["values"], eqn.invars[0].aval
    return x if aval.shape or kind_of(aval.dtype) not in ("i", "u") else tpu.assume_multiple(x, count)


_FIELD = re.compile(r"\{[^{}]*\}")


def _print(walk: Walk, eqn: Eqn, *operands: ir.Value) -> list[Any]:
    """Whole numbers where the text has places for them, else all numbers behind it; or one array."""
    text, avals = eqn.params["fmt"], [a.aval for a in eqn.invars]
    places = _FIELD.findall(text)
    if len(avals) == 1 and avals[0].shape:
        _print_array(walk, text, avals[0], *operands)
        return []
    if any(a.shape for a in avals):
        walk.refuse("a kernel prints numbers, or one array: call debug_print for each")
    if places and not all(kind_of(a.dtype) in ("i", "u") and a.dtype.itemsize == 4 for a in avals):
        walk.refuse("only int32 has places in the text; leave the braces out, and the numbers stand behind it")
    count = iter(range(len(places)))
    shown = _FIELD.sub(lambda _: f"${next(count)}", text)
    tpu.log(list(operands), shown, formatted=bool(places))
    return []


def _print_array(walk: Walk, text: str, aval: Any, x: ir.Value) -> None:
    """An array is printed from memory."""
    if not text.endswith("{}"):
        walk.refuse("the text before an array ends with {}, which it replaces")
    region = tpu.RegionOp([])
    with ir.InsertionPoint(region.body):
        place = memref.alloca(memory_type(aval.shape, walk.element(aval.dtype), "vmem"), [], [])
        zero = arith.constant(ir.IndexType.get(), 0)
        vector.store(x, place, [zero] * aval.ndim)
        tpu.log_buffer(place, list(aval.shape), text[: -len("{}")])
        tpu.yield_([])


def _trace_value(walk: Walk, eqn: Eqn, x: ir.Value) -> list[Any]:
    tpu.trace_value(x, eqn.params["label"])
    return []


def _delay(walk: Walk, eqn: Eqn, nanos: ir.Value) -> list[Any]:
    tpu.delay(nanos)
    return []


RULES: dict[Primitive, Rule] = {
    values.roll_p: _roll,
    values.bitcast_p: lambda walk, eqn, x: tpu.bitcast(walk.type_of(eqn.outvars[0].aval), x),
    values.reciprocal_p: _reciprocal,
    values.approx_tanh_p: through(elementwise.tanh_p.bind),
    values.pack_elementwise_p: _pack,
    values.unpack_elementwise_p: _unpack,
    values.stochastic_round_p: lambda walk, eqn, x, bits: tpu.stochastic_convert(
        walk.type_of(eqn.outvars[0].aval), x, bits
    ),
    values.memory_space_p: same,
    values.debug_print_p: _print,
    values.trace_value_p: _trace_value,
    values.delay_p: _delay,
    values.touch_p: lambda walk, eqn, place: [],
    values.debug_barrier_p: lambda walk, eqn: [],
    hints.multiple_of_p: _multiple_of,
    hints.max_contiguous_p: same,
}
