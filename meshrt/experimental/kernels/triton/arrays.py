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
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.types import ShapedArray
from meshrt.experimental.kernels import assembly, hints, values
from meshrt.experimental.kernels.mlir.arithmetic import same
from meshrt.experimental.kernels.mlir.conversions import bits_of, converted
from meshrt.experimental.kernels.mlir.walk import Rule, Walk, kind_of, through
from meshrt.experimental.kernels.triton.filled import counted, filled, is_filled, with_rest
from meshrt.primitives import arrangement, compositions, contract, conversion, elementwise, gamma, reduce, reshape
from meshrt.primitives.cumulative import cumprod_p, cumsum_p
from meshrt.primitives.functions import RoundingMethod
from meshrt.primitives.precision import DotAlgorithmPreset, Precision
from meshrt.primitives.selection import select_n

__all__ = ["RULES"]

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


def _reshape(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    aval, out = eqn.invars[0].aval, eqn.outvars[0].aval
    if aval.shape == out.shape:
        return x
    if not out.shape:
        return _only(walk, x, aval.shape, aval.dtype)
    if not aval.shape:
        return walk.spread(x, out.shape, out.dtype)
    if [n for n in aval.shape if n != 1] != [n for n in out.shape if n != 1] and is_filled((*aval.shape, *out.shape)):
        walk.refuse(
            f"elements of an array of {aval.shape} have other places in one of {out.shape}, where sizes are no powers "
            "of two: reshape outside of the kernel"
        )
    return walk.reshaped(x, out.shape, out.dtype)


def _only(walk: Walk, x: ir.Value, shape: Sequence[int], dtype: Any) -> ir.Value:
    """The element of a tensor that has one."""
    for d in range(len(shape) - 1, -1, -1):
        x = _reduced(walk, [x], [dtype], d, lambda x, y: [elementwise.add_p.bind(x, y)])[0]
    return x


def _transpose(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    return tt.trans(x, list(eqn.params["permutation"]))


def _iota(walk: Walk, eqn: Eqn) -> ir.Value:
    out, d = eqn.outvars[0].aval, eqn.params["dimension"]
    return converted(walk, counted(walk, out.shape, d), out.shape, _I32, out.dtype)


def _bitcast(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    aval, out = eqn.invars[0].aval, eqn.outvars[0].aval
    if bits_of(aval.dtype) != bits_of(out.dtype):
        walk.refuse("elements are seen as others of as many bits")
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


def _reduced(
    walk: Walk, xs: Sequence[ir.Value], dtypes: Sequence[Any], axis: int, combine: Callable[..., Sequence[Any]]
) -> list[ir.Value]:
    op = tt.ReduceOp(list(xs), axis)
    _combined(walk, op, dtypes, combine, tt.reduce_return)
    return list(op.result)


def _reduction(combine: Primitive, neutral: Callable[[Any], Any]) -> Rule:
    """`neutral(dtype)` changes nothing that it is combined with."""

    def rule(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
        aval = eqn.invars[0].aval
        x = with_rest(walk, x, aval.shape, aval.dtype, eqn.params["axes"], neutral(aval.dtype))
        for axis in sorted(eqn.params["axes"], reverse=True):
            (x,) = _reduced(walk, [x], [aval.dtype], axis, lambda a, b: [combine.bind(a, b)])
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
        _, found = _reduced(walk, [x, count], [aval.dtype, _I32], axis, combine)
        return converted(walk, found, out.shape, _I32, out.dtype)

    return rule


def _cumulative(combine: Primitive, neutral: Callable[[Any], Any]) -> Rule:
    def rule(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
        aval, axis = eqn.invars[0].aval, eqn.params["axis"]
        if eqn.params["reverse"]:
            x = with_rest(walk, x, aval.shape, aval.dtype, [axis], neutral(aval.dtype))
        op = tt.ScanOp([x], axis, eqn.params["reverse"])
        _combined(walk, op, [aval.dtype], lambda a, b: [combine.bind(a, b)], tt.scan_return)
        return op.result[0]

    return rule


# ----------------------------------------------------------------------------------------------------------------------
# Products


def _dot_general(walk: Walk, eqn: Eqn, x: ir.Value, y: ir.Value) -> ir.Value:
    (xc, yc), (xb, _) = eqn.params["dimension_numbers"]
    (a, b), out = [v.aval for v in eqn.invars], eqn.outvars[0].aval
    if xb or len(xc) != 1 or a.ndim != 2 or b.ndim != 2:
        walk.refuse("a product is one of two matrices; loop over mapped dimensions by the grid")
    if kind_of(a.dtype) not in ("f", "i") or kind_of(b.dtype) not in ("f", "i"):
        walk.refuse(f"there are no products of {a.dtype} and {b.dtype}; convert them with astype")
    if kind_of(a.dtype) == "i" and bits_of(a.dtype) != 8:
        walk.refuse(f"of whole numbers only int8 has products, not {a.dtype}; convert to a float")
    if a.dtype != b.dtype and bits_of(a.dtype) > 8:
        walk.refuse(
            f"the elements of both matrices have one type, not {a.dtype} and {b.dtype}; convert one with astype"
        )
    x = _for_product(walk, x, a, xc[0], 1)
    y = _for_product(walk, y, b, yc[0], 0)
    wide = out.dtype if out.dtype in (_F64, np.dtype(np.float16)) else _F32 if kind_of(out.dtype) == "f" else _I32
    sizes = [max(n, LEAST) for n in filled(out.shape)]
    made = tt.dot(x, y, walk.constant(0, sizes, wide), input_precision=_input_precision(walk, eqn, a.dtype))
    for d in range(2):
        made = _first_of_each(walk, made, sizes, d, filled(out.shape)[d], wide)
        sizes[d] = filled(out.shape)[d]
    return converted(walk, made, out.shape, wide, out.dtype)


# What tensor cores multiply has at least so many rows and columns.
LEAST = 16


def _for_product(walk: Walk, x: ir.Value, aval: ShapedArray, contracted: int, position: int) -> ir.Value:
    """A matrix with its contracted dimension at `position`, zero beyond its end there, of sizes that tensor cores take:
    each row or column is repeated; of a contracted one all copies but the first are zeros."""
    x = with_rest(walk, x, aval.shape, aval.dtype, [contracted], 0)
    sizes = list(filled(aval.shape))
    if contracted != position:
        x, sizes = tt.trans(x, [1, 0]), sizes[::-1]
    for d in range(2):
        copies = LEAST // sizes[d]
        if copies <= 1:
            continue
        apart, whole = [*sizes[: d + 1], 1, *sizes[d + 1 :]], [*sizes[: d + 1], copies, *sizes[d + 1 :]]
        x = tt.broadcast(walk.like(whole, aval.dtype), walk.reshaped(x, apart, aval.dtype))
        if d == position:
            is_first = arith.cmpi(arith.CmpIPredicate.eq, counted(walk, whole, d + 1), walk.constant(0, whole, _I32))
            x = arith.select(is_first, x, walk.constant(0, whole, aval.dtype))
        sizes[d] = LEAST
        x = tt.reshape(walk.like(sizes, aval.dtype), x)
    return x


def _first_of_each(walk: Walk, x: ir.Value, sizes: Sequence[int], d: int, count: int, dtype: Any) -> ir.Value:
    """A matrix of whose rows (or columns) each stands there several times, with `count` of them."""
    if sizes[d] == count:
        return x
    apart = [*sizes[:d], count, sizes[d] // count, *sizes[d + 1 :]]
    x = tt.reshape(walk.like(apart, dtype), x)
    return _reduced(walk, [x], [dtype], d + 1, lambda a, b: [elementwise.max_p.bind(a, b)])[0]


def _input_precision(walk: Walk, eqn: Eqn, dtype: Any) -> Any:
    """How float32 is multiplied: by its parts that tensor cores take, or in full where HIGHEST asks for it."""
    asked = eqn.params.get("precision")
    if isinstance(asked, DotAlgorithmPreset):
        return _ALGORITHMS.get(asked.name)
    both = asked if isinstance(asked, tuple) else (asked, asked)
    if dtype != _F32:
        return None
    return (
        tt.InputPrecision.IEEE if set(both) & {None, Precision.DEFAULT, Precision.HIGHEST} else tt.InputPrecision.TF32
    )


_ALGORITHMS = {
    "TF32_TF32_F32": tt.InputPrecision.TF32,
    "TF32_TF32_F32_X3": tt.InputPrecision.TF32x3,
    "F32_F32_F32": tt.InputPrecision.IEEE,
}


# ----------------------------------------------------------------------------------------------------------------------
# libdevice


def _library(name: str) -> Rule:
    """A function of NVIDIA's library, of words or double words. Narrow elements are widened."""

    def rule(walk: Walk, eqn: Eqn, *operands: ir.Value) -> ir.Value:
        out = eqn.outvars[0].aval
        if kind_of(out.dtype) != "f" or any(a.aval.dtype != out.dtype for a in eqn.invars):
            walk.refuse("it is a function of floats of one type; convert the operands with astype")
        wide = _F64 if out.dtype == _F64 else _F32
        given = [converted(walk, x, out.shape, out.dtype, wide) for x in walk.alike(eqn, operands)]
        symbol = f"__nv_{name}" + ("f" if wide == _F32 else "")
        made = tt.extern_elementwise(walk.like(out.shape, wide), given, "", "", symbol, True)
        return converted(walk, made, out.shape, wide, out.dtype)

    return rule


def _inline_asm(walk: Walk, eqn: Eqn, *xs: ir.Value) -> Sequence[ir.Value]:
    p, kinds = eqn.params, [walk.type_of(v.aval) for v in eqn.outvars]
    made = tt.elementwise_inline_asm(
        kinds, p["asm"], constraints=p["constraints"], pure=True, packed_element=p["pack"], args=list(xs)
    )
    return [made] if isinstance(made, ir.Value) else list(made)


def _bits(name: str) -> Rule:
    """A count of bits, of words or double words."""

    def rule(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
        aval = eqn.invars[0].aval
        if kind_of(aval.dtype) not in ("i", "u") or bits_of(aval.dtype) < 32:
            walk.refuse("bits are counted in elements of 32 or 64 bits; convert with astype")
        symbol = f"__nv_{name}" + ("ll" if bits_of(aval.dtype) == 64 else "")
        made = tt.extern_elementwise(walk.like(aval.shape, _I32), [x], "", "", symbol, True)
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
    elementwise.ceil_p: "ceil", elementwise.nextafter_p: "nextafter", gamma.erf_p: "erf", gamma.erfc_p: "erfc",
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
    shapes.reshape_p: _reshape,
    shapes.transpose_p: _transpose,
    compositions.squeeze_p: through(lambda x, *, dimensions: reshape.squeeze(x, dimensions)),
    compositions.tile_p: through(lambda x, *, reps: arrangement.tile(x, reps)),
    reshape.iota_p: _iota,
    conversion.bitcast_convert_type_p: _bitcast,
    reduce.reduce_sum_p: _reduction(elementwise.add_p, _zero),
    reduce.reduce_prod_p: _reduction(elementwise.mul_p, _one),
    reduce.reduce_max_p: _reduction(elementwise.max_p, _least),
    reduce.reduce_min_p: _reduction(elementwise.min_p, _greatest),
    reduce.reduce_and_p: _reduction(elementwise.and_p, _all_bits),
    reduce.reduce_or_p: _reduction(elementwise.or_p, _zero),
    reduce.reduce_xor_p: _reduction(elementwise.xor_p, _zero),
    reduce.argmax_p: _place_of(elementwise.gt_p, _least),
    reduce.argmin_p: _place_of(elementwise.lt_p, _greatest),
    cumsum_p: _cumulative(elementwise.add_p, _zero),
    cumprod_p: _cumulative(elementwise.mul_p, _one),
    contract.dot_general_p: _dot_general,
    **{primitive: _library(name) for primitive, name in _LIBRARY.items()},
    elementwise.pow_p: _power,
    values.debug_print_p: _print,
    assembly.elementwise_inline_asm_p: _inline_asm,
    values.approx_tanh_p: _library("tanh"),
    values.reciprocal_p: through(lambda x, **_: elementwise.div_p.bind(np.asarray(1, x.dtype)[()], x)),
    hints.multiple_of_p: same,
    hints.max_contiguous_p: same,
    elementwise.round_p: _round,
    elementwise.population_count_p: _bits("popc"),
    elementwise.clz_p: _bits("clz"),
}
