"""Bernoulli's distribution: 1 with probability p, else 0."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import beside_constants
from meshrt.scipy.special.information import xlog1py, xlogy

__all__ = ["cdf", "logpmf", "pmf", "ppf"]


@jit
def logpmf(k: Any, p: Any, loc: Any = 0) -> Any:
    """Logarithm of the probability of k."""
    k, p, loc = beside_constants("bernoulli.logpmf", k, p, loc, ordered=True)
    n = k - loc
    return jnp.where((n < 0) | (n > 1), -np.inf, xlogy(n, p) + xlog1py(1 - n, -p))


@jit
def pmf(k: Any, p: Any, loc: Any = 0) -> Any:
    """Probability of k."""
    return lax.exp(logpmf(k, p, loc))


@jit
def cdf(k: Any, p: Any) -> Any:
    """Probability of values up to k."""
    k, p = beside_constants("bernoulli.cdf", k, p, ordered=True)
    invalid = jnp.isnan(k) | jnp.isnan(p) | (p < 0) | (p > 1)
    zero, one = jnp.zeros_like(k), jnp.ones_like(k)
    return jnp.where(invalid, np.nan, jnp.where(k < 0, zero, jnp.where(k < 1, one - p, one)))


@jit
def ppf(q: Any, p: Any) -> Any:
    """The value that is not exceeded with probability q, the inverse of `cdf`."""
    q, p = beside_constants("bernoulli.ppf", q, p, ordered=True)
    valid = (p >= 0) & (p <= 1) & (q >= 0) & (q <= 1)
    return jnp.where(valid, jnp.where(q <= 1 - p, jnp.zeros_like(q), jnp.ones_like(q)), np.nan)
