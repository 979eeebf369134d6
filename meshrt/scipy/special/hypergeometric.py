"""Hypergeometric functions, from their power series where those converge fast and have no cancellation, and from
transformations that lead there. Formulas are numbered as in the Digital Library of Mathematical Functions (DLMF)."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, lax
from meshrt.api import jvp
from meshrt.jit import jit
from meshrt.scipy.operands import floating
from meshrt.scipy.special.gammas import gamma, gammasgn
from meshrt.scipy.special.pieces import in_range
from meshrt.transforms.custom_derivatives import custom_jvp

__all__ = ["hyp1f1", "hyp2f1"]

_MOST_TERMS = 20_000
_FAR = 100.0  # where the asymptotic series of hyp1f1 begins
_ASYMPTOTIC_TERMS = 24
_NEAR_ONE = 0.9  # where the series of hyp2f1 at 1 takes over
_WHOLE = 1e-3  # how near to an integer c - a - b may be for that

Arrays = tuple[Any, ...]


def _product(factors: Any) -> Any:
    return functools.reduce(operator.mul, factors)


@custom_jvp
def _series(tops: Arrays, bottoms: Arrays, x: Any) -> Any:
    """The sum of (a1)_k ... / ((b1)_k ... k!) x^k over k, DLMF 16.2.1, of arrays of one shape."""
    eps = float(dtypes.finfo(x.dtype).eps) / 8

    def step(state: Any) -> Any:
        k, total, term, _ = state
        # A polynomial has ended where a term is 0, perhaps before a pole.
        ratio = _product(a + k for a in tops) / _product(b + k for b in bottoms) * x / (k + 1)
        term = jnp.where(term == 0, 0, term * ratio)
        return k + 1, total + term, term, jnp.abs(term) > eps * jnp.abs(total)

    one = jnp.ones_like(x)
    start = (jnp.zeros((), x.dtype), one, one, jnp.ones(x.shape, bool))
    return lax.while_loop(lambda s: (s[0] < _MOST_TERMS) & jnp.any(s[3]), step, start)[1]


def _parameter_slopes(tops: Arrays, bottoms: Arrays, x: Any) -> list[Any]:
    """The derivatives of the series in every parameter: terms and their derivatives side by side."""
    eps = float(dtypes.finfo(x.dtype).eps) / 8

    def step(state: Any) -> Any:
        k, term, parts, totals, _ = state
        scale = x / (k + 1) / _product(b + k for b in bottoms)
        ratio = scale * _product(a + k for a in tops)
        # Of the ratio: a factor a + k may be 0, and its derivative is the product of the others.
        others = [[c + k for c in tops[:i] + tops[i + 1 :]] for i in range(len(tops))]
        slopes = [scale * _product([1.0, *factors]) for factors in others] + [-ratio / (b + k) for b in bottoms]
        parts = [part * ratio + term * slope for part, slope in zip(parts, slopes)]
        totals = [total + part for total, part in zip(totals, parts)]
        term = term * ratio
        moving = [jnp.abs(p) > eps * jnp.abs(t) for p, t in zip(parts, totals)]
        return k + 1, term, parts, totals, functools.reduce(operator.or_, moving)

    zeros = [jnp.zeros_like(x)] * (len(tops) + len(bottoms))
    start = (jnp.zeros((), x.dtype), jnp.ones_like(x), zeros, zeros, jnp.ones(x.shape, bool))
    return lax.while_loop(lambda s: (s[0] < _MOST_TERMS) & jnp.any(s[4]), step, start)[3]


@_series.defjvp
def _series_jvp(primals: Any, tangents: Any) -> Any:
    (tops, bottoms, x), (d_tops, d_bottoms, dx) = primals, tangents
    # DLMF 16.3.1
    slope = _product(tops) / _product(bottoms) * _series(tuple(a + 1 for a in tops), tuple(b + 1 for b in bottoms), x)
    change = sum(s * d for s, d in zip(_parameter_slopes(tops, bottoms, x), (*d_tops, *d_bottoms)))
    return _series(tops, bottoms, x), change + slope * dx


def _is_whole_negative(a: Any) -> Any:
    return (a <= 0) & (a == jnp.floor(a))


@jit
def hyp1f1(a: Any, b: Any, x: Any) -> Any:
    """Kummer's confluent hypergeometric function, of real arguments: inf where b is 0 or a negative integer.

    Args:
      a: an array.
      b: an array.
      x: an array.

    >>> meshrt.scipy.special.hyp1f1(1.0, 2.0, 0.5)
    Array(1.2974426, dtype=float32)
    """
    a, b, x = jnp.broadcast_arrays(*floating("hyp1f1", a, b, x))
    pole = _is_whole_negative(b) & ~(_is_whole_negative(a) & (a > b))
    # Kummer's transformation, DLMF 13.2.39, leads from x < 0 to terms of one sign.
    turned = (x < 0) & ~_is_whole_negative(a)
    top, bottom = jnp.where(turned, b - a, a), in_range(b, ~pole, 1.0)
    size = jnp.where(turned, -x, x)
    short = ((a == 0) | (a == b)) & ~pole
    by_series = (jnp.abs(size) < _FAR) | _is_whole_negative(top)  # which ends for polynomials, however far
    near, far = by_series & ~short, ~by_series & ~short
    value = _series((in_range(top, near, 1.0),), (in_range(bottom, near, 1.0),), in_range(size, near, 0.0))
    value = jnp.where(turned, jnp.exp(in_range(x, turned & near, 0.0)), 1) * value
    value = jnp.where(near, value, _far_hyp1f1(top, bottom, size, turned, far))
    value = jnp.where(short, _short_hyp1f1(*(in_range(v, short, 1.0) for v in (a, b, x))), value)
    return jnp.where(pole, np.inf, value).astype(x.dtype)


@custom_jvp
def _short_hyp1f1(a: Any, b: Any, x: Any) -> Any:
    """DLMF 13.6.1, and 1 for a = 0, which know nothing of how the value changes with the parameters."""
    return jnp.where(a == 0, 1, jnp.exp(in_range(x, a != 0, 0.0)))


@_short_hyp1f1.defjvp
def _short_hyp1f1_jvp(primals: Any, tangents: Any) -> Any:
    return _short_hyp1f1(*primals), jvp(_positive_hyp1f1, primals, tangents)[1]


def _positive_hyp1f1(a: Any, b: Any, x: Any) -> Any:
    """By the series, whose terms DLMF 13.2.39 makes those of x > 0: without an end for a = 0 as well."""
    turned = x < 0
    value = _series((jnp.where(turned, b - a, a),), (b,), jnp.abs(x))
    return jnp.where(turned, jnp.exp(in_range(x, turned, 0.0)), 1) * value


def _far_hyp1f1(a: Any, b: Any, x: Any, turned: Any, here: Any) -> Any:
    """DLMF 13.7.1 for large x > 0: Gamma(b)/Gamma(a) exp(x) x^(a-b) times the sum of (1-a)_k (b-a)_k / (k! x^k),
    without the exponential if it is to be divided by it."""
    a, b, x = in_range(a, here, 1.0), in_range(b, here, 1.0), in_range(jnp.abs(x), here, _FAR)
    total = term = jnp.ones_like(x)
    growing = jnp.zeros(x.shape, bool)
    for k in range(_ASYMPTOTIC_TERMS):
        ratio = (1 - a + k) * (b - a + k) / ((k + 1) * x)
        growing = growing | (jnp.abs(ratio) > 1)
        term = jnp.where(growing, 0, term * ratio)
        total = total + term
    exponent = lax.lgamma(b) - lax.lgamma(a) + (a - b) * jnp.log(x) + jnp.where(turned, 0, x)
    sign = jnp.where(_is_whole_negative(a), 0, gammasgn(b) * gammasgn(in_range(a, ~_is_whole_negative(a), 1.0)))
    return sign * jnp.exp(exponent) * total


@jit
def hyp2f1(a: Any, b: Any, c: Any, x: Any) -> Any:
    """Gauss' hypergeometric function, of real arguments: inf where it has a pole, and for x > 1 unless it is a
    polynomial.

    Args:
      a: an array.
      b: an array.
      c: the first column.
      x: an array.

    >>> meshrt.scipy.special.hyp2f1(1.0, 2.0, 3.0, 0.5)
    Array(1.5451776, dtype=float32)
    """
    a, b, c, x = jnp.broadcast_arrays(*floating("hyp2f1", a, b, c, x))
    finite_a, finite_b = _is_whole_negative(a), _is_whole_negative(b)
    degree_end = jnp.maximum(jnp.where(finite_a, a, -np.inf), jnp.where(finite_b, b, -np.inf))
    finite = finite_a | finite_b
    pole = _is_whole_negative(c) & (degree_end <= c)
    constant = ((a == 0) | (b == 0)) & ~pole & jnp.isinf(x)  # elsewhere the series says so, with its slopes
    inside = ~pole & ~constant & ((x < 1) | finite)
    at_one = ~pole & ~constant & ~finite & (x == 1) & (c - a - b > 0)
    p, q, r, y = (in_range(v, inside, other) for v, other in ((a, 0.5), (b, 0.5), (c, 2.0), (x, 0.25)))
    value = _inside(p, q, r, y, finite)
    limit = _gauss_sum(*(in_range(v, at_one, other) for v, other in ((a, 0.5), (b, 0.5), (c, 2.0))))
    value = jnp.where(inside, value, jnp.where(at_one, limit, np.inf))
    nan = jnp.isnan(a) | jnp.isnan(b) | jnp.isnan(c) | jnp.isnan(x)
    return jnp.where(nan, np.nan, jnp.where(constant, 1, value)).astype(x.dtype)


def _inside(a: Any, b: Any, c: Any, x: Any, finite: Any) -> Any:
    """hyp2f1 for x < 1, or of polynomials."""
    plain = ((a == c) | (b == c)) & ~finite
    value = _by_series(a, b, c, x, finite)
    return jnp.where(
        plain, _power(*(in_range(v, plain, o) for v, o in zip((a, b, c, x), (0.5, 1.0, 1.0, 0.25)))), value
    )


@custom_jvp
def _power(a: Any, b: Any, c: Any, x: Any) -> Any:
    """DLMF 15.4.6 for a or b equal to c, which knows nothing of how the value changes with the parameters."""
    return jnp.exp(-jnp.where(b == c, a, b) * jnp.log1p(-x))


@_power.defjvp
def _power_jvp(primals: Any, tangents: Any) -> Any:
    series = functools.partial(_by_series, finite=jnp.zeros(primals[3].shape, bool))
    return _power(*primals), jvp(series, primals, tangents)[1]


def _by_series(a: Any, b: Any, c: Any, x: Any, finite: Any) -> Any:
    """`_inside` without the shorter form."""
    # Pfaff's transformation, DLMF 15.8.1, takes x < 0 to (0, 1).
    turned = (x < 0) & ~finite
    t = jnp.where(turned, x / in_range(x - 1, turned, 1.0), x)
    second = jnp.where(turned, c - b, b)
    d = c - a - second
    far = (t > _NEAR_ONE) & ~finite & (jnp.abs(d - jnp.round(d)) > _WHOLE)
    near_one = _around_one(*(in_range(v, far, o) for v, o in ((a, 0.5), (second, 0.25), (c, 1.0), (t, 1.0))))
    value = jnp.where(far, near_one, _series((a, second), (c,), in_range(t, ~far, 0.0)))
    return jnp.where(turned, jnp.exp(-a * jnp.log1p(-in_range(x, turned, 0.0))) * value, value)


def _around_one(a: Any, b: Any, c: Any, x: Any) -> Any:
    """DLMF 15.8.4, for x near 1 and c - a - b no integer."""
    d, rest = c - a - b, 1 - x
    first = _gauss_sum(a, b, c) * _series((a, b), (1 - d,), rest)
    safe = jnp.where(rest > 0, rest, 1)
    weight = jnp.where(rest > 0, jnp.exp(d * jnp.log(safe)), 0) * gamma(c) * gamma(-d) * _over_gamma(a) * _over_gamma(b)
    return first + weight * _series((c - a, c - b), (1 + d,), rest)


def _gauss_sum(a: Any, b: Any, c: Any) -> Any:
    """The value at 1, DLMF 15.4.20, for c > a + b; else what takes its place."""
    return gamma(c) * gamma(c - a - b) * _over_gamma(c - a) * _over_gamma(c - b)


def _over_gamma(x: Any) -> Any:
    """1 / gamma(x), which has no poles: at those of gamma by reflection, DLMF 5.5.3, which has its slope, too."""
    pole = _is_whole_negative(x)
    whole, at_pole = lax.stop_gradient(jnp.round(x)), in_range(x, pole, 0.0)
    sign = 1 - 2 * jnp.mod(in_range(whole, pole, 0.0), 2)
    reflected = sign * jnp.sin(np.pi * (at_pole - in_range(whole, pole, 0.0))) / np.pi * gamma(1 - at_pole)
    return jnp.where(pole, reflected, 1 / gamma(in_range(x, ~pole, 1.0)))
