"""Density estimates with normal kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import errors, lax, random
from meshrt.contexts import usual_promotion
from meshrt.core.types import aval_of
from meshrt.jit import jit
from meshrt.numpy.operands import operand
from meshrt.scipy.operands import separate
from meshrt.scipy.special.information import logsumexp
from meshrt.scipy.special.normal import ndtr
from meshrt.tree_util import register_pytree_node_class

__all__ = ["gaussian_kde"]


@register_pytree_node_class
@dataclass(frozen=True, init=False, slots=True)
class gaussian_kde:
    """An estimate of a density from points: normal distributions around them, of the points' covariance times a factor.

    Args:
      dataset: points [d, n], or [n] for d = 1.
      bw_method: the factor before it is squared: "scott" (the default: neff^(-1/(d+4))), "silverman", a scalar, or a
        function of the estimate.
      weights: of the points, [n]; by default all alike.

    Attributes: `dataset` [d, n], `weights` [n], `neff` the number of points that weigh as much, `covariance` and
    `inv_cov` [d, d].

    Raises:
      ArgumentValueError: fewer than two points, weights of another shape, an unknown `bw_method`.
      UnsupportedError: complex points.
    """

    neff: Any
    dataset: Any
    weights: Any
    covariance: Any
    inv_cov: Any

    @usual_promotion
    def __init__(self, dataset: Any, bw_method: Any = None, weights: Any = None):
        points = jnp.atleast_2d(jnp.asarray(operand("gaussian_kde", dataset)))
        if points.dtype.kind == "c":
            raise errors.UnsupportedError("gaussian_kde does not support complex data")
        if points.size <= 1:
            raise errors.ArgumentValueError("`dataset` input should have multiple elements.")
        count = points.shape[1]
        if weights is None:
            (points,) = separate("gaussian_kde", points)
            shares = jnp.full(count, 1.0 / count, points.dtype)
        else:
            points, shares = separate("gaussian_kde", points, operand("gaussian_kde", weights))
            shares = jnp.atleast_1d(shares)
            if shares.shape != (count,):
                raise errors.ArgumentValueError(
                    f"`weights` input should be one-dimensional and of length n = {count}, got shape {shares.shape}"
                )
            shares = shares / jnp.sum(shares)
        self._set(dataset=points, weights=shares, neff=1 / jnp.sum(shares**2))
        factor = self._factor(bw_method)
        apart = points - (points @ shares)[:, None]
        covariance = (apart * shares) @ apart.T / (1 - jnp.sum(shares**2))
        self._set(covariance=covariance * factor**2, inv_cov=_inverse(covariance) / factor**2)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _factor(self, method: Any) -> Any:
        if method is None or (isinstance(method, str) and method == "scott"):
            return jnp.power(self.neff, -1.0 / (self.d + 4))
        if isinstance(method, str) and method == "silverman":
            return jnp.power(self.neff * (self.d + 2) / 4.0, -1.0 / (self.d + 4))
        if not isinstance(method, str) and jnp.isscalar(method):
            return method
        if callable(method):
            return method(self)
        raise errors.ArgumentValueError(
            f"`bw_method` should be 'scott', 'silverman', a scalar, or a callable, got {method!r}"
        )

    def tree_flatten(self) -> tuple[tuple[Any, ...], None]:
        """The arrays; nothing else."""
        return (self.neff, self.dataset, self.weights, self.covariance, self.inv_cov), None

    @classmethod
    def tree_unflatten(cls, aux: None, children: Any) -> gaussian_kde:
        """From the arrays."""
        made = object.__new__(cls)
        made._set(**dict(zip(("neff", "dataset", "weights", "covariance", "inv_cov"), children)))
        return made

    @property
    def d(self) -> int:
        """The number of dimensions."""
        return int(self.dataset.shape[0])

    @property
    def n(self) -> int:
        """The number of points."""
        return int(self.dataset.shape[1])

    @usual_promotion
    def evaluate(self, points: Any) -> Any:
        """The density at points [d, m] (or [m] for d = 1, or one point [d]): [m]."""
        return jnp.exp(self.logpdf(points))

    def __call__(self, points: Any) -> Any:
        return self.evaluate(points)

    def pdf(self, x: Any) -> Any:
        """As `evaluate`."""
        return self.evaluate(x)

    @usual_promotion
    def logpdf(self, x: Any) -> Any:
        """The logarithm of `evaluate`."""
        return _log_density(self.dataset, self.weights, self._points(x), self.inv_cov)

    def _points(self, points: Any) -> Any:
        if aval_of(operand("gaussian_kde", points)).dtype.kind == "c":
            raise errors.UnsupportedError("gaussian_kde does not support complex coordinates")
        found = jnp.atleast_2d(jnp.asarray(points))
        if found.shape[0] != self.d:
            if found.shape != (1, self.d):
                raise errors.ArgumentValueError(
                    f"points have dimension {found.shape[0]}, dataset has dimension {self.d}"
                )
            found = found.reshape(self.d, 1)
        return found

    @usual_promotion
    def integrate_gaussian(self, mean: Any, cov: Any) -> Any:
        """The integral of this density times a normal one of that mean [d] and covariance [d, d].

        Raises:
          ArgumentValueError: shapes do not fit.
        """
        mean, cov = jnp.atleast_1d(jnp.squeeze(jnp.asarray(mean))), jnp.atleast_2d(jnp.asarray(cov))
        if mean.shape != (self.d,):
            raise errors.ArgumentValueError(f"mean does not have dimension {self.d}")
        if cov.shape != (self.d, self.d):
            raise errors.ArgumentValueError(f"covariance does not have dimension {self.d}")
        log_values = _log_normal(self.dataset - mean[:, None], self.covariance + cov)
        return jnp.sum(jnp.exp(log_values) * self.weights)

    @usual_promotion
    def integrate_box_1d(self, low: Any, high: Any) -> Any:
        """The probability of values between two scalars, where d = 1.

        Raises:
          ArgumentValueError: d is not 1, or a limit is no scalar.
        """
        if self.d != 1:
            raise errors.ArgumentValueError("integrate_box_1d() only handles 1D pdfs")
        if np.ndim(low) or np.ndim(high):
            raise errors.ArgumentValueError("the limits of integration in integrate_box_1d must be scalars")
        deviation = jnp.sqrt(self.covariance[0, 0])
        below, above = ((limit - self.dataset[0]) / deviation for limit in (low, high))
        return jnp.sum(self.weights * (ndtr(above) - ndtr(below)))

    def integrate_box(self, low_bounds: Any, high_bounds: Any, maxpts: Any = None) -> Any:
        """UnsupportedError: see `integrate_box_1d`."""
        raise errors.UnsupportedError("only 1D box integrations are supported; use `integrate_box_1d`")

    @usual_promotion
    def integrate_kde(self, other: gaussian_kde) -> Any:
        """The integral of this density times another. ArgumentValueError: of another dimension."""
        if other.d != self.d:
            raise errors.ArgumentValueError("KDEs are not the same dimensionality")
        apart = self.dataset[:, :, None] - other.dataset[:, None, :]
        log_values = _log_normal(apart.reshape(self.d, -1), self.covariance + other.covariance)
        return self.weights @ jnp.exp(log_values).reshape(self.n, other.n) @ other.weights

    @usual_promotion
    def resample(self, key: Any, shape: tuple[int, ...] = ()) -> Any:
        """Values [d, *shape] drawn from this density."""
        pick, noise = random.split(key)
        chosen = random.choice(pick, self.n, shape=shape, p=self.weights)
        factor = lax.linalg.cholesky(self.covariance)
        normal = random.normal(noise, (*shape, self.d), self.dataset.dtype)
        return self.dataset[:, chosen] + jnp.einsum("ij,...j->...i", factor, normal).T

    def set_bandwidth(self, bw_method: str | float | Callable[..., Any] | None = None) -> None:
        """UnsupportedError: make another estimate."""
        raise errors.UnsupportedError("dynamically changing the bandwidth method is not supported")


@jit
def _inverse(covariance: Any) -> Any:
    factor = lax.linalg.cholesky(covariance)
    white = lax.linalg.triangular_solve(factor, jnp.eye(len(factor), dtype=factor.dtype), left_side=True, lower=True)
    return white.T @ white


@jit
def _log_density(points: Any, weights: Any, at: Any, precision: Any) -> Any:
    points, weights, at, precision = separate("gaussian_kde", points, weights, at, precision)
    white = lax.linalg.cholesky(precision)
    points, at = white.T @ points, white.T @ at
    normal = jnp.sum(jnp.log(jnp.diagonal(white))) - points.shape[0] / 2 * math.log(2 * math.pi)
    squares = jnp.sum(jnp.square(at[:, :, None] - points[:, None, :]), axis=0)
    return logsumexp(jnp.log(weights) + normal - 0.5 * squares, axis=1)


@jit
def _log_normal(apart: Any, covariance: Any) -> Any:
    """The logarithm of the normal density of vectors [d, n] around 0."""
    factor = lax.linalg.cholesky(covariance)
    white = lax.linalg.triangular_solve(factor, apart, left_side=True, lower=True)
    volume = jnp.sum(jnp.log(jnp.diagonal(factor))) + apart.shape[0] / 2 * math.log(2 * math.pi)
    return -0.5 * jnp.sum(white * white, axis=0) - volume
