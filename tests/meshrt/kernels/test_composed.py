"""Kernels composed of parts: cores by `core_map` and `kernel`, pipelines inside of kernels."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt.experimental import pallas as pl
from meshrt.experimental.pallas import tpu as pltpu
from tests.meshrt.kernels.programs import normal

CORES = pltpu.create_tensorcore_mesh("core", num_cores=2)
ANYWHERE = pl.BlockSpec(memory_space=pl.ANY)


def of(shape, dtype=np.float32):
    return meshrt.ShapeDtypeStruct(shape, dtype)


def test_core_map_runs_on_each_core():
    def double(refs):
        x, y = refs

        @pl.core_map(CORES)
        def _():
            @pl.when(meshrt.lax.axis_index("core") >= 0)
            def _():
                half = pl.ds(4 * meshrt.lax.axis_index("core"), 4)
                y[half] = 2 * x[half]

    x = np.arange(8, dtype=np.float32)
    _, out = meshrt.jit(pl.run_state(double))((x, np.zeros_like(x)))
    np.testing.assert_array_equal(out, 2 * x)


def test_kernel_takes_arrays_and_references():
    @pl.kernel(out_type=of((8,)), mesh=CORES, scratch_types=[pltpu.VMEM((4,), np.float32)])
    def kernel(x_ref, total_ref, o_ref, scratch):
        core = meshrt.lax.axis_index("core")
        pltpu.sync_copy(x_ref.at[pl.ds(4 * core, 4)], scratch)
        total_ref[core] += scratch[...].sum()
        pltpu.sync_copy(scratch, o_ref.at[pl.ds(4 * core, 4)])

    x, total = np.arange(8, dtype=np.float32), meshrt.new_ref(jnp.zeros(2))
    np.testing.assert_array_equal(meshrt.jit(kernel)(x, total), x)
    np.testing.assert_array_equal(total[...], [6, 22])


def pipelined(body, grid, in_specs, out_specs, out, **options):
    def kernel(*refs):
        pltpu.emit_pipeline(body, grid=grid, in_specs=in_specs, out_specs=out_specs, **options)(*refs)

    return pl.pallas_call(kernel, out, in_specs=[ANYWHERE] * len(in_specs), out_specs=ANYWHERE)


@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_a_pipelined_product(buffers):
    def body(x, y, o):
        @pl.when(pl.program_id(2) == 0)
        def _():
            o[...] = jnp.zeros_like(o)

        o[...] += x[...] @ y[...]

    mode = pl.Buffered(buffers)
    f = pipelined(
        body, (2, 2, 3), [pl.BlockSpec((4, 2), lambda i, j, k: (i, k), pipeline_mode=mode),
                          pl.BlockSpec((2, 4), lambda i, j, k: (k, j))],
        [pl.BlockSpec((4, 4), lambda i, j, k: (i, j), pipeline_mode=mode)], of((8, 8)),
    )  # fmt: skip
    x, y = normal(8, 6), normal(6, 8, seed=1)
    np.testing.assert_allclose(f(x, y), x @ y, rtol=1e-5, atol=1e-6)


def test_the_last_blocks_of_a_pipeline_may_be_smaller():
    spec = pl.BlockSpec((None, 4), lambda i, j: (i, j))

    def body(x, o):
        o[...] = 2 * x[...]

    f = pipelined(body, (2, 3), [spec], [spec], of((2, 10)))
    x = normal(2, 10)
    np.testing.assert_array_equal(f(x), 2 * x)


def test_cores_share_a_pipeline():
    spec = pl.BlockSpec((2,), lambda i: (i,))

    @pl.kernel(out_type=of((8,)), mesh=CORES)
    def kernel(x_ref, o_ref):
        def body(x, o):
            o[...] = x[...] + meshrt.lax.axis_index("core")

        pltpu.emit_pipeline(
            body, grid=(4,), in_specs=[spec], out_specs=[spec], core_axis_name="core", dimension_semantics=["parallel"]
        )(x_ref, o_ref)

    np.testing.assert_array_equal(kernel(np.zeros(8, np.float32)), [0, 0, 0, 0, 1, 1, 1, 1])


def test_refusals_say_what_to_do():
    with pytest.raises(meshrt.errors.ArgumentValueError, match="strictly positive"):
        pltpu.emit_pipeline(lambda: None, grid=(0,))
    with pytest.raises(meshrt.errors.ArgumentValueError, match="1 references for 0 in_specs"):
        pl.pallas_call(lambda o: pltpu.emit_pipeline(lambda: None, grid=(1,))(o), of((1,)))()
    with pytest.raises(meshrt.errors.ArgumentTypeError, match="TensorCoreMesh"):
        pl.core_map("cores")
    with pytest.raises(meshrt.errors.ArgumentValueError, match="program_id"):
        pl.program_id(0)
