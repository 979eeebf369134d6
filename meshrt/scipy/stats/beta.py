"""The beta distribution, between loc and loc + scale."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import beside_constants, inexact
from meshrt.scipy.special.gammas import betaln
from meshrt.scipy.special.information import xlog1py, xlogy

__all__ = ["cdf", "logcdf", "logpdf", "logsf", "pdf", "sf"]


@jit
def logpdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of the density at x."""
    x, a, b, loc, scale = beside_constants("beta.logpdf", x, a, b, loc, scale)
    z = (x - loc) / scale
    inside = xlogy(a - 1, z) + xlog1py(b - 1, -z) - betaln(a, b) - jnp.log(scale)
    value = jnp.where((x > loc + scale) | (x < loc), -np.inf, inside)
    return jnp.where((a <= 0) | (b <= 0) | (scale <= 0), np.nan, value)


@jit
def pdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Density at x."""
    return lax.exp(logpdf(x, a, b, loc, scale))


@jit
def cdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values up to x."""
    x, a, b, loc, scale = beside_constants("beta.cdf", x, a, b, loc, scale)
    return lax.betainc(*inexact("beta.cdf", a, b, jnp.clip((x - loc) / scale, 0, 1)))


@jit
def logcdf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of `cdf`."""
    return lax.log(cdf(x, a, b, loc, scale))


@jit
def sf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values above x, `1 - cdf`."""
    x, a, b, loc, scale = beside_constants("beta.sf", x, a, b, loc, scale)
    return lax.betainc(*inexact("beta.sf", b, a, 1 - jnp.clip((x - loc) / scale, 0, 1)))


@jit
def logsf(x: Any, a: Any, b: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of `sf`."""
    return lax.log(sf(x, a, b, loc, scale))
