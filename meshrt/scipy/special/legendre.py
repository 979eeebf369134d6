"""Associated Legendre functions of all degrees and orders at once, by recurrences in the degree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, errors
from meshrt.jit import jit

__all__ = ["lpmn", "lpmn_values"]


def lpmn(m: int, n: int, z: Any) -> tuple[Any, Any]:
    """The associated Legendre functions P_l^o(z) of the first kind, with the phase of Condon and Shortley.

    Args:
      m, n: the greatest order o and the greatest degree l, which must be equal.
      z: a vector of floats in [-1, 1].

    Returns:
      Values and their derivatives by z, of shape (m + 1, n + 1, len(z)) and the dtype of `z`, 0 where o > l.

    Raises:
      UnsupportedError: `m` and `n` differ.
      ArgumentValueError: `z` is not a vector.
      ArgumentTypeError: `z` is not of floats.

    >>> import meshrt
    >>> values, derivatives = meshrt.scipy.special.lpmn(1, 1, meshrt.numpy.array([0.5]))
    >>> values[:, 1, 0], derivatives[0, 1, 0]
    (Array([ 0.5      , -0.8660254], dtype=float32), Array(1., dtype=float32))
    """
    return _functions(*_checked("lpmn", m, n, z), False)


def lpmn_values(m: int, n: int, z: Any, is_normalized: bool) -> Any:
    """The values that :func:`lpmn` gives; with `is_normalized` those whose squares integrate to one over the sphere.

    >>> import meshrt
    >>> meshrt.scipy.special.lpmn_values(0, 0, meshrt.numpy.array([0.5]), True)
    Array([[[0.2820948]]], dtype=float32)
    """
    return _functions(*_checked("lpmn_values", m, n, z), bool(is_normalized))[0]


def _checked(name: str, m: int, n: int, z: Any) -> tuple[int, Any]:
    dtype = np.dtype(dtypes.dtype(z))
    if dtype not in (np.float32, np.float64):
        raise errors.ArgumentTypeError(
            f"{name}: z.dtype={dtype} is not supported; give a vector of float32 or float64, with z.astype('float32')"
        )
    if np.ndim(z) != 1:
        raise errors.ArgumentValueError(f"{name}: z must be a 1D array, got shape {np.shape(z)}; use z.ravel()")
    if m != n:
        raise errors.UnsupportedError(
            f"{name}: Computations for m!=n are not yet supported, got m={m} and n={n}; give the greater one for both "
            "and take a part of the result"
        )
    if n < 0:
        raise errors.ArgumentValueError(f"{name}: degrees must not be negative, got n={n}")
    return int(n), jnp.asarray(z)


@jit(static_argnums=(0, 2))
def _functions(n: int, z: Any, is_normalized: bool) -> tuple[Any, Any]:
    """Values and derivatives by z, the order being the first dimension.

    Those of degree l follow from those of the two degrees before (DLMF 14.10.3), where l is above the order; and where
    it is the order, values are c (1 - z^2)^(l/2).
    """
    orders = np.arange(n + 1)
    first = _diagonal(n, is_normalized)
    below_one = 1 - z * z
    values, slopes = [], []
    before = before_slope = here = here_slope = jnp.zeros((n + 1, z.shape[0]), z.dtype)
    for l in range(n + 1):
        upper = np.where(orders < l, _of_one_degree_less(l, orders, is_normalized), 0).astype(z.dtype)[:, None]
        lower = np.where(orders < l - 1, _of_two_degrees_less(l, orders, is_normalized), 0).astype(z.dtype)[:, None]
        start = below_one ** (l / 2) * first[l]
        start_slope = below_one ** (l / 2 - 1) * z * (-l * first[l]) if l else jnp.zeros_like(z)
        own = (orders == l)[:, None]
        is_known = (orders < l)[:, None]
        value = jnp.where(own, start, jnp.where(is_known, upper * z * here - lower * before, 0))
        slope = jnp.where(
            own, start_slope, jnp.where(is_known, upper * (here + z * here_slope) - lower * before_slope, 0)
        )
        before, before_slope, here, here_slope = here, here_slope, value, slope
        values.append(value)
        slopes.append(slope)
    return jnp.stack(values, 1), jnp.stack(slopes, 1)


def _diagonal(n: int, is_normalized: bool) -> list[float]:
    """The factors c of the functions whose order is their degree."""
    factors = [math.sqrt(0.25 / math.pi) if is_normalized else 1.0]
    for l in range(1, n + 1):
        factors.append(-factors[-1] * (math.sqrt((2 * l + 1) / (2 * l)) if is_normalized else 2 * l - 1))
    return factors


def _of_one_degree_less(l: int, orders: np.ndarray, is_normalized: bool) -> np.ndarray:
    with np.errstate(all="ignore"):  # other orders than those below l have no such factor
        if is_normalized:
            return np.sqrt((4.0 * l * l - 1) / (l * l - orders * orders))
        return (2.0 * l - 1) / (l - orders)


def _of_two_degrees_less(l: int, orders: np.ndarray, is_normalized: bool) -> np.ndarray:
    with np.errstate(all="ignore"):
        if is_normalized:
            ratio = ((l - 1.0) ** 2 - orders * orders) / (4 * (l - 1.0) ** 2 - 1)
            return _of_one_degree_less(l, orders, True) * np.sqrt(ratio)
        return (l + orders - 1.0) / (l - orders)
