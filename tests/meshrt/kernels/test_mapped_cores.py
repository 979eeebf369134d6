"""Kernels on references and cores, mapped and differentiated, against the plain functions."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, lax
from meshrt.experimental import pallas as pl
from meshrt.experimental.pallas import tpu as pltpu

CORES = pltpu.create_tensorcore_mesh("core", num_cores=2)
ANYWHERE = pl.BlockSpec(memory_space=pl.ANY)
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def shifted(x, other=None):
    """Each core adds its number, and `other`, to its half of a squared row."""

    def body(refs):
        source, target = refs

        @pl.core_map(CORES)
        def _():
            half = pl.ds(2 * lax.axis_index("core"), 2)
            more = 0 if other is None else other[half]
            target[half] = source[half] ** 2 + lax.axis_index("core") + more

    return pl.run_state(body)((x, jnp.zeros_like(x)))[1]


def plain(x, more=0.0):
    return x**2 + np.array([0, 0, 1, 1], np.float32) + more


def test_vmap_of_run_state_over_cores():
    for wrap in (lambda f: f, meshrt.jit):
        np.testing.assert_array_equal(wrap(meshrt.vmap(shifted))(X), plain(X))
    by_columns = meshrt.vmap(shifted, in_axes=1, out_axes=1)
    np.testing.assert_array_equal(by_columns(X.T), plain(X).T)
    twice = meshrt.vmap(meshrt.vmap(shifted))
    np.testing.assert_array_equal(twice(np.stack([X, X])), plain(np.stack([X, X])))


def test_derivatives_of_mapped_cores():
    loss = lambda x: (shifted(x) ** 2).sum()
    want = 4 * X * plain(X)
    np.testing.assert_allclose(meshrt.vmap(meshrt.grad(loss))(X), want)
    np.testing.assert_allclose(meshrt.grad(lambda x: (meshrt.vmap(shifted)(x) ** 2).sum())(X), want)


def test_a_reference_that_members_share_is_read_and_not_written():
    more = meshrt.new_ref(jnp.arange(4.0))
    np.testing.assert_array_equal(meshrt.vmap(lambda x: shifted(x, more))(X), plain(X, np.arange(4.0)))

    @pl.run_state
    def writes(ref):
        @pl.core_map(CORES)
        def _():
            more[lax.axis_index("core")] = ref[0]

    with pytest.raises(errors.ArgumentValueError, match=r"writes to an array reference of type Ref\{float32\[4\]\}"):
        meshrt.vmap(writes)(X)


@pytest.mark.parametrize("buffers, lookahead", [(2, False), (2, True), (3, True)])
def test_reverse_mode_of_a_pipeline(buffers, lookahead):
    """Its grid is known, so it is a scan. Blocks stay the same for two steps."""

    def kernel(x, o):
        def body(block, out):
            out[...] = jnp.sin(block[...])

        mode = pl.Buffered(buffers, use_lookahead=lookahead)
        place = lambda i: (lax.div(i, 2), 0)
        specs = [pl.BlockSpec((8, 128), place, pipeline_mode=mode), pl.BlockSpec((8, 128), place)]
        pltpu.emit_pipeline(body, grid=(4,), in_specs=specs[:1], out_specs=specs[1:])(x, o)

    sine = pl.pallas_call(
        kernel, meshrt.ShapeDtypeStruct((16, 128), np.float32), in_specs=[ANYWHERE], out_specs=ANYWHERE
    )
    x = np.random.RandomState(0).randn(16, 128).astype(np.float32)
    np.testing.assert_allclose(meshrt.jit(meshrt.grad(lambda x: sine(x).sum()))(x), np.cos(x), rtol=1e-5, atol=1e-6)


def test_reverse_mode_of_a_pipeline_of_computed_length_names_its_line():
    def kernel(n, x, o):
        block = pl.BlockSpec((8, 128), lambda i: (i, 0))

        def body(a, b):
            b[...] = a[...]

        pltpu.emit_pipeline(body, grid=(n[0],), in_specs=[block], out_specs=[block])(x, o)

    specs = [pl.BlockSpec(memory_space=pltpu.SMEM), ANYWHERE]
    call = pl.pallas_call(kernel, meshrt.ShapeDtypeStruct((16, 128), np.float32), in_specs=specs, out_specs=ANYWHERE)
    x, n = jnp.ones((16, 128)), jnp.array([2])
    np.testing.assert_array_equal(meshrt.jvp(lambda x: call(n, x), (x,), (x,))[1], x)
    with pytest.raises(errors.DifferentiationError, match=r"cores\.py:\d+ .*sizes that are Python ints"):
        meshrt.grad(lambda x: call(n, x).sum())(x)


def test_a_kernel_with_references_and_results_is_mapped():
    @pl.kernel(out_type=meshrt.ShapeDtypeStruct((4,), np.float32), mesh=CORES)
    def kernel(x, total, o):
        half = pl.ds(2 * lax.axis_index("core"), 2)
        o[half] = 2 * x[half]
        total[lax.axis_index("core")] = x[half].sum()

    def member(x):
        total = meshrt.new_ref(jnp.zeros(2))
        return kernel(x, total), total[...]

    doubled, totals = meshrt.vmap(member)(X)
    np.testing.assert_array_equal(doubled, 2 * X)
    np.testing.assert_array_equal(totals, X.reshape(2, 2, 2).sum(-1))
