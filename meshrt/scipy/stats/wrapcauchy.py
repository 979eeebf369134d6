"""Cauchy's distribution wrapped around a circle, between 0 and 2 pi."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import inexact

__all__ = ["logpdf", "pdf"]


@jit
def logpdf(x: Any, c: Any) -> Any:
    """Logarithm of the density at x."""
    x, c = inexact("wrapcauchy.logpdf", x, c, ordered=True)
    inside = jnp.log1p(-c * c) - math.log(2 * math.pi) - jnp.log(1 + c * c - 2 * c * jnp.cos(x))
    value = jnp.where((x >= 0) & (x <= 2 * math.pi), inside, -np.inf)
    return jnp.where((c > 0) & (c < 1), value, np.nan)


@jit
def pdf(x: Any, c: Any) -> Any:
    """Density at x."""
    # NaN stands outside of exp: XLA leaves the result unwritten where it can prove that exp is of NaN alone.
    known = jnp.where((c > 0) & (c < 1), logpdf(x, c), 0)
    return jnp.where((c > 0) & (c < 1), lax.exp(known), np.nan)
