"""Modules with GSPMD's annotations are partitioned: values as on one device, bytes no more than XLA's of the same."""

import contextlib
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import collectives
import propagation

from .jax_side import Case, check, jax_mesh

AXES = {"data": 4, "model": 2}
A = np.random.default_rng(0).normal(size=(16, 32)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(32, 64)).astype(np.float32)


@contextlib.contextmanager
def gspmd():
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        yield
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)


class Foreign(Case):
    """A case that JAX lowers, and XLA partitions, with GSPMD."""

    def __init__(self, *args):
        with gspmd():
            super().__init__(*args)

    def xla(self):
        with gspmd():
            return super().xla()


def dense(constrain):
    return lambda x, w: jnp.tanh(constrain(x @ w, P.UNCONSTRAINED, "model")).sum(0)


def looped(constrain):
    def step(carry, _):
        h = constrain(jnp.tanh(carry @ W), "data", "model")
        return h @ W.T / 8, h.sum()

    return lambda x, w: lax.scan(step, x, None, length=3)


def branched(constrain):
    return lambda x, w: lax.cond(x.sum() > 0, lambda y: (y @ w).max(1), lambda y: (y @ w).min(1), x)


def mapped(manual):
    """By hand over the axes `manual`; the partitioner has the others."""

    def build(constrain):
        def body(x, w):
            y = lax.psum(x @ w, "model") if "model" in manual else x @ w
            return y, lax.all_gather(x, "data", tiled=True).sum(0)

        def f(x, w):
            specs = (P("data", "model"), P("model")) if "model" in manual else (P("data"), P())
            outs = (P("data"), P("model" if "model" in manual else None))
            return jax.shard_map(
                body, mesh=jax_mesh(AXES), in_specs=specs, out_specs=outs, axis_names=set(manual), check_vma=False
            )(jnp.sin(x), w)

        return f

    return build


PARTLY = mapped(("data",))


@pytest.mark.parametrize(
    "build", [dense, looped, branched, mapped(("data", "model")), PARTLY],
    ids=["dense", "loop", "cond", "manual", "partly manual"],
)  # fmt: skip
def test_values_and_bytes_beside_xla(build):
    case = Foreign(AXES, build, (A, W), (P("data", "model"), P(None, "model")))
    assert "sdy." not in case.text and "mhlo.sharding" in case.text
    is_partly = build is PARTLY  # XLA itself ends the process on these annotations
    result, sent = check(case, above_xla=is_partly)
    assert result.mesh.axes == (("axis_0", 4), ("axis_1", 2)) and sent > 0


@pytest.mark.parametrize("seed", range(3))
def test_random_layouts_beside_xla(seed):
    rng = random.Random(seed)
    specs = [P("data", "model"), P("model", "data"), P(("data", "model")), P(None, ("model", "data")), P("model"), P()]
    outs = rng.choice(specs)
    case = Foreign(AXES, lambda _: lambda x, w: jnp.tanh(x) @ w, (A, W), (rng.choice(specs), rng.choice(specs)), outs)
    check(case)


def test_values_on_one_device():
    """A callback is placed by `maximal`, one device calls and its result goes to the others."""
    like = jax.ShapeDtypeStruct(A.shape, A.dtype)
    double = lambda x: jax.pure_callback(lambda v: np.asarray(v) * 2, like, x) + 1
    case = Foreign(AXES, lambda _: lambda x: double(jnp.tanh(x)), (A,), (P("data"),))
    assert "{maximal device=0}" in case.text
    plan = collectives.partition(propagation.run(case.text)).plan
    assert set(plan.counts) == {"all_gather", "all_reduce"}
