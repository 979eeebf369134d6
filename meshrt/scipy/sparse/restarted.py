"""Generalised minimal residuals, restarted (Saad, "Iterative methods for sparse linear systems", chapter 6)."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, lax
from meshrt.scipy.linalg.systems import solve as solve_dense
from meshrt.scipy.linalg.systems import solve_triangular
from meshrt.scipy.sparse.krylov import add, map_tree, norm, subtract
from meshrt.tree_util import tree_leaves

__all__ = ["restarted"]

Operator = Callable[[Any], Any]
_HIGHEST = lax.Precision.HIGHEST


def restarted(
    A: Operator, b: Any, x0: Any, M: Operator, size: int, maxiter: int, atol: Any, enough: Any, incremental: bool
) -> Any:
    """x of A x = b: Krylov spaces of dimension `size` are built until |M (b - A x)| <= atol, `maxiter` of them at most.

    Args:
      enough: the length of the residual at which the incremental method leaves a space unfinished.
    """
    improve = functools.partial(_incrementally, enough=enough) if incremental else _at_once

    def residual(x: Any) -> tuple[Any, Any]:
        return _direction(M(subtract(b, A(x))))

    def step(state: Any) -> Any:
        x, k, unit, length = state
        x = add(x, improve(lambda v: M(A(v)), unit, length, size))
        return x, k + 1, *residual(x)

    def unfinished(state: Any) -> Any:
        return (state[1] < maxiter) & (state[3] > atol)

    return lax.while_loop(unfinished, step, (x0, 0, *residual(x0)))[0]


def _direction(x: Any, least: Any = None) -> tuple[Any, Any]:
    """x / |x| and |x|, both 0 where |x| is not above `least`, by default the rounding error of its dtype."""
    length = norm(x)
    large = length > (dtypes.finfo(length.dtype).eps if least is None else least)
    dtype = dtypes.result_type(*tree_leaves(x))
    unit = map_tree(lambda leaf: jnp.where(large, leaf / jnp.where(large, length, 1).astype(dtype), 0), x)
    return unit, jnp.where(large, length, 0)


def _empty_basis(unit: Any, size: int) -> Any:
    """Room for size + 1 vectors along the last dimension, the first of which is given."""
    return map_tree(lambda x: jnp.pad(x[..., None], ((0, 0),) * x.ndim + ((0, size),)), unit)


def _combination(basis: Any, weights: Any) -> Any:
    return map_tree(lambda v: jnp.dot(v, weights, precision=_HIGHEST), basis)


def _arnoldi(apply: Operator, basis: Any, k: Any) -> tuple[Any, Any]:
    """The basis with its vector k + 1, and row k of the Hessenberg matrix: classical Gram and Schmidt, twice (Giraud et
    al. 2005), which keeps vectors orthogonal to rounding errors."""
    v = apply(map_tree(lambda x: x[..., k], basis))
    length = norm(v)
    row: Any = 0
    for _ in range(2):
        parts = map_tree(lambda x, y: jnp.einsum("...n,...->n", x.conj(), y, precision=_HIGHEST), basis, v)
        shares = functools.reduce(operator.add, tree_leaves(parts))
        v, row = subtract(v, _combination(basis, shares)), row + shares
    unit, rest = _direction(v, dtypes.finfo(length.dtype).eps * length)
    basis = map_tree(lambda x, y: x.at[..., k + 1].set(y.astype(x.dtype)), basis, unit)
    return basis, row.at[k + 1].set(rest.astype(row.dtype))


def _at_once(apply: Operator, unit: Any, length: Any, size: int) -> Any:
    """The step that a whole space gives, from the normal equations of its small least squares problem."""
    dtype = dtypes.result_type(*tree_leaves(unit))

    def step(state: Any) -> Any:
        basis, rows, _, k = state
        basis, row = _arnoldi(apply, basis, k)
        return basis, rows.at[k].set(row.astype(dtype)), row[k + 1] == 0, k + 1

    # Rows that are never built are those of the identity, so the system stays regular.
    start = (_empty_basis(unit, size), jnp.eye(size, size + 1, dtype=dtype), False, 0)
    basis, rows, _, _ = lax.while_loop(lambda s: (s[3] < size) & ~s[2], step, start)
    side = rows.conj()[:, 0] * length.astype(dtype)
    weights = solve_dense(jnp.matmul(rows.conj(), rows.T, precision=_HIGHEST), side, assume_a="pos")
    return _combination(map_tree(lambda v: v[..., :-1], basis), weights)


def _incrementally(apply: Operator, unit: Any, length: Any, size: int, enough: Any) -> Any:
    """The step that a space gives as far as it was needed: rotations keep its matrix triangular, and the residual's
    length known."""
    dtype = dtypes.result_type(*tree_leaves(unit))

    def step(state: Any) -> Any:
        k, _, basis, rows, side, rotations = state
        basis, row = _arnoldi(apply, basis, k)
        row = lax.fori_loop(0, k, lambda i, r: _rotated(r, i, rotations[i]), row.astype(dtype))
        rotation = _rotation(row[k], row[k + 1])
        side = _rotated(side, k, rotation)
        rows, rotations = rows.at[k].set(_rotated(row, k, rotation)), rotations.at[k].set(rotation)
        return k + 1, jnp.abs(side[k + 1]), basis, rows, side, rotations

    side = jnp.zeros(size + 1, dtype).at[0].set(length.astype(dtype))
    rows, rotations = jnp.eye(size, size + 1, dtype=dtype), jnp.zeros((size, 2), dtype)
    start = (0, length, _empty_basis(unit, size), rows, side, rotations)
    _, _, basis, rows, side, _ = lax.while_loop(lambda s: (s[0] < size) & (s[1] > enough), step, start)
    weights = solve_triangular(rows[:, :-1].T, side[:-1])
    return _combination(map_tree(lambda v: v[..., :-1], basis), weights)


def _rotation(a: Any, b: Any) -> Any:
    """[c, s] such that [[c^*, s^*], [-s, c]] takes (a, b) to (r, 0)."""
    length = jnp.sqrt(jnp.abs(a) ** 2 + jnp.abs(b) ** 2)
    none = length == 0
    scale = jnp.where(none, 1, length).astype(a.dtype)
    return jnp.where(none, np.array([1, 0], a.dtype), jnp.stack([a, b]) / scale)


def _rotated(x: Any, i: Any, rotation: Any) -> Any:
    c, s = rotation
    above, below = x[i], x[i + 1]
    return x.at[i].set(c.conj() * above + s.conj() * below).at[i + 1].set(c * below - s * above)
