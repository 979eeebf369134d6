"""The normal distribution between loc + a scale and loc + b scale."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import inexact
from meshrt.scipy.special.normal import log_ndtr, ndtr
from meshrt.scipy.stats import norm

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]


def _log_difference(x: Any, y: Any) -> Any:
    """log(exp(x) - exp(y)) for x >= y."""
    same = x == y
    gap = jnp.where(same, -1.0, y - x)
    return jnp.where(same, -np.inf, x + jnp.log(-jnp.expm1(gap)))


def _log_mass(a: Any, b: Any) -> Any:
    """The logarithm of the standard normal's probability between a and b: from the tail where both lie in one."""
    right = a > 0
    central = (a <= 0) & (b > 0)
    low, high = jnp.where(right, -b, a), jnp.where(right, -a, b)
    tail = _log_difference(log_ndtr(jnp.where(central, 1.0, high)), log_ndtr(jnp.where(central, 0.0, low)))
    outside = jnp.where(central, ndtr(a) + ndtr(-b), 0.5)
    return jnp.where(central, jnp.log1p(-outside), tail)


@jit
def logpdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of the density at x."""
    x, a, b, loc, scale = inexact("truncnorm.logpdf", x, a, b, loc, scale)
    z = (x - loc) / scale
    value = jnp.where((z < a) | (z > b), -np.inf, norm.logpdf(x, loc, scale) - _log_mass(a, b))
    return jnp.where(a >= b, np.nan, value)


@jit
def pdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Density at x."""
    return lax.exp(logpdf(x, a, b, loc, scale))


@jit
def logcdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of `cdf`."""
    x, a, b, loc, scale = inexact("truncnorm.logcdf", x, a, b, loc, scale)
    z = (x - loc) / scale
    whole = _log_mass(a, b)
    inside = jnp.clip(z, a, b)
    below, above = _log_mass(a, inside) - whole, _log_mass(inside, b) - whole
    # Near 1, what is left above says more digits.
    late = below > -0.1
    near = jnp.where(late, jnp.log1p(-jnp.exp(jnp.where(late, above, -1.0))), below)
    value = jnp.where(z >= b, 0, jnp.where(z <= a, -np.inf, near))
    return jnp.where(a >= b, np.nan, value)


@jit
def cdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values up to x."""
    return lax.exp(logcdf(x, a, b, loc, scale))


@jit
def logsf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of `sf`."""
    x, a, b, loc, scale = inexact("truncnorm.logsf", x, a, b, loc, scale)
    return logcdf(-x, -b, -a, -loc, scale)


@jit
def sf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values above x, `1 - cdf`."""
    return lax.exp(logsf(x, a, b, loc, scale))
