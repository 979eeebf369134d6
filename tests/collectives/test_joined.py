"""Slices of what is joined of several tensors join only what they have of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from .jax_side import Case, check

ROWS, COLUMNS = 48, 6


def grid():
    return (np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32),)


def differences(u):
    zero = jnp.zeros_like(u[:1])
    return jnp.diff(u, axis=0, append=zero) + jnp.diff(u, axis=0, prepend=zero)


def wrapped(u):
    """Seven slices of a grid joined with its own ends."""
    q = jnp.concatenate([u[-3:], u, u[:3]], 0)
    return sum((1 + k) * q[k : k + ROWS] for k in range(7))


def across(u):
    """A slice that crosses what is joined, cut again in both dimensions."""
    q = jnp.concatenate([u, 2 * u], 0)[30:80, 1:]
    return jnp.pad(q[4:44, :3] - q[8:48, 2:], ((5, 3), (0, 3)))


@pytest.mark.parametrize("f", [differences, wrapped, across])
@pytest.mark.parametrize("axes", [{"a": 8}, {"a": 3}])
def test_results(f, axes):
    check(Case(axes, lambda constrain: f, grid(), (P("a", None),), P("a", None)), exact=f is not wrapped)


def test_gradient():
    build = lambda constrain: jax.grad(lambda u: jnp.sum(jnp.tanh(differences(u)) * wrapped(u)))
    check(Case({"a": 4}, build, grid(), (P("a", None),), P("a", None)), rtol=1e-4)


def test_only_borders_are_sent():
    for f, lines in ((differences, 2), (wrapped, 6)):
        result, _ = check(Case({"a": 8}, lambda constrain, f=f: f, grid(), (P("a", None),), P("a", None)))
        assert sum(e.bytes for e in result.plan if e.kind == "collective_permute") <= lines * COLUMNS * 4 * 2


def test_whole_pieces_are_repeated_rather_than_padded():
    """Compilers of CPUs make an array of every padding; what is masked may as well be repeated."""
    args = tuple(np.random.default_rng(k).standard_normal((6, 64)).astype(np.float32) for k in range(2))
    build = lambda constrain: lambda u, w: jnp.concatenate([u, w], 1)
    result, _ = check(Case({"a": 8}, build, args, (P(None, "a"),) * 2, P(None, "a")), exact=True)
    assert "stablehlo.pad" not in result.as_text()
    assert any(e.kind == "collective_permute" for e in result.plan)


@pytest.mark.parametrize("axes", [{"a": 8}, {"a": 2, "b": 2}])
def test_a_roll_by_an_amount_known_at_run_time_exchanges_the_tensor_once_each_way(axes):
    """The joined tensor is twice as large as what it is joined of, which is one tensor and is moved once."""
    x = np.random.default_rng(0).standard_normal((256, 64)).astype(np.float32)
    rows = P(tuple(axes))
    roll = lambda x, by: jnp.roll(x, by, axis=0)
    case = Case(axes, lambda constrain: roll, (x, np.int32(77)), (rows, P()), rows)
    result, sent = check(case, exact=True)
    p = int(np.prod(list(axes.values())))
    assert sent == 2 * (p - 1) / p * x.nbytes / p, result.plan.as_text()
