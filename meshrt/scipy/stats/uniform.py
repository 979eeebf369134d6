"""The uniform distribution between loc and loc + scale."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import inexact

__all__ = ["cdf", "logpdf", "pdf", "ppf"]


@jit
def logpdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of the density at x."""
    x, loc, scale = inexact("uniform.logpdf", x, loc, scale, ordered=True)
    return jnp.where((x < loc) | (x > loc + scale), -np.inf, -jnp.log(scale))


@jit
def pdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Density at x."""
    return lax.exp(logpdf(x, loc, scale))


@jit
def cdf(x: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Probability of values up to x."""
    x, loc, scale = inexact("uniform.cdf", x, loc, scale, ordered=True)
    return jnp.where(x < loc, 0, jnp.where(x > loc + scale, 1, (x - loc) / scale)).astype(x.dtype)


@jit
def ppf(q: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """The value that is not exceeded with probability q, the inverse of `cdf`."""
    q, loc, scale = inexact("uniform.ppf", q, loc, scale)
    return jnp.where((q >= 0) & (q <= 1), loc + scale * q, np.nan)
