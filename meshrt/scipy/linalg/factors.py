"""Factorisations, and systems solved with them."""

from __future__ import annotations

from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import errors, lax
from meshrt.core.types import aval_of
from meshrt.jit import jit
from meshrt.numpy.operands import operand
from meshrt.scipy.operands import separate

__all__ = [
    "cho_factor", "cho_solve", "cholesky", "det", "eigh", "inv", "lu", "lu_factor", "lu_solve", "polar", "qr", "solve",
    "solve_triangular", "svd",
]  # fmt: skip


def _matrix(name: str, a: Any) -> Any:
    (a,) = separate(name, a)
    if a.ndim < 2:
        raise errors.ArgumentValueError(f"{name} needs matrices [..., m, n], got shape {a.shape}")
    return a


def _adjoint(x: Any) -> Any:
    return jnp.conj(jnp.swapaxes(x, -1, -2))


@jit(static_argnames="lower")
def _cholesky(a: Any, lower: bool) -> Any:
    a = _matrix("cholesky", a)
    factor = lax.linalg.cholesky(a if lower else _adjoint(a), symmetrize_input=False)
    return factor if lower else _adjoint(factor)


def cholesky(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The triangular factor of a positive definite matrix: a = u^H u, or l l^H with `lower`. Only that triangle of `a`
    is read. NaN where a matrix is not positive definite."""
    return _cholesky(a, lower)


def cho_factor(a: Any, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> tuple[Any, bool]:
    """(factor, lower), for `cho_solve`."""
    return cholesky(a, lower), lower


def _columns(name: str, a: Any, b: Any) -> tuple[Any, Any, bool]:
    """Matrices and right-hand sides with common leading dimensions; whether b had been vectors."""
    a, b = separate(name, a, b)
    if a.shape[-1] != a.shape[-2]:
        raise errors.ArgumentValueError(f"{name} needs square matrices, got shape {a.shape}")
    is_vector = b.ndim == 1 or (a.ndim == b.ndim + 1 and a.shape[-1] == b.shape[-1])
    b = b[..., None] if is_vector else b
    if b.shape[-2] != a.shape[-1]:
        given = b.shape[:-1] if is_vector else b.shape
        raise errors.ArgumentValueError(f"{name} got incompatible shapes: matrices {a.shape}, right-hand sides {given}")
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return jnp.broadcast_to(a, (*batch, *a.shape[-2:])), jnp.broadcast_to(b, (*batch, *b.shape[-2:])), is_vector


@jit(static_argnames="lower")
def _cho_solve(c: Any, b: Any, lower: bool) -> Any:
    c, b, is_vector = _columns("cho_solve", c, b)

    def solved(b: Any, adjoint: bool) -> Any:
        return lax.linalg.triangular_solve(c, b, left_side=True, lower=lower, transpose_a=adjoint, conjugate_a=adjoint)

    out = solved(solved(b, not lower), lower)
    return out[..., 0] if is_vector else out


def cho_solve(c_and_lower: tuple[Any, bool], b: Any, overwrite_b: bool = False, check_finite: bool = True) -> Any:
    """x of a x = b, from `cho_factor(a)`; b is [..., n, k], or [n]."""
    c, lower = c_and_lower
    return _cho_solve(c, b, lower)


def svd(
    a: Any,
    full_matrices: bool = True,
    compute_uv: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> Any:
    """(u, s, vh), or s alone; see ``meshrt.numpy.linalg.svd``."""
    found = jnp.linalg.svd(_matrix("svd", a), full_matrices=full_matrices, compute_uv=compute_uv)
    return tuple(found) if compute_uv else found


def det(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The determinant."""
    return jnp.linalg.det(_matrix("det", a))


def inv(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The inverse."""
    return jnp.linalg.inv(_matrix("inv", a))


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
    """(lu, pivots): both triangles in one matrix, and the row that each row was exchanged with; for `lu_solve`."""
    return _lu_factor(a)


@jit(static_argnames="trans")
def _lu_solve(lu: Any, pivots: Any, b: Any, trans: int) -> Any:
    lu, b, is_vector = _columns("lu_solve", lu, b)
    pivots = jnp.broadcast_to(pivots, (*lu.shape[:-2], pivots.shape[-1]))
    order = lax.linalg.lu_pivots_to_permutation(pivots, lu.shape[-1])

    def triangle(b: Any, lower: bool) -> Any:
        return lax.linalg.triangular_solve(
            lu, b, left_side=True, lower=lower, unit_diagonal=lower, transpose_a=trans > 0, conjugate_a=trans == 2
        )

    if trans == 0:
        out = triangle(triangle(jnp.take_along_axis(b, order[..., None], axis=-2), True), False)
    else:
        out = jnp.take_along_axis(triangle(triangle(b, False), True), jnp.argsort(order, axis=-1)[..., None], axis=-2)
    return out[..., 0] if is_vector else out


def lu_solve(
    lu_and_piv: tuple[Any, Any], b: Any, trans: int = 0, overwrite_b: bool = False, check_finite: bool = True
) -> Any:
    """x of a x = b (trans 0), a^T x = b (1) or a^H x = b (2), from `lu_factor(a)`; b is [..., n, k], or [n].

    Raises:
      ArgumentValueError: another `trans`.
    """
    if trans not in (0, 1, 2):
        raise errors.ArgumentValueError(f"'trans' value must be 0, 1, or 2, got {trans}")
    factors, pivots = lu_and_piv
    return _lu_solve(factors, pivots, b, trans)


@jit(static_argnames="permute_l")
def _lu(a: Any, permute_l: bool) -> Any:
    a = _matrix("lu", a)
    factors, _, permutation = lax.linalg.lu(a)
    rows, columns = a.shape[-2:]
    least = min(rows, columns)
    lower = jnp.tril(factors, -1)[..., :least] + jnp.eye(rows, least, dtype=a.dtype)
    upper = jnp.triu(factors)[..., :least, :]
    if permute_l:
        return jnp.take_along_axis(lower, jnp.argsort(permutation, axis=-1)[..., None], axis=-2), upper
    order = permutation[..., None, :] == jnp.arange(rows, dtype=permutation.dtype)[:, None]
    return order.astype(np.empty((), a.dtype).real.dtype), lower, upper


def lu(a: Any, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """(p, l, u) with a = p l u, rows pivoted; (p l, u) with `permute_l`."""
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
    """(q, r), with "economic" their first columns and rows, with "r" (r,); with `pivoting` the permutation last."""
    return _qr(a, mode, pivoting)


def solve(
    a: Any,
    b: Any,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    debug: bool = False,
    check_finite: bool = True,
    assume_a: str = "gen",
) -> Any:
    """x of a x = b.

    Args:
      assume_a: "gen", "sym", "her" or "pos": positive definite matrices are solved by their `cholesky` factor.

    Raises:
      ArgumentValueError: another `assume_a`.
    """
    kinds = ("gen", "sym", "her", "pos")
    if assume_a not in kinds:
        raise errors.ArgumentValueError(f"Expected assume_a to be one of {list(kinds)}; got {assume_a!r}")
    return cho_solve(cho_factor(a, lower), b) if assume_a == "pos" else jnp.linalg.solve(a, b)


_TRANSPOSES = {0: (False, False), "N": (False, False), 1: (True, False), "T": (True, False), 2: (True, True),
               "C": (True, True)}  # fmt: skip


@jit(static_argnames=("trans", "lower", "unit_diagonal"))
def _solve_triangular(a: Any, b: Any, trans: Any, lower: bool, unit_diagonal: bool) -> Any:
    a, b, is_vector = _columns("solve_triangular", a, b)
    transposed, conjugated = _TRANSPOSES[trans]
    out = lax.linalg.triangular_solve(
        a, b, left_side=True, lower=lower, transpose_a=transposed, conjugate_a=conjugated, unit_diagonal=unit_diagonal
    )
    return out[..., 0] if is_vector else out


def solve_triangular(
    a: Any,
    b: Any,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    debug: Any = None,
    check_finite: bool = True,
) -> Any:
    """x of a x = b (trans 0, "N"), a^T x = b (1, "T") or a^H x = b (2, "C"), for a triangular a; b is [..., n, k], or
    [n].

    Raises:
      ArgumentValueError: another `trans`; shapes that do not fit.
    """
    if trans not in _TRANSPOSES:
        raise errors.ArgumentValueError(f"Invalid 'trans' value {trans}; there are 0, 1, 2, 'N', 'T' and 'C'")
    return _solve_triangular(a, b, trans, lower, unit_diagonal)


@jit(static_argnames="side")
def _polar(a: Any, side: str) -> tuple[Any, Any]:
    u, s, vh = lax.linalg.svd(a, full_matrices=False)
    unitary = u @ vh
    values = s[..., None, :].astype(a.dtype)
    return unitary, (_adjoint(vh) * values) @ vh if side == "right" else (u * values) @ _adjoint(u)


def polar(
    a: Any, side: str = "right", *, method: str = "svd", eps: float | None = None, max_iterations: int | None = None
) -> tuple[Any, Any]:
    """(u, p) with a = u p (side "right") or p u ("left"): u with orthonormal columns or rows, p positive semidefinite.

    By the singular value decomposition, whatever `method` says.

    Raises:
      ArgumentValueError: another `side` or `method`; fewer than two dimensions.
    """
    if aval_of(operand("polar", a)).ndim < 2:
        raise errors.ArgumentValueError("The input `a` must be at least a 2-D array.")
    if side not in ("right", "left"):
        raise errors.ArgumentValueError(f"The argument `side` must be either 'right' or 'left', got {side!r}")
    if method not in ("svd", "qdwh"):
        raise errors.ArgumentValueError(f"Unknown polar decomposition method {method!r}; there are 'svd' and 'qdwh'")
    return _polar(_matrix("polar", a), side)
