"""Laplace's distribution."""

from __future__ import annotations

from typing import Any

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import beside_constants

__all__ = ["cdf", "logpdf", "pdf"]


@jit
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of the density at x."""
    x, loc, scale = beside_constants("laplace.logpdf", x, loc, scale, ordered=True)
    return -jnp.abs(x - loc) / scale - jnp.log(2 * scale)


@jit
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Density at x."""
    return lax.exp(logpdf(x, loc, scale))


@jit
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values up to x."""
    x, loc, scale = beside_constants("laplace.cdf", x, loc, scale, ordered=True)
    z = (x - loc) / scale
    left = z <= 0
    tail = 0.5 * jnp.exp(jnp.where(left, z, -z))  # -abs(z) with the slope of the left at 0
    return jnp.where(left, tail, 1 - tail)
