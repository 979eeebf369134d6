"""The binomial distribution of n trials, each with probability p."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import inexact
from meshrt.scipy.special.gammas import gammaln
from meshrt.scipy.special.information import xlog1py, xlogy

__all__ = ["logpmf", "pmf"]


@jit
def logpmf(k: Any, n: Any, p: Any, loc: Any = 0) -> Any:
    """Logarithm of the probability of k."""
    k, n, p, loc = inexact("binom.logpmf", k, n, p, loc)
    m = k - loc
    powers = xlogy(m, p) + xlog1py(n - m, -p)
    inside = gammaln(n + 1) - gammaln(m + 1) - gammaln(n - m + 1) + powers
    certain = ((m == 0) & (n == 0)) | (powers == 0)
    return jnp.where((m >= 0) & (m < n + 1), jnp.where(certain, 0, inside), -np.inf)


@jit
def pmf(k: Any, n: Any, p: Any, loc: Any = 0) -> Any:
    """Probability of k."""
    return lax.exp(logpmf(k, n, p, loc))
