"""The normal distribution."""

from __future__ import annotations

import math
from typing import Any

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import beside_constants, inexact
from meshrt.scipy.special.normal import log_ndtr, ndtr, ndtri

__all__ = ["cdf", "isf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]


@jit
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of the density at x."""
    x, loc, scale = beside_constants("norm.logpdf", x, loc, scale)
    z = (x - loc) / scale
    return -0.5 * z * z - jnp.log(jnp.abs(scale)) - 0.5 * math.log(2 * math.pi)  # the density is even in the scale


@jit
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Density at x."""
    return lax.exp(logpdf(x, loc, scale))


@jit
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values up to x."""
    x, loc, scale = inexact("norm.cdf", x, loc, scale)
    return ndtr((x - loc) / scale)


@jit
def logcdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of `cdf`."""
    x, loc, scale = inexact("norm.logcdf", x, loc, scale)
    return log_ndtr((x - loc) / scale)


@jit
def sf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values above x, `1 - cdf`."""
    x, loc, scale = inexact("norm.sf", x, loc, scale)
    return ndtr((loc - x) / scale)


@jit
def logsf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of `sf`."""
    x, loc, scale = inexact("norm.logsf", x, loc, scale)
    return log_ndtr((loc - x) / scale)


@jit
def ppf(q: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The value that is not exceeded with probability q, the inverse of `cdf`; q is float32 or float64."""
    return jnp.asarray(ndtri(q) * scale + loc, float)


@jit
def isf(q: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The value that is exceeded with probability q, the inverse of `sf`; q is float32 or float64."""
    return jnp.asarray(loc - ndtri(q) * scale, float)
