"""Integrals of exp(t)/t, sin(t)/t and cos(t)/t: by power series near 0, by continued fractions and asymptotic series
farther away. Formulas are numbered as in the Digital Library of Mathematical Functions (DLMF)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.contexts import usual_promotion
from meshrt.jit import jit
from meshrt.scipy.operands import floating
from meshrt.scipy.special.pieces import in_range, polynomial, wide
from meshrt.transforms.custom_derivatives import custom_jvp

__all__ = ["exp1", "expi", "expn", "sici"]

# Per dtype, whether double precision is asked for: how many terms give its digits.
_FRACTION_TERMS = {True: 45, False: 14}
_SERIES_TERMS = {True: 24, False: 14}
_NEAR = 2.0  # up to here the series of expn, beyond its continued fraction


def _is_double(x: Any) -> bool:
    return bool(x.dtype == np.float64)


def exp1(x: Any) -> Any:
    """The exponential integral E1, of exp(-t)/t from x > 0 on: inf at 0, NaN below.

    >>> meshrt.scipy.special.exp1(1.0)
    Array(0.21938452, dtype=float32)
    """
    (x,) = floating("exp1", x)
    return expn(1, x)


@usual_promotion
def expn(n: Any, x: Any) -> Any:
    """The generalised exponential integral En, of exp(-x t)/t^n from 1 on, for whole n >= 0 and x >= 0; NaN elsewhere.

    It has a derivative in x only.

    Args:
      n: the order.
      x: an array.

    >>> meshrt.scipy.special.expn(2, 1.0)
    Array(0.14849526, dtype=float32)
    """
    n, x = floating("expn", jnp.asarray(n), jnp.asarray(x))
    return _expn_program(*jnp.broadcast_arrays(n, x))


@custom_jvp
def _expn(n: Any, x: Any) -> Any:
    near = x <= _NEAR
    usual = jnp.where(near, _expn_series(n, jnp.where(near & (x > 0), x, 1)), _expn_fraction(n, jnp.where(near, 3, x)))
    at_zero = jnp.where(n < 2, np.inf, 1 / jnp.where(n < 2, 1, n - 1))
    value = jnp.where(x == 0, at_zero, jnp.where(n == 0, jnp.exp(-x) / jnp.where(x == 0, 1, x), usual))
    return jnp.where((n < 0) | (x < 0) | jnp.isnan(x), np.nan, value).astype(x.dtype)


@_expn.defjvp
def _expn_jvp(primals: Any, tangents: Any) -> Any:
    (n, x), (_, dx) = primals, tangents
    below = jnp.where(n == 0, jnp.exp(-x) * (1 + 1 / x) / x, _expn(jnp.maximum(n - 1, 0), x))
    return _expn(n, x), -dx * below


_expn_program = jit(wide(_expn))


def _expn_series(n: Any, x: Any) -> Any:
    """DLMF 8.19.8. The term of index n - 1 has a logarithm."""
    total, power = 0.0, 1.0
    for k in range(_SERIES_TERMS[_is_double(x)]):
        own = n == k + 1
        total = total - jnp.where(own, 0, power / jnp.where(own, 1, 1 - n + k))
        power = power * -x / (k + 1)
    order = jnp.maximum(n, 1)
    size = jnp.exp((order - 1) * jnp.log(x) - lax.lgamma(order))
    sign = 1 - 2 * jnp.mod(order - 1, 2)
    return total + sign * size * (lax.digamma(order) - jnp.log(x))


def _expn_fraction(n: Any, x: Any) -> Any:
    """DLMF 8.19.17, two steps made one: exp(-x) / (x + n - 1 n/(x + n + 2 - 2 (n + 1)/(x + n + 4 - ...)))."""
    depth = _FRACTION_TERMS[_is_double(x)]
    below = x + n + 2 * depth
    for k in range(depth, 0, -1):
        below = x + n + 2 * (k - 1) - k * (n + k - 1) / below
    return jnp.exp(-x) / below


@jit
def expi(x: Any) -> Any:
    """The exponential integral Ei, the principal value of that of exp(t)/t up to x; -inf at 0.

    >>> meshrt.scipy.special.expi(1.0)
    Array(1.8951179, dtype=float32)
    """
    return wide(_expi)(*floating("expi", x))


@custom_jvp
def _expi(x: Any) -> Any:
    # From `far` on the smallest term of the asymptotic series is below the rounding error.
    far, terms, more = (40.0, 116, 40) if _is_double(x) else (18.0, 58, 18)
    middle, high = (x > 0) & (x < far), x >= far
    scaled = in_range(x, middle, 1.0) / far
    # DLMF 6.6.1: the sum of x^k/(k k!), in powers of x/far.
    logs = [k * math.log(far) - math.lgamma(k + 1) - math.log(k) for k in range(1, terms)]
    series = np.euler_gamma + jnp.log(scaled * far) + polynomial(scaled, [0, *map(math.exp, logs)])
    large = in_range(x, high & (x < np.inf), far)
    # DLMF 6.12.2: exp(x)/x times the sum of k!/x^k, in powers of far/x.
    tail = polynomial(far / large, [math.exp(math.lgamma(k + 1) - k * math.log(far)) for k in range(more)])
    half = jnp.exp(large / 2)
    upper = jnp.where(x == np.inf, np.inf, half * (half / large * tail))
    value = jnp.where(x < 0, -_expn(jnp.ones_like(x), jnp.abs(x)), jnp.where(middle, series, upper))
    return jnp.where(x == 0, -np.inf, jnp.where(jnp.isnan(x), np.nan, value)).astype(x.dtype)


@_expi.defjvp
def _expi_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return _expi(x), t * jnp.exp(x) / x


@jit
def sici(x: Any) -> tuple[Any, Any]:
    """The sine integral, of sin(t)/t from 0 to x, and the cosine integral, gamma + log|x| + that of (cos(t) - 1)/t.

    >>> meshrt.scipy.special.sici(1.0)
    (Array(0.94608307, dtype=float32), Array(0.33740392, dtype=float32))
    """
    return wide(_sici)(*floating("sici", x))


@custom_jvp
def _sici(x: Any) -> tuple[Any, Any]:
    size = jnp.abs(x)
    near = size <= 4
    small, large = in_range(size, near & (size > 0), 1.0), in_range(size, ~near & (size < np.inf), 5.0)
    # DLMF 6.6.5 and 6.6.6.
    square = small * small
    count = 17 if _is_double(x) else 10
    sine = small * polynomial(square, [(-1) ** k / ((2 * k + 1) * math.factorial(2 * k + 1)) for k in range(count)])
    cosine = polynomial(square, [0, *((-1) ** k / (2 * k * math.factorial(2 * k)) for k in range(1, count))])
    cosine = np.euler_gamma + jnp.log(small) + cosine
    # DLMF 6.5.5 and 6.9.1: Ci(x) - i (pi/2 - Si(x)) = -exp(-i x) / (1 + i x - 1/(3 + i x - 4/(5 + i x - ...)))
    real, imag = _sine_fraction(large)
    c, s = jnp.cos(large), jnp.sin(large)
    si = jnp.where(near, sine, math.pi / 2 - (s * real - c * imag))
    ci = jnp.where(near, cosine, -(c * real + s * imag))
    si = jnp.where(size == 0, 0, jnp.where(size == np.inf, math.pi / 2, si))
    ci = jnp.where(size == 0, -np.inf, jnp.where(size == np.inf, 0, ci))
    nan = jnp.isnan(x)
    si, ci = jnp.where(nan, x, jnp.sign(x) * si), jnp.where(nan | (x == -np.inf), np.nan, ci)
    return si.astype(x.dtype), ci.astype(x.dtype)


@_sici.defjvp
def _sici_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return _sici(x), (t * jnp.where(x == 0, 1, jnp.sin(x) / jnp.where(x == 0, 1, x)), t * jnp.cos(x) / x)


def _sine_fraction(x: Any) -> tuple[Any, Any]:
    """Real and imaginary part of 1 / (1 + i x - 1/(3 + i x - 4/(5 + i x - ...)))."""
    depth = 48 if _is_double(x) else 14
    real, imag = 2.0 * depth + 1, x
    for k in range(depth, 0, -1):
        scale = k * k / (real * real + imag * imag)
        real, imag = 2 * k - 1 - real * scale, x + imag * scale
    scale = 1 / (real * real + imag * imag)
    return real * scale, -imag * scale
