"""Poisson's distribution of mean mu."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import lax
from meshrt.jit import jit
from meshrt.scipy.operands import inexact
from meshrt.scipy.special.gammas import gammaincc, gammaln
from meshrt.scipy.special.information import xlogy

__all__ = ["cdf", "entropy", "logpmf", "pmf"]


@jit
def logpmf(k: Any, mu: Any, loc: Any = 0) -> Any:
    """Logarithm of the probability of k."""
    k, mu, loc = inexact("poisson.logpmf", k, mu, loc)
    m = k - loc
    return jnp.where((m < 0) | (jnp.round(k) != k), -np.inf, xlogy(m, mu) - gammaln(m + 1) - mu)


@jit
def pmf(k: Any, mu: Any, loc: Any = 0) -> Any:
    """Probability of k."""
    return lax.exp(logpmf(k, mu, loc))


@jit
def cdf(k: Any, mu: Any, loc: Any = 0) -> Any:
    """Probability of values up to k."""
    k, mu, loc = inexact("poisson.cdf", k, mu, loc)
    m = k - loc
    return jnp.where(m < 0, 0, gammaincc(jnp.floor(1 + m), mu))


# Up to these means, entropies are sums over all values with probabilities that count; above them a series is.
_SUMMED = ((10.0, 35), (100.0, 250))


@jit
def entropy(mu: Any, loc: Any = 0) -> Any:
    """Entropy, in nats, whatever `loc` is: a sum for mu < 100, and log(2 pi e mu)/2 - 1/(12 mu) above."""
    mu, loc = inexact("poisson.entropy", mu, loc)
    shape = jnp.broadcast_shapes(mu.shape, loc.shape)
    mu = jnp.broadcast_to(mu, shape)
    value = 0.5 * jnp.log(2 * math.pi * math.e * mu) - 1 / (12 * mu)
    for limit, count in reversed(_SUMMED):
        k = jnp.arange(count, dtype=mu.dtype).reshape(count, *(1 for _ in shape))
        inside = (mu < limit) & (mu != 0)
        logarithm = logpmf(k, jnp.where(inside, mu, 1))  # of numbers that may be 0 there, which its derivatives are not
        value = jnp.where(inside, -jnp.sum(jnp.exp(logarithm) * logarithm, axis=0), value)
    return jnp.where(mu == 0, 0, value).astype(mu.dtype)
