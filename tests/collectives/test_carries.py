"""Sums carried by loops: taken after the loop if nothing reads them inside, also behind a call."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from .jax_side import Case, check


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 4


WRAPPERS = {"plain": lambda f: f, "jit": jax.jit, "checkpoint": jax.checkpoint, "nested": lambda f: jax.jit(jax.jit(f))}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("gradient", [False, True])
def test_a_residual_stream_is_read_in_every_round(wrapper, gradient):
    wrap = WRAPPERS[wrapper]

    def build(constrain):
        layer = wrap(lambda h, u, v: h + jnp.tanh(h @ u) @ v)

        def run(x, us, vs):
            return jax.lax.scan(lambda h, uv: (layer(h, *uv), None), x, (us, vs))[0]

        return jax.grad(lambda *args: jnp.sum(run(*args) ** 2), (0, 1, 2)) if gradient else run

    args = (normal(6, 16), normal(3, 16, 32, seed=1), normal(3, 32, 16, seed=2))
    check(Case({"x": 8}, build, args, (P(), P(None, None, "x"), P(None, "x", None))), above_xla=True)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_sum_that_nothing_reads_inside(wrapper):
    def build(constrain):
        add = WRAPPERS[wrapper](lambda total, a, b: total + a @ b)
        return lambda a, b: jax.lax.scan(lambda t, ab: (add(t, *ab), None), jnp.zeros((6, 5)), (a, b))[0]

    args = (normal(3, 6, 16), normal(3, 16, 5, seed=1))
    check(Case({"x": 8}, build, args, (P(None, None, "x"), P(None, "x"))))
