"""The number of failures before the n-th success, of probability p."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import beside_constants
from meshrt.scipy.special.gammas import gammaln
from meshrt.scipy.special.information import xlogy

__all__ = ["logpmf", "pmf"]


@jit
def logpmf(k: Any, n: Any, p: Any, loc: Any = 0) -> Any:
    """Logarithm of the probability of k."""
    k, n, p, loc = beside_constants("nbinom.logpmf", k, n, p, loc)
    m = k - loc
    inside = gammaln(m + n) - gammaln(n) - gammaln(m + 1) + xlogy(n, p) + xlogy(m, 1 - p)
    return jnp.where(k < loc, -np.inf, inside)


@jit
def pmf(k: Any, n: Any, p: Any, loc: Any = 0) -> Any:
    """Probability of k."""
    return lax.exp(logpmf(k, n, p, loc))
