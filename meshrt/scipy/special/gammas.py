"""The gamma function and what is written with it."""

from __future__ import annotations

import math
import operator
from fractions import Fraction
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import errors, lax
from meshrt.contexts import usual_promotion
from meshrt.core.types import aval_of
from meshrt.jit import jit
from meshrt.scipy.operands import floating, inexact
from meshrt.transforms.custom_derivatives import custom_jvp

__all__ = [
    "bernoulli", "beta", "betainc", "betaln", "comb", "digamma", "factorial", "gamma", "gammainc", "gammaincc",
    "gammaln", "gammasgn", "loggamma", "multigammaln", "poch", "polygamma", "zeta",
]  # fmt: skip


def gammaln(x: Any) -> Any:
    """Logarithm of the absolute value of the gamma function, of real x.

    >>> meshrt.scipy.special.gammaln(5.0)
    Array(3.1780548, dtype=float32, weak_type=True)
    """
    return lax.lgamma(*inexact("gammaln", x))


@jit
def gammasgn(x: Any) -> Any:
    """Sign of the gamma function of real x: NaN at negative integers, that of the zero at 0.

    >>> meshrt.scipy.special.gammasgn(jnp.array([-0.5, 2.0]))
    Array([-1.,  1.], dtype=float32)
    """
    (x,) = floating("gammasgn", x)
    whole = lax.floor(x)
    pole = (x < 0) & (x == whole)
    negative = ((x < 0) & (jnp.mod(whole, 2) != 0)) | ((x == 0) & jnp.signbit(x))
    return jnp.where(pole | jnp.isnan(x), np.nan, jnp.where(negative, -1.0, 1.0)).astype(x.dtype)


# Lanczos' approximation with g = 7 and nine coefficients (P. Godfrey, 2001): 15 digits where Re z >= 1/2.
_LANCZOS = (
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
)  # fmt: skip


def _lanczos(z: Any) -> Any:
    """The logarithm of the gamma function of complex z with a real part of 1/2 at least."""
    z = z - 1
    total = _LANCZOS[0] + sum(c / (z + k) for k, c in enumerate(_LANCZOS[1:], 1))
    t = z + 7.5
    return 0.5 * math.log(2 * math.pi) + (z + 0.5) * jnp.log(t) - t + jnp.log(total)


def _regular(z: Any) -> tuple[Any, Any]:
    """Where complex z is a pole or NaN, and z with 1 there: no infinity reaches a derivative."""
    pole = (z.imag == 0) & (z.real <= 0) & (z.real == jnp.floor(z.real))
    singular = pole | jnp.isnan(z)
    return singular, jnp.where(singular, 1, z)


@jit
def _complex_gamma(z: Any) -> Any:
    singular, z = _regular(z)
    reflected = z.real < 0.5
    value = jnp.exp(_lanczos(jnp.where(reflected, 1 - z, z)))
    sine = jnp.sin(math.pi * jnp.where(reflected, z, 0.5))
    return jnp.where(singular, complex(math.nan, math.nan), jnp.where(reflected, math.pi / (sine * value), value))


@jit
def _complex_loggamma(z: Any) -> Any:
    """Moved to the right by log Gamma(z) = log Gamma(z + 1) - log z, which keeps the principal branch."""
    singular, z = _regular(z)
    steps = jnp.maximum(0, jnp.ceil(0.5 - z.real))

    def step(carry: Any) -> Any:
        k, total = carry
        left = k < steps
        return k + 1, total + jnp.where(left, jnp.log(jnp.where(left, z + k, 1)), 0)

    start = (jnp.zeros((), steps.dtype), jnp.zeros_like(z))
    _, logarithms = lax.while_loop(lambda carry: jnp.any(carry[0] < steps), step, start)
    return jnp.where(singular, complex(math.nan, math.nan), _lanczos(z + steps) - logarithms)


def loggamma(x: Any) -> Any:
    """Principal branch of the logarithm of the gamma function: NaN for real x <= 0, analytic for complex x but for the
    negative real axis.

    >>> meshrt.scipy.special.loggamma(5.0)
    Array(3.1780548, dtype=float32, weak_type=True)
    """
    (x,) = inexact("loggamma", x)
    return _complex_loggamma(x) if x.dtype.kind == "c" else _real_loggamma(x)


@jit
def _real_loggamma(x: Any) -> Any:
    return jnp.where(x > 0, lax.lgamma(x), np.nan)


def gamma(x: Any) -> Any:
    """The gamma function, of real or complex x: NaN at negative integers, infinite at 0.

    >>> meshrt.scipy.special.gamma(5.0)
    Array(24.000023, dtype=float32)
    """
    (x,) = inexact("gamma", x)
    return _complex_gamma(x) if x.dtype.kind == "c" else _real_gamma(x)


@jit
def _real_gamma(x: Any) -> Any:
    return gammasgn(x) * lax.exp(lax.lgamma(x))


@jit
def betaln(a: Any, b: Any) -> Any:
    """Logarithm of the absolute value of the beta function.

    For a large and a small argument the terms of log Gamma that cancel are not calculated (Didonato and Morris 1992).

    Args:
      a: an array.
      b: an array.

    >>> meshrt.scipy.special.betaln(2.0, 3.0)
    Array(-2.4849074, dtype=float32, weak_type=True)
    """
    a, b = floating("betaln", a, b)
    small, large = jnp.minimum(a, b), jnp.maximum(a, b)
    is_large = large >= 8
    safe = jnp.where(is_large, large, jnp.full_like(large, 8))
    near = jnp.where(is_large, jnp.ones_like(large), large)
    direct = lax.lgamma(small) + (lax.lgamma(near) - lax.lgamma(small + near))
    return jnp.where(is_large, lax.lgamma(small) + _log_ratio(safe, small), direct)


def _log_ratio(b: Any, a: Any) -> Any:
    """log(Gamma(b) / Gamma(a + b)) for b >= 8, from Stirling's series of both."""
    total = a + b
    correction = _stirling(b) - _stirling(total)
    return correction - (b - 0.5) * jnp.log1p(a / b) + a * (1 - jnp.log(total))


def _stirling(x: Any) -> Any:
    """log Gamma(x) less (x - 1/2) log x - x + log(2 pi)/2: the sum of B_2k / (2k (2k-1) x^(2k-1)), DLMF 5.11.1."""
    inverse = 1 / x
    square, total = inverse * inverse, 0.0
    for k in range(8, 0, -1):
        total = total * square + float(bernoulli_number(2 * k) / (2 * k * (2 * k - 1)))
    return total * inverse


def bernoulli_number(n: int) -> Fraction:
    """B_n, exactly, by the triangle of Akiyama and Tanigawa; B_1 is -1/2."""
    if n == 1:
        return Fraction(-1, 2)
    row: list[Fraction] = []
    for m in range(n + 1):
        row.append(Fraction(1, m + 1))
        for j in range(m, 0, -1):
            row[j - 1] = j * (row[j - 1] - row[j])
    return row[0]


def beta(a: Any, b: Any) -> Any:
    """The beta function Gamma(a) Gamma(b) / Gamma(a + b).

    Args:
      a: an array.
      b: an array.

    >>> meshrt.scipy.special.beta(2.0, 3.0)
    Array(0.08333327, dtype=float32)
    """
    return _beta(*floating("beta", a, b))


@jit
def _beta(a: Any, b: Any) -> Any:
    return gammasgn(a) * gammasgn(b) * gammasgn(a + b) * lax.exp(betaln(a, b))


def betainc(a: Any, b: Any, x: Any) -> Any:
    """The regularised incomplete beta function I_x(a, b).

    Args:
      a: an array.
      b: an array.
      x: an array.

    >>> meshrt.scipy.special.betainc(1.0, 2.0, 0.5)
    Array(0.75000006, dtype=float32, weak_type=True)
    """
    return lax.betainc(*floating("betainc", a, b, x))


def gammainc(a: Any, x: Any) -> Any:
    """The regularised lower incomplete gamma function P(a, x).

    Args:
      a: an array.
      x: an array.

    >>> meshrt.scipy.special.gammainc(2.0, 1.0)
    Array(0.26424113, dtype=float32, weak_type=True)
    """
    return lax.igamma(*inexact("gammainc", a, x))


def gammaincc(a: Any, x: Any) -> Any:
    """The regularised upper incomplete gamma function Q(a, x).

    Args:
      a: an array.
      x: an array.

    >>> meshrt.scipy.special.gammaincc(2.0, 1.0)
    Array(0.7357589, dtype=float32, weak_type=True)
    """
    return lax.igammac(*inexact("gammaincc", a, x))


def digamma(x: Any) -> Any:
    """The derivative of log Gamma.

    >>> meshrt.scipy.special.digamma(1.0)
    Array(-0.5772154, dtype=float32, weak_type=True)
    """
    return lax.digamma(*inexact("digamma", x))


def polygamma(n: Any, x: Any) -> Any:
    """The derivative of order n of digamma.

    Args:
      n: the order.
      x: an array.

    >>> meshrt.scipy.special.polygamma(1, 1.0)
    Array(1.644934, dtype=float32, weak_type=True)
    """
    n_aval = aval_of(n)
    if n_aval.dtype.kind not in "iu":
        raise errors.ArgumentValueError(
            f"Argument `n` to polygamma must be of integer type. Got dtype {n_aval.dtype}; convert it with astype(int)"
        )
    n, x = inexact("polygamma", n, x)
    return lax.polygamma(n, x)


@jit
def zeta(x: Any, q: Any = None) -> Any:
    """The Hurwitz zeta function, the sum of (k + q)^-x over k = 0, 1, ...

    Raises:
      UnsupportedError: q is None.

    Args:
      x: an array.
      q: an array.

    >>> meshrt.scipy.special.zeta(2.0, 1.0)
    Array(1.644934, dtype=float32, weak_type=True)
    """
    if q is None:
        raise errors.UnsupportedError(
            "Riemann zeta function not implemented; pass q != None to compute the Hurwitz zeta function, with q=1"
        )
    x, q = floating("zeta", x, q)
    return _zeta(x, q)


@custom_jvp
def _zeta(x: Any, q: Any) -> Any:
    return lax.zeta(x, q)


@_zeta.defjvp
def _zeta_jvp(primals: Any, tangents: Any) -> Any:
    x, q = primals
    dx, dq = tangents
    return _zeta(x, q), dx * _zeta_order_slope(x, q) - dq * x * _zeta(x + 1, q)


def _zeta_order_slope(x: Any, q: Any) -> Any:
    """The derivative of zeta in x, from the formula of Euler and Maclaurin (Johansson 2015, (5)): a sum of 10 terms, an
    integral and Bernoulli corrections, each differentiated."""
    terms, corrections = (10, 8) if x.dtype == np.float32 else (16, 12)
    total = jnp.zeros_like(x * q)
    for k in range(terms):
        logarithm = jnp.log(q + k)
        total = total - logarithm * jnp.exp(-x * logarithm)
    edge = q + terms
    logarithm = jnp.log(edge)
    power = jnp.exp(-x * logarithm)  # edge^-x
    total = total - power * edge * (logarithm / (x - 1) + 1 / (x - 1) ** 2) - 0.5 * power * logarithm
    # B_2k / (2k)! x (x + 1) ... (x + 2k - 2) edge^(-x - 2k + 1)
    product, slope, scale = x, jnp.ones_like(x), power / edge
    for k in range(1, corrections + 1):
        factor = float(bernoulli_number(2 * k) / math.factorial(2 * k))
        total = total + factor * scale * (slope - product * logarithm)
        for m in (2 * k - 1, 2 * k):
            product, slope = product * (x + m), slope * (x + m) + product
        scale = scale / (edge * edge)
    return total


@jit
def _factorial(n: Any) -> Any:
    return jnp.where(n < 0, jnp.zeros_like(n), lax.exp(lax.lgamma(n + 1)))


def factorial(n: Any, exact: bool = False) -> Any:
    """n! = Gamma(n + 1), and 0 for negative n.

    Raises:
      UnsupportedError: `exact`, since arrays have no integers of any length.

    Args:
      n: an array.
      exact: must be False.

    >>> meshrt.scipy.special.factorial(jnp.array([3, 4]))
    Array([ 6.0000052, 24.000023 ], dtype=float32)
    """
    if exact:
        raise errors.UnsupportedError("factorial with exact=True is not implemented; use math.factorial")
    return _factorial(*floating("factorial", n))


@jit
def _combinations(n: Any, k: Any) -> Any:
    inside = (k <= n) & (n >= 0) & (k >= 0)
    n, k = jnp.where(inside, n, 0), jnp.where(inside, k, 0)
    return jnp.where(inside, lax.exp(gammaln(n + 1) - gammaln(k + 1) - gammaln(n + 1 - k)), 0)


def comb(N: Any, k: Any, *, repetition: bool = False) -> Any:
    """The number of ways to choose k of N things; with `repetition`, each as often as one likes.

    Args:
      N: how many there are.
      k: how many are taken.
      repetition: take each as often as one likes.

    >>> meshrt.scipy.special.comb(5, 2)
    Array(9.999995, dtype=float32, weak_type=True)
    """
    n, k = floating("comb", N, k)
    if repetition:
        return jnp.where((k == 0) & (n >= 0), 1, _combinations(n + k - 1, k))
    return _combinations(n, k)


@custom_jvp
def _poch(z: Any, m: Any) -> Any:
    return jnp.where(m == 0, 1, gamma(z + m) / gamma(z)).astype(z.dtype)


@_poch.defjvp
def _poch_jvp(primals: Any, tangents: Any) -> Any:
    z, m = primals
    dz, dm = tangents
    value, end = _poch(z, m), digamma(z + m)
    return value, value * (dz * (end - digamma(z)) + dm * end)


@jit
def poch(z: Any, m: Any) -> Any:
    """Pochhammer's symbol Gamma(z + m) / Gamma(z).

    Args:
      z: an array.
      m: an array.

    >>> meshrt.scipy.special.poch(2.0, 3.0)
    Array(24.000023, dtype=float32)
    """
    return _poch(*floating("poch", z, m))


@usual_promotion
def multigammaln(a: Any, d: int) -> Any:
    """Logarithm of the multivariate gamma function of dimension `d`.

    Args:
      a: an array.
      d: the dimension, an int.

    >>> meshrt.scipy.special.multigammaln(5.0, 2)
    Array(6.204158, dtype=float32)
    """
    d = int(d)
    (a,) = floating("multigammaln", a)
    return _multigammaln(a, d)


@jit(static_argnums=1)
def _multigammaln(a: Any, d: int) -> Any:
    halves = np.arange(d) / 2
    total = jnp.sum(gammaln(a[..., None] - halves.astype(a.dtype)), axis=-1)
    return total + 0.25 * d * (d - 1) * math.log(math.pi)


def bernoulli(n: int) -> Any:
    """The Bernoulli numbers B_0 ... B_n; B_1 is -1/2.

    Returns:
      A floating array [n + 1].

    Raises:
      ArgumentValueError: n is negative.

    >>> meshrt.scipy.special.bernoulli(4)
    Array([ 1.        , -0.5       ,  0.16666667,  0.        , -0.03333334],      dtype=float32)
    """
    n = operator.index(n)
    if n < 0:
        raise errors.ArgumentValueError(f"bernoulli: n must be a non-negative integer, got {n}")
    return jnp.asarray([float(bernoulli_number(k)) for k in range(n + 1)])
