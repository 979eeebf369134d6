"""Eigenvalues of Hermitian tridiagonal matrices: by bisection, which needs no matrix."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, errors, lax
from meshrt.contexts import usual_promotion
from meshrt.jit import jit
from meshrt.numpy.arrays import asarray
from meshrt.numpy.operands import operand

__all__ = ["eigh_tridiagonal"]

_DTYPES = ("float32", "float64", "complex64", "complex128")


def _counts(d: Any, squares: Any, least: Any, x: Any) -> Any:
    """How many eigenvalues lie below each element of `x`: the negative pivots of the elimination of the matrix - x."""

    def eliminate(state: tuple[Any, Any], entries: tuple[Any, Any]) -> tuple[Any, None]:
        pivot, count = state
        diagonal, square = entries
        pivot = diagonal - square / pivot - x
        below = pivot <= least
        return (jnp.where(below, jnp.minimum(pivot, -least), pivot), count + below), None

    start = jnp.ones_like(x), jnp.zeros(x.shape, np.int32)
    return lax.scan(eliminate, start, (d, jnp.pad(squares, (1, 0))))[0][1]


def _bisected(d: Any, size: Any, wanted: Any, tol: Any) -> Any:
    """The eigenvalues of these numbers, given the absolute values beside the diagonal."""
    finfo = dtypes.finfo(d.dtype)
    eps, tiny, n = float(finfo.eps), float(finfo.tiny), d.shape[0]
    radius = jnp.pad(size, (0, 1)) + jnp.pad(size, (1, 0))
    low, high = jnp.min(d - radius), jnp.max(d + radius)
    scale = jnp.maximum(jnp.abs(low), jnp.abs(high))
    squares = size * size
    least = tiny * (1 + eps) * jnp.maximum(1, jnp.max(squares))
    slack = 2.1 * n * eps * scale + 4.2 * least
    accuracy = eps * scale if tol is None else jnp.maximum(asarray(tol, d.dtype), eps * scale)

    def unfinished(state: tuple[Any, Any, Any]) -> Any:
        count, low, high = state
        return (count <= finfo.nmant) & (jnp.max(high - low) > accuracy)

    def halve(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        count, low, high = state
        middle = 0.5 * (low + high)
        above = _counts(d, squares, least, middle) > wanted
        return count + 1, jnp.where(above, low, middle), jnp.where(above, middle, high)

    ends = jnp.broadcast_to(low - slack, wanted.shape), jnp.broadcast_to(high + slack, wanted.shape)
    _, low, high = lax.while_loop(unfinished, halve, (0, *ends))
    return 0.5 * (low + high)


def _range(n: int, select: str, select_range: Any) -> tuple[int, int]:
    """The first of the wanted eigenvalues, and the one behind the last."""
    if select == "a":
        return 0, n
    if select == "v":
        raise errors.UnsupportedError("eigh_tridiagonal(..., select='v') is not implemented; select by index")
    if select != "i":
        raise errors.ArgumentValueError(f"'select' must have a value in {{'a', 'i', 'v'}}, got {select!r}.")
    if select_range is None:
        raise errors.ArgumentValueError("for select='i', select_range must be specified.")
    first, last = select_range
    if first > last:
        raise errors.ArgumentValueError(f"Got empty index range in select_range: {select_range}.")
    return int(first), int(last) + 1


@functools.partial(jit, static_argnames=("eigvals_only", "bounds"))
def _eigh_tridiagonal(d: Any, e: Any, tol: Any, eigvals_only: bool, bounds: tuple[int, int]) -> Any:
    d = jnp.real(d)
    if eigvals_only:
        return _bisected(d, jnp.abs(e), np.arange(*bounds, dtype=np.int32), tol)
    matrix = jnp.diag(d.astype(e.dtype)) + jnp.diag(e, 1)
    vectors, values = lax.linalg.eigh(matrix, lower=False, symmetrize_input=False)
    return values[slice(*bounds)], vectors[:, slice(*bounds)]


@usual_promotion
def eigh_tridiagonal(
    d: Any,
    e: Any,
    *,
    eigvals_only: bool = False,
    select: str = "a",
    select_range: tuple[float, float] | None = None,
    tol: float | None = None,
    key: Any = None,
) -> Any:
    """The ascending eigenvalues, and the eigenvectors as columns, of a Hermitian tridiagonal matrix.

    Args:
      d: [n], the diagonal, of which the real part counts.
      e: [n - 1], what stands above it, of the same dtype.
      eigvals_only: return the eigenvalues alone, for which no matrix is made.
      select: "a" for all eigenvalues, "i" for those with indices from `select_range[0]` to `select_range[1]`.
      tol: how exact eigenvalues alone have to be, if less than possible.
      key: has no effect: nothing is random here.

    Raises:
      ArgumentTypeError: other dtypes, or different ones. ArgumentValueError: another `select`, or a range that does not
        fit. UnsupportedError: select "v".

    >>> meshrt.scipy.linalg.eigh_tridiagonal(jnp.array([1.0, 2.0]), jnp.array([0.0]), eigvals_only=True).round(4)
    Array([1., 2.], dtype=float32)
    """
    d, e = (asarray(operand("eigh_tridiagonal", x, i)) for i, x in enumerate((d, e)))
    if d.dtype != e.dtype:
        raise errors.ArgumentTypeError(
            f"diagonal and off-diagonal values must have same dtype, got {d.dtype} and {e.dtype}"
        )
    if d.dtype.name not in _DTYPES:
        raise errors.ArgumentTypeError(
            f"Only float32 and float64 inputs are supported as inputs to eigh_tridiagonal, got {d.dtype}"
        )
    n = d.shape[0]
    if n <= 1:
        return jnp.real(d) if eigvals_only else (jnp.real(d), jnp.eye(n, dtype=d.dtype))
    return _eigh_tridiagonal(d, e, tol, bool(eigvals_only), _range(n, select, select_range))
