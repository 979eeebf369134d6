"""Linear systems by products with the matrix only: names and signatures are those of ``jax.scipy.sparse.linalg``.

Vectors may be pytrees of arrays. Derivatives follow from the system, not from the iterations.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import meshrt.numpy as jnp
from meshrt import dtypes, errors, lax
from meshrt.core.tracebacks import offer as _offer
from meshrt.numpy.names import missing as _missing
from meshrt.scipy.sparse.krylov import add, inner, map_tree, norm, real_inner, scaled, subtract
from meshrt.scipy.sparse.restarted import restarted
from meshrt.tree_util import tree_leaves, tree_structure

__all__ = ["bicgstab", "cg", "gmres"]
__getattr__ = _missing(__name__, __all__)

Operator = Callable[[Any], Any]


def cg(
    A: Any, b: Any, x0: Any = None, *, tol: float = 1e-5, atol: float = 0.0, maxiter: int | None = None, M: Any = None
) -> tuple[Any, None]:
    """Solves A x = b for a Hermitian, positive definite A by conjugate gradients (Hestenes and Stiefel 1952).

    Args:
      A: a matrix [n, n], something with `@`, or a function of x.
      b: the right-hand side, a pytree of arrays.
      x0: where to start, like b; by default zeros.
      tol, atol: the residual's length is to be below max(tol * |b|, atol).
      maxiter: at most so many steps; by default ten times the number of unknowns.
      M: a preconditioner, near the inverse of A, given as A is.

    Returns:
      x, and None: whether it converged is not known.

    Raises:
      ArgumentValueError: a matrix that is not square, or x0 of another structure than b.
      ArgumentShapeError: x0 of other shapes than b.
      ArgumentTypeError: A or M is something else.

    >>> import meshrt.numpy as mnp, meshrt.scipy as msp
    >>> mnp.round(msp.sparse.linalg.cg(mnp.array([[4.0, 1.0], [1.0, 3.0]]), mnp.array([5.0, 4.0]))[0], 3)
    Array([1., 1.], dtype=float32)
    """
    return _iterated(_conjugate_gradients, A, b, x0, tol, atol, maxiter, M, symmetric=True)


def bicgstab(
    A: Any, b: Any, x0: Any = None, *, tol: float = 1e-5, atol: float = 0.0, maxiter: int | None = None, M: Any = None
) -> tuple[Any, None]:
    """Solves A x = b by stabilised biconjugate gradients (van der Vorst 1992). Arguments and results are those of
    `cg`.

    Args:
      A: a matrix or a linear function.
      b: an array.
      x0: where to start.
      tol: tolerance relative to `b`.
      atol: absolute tolerance.
      maxiter: the most iterations.
      M: a preconditioner: an approximate inverse.

    >>> meshrt.scipy.sparse.linalg.bicgstab(lambda x: 2 * x, jnp.array([2.0, 4.0]))[0]
    Array([1., 2.], dtype=float32)
    """
    return _iterated(_stabilised, A, b, x0, tol, atol, maxiter, M, symmetric=False)


def gmres(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    tol: float = 1e-5,
    atol: float = 0.0,
    restart: int = 20,
    maxiter: int | None = None,
    M: Any = None,
    solve_method: str = "batched",
) -> tuple[Any, Any]:
    """Solves A x = b by generalised minimal residuals (Saad and Schultz 1986).

    Args:
      A, b, x0, tol, atol, M: as of `cg`; tolerances are of M applied to the residual.
      restart: the dimension of the Krylov space that is built before it is begun anew.
      maxiter: at most so many restarts.
      solve_method: "batched" builds the whole space and solves one small least squares problem; "incremental" updates
        that with every step, and ends early.

    Returns:
      x, and an int32: 0, or -1 if x has become NaN.

    Raises:
      ArgumentValueError: a matrix that is not square, x0 of another structure than b, another solve_method.
      ArgumentShapeError: x0 of other shapes than b.
      ArgumentTypeError: A or M is something else.

    >>> meshrt.scipy.sparse.linalg.gmres(lambda x: 2 * x, jnp.array([2.0, 4.0]))[0].round(3)
    Array([1., 2.], dtype=float32)
    """
    A, M, b, x0, size = _problem(A, M, b, x0)
    if solve_method not in ("batched", "incremental"):
        raise errors.ArgumentValueError(
            f"invalid solve_method {solve_method}, must be either 'incremental' or 'batched'"
        )
    maxiter = 10 * size if maxiter is None else maxiter
    length = norm(b)
    atol = jnp.maximum(tol * length, atol)
    enough = norm(M(b)) * jnp.minimum(1.0, atol / length)
    incremental = solve_method == "incremental"

    def solve(A: Operator, b: Any) -> Any:
        return restarted(A, b, x0, M, min(restart, size), maxiter, atol, enough, incremental)

    x = lax.custom_linear_solve(A, b, solve=solve, transpose_solve=solve)
    return x, jnp.where(jnp.isnan(norm(x)), -1, 0)


def _identity(x: Any) -> Any:
    return x


def _as_operator(f: Any) -> Operator:
    """A function that multiplies by f."""
    if callable(f) and not hasattr(f, "__matmul__"):
        return f
    if hasattr(f, "__matmul__") and hasattr(f, "shape"):
        if len(f.shape) != 2 or f.shape[0] != f.shape[1]:
            raise errors.ArgumentValueError(f"linear operator must be a square matrix, but has shape: {f.shape}")
        if hasattr(f, "todense"):  # a sparse matrix has a product of its own
            return functools.partial(operator.matmul, f)
        return functools.partial(jnp.dot, jnp.asarray(f), precision=lax.Precision.HIGHEST)
    if callable(f):
        return f
    raise errors.ArgumentTypeError(f"linear operator must be either a function or ndarray: {f}")


def _problem(A: Any, M: Any, b: Any, x0: Any) -> tuple[Operator, Operator, Any, Any, int]:
    """Operators, arrays, and the number of unknowns."""
    b = map_tree(jnp.asarray, b)
    x0 = map_tree(jnp.zeros_like if x0 is None else jnp.asarray, b if x0 is None else x0)
    A, M = _as_operator(A), _identity if M is None else _as_operator(M)
    if tree_structure(x0) != tree_structure(b):
        raise errors.ArgumentValueError(
            f"x0 and b must have matching tree structure: {tree_structure(x0)} vs {tree_structure(b)}"
        )
    shapes = [[x.shape for x in tree_leaves(t)] for t in (x0, b)]
    if shapes[0] != shapes[1]:
        raise errors.ArgumentShapeError(f"arrays in x0 and b must have matching shapes: {shapes[0]} vs {shapes[1]}")
    return A, M, b, x0, sum(x.size for x in tree_leaves(b))


def _iterated(
    method: Callable[..., Any],
    A: Any,
    b: Any,
    x0: Any,
    tol: Any,
    atol: Any,
    maxiter: int | None,
    M: Any,
    symmetric: bool,
) -> tuple[Any, None]:
    A, M, b, x0, size = _problem(A, M, b, x0)
    solve = functools.partial(method, x0=x0, M=M, tol=tol, atol=atol, maxiter=10 * size if maxiter is None else maxiter)
    # A real Hermitian matrix is its own transpose, a complex one is not.
    symmetric = symmetric and not any(x.dtype.kind == "c" for x in tree_leaves(b))
    return lax.custom_linear_solve(A, b, solve=solve, transpose_solve=solve, symmetric=symmetric), None


def _threshold(b: Any, tol: Any, atol: Any) -> Any:
    """The square of the length that a residual is to have."""
    return jnp.maximum(jnp.square(tol) * real_inner(b, b), jnp.square(atol))


def _conjugate_gradients(A: Operator, b: Any, *, x0: Any, M: Operator, tol: Any, atol: Any, maxiter: int) -> Any:
    enough = _threshold(b, tol, atol)

    def unfinished(state: Any) -> Any:
        _, r, gamma, _, k = state
        square = gamma.real if M is _identity else real_inner(r, r)
        return (square > enough) & (k < maxiter)

    def step(state: Any) -> Any:
        x, r, gamma, p, k = state
        image = A(p)
        alpha = gamma / real_inner(p, image).astype(dtype)
        x, r = add(x, scaled(alpha, p)), subtract(r, scaled(alpha, image))
        z = M(r)
        grown = real_inner(r, z).astype(dtype)
        return x, r, grown, add(z, scaled(grown / gamma, p)), k + 1

    r = subtract(b, A(x0))
    z = M(r)
    dtype = dtypes.result_type(*tree_leaves(z))
    return lax.while_loop(unfinished, step, (x0, r, real_inner(r, z).astype(dtype), z, 0))[0]


def _stabilised(A: Operator, b: Any, *, x0: Any, M: Operator, tol: Any, atol: Any, maxiter: int) -> Any:
    enough = _threshold(b, tol, atol)

    def unfinished(state: Any) -> Any:
        r, k = state[1], state[-1]
        return (real_inner(r, r) > enough) & (k < maxiter) & (k >= 0)

    def step(state: Any) -> Any:
        x, r, shadow, alpha, omega, rho, p, q, k = state
        new_rho = inner(shadow, r)
        beta = new_rho / rho * alpha / omega
        p = add(r, scaled(beta, subtract(p, scaled(omega, q))))
        towards = M(p)
        q = A(towards)
        alpha = new_rho / inner(shadow, q)
        s = subtract(r, scaled(alpha, q))
        early = real_inner(s, s) < enough
        beyond = M(s)
        t = A(beyond)
        omega = inner(t, s) / inner(t, t)
        half = add(x, scaled(alpha, towards))
        choose = functools.partial(jnp.where, early)
        x = map_tree(choose, half, add(half, scaled(omega, beyond)))
        r = map_tree(choose, s, subtract(s, scaled(omega, t)))
        broken = (omega == 0) | (alpha == 0) | (new_rho == 0)
        return x, r, shadow, alpha, omega, new_rho, p, q, jnp.where(broken, -1, k + 1)

    r = subtract(b, A(x0))
    one = jnp.ones_like(inner(r, r))
    return lax.while_loop(unfinished, step, (x0, r, r, one, one, one, r, r, 0))[0]


_offer(globals(), __all__)
