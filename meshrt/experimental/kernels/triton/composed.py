"""Functions that no instruction and no library of GPUs computes, of operations that they have."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from meshrt import dtypes, lax
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.experimental.kernels.mlir.conversions import bits_of
from meshrt.experimental.kernels.mlir.walk import Rule, Walk, through, written
from meshrt.experimental.kernels.triton.arrays import called
from meshrt.primitives import conversion, elementwise, gamma, special, window
from meshrt.primitives.neutral import highest, lowest

__all__ = ["RULES"]

_F64 = np.dtype(np.float64)


def _full(value: float, like: Any) -> Any:
    return lax.full_like(like, value)


def _wide(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of narrow floats by way of words."""

    def widened(*xs: Any, **params: Any) -> Any:
        dtype = xs[0].dtype
        if bits_of(dtype) >= 32:
            return function(*xs, **params)
        out = function(*[lax.convert_element_type(x, np.float32) for x in xs], **params)
        return lax.convert_element_type(out, dtype)

    return widened


# ----------------------------------------------------------------------------------------------------------------------
# Special functions

# Terms of the asymptotic series of digamma: Bernoulli's number B(2k) by 2k. From an argument of 6 on four of them are
# exact in float32, from 10 on eight in float64.
_BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12, -3617 / 8160)


@_wide
def _digamma(x: Any) -> Any:
    """By psi(x) = psi(x + 1) - 1/x up to where its series is exact; below 1/2 by the reflection at 1/2."""
    least, terms = (10, 8) if x.dtype == _F64 else (6, 4)
    one, half, zero = (_full(v, x) for v in (1, 0.5, 0))
    is_left = lax.lt(x, half)
    z = lax.select_n(is_left, x, lax.sub(one, x))
    total = zero
    for _ in range(least):
        is_small = lax.lt(z, _full(least, x))
        total = lax.sub(total, lax.select_n(is_small, zero, lax.div(one, z)))
        z = lax.select_n(is_small, z, lax.add(z, one))
    square, series = lax.div(one, lax.mul(z, z)), zero
    for term in reversed(_BERNOULLI[:terms]):
        series = lax.mul(lax.add(series, _full(term, x)), square)
    right = lax.add(total, lax.sub(lax.sub(lax.log(z), lax.div(half, z)), series))
    rest = lax.mul(_full(math.pi, x), lax.sub(x, lax.round(x)))
    left = lax.sub(right, lax.div(_full(math.pi, x), lax.tan(rest)))
    is_pole = lax.bitwise_and(lax.le(x, zero), lax.eq(x, lax.floor(x)))
    return lax.select_n(is_pole, lax.select_n(is_left, right, left), _full(np.nan, x))


def _bessel_i1e(walk: Walk, eqn: Eqn, x: ir.Value) -> ir.Value:
    """exp(-|x|) I1(x), by the library's I1, and by its asymptotic series where that would overflow."""
    aval = eqn.invars[0].aval
    most = 300.0 if aval.dtype == _F64 else 40.0
    (inside,) = written(walk, lambda x: [lax.clamp(_full(-most, x), x, _full(most, x))], [aval], [x], "inside")
    known = called(walk, "cyl_bessel_i1", [inside], aval.shape, aval.dtype)
    function = lambda x, known: [_wide(_scaled)(x, known, most=most)]
    (out,) = written(walk, function, [aval, aval], [x, known], "bessel_i1e")
    return out


def _scaled(x: Any, known: Any, *, most: float) -> Any:
    size = lax.abs(x)
    inverse = lax.div(_full(1, x), lax.max(size, _full(most, x)))
    series = _full(0, x)
    for k in range(8, 0, -1):
        series = lax.mul(lax.mul(lax.add(series, _full(1, x)), inverse), _full(((2 * k - 1) ** 2 - 4) / (8 * k), x))
    far = lax.mul(lax.add(series, _full(1, x)), lax.sqrt(lax.mul(inverse, _full(1 / (2 * math.pi), x))))
    near = lax.mul(known, lax.exp(lax.neg(lax.min(size, _full(most, x)))))
    return lax.select_n(lax.gt(size, _full(most, x)), near, lax.mul(far, lax.sign(x)))


# ----------------------------------------------------------------------------------------------------------------------
# Bits of floats


def _as_bits(x: Any) -> tuple[Any, np.dtype]:
    kind = np.dtype(f"int{bits_of(x.dtype)}")
    return lax.bitcast_convert_type(x, kind), kind


def _nextafter(x: Any, y: Any) -> Any:
    """Neighbours of a float have neighbouring bits; those of zero are the least ones of either sign."""
    bits, kind = _as_bits(x)
    zero, one = _full(0, x), lax.full_like(bits, 1)
    away = lax.eq(lax.gt(y, x), lax.gt(x, zero))
    moved = lax.add(bits, lax.select_n(away, lax.neg(one), one))
    sign = lax.full_like(bits, np.iinfo(kind).min)
    moved = lax.select_n(lax.eq(x, zero), moved, lax.select_n(lax.gt(y, zero), lax.bitwise_or(sign, one), one))
    out = lax.select_n(lax.eq(x, y), lax.bitcast_convert_type(moved, x.dtype), y)
    is_nan = lax.bitwise_or(lax.ne(x, x), lax.ne(y, y))
    return lax.select_n(is_nan, out, _full(np.nan, x))


def _reduce_precision(x: Any, *, exponent_bits: int, mantissa_bits: int) -> Any:
    """Rounded to nearest, ties to even; what is too large is infinite, what is too small zero."""
    info = dtypes.finfo(x.dtype)
    bits, kind = _as_bits(x)
    number = lambda n: lax.full_like(bits, n)
    magnitude = lax.bitwise_and(bits, number(np.iinfo(kind).max))
    sign = lax.bitwise_xor(bits, magnitude)
    dropped = info.nmant - mantissa_bits
    if dropped > 0:
        odd = lax.bitwise_and(lax.shift_right_logical(magnitude, number(dropped)), number(1))
        rounded = lax.add(magnitude, lax.add(odd, number((1 << (dropped - 1)) - 1)))
        magnitude = lax.bitwise_and(rounded, number(-1 << dropped))
    own = info.bits - 1 - info.nmant
    if exponent_bits < own:
        bias, reach = (1 << (own - 1)) - 1, (1 << (exponent_bits - 1)) - 1
        least = number((bias - reach + 1) << info.nmant)
        most = number(((bias + reach + 1) << info.nmant) - 1)
        infinite = number(((1 << own) - 1) << info.nmant)
        magnitude = lax.select_n(lax.lt(magnitude, least), magnitude, number(0))
        magnitude = lax.select_n(lax.gt(magnitude, most), magnitude, infinite)
    out = lax.bitcast_convert_type(lax.bitwise_or(sign, magnitude), x.dtype)
    return lax.select_n(lax.ne(x, x), out, x)


# ----------------------------------------------------------------------------------------------------------------------
# Windows


def _windows(combine: Callable[[Any, Any], Any], neutral: Callable[[Any], Any]) -> Callable[..., Any]:
    """Each element of all windows is a part of the array: these are combined."""

    def reduced(
        x: Any, *, window_dimensions: Sequence[int], window_strides: Sequence[int], padding: Any,
        base_dilation: Sequence[int], window_dilation: Sequence[int],
    ) -> Any:  # fmt: skip
        start = np.asarray(neutral(x.dtype), x.dtype)[()]
        x = lax.pad(x, start, [(low, high, step - 1) for (low, high), step in zip(padding, base_dilation)])
        found = None
        reach = [(n - 1) * d + 1 for n, d in zip(window_dimensions, window_dilation)]
        for place in itertools.product(*map(range, window_dimensions)):
            first = [p * d for p, d in zip(place, window_dilation)]
            ends = [f + n - r + 1 for f, n, r in zip(first, x.shape, reach)]
            part = lax.slice(x, first, ends, window_strides)
            found = part if found is None else combine(found, part)
        return found

    return reduced


RULES: dict[Primitive, Rule] = {
    gamma.digamma_p: through(_digamma),
    special.bessel_i1e_p: _bessel_i1e,
    elementwise.nextafter_p: through(_nextafter),
    conversion.reduce_precision_p: through(_reduce_precision),
    window.reduce_window_sum_p: through(_windows(lax.add, lambda dtype: 0)),
    window.reduce_window_max_p: through(_windows(lax.max, lowest)),
    window.reduce_window_min_p: through(_windows(lax.min, highest)),
}
