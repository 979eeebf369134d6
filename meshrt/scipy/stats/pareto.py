"""Pareto's distribution of exponent b, above loc + scale."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import beside_constants, inexact

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]


@jit
def logpdf(x: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of the density at x."""
    x, b, loc, scale = beside_constants("pareto.logpdf", x, b, loc, scale, ordered=True)
    z = (x - loc) / scale
    return jnp.where(x < loc + scale, -np.inf, jnp.log(b / scale) - (b + 1) * jnp.log(z))


@jit
def pdf(x: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Density at x."""
    return lax.exp(logpdf(x, b, loc, scale))


@jit
def cdf(x: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values up to x."""
    x, b, loc, scale = beside_constants("pareto.cdf", x, b, loc, scale, ordered=True)
    return jnp.where(x < loc + scale, 0, 1 - ((x - loc) / scale) ** -b)


@jit
def logcdf(x: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of `cdf`."""
    x, b, loc, scale = inexact("pareto.logcdf", x, b, loc, scale, ordered=True)
    return jnp.where(x < loc + scale, -np.inf, jnp.log1p(-(((x - loc) / scale) ** -b)))


@jit
def sf(x: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values above x, `1 - cdf`."""
    return lax.exp(logsf(x, b, loc, scale))


@jit
def logsf(x: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of `sf`."""
    x, b, loc, scale = beside_constants("pareto.logsf", x, b, loc, scale, ordered=True)
    return jnp.where(x < loc + scale, 0, -b * jnp.log((x - loc) / scale))


@jit
def ppf(q: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The value that is not exceeded with probability q, the inverse of `cdf`."""
    q, b, loc, scale = beside_constants("pareto.ppf", q, b, loc, scale)
    return jnp.where((q >= 0) & (q <= 1), loc + scale * (1 - q) ** (-1 / b), np.nan)
