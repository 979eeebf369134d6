"""The exponential distribution, of mean loc + scale."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import inexact

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]


@jit
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of the density at x."""
    x, loc, scale = inexact("expon.logpdf", x, loc, scale, ordered=True)
    return jnp.where(x < loc, -np.inf, (loc - x) / scale - jnp.log(scale))


@jit
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Density at x."""
    return lax.exp(logpdf(x, loc, scale))


@jit
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values up to x."""
    x, loc, scale = inexact("expon.cdf", x, loc, scale, ordered=True)
    return jnp.where(x < loc, 0, -jnp.expm1((loc - x) / scale))


@jit
def logcdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of `cdf`."""
    return jnp.log1p(-sf(x, loc, scale))


@jit
def sf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values above x, `1 - cdf`."""
    return lax.exp(logsf(x, loc, scale))


@jit
def logsf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of `sf`."""
    x, loc, scale = inexact("expon.logsf", x, loc, scale, ordered=True)
    return jnp.where(x < loc, 0, (loc - x) / scale)


@jit
def ppf(q: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The value that is not exceeded with probability q, the inverse of `cdf`."""
    q, loc, scale = inexact("expon.ppf", q, loc, scale)
    return jnp.where((q >= 0) & (q <= 1), loc - scale * jnp.log1p(-q), np.nan)
