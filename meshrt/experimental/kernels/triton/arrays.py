"""Shapes, reductions and products of tensors, and what NVIDIA's libdevice computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith
from jaxlib.triton import dialect as tt

from meshrt import dtypes
from meshrt.core.basic import shapes
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.trace import eval_jaxpr, trace_to_jaxpr
from meshrt.core.types import ShapedArray
from meshrt.experimental.kernels import assembly, hints, values
from meshrt.experimental.kernels.mlir.arithmetic import same
from meshrt.experimental.kernels.mlir.conversions import bits_of, converted
from meshrt.experimental.kernels.mlir.walk import Rule, Walk, kind_of, through, written
from meshrt.experimental.kernels.triton.filled import counted, filled, with_rest
from meshrt.primitives import (
    bitcast,
    conversion,
    cumulative,
    elementwise,
    gamma,
    reduce,
    reduce_general,
    reshape,
)
from meshrt.primitives.functions import RoundingMethod
from meshrt.primitives.selection import select_n
from meshrt.transforms.batching import MappedAxis, batch_jaxpr

__all__ = ["RULES", "called", "reduced"]

_F32, _F64, _I32 = (np.dtype(name) for name in ("float32", "float64", "int32"))


# ----------------------------------------------------------------------------------------------------------------------
# Shapes


def _broadcast_in_dim(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    aval, out = eqn.invars[0].aval, eqn.outvars[0].aval
    if aval.shape == out.shape:
        return x
    if not aval.shape:
        return walk.spread(x, out.shape, out.dtype)
    middle = [1] * out.ndim
    for d, n in zip(eqn.params["broadcast_dimensions"], aval.shape):
        middle[d] = n
    x = walk.reshaped(x, middle, aval.dtype)
    return x if x.type == walk.type_of(out) else tt.broadcast(walk.type_of(out), x)


def _transpose(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    return tt.trans(x, list(eqn.params["permutation"]))


def _iota(walk: Walk, eqn: Eqn) -> ir.Value:
    out, d = eqn.outvars[0].aval, eqn.params["dimension"]
    return converted(walk, counted(walk, out.shape, d), out.shape, _I32, out.dtype)


def _bitcast(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    aval, out = eqn.invars[0].aval, eqn.outvars[0].aval
    if bits_of(aval.dtype) != bits_of(out.dtype):
        made: ir.Value = through(bitcast.split_bits if aval.ndim < out.ndim else bitcast.joined_bits)(walk, eqn, x)
        return made
    return x if walk.element(aval.dtype) == walk.element(out.dtype) else tt.bitcast(walk.type_of(out), x)


# ----------------------------------------------------------------------------------------------------------------------
# Reductions: a function of two elements, applied along one dimension after the other


def _combined(walk: Walk, op: Any, dtypes: Sequence[Any], combine: Callable[..., Sequence[Any]], give: Any) -> None:
    """Writes the function of two elements into the region of a reduction or scan."""
    closed = trace_to_jaxpr(combine, [ShapedArray((), d) for d in (*dtypes, *dtypes)], "combine")
    elements = [walk.element(d) for d in dtypes]
    entry = op.regions[0].blocks.append(*elements, *elements)
    with ir.InsertionPoint(entry):
        give(walk.jaxpr(closed.jaxpr, list(entry.arguments)))


def reduced(
    walk: Walk, xs: Sequence[ir.Value], dtypes: Sequence[Any], axis: int, combine: Callable[..., Sequence[Any]]
) -> list[ir.Value]:
    held = [_held(d) for d in dtypes]
    op = tt.ReduceOp([converted(walk, x, _shape(x), d, h) for x, d, h in zip(xs, dtypes, held)], axis)
    _combined(walk, op, held, _holding(combine, dtypes, held), tt.reduce_return)
    return [converted(walk, x, _shape(x), h, d) for x, d, h in zip(op.result, dtypes, held)]


def _held(dtype: Any) -> np.dtype:
    """As what reductions and scans hand elements on between threads: a byte's floats end the compiler's process."""
    return np.dtype(np.float32 if kind_of(dtype) == "f" and bits_of(dtype) == 8 else dtype)


def _holding(combine: Callable[..., Sequence[Any]], dtypes: Sequence[Any], held: Sequence[Any]) -> Callable[..., Any]:
    """`combine` over values in the dtypes that they are held in."""
    convert = conversion.convert_element_type

    def combined(*values: Any) -> list[Any]:
        outs = combine(*(convert(v, d) for v, d in zip(values, (*dtypes, *dtypes))))
        return [convert(o, h) for o, h in zip(outs, held)]

    return combined if any(d != h for d, h in zip(dtypes, held)) else combine


def _shape(x: ir.Value) -> tuple[int, ...]:
    return tuple(x.type.shape) if isinstance(x.type, ir.RankedTensorType) else ()


def _reduction(combine: Primitive, neutral: Callable[[Any], Any]) -> Rule:
    """`neutral(dtype)` changes nothing that it is combined with."""

    def rule(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
        aval = eqn.invars[0].aval
        x = with_rest(walk, x, aval.shape, aval.dtype, eqn.params["axes"], neutral(aval.dtype))
        for axis in sorted(eqn.params["axes"], reverse=True):
            (x,) = reduced(walk, [x], [aval.dtype], axis, lambda a, b: [combine.bind(a, b)])
        return x

    return rule


def _zero(dtype: Any) -> Any:
    return 0


def _one(dtype: Any) -> Any:
    return 1


def _least(dtype: Any) -> Any:
    return -np.inf if kind_of(dtype) == "f" else 0 if dtype == np.bool_ else dtypes.iinfo(dtype).min


def _greatest(dtype: Any) -> Any:
    return np.inf if kind_of(dtype) == "f" else 1 if dtype == np.bool_ else dtypes.iinfo(dtype).max


def _all_bits(dtype: Any) -> Any:
    return -1 if kind_of(dtype) == "i" else _greatest(dtype)


def _place_of(better: Primitive, worst: Callable[[Any], Any]) -> Rule:
    """Where the greatest or least element stands, the first of equal ones."""

    def combine(a: Any, i: Any, b: Any, j: Any) -> list[Any]:
        first = elementwise.or_p.bind(
            better.bind(a, b), elementwise.and_p.bind(elementwise.eq_p.bind(a, b), elementwise.lt_p.bind(i, j))
        )
        return [select_n(first, b, a), select_n(first, j, i)]

    def rule(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
        aval, out, (axis,) = eqn.invars[0].aval, eqn.outvars[0].aval, eqn.params["axes"]
        x = with_rest(walk, x, aval.shape, aval.dtype, [axis], worst(aval.dtype))
        count = counted(walk, aval.shape, axis)
        _, found = reduced(walk, [x, count], [aval.dtype, _I32], axis, combine)
        return converted(walk, found, out.shape, _I32, out.dtype)

    return rule


def _cumulative(combine: Callable[[Any, Any], Any], neutral: Callable[[Any], Any]) -> Rule:
    def rule(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
        aval, axis = eqn.invars[0].aval, eqn.params["axis"]
        if eqn.params["reverse"]:
            x = with_rest(walk, x, aval.shape, aval.dtype, [axis], neutral(aval.dtype))
        dtype = _held(aval.dtype)
        op = tt.ScanOp([converted(walk, x, aval.shape, aval.dtype, dtype)], axis, eqn.params["reverse"])
        one = lambda a, b: [combine(a, b)]
        _combined(walk, op, [dtype], _holding(one, [aval.dtype], [dtype]), tt.scan_return)
        return converted(walk, op.result[0], aval.shape, dtype, aval.dtype)

    return rule


def _reduce(walk: Walk, eqn: Eqn, *operands: ir.Value) -> list[ir.Value]:
    """A reduction of several arrays at once by a function of two elements of each, from what it starts with."""
    count, dimensions, jaxpr = len(operands) // 2, eqn.params["dimensions"], eqn.params["jaxpr"]
    xs, starts, kinds = list(operands[:count]), operands[count:], [a.aval.dtype for a in eqn.invars[:count]]
    shape = list(eqn.invars[0].aval.shape)
    for d in sorted(dimensions, reverse=True):
        is_whole = filled(shape)[d] == shape[d]
        own, types = [*xs], [*kinds]
        if not is_whole:  # what starts it may change what it is combined with, so it does not stand for the rest
            size = walk.constant(shape[d], shape, _I32)
            own.append(arith.cmpi(arith.CmpIPredicate.slt, counted(walk, shape, d), size))
            types.append(np.dtype(bool))
        combine = lambda *values: eval_jaxpr(jaxpr, (), values)
        xs = reduced(walk, own, types, d, combine if is_whole else _of_those_there(combine))[:count]
        del shape[d]
    for n in reversed(shape):
        jaxpr = batch_jaxpr(jaxpr, MappedAxis(n), (True,) * (2 * count), True)[0].jaxpr
    wide = [walk.spread(s, shape, k) if shape else s for s, k in zip(starts, kinds)]
    avals = [ShapedArray(tuple(shape), k) for k in (*kinds, *kinds)]
    return written(walk, lambda *values: eval_jaxpr(jaxpr, (), values), avals, [*wide, *xs], "reduce")


def _of_those_there(combine: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """`combine` of elements with a flag each, which says whether there is one."""

    def both(*values: Any) -> Sequence[Any]:
        count = len(values) // 2
        (*a, a_is), (*b, b_is) = values[:count], values[count:]
        made = combine(*a, *b)
        chosen = [select_n(a_is, y, select_n(b_is, x, z)) for x, y, z in zip(a, b, made)]
        return [*chosen, elementwise.or_p.bind(a_is, b_is)]

    return both


# ----------------------------------------------------------------------------------------------------------------------
# libdevice


def called(walk: Walk, name: str, operands: Sequence[ir.Value], shape: Sequence[int], dtype: Any) -> ir.Value:
    """A function of NVIDIA's library, of words or double words. Narrow elements are widened."""
    wide = _F64 if dtype == _F64 else _F32
    given = [converted(walk, x, shape, dtype, wide) for x in operands]
    symbol = f"__nv_{name}" + ("f" if wide == _F32 else "")
    made = tt.extern_elementwise(walk.like(shape, wide), given, "", "", symbol, True)
    return converted(walk, made, shape, wide, dtype)


def _library(name: str) -> Rule:
    def rule(walk: Walk, eqn: Eqn, *operands: ir.Value) -> ir.Value:
        out = eqn.outvars[0].aval
        if kind_of(out.dtype) != "f" or any(a.aval.dtype != out.dtype for a in eqn.invars):
            walk.refuse("it is a function of floats of one type; convert the operands with astype")
        return called(walk, name, walk.alike(eqn, operands), out.shape, out.dtype)

    return rule


def _inline_asm(walk: Walk, eqn: Eqn, *xs: ir.Value) -> Sequence[ir.Value]:
    p, kinds = eqn.params, [walk.type_of(v.aval) for v in eqn.outvars]
    made = tt.elementwise_inline_asm(
        kinds, p["asm"], constraints=p["constraints"], pure=True, packed_element=p["pack"], args=list(xs)
    )
    return [made] if isinstance(made, ir.Value) else list(made)


def _bits(name: str) -> Rule:
    """A count of bits, of words or double words. Narrow elements are widened by zeros."""

    def rule(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
        aval = eqn.invars[0].aval
        if kind_of(aval.dtype) not in ("i", "u"):
            walk.refuse("bits are counted in whole numbers; see the elements as such by bitcast_convert_type")
        width = bits_of(aval.dtype)
        x = converted(walk, x, aval.shape, np.dtype(f"uint{width}"), np.dtype(np.uint32)) if width < 32 else x
        symbol = f"__nv_{name}" + ("ll" if width == 64 else "")
        made = tt.extern_elementwise(walk.like(aval.shape, _I32), [x], "", "", symbol, True)
        if name == "clz" and width < 32:
            made = arith.subi(made, walk.constant(32 - width, aval.shape, _I32))
        return converted(walk, made, aval.shape, _I32, aval.dtype)

    return rule


def _round(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    to_even = eqn.params["rounding_method"] == RoundingMethod.TO_NEAREST_EVEN
    out: ir.Value = _library("rint" if to_even else "round")(walk, eqn, x)
    return out


def _power(walk: Walk, eqn: Eqn, x: ir.Value, y: ir.Value) -> ir.Value:
    base, exponent = eqn.invars[0].aval.dtype, eqn.invars[1].aval.dtype
    if base == exponent:
        out: ir.Value = _library("pow")(walk, eqn, x, y)
        return out
    as_float = lambda x, y: elementwise.pow_p.bind(x, conversion.convert_element_type(y, base))
    made: ir.Value = through(as_float)(walk, eqn, x, y)
    return made


_LIBRARY = {
    elementwise.exp_p: "exp", elementwise.exp2_p: "exp2", elementwise.expm1_p: "expm1", elementwise.log_p: "log",
    elementwise.log1p_p: "log1p", elementwise.sqrt_p: "sqrt", elementwise.rsqrt_p: "rsqrt", elementwise.cbrt_p: "cbrt",
    elementwise.sin_p: "sin", elementwise.cos_p: "cos", elementwise.tan_p: "tan", elementwise.tanh_p: "tanh",
    elementwise.asin_p: "asin", elementwise.acos_p: "acos", elementwise.atan_p: "atan", elementwise.atan2_p: "atan2",
    elementwise.sinh_p: "sinh", elementwise.cosh_p: "cosh", elementwise.asinh_p: "asinh",
    elementwise.acosh_p: "acosh", elementwise.atanh_p: "atanh", elementwise.floor_p: "floor",
    elementwise.ceil_p: "ceil", gamma.erf_p: "erf", gamma.erfc_p: "erfc",
    gamma.erf_inv_p: "erfinv", gamma.lgamma_p: "lgamma",
}  # fmt: skip


def _print(walk: Walk, eqn: Eqn, *operands: ir.Value) -> list[Any]:
    """Prints a text and values behind it."""
    text = eqn.params["fmt"]
    if "{" in text.replace("{}", ""):
        walk.refuse("values stand behind the text; leave what is in the braces out")
    signed = [int(kind_of(a.aval.dtype) == "i") for a in eqn.invars]
    tt.print_(f" {text.replace('{}', '').strip()} ", False, list(operands), signed)
    return []


RULES: dict[Primitive, Rule] = {
    shapes.broadcast_in_dim_p: _broadcast_in_dim,
    shapes.transpose_p: _transpose,
    reshape.iota_p: _iota,
    bitcast.bitcast_convert_type_p: _bitcast,
    reduce.reduce_sum_p: _reduction(elementwise.add_p, _zero),
    reduce.reduce_prod_p: _reduction(elementwise.mul_p, _one),
    reduce.reduce_max_p: _reduction(elementwise.max_p, _least),
    reduce.reduce_min_p: _reduction(elementwise.min_p, _greatest),
    reduce.reduce_and_p: _reduction(elementwise.and_p, _all_bits),
    reduce.reduce_or_p: _reduction(elementwise.or_p, _zero),
    reduce.reduce_xor_p: _reduction(elementwise.xor_p, _zero),
    reduce.argmax_p: _place_of(elementwise.gt_p, _least),
    reduce.argmin_p: _place_of(elementwise.lt_p, _greatest),
    reduce_general.reduce_p: _reduce,
    cumulative.cumsum_p: _cumulative(elementwise.add_p.bind, _zero),
    cumulative.cumprod_p: _cumulative(elementwise.mul_p.bind, _one),
    cumulative.cummax_p: _cumulative(elementwise.max_p.bind, _least),
    cumulative.cummin_p: _cumulative(elementwise.min_p.bind, _greatest),
    cumulative.cumlogsumexp_p: _cumulative(cumulative.logaddexp, _least),
    **{primitive: _library(name) for primitive, name in _LIBRARY.items()},
    elementwise.pow_p: _power,
    values.debug_print_p: _print,
    assembly.elementwise_inline_asm_p: _inline_asm,
    values.approx_tanh_p: _library("tanh"),
    hints.multiple_of_p: same,
    hints.max_contiguous_p: same,
    elementwise.round_p: _round,
    elementwise.population_count_p: _bits("popc"),
    elementwise.clz_p: _bits("clz"),
}
