"""The number of trials up to the first success, of probability p."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import beside_constants
from meshrt.scipy.special.information import xlog1py

__all__ = ["logpmf", "pmf"]


@jit
def logpmf(k: Any, p: Any, loc: Any = 0) -> Any:
    """Logarithm of the probability of k."""
    k, p, loc = beside_constants("geom.logpmf", k, p, loc, ordered=True)
    m = k - loc
    return jnp.where(m <= 0, -np.inf, xlog1py(m - 1, -p) + jnp.log(p))


@jit
def pmf(k: Any, p: Any, loc: Any = 0) -> Any:
    """Probability of k."""
    return lax.exp(logpmf(k, p, loc))
