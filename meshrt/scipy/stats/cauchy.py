"""Cauchy's distribution."""

from __future__ import annotations

import math
from typing import Any

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import beside_constants

__all__ = ["cdf", "isf", "logcdf", "logpdf", "logsf", "pdf", "ppf", "sf"]


@jit
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of the density at x."""
    x, loc, scale = beside_constants("cauchy.logpdf", x, loc, scale)
    z = (x - loc) / scale
    return -jnp.log(math.pi * scale) - jnp.log1p(z * z)


@jit
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Density at x."""
    return lax.exp(logpdf(x, loc, scale))


@jit
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values up to x."""
    x, loc, scale = beside_constants("cauchy.cdf", x, loc, scale)
    # The angle that is small in the lower tail, which 1/2 + arctan(z) / pi would cancel in.
    z = (x - loc) / scale
    if jnp.iscomplexobj(z):
        return jnp.arctan(z) / math.pi + 0.5
    return jnp.arctan2(jnp.ones_like(z), -z) / math.pi


@jit
def logcdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of `cdf`."""
    return lax.log(cdf(x, loc, scale))


@jit
def sf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values above x, `1 - cdf`."""
    x, loc, scale = beside_constants("cauchy.sf", x, loc, scale)
    return cdf(-x, -loc, scale)


@jit
def logsf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of `sf`."""
    return lax.log(sf(x, loc, scale))


@jit
def ppf(q: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The value that is not exceeded with probability q, the inverse of `cdf`."""
    q, loc, scale = beside_constants("cauchy.ppf", q, loc, scale)
    return jnp.tan(math.pi * q - math.pi / 2) * scale + loc


@jit
def isf(q: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The value that is exceeded with probability q, the inverse of `sf`."""
    q, loc, scale = beside_constants("cauchy.isf", q, loc, scale)
    return jnp.tan(math.pi / 2 - math.pi * q) * scale + loc
