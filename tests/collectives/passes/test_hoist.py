"""Collectives that every iteration would repeat leave their loops; equal ones become one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from ..jax_side import Case, check

W, X = [
    np.random.default_rng(i).standard_normal(s).astype("float32") * 0.1 for i, s in enumerate([(64, 16), (128, 16)])
]
PLACES = (P("x", None), P("x", None))


def repeat(times, body, start):
    """A loop that JAX leaves as it is, invariants included."""
    return jax.lax.while_loop(lambda s: s[0] < times, lambda s: (s[0] + 1, body(s[1])), (0, start))[1]


def two_loops(constrain):
    def f(w, x):
        body = lambda h: jnp.tanh(h @ constrain(w.T @ w, None, None))
        return repeat(3, body, repeat(4, body, x) + 1)

    return f


@pytest.mark.smoke
def test_an_invariant_sum_is_taken_once_for_two_loops():
    case = Case({"x": 8}, two_loops, (W, X), PLACES, P("x", None))
    inside, _ = check(case, hoist=False, reorder=False, above_xla=True)  # else the weights are gathered once
    assert inside.plan.counts == {"all_reduce": 7}
    result, _ = check(case, reorder=False)
    (entry,) = result.plan
    assert (entry.kind, entry.times) == ("all_reduce", 1)
    assert "moved out of a loop" in entry.cause and entry.where == inside.plan.entries[0].where
    assert inside.plan.bytes == 7 * result.plan.bytes


def test_what_the_loop_changes_stays_and_inner_loops_give_to_outer_ones():
    def build(constrain):
        def f(w, x):
            def outer(h):
                inner = lambda g: jnp.tanh(g @ constrain(w.T @ w, None, None)) + jnp.sum(g)
                return repeat(2, inner, h)

            return repeat(3, outer, x)

        return f

    result, _ = check(Case({"x": 8}, build, (W, X), PLACES, P("x", None)), rtol=1e-4)
    assert sorted(e.times for e in result.plan) == [1, 6]


def busy(constrain):
    """A loop in which something larger than the gathered value lives, while that does not."""

    def f(w, x):
        def body(h):
            wide = jnp.sin(h @ jnp.full((16, 256), 1 / 16, h.dtype))
            narrow = wide @ jnp.full((256, 16), 1 / 256, h.dtype)
            return jnp.tanh(narrow @ constrain(w.T @ w, None, None))

        return repeat(4, body, x)

    return f


def test_only_within_the_bound_of_memory():
    case = Case({"x": 8}, busy, (W, X), PLACES, P("x", None))
    inside, _ = check(case, memory_growth=0.0, above_xla=True)
    assert [e.times for e in inside.plan] == [4]
    result, _ = check(case)
    assert [e.times for e in result.plan] == [1]


def test_what_does_not_raise_the_peak_needs_no_bound():
    case = Case({"x": 8}, two_loops, (W, X), PLACES, P("x", None))
    result, _ = check(case, memory_growth=0.0)
    assert result.plan.counts == {"all_reduce": 1}


def test_branches_keep_theirs():
    def build(constrain):
        def f(w, x):
            def body(h):
                return jax.lax.cond(h[0, 0] > 1e3, lambda h: h @ constrain(w.T @ w, None, None), lambda h: h, h)

            return repeat(4, body, x)

        return f

    result, _ = check(Case({"x": 8}, build, (W, X), PLACES, P("x", None)), above_xla=True)
    assert {e.times for e in result.plan} == {4}
