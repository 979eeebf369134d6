"""Systems and eigenvalues of sparse matrices: a direct solver, and the largest eigenvalues by LOBPCG.

LOBPCG looks for the best `k` eigenvectors within a small space, and makes the next space of three blocks of `k`
vectors: those found (X), the steps that led to them (P), and what is left of A x - theta x (R). Here the three are kept
orthonormal to each other in every iteration, which costs two small eigenproblems and saves the generalised one, and
nothing is locked: a direction that is lost in rounding becomes a column of zeros, which the search passes over.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt import numpy as jnp
from meshrt.jit import jit
from meshrt.numpy.names import missing as _missing
from meshrt.primitives.callback import pure_callback
from meshrt.shape_dtype import ShapeDtypeStruct
from meshrt.staging import eval_shape

__all__ = ["lobpcg_standard", "spsolve"]

_DIRECTIONS_IN_A_SPACE = 5  # one dimension of so many may be searched: three blocks of them, and room beside


def spsolve(data: Any, indices: Any, indptr: Any, b: Any, tol: float = 1e-6, reorder: int = 1) -> Any:
    """The solution of a sparse system, the matrix given by the rows of its CSR form. SciPy solves it on the host.

    Args:
      data, indices, indptr: of `n` rows: the entries that are stored, `(nse,)`, their columns, `(nse,)`, and where the
        rows begin among them, `(n + 1,)`.
      b: the right side, `(n,)`.
      tol, reorder: settings of solvers on GPUs, not used here.

    It may be differentiated by `data` and `b`. UnsupportedError where SciPy is not installed.

    >>> import numpy as np
    >>> rows = np.array([0, 1, 2])
    >>> print(spsolve(np.array([2.0, 4.0]), np.array([0, 1]), rows, np.array([1.0, 1.0])))
    [0.5  0.25]
    """
    data, indices, indptr, b = (jnp.asarray(x) for x in (data, indices, indptr, b))
    if b.ndim != 1 or indptr.shape != (b.size + 1,) or data.shape != indices.shape:
        raise errors.ArgumentValueError(
            f"spsolve takes data and indices of one shape (nse,), indptr of shape (n + 1,) and b of shape (n,). Got "
            f"{data.shape}, {indices.shape}, {indptr.shape} and {b.shape}"
        )
    rows = jnp.repeat(jnp.arange(b.size), jnp.diff(indptr), total_repeat_length=data.size)

    def product(x: Any) -> Any:
        return jnp.zeros(b.shape, jnp.result_type(data, x)).at[rows].add(data * x[indices])

    def solve(flipped: bool, _: Any, y: Any) -> Any:
        host = functools.partial(_solved_by_scipy, flipped)
        return pure_callback(host, ShapeDtypeStruct(y.shape, y.dtype), lax.stop_gradient(data), indices, indptr, y)

    return lax.custom_linear_solve(
        product, b, functools.partial(solve, False), transpose_solve=functools.partial(solve, True)
    )


def _solved_by_scipy(flipped: bool, data: Any, indices: Any, indptr: Any, b: Any) -> Any:
    try:
        import scipy.sparse  # an optional wheel
        import scipy.sparse.linalg  # an optional wheel
    except ImportError as e:
        raise errors.UnsupportedError("spsolve needs SciPy to solve on the host: pip install scipy") from e
    rows = [np.asarray(x) for x in (data, indices, indptr)]
    matrix: Any = scipy.sparse.csr_matrix(tuple(rows), shape=(b.size, b.size))
    return scipy.sparse.linalg.spsolve(matrix.T.tocsr() if flipped else matrix, np.asarray(b)).astype(b.dtype)


class _Search(NamedTuple):
    """Where the search is: `theta` `(k,)`, `X` and `P` `(n, k)`, the residuals `R`, and whether all have converged."""

    i: Any
    theta: Any
    X: Any
    P: Any
    R: Any
    has_converged: Any


def lobpcg_standard(A: Any, X: Any, m: int = 100, tol: Any = None) -> tuple[Any, Any, Any]:
    """The largest eigenvalues of a Hermitian matrix, with their eigenvectors.

    Args:
      A: the matrix `(n, n)`, or a function that multiplies it with `(n, j)` arrays.
      X: directions to begin with, `(n, k)`, linearly independent, with `0 < 5 * k < n`.
      m: the most iterations that are made.
      tol: an eigenpair has converged when `|A v - theta v| < 10 * n * tol * (theta + |A v|)`; that of the dtype's
        rounding by default.

    Returns:
      `theta` `(k,)` in descending order, the eigenvectors `(n, k)`, and how many iterations were made.

    Raises:
      ArgumentValueError: shapes or dtypes that do not fit each other, or too many directions.

    >>> import numpy as np
    >>> A = np.diag(np.arange(1, 21, dtype=np.float32))
    >>> theta, _, _ = lobpcg_standard(A, np.eye(20, 2, dtype=np.float32) + 0.1)
    >>> print(theta.round(3))
    [20. 19.]
    """
    return _found(A, X, m, tol, False)[:3]


def _found(A: Any, X: Any, m: int, tol: Any, debug: bool) -> tuple[Any, ...]:
    X = jnp.asarray(X)
    if callable(A):
        _check(A, X)
        return _lobpcg_standard_callable(A, X, m, tol, debug)
    A = jnp.asarray(A)
    _check(functools.partial(_product, A), X, A.shape)
    return _lobpcg_standard_matrix(A, X, m, tol, debug)


def _check(multiply: Callable[[Any], Any], X: Any, shape: tuple[int, ...] | None = None) -> None:
    if X.ndim != 2:
        raise errors.ArgumentValueError(f"lobpcg_standard: X must be (n, k), got an array of shape {X.shape}")
    n, k = X.shape
    if k == 0:
        raise errors.ArgumentValueError(f"lobpcg_standard: expected search dim > 0 (got {k}): give X a column")
    if shape is not None and shape != (n, n):
        raise errors.ArgumentValueError(f"lobpcg_standard: A must be {(n, n)} as X is {X.shape}, got {shape}")
    if k * _DIRECTIONS_IN_A_SPACE >= n:
        raise errors.ArgumentValueError(
            f"lobpcg_standard: expected search dim * {_DIRECTIONS_IN_A_SPACE} < matrix dim (got "
            f"{k * _DIRECTIONS_IN_A_SPACE}, {n}): give X fewer columns, or use meshrt.numpy.linalg.eigh"
        )
    out = eval_shape(multiply, X)
    if out.dtype != X.dtype:
        raise errors.ArgumentValueError(f"lobpcg_standard: A, X must have same dtypes (got {out.dtype} vs {X.dtype})")
    if out.shape != (n, k):
        raise errors.ArgumentValueError(f"lobpcg_standard: A must be {(n, n)}, but A times X is of shape {out.shape}")


@functools.partial(jit, static_argnums=(2, 4))
def _lobpcg_standard_matrix(A: Any, X: Any, m: int, tol: Any, debug: bool = False) -> tuple[Any, ...]:
    return _searched(functools.partial(_product, A), X, m, tol, debug)


@functools.partial(jit, static_argnums=(0, 2, 4))
def _lobpcg_standard_callable(A: Any, X: Any, m: int, tol: Any, debug: bool = False) -> tuple[Any, ...]:
    return _searched(A, X, m, tol, debug)


def _searched(multiply: Callable[[Any], Any], X: Any, m: int, tol: Any, debug: bool) -> tuple[Any, ...]:
    """`theta`, the eigenvectors and the number of iterations; with `debug`, what became of each iteration as well."""
    tol = dtypes.finfo(X.dtype).eps if tol is None else tol
    first = jnp.linalg.qr(X)[0]
    theta, turn = _largest(first, multiply(first), X.shape[1])
    start = _state(multiply, 0, theta, _product(first, turn), jnp.zeros_like(X), tol)
    step = functools.partial(_improved, multiply, tol)
    if not debug:
        end = lax.while_loop(lambda s: (s.i < m) & ~s.has_converged, step, start)
        return end.theta, end.X, end.i

    def watched(s: _Search, _: Any) -> tuple[_Search, dict[str, Any]]:
        s = step(s)
        return s, {"lambda history": s.theta, "X zeros": (_norms(s.X) == 0).sum(), "P zeros": (_norms(s.P) == 0).sum()}

    end, seen = lax.scan(watched, start, length=m)
    return end.theta, end.X, end.i, seen


def _state(multiply: Callable[[Any], Any], i: Any, theta: Any, X: Any, P: Any, tol: Any) -> _Search:
    AX = multiply(X)
    R = AX - theta[None, :] * X
    allowed = 10 * X.shape[0] * tol * (jnp.abs(theta) + _norms(AX))
    return _Search(jnp.asarray(i, np.int32), theta, X, P, R, (_norms(R) < allowed).all())


def _improved(multiply: Callable[[Any], Any], tol: Any, s: _Search) -> _Search:
    """The best eigenvectors within the space of the last ones, the last steps and the residuals."""
    P = _orthonormal(s.P, s.X)
    R = _orthonormal(s.R, jnp.concatenate([s.X, P], 1))
    space = jnp.concatenate([s.X, P, R], 1)
    k = s.X.shape[1]
    theta, turn = _largest(space, multiply(space), k)
    # The new vectors are orthonormal but for rounding, which would grow from one iteration to the next; QR leaves each
    # of them where it is, but for its sign.
    X = jnp.linalg.qr(_product(space, turn))[0]
    return _state(multiply, s.i + 1, theta, X, _product(space[:, k:], turn[k:]), tol)


def _largest(space: Any, image: Any, k: int) -> tuple[Any, Any]:
    """The `k` largest eigenvalues of a matrix within a space with orthonormal columns (or columns of zeros), in
    descending order, and the eigenvectors in terms of the columns. `image` is the matrix times the space."""
    inner = _product(space.T.conj(), image)
    inner = (inner + inner.T.conj()) / 2
    is_lost = _norms(space) == 0
    bound = jnp.abs(inner).sum(0).max()  # of all eigenvalues; a much larger number would cost their digits
    below = jnp.diag(jnp.where(is_lost, -2 * bound, 0).astype(inner.dtype))
    theta, turn = jnp.linalg.eigh(inner + below)
    return theta[::-1][:k], turn[:, ::-1][:, :k]


def _orthonormal(V: Any, against: Any) -> Any:
    """Orthonormal columns that span those of `V`, orthogonal to those of `against`; zeros where there are fewer."""
    for _ in range(2):  # the second time for what rounding has left
        V = V - _product(against, _product(against.T.conj(), V))
        V = _decorrelated(_normalised(V))
    return V


def _decorrelated(V: Any) -> Any:
    """The columns turned into the axes of their inner products, and made unit vectors."""
    inner = _product(V.T.conj(), V)
    sizes, turn = jnp.linalg.eigh((inner + inner.T.conj()) / 2)
    is_kept = sizes > dtypes.finfo(V.dtype).eps * V.shape[1] * sizes[-1]
    scale = jnp.where(is_kept, 1 / jnp.sqrt(jnp.where(is_kept, sizes, 1)), 0)
    return _product(V, turn * scale[None, :].astype(turn.dtype))


def _normalised(V: Any) -> Any:
    norms = _norms(V)
    return jnp.where((norms > 0)[None, :], V / jnp.where(norms > 0, norms, 1)[None, :].astype(V.dtype), 0)


def _norms(V: Any) -> Any:
    return jnp.linalg.norm(V, axis=0)


def _product(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


__getattr__ = _missing("jax.experimental.sparse.linalg", __all__)
