"""The equation of Sylvester, a x + x b = c."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, errors, lax
from meshrt.contexts import usual_promotion
from meshrt.jit import jit
from meshrt.scipy.linalg.forms import schur
from meshrt.scipy.operands import separate

__all__ = ["solve_sylvester"]


def _product(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _by_schur(a: Any, b: Any, c: Any) -> Any:
    """With triangular r and s instead of a and b, the columns of the solution follow one from those before it."""
    (r, u), (s, v) = schur(a, "complex"), schur(b, "complex")
    f = _product(_product(jnp.conj(u.T), c.astype(r.dtype)), v)
    one = jnp.eye(r.shape[0], dtype=r.dtype)

    def solve(j: Any, y: Any) -> Any:
        column = f[:, j] - _product(y, s[:, j])
        found = lax.linalg.triangular_solve(r + s[j, j] * one, column, left_side=True)
        return y.at[:, j].set(found)

    y = lax.fori_loop(0, s.shape[0], solve, jnp.zeros_like(f))
    return _product(_product(u, y), jnp.conj(v.T))


def _by_eigenvectors(a: Any, b: Any, c: Any) -> Any:
    (p, u), (q, v) = jnp.linalg.eig(a), jnp.linalg.eig(b)
    f = jnp.linalg.solve(u, _product(c.astype(u.dtype), v))
    return _product(_product(u, f / (p[:, None] + q)), jnp.linalg.inv(v))


_METHODS = {"schur": _by_schur, "eigen": _by_eigenvectors}


def _solution(a: Any, b: Any, c: Any, tol: Any, method: str) -> Any:
    """Of one equation; NaN where a and -b have an eigenvalue in common, up to `tol`."""
    x = _METHODS[method](a, b, c)
    if not dtypes.issubdtype(c.dtype, np.complexfloating):
        x = jnp.real(x)
    sums = jnp.linalg.eigvals(a)[:, None] + jnp.linalg.eigvals(b)
    return jnp.where(jnp.any(jnp.abs(sums) < tol), np.nan, x)


@jit(static_argnames="method")
def _solve_sylvester(a: Any, b: Any, c: Any, tol: Any, method: str) -> Any:
    one = jnp.vectorize(functools.partial(_solution, method=method), signature="(m,m),(n,n),(m,n),()->(m,n)")
    return one(a, b, c, tol)


@usual_promotion
def solve_sylvester(A: Any, B: Any, C: Any, *, method: str = "schur", tol: float = 1e-8) -> Any:
    """The x with A x + x B = C, for A [..., m, m], B [..., n, n] and C [..., m, n].

    Args:
      method: "schur", or "eigen" for matrices with well conditioned eigenvectors.
      tol: NaN is returned where a sum of an eigenvalue of A and one of B is smaller than this.

    Raises:
      ArgumentValueError: shapes that do not fit each other; another `method`.

    >>> meshrt.scipy.linalg.solve_sylvester(jnp.eye(2), jnp.eye(2), 2 * jnp.eye(2)).shape
    (2, 2)
    """
    a, b, c = separate("solve_sylvester", A, B, C)
    m, n = c.shape[-2:]
    if a.shape[-2:] != (m, m) or b.shape[-2:] != (n, n):
        raise errors.ArgumentValueError(
            f"Incompatible shapes for Sylvester equation:\nA: {a.shape}\nB: {b.shape}\nC: {c.shape}"
        )
    if method not in _METHODS:
        raise errors.ArgumentValueError(
            f"Unrecognized method {method}. The two valid methods are either {' or '.join(map(repr, _METHODS))}."
        )
    return _solve_sylvester(a, b, c, tol, method)
