"""The exponential of a matrix."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import api, errors, lax
from meshrt.jit import jit
from meshrt.scipy.linalg.systems import solve_triangular
from meshrt.scipy.operands import separate
from meshrt.transforms.vmap import vmap

__all__ = ["expm", "expm_frechet"]

# Up to these 1-norms the diagonal Pade approximants of these orders are exact to rounding (Higham 2005, table 2.3).
_SINGLE = ((3, 0.4258730016922831), (5, 1.880152677804762), (7, 3.925724783138660))
_DOUBLE = (
    (3, 0.01495585217958292), (5, 0.2539398330063230), (7, 0.9504178996162932), (9, 2.097847961257068),
    (13, 5.371920351148152),
)  # fmt: skip


def _pade(m: int) -> list[float]:
    """The numerator's coefficients of the diagonal approximant of order m, scaled so that the last is 1."""
    f = math.factorial
    return [float(f(2 * m - k) // (f(k) * f(m - k))) for k in range(m + 1)]


def _halves(a: Any, order: int) -> tuple[Any, Any]:
    """The odd and the even part of the numerator."""
    c = _pade(order)
    one = jnp.eye(a.shape[-1], dtype=a.dtype)
    square = _product(a, a)
    odd, even = c[1] * one, c[0] * one
    power = one
    for k in range(2, order + 1, 2):
        power = _product(power, square)
        odd, even = odd + c[k + 1] * power, even + c[k] * power
    return _product(a, odd), even


def _product(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _exponential(a: Any, upper_triangular: bool, max_squarings: int) -> Any:
    """Of one matrix."""
    table: Sequence[tuple[int, float]] = _SINGLE if np.dtype(a.dtype).name in ("float32", "complex64") else _DOUBLE
    norm = jnp.max(jnp.sum(jnp.abs(a), axis=-2), initial=0)
    squarings = jnp.ceil(jnp.log2(jnp.maximum(norm / table[-1][1], 1)))
    scaled = a / jnp.exp2(squarings).astype(a.dtype)
    which = sum((norm > limit).astype(int) for _, limit in table[:-1])
    branches = [lambda x, order=order: _halves(x, order) for order, _ in table]
    odd, even = lax.switch(which, branches, scaled)
    top, bottom = even + odd, even - odd
    out = solve_triangular(bottom, top) if upper_triangular else jnp.linalg.solve(bottom, top)

    # A loop of fixed length, so that it has a derivative in reverse mode too.
    def square(i: Any, x: Any) -> Any:
        return lax.cond(i < squarings, lambda x: _product(x, x), lambda x: x, x)

    out = lax.fori_loop(0, max_squarings, square, out)
    return jnp.where(squarings > max_squarings, np.nan, out)


@jit(static_argnames=("upper_triangular", "max_squarings"))
def _expm(a: Any, upper_triangular: bool, max_squarings: int) -> Any:
    (a,) = separate("expm", a)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise errors.ArgumentValueError(f"Expected A to be a (batched) square matrix, got A.shape={a.shape}")
    if np.dtype(a.dtype).name not in ("float32", "float64", "complex64", "complex128"):
        raise errors.ArgumentTypeError(f"A.dtype={a.dtype} is not supported by expm; convert it to float32")
    one = functools.partial(_exponential, upper_triangular=upper_triangular, max_squarings=max_squarings)
    if a.ndim == 2 or not a.size:
        return one(a) if a.ndim == 2 else a
    return vmap(one)(a.reshape(-1, *a.shape[-2:])).reshape(a.shape)


def expm(A: Any, *, upper_triangular: bool = False, max_squarings: int = 16) -> Any:
    """exp(A) of square matrices [..., n, n], by scaling, a Pade approximant and squaring (Higham 2005).

    Args:
      upper_triangular: A is; the approximant's denominator is then solved by substitution.
      max_squarings: how often at most; NaN for matrices that need more.

    Raises:
      ArgumentValueError: A is not square. ArgumentTypeError: of a narrower dtype.

    >>> meshrt.scipy.linalg.expm(jnp.array([[0.0, 1.0], [0.0, 0.0]]))
    Array([[1., 1.],
           [0., 1.]], dtype=float32)
    """
    return _expm(A, upper_triangular, max_squarings)


def expm_frechet(A: Any, E: Any, *, method: str | None = None, compute_expm: bool = True) -> Any:
    """(exp(A), its derivative in direction E), or the derivative alone.

    Raises:
      ArgumentValueError: A or E are not square, or of different shapes.

    >>> [x.shape for x in meshrt.scipy.linalg.expm_frechet(jnp.eye(2), jnp.ones((2, 2)))]
    [(2, 2), (2, 2)]
    """
    a, e = separate("expm_frechet", A, E)
    for name, x in (("A", a), ("E", e)):
        if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
            raise errors.ArgumentValueError(
                f"expected {name} to be a (batched) square matrix, got {name}.shape={x.shape}"
            )
    if a.shape != e.shape:
        raise errors.ArgumentValueError(
            f"expected A and E to be the same shape, got A.shape={a.shape} E.shape={e.shape}"
        )
    value, derivative = api.jvp(expm, (a,), (e,))
    return (value, derivative) if compute_expm else derivative
