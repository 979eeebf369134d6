"""Gumbel's distribution of minima."""

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
    x, loc, scale = inexact("gumbel_l.logpdf", x, loc, scale, ordered=True)
    z = (x - loc) / scale
    return jnp.where(scale > 0, z - jnp.exp(z) - jnp.log(scale), np.nan)


@jit
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Density at x."""
    return lax.exp(logpdf(x, loc, scale))


@jit
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values up to x."""
    return lax.exp(logcdf(x, loc, scale))


@jit
def logcdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of `cdf`."""
    x, loc, scale = inexact("gumbel_l.logcdf", x, loc, scale, ordered=True)
    return jnp.where(scale > 0, jnp.log(-jnp.expm1(-jnp.exp((x - loc) / scale))), np.nan)


@jit
def sf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values above x, `1 - cdf`."""
    return lax.exp(logsf(x, loc, scale))


@jit
def logsf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of `sf`."""
    x, loc, scale = inexact("gumbel_l.logsf", x, loc, scale, ordered=True)
    return jnp.where(scale > 0, -jnp.exp((x - loc) / scale), np.nan)


@jit
def ppf(q: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The value that is not exceeded with probability q, the inverse of `cdf`."""
    q, loc, scale = inexact("gumbel_l.ppf", q, loc, scale, ordered=True)
    return jnp.where((q > 0) & (q < 1), loc + scale * jnp.log(-jnp.log1p(-q)), np.nan)
