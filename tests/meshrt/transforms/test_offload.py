"""Checkpoint policies that save values in the host's memory; JAX judges values and what compilers are told."""

import re

import jax
import jax.ad_checkpoint
import jax.numpy as xnp
import numpy as np
import pytest

import meshrt
import meshrt.ad_checkpoint
import meshrt.numpy as jnp
from meshrt import config, errors
from meshrt.sharding import AxisType, NamedSharding, make_mesh
from meshrt.sharding import PartitionSpec as P

W = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
X = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
NAMES = {
    "names_which_can_be_saved": ["y"], "names_which_can_be_offloaded": ["z"],
    "offload_src": "device", "offload_dst": "pinned_host",
}  # fmt: skip
POLICIES = {
    "names": lambda lib: lib.checkpoint_policies.save_and_offload_only_these_names(**NAMES),
    "dots": lambda lib: lib.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host"),
}


def layer(lib, np_, x, w):
    y = lib.ad_checkpoint.checkpoint_name(np_.sin(x @ w), "y")
    z = lib.ad_checkpoint.checkpoint_name(np_.tanh(y) @ w, "z")
    return np_.sin(z) * y


def plain(lib, np_, policy):
    return lambda w, x: lib.checkpoint(lambda x, w: layer(lib, np_, x, w), policy=policy)(x, w).sum()


def inside_a_loop(lib, np_, policy):
    step = lib.checkpoint(lambda x, w: layer(lib, np_, x, w), policy=policy)
    return lambda w, x: lib.lax.scan(lambda c, _: (step(c, w), None), x, None, length=3)[0].sum()


def around_a_loop(lib, np_, policy):
    def loop(x, w):
        return lib.lax.scan(lambda c, _: (layer(lib, np_, c, w), None), x, None, length=3)[0]

    return lambda w, x: lib.checkpoint(loop, policy=policy)(x, w).sum()


def around_a_branch(lib, np_, policy):
    def branch(x, w):
        return lib.lax.cond(x[0, 0] > -1, lambda x: layer(lib, np_, x, w), lambda x: x, x)

    return lambda w, x: lib.checkpoint(branch, policy=policy)(x, w).sum()


def placements(lowered):
    return re.findall(r'_xla_buffer_placement = "(\w+)"', lowered.as_text())


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("program", [plain, inside_a_loop, around_a_loop, around_a_branch])
def test_what_is_offloaded(program, name):
    ours = meshrt.jit(meshrt.grad(program(meshrt, jnp, POLICIES[name](meshrt))))
    theirs = jax.jit(jax.grad(program(jax, xnp, POLICIES[name](jax))))
    want = np.asarray(theirs(W, X))
    np.testing.assert_allclose(np.asarray(ours(W, X)), want, rtol=1e-4, atol=1e-5)
    rows = NamedSharding(make_mesh((8,), ("x",), axis_types=(AxisType.Auto,)), P("x"))
    for partitioner in ("meshrt", "xla"):
        with config.override(partitioner=partitioner):
            got = ours(W, meshrt.device_put(X, rows))
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-4, atol=1e-5)
    got = placements(ours.trace(W, X).lower(lowering_platforms=("tpu",)))
    want = placements(theirs.trace(W, X).lower(lowering_platforms=("tpu",)))
    if program is around_a_branch:  # the branch that saves nothing fills the place of what the other one saves
        assert got.count("device") == want.count("device") and got.count("pinned_host") >= want.count("pinned_host")
    else:
        assert got == want


def test_derivatives_outside_of_jit_and_mapped():
    f = plain(meshrt, jnp, POLICIES["names"](meshrt))
    want = jax.vmap(jax.grad(plain(jax, xnp, None)), (None, 0))(W, np.stack([X, X + 1]))
    got = meshrt.vmap(meshrt.grad(f), (None, 0))(W, np.stack([X, X + 1]))
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-4, atol=1e-5)
    assert got.sharding.memory_kind == "device"


def test_policies_that_cannot_be():
    with pytest.raises(errors.ArgumentValueError, match="names should be exclusive"):
        meshrt.checkpoint_policies.save_and_offload_only_these_names(**{**NAMES, "names_which_can_be_saved": ["z"]})
    policy = meshrt.checkpoint_policies.offload_dot_with_no_batch_dims("pinned_host", "device")
    with pytest.raises(errors.MemorySpaceError, match=r"offloads from the memory 'pinned_host'.*dot_general.*f32"):
        meshrt.grad(plain(meshrt, jnp, policy))(W, X)
    both = meshrt.checkpoint_policies.save_from_both_policies(POLICIES["dots"](meshrt), lambda *_, **__: False)
    with pytest.raises(errors.ArgumentValueError, match="should be a boolean"):
        meshrt.grad(plain(meshrt, jnp, both))(W, X)


def test_a_policy_of_ones_own():
    def gradient(lib, np_):
        ad = lib.ad_checkpoint
        answers = {"sin": ad.Offloadable(src="device", dst="pinned_host"), "exp": ad.Saveable}
        policy = lambda primitive, *_, **__: answers.get(str(primitive), ad.Recompute)
        return lib.jit(lib.grad(lambda x: lib.checkpoint(lambda x: np_.sin(x) * np_.exp(x), policy=policy)(x).sum()))

    ours, theirs = gradient(meshrt, jnp), gradient(jax, xnp)
    np.testing.assert_allclose(np.asarray(ours(X)), np.asarray(theirs(X)), rtol=1e-5)
    texts = [f.trace(X).lower(lowering_platforms=("tpu",)) for f in (ours, theirs)]
    assert placements(texts[0]) == placements(texts[1]) and placements(texts[0])
