"""Windows at positions that a program knows, written as gathers and scatters, move by intervals."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from .jax_side import Case, check

ROWS, COLUMNS = 48, 24
HALO = 4 * COLUMNS * 4  # bytes: a few rows


def arguments():
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal((ROWS, COLUMNS)).astype(np.float32) for _ in range(2))


def inner(u, w):
    return u.at[1:-1, 1:-1].add(w[2:, 2:] - w[:-2, :-2])


def strided(u, w):
    return u.at[::2, 1::2].set(w[1::2, ::2]).at[1::2].max(w[::2])


def backwards(u, w):
    return u.at[::-3].set(w[::3]).at[:, ::-1].mul(w)


def edges(u, w):
    return u.at[0, 1:-1].set(w[3, 1:-1]).at[1:-1, -1].set(w[2:, 0]).at[-1].set(0.0)


def transposed(u, w):
    i, j = jnp.arange(1, 24, 2), jnp.arange(0, 24, 2)
    return u.at[i[None, :], j[:, None]].min(w[:12, ::2])


def taken(u, w):
    i = jnp.arange(0, ROWS, 2)
    return jnp.zeros_like(u).at[::2].set(u[i + 1] + w[i[::-1]]), jnp.take(u, jnp.arange(COLUMNS)[::-1], axis=1)


def counted_in_numpy(u, w):
    return u.at[np.arange(2, ROWS, 3)[:, None], np.array([[1, 3, 5, 7]])].add(w[: ROWS // 3, :4] + w[:16, 4:8])


UPDATES = [inner, strided, backwards, edges, transposed, taken, counted_in_numpy]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("f", UPDATES)
@pytest.mark.parametrize(
    "axes, spec", [({"a": 8}, P("a", None)), ({"a": 4, "b": 2}, P("a", "b")), ({"a": 3}, P(None, "a"))]
)
def test_nothing_is_gathered(f, axes, spec):
    case = Case(
        axes,
        lambda constrain: f,
        arguments(),
        (spec, spec),
        jax.tree.map(lambda _: spec, jax.eval_shape(f, *arguments())),
    )
    result, _ = check(case, exact=True)
    assert not result.findings


@pytest.mark.parametrize("axes", [{"a": 8}, {"a": 4}])
def test_only_what_is_lacking_is_sent(axes):
    case = Case(axes, lambda constrain: inner, arguments(), (P("a", None), P("a", None)), P("a", None))
    result, _ = check(case, exact=True)
    assert sum(e.bytes * (e.times or 1) for e in result.plan) <= HALO


@pytest.mark.parametrize("f", [inner, strided, edges, taken])
def test_gradients(f):
    def gradient(constrain):
        loss = lambda u, w: sum(jnp.sum(jnp.sin(r)) for r in jax.tree.leaves(f(u, w)))
        return jax.grad(loss, (0, 1))

    spec = P("a", "b")
    result, _ = check(Case({"a": 4, "b": 2}, gradient, arguments(), (spec, spec), (spec, spec)))
    assert not result.findings


def test_positions_outside_or_met_twice_are_scatters():
    def f(u, w):
        outside = u.at[jnp.arange(1, ROWS, 1) + 4].add(w[1:], mode="drop")
        return outside.at[jnp.full((4,), 5)].add(w[:4])

    check(Case({"a": 8}, lambda constrain: f, arguments(), (P("a", None),) * 2, P("a", None)))


@pytest.mark.parametrize("spec", [("b", "a"), ("b", None), (("a", "b"), None)])
def test_rows_written_backwards_at_counted_positions(spec):
    """What is reversed on the way stands for an operand of the scatter, and is none of them."""

    def build(constrain):
        def f(u, w):
            u = constrain(u, *spec)
            return u.at[20 - jnp.arange(9)].set(u[:9])

        return f

    check(Case({"a": 4, "b": 2}, build, arguments(), (P("b", None), P())), exact=True)
