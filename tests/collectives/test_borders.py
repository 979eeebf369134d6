"""Stencils with borders: a pad and the slices of it move elements once, by the few lines that devices lack."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from .jax_side import Case, check

ROWS, COLUMNS = 48, 40
GRIDS = [({"a": 8}, P("a", None)), ({"a": 2, "b": 4}, P("a", "b")), ({"a": 5}, P(None, "a"))]


def grid():
    return (np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32),)


def five(u):
    q = jnp.pad(u, 1)
    return q[:-2, 1:-1] + q[2:, 1:-1] + q[1:-1, :-2] + q[1:-1, 2:] - 4 * u


def nine(u):
    q = jnp.pad(u, 1, constant_values=2.0)
    near = itertools.product(range(3), repeat=2)
    return sum((1 + i * 3 + j) * q[i : i + ROWS, j : j + COLUMNS] for i, j in near)


def wide(u):
    """Windows of other sizes than the grid, beyond it and within."""
    q = jnp.pad(u, ((3, 1), (0, 2)), constant_values=-1.0)
    inner = q[5:30, 7:][:20, :30]
    return jnp.pad(inner, ((28, 0), (0, 10))) + q[:ROWS, :COLUMNS] + jnp.pad(q[-4:], ((0, 44), (0, 0)))[:, 2:]


@pytest.mark.parametrize("f", [five, nine, wide])
@pytest.mark.parametrize("axes, spec", GRIDS)
def test_results(f, axes, spec):
    check(Case(axes, lambda constrain: f, grid(), (spec,), spec))


def test_gradient():
    def build(constrain):
        return jax.grad(lambda u: jnp.sum(jnp.tanh(five(u)) * nine(u)))

    check(Case({"a": 2, "b": 4}, build, grid(), (P("a", "b"),), P("a", "b")), rtol=1e-4)


def test_only_borders_are_sent():
    """Two rows and two columns of a piece, not the rows by which pieces of the padded grid lie elsewhere."""
    result, _ = check(Case({"a": 2, "b": 4}, lambda constrain: five, grid(), (P("a", "b"),), P("a", "b")))
    assert sum(e.bytes for e in result.plan) <= 4 * (2 * COLUMNS // 4 + 2 * ROWS // 2)
    result, _ = check(Case({"a": 8}, lambda constrain: nine, grid(), (P("a", None),), P("a", None)))
    assert sum(e.bytes for e in result.plan) <= 4 * 2 * COLUMNS
