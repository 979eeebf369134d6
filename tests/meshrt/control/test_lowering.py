"""The StableHLO of control flow: loops whose trip count can be read, captured constants, dead code gone."""

import re

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import lax

XS = np.ones((12, 3), np.float32)


def text(f, *args):
    return meshrt.jit(f).trace(*args).lower().as_text()


@pytest.mark.parametrize(("unroll", "trips", "bodies"), [(1, 12, 1), (4, 3, 4), (5, 2, 7), (12, 0, 12), (True, 0, 12)])
def test_trip_count(unroll, trips, bodies):
    t = text(lambda xs: lax.scan(lambda c, x: (jnp.sin(c), x), xs[0], xs, unroll=unroll), XS)
    assert t.count("stablehlo.sine") == bodies
    assert t.count("stablehlo.while") == (1 if trips else 0)
    if trips:
        bound = rf"cond \{{\s+%\w+ = stablehlo.constant dense<{trips}> : tensor<i32>\s+%\w+ = stablehlo.compare\s+LT, "
        assert re.search(bound, t)


def test_constants_are_captured_not_carried():
    t = text(lambda w, xs: lax.scan(lambda c, x: (c @ w + x, None), xs[0], xs), np.ones((3, 3), np.float32), XS)
    (head,) = [line for line in t.splitlines() if "stablehlo.while" in line]
    assert head.count("tensor<3x3xf32>") == 0 and head.count("tensor<12x3xf32>") == 0


def test_unused_results_are_pruned():
    def f(xs):
        def body(c, x):
            h, k, n = c
            return (jnp.sin(h) + x, jnp.cos(k), n + 1), (jnp.exp(h), jnp.tanh(x))

        (h, _, _), (_, t) = lax.scan(body, (xs[0], xs[0], 0), xs)
        return h, t

    t = text(f, XS)
    assert "cosine" not in t and "exponential" not in t and "sine" in t and "tanh" in t
    body = lambda c: (c[0] + 1, jnp.sin(c[1]), jnp.cos(c[2]))
    t = text(lambda x: lax.while_loop(lambda c: c[0] < 3, body, (0, x, x))[1], XS)
    assert "cosine" not in t and "sine" in t
    t = text(lambda p, x: lax.cond(p, lambda x: (jnp.sin(x), jnp.cos(x)), lambda x: (x, x), x)[0], True, XS)
    assert "cosine" not in t and "sine" in t


def test_backward_of_unneeded_arguments_is_pruned():
    """The gradient in x alone computes no gradient of w."""
    w = np.ones((4, 3, 3), np.float32)

    def loss(w, x):
        return jnp.sum(lax.scan(lambda h, w: (jnp.sin(h @ w), None), x, w)[0])

    both = text(meshrt.grad(loss, (0, 1)), w, XS[0])
    one = text(lambda w, x: meshrt.grad(loss, (0, 1))(w, x)[1], w, XS[0])
    assert both.count("dot_general") == 3 and one.count("dot_general") == 2


def test_checkpoint_recomputes_behind_a_barrier():
    w = np.ones((4, 3, 3), np.float32)

    def loss(w, x, prevent_cse):
        layer = meshrt.checkpoint(lambda h, w: (jnp.sin(h @ w), None), prevent_cse=prevent_cse)
        return jnp.sum(lax.scan(layer, x, w)[0])

    for prevent_cse in (True, False):
        t = text(meshrt.grad(lambda w, x: loss(w, x, prevent_cse)), w, XS[0])
        assert t.count("stablehlo.optimization_barrier") == int(prevent_cse)
        assert t.count("dot_general") == 4  # forward, again, two in the backward pass
