"""The binomial distribution whose probability has a beta distribution."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import beside_constants
from meshrt.scipy.special.gammas import betaln

__all__ = ["logpmf", "pmf"]


@jit
def logpmf(k: Any, n: Any, a: Any, b: Any, loc: Any = 0) -> Any:
    """Logarithm of the probability of k."""
    k, n, a, b, loc = beside_constants("betabinom.logpmf", k, n, a, b, loc)
    m = jnp.floor(k) - loc
    inside = betaln(m + a, n - m + b) - betaln(a, b) - jnp.log1p(n) - betaln(n - m + 1, m + 1)
    value = jnp.where((m == 0) & (n == 0), 0, inside)
    value = jnp.where((m < -loc) | (m > n) | (m + a <= 0), -np.inf, value)
    return jnp.where((n < 0) | (a <= 0) | (b <= 0), np.nan, value)


@jit
def pmf(k: Any, n: Any, a: Any, b: Any, loc: Any = 0) -> Any:
    """Probability of k."""
    return lax.exp(logpmf(k, n, a, b, loc))
