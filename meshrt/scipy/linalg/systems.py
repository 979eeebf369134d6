"""Systems of linear equations, solved with factors of their matrices; inverses and determinants."""

from __future__ import annotations

from typing import Any

import meshrt.numpy as jnp
from meshrt import errors, lax
from meshrt.jit import jit
from meshrt.scipy.linalg.factors import cho_factor
from meshrt.scipy.operands import separate

__all__ = ["cho_solve", "det", "inv", "lu_solve", "solve", "solve_triangular"]


def _columns(name: str, a: Any, b: Any) -> tuple[Any, Any, bool]:
    """Matrices and right-hand sides with common leading dimensions; whether b had been vectors."""
    a, b = separate(name, jnp.asarray(a), jnp.asarray(b))
    if a.ndim < 2 or b.ndim < 1:
        raise errors.ArgumentValueError(
            f"{name} needs matrices and right-hand sides of at least one dimension, got shapes {a.shape} and {b.shape}"
        )
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
    """x of a x = b, from `cho_factor(a)`; b is [..., n, k], or [n].

    Args:
      c_and_lower: what `cho_factor` returned.
      b: vectors or matrices.
      overwrite_b: has no effect.
      check_finite: has no effect.

    >>> meshrt.scipy.linalg.cho_solve((jnp.array([[2.0, 0.0], [0.0, 3.0]]), False), jnp.array([4.0, 9.0]))
    Array([1., 1.], dtype=float32)
    """
    c, lower = c_and_lower
    return _cho_solve(c, b, lower)


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

    Args:
      lu_and_piv: what `lu_factor` returned.
      b: vectors or matrices.
      trans: 0, 1 or 2 (or "N", "T", "C"): solve with the matrix, its transpose or its conjugate transpose.
      overwrite_b: has no effect.
      check_finite: has no effect.

    >>> meshrt.scipy.linalg.lu_solve(meshrt.scipy.linalg.lu_factor(jnp.array([[0.0, 1.0], [2.0, 3.0]])),
    ...     jnp.array([1.0, 5.0]))
    Array([1., 1.], dtype=float32)
    """
    if trans not in (0, 1, 2):
        raise errors.ArgumentValueError(f"'trans' value must be 0, 1, or 2, got {trans}")
    factors, pivots = lu_and_piv
    return _lu_solve(factors, pivots, b, trans)


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

    >>> meshrt.scipy.linalg.solve(jnp.array([[2.0, 0.0], [0.0, 4.0]]), jnp.array([2.0, 2.0]))
    Array([1. , 0.5], dtype=float32)
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

    Args:
      a: an array.
      b: an array.
      trans: 0, 1 or 2 (or "N", "T", "C"): solve with the matrix, its transpose or its conjugate transpose.
      lower: use the lower triangle.
      unit_diagonal: the diagonal is taken to be ones.
      overwrite_b: has no effect.
      debug: has no effect.
      check_finite: has no effect.

    >>> meshrt.scipy.linalg.solve_triangular(jnp.array([[2.0, 0.0], [1.0, 4.0]]), jnp.array([2.0, 5.0]), lower=True)
    Array([1., 1.], dtype=float32)
    """
    if trans not in _TRANSPOSES:
        raise errors.ArgumentValueError(f"Invalid 'trans' value {trans}; there are 0, 1, 2, 'N', 'T' and 'C'")
    return _solve_triangular(a, b, trans, lower, unit_diagonal)


def det(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The determinant.

    Args:
      a: an array.
      overwrite_a: has no effect.
      check_finite: has no effect.

    >>> meshrt.scipy.linalg.det(jnp.array([[2.0, 0.0], [0.0, 3.0]]))
    Array(6., dtype=float32)
    """
    return jnp.linalg.det(a)


def inv(a: Any, overwrite_a: bool = False, check_finite: bool = True) -> Any:
    """The inverse.

    Args:
      a: an array.
      overwrite_a: has no effect.
      check_finite: has no effect.

    >>> meshrt.scipy.linalg.inv(jnp.array([[2.0, 0.0], [0.0, 4.0]]))
    Array([[0.5 , 0.  ],
           [0.  , 0.25]], dtype=float32)
    """
    return jnp.linalg.inv(a)
