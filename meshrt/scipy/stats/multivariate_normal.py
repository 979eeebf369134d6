"""The normal distribution of vectors."""

from __future__ import annotations

import math
from typing import Any

import meshrt.numpy as jnp
from meshrt import errors, lax
from meshrt.jit import jit
from meshrt.scipy.operands import separate

__all__ = ["logpdf", "pdf"]


def logpdf(x: Any, mean: Any, cov: Any, allow_singular: None = None) -> Any:
    """Logarithm of the density at x.

    Args:
      x: vectors [..., n] (scalars for a scalar mean).
      mean: [..., n], or a scalar.
      cov: [..., n, n], or a scalar, the variance in every direction.

    Raises:
      UnsupportedError: `allow_singular`.
      ArgumentValueError: the shape of `cov` does not fit.
    """
    if allow_singular is not None:
        raise errors.UnsupportedError("allow_singular argument of multivariate_normal.logpdf is not implemented")
    return _logpdf(x, mean, cov)


@jit
def _logpdf(x: Any, mean: Any, cov: Any) -> Any:
    x, mean, cov = separate("multivariate_normal.logpdf", x, mean, cov)
    log_2_pi = math.log(2 * math.pi)
    if not mean.shape:
        return -0.5 * jnp.square(x - mean) / cov - 0.5 * (log_2_pi + jnp.log(cov))
    n = mean.shape[-1]
    apart = x - mean
    if not cov.shape:
        return -0.5 * jnp.sum(apart * apart, axis=-1) / cov - n / 2 * (log_2_pi + jnp.log(cov))
    if cov.shape[-2:] != (n, n):
        raise errors.ArgumentValueError(
            f"multivariate_normal.logpdf got incompatible shapes: mean has {mean.shape}, cov {cov.shape}, "
            f"not (..., {n}, {n})"
        )
    factor = lax.linalg.cholesky(cov)
    batch = jnp.broadcast_shapes(apart.shape[:-1], factor.shape[:-2])
    factor = jnp.broadcast_to(factor, (*batch, n, n))
    rest = jnp.broadcast_to(apart, (*batch, n))[..., None]
    white = lax.linalg.triangular_solve(factor, rest, left_side=True, lower=True)[..., 0]
    volume = jnp.sum(jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)), axis=-1)
    return -0.5 * jnp.sum(white * white, axis=-1) - n / 2 * log_2_pi - volume


@jit
def pdf(x: Any, mean: Any, cov: Any) -> Any:
    """Density at x; see `logpdf`."""
    return lax.exp(logpdf(x, mean, cov))
