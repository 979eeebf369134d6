"""Von Mises' distribution of angles, of concentration kappa."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import inexact
from meshrt.scipy.special.bessel import i0e

__all__ = ["logpdf", "pdf"]


@jit
def logpdf(x: Any, kappa: Any) -> Any:
    """Logarithm of the density at x."""
    x, kappa = inexact("vonmises.logpdf", x, kappa)
    inside = kappa * (jnp.cos(x) - 1) - jnp.log(2 * math.pi * i0e(kappa))
    return jnp.where(kappa > 0, inside, np.nan)


@jit
def pdf(x: Any, kappa: Any) -> Any:
    """Density at x."""
    return lax.exp(logpdf(x, kappa))
