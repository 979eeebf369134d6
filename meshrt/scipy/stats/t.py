"""Student's t distribution of df degrees of freedom."""

from __future__ import annotations

import math
from typing import Any

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import beside_constants
from meshrt.scipy.special.gammas import gammaln

__all__ = ["logpdf", "pdf"]


@jit
def logpdf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Logarithm of the density at x."""
    x, df, loc, scale = beside_constants("t.logpdf", x, df, loc, scale)
    z = (x - loc) / scale
    normal = gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * jnp.log(math.pi * df * scale * scale)
    return normal - (df + 1) / 2 * jnp.log1p(z * z / df)


@jit
def pdf(x: Any, df: Any, loc: Any = 0, scale: Any = 1) -> Any:
    """Density at x."""
    return lax.exp(logpdf(x, df, loc, scale))
