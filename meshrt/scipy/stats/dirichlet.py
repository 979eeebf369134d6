"""Dirichlet's distribution over shares that add up to 1."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import errors, lax
from meshrt.jit import jit
from meshrt.scipy.operands import separate
from meshrt.scipy.special.gammas import gammaln
from meshrt.scipy.special.information import xlogy

__all__ = ["logpdf", "pdf"]


@jit
def logpdf(x: Any, alpha: Any) -> Any:
    """Logarithm of the density at x.

    Args:
      x: shares along the first dimension, as many as `alpha` or one fewer: the last is then what is left of 1.
      alpha: a vector of positive concentrations.

    Raises:
      ArgumentValueError: shapes do not fit.
    """
    x, alpha = separate("dirichlet.logpdf", x, alpha)
    if alpha.ndim != 1:
        raise errors.ArgumentValueError(f"`alpha` must be one-dimensional; got alpha.shape={alpha.shape}")
    if not x.ndim or x.shape[0] not in (alpha.shape[0], alpha.shape[0] - 1):
        raise errors.ArgumentValueError(
            "`x` must have either the same number of entries as `alpha` or one entry fewer; got "
            f"x.shape={x.shape}, alpha.shape={alpha.shape}"
        )
    if x.shape[0] != alpha.shape[0]:
        x = jnp.concatenate([x, 1 - x.sum(0, keepdims=True)])
    normal = jnp.sum(gammaln(alpha)) - gammaln(jnp.sum(alpha))
    weights = alpha.reshape(-1, *(1 for _ in x.shape[1:])) - 1
    simplex = jnp.all(x > 0, axis=0) & (jnp.abs(jnp.sum(x, axis=0) - 1) < 1e-6)
    return jnp.where(simplex, jnp.sum(xlogy(weights, x), axis=0) - normal, -np.inf)


@jit
def pdf(x: Any, alpha: Any) -> Any:
    """Density at x; see `logpdf`."""
    return lax.exp(logpdf(x, alpha))
