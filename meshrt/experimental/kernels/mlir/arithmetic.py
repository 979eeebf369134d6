"""Elementwise operations, in the dialects arith and math."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, math

from meshrt.core.basic.pointwise import add_any_p
from meshrt.core.basic.shapes import broadcast_in_dim
from meshrt.core.basic.varying import pvary_p
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.types import aval_of
from meshrt.experimental.kernels.mlir.conversions import bits_of, converted, unequal
from meshrt.experimental.kernels.mlir.walk import Rule, Walk, kind_of, through
from meshrt.primitives import compositions, elementwise, gamma, identity, selection
from meshrt.primitives.clamp import clamp_p
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.functions import RoundingMethod

__all__ = ["RULES"]

Build = Callable[..., ir.Value]


def by_kind(
    f: Build | None = None, i: Build | None = None, u: Build | None = None, b: Build | None = None, words: str = "",
    least: int = 32,
) -> Rule:  # fmt: skip
    """The rule that builds one operation, by what arithmetic the elements of the first operand have.

    Of the kinds in `words` compilers take elements of `least` bits or more: narrower ones are widened to 32 bits for
    the operation.
    """
    found = {"f": f, "i": i, "u": i if u is None else u, "b": b}

    def rule(walk: Walk, eqn: Eqn, *operands: ir.Value) -> ir.Value:
        dtype, out = eqn.invars[0].aval.dtype, eqn.outvars[0].aval
        kind = kind_of(dtype)
        build = found.get(kind)
        if build is None:
            walk.refuse(f"elements of {dtype} have no such operation; convert them with astype")
        given = walk.alike(eqn, operands)
        is_narrow = (kind in words and bits_of(dtype) < least) or _has_no_arithmetic(walk, kind, dtype, out.shape)
        if not is_narrow:
            return build(*given)
        wide = _WORDS[kind]
        made = build(*[converted(walk, x, out.shape, dtype, wide) for x in given])
        return converted(walk, made, out.shape, wide, out.dtype)

    return rule


_WORDS = {kind: np.dtype(name) for kind, name in (("f", "float32"), ("i", "int32"), ("u", "uint32"))}


def _has_no_arithmetic(walk: Walk, kind: str, dtype: Any, shape: Any) -> bool:
    """Whether floats are computed with as words only: those of a byte, which are what is stored and multiplied; and
    scalars, where the target's scalar unit has no narrower ones."""
    return kind == "f" and (bits_of(dtype) == 8 or (walk.has_wide_scalars and not shape and bits_of(dtype) < 32))


def _compare(f: Any, i: Any, u: Any) -> Rule:
    """A comparison by its predicates. Bools are compared as the numbers 0 and 1."""

    def rule(walk: Walk, eqn: Eqn, *operands: ir.Value) -> ir.Value:
        x, y = walk.alike(eqn, operands)
        aval, shape = eqn.invars[0].aval, eqn.outvars[0].aval.shape
        kind = kind_of(aval.dtype)
        if kind == "f":
            if _has_no_arithmetic(walk, kind, aval.dtype, shape):
                x, y = [converted(walk, v, shape, aval.dtype, _WORDS["f"]) for v in (x, y)]
            return unequal(walk, x, y, shape) if f is None else arith.cmpf(f, x, y)
        if kind == "b":
            return _LOGIC[i](x, y, walk.constant(True, shape, np.dtype(bool)))
        if not kind:
            walk.refuse("these elements have no order")
        return arith.cmpi(i if kind == "i" else u, x, y)

    return rule


_F, _I = arith.CmpFPredicate, arith.CmpIPredicate
# Comparisons of bools in terms of and, or and not, of `x`, `y` and a constant of true: the compilers of TPUs refuse to
# compare vectors of bools.
_LOGIC: dict[Any, Callable[[ir.Value, ir.Value, ir.Value], ir.Value]] = {
    _I.eq: lambda x, y, true: arith.xori(arith.xori(x, y), true),
    _I.ne: lambda x, y, true: arith.xori(x, y),
    _I.slt: lambda x, y, true: arith.andi(arith.xori(x, true), y),
    _I.sle: lambda x, y, true: arith.ori(arith.xori(x, true), y),
    _I.sgt: lambda x, y, true: arith.andi(x, arith.xori(y, true)),
    _I.sge: lambda x, y, true: arith.ori(x, arith.xori(y, true)),
}
_COMPARISONS: dict[Primitive, Rule] = {
    elementwise.eq_p: _compare(_F.OEQ, _I.eq, _I.eq),
    elementwise.ne_p: _compare(None, _I.ne, _I.ne),
    elementwise.lt_p: _compare(_F.OLT, _I.slt, _I.ult),
    elementwise.le_p: _compare(_F.OLE, _I.sle, _I.ule),
    elementwise.gt_p: _compare(_F.OGT, _I.sgt, _I.ugt),
    elementwise.ge_p: _compare(_F.OGE, _I.sge, _I.uge),
}


def _neg(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    aval = eqn.invars[0].aval
    if kind_of(aval.dtype) == "f":
        return by_kind(arith.negf)(walk, eqn, x)
    return arith.subi(walk.constant(0, aval.shape, aval.dtype), x)


def _not(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    aval = eqn.invars[0].aval
    every = True if aval.dtype == np.bool_ else -1
    return arith.xori(x, walk.constant(every, aval.shape, aval.dtype))


def _is_finite(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    aval = eqn.invars[0].aval
    dtype = _WORDS["f"] if bits_of(aval.dtype) == 8 else aval.dtype
    x = converted(walk, x, aval.shape, aval.dtype, dtype)
    return arith.cmpf(_F.OLT, math.absf(x), walk.constant(np.inf, aval.shape, dtype))


def _round(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    to_even = eqn.params["rounding_method"] == RoundingMethod.TO_NEAREST_EVEN
    return math.roundeven(x) if to_even else math.round(x)


def _select(walk: Walk, eqn: Eqn, which: ir.Value, *cases: ir.Value) -> ir.Value:
    """Of two cases `arith.select`; of more, one after another."""
    kind, shape = eqn.invars[0].aval, eqn.outvars[0].aval.shape
    if kind.shape != shape and kind.shape:
        walk.refuse(f"what selects has shape {kind.shape}, the cases have {shape}")
    wide = [v if a.aval.shape == shape else walk.spread(v, shape, a.aval.dtype) for v, a in zip(cases, eqn.invars[1:])]
    if kind.dtype == np.bool_:
        return arith.select(which, wide[1], wide[0]) if len(wide) > 1 else wide[0]
    out = wide[-1]
    for n in range(len(wide) - 2, -1, -1):
        below = arith.cmpi(_I.sle, which, walk.constant(n, kind.shape, kind.dtype))
        out = arith.select(below, wide[n], out)
    return out


def _full(value: float, like: Any) -> Any:
    return np.asarray(value, aval_of(like).dtype)[()]


def _sign(x: Any) -> Any:
    zero, one, less = (_full(v, x) for v in (0, 1, -1))
    signed = selection.select_n(elementwise.gt_p.bind(x, zero), x, _like(one, x))
    return selection.select_n(elementwise.lt_p.bind(x, zero), signed, _like(less, x))


def _like(value: Any, x: Any) -> Any:
    return broadcast_in_dim(value, aval_of(x).shape, ()) if aval_of(x).ndim else value


def _integer_pow(x: Any, *, y: int) -> Any:
    """By squaring; negative powers are those of the inverse."""
    if y == 0:
        return _like(_full(1, x), x)
    if y < 0:
        return elementwise.div_p.bind(_full(1, x), _integer_pow(x, y=-y))
    power, rest = None, x
    while y:
        if y % 2:
            power = rest if power is None else elementwise.mul_p.bind(power, rest)
        y //= 2
        rest = elementwise.mul_p.bind(rest, rest) if y else rest
    return power


def _pow(x: Any, y: Any) -> Any:
    """Powers by whole numbers are those by the same floating-point numbers."""
    return elementwise.pow_p.bind(x, convert_element_type(y, aval_of(x).dtype))


def _power(walk: Walk, eqn: Eqn, x: ir.Value, y: ir.Value) -> ir.Value:
    base, exponent = eqn.invars[0].aval.dtype, eqn.invars[1].aval.dtype
    if base == exponent and kind_of(base) == "f":
        return math.powf(*walk.alike(eqn, (x, y)))
    if kind_of(base) != "f":
        walk.refuse("powers are those of floating-point numbers; convert the base with astype")
    out: ir.Value = through(_pow)(walk, eqn, x, y)
    return out


def _logistic(x: Any, **_: Any) -> Any:
    one = _full(1, x)
    return elementwise.div_p.bind(one, elementwise.add_p.bind(one, elementwise.exp_p.bind(elementwise.neg_p.bind(x))))


def _extreme(of_words: Rule, greater: bool) -> Rule:
    """The greater or lesser of two.

    That of narrow whole numbers is y + (x - y where that is positive, or negative), in words: TPUs of the fifth
    generation have no such operation on them, and a comparison and a choice, or one on words, their compiler makes one
    on narrow elements of.
    """

    def rule(walk: Walk, eqn: Eqn, *operands: ir.Value) -> Any:
        dtype, out = eqn.invars[0].aval.dtype, eqn.outvars[0].aval
        if kind_of(dtype) not in ("i", "u") or bits_of(dtype) >= 32:
            return of_words(walk, eqn, *operands)
        word = _WORDS["i"]
        x, y = [converted(walk, v, out.shape, dtype, word) for v in walk.alike(eqn, operands)]
        difference = arith.subi(x, y)
        chosen = arith.shrsi(difference, walk.constant(31, out.shape, word))  # all bits where x is less
        if greater:
            chosen = arith.xori(chosen, walk.constant(-1, out.shape, word))
        return converted(walk, arith.addi(y, arith.andi(difference, chosen)), out.shape, word, out.dtype)

    return rule


def _expm1(x: Any, **_: Any) -> Any:
    """exp(x) - 1 = tanh(x / 2) (exp(x) + 1), which loses nothing where x is small."""
    half = elementwise.tanh_p.bind(elementwise.mul_p.bind(x, _full(0.5, x)))
    return elementwise.mul_p.bind(half, elementwise.add_p.bind(elementwise.exp_p.bind(x), _full(1, x)))


def _clamp(low: Any, x: Any, high: Any) -> Any:
    return elementwise.min_p.bind(elementwise.max_p.bind(x, low), high)


def _bits(build: Build) -> Rule:
    """A count of bits, of words."""

    def rule(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
        if bits_of(eqn.invars[0].aval.dtype) < 32:
            walk.refuse("bits are counted in elements of 32 bits; convert with astype")
        return build(x)

    return rule


def same(walk: Walk, eqn: Eqn, x: Any) -> Any:
    """The rule of what changes nothing about a value."""
    return x


RULES: dict[Primitive, Rule] = {
    elementwise.add_p: by_kind(arith.addf, arith.addi, b=arith.ori),
    add_any_p: by_kind(arith.addf, arith.addi, b=arith.ori),
    elementwise.sub_p: by_kind(arith.subf, arith.subi),
    elementwise.mul_p: by_kind(arith.mulf, arith.muli, b=arith.andi),
    elementwise.div_p: by_kind(arith.divf, arith.divsi, arith.divui, words="fiu"),
    elementwise.rem_p: by_kind(arith.remf, arith.remsi, arith.remui, words="fiu"),
    elementwise.max_p: _extreme(by_kind(arith.maximumf, arith.maxsi, arith.maxui, arith.ori), True),
    elementwise.min_p: _extreme(by_kind(arith.minimumf, arith.minsi, arith.minui, arith.andi), False),
    elementwise.and_p: by_kind(None, arith.andi, b=arith.andi),
    elementwise.or_p: by_kind(None, arith.ori, b=arith.ori),
    elementwise.xor_p: by_kind(None, arith.xori, b=arith.xori),
    elementwise.shift_left_p: by_kind(None, arith.shli),
    elementwise.shift_right_logical_p: by_kind(None, arith.shrui),
    elementwise.shift_right_arithmetic_p: by_kind(None, arith.shrsi),
    elementwise.atan2_p: by_kind(math.atan2, words="f"),
    elementwise.pow_p: _power,
    **_COMPARISONS,
    elementwise.neg_p: _neg,
    elementwise.not_p: _not,
    elementwise.abs_p: by_kind(math.absf, math.absi, u=lambda x: x),
    elementwise.sign_p: through(_sign),
    elementwise.floor_p: by_kind(math.floor),
    elementwise.ceil_p: by_kind(math.ceil),
    elementwise.round_p: _round,
    elementwise.exp_p: by_kind(math.exp),
    elementwise.exp2_p: by_kind(math.exp2),
    elementwise.log_p: by_kind(math.log),
    elementwise.log1p_p: by_kind(math.log1p),
    elementwise.expm1_p: through(_expm1),
    elementwise.sqrt_p: by_kind(math.sqrt),
    elementwise.rsqrt_p: by_kind(math.rsqrt),
    elementwise.sin_p: by_kind(math.sin),
    elementwise.cos_p: by_kind(math.cos),
    elementwise.tan_p: by_kind(math.tan),
    elementwise.tanh_p: by_kind(math.tanh),
    elementwise.logistic_p: through(_logistic),
    elementwise.is_finite_p: _is_finite,
    elementwise.population_count_p: _bits(math.ctpop),
    elementwise.clz_p: _bits(math.ctlz),
    elementwise.integer_pow_p: through(_integer_pow),
    clamp_p: through(_clamp),
    compositions.square_p: through(lambda x: elementwise.mul_p.bind(x, x)),
    gamma.erf_p: by_kind(math.erf),
    selection.select_n_p: _select,
    identity.copy_p: same,
    pvary_p: same,
    identity.stop_gradient_p: same,
    identity.optimization_barrier_p: lambda walk, eqn, *xs: xs,
}
