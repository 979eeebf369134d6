"""Factorisations."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import errors, lax
from meshrt.core.dimensions.expression import min_dim
from meshrt.core.types import aval_of
from meshrt.jit import jit
from meshrt.numpy.operands import operand
from meshrt.primitives.householder import geqp3, geqrf
from meshrt.scipy.operands import separate

__all__ = ["cho_factor", "cholesky", "eigh", "lu", "lu_factor", "polar", "qr", "qr_multiply", "svd"]


def _matrix(name: str, a: Any) -> Any:
    (a,) = separate(name, jnp.asarray(a))
    if a.ndim < 2:
        raise errors.ArgumentShapeError(f"Input 0 to {name} must have rank at least 2, but got shape={a.shape}")
    return a


def _adjoint(x: Any) -> Any:
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def _product(x: Any, y: Any) -> Any:
    return jnp.matmul(x, y, precision=lax.Precision.HIGHEST)


@jit(static_argnames="lower")
def _cholesky(a: Any, lower: bool) -> Any:
    a = _matrix("cholesky", a)
    factor = lax.linalg.cholesky(a if lower else _adjoint(a), symmetrize_input=False)
    return factor if lower else _adjoint(factor)


def cholesky(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The triangular factor of a positive definite matrix: a = u^H u, or l l^H with `lower`. Only that triangle of `a`
    is read. NaN where a matrix is not positive definite.

    Args:
      a: an array.
      lower: use the lower triangle.
      overwrite_a: has no effect.
      check_finite: has no effect.

    >>> meshrt.scipy.linalg.cholesky(jnp.array([[4.0, 2.0], [2.0, 2.0]]), lower=True)
    Array([[2., 0.],
           [1., 1.]], dtype=float32)
    """
    return _cholesky(a, lower)


def cho_factor(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Any, bool]:
    """(factor, lower), for `cho_solve`.

    Args:
      a: an array.
      lower: use the lower triangle.
      overwrite_a: has no effect.
      check_finite: has no effect.

    >>> meshrt.scipy.linalg.cho_factor(jnp.array([[4.0, 0.0], [0.0, 9.0]]))
    (Array([[2., 0.],
           [0., 3.]], dtype=float32), False)
    """
    return cholesky(a, lower), lower


def svd(
    a: Any,
    full_matrices: bool = True,
    compute_uv: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> Any:
    """(u, s, vh), or s alone; see ``meshrt.numpy.linalg.svd``.

    Args:
      a: an array.
      full_matrices: return square unitary factors.
      compute_uv: also return the singular vectors.
      overwrite_a: has no effect.
      check_finite: has no effect.
      lapack_driver: must be "gesdd".

    >>> meshrt.scipy.linalg.svd(jnp.array([[3.0, 0.0], [0.0, 4.0]]), compute_uv=False)
    Array([4., 3.], dtype=float32)
    """
    found = jnp.linalg.svd(_matrix("svd", a), full_matrices=full_matrices, compute_uv=compute_uv)
    return tuple(found) if compute_uv else found


@jit(static_argnames=("lower", "eigvals_only"))
def _eigh(a: Any, lower: bool, eigvals_only: bool) -> Any:
    vectors, values = lax.linalg.eigh(_matrix("eigh", a), lower=lower)
    return values if eigvals_only else (values, vectors)


def eigh(
    a: Any,
    b: Any = None,
    lower: bool = True,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    turbo: bool = True,
    eigvals: Any = None,
    type: int = 1,
    check_finite: bool = True,
) -> Any:
    """(values, vectors) of Hermitian matrices, values rising; or the values alone.

    Raises:
      UnsupportedError: generalised problems (`b`, `type`) and ranges (`eigvals`).

    >>> meshrt.scipy.linalg.eigh(jnp.array([[2.0, 0.0], [0.0, 3.0]]), eigvals_only=True)
    Array([2., 3.], dtype=float32)
    """
    refused = {"b=None": b is not None, "type=1": type != 1, "eigvals=None": eigvals is not None}
    if others := [usual for usual, is_other in refused.items() if is_other]:
        raise errors.UnsupportedError(f"Only the {others[0]} case of eigh is implemented")
    return _eigh(a, lower, eigvals_only)


@jit
def _lu_factor(a: Any) -> tuple[Any, Any]:
    factors, pivots, _ = lax.linalg.lu(_matrix("lu_factor", a))
    return factors, pivots


def lu_factor(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Any, Any]:
    """(lu, pivots): both triangles in one matrix, and the row that each row was exchanged with; for `lu_solve`.

    Args:
      a: an array.
      overwrite_a: has no effect.
      check_finite: has no effect.

    >>> meshrt.scipy.linalg.lu_factor(jnp.array([[0.0, 1.0], [2.0, 3.0]]))
    (Array([[2., 3.],
           [0., 1.]], dtype=float32), Array([1, 1], dtype=int32))
    """
    return _lu_factor(a)


@jit(static_argnames="permute_l")
def _lu(a: Any, permute_l: bool) -> Any:
    a = _matrix("lu", a)
    factors, _, permutation = lax.linalg.lu(a)
    rows, columns = a.shape[-2:]
    least = min_dim(rows, columns)
    lower = jnp.tril(factors, -1)[..., :least]
    lower = lower + jnp.broadcast_to(jnp.eye(rows, least, dtype=a.dtype), lower.shape)
    upper = jnp.triu(factors)[..., :least, :]
    if permute_l:
        return jnp.take_along_axis(lower, jnp.argsort(permutation, axis=-1)[..., None], axis=-2), upper
    shape = (*permutation.shape[:-1], rows, rows)
    order = permutation[..., None, :] == lax.broadcasted_iota(permutation.dtype, shape, permutation.ndim - 1)
    return order.astype(np.empty((), a.dtype).real.dtype), lower, upper


def lu(a: Any, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """(p, l, u) with a = p l u, rows pivoted; (p l, u) with `permute_l`.

    Args:
      a: an array.
      permute_l: return P L and U.
      overwrite_a: has no effect.
      check_finite: has no effect.

    >>> meshrt.scipy.linalg.lu(jnp.array([[0.0, 1.0], [2.0, 3.0]]))
    (Array([[0., 1.],
           [1., 0.]], dtype=float32), Array([[1., 0.],
           [0., 1.]], dtype=float32), Array([[2., 3.],
           [0., 1.]], dtype=float32))
    """
    return _lu(a, permute_l)


@jit(static_argnames=("mode", "pivoting"))
def _qr(a: Any, mode: str, pivoting: bool) -> Any:
    if mode not in ("full", "r", "economic"):
        raise errors.ArgumentValueError(f"Unsupported QR decomposition mode '{mode}'; there are full, economic and r")
    found = lax.linalg.qr(_matrix("qr", a), pivoting=pivoting, full_matrices=mode != "economic")
    return tuple(found[1:]) if mode == "r" else tuple(found)


def qr(
    a: Any,
    overwrite_a: bool = False,
    lwork: Any = None,
    mode: str = "full",
    pivoting: bool = False,
    check_finite: bool = True,
) -> tuple[Any, ...]:
    """(q, r), with "economic" their first columns and rows, with "r" (r,); with `pivoting` the permutation last.

    Args:
      a: an array.
      overwrite_a: has no effect.
      lwork: has no effect.
      mode: "full", "r" or "economic".
      pivoting: exchange columns for a stable result.
      check_finite: has no effect.

    >>> [x.shape for x in meshrt.scipy.linalg.qr(jnp.ones((3, 2)))]
    [(3, 3), (3, 2)]
    """
    return _qr(a, mode, pivoting)


def _polar_by_values(a: Any, side: str) -> tuple[Any, Any]:
    u, s, vh = lax.linalg.svd(a, full_matrices=False)
    values = s[..., None, :].astype(a.dtype)
    return _product(u, vh), _product(_adjoint(vh) * values, vh) if side == "right" else _product(
        u * values, _adjoint(u)
    )


def _polar_by_iteration(a: Any, side: str, eps: float | None) -> tuple[Any, Any]:
    rows, columns = a.shape[-2:]
    if (rows < columns) != (side == "left"):
        raise errors.UnsupportedError(
            "method='qdwh' only supports mxn matrices where m < n where side='left' and m >= n where side='right', got "
            f"{a.shape} with side={side!r}; use method='svd'"
        )
    one = functools.partial(lax.linalg.qdwh, eps=eps)
    found = jnp.vectorize(lambda x: one(x)[:2], signature="(m,n)->(m,n),(n,n)")
    if side == "right":
        return found(a)
    unitary, positive = found(_adjoint(a))
    return _adjoint(unitary), _adjoint(positive)


@jit(static_argnames=("side", "method", "eps"))
def _polar(a: Any, side: str, method: str, eps: float | None) -> tuple[Any, Any]:
    return _polar_by_values(a, side) if method == "svd" else _polar_by_iteration(a, side, eps)


def polar(
    a: Any, side: str = "right", *, method: str = "qdwh", eps: float | None = None, max_iterations: int | None = None
) -> tuple[Any, Any]:
    """(u, p) with a = u p (side "right") or p u ("left"): u with orthonormal columns or rows, p positive semidefinite.

    Args:
      method: "qdwh" iterates, for matrices of full rank with at least as many rows as columns (on the side "left", with
        more columns than rows); "svd" computes singular values.
      eps: how exact the iteration has to be.
      max_iterations: has no effect; the iteration ends by itself.

    Raises:
      ArgumentValueError: another `side` or `method`; fewer than two dimensions.
      UnsupportedError: a shape that the method does not take.

    >>> [x.shape for x in meshrt.scipy.linalg.polar(jnp.eye(2))]
    [(2, 2), (2, 2)]
    """
    if aval_of(operand("polar", a)).ndim < 2:
        raise errors.ArgumentValueError("The input `a` must be at least a 2-D array.")
    if side not in ("right", "left"):
        raise errors.ArgumentValueError(f"The argument `side` must be either 'right' or 'left', got {side!r}")
    if method not in ("svd", "qdwh"):
        raise errors.ArgumentValueError(f"Unknown polar decomposition method {method!r}; there are 'svd' and 'qdwh'")
    return _polar(_matrix("polar", a), side, method, eps)


@jit(static_argnames=("mode", "pivoting", "conjugate"))
def _qr_multiply(a: Any, c: Any, mode: str, pivoting: bool, conjugate: bool) -> tuple[Any, ...]:
    rows, columns = a.shape[-2:]
    k = min_dim(rows, columns)
    order: list[Any] = []
    if pivoting:
        packed, places, taus = geqp3(a, jnp.zeros((*a.shape[:-2], columns), np.int32))
        order = [places - 1]  # LAPACK counts from 1
    else:
        packed, taus = geqrf(a)
    if mode == "left":  # of all columns of q, which the kernel multiplies by, the first k count
        c = jnp.pad(c, [(0, 0)] * (c.ndim - 2) + [(0, rows - k), (0, 0)])
    # conj(q) c is the transpose of c^T q^H.
    c = jnp.swapaxes(c, -1, -2) if conjugate else c
    out = lax.linalg.ormqr(packed, taus, c, left=(mode == "left") != conjugate, transpose=conjugate)
    out = jnp.swapaxes(out, -1, -2) if conjugate else out
    return out[..., :k] if mode == "right" else out, jnp.triu(packed[..., :k, :]), *order


def qr_multiply(
    a: Any,
    c: Any,
    mode: str = "right",
    pivoting: bool = False,
    conjugate: bool = False,
    overwrite_a: bool = False,
    overwrite_c: bool = False,
) -> tuple[Any, ...]:
    """(c q, r), or (q c, r) with mode "left", where a = q r; q is never formed.

    Args:
      a: [..., m, n].
      c: [..., p, m], with mode "left" [..., min(m, n), p], or a vector.
      pivoting: exchange columns of a, and return their order last.
      conjugate: take the conjugate of q.

    Raises:
      ArgumentValueError: shapes that do not fit each other; another `mode`.

    >>> [x.shape for x in meshrt.scipy.linalg.qr_multiply(jnp.eye(2), jnp.ones((2, 2)))]
    [(2, 2), (2, 2)]
    """
    a, c = separate("qr_multiply", a, c)
    if mode not in ("right", "left"):
        raise errors.ArgumentValueError(f"mode must be 'right' or 'left', got {mode!r}")
    is_vector = c.ndim == 1
    if is_vector:
        c = c[:, None] if mode == "left" else c[None, :]
    rows, k = a.shape[-2], min(a.shape[-2:])
    has, needs = (c.shape[-2], k) if mode == "left" else (c.shape[-1], rows)
    if has != needs:
        what = "Q @ c" if mode == "left" else "c @ Q"
        raise errors.ArgumentValueError(
            f"Array shapes are not compatible for {what} operation: a has shape {a.shape}, so Q is of shape "
            f"{(rows, k)}, but c has {has} {'rows' if mode == 'left' else 'columns'} (expected {needs})."
        )
    batch = jnp.broadcast_shapes(a.shape[:-2], c.shape[:-2])
    a, c = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, c))
    out, *others = _qr_multiply(a, c, mode, pivoting, conjugate)
    return (out.ravel() if is_vector else out, *others)
