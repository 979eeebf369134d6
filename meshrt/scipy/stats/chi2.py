"""The chi-squared distribution of df degrees of freedom."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import beside_constants
from meshrt.scipy.special.gammas import gammaln
from meshrt.scipy.stats.gamma import above, below

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]


@jit
def logpdf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of the density at x."""
    x, df, loc, scale = beside_constants("chi2.logpdf", x, df, loc, scale)
    z, half = (x - loc) / scale, df / 2
    inside = (half - 1) * jnp.log(z) - z / 2 - gammaln(half) - half * math.log(2) - jnp.log(scale)
    return jnp.where(x < loc, -np.inf, inside)


@jit
def pdf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Density at x."""
    return lax.exp(logpdf(x, df, loc, scale))


@jit
def cdf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values up to x."""
    x, df, loc, scale = beside_constants("chi2.cdf", x, df, loc, scale)
    return below(df / 2, (x - loc) / (2 * scale))


@jit
def logcdf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of `cdf`."""
    return lax.log(cdf(x, df, loc, scale))


@jit
def sf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values above x, `1 - cdf`."""
    x, df, loc, scale = beside_constants("chi2.sf", x, df, loc, scale)
    return above(df / 2, (x - loc) / (2 * scale))


@jit
def logsf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of `sf`."""
    return lax.log(sf(x, df, loc, scale))
