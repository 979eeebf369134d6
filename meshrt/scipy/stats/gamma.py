"""The gamma distribution of shape a."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import beside_constants, inexact
from meshrt.scipy.special.gammas import gammainc, gammaincc, gammaln
from meshrt.scipy.special.information import xlogy

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]


@jit
def logpdf(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of the density at x."""
    x, a, loc, scale = beside_constants("gamma.logpdf", x, a, loc, scale)
    inside = x >= loc
    z = jnp.where(inside, (x - loc) / scale, 1)
    return jnp.where(inside, xlogy(a - 1, z) - z - gammaln(a) - jnp.log(scale), -np.inf)


@jit
def pdf(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Density at x."""
    return lax.exp(logpdf(x, a, loc, scale))


@jit
def cdf(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values up to x."""
    x, a, loc, scale = beside_constants("gamma.cdf", x, a, loc, scale)
    return below(a, (x - loc) / scale)


def below(a: Any, z: Any) -> Any:
    """gammainc(a, z), and 0, without a slope, where z is not positive; NaN there of a shape that is none."""
    outside = z <= 0
    value = gammainc(a, jnp.where(outside, 1, z)) + jnp.where(outside & (a == 0), np.nan, 0)
    return jnp.where(outside & (a > 0), 0, value)


@jit
def logcdf(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of `cdf`."""
    return lax.log(cdf(x, a, loc, scale))


@jit
def sf(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values above x, `1 - cdf`."""
    x, a, loc, scale = inexact("gamma.sf", x, a, loc, scale)
    z = (x - loc) / scale
    return jnp.where(z < 0, 1, above(a, z))  # of any shape, as in JAX


def above(a: Any, z: Any) -> Any:
    """gammaincc(a, z), and 1, without a slope, where z is not positive; NaN there of a shape that is none."""
    outside = (z <= 0) & (a > 0)
    return jnp.where(outside, 1, gammaincc(a, jnp.where(outside, 1, z)))


@jit
def logsf(x: Any, a: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of `sf`."""
    return lax.log(sf(x, a, loc, scale))
