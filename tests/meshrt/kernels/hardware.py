"""Kernels of the sizes that accelerators take, as functions of a library (JAX's names or ours), with arguments' types.

`tpu` programs use memories of a TPU's core; `anywhere` ones are those that GPUs compile as well.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

import meshrt

BF16, F32, I32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32), np.dtype(np.int32)


def kind(lib, shape, dtype=F32):
    return lib.jax.ShapeDtypeStruct(shape, dtype)


def add(lib):
    def kernel(x_ref, y_ref, o_ref):
        o_ref[...] = x_ref[...] + y_ref[...]

    block = lib.pl.BlockSpec((64, 256), lambda i: (i, 0))
    f = lib.pl.pallas_call(
        kernel, kind(lib, (256, 256)), grid=(4,), in_specs=[block, block], out_specs=block, name="add"
    )
    return f, [kind(lib, (256, 256))] * 2


def softmax_rows(lib):
    def kernel(x_ref, o_ref):
        x = x_ref[...].astype(np.float32)
        e = lib.np.exp(x - lib.np.max(x, axis=1, keepdims=True))
        o_ref[...] = (e / lib.np.sum(e, axis=1, keepdims=True)).astype(o_ref.dtype)

    block = lib.pl.BlockSpec((64, 256), lambda i: (i, 0))
    f = lib.pl.pallas_call(kernel, kind(lib, (256, 256), BF16), grid=(4,), in_specs=[block], out_specs=block)
    return f, [kind(lib, (256, 256), BF16)]


def looped_matmul(lib):
    """The accumulator is what a loop carries."""
    pl = lib.pl

    def kernel(x_ref, y_ref, o_ref):
        def turn(k, acc):
            part = pl.ds(k * 128, 128)
            return acc + lib.np.dot(x_ref[:, part], y_ref[part, :], preferred_element_type=np.float32)

        acc = lib.jax.lax.fori_loop(0, 4, turn, lib.np.zeros((128, 128), np.float32))
        o_ref[...] = acc.astype(o_ref.dtype)

    f = pl.pallas_call(
        kernel, kind(lib, (256, 256), BF16), grid=(2, 2),
        in_specs=[pl.BlockSpec((128, 512), lambda i, j: (i, 0)), pl.BlockSpec((512, 128), lambda i, j: (0, j))],
        out_specs=pl.BlockSpec((128, 128), lambda i, j: (i, j)),
    )  # fmt: skip
    return f, [kind(lib, (256, 512), BF16), kind(lib, (512, 256), BF16)]


def attention(lib):
    """Flash attention forward, causal: a loop whose length depends on the program's place."""
    pl, jnp, lax = lib.pl, lib.np, lib.jax.lax
    rows, length, depth = 128, 512, 64

    def kernel(q_ref, k_ref, v_ref, o_ref):
        i = pl.program_id(1)
        q = q_ref[...].astype(np.float32) * np.float32(depth**-0.5)

        def turn(j, carry):
            total, best, weight = carry
            part = pl.ds(j * rows, rows)
            s = jnp.dot(q.astype(BF16), k_ref[part, :].T, preferred_element_type=np.float32)
            at = i * rows + lax.broadcasted_iota(np.int32, (rows, rows), 0)
            seen = at >= j * rows + lax.broadcasted_iota(np.int32, (rows, rows), 1)
            s = jnp.where(seen, s, -1e30)
            now = jnp.maximum(best, jnp.max(s, axis=1, keepdims=True))
            p, shrink = jnp.exp(s - now), jnp.exp(best - now)
            values = jnp.dot(p.astype(BF16), v_ref[part, :], preferred_element_type=np.float32)
            return total * shrink + values, now, weight * shrink + jnp.sum(p, axis=1, keepdims=True)

        column = lambda value: jnp.full((rows, 1), value, np.float32)
        start = (jnp.zeros((rows, depth), np.float32), column(-1e30), column(0.0))
        total, _, weight = lax.fori_loop(0, i + 1, turn, start)
        o_ref[...] = (total / weight).astype(o_ref.dtype)

    block = pl.BlockSpec((None, rows, depth), lambda h, i: (h, i, 0))
    whole = pl.BlockSpec((None, length, depth), lambda h, i: (h, 0, 0))
    f = pl.pallas_call(
        kernel, kind(lib, (2, length, depth), BF16), grid=(2, length // rows), in_specs=[block, whole, whole],
        out_specs=block,
    )  # fmt: skip
    return f, [kind(lib, (2, length, depth), BF16)] * 3


def reductions(lib):
    jnp = lib.np

    def kernel(x_ref, total_ref, best_ref, place_ref):
        x = x_ref[...]
        total_ref[...] = jnp.sum(x, axis=0)
        best_ref[...] = jnp.max(x, axis=1)
        place_ref[...] = jnp.argmax(x, axis=1).astype(np.int32)

    f = lib.pl.pallas_call(kernel, [kind(lib, (128,)), kind(lib, (64,)), kind(lib, (64,), I32)])
    return f, [kind(lib, (64, 128))]


def branches(lib):
    """A choice of three, a while loop that ends by itself, integers and bools."""
    pl, jnp, lax = lib.pl, lib.np, lib.jax.lax

    def kernel(x_ref, o_ref):
        i = pl.program_id(0)
        x = x_ref[...]
        y = lax.switch(i, [lambda v: v + 1, lambda v: v * v, lambda v: -v], x)
        n, y = lax.while_loop(lambda c: c[0] * c[0] < 50, lambda c: (c[0] * 2, c[1] + 1), (i + 1, y))
        o_ref[...] = jnp.where((y > 3) & (x != 0), y, n) >> 1

    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    f = pl.pallas_call(kernel, kind(lib, (24, 128), I32), grid=(3,), in_specs=[block], out_specs=block)
    return f, [kind(lib, (24, 128), I32)]


# ----------------------------------------------------------------------------------------------------------------------
# What only a TPU's core has


def matmul(lib):
    """The accumulator lies in scratch memory, and the grid's last dimension adds to it."""
    pl = lib.pl

    def kernel(x_ref, y_ref, o_ref, acc_ref):
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc_ref[...] = lib.np.zeros_like(acc_ref)

        acc_ref[...] += lib.np.dot(x_ref[...], y_ref[...], preferred_element_type=np.float32)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            o_ref[...] = acc_ref[...].astype(o_ref.dtype)

    f = pl.pallas_call(
        kernel, kind(lib, (512, 512), BF16), grid=(4, 4, 4),
        in_specs=[pl.BlockSpec((128, 128), lambda i, j, k: (i, k)), pl.BlockSpec((128, 128), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((128, 128), lambda i, j, k: (i, j)),
        scratch_shapes=[lib.pltpu.VMEM((128, 128), np.float32)],
        compiler_params=lib.pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
    )  # fmt: skip
    return f, [kind(lib, (512, 512), BF16)] * 2


def gather_rows(lib):
    """Which block a step sees is told by scalars that are fetched before."""
    pl = lib.pl

    def kernel(rows_ref, x_ref, o_ref):
        scale = rows_ref[pl.program_id(0)].astype(np.float32)
        o_ref[...] = x_ref[...] * scale

    spec = lib.pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(4,), in_specs=[pl.BlockSpec((8, 128), lambda i, rows: (rows[i], 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, rows: (i, 0)),
    )  # fmt: skip
    f = pl.pallas_call(kernel, kind(lib, (32, 128)), grid_spec=spec)
    return f, [kind(lib, (4,), I32), kind(lib, (64, 128))]


def counters(lib):
    """Scalars in SMEM, scratch of a branch, strides, a bool operand, a result that begins as an operand."""
    pl, pltpu, jnp = lib.pl, lib.pltpu, lib.np

    def kernel(flags_ref, x_ref, o_ref, count_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            count_ref[0] = 0

        count_ref[0] += 1

        def halves(scratch):
            scratch[...] = x_ref[...] * 2
            o_ref[0:8, :] = scratch[::2, :]

        @pl.when(count_ref[0] > 1)
        def _():
            pl.run_scoped(halves, pltpu.VMEM((16, 128), np.float32))

        o_ref[8:16, :] = jnp.where(flags_ref[8:16, :], x_ref[8:16, :], count_ref[0].astype(np.float32))

    block = pl.BlockSpec((16, 128), lambda i: (i, 0))
    f = pl.pallas_call(
        kernel, kind(lib, (32, 128)), grid=(2,), in_specs=[block, block], out_specs=block,
        scratch_shapes=[pltpu.SMEM((1,), np.int32)], input_output_aliases={1: 0},
    )  # fmt: skip
    return f, [kind(lib, (32, 128), np.bool_), kind(lib, (32, 128))]


def dynamic_grid(lib):
    def f(n, x):
        def kernel(x_ref, o_ref):
            o_ref[...] = x_ref[...] * lib.pl.num_programs(0).astype(np.float32)

        block = lib.pl.BlockSpec((8, 128), lambda i: (i, 0))
        call = lib.pl.pallas_call(kernel, kind(lib, (32, 128)), grid=(n,), in_specs=[block], out_specs=block)
        return call(x)

    return f, [kind(lib, (), I32), kind(lib, (32, 128))]


def double_buffered(lib):
    """Two buffers: a block's copy is started before the one before it is waited for."""
    pl, pltpu = lib.pl, lib.pltpu
    steps, rows = 4, 64

    def kernel(x_ref, o_ref, buffers, out, arrived, left):
        def fetch(i):
            slot = i % 2
            return pltpu.make_async_copy(x_ref.at[pl.ds(i * rows, rows)], buffers.at[slot], arrived.at[slot])

        fetch(0).start()

        @pl.loop(0, steps)
        def _(i):
            @pl.when(i + 1 < steps)
            def _():
                fetch(i + 1).start()

            fetch(i).wait()
            out[...] = buffers[i % 2] + 1
            pltpu.sync_copy(out, o_ref.at[pl.ds(i * rows, rows)])

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    f = pl.pallas_call(
        kernel, kind(lib, (steps * rows, 256)), in_specs=[anywhere], out_specs=anywhere,
        scratch_shapes=[
            pltpu.VMEM((2, rows, 256), np.float32), pltpu.VMEM((rows, 256), np.float32),
            pltpu.SemaphoreType.DMA((2,)), pltpu.SemaphoreType.DMA,
        ],
    )  # fmt: skip
    return f, [kind(lib, (steps * rows, 256))]


def pipelined(lib):
    """A grid inside of the kernel, which copies its blocks."""
    pl, pltpu = lib.pl, lib.pltpu

    def kernel(x_ref, o_ref):
        def body(x_block, o_block):
            o_block[...] = x_block[...] * 2

        block = pl.BlockSpec((64, 256), lambda i: (i, 0))
        pltpu.emit_pipeline(body, grid=(4,), in_specs=[block], out_specs=[block])(x_ref, o_ref)

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    f = pl.pallas_call(kernel, kind(lib, (256, 256)), in_specs=[anywhere], out_specs=anywhere)
    return f, [kind(lib, (256, 256))]


def instructions(lib):
    """Rotations, other readings of bits, approximate inverses, stores under a mask, prints."""
    pl, pltpu = lib.pl, lib.pltpu

    def kernel(x_ref, o_ref, bits_ref):
        x = pltpu.roll(x_ref[...], 3, 1)
        bits_ref[...] = pltpu.bitcast(x, np.int32)
        pl.debug_print("step {}", pl.program_id(0))
        pltpu.store(o_ref, pl.reciprocal(x, approx=True), mask=x > 0)

    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    f = pl.pallas_call(
        kernel, [kind(lib, (16, 128)), kind(lib, (16, 128), I32)], grid=(2,), in_specs=[block],
        out_specs=[block, block],
    )  # fmt: skip
    return f, [kind(lib, (16, 128))]


def noisy(lib):
    """Normal noise, and elements dropped, from the core's generator of random numbers."""
    pl, pltpu, jnp = lib.pl, lib.pltpu, lib.np

    def kernel(x_ref, o_ref):
        pltpu.prng_seed(5, pl.program_id(0))
        noise = pltpu.stateful_normal(x_ref.shape, jnp.float32)
        kept = pltpu.stateful_uniform(x_ref.shape, jnp.float32) < 0.75
        o_ref[...] = jnp.where(kept, x_ref[...] + noise, 0.0)

    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    f = pl.pallas_call(kernel, kind(lib, (32, 128)), grid=(4,), in_specs=[block], out_specs=block)
    return f, [kind(lib, (32, 128))]


def ring_all_gather(lib, count=8, rows=64):
    """Each chip passes on the block that it got last, after a barrier with both neighbours: the body of a shard_map."""
    pl, pltpu, lax = lib.pl, lib.pltpu, lib.jax.lax

    def kernel(x_ref, o_ref, local, sent, received):
        me = lax.axis_index("x")
        right, left = lax.rem(me + 1, count), lax.rem(me + count - 1, count)
        barrier = pltpu.get_barrier_semaphore()
        for chip in (left, right):
            pl.semaphore_signal(barrier, 1, device_id=(chip,), device_id_type=pl.DeviceIdType.MESH)
        pl.semaphore_wait(barrier, 2)
        part = lambda i: o_ref.at[pl.ds(i * rows, rows)]
        pltpu.make_async_copy(x_ref, part(me), local).start()
        pltpu.make_async_copy(x_ref, part(me), local).wait()

        @pl.loop(0, count - 1)
        def _(i):
            mine = part(lax.rem(me + count - i, count))
            copy = pltpu.make_async_remote_copy(
                mine, mine, sent.at[i], received.at[i], device_id=(right,), device_id_type=pl.DeviceIdType.MESH
            )
            copy.start()
            copy.wait()

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    semaphores = pltpu.SemaphoreType.DMA((count - 1,))
    f = pl.pallas_call(
        kernel, kind(lib, (count * rows, 128)), in_specs=[anywhere], out_specs=anywhere,
        scratch_shapes=[pltpu.SemaphoreType.DMA, semaphores, semaphores],
        compiler_params=pltpu.CompilerParams(collective_id=1),
    )  # fmt: skip
    return f, [kind(lib, (rows, 128))]


def over_chips(f, block, count=8):
    """Our kernel's call on each of `count` chips, lowered for TPUs; every chip has a block of the argument."""
    mesh = meshrt.sharding.AbstractMesh((count,), ("x",))
    split = meshrt.NamedSharding(mesh, meshrt.P("x"))
    whole = meshrt.ShapeDtypeStruct((count * block.shape[0], *block.shape[1:]), block.dtype, sharding=split)
    run = meshrt.shard_map(f, mesh=mesh, in_specs=meshrt.P("x"), out_specs=meshrt.P(), check_vma=False)
    return meshrt.jit(run).trace(whole).lower(lowering_platforms=("tpu",))


ANYWHERE = [add, softmax_rows, looped_matmul, attention, reductions, branches]
ON_TPUS = [matmul, gather_rows, counters, dynamic_grid, double_buffered, pipelined, instructions, noisy]
