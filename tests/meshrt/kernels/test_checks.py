"""What compilers would not notice is refused before they see it; what a kernel costs."""

from __future__ import annotations

import jax
import jax.experimental.pallas as jax_pl
import numpy as np
import pytest

import meshrt
from meshrt import errors
from meshrt.experimental import pallas as pl
from meshrt.experimental.kernels.checks import check_kernel
from meshrt.experimental.pallas import tpu as pltpu

ANYWHERE = pl.BlockSpec(memory_space=pl.ANY)


def of(*shape):
    return meshrt.ShapeDtypeStruct(shape, np.float32)


def params_of(kernel, *args, **options):
    closed = meshrt.make_jaxpr(pl.pallas_call(kernel, of(4), **options))(*args)
    return next(e.params for e in closed.jaxpr.eqns if e.primitive.name == "pallas_call")


def _copy(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def test_blocks_beyond_the_end_name_operand_step_and_element():
    spec = pl.BlockSpec((2,), lambda i: (i + 1,))
    params = params_of(
        _copy, np.zeros(4, np.float32), grid=2, in_specs=[spec], out_specs=pl.BlockSpec((2,), lambda i: i)
    )
    with pytest.raises(errors.KernelBoundsError, match=r"args\[0\].*step \(1,\).*element 4.*size 4"):
        check_kernel(params)


def test_blocks_that_reach_over_the_end_are_fine():
    spec = pl.BlockSpec((3,), lambda i: (i,))
    check_kernel(params_of(_copy, np.zeros(4, np.float32), grid=2, in_specs=[spec], out_specs=spec))


@pytest.mark.parametrize("awaited", [True, False])
def test_a_wait_for_each_copy(awaited):
    def kernel(x_ref, o_ref, sem):
        @pl.loop(0, 2)
        def _(i):
            copy = pltpu.async_copy(x_ref, o_ref, sem.at[i])
            if awaited:
                pl.when(i >= 0)(copy.wait)

    params = params_of(
        kernel, np.zeros(4, np.float32), in_specs=[ANYWHERE], out_specs=ANYWHERE,
        scratch_shapes=[pltpu.SemaphoreType.DMA((2,))],
    )  # fmt: skip
    if awaited:
        check_kernel(params)
    else:
        with pytest.raises(errors.MissingWaitError, match=r"test_checks\.py"):
            check_kernel(params)


def test_costs_are_those_of_jax():
    x = np.ones((4, 8), np.float32)
    for f in (lambda x, y: x @ y.T, lambda x, y: x + y, lambda x, y: x**5 * y):
        ours, theirs = pl.estimate_cost(f, x, x), jax_pl.estimate_cost(f, x, x)
        assert (ours.flops, ours.transcendentals, ours.bytes_accessed) == (
            theirs.flops, theirs.transcendentals, theirs.bytes_accessed,
        )  # fmt: skip
    assert (
        pl.estimate_cost(meshrt.numpy.exp, x).transcendentals == jax_pl.estimate_cost(jax.numpy.exp, x).transcendentals
    )
