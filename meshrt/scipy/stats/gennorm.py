"""The generalised normal distribution of exponent beta."""

from __future__ import annotations

from typing import Any

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import inexact
from meshrt.scipy.special.gammas import gammainc, gammaln

__all__ = ["cdf", "logpdf", "pdf"]


@jit
def logpdf(x: Any, beta: Any) -> Any:
    """Logarithm of the density at x."""
    x, beta = inexact("gennorm.logpdf", x, beta)
    return jnp.log(0.5 * beta) - gammaln(1 / beta) - jnp.abs(x) ** beta


@jit
def pdf(x: Any, beta: Any) -> Any:
    """Density at x."""
    return lax.exp(logpdf(x, beta))


@jit
def cdf(x: Any, beta: Any) -> Any:
    """Probability of values up to x."""
    x, beta = inexact("gennorm.cdf", x, beta)
    return 0.5 * (1 + jnp.sign(x) * gammainc(1 / beta, jnp.abs(x) ** beta))
