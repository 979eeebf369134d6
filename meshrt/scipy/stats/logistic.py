"""The logistic distribution."""

from __future__ import annotations

from typing import Any

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import beside_constants, inexact
from meshrt.scipy.special.information import logit

__all__ = ["cdf", "isf", "logpdf", "pdf", "ppf", "sf"]


@jit
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of the density at x."""
    x, loc, scale = beside_constants("logistic.logpdf", x, loc, scale)
    half = (x - loc) / scale / 2
    return -2 * jnp.logaddexp(half, -half) - jnp.log(scale)


@jit
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Density at x."""
    return lax.exp(logpdf(x, loc, scale))


@jit
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values up to x."""
    x, loc, scale = inexact("logistic.cdf", x, loc, scale)
    return lax.logistic((x - loc) / scale)


@jit
def sf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values above x, `1 - cdf`."""
    x, loc, scale = inexact("logistic.sf", x, loc, scale)
    return lax.logistic((loc - x) / scale)


@jit
def ppf(q: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The value that is not exceeded with probability q, the inverse of `cdf`."""
    q, loc, scale = beside_constants("logistic.ppf", q, loc, scale)
    return logit(q) * scale + loc


@jit
def isf(q: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The value that is exceeded with probability q, the inverse of `sf`."""
    q, loc, scale = beside_constants("logistic.isf", q, loc, scale)
    return loc - logit(q) * scale
