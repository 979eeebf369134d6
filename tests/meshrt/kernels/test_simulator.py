"""The simulator gives what the loop gives, and finds what chips do not tell, each with the kernel's line."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors
from meshrt.experimental import pallas as pl
from meshrt.experimental.pallas import tpu as pltpu
from meshrt.experimental.pallas import triton
from tests.meshrt.kernels import programs as p
from tests.meshrt.kernels.test_calls import same

ANYWHERE = pl.BlockSpec(memory_space=pl.ANY)
STRICT = pltpu.InterpretParams(detect_races=True, uninitialized_memory="raise")
SAME = [
    p.add_one, p.matmul, p.squeezed_rows, p.element_windows, p.prefetched_rows, p.dynamic_slices, p.pytrees,
    p.integers, p.copies, p.scoped, p.words, p.carried_references,
]  # fmt: skip


@pytest.mark.parametrize("mode", ["on_wait", "eager"])
@pytest.mark.parametrize("program", SAME, ids=lambda f: f.__name__)
def test_values_are_those_of_the_loop(program, mode):
    f, args = program(p.OURS)
    checks = pltpu.InterpretParams(detect_races=True, dma_execution_mode=mode)
    expected = f(*args)
    with pltpu.force_tpu_interpret_mode(checks):
        g, _ = program(p.OURS)
    same(meshrt.jit(g)(*args), expected)


def of(shape, dtype=np.float32):
    return meshrt.ShapeDtypeStruct(shape, dtype)


def run(kernel, *args, out=(4,), specs=None, interpret=STRICT, **options):
    specs = [ANYWHERE] * len(args) if specs is None else specs
    return pl.pallas_call(kernel, of(out), in_specs=specs, out_specs=ANYWHERE, interpret=interpret, **options)(*args)


X = np.arange(4, dtype=np.float32)
CORES = pltpu.create_tensorcore_mesh("core", num_cores=2)
DMA, REGULAR = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR


def racing_cores():
    @pl.kernel(out_type=of((4,)), mesh=CORES, interpret=STRICT)
    def kernel(x_ref, o_ref):
        o_ref[0] = x_ref[meshrt.lax.axis_index("core")]

    return kernel(X)


def read_while_copied():
    def kernel(x_ref, o_ref, buffer, sem):
        buffer[...] = jnp.zeros(4)
        copy = pltpu.async_copy(x_ref, buffer, sem)
        o_ref[...] = buffer[...]
        copy.wait()

    eager = pltpu.InterpretParams(detect_races=True, dma_execution_mode="eager")
    return run(kernel, X, scratch_shapes=[pltpu.VMEM((4,), np.float32), DMA], interpret=eager)


def beyond_the_end():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[pl.ds(pl.program_id(0) + 2, 4)]

    return run(kernel, X, grid=(1,))


def copied_beyond_the_end():
    def kernel(x_ref, o_ref):
        pltpu.sync_copy(x_ref.at[pl.ds(0, 2)], o_ref.at[pl.ds(pl.program_id(0) + 3, 2)])

    return run(kernel, X, grid=(1,))


def block_beyond_the_end():
    block = pl.BlockSpec((2,), lambda i: (i + 1,))
    return pl.pallas_call(_copy, of((4,)), grid=2, in_specs=[block], out_specs=block, interpret=STRICT)(X)


def _copy(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def never_signalled():
    return run(lambda x_ref, o_ref, sem: pl.semaphore_wait(sem), X, scratch_shapes=[REGULAR])


def unwritten():
    def kernel(x_ref, o_ref, buffer):
        buffer[:2] = x_ref[:2]
        o_ref[...] = buffer[...]

    return run(kernel, X, scratch_shapes=[pltpu.VMEM((4,), np.float32)])


def not_awaited():
    return run(lambda x_ref, o_ref, sem: pltpu.make_async_copy(x_ref, o_ref, sem).start(), X, scratch_shapes=[DMA])


def left_over():
    return run(lambda x_ref, o_ref, sem: pl.semaphore_signal(sem, 2), X, scratch_shapes=[REGULAR])


FOUND = [
    (racing_cores, errors.KernelRaceError, "race on outputs"),
    (read_while_copied, errors.KernelRaceError, "race on scratch 0"),
    (beyond_the_end, errors.KernelBoundsError, r"of shape \(4,\)"),
    (copied_beyond_the_end, errors.KernelBoundsError, "write"),
    (block_beyond_the_end, errors.KernelBoundsError, "index map gives"),
    (never_signalled, errors.KernelDeadlockError, "has reached 1"),
    (unwritten, errors.UninitializedReadError, "nobody has written"),
    (not_awaited, errors.MissingWaitError, "is not waited for"),
    (left_over, errors.MissingWaitError, "is at 2"),
]


@pytest.mark.parametrize("program, kind, text", FOUND, ids=[f.__name__ for f, *_ in FOUND])
def test_what_is_found(program, kind, text):
    with pytest.raises(kind, match=text) as caught:
        np.asarray(program())
    if program is not left_over:
        assert "test_simulator.py" in str(caught.value)


def test_cores_that_signal_do_not_race():
    @pl.kernel(out_type=of((4,)), mesh=CORES, interpret=STRICT, scratch_types=[REGULAR])
    def kernel(x_ref, o_ref, sem):
        core = meshrt.lax.axis_index("core")

        @pl.when(core == 0)
        def _():
            o_ref[...] = 2 * x_ref[...]
            pl.semaphore_signal(sem, 1, core_index=1)

        @pl.when(core == 1)
        def _():
            pl.semaphore_wait(sem, 1)
            o_ref[0] = o_ref[0] + 1

    np.testing.assert_array_equal(kernel(X), [1, 2, 4, 6])


def swapping(x, **options):
    """The halves of an array, doubled, each by the core that has the other one."""

    def kernel(x_ref, o_ref, mine, theirs, local, sent, arrived):
        core, half = meshrt.lax.axis_index("core"), x.shape[-1] // 2
        part, other = pl.ds(core * half, half), {"core": 1 - core}
        pltpu.sync_copy(x_ref.at[:, part], mine)
        barrier = pltpu.get_barrier_semaphore()
        pl.semaphore_signal(barrier, 1, device_id=other)
        pl.semaphore_wait(barrier, 1)
        pltpu.async_remote_copy(mine, theirs, sent, arrived, other).wait()
        mine[...] = 2 * theirs[...]
        pltpu.async_copy(mine, o_ref.at[:, part], local).wait()

    halves = [pltpu.VMEM((x.shape[0], x.shape[1] // 2), np.float32)] * 2
    return pl.kernel(
        kernel, out_type=of(x.shape), mesh=CORES, scratch_types=[*halves, DMA, DMA, DMA],
        compiler_params=pltpu.CompilerParams(collective_id=0), **options,
    )  # fmt: skip


def test_cores_name_each_other_by_the_axis_of_their_mesh():
    x = p.normal(2, 8)
    np.testing.assert_array_equal(swapping(x, interpret=STRICT)(x), 2 * np.roll(x, 4, 1))
    with pytest.raises(errors.UnsupportedError, match="several cores that run at the same time"):
        swapping(x)(x)


def test_a_ring_of_chips():
    mesh, spec = meshrt.make_mesh((4,), ("x",)), meshrt.P("x")

    def kernel(x_ref, o_ref, sent, arrived):
        me = meshrt.lax.axis_index("x")
        barrier = pltpu.get_barrier_semaphore()
        for neighbour in ((me + 1) % 4, (me + 3) % 4):
            pl.semaphore_signal(barrier, 1, device_id=(neighbour,))
        pl.semaphore_wait(barrier, 2)
        pltpu.sync_copy(x_ref, o_ref.at[me])

        @pl.loop(0, 3)
        def _(step):
            at = (me + 4 - step) % 4
            copy = pltpu.async_remote_copy(
                o_ref.at[at], o_ref.at[at], sent.at[step], arrived.at[step], {"x": (me + 1) % 4}
            )
            copy.wait()

    f = pl.pallas_call(
        kernel, of((4, 2)), in_specs=[ANYWHERE], out_specs=ANYWHERE, interpret=STRICT,
        scratch_shapes=[DMA((3,)), DMA((3,))], compiler_params=pltpu.CompilerParams(collective_id=0),
    )  # fmt: skip
    x = meshrt.device_put(np.arange(8, dtype=np.float32), meshrt.NamedSharding(mesh, spec))
    out = meshrt.jit(meshrt.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec))(x)
    np.testing.assert_array_equal(np.asarray(out).reshape(4, 8), np.tile(np.arange(8), (4, 1)))


def exchanged_in_scopes(chips, waited=2):
    """Each chip signals semaphores that the others come to later."""

    def kernel(x_ref, o_ref):
        me = meshrt.lax.axis_index("x")
        neighbours = [(me + 1) % chips, (me + chips - 1) % chips]
        barrier = pltpu.get_barrier_semaphore()
        for n in neighbours:
            pl.semaphore_signal(barrier, 1, device_id=(n,))
        pl.semaphore_wait(barrier, 2)

        def second(scratch, sem):
            for n in neighbours:
                pl.semaphore_signal(sem, 1, device_id=(n,))
            pl.semaphore_wait(sem, waited)
            scratch[...] = x_ref[...] + 1
            o_ref[...] = scratch[...]

        pl.run_scoped(second, pltpu.VMEM((2,), np.float32), pltpu.SemaphoreType.REGULAR)

    whole = pl.BlockSpec(memory_space=pltpu.VMEM)
    f = pl.pallas_call(
        kernel, of((2,)), in_specs=[whole], out_specs=whole, interpret=STRICT,
        compiler_params=pltpu.CompilerParams(collective_id=0),
    )  # fmt: skip
    mesh, spec = meshrt.make_mesh((chips,), ("x",)), meshrt.P("x")
    x = meshrt.device_put(np.zeros(2 * chips, np.float32), meshrt.NamedSharding(mesh, spec))
    return meshrt.jit(meshrt.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec))(x)


def test_semaphores_of_scopes_are_there_before_the_chip_comes_to_them():
    np.testing.assert_array_equal(exchanged_in_scopes(4), np.ones(8))
    with pytest.raises(errors.MissingWaitError, match="is at 1 where it ends"):
        np.asarray(exchanged_in_scopes(4, waited=1))


def test_cores_share_parallel_steps():
    seen = []
    checks = pltpu.InterpretParams(
        num_cores_or_threads=2, grid_point_recorder=lambda point, core: seen.append((point, int(core)))
    )
    block = pl.BlockSpec((1,), lambda i: (i,))
    f = pl.pallas_call(
        _copy, of((4,)), grid=4, in_specs=[block], out_specs=block, interpret=checks,
        compiler_params=pltpu.CompilerParams(dimension_semantics=["parallel"]),
    )  # fmt: skip
    np.testing.assert_array_equal(f(X), X)
    assert sorted((int(point[0]), core) for point, core in seen) == [(0, 0), (1, 0), (2, 1), (3, 1)]


def test_parallel_steps_are_shuffled_as_by_jax():
    def program(lib):
        def kernel(s_ref, o_ref):
            s_ref[0] = s_ref[0] + 1
            o_ref[...] = lib.np.full_like(o_ref, s_ref[0])

        return lib.pl.pallas_call(
            kernel, lib.jax.ShapeDtypeStruct((32, 512), np.float32), grid=(4, 4),
            in_specs=[lib.pl.BlockSpec(memory_space=lib.pltpu.SMEM)],
            out_specs=lib.pl.BlockSpec((8, 128), lambda i, j: (i, j)),
            interpret=lib.pltpu.InterpretParams(random_seed=12345),
            compiler_params=lib.pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        )(np.zeros(1, np.int32))  # fmt: skip

    np.testing.assert_array_equal(program(p.OURS), program(p.JAX))


def test_aliases_are_one_memory():
    def kernel(x_ref, o_ref, step):
        first = (pl.program_id(0) == 0) & (pl.program_id(1) == 0)
        step[0] = jnp.where(first, 0, step[0] + 1)
        o_ref[...] = x_ref[...] + step[0]

    f = pl.pallas_call(
        kernel, of((4, 4)), grid=(4, 4), in_specs=[pl.BlockSpec((1, 1), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((1, 1), lambda i, j: (j, i)), scratch_shapes=[pltpu.SMEM((1,), np.int32)],
        input_output_aliases={0: 0}, interpret=pltpu.InterpretParams(),
    )  # fmt: skip
    expected = np.zeros((4, 4), np.float32)
    for step, (i, j) in enumerate(np.ndindex(4, 4)):
        expected[j, i] = expected[i, j] + step
    np.testing.assert_array_equal(f(np.zeros((4, 4), np.float32)), expected)


def test_values_that_are_no_choice():
    for wrong in ({"num_cores_or_threads": 0}, {"vector_clock_size": 0}, {"dma_execution_mode": "later"}):
        with pytest.raises(errors.ArgumentValueError):
            pltpu.InterpretParams(**wrong)


def test_floats_are_infinite_where_they_are_skipped():
    def kernel(x_ref, o_ref, n_ref):
        o_ref[...] = x_ref[...] @ x_ref[...]
        n_ref[0] = jnp.where(x_ref[0, 0] < 1e30, 1, 2)

    out = [of((4, 4)), of((1,), np.int32)]
    skipping = pltpu.InterpretParams(skip_floating_point_ops=True)
    product, count = pl.pallas_call(kernel, out, interpret=skipping)(np.ones((4, 4), np.float32))
    assert np.isinf(product).all() and count[0] == 2


def test_cores_have_no_large_memory_to_give():
    def kernel(x_ref, o_ref):
        def through(far):
            pltpu.sync_copy(x_ref, far)
            pltpu.sync_copy(far, o_ref)

        pl.run_scoped(through, pltpu.HBM((4,), np.float32))

    with pytest.raises(errors.CallbackError, match=r"Cannot allocate HBM in `run_scoped`.*test_simulator.py:\d+"):
        run(kernel, X)
    allowing = pltpu.InterpretParams(allow_hbm_allocation_in_run_scoped=True)
    np.testing.assert_array_equal(run(kernel, X, interpret=allowing), X)


OPERATIONS = {
    "sort": jnp.sort, "argmax": lambda x: jnp.argmax(x, 1), "cumsum": lambda x: jnp.cumsum(x, 0),
    "softmax": meshrt.nn.softmax, "einsum": lambda x: jnp.einsum("ij,kj->ik", x, x), "pad": lambda x: jnp.pad(x, 1),
    "remainder": lambda x: (10 * x).astype(np.int32) % 4, "quotient": lambda x: (10 * x).astype(np.int32) // 3,
    "narrow": lambda x: x.astype(jnp.bfloat16) * 2, "bits": lambda x: meshrt.lax.bitcast_convert_type(x, np.int32),
    "triangle": lambda x: jnp.tril(x @ x.T), "erf": meshrt.lax.erf, "reverse": lambda x: x[::-1],
    "loop": lambda x: meshrt.lax.while_loop(lambda c: c.max() < 100, lambda c: 2 * c, jnp.abs(x) + 1),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_numpy_computes_is_what_programs_compute(name):
    x = p.normal(4, 6)
    expected = OPERATIONS[name](x)

    def kernel(x_ref, o_ref):
        o_ref[...] = OPERATIONS[name](x_ref[...])

    found = pl.pallas_call(kernel, of(expected.shape, expected.dtype), interpret=pltpu.InterpretParams())(x)
    assert found.dtype == expected.dtype
    tolerance = 1e-2 if expected.dtype == jnp.bfloat16 else 1e-5
    np.testing.assert_allclose(found.astype(np.float32), expected.astype(np.float32), tolerance, 1e-6)


def test_negative_indices_count_from_the_end():
    def kernel(x_ref, o_ref):
        o_ref[-1] = x_ref[-2, ..., -1]
        o_ref[0] = x_ref[0, -3]

    f = pl.pallas_call(kernel, meshrt.ShapeDtypeStruct((2,), np.float32), interpret=pltpu.InterpretParams())
    np.testing.assert_array_equal(f(np.arange(6, dtype=np.float32).reshape(2, 3)), [0, 2])


def test_masks_of_views_as_other_elements():
    def kernel(x_ref, o_ref, kept_ref):
        narrow, wide = kept_ref.bitcast(np.int16), kept_ref.at[4:6].bitcast(np.float32)
        o_ref[...] = x_ref[...]
        triton.store(o_ref.bitcast(np.int16), jnp.zeros((16, 4), np.int16), mask=jnp.arange(16)[:, None] < 4)
        triton.store(narrow.at[2:6], jnp.zeros((4, 4), np.int16), mask=jnp.arange(4)[:, None] < 2)
        triton.store(wide, jnp.zeros((2, 4), np.float32), mask=jnp.arange(4) < 2)
        kept_ref[0] = triton.load(wide.at[1], mask=jnp.arange(4) < 2, other=7.0).astype(np.int32)

    x = np.arange(1, 33, dtype=np.float32).reshape(8, 4)
    out = [of(x.shape), of(x.shape, np.int32)]
    for strict in (True, STRICT):
        found, kept = pl.pallas_call(kernel, out, interpret=strict)(x)
        np.testing.assert_array_equal(found, np.where(np.arange(8)[:, None] < 2, 0, x))
        np.testing.assert_array_equal(kept[0], [0, 0, 7, 7])
        np.testing.assert_array_equal(
            np.argwhere(kept == 0),
            [[0, 0], [0, 1], *[[1, i] for i in range(4)], *[[r, i] for r in (4, 5) for i in range(2)]],
        )
