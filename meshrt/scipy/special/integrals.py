"""Spence's function and Owen's T."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, errors
from meshrt.jit import jit
from meshrt.scipy.operands import inexact, single_or_double
from meshrt.scipy.special.gammas import bernoulli_number
from meshrt.scipy.special.normal import erf, erfc
from meshrt.scipy.special.pieces import in_range, polynomial, wide
from meshrt.transforms.custom_derivatives import custom_jvp

__all__ = ["owens_t", "spence"]


@jit
def spence(x: Any) -> Any:
    """Spence's function, the integral of log(t)/(1 - t) from 1 to x, of float32 or float64; NaN for x < 0.

    >>> meshrt.scipy.special.spence(2.0)
    Array(-0.822467, dtype=float32)
    """
    return _spence(single_or_double("spence", x))


@custom_jvp
def _spence(x: Any) -> Any:
    """It is the dilogarithm of 1 - x: for x in [1/2, 2] the sum of B_n u^(n+1) / (n+1)! for u = -log x, elsewhere by
    Euler's and the inversion formula (Lewin, "Polylogarithms and associated functions", 1981, chapter 1)."""
    low, high = x < 0.5, x > 2
    inverse = 1 / in_range(x, high, 2.0)
    mirrored = jnp.where(low, 1 - x, jnp.where(high, 1 - inverse, x))  # in [1/2, 2]
    value = _middle_spence(in_range(mirrored, x >= 0, 1.0))
    small = jnp.where(high, inverse, in_range(x, low & (x > 0), 1.0))
    reflected = math.pi**2 / 6 - jnp.log(small) * jnp.log1p(-jnp.where(small < 1, small, 0)) - value
    reflected = jnp.where((x == 0) | (inverse == 0), math.pi**2 / 6, reflected)
    logarithm = jnp.log(in_range(x, high, 1.0))
    value = jnp.where(high, -0.5 * logarithm**2 - reflected, jnp.where(low, reflected, value))
    return jnp.where((x < 0) | jnp.isnan(x), np.nan, value).astype(x.dtype)


def _middle_spence(x: Any) -> Any:
    u = -jnp.log(x)
    count = 12 if x.dtype == np.float64 else 6
    even = [float(bernoulli_number(2 * k)) / math.factorial(2 * k + 1) for k in range(count)]
    return u * polynomial(u * u, even) - u * u / 4


@_spence.defjvp
def _spence_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return _spence(x), t * jnp.where(x == 1, -1, jnp.log(x) / jnp.where(x == 1, 1, 1 - x))


def owens_t(h: Any, a: Any) -> Any:
    """Owen's T: the probability that of two standard normal variables X > h and 0 < Y < a X.

    Raises:
      ArgumentValueError: an argument is complex.

    Args:
      h: an array.
      a: an array.

    >>> meshrt.scipy.special.owens_t(1.0, 1.0)
    Array(0.06674188, dtype=float32)
    """
    h, a = inexact("owens_t", h, a)
    if h.dtype.kind == "c":
        raise errors.ArgumentValueError("owens_t does not support complex-valued inputs; take jnp.real of them before")
    single = dtypes.itemsize_bits(h.dtype) < 32  # what it is computed in is what it gives
    return _owens_t_program(*[jnp.asarray(v, np.float32) for v in (h, a)] if single else (h, a))


@custom_jvp
def _owens_t(h: Any, a: Any) -> Any:
    """A Gaussian rule for the integral of exp(-h^2 (1 + x^2)/2) / (1 + x^2) from 0 to a, for a <= 1; a larger one leads
    there (Owen 1956, (2.3)). What lies so far that the exponential is a rounding error is left out."""
    h, size = jnp.broadcast_arrays(jnp.abs(h), jnp.abs(a))
    large = size > 1
    scaled = jnp.where(jnp.isnan(h * size), 0, h * size)
    slope = jnp.where(large, 1 / in_range(size, large, 1.0), size)
    height = jnp.where(large, scaled, h)
    count, reach = (32, 9.0) if h.dtype == np.float64 else (16, 6.0)
    nodes, weights = np.polynomial.legendre.leggauss(count)
    end = jnp.minimum(slope, reach / jnp.maximum(height, 1e-30))
    square, total = in_range(height, height < 1e18, 1e18) ** 2 / 2, 0.0
    for node, weight in zip((nodes + 1) / 2, weights / 2):
        t = 1 + (node * end) ** 2
        total = total + weight * jnp.exp(-square * t) / t
    value = total * end / (2 * math.pi)
    p, q = (erfc(x / math.sqrt(2)) / 2 for x in (h, scaled))
    value = jnp.where(large, (p + q) / 2 - p * q - value, value)
    value = jnp.where(size == np.inf, p / 2, jnp.where(h == np.inf, 0, value))
    return jnp.where(jnp.isnan(h) | jnp.isnan(a), np.nan, jnp.sign(a) * value).astype(h.dtype)


@_owens_t.defjvp
def _owens_t_jvp(primals: Any, tangents: Any) -> Any:
    (h, a), (dh, da) = primals, tangents
    more = 1 + a * a
    by_h = -jnp.exp(-h * h / 2) * erf(a * h / math.sqrt(2)) / math.sqrt(8 * math.pi)
    by_a = jnp.exp(-h * h * more / 2) / (2 * math.pi * more)
    return _owens_t(h, a), dh * by_h + da * by_a


_owens_t_program = jit(wide(_owens_t))
