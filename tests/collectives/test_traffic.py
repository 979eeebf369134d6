"""What a plan says is sent is what the compiled program sends, device by device: loops, branches, permutes of a few."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import collectives
import propagation
from meshrt.runtime.hlo import traffic
from tests.collectives.harness import Compiled

SPEC = P("data", "model")


@functools.cache
def mesh_of():
    return jax.sharding.Mesh(np.array(jax.devices()[:8]).reshape(4, 2), list(SPEC))


def per_device(body):
    return jax.shard_map(body, mesh=mesh_of(), in_specs=SPEC, out_specs=SPEC, check_vma=False)


def branches(x):
    return lax.cond(x[0, 0] > 0, lambda x: x @ jnp.tanh(x), lambda x: x * x.sum(), x)


def branches_in_a_loop(x):
    return lax.fori_loop(0, 3, lambda _, c: branches(jnp.sin(c)), x)


def pairs_of_a_few(x):
    some = per_device(lambda x: lax.ppermute(x, "data", [(0, 1), (1, 2)]))
    others = per_device(lambda x: lax.ppermute(x, "data", [(3, 0)]))
    return some(x) + others(jnp.sin(x)) + x.sum()


def carried_through_a_call(x):
    """The gradient's loop hands its residual on, through a call, in each iteration: reversing it is no work of each."""

    def body(c, _):
        return jnp.sin(c) + jnp.flip(x, 0) * 0.1, None

    return jax.grad(lambda x: jnp.sum(lax.scan(body, x, None, length=3)[0] ** 2))(x)


def kept_by_a_call(x):
    @jax.jit
    def both(c, w):
        return jnp.tanh(c @ w), w

    return lax.fori_loop(0, 4, lambda _, carry: both(*carry), (x, jnp.cos(x)))[0]


@pytest.mark.parametrize(
    "program", [branches, branches_in_a_loop, pairs_of_a_few, carried_through_a_call, kept_by_a_call]
)
def test_the_plan_counts_what_the_compiled_program_sends(program):
    x = jax.ShapeDtypeStruct((16, 16), jnp.float32, sharding=NamedSharding(mesh_of(), SPEC))
    found = collectives.partition(propagation.run(jax.jit(program).lower(x).as_text()))
    assert found.plan.bytes > 0
    text = Compiled(found.as_text(), 8).hlo()
    assert traffic(text, 8).bytes == pytest.approx((found.plan.least_bytes, found.plan.bytes))
