"""Gumbel's distribution of maxima."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.nn.functions import log1mexp
from meshrt.scipy.operands import inexact

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]


@jit
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of the density at x."""
    x, loc, scale = inexact("gumbel_r.logpdf", x, loc, scale, ordered=True)
    z = (x - loc) / scale
    return jnp.where(scale > 0, -z - jnp.exp(-z) - jnp.log(scale), np.nan)


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
    x, loc, scale = inexact("gumbel_r.logcdf", x, loc, scale, ordered=True)
    return jnp.where(scale > 0, -jnp.exp((loc - x) / scale), np.nan)


@jit
def sf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values above x, `1 - cdf`."""
    x, loc, scale = inexact("gumbel_r.sf", x, loc, scale, ordered=True)
    return jnp.where(scale > 0, -jnp.expm1(-jnp.exp((loc - x) / scale)), np.nan)


@jit
def logsf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of `sf`."""
    x, loc, scale = inexact("gumbel_r.logsf", x, loc, scale, ordered=True)
    return jnp.where(scale > 0, log1mexp(jnp.exp((loc - x) / scale)), np.nan)


@jit
def ppf(q: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The value that is not exceeded with probability q, the inverse of `cdf`."""
    q, loc, scale = inexact("gumbel_r.ppf", q, loc, scale, ordered=True)
    return jnp.where((q > 0) & (q < 1), loc - scale * jnp.log(-jnp.log(q)), np.nan)
