"""Vectors and matrices of normal numbers: with a given covariance, and orthogonal."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.types import aval_of
from meshrt.numpy.arrays import asarray
from meshrt.numpy.contractions import einsum
from meshrt.numpy.diagonals import diagonal
from meshrt.numpy.operands import ShapeError, broadcast_to_shape, in_one_dtype, shape_tuple, static_int
from meshrt.primitives.axis_types import in_auto_mode
from meshrt.random.keys import typed
from meshrt.random.samplers import normal
from meshrt.random.uniforms import broadcast_shape, placed

__all__ = ["multivariate_normal", "orthogonal"]


def _scaled(vectors: Any, squares: Any) -> Any:
    """The vectors times the roots of their squared lengths."""
    return vectors * lax.expand_dims(lax.sqrt(squares), (aval_of(squares).ndim - 1,))


# How a matrix is found whose product with its own transpose is the covariance.
_ROOTS = {
    "cholesky": lax.linalg.cholesky,
    "eigh": lambda cov: _scaled(*lax.linalg.eigh(cov)),
    "svd": lambda cov: _scaled(*lax.linalg.svd(cov)[:2]),
}


def _check_moments(mean: tuple[int, ...], cov: tuple[int, ...]) -> None:
    if not mean or len(cov) < 2 or cov[-2:] != (mean[-1], mean[-1]):
        raise ShapeError(
            f"multivariate_normal: mean of shape {mean} and cov of shape {cov} do not go together; they need shapes "
            f"(..., n) and (..., n, n)"
        )


@in_auto_mode
def multivariate_normal(
    key: Any, mean: Any, cov: Any, shape: Any = None, dtype: Any = None, method: str = "cholesky", *,
    out_sharding: Any = None,
) -> Any:  # fmt: skip
    """Vectors from the normal distribution of given mean and covariance; differentiable in both.

    Args:
      mean: ``(..., n)``.
      cov: ``(..., n, n)``, positive definite; with "eigh" and "svd", semidefinite ones will do.
      shape: the shape of the samples without that of the vectors, by default what the other dimensions of ``mean``
        and ``cov`` broadcast to.
      dtype: a floating dtype, by default that of ``mean`` and ``cov``.
      method: how a root of ``cov`` is found: "cholesky" (the fastest), "eigh" or "svd" (the most robust).

    Raises:
      ArgumentValueError: an unknown method, or ``dtype`` is not floating. ShapeError: shapes that do not go together.

    >>> random.multivariate_normal(random.key(0), jnp.zeros(2), jnp.eye(2), (3,)).shape
    (3, 2)
    """
    key, _ = typed("multivariate_normal", key)
    mean, cov = (asarray(x) for x in in_one_dtype("multivariate_normal", [mean, cov], inexact=True))
    if method not in _ROOTS:
        raise errors.ArgumentValueError(
            f"multivariate_normal: method must be 'cholesky', 'eigh' or 'svd', got {method!r}"
        )
    dtype = mean.dtype if dtype is None else dtypes.check_user_dtype(dtype, "multivariate_normal")
    if not dtypes.issubdtype(dtype, np.floating):
        raise errors.ArgumentValueError(f"dtype argument to `multivariate_normal` must be a float dtype, got {dtype}")
    _check_moments(mean.shape, cov.shape)
    shape = broadcast_shape("multivariate_normal", shape, mean.shape[:-1], cov.shape[:-2])
    x = normal(key, (*shape, mean.shape[-1]), dtype)
    mean = broadcast_to_shape(mean, x.shape)
    return placed(mean + einsum("...ij,...j->...i", _ROOTS[method](cov), x), out_sharding)


@in_auto_mode
def orthogonal(
    key: Any, n: Any, shape: Any = (), dtype: Any = None, m: Any = None, *, out_sharding: Any = None
) -> Any:  # fmt: skip
    """Orthogonal (for complex dtypes: unitary) matrices, uniformly.

    Args:
      n: the number of rows.
      shape: the shape of the samples without that of a matrix.
      m: the number of columns, by default ``n``. Of rows and columns the fewer are orthonormal.

    Raises:
      ArgumentValueError: ``dtype`` is neither floating nor complex.

    >>> random.orthogonal(random.key(0), 3, (2,), m=4).shape
    (2, 3, 4)
    """
    key, _ = typed("orthogonal", key)
    rows = static_int(n, "orthogonal: n")
    columns = rows if m is None else static_int(m, "orthogonal: m")
    x = normal(key, (*shape_tuple(shape), max(rows, columns), min(rows, columns)), dtype)
    q, r = lax.linalg.qr(x, full_matrices=False)
    # The signs make the factorisation unique, and with it the distribution uniform.
    signs = lax.sign(diagonal(r, axis1=-2, axis2=-1))
    q = q * lax.expand_dims(signs, (aval_of(signs).ndim - 1,))
    return placed(q.mT if rows < columns else q, out_sharding)
