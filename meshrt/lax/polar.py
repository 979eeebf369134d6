"""The polar decomposition by iteration, under JAX's name."""

from __future__ import annotations

import functools
from typing import Any

from meshrt import errors
from meshrt.core.types import aval_of
from meshrt.jit import jit
from meshrt.primitives.polar import polar

__all__ = ["qdwh"]

_DEFAULT_ITERATIONS = 10


@functools.partial(jit, static_argnames=("max_iterations", "eps"))
def _qdwh(x: Any, dynamic_shape: Any, max_iterations: int, eps: float | None) -> tuple[Any, Any, Any, Any]:
    return polar(x, dynamic_shape or (None, None), max_iterations, eps)


def qdwh(
    x: Any,
    *,
    is_hermitian: bool = False,
    max_iterations: int | None = None,
    eps: float | None = None,
    dynamic_shape: tuple[Any, Any] | None = None,
) -> tuple[Any, Any, Any, Any]:
    """The polar decomposition x = u h of a matrix [m, n] of full rank, m >= n.

    Args:
      is_hermitian: the matrix is, which is of no use.
      max_iterations: the number of steps at most (10).
      eps: the precision aimed at; that of the dtype by default.
      dynamic_shape: (rows, columns) that count; what lies behind them is taken as zeros.

    Returns:
      (u with orthonormal columns, h positive semidefinite, the number of steps, whether the last one changed nothing).

    Raises:
      ArgumentValueError: more columns than rows.

    >>> [x.shape for x in lax.linalg.qdwh(jnp.eye(2))[:2]]
    [(2, 2), (2, 2)]
    """
    bool(is_hermitian)  # which refuses traced values
    rows, columns = aval_of(x).shape
    if rows < columns:
        raise errors.ArgumentValueError(
            f"The input matrix of shape M x N must have M >= N, got {aval_of(x).shape}; decompose its adjoint"
        )
    limit = _DEFAULT_ITERATIONS if max_iterations is None else int(max_iterations)
    found: tuple[Any, Any, Any, Any] = _qdwh(x, dynamic_shape, limit, eps)
    return found
