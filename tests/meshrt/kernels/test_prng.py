"""Random numbers drawn inside of kernels, by the loop and in the simulator."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

import meshrt
import meshrt.numpy as jnp
from meshrt import lax
from meshrt.experimental import pallas as pl
from meshrt.experimental.kernels.mosaic.values import _erf_inv
from meshrt.experimental.pallas import tpu as pltpu

BLOCK = pl.BlockSpec((8, 128), lambda i: (i, 0))


def drawn(kernel, steps=8, dtype=np.float32, interpret=False):
    out = meshrt.ShapeDtypeStruct((8 * steps, 128), dtype)
    return np.asarray(pl.pallas_call(kernel, out, grid=steps, out_specs=BLOCK, interpret=interpret)())


@pytest.mark.parametrize("interpret", [False, pltpu.InterpretParams()], ids=["loop", "simulator"])
def test_draws_are_of_their_distributions_and_follow_from_the_seeds(interpret):
    def of(seed, sampler):
        def kernel(out_ref):
            pl.when(pl.program_id(0) == 0)(lambda: pltpu.prng_seed(seed, 11))
            out_ref[...] = sampler((8, 128))

        return drawn(kernel, interpret=interpret)

    normal = of(1, pltpu.stateful_normal)
    assert stats.kstest(normal.ravel(), "norm").pvalue > 1e-3
    assert np.unique(normal).size > 8000  # the state goes on from step to step
    assert np.array_equal(normal, of(1, pltpu.stateful_normal)) and not np.array_equal(
        normal, of(2, pltpu.stateful_normal)
    )
    between = of(3, lambda shape: pltpu.stateful_uniform(shape, minval=-2.0, maxval=3.0))
    assert between.min() >= -2 and between.max() < 3
    assert stats.kstest(between.ravel(), "uniform", (-2, 5)).pvalue > 1e-3
    chosen = of(4, lambda shape: pltpu.stateful_bernoulli(0.25, shape).astype(np.float32))
    assert 0.22 < chosen.mean() < 0.28
    narrow = of(5, lambda shape: pltpu.stateful_bits(shape, np.uint8).astype(np.float32))
    assert narrow.min() == 0 and narrow.max() == 255


def test_the_state_passes_through_loops_branches_and_batches():
    def kernel(x_ref, out_ref):
        pltpu.prng_seed(x_ref[0, 0])
        draw = lambda: pltpu.prng_random_bits((8, 128))
        total = lax.fori_loop(0, 2, lambda i, t: t + lax.cond(i == 0, draw, lambda: draw() & 255), draw())
        out_ref[...] = total

    def plain(x_ref, out_ref):
        pltpu.prng_seed(x_ref[0, 0])
        draw = lambda: pltpu.prng_random_bits((8, 128))
        out_ref[...] = draw() + draw() + (draw() & 255)

    call = lambda k: pl.pallas_call(k, meshrt.ShapeDtypeStruct((8, 128), np.int32))
    xs = jnp.arange(3, dtype=np.int32)[:, None, None] + jnp.zeros((3, 8, 128), np.int32)
    found = meshrt.vmap(call(kernel))(xs)
    for x, got in zip(xs, found):
        np.testing.assert_array_equal(got, call(plain)(x))
    assert not np.array_equal(found[0], found[1])


def test_what_is_refused():
    for use in (lambda: pltpu.prng_seed(1), lambda: pltpu.stateful_normal((8, 128))):
        with pytest.raises(ValueError, match="outside of a kernel"):
            use()
    for wrong, why in (
        (lambda: pltpu.prng_seed(), "at least one seed"),
        (lambda: pltpu.prng_seed(1.5), "int32 scalars"),
    ):
        with pytest.raises(ValueError, match=why):
            drawn(lambda out_ref: wrong())
    three = pl.pallas_call(lambda o: pltpu.prng_seed(1, 2, 3), meshrt.ShapeDtypeStruct((8, 128), np.float32))
    with pytest.raises(NotImplementedError, match="one or two seeds"):
        meshrt.jit(three).trace().lower(lowering_platforms=("tpu",))


def test_the_inverse_error_function_of_kernels():
    x = np.linspace(-1, 1, 4001).astype(np.float32)
    np.testing.assert_allclose(_erf_inv(x), special.erfinv(x.astype(np.float64)), rtol=1e-6)
