"""Instructions of a TPU's core on values that kernels name, and what is printed."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, cf, math, memref, vector
from jaxlib.mosaic.python import tpu

from meshrt import numpy as jnp
from meshrt import tree_util
from meshrt.config import settings
from meshrt.core.basic.pointwise import add_any_p
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.experimental.checkify.checks import check_p
from meshrt.experimental.kernels import hints, prng, values
from meshrt.experimental.kernels.mlir.arithmetic import by_kind, same
from meshrt.experimental.kernels.mlir.walk import Rule, Walk, kind_of, through
from meshrt.experimental.kernels.mosaic.types import memory_type
from meshrt.primitives import elementwise, gamma

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


# Coefficients of Giles, "Approximating the erfinv function" (GPU Computing Gems, 2011): of the centre and of the tails.
_CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_TAILS = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip


def _erf_inv(x: Any) -> Any:
    """Two polynomials in w = -log(1 - x²), exact to three units in the last place of a float32."""
    single = jnp.asarray(x, np.float32)
    w = -jnp.log((np.float32(1) - single) * (np.float32(1) + single))

    def polynomial(coefficients: tuple[float, ...], at: Any) -> Any:
        total = jnp.full_like(at, coefficients[0])
        for c in coefficients[1:]:
            total = total * at + np.float32(c)
        return total

    tails = polynomial(_TAILS, jnp.sqrt(w) - np.float32(3))
    near = jnp.where(w < np.float32(5), polynomial(_CENTRE, w - np.float32(2.5)), tails) * single
    ends = jnp.abs(single) == np.float32(1)
    return jnp.where(ends, single * np.float32(np.inf), near).astype(x.dtype)


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


def _seed(walk: Walk, eqn: Eqn, state: Any, *seeds: ir.Value) -> list[Any]:
    if len(seeds) > 2:
        walk.refuse(f"a generator takes one or two seeds, not {len(seeds)}: combine them")
    tpu.prng_set_seed_32(list(seeds))
    return []


def _check(walk: Walk, eqn: Eqn, *leaves: ir.Value) -> list[Any]:
    """A check that stops the chip if it fails: only those for debugging, where the setting asks for them."""
    if not eqn.params["debug"]:
        walk.refuse("a check is a value of the program around: apply checkify.checkify to it, or use pl.debug_check")
    if settings.pallas_enable_debug_checks:
        error = tree_util.tree_unflatten(eqn.params["structure"], leaves)
        texts = [tree_util.tree_unflatten(s.structure, error.payloads[n]).template for n, s in error.sites.items()]
        fine = arith.cmpi(arith.CmpIPredicate.slt, error.code, walk.i32(0))
        cf.assert_(fine, f"{' or '.join(texts)} at {eqn.source}")
    return []


def _delay(walk: Walk, eqn: Eqn, nanos: ir.Value) -> list[Any]:
    tpu.delay(nanos)
    return []


def _neg(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    """Whole numbers are taken from zero, by a subtraction, which widens bytes."""
    dtype = eqn.invars[0].aval.dtype
    if kind_of(dtype) == "f":
        return arith.negf(x)
    out: ir.Value = through(lambda x: elementwise.sub_p.bind(np.zeros((), dtype)[()], x))(walk, eqn, x)
    return out


# Bytes are added, subtracted and multiplied as words: the compilers of chips up to v5 refuse them.
_BYTES: dict[Primitive, Rule] = {
    elementwise.add_p: by_kind(arith.addf, arith.addi, b=arith.ori, words="iu", least=16),
    add_any_p: by_kind(arith.addf, arith.addi, b=arith.ori, words="iu", least=16),
    elementwise.sub_p: by_kind(arith.subf, arith.subi, words="iu", least=16),
    elementwise.mul_p: by_kind(arith.mulf, arith.muli, b=arith.andi, words="iu", least=16),
    elementwise.abs_p: by_kind(math.absf, math.absi, u=lambda x: x, words="i", least=16),
    elementwise.neg_p: _neg,
}

RULES: dict[Primitive, Rule] = {
    **_BYTES,
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
    check_p: _check,
    values.touch_p: lambda walk, eqn, place: [],
    values.debug_barrier_p: lambda walk, eqn: [],
    gamma.erf_inv_p: through(_erf_inv),
    prng.prng_seed_p: _seed,
    prng.prng_random_bits_p: lambda walk, eqn, state: tpu.prng_random_bits(walk.type_of(eqn.outvars[0].aval)),
    hints.multiple_of_p: _multiple_of,
    hints.max_contiguous_p: same,
}
