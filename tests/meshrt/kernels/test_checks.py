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
from meshrt.extend.core.primitives import add_jaxvals_p

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


DMA, REGULAR = pltpu.SemaphoreType.DMA, pltpu.SemaphoreType.REGULAR
WAITS = (errors.MissingWaitError, errors.KernelDeadlockError)


def _two_copies(x, o, sem):
    first, _ = (pltpu.async_copy(x, o, sem) for _ in range(2))
    first.wait()


def _no_copy(x, o, sem):
    pltpu.make_async_copy(x, o, sem).wait()


def _two_signals(x, o, sem):
    pl.semaphore_signal(sem, 2)
    pl.semaphore_wait(sem, 1)


def _no_signal(x, o, sem):
    pl.semaphore_wait(sem)


def _another_signalled(x, o, sem):
    pl.semaphore_signal(sem.at[1])
    pl.semaphore_wait(sem.at[0])


def _counted_by_a_loop(x, o, sem):
    meshrt.lax.fori_loop(0, 4, lambda i, c: (pl.semaphore_signal(sem, i), c)[1], 0)
    pl.semaphore_wait(sem, 7)


def _counted_by_a_cotangent(x, o, sem):
    pl.semaphore_signal(sem, add_jaxvals_p.bind(np.int32(1), add_jaxvals_p.bind(np.int32(2), pl.program_id(0))))
    pl.semaphore_wait(sem, 4)


def _never_the_last_step(x, o, sem):
    pl.when(pl.program_id(0) == 0)(lambda: pltpu.make_async_copy(x, o, sem).start())
    pl.when(pl.program_id(0) == 3)(pltpu.make_async_copy(x, o, sem).wait)


def _scoped_and_left(x, o, sem):
    def use(own):
        pltpu.async_copy(x, o, own).wait()
        pltpu.async_copy(x, o, own)

    pl.run_scoped(use, DMA)


@pytest.mark.parametrize(
    ("kernel", "scratch", "wanted"),
    [
        (_two_copies, DMA, "leaves the semaphore scratch_shapes.0. at 16 when it ends"),
        (_no_copy, DMA, "waits until .* has counted 16, and what is started .* makes 0"),
        (_two_signals, REGULAR, "at 1 when it ends"),
        (_no_signal, REGULAR, "semaphore_wait waits until .* counted 1, .* makes 0"),
        (_another_signalled, REGULAR((2,)), "waits for ever"),
        (_counted_by_a_loop, REGULAR, "counted 7, .* makes 6, the last at"),
        (_counted_by_a_cotangent, REGULAR, "counted 4, .* makes 3"),
        (_never_the_last_step, DMA, "at 16 when it ends"),
        (_scoped_and_left, DMA, "at 16 where it ends"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_what_semaphores_count(kernel, scratch, wanted):
    """By the compiler's side and by the simulator, which runs the kernel: both refuse it, with its line."""
    options = {"grid": 2, "in_specs": [ANYWHERE], "out_specs": ANYWHERE, "scratch_shapes": [scratch]}
    once = {**options, "grid": 3} if kernel is _never_the_last_step else {**options, "grid": 1}
    x = np.zeros(4, np.float32)
    with pytest.raises(WAITS, match=rf"(?s)(?=.*test_checks\.py:\d+).*{wanted}"):
        check_kernel(params_of(kernel, x, **once))
    with pytest.raises(WAITS, match=r"test_checks\.py:\d+"):
        pl.pallas_call(kernel, of(4), **once, interpret=pltpu.InterpretParams(dma_execution_mode="on_wait"))(x)


def _over_steps(x, o, sem):
    pl.when(pl.program_id(0) == 0)(lambda: pltpu.make_async_copy(x, o, sem).start())
    pl.when(pl.program_id(0) == 2)(pltpu.make_async_copy(x, o, sem).wait)


def _as_far_as_read(x, o, sem):
    @pl.when(pl.semaphore_read(sem) > 0)
    def _():
        pl.semaphore_wait(sem)


def _chosen_by_values(x, o, sem):
    @pl.when(x[0] > 0)
    def _():
        pltpu.async_copy(x, o, sem).wait()


def _others_count_too(x, o, sem):
    pl.semaphore_signal(sem, 1, core_index=1)
    pl.semaphore_wait(sem, 1)


def _pipelines(x, o, sem):
    def body(a, b):
        b[...] = a[...]

    spec = pl.BlockSpec((1,), lambda i: (i,))
    pltpu.emit_pipeline(body, grid=(4,), in_specs=[spec], out_specs=[spec])(x, o)


def _seen_as_another_type(x, o, sem):
    pltpu.make_async_copy(x, o, sem).start()
    narrow = lambda ref: ref.reshape(1, 4).bitcast(meshrt.numpy.int16)
    pltpu.make_async_copy(narrow(x), narrow(o), sem).wait()


def _longer_than_is_looked_at(x, o, sem):
    def inner(i, c):
        pl.semaphore_signal(sem)
        pl.semaphore_wait(sem)
        return c

    turns = lambda i, n: meshrt.lax.fori_loop(0, 100, inner, n) + 1
    n = meshrt.lax.fori_loop(0, 300, turns, 0)
    pl.semaphore_signal(sem, n)
    pl.semaphore_wait(sem, 300)


@pytest.mark.parametrize(
    ("kernel", "scratch"),
    [
        (_over_steps, DMA), (_as_far_as_read, REGULAR), (_chosen_by_values, DMA), (_others_count_too, REGULAR),
        (_pipelines, DMA), (_seen_as_another_type, DMA), (_longer_than_is_looked_at, REGULAR),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)  # fmt: skip
def test_what_is_balanced_or_not_known_is_left_alone(kernel, scratch):
    options = {"grid": 3, "in_specs": [ANYWHERE], "out_specs": ANYWHERE, "scratch_shapes": [scratch]}
    check_kernel(params_of(kernel, np.zeros(4, np.float32), **options))


def _barrier(x, o):
    pl.semaphore_signal(pltpu.get_barrier_semaphore())


def _copies(x, o):
    pltpu.sync_copy(x, o)


@pytest.mark.parametrize("kernel", [_barrier, _copies, lambda x, o: _pipelines(x, o, None)])
def test_gpus_have_no_semaphores(kernel):
    call = meshrt.jit(pl.pallas_call(kernel, of(4), in_specs=[ANYWHERE], out_specs=ANYWHERE))
    with pytest.raises(errors.UnsupportedError, match=r"'\w+' of .* at .*test_checks\.py:\d+ .*no semaphores"):
        call.trace(np.zeros(4, np.float32)).lower(lowering_platforms=("cuda",))
