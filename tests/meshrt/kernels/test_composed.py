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


RACES = pltpu.InterpretParams(detect_races=True)


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


def test_blocks_of_computed_sizes():
    """Groups of rows, whose starts and sizes are scalars in memory, in a pipeline and in a grid."""
    starts, sizes = np.array([0, 3, 4, 9], np.int32), np.array([3, 1, 5, 2], np.int32)
    x = normal(11, 4)
    expected = np.concatenate([x[a : a + n] * 2 + i for i, (a, n) in enumerate(zip(starts, sizes))])

    def block(starts, sizes):
        return pl.BlockSpec((pl.BoundedSlice(6), 4), lambda i, *_: (pl.ds(starts[i], sizes[i]), 0))

    def body(x, o):
        o[...] = x[...] * 2 + pl.program_id(0)

    def kernel(starts, sizes, x, o):
        spec = block(starts, sizes)
        pltpu.emit_pipeline(body, grid=(4,), in_specs=[spec], out_specs=[spec])(x, o)

    scalars = pl.BlockSpec(memory_space=pltpu.SMEM)
    for mode in (True, RACES):
        f = pl.pallas_call(
            kernel, of((11, 4)), in_specs=[scalars, scalars, ANYWHERE], out_specs=ANYWHERE, interpret=mode
        )
        np.testing.assert_allclose(f(starts, sizes, x), expected, rtol=1e-6)
    spec = pl.BlockSpec((pl.BoundedSlice(6), 4), lambda i, a, n: (pl.ds(a[i], n[i]), 0))
    grid = pltpu.PrefetchScalarGridSpec(2, grid=(4,), in_specs=[spec], out_specs=spec)
    f = pl.pallas_call(lambda a, n, x, o: body(x, o), of((11, 4)), grid_spec=grid)
    np.testing.assert_allclose(f(starts, sizes, x), expected, rtol=1e-6)


@pytest.mark.parametrize("width", [3, 4])
@pytest.mark.parametrize("padding", [(2, 1), (4, 3), (0, 2)])
def test_blocks_reach_over_both_ends(width, padding):
    """What is copied is the part of a block that lies in the operand; blocks that reach over it send that alone."""
    before, after = padding
    steps = (5 + before + after) // width
    spec = pl.BlockSpec((pl.Element(width, padding), 4), lambda i: (i * width, 0))
    starts = [i * width - before for i in range(steps)]
    x = normal(5, 4)
    sums = np.array([x[max(0, n) : max(0, n + width)].sum() for n in starts], np.float32)
    covered = min(5, steps * width - before)
    expected = np.broadcast_to(((np.arange(5) + before) // width)[:covered, None], (covered, 4))

    def body(x, total, o):
        i = pl.program_id(0)
        rows = i * width - before + meshrt.lax.broadcasted_iota(np.int32, (width, 4), 0)
        total[i] = jnp.where((rows >= 0) & (rows < 5), x[...], 0).sum()
        o[...] = jnp.full((width, 4), i, np.float32)

    def kernel(x, total, o):
        pipeline = pltpu.emit_pipeline(lambda x, o: body(x, total, o), grid=(steps,), in_specs=[spec], out_specs=[spec])
        pipeline(x, o)

    for mode in (True, RACES):
        f = pl.pallas_call(
            kernel, [of((steps,)), of((5, 4))], in_specs=[ANYWHERE],
            out_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), ANYWHERE], interpret=mode,
        )  # fmt: skip
        found, written = f(x)
        np.testing.assert_allclose(found, sums, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(written[:covered], expected)
    with pytest.raises(meshrt.errors.UnsupportedError, match="reach over the ends of an operand in vmem"):
        pltpu.BufferedRef.input(spec, np.float32, source_memory_space=pltpu.VMEM)


@pytest.mark.parametrize("buffers", [1, 3])
def test_blocks_are_fetched_as_early_as_buffers_are_free(buffers):
    """Steps that stay with a block leave time to fetch several: the index map is asked about no step beyond the end."""
    blocks = np.array([0, 0, 0, 2, 1, 3, 3], np.int32)

    def kernel(blocks, x, o):
        def body(x, o):
            o[...] = x[...] + pl.program_id(0)

        mode = pl.Buffered(buffers, use_lookahead=True)
        spec = pl.BlockSpec((2,), lambda i: (blocks[i],), pipeline_mode=mode)
        pltpu.emit_pipeline(
            body, grid=(7,), in_specs=[spec], out_specs=[pl.BlockSpec((2,), lambda i: (i,), pipeline_mode=mode)]
        )(x, o)

    scalars = pl.BlockSpec(memory_space=pltpu.SMEM)
    f = pl.pallas_call(kernel, of((14,)), in_specs=[scalars, ANYWHERE], out_specs=ANYWHERE, interpret=RACES)
    x = normal(8)
    np.testing.assert_allclose(f(blocks, x), x.reshape(4, 2)[blocks].ravel() + np.repeat(np.arange(7), 2), rtol=1e-6)


@pytest.mark.parametrize("mode", ["loop", "simulator"])
def test_two_pipelines_in_the_same_buffers(mode):
    spec = pl.BlockSpec((2,), lambda i, j: (i,))
    buffers = [pltpu.BufferedRef.input(spec, np.float32, 3), pltpu.BufferedRef.input_output(spec, np.float32)]

    def kernel(x, _, o, allocations):
        def body(x, o):
            o[...] += x[...]

        add, wanted = pltpu.emit_pipeline_with_allocations(body, grid=(3, 2), in_specs=[spec], out_specs=[spec])
        assert [b.buffer_type for b in wanted(x, o)] == [pltpu.BufferType.INPUT, pltpu.BufferType.OUTPUT]
        add(x, o, allocations=allocations)
        add(x, o, allocations=allocations)

    f = pl.pallas_call(
        kernel, of((6,)), in_specs=[ANYWHERE] * 2, out_specs=ANYWHERE, scratch_shapes=[buffers],
        input_output_aliases={1: 0}, interpret=True if mode == "loop" else RACES,
    )  # fmt: skip
    x, y = normal(6), normal(6, seed=1)
    np.testing.assert_allclose(f(x, y), y + 4 * x, rtol=1e-5)


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
    with pytest.raises(meshrt.errors.ArgumentValueError, match="block_shape"):
        pltpu.BufferedRef.input(pl.BlockSpec(), np.float32)
    with pytest.raises(meshrt.errors.ArgumentTypeError, match="only its start may be traced"):
        meshrt.jit(lambda x, n: x[pl.ds(0, n)])(np.arange(4), 2)
    with pytest.raises(meshrt.errors.ArgumentTypeError, match="TensorCoreMesh"):
        pl.core_map("cores")
    with pytest.raises(meshrt.errors.ArgumentValueError, match="program_id"):
        pl.program_id(0)
