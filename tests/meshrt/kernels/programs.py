"""Kernels as functions of a library: JAX's names or ours, so that one text is run with both."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.experimental.pallas as jax_pl
import jax.experimental.pallas.tpu as jax_pltpu
import jax.experimental.pallas.triton as jax_triton
import jax.numpy as jax_np
import numpy as np

import meshrt
import meshrt.experimental.pallas as our_pl
import meshrt.experimental.pallas.tpu as our_pltpu
import meshrt.experimental.pallas.triton as our_triton
import meshrt.numpy as our_np

JAX = SimpleNamespace(jax=jax, np=jax_np, pl=jax_pl, pltpu=jax_pltpu, triton=jax_triton)
OURS = SimpleNamespace(jax=meshrt, np=our_np, pl=our_pl, pltpu=our_pltpu, triton=our_triton)


def normal(*shape, dtype=np.float32, seed=0):
    return np.random.RandomState(seed).randn(*shape).astype(dtype)


def call(lib, kernel, shape, dtype=np.float32, **options):
    out = lib.jax.ShapeDtypeStruct(shape, dtype)
    return lib.pl.pallas_call(kernel, out, interpret=True, **options)


def add_one(lib):
    def kernel(x_ref, y_ref):
        y_ref[...] = x_ref[...] + 1

    block = lib.pl.BlockSpec((2,), lambda i: (i,))
    return call(lib, kernel, (5,), grid=3, in_specs=[block], out_specs=block), [np.arange(5.0, dtype=np.float32)]


def matmul(lib):
    pl = lib.pl

    def kernel(x_ref, y_ref, o_ref, acc):
        @pl.when(pl.program_id(2) == 0)
        def _():
            acc[...] = lib.np.zeros_like(acc)

        acc[...] += x_ref[...] @ y_ref[...]

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _():
            o_ref[...] = acc[...]

    f = call(
        lib, kernel, (8, 12), grid=(2, 3, 2),
        in_specs=[pl.BlockSpec((4, 3), lambda i, j, k: (i, k)), pl.BlockSpec((3, 4), lambda i, j, k: (k, j))],
        out_specs=pl.BlockSpec((4, 4), lambda i, j, k: (i, j)), scratch_shapes=[lib.pltpu.VMEM((4, 4), np.float32)],
    )  # fmt: skip
    return f, [normal(8, 6), normal(6, 12, seed=1)]


def squeezed_rows(lib):
    def kernel(x_ref, o_ref):
        o_ref[...] = lib.np.cumsum(x_ref[...])

    spec = lib.pl.BlockSpec((None, 4), lambda i: (i, 0))
    return call(lib, kernel, (3, 4), grid=(3,), in_specs=[spec], out_specs=spec), [normal(3, 4)]


def element_windows(lib):
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[:4] + x_ref[1:5]

    pl = lib.pl
    spec = pl.BlockSpec((pl.Element(5, (0, 1)),), lambda i: (4 * i,))
    out = pl.BlockSpec((4,), lambda i: (i,))
    return call(lib, kernel, (8,), grid=(2,), in_specs=[spec], out_specs=out), [normal(8)]


def prefetched_rows(lib):
    def kernel(rows_ref, x_ref, o_ref):
        o_ref[...] = x_ref[...] * rows_ref[lib.pl.program_id(0)]

    pl = lib.pl
    spec = lib.pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(4,), in_specs=[pl.BlockSpec((1, 2), lambda i, rows: (rows[i], 0))],
        out_specs=pl.BlockSpec((1, 2), lambda i, rows: (i, 0)),
    )  # fmt: skip
    return call(lib, kernel, (4, 2), grid_spec=spec), [np.array([3, 1, 1, 0], np.int32), normal(4, 2)]


def aliased(lib):
    def kernel(x_ref, y_ref, o_ref):
        o_ref[...] += x_ref[...]

    block = lib.pl.BlockSpec((2,), lambda i: (i,))
    f = call(lib, kernel, (4,), grid=2, in_specs=[block, block], out_specs=block, input_output_aliases={1: 0})
    return f, [normal(4), normal(4, seed=1)]


def dynamic_grid(lib):
    def kernel(x_ref, o_ref):
        o_ref[...] = o_ref[...] + x_ref[...] * lib.pl.num_programs(0)

    def f(n, x):
        return call(lib, kernel, (4,), grid=(n,), input_output_aliases={0: 0})(x)

    return f, [np.int32(3), normal(4)]


def dynamic_slices(lib):
    pl = lib.pl

    def kernel(x_ref, o_ref):
        def body(i, total):
            return total + x_ref[pl.ds(i, 2), :].sum(0)

        o_ref[0, :] = lib.jax.lax.fori_loop(0, 3, body, lib.np.zeros(3))
        o_ref[pl.ds(1, 2), :] = x_ref[::2][:2]

    return call(lib, kernel, (3, 3)), [normal(4, 3)]


def pytrees(lib):
    def kernel(refs, o_ref):
        o_ref["sum"][...] = refs["a"][...] + refs["b"][...]
        o_ref["size"][0] = refs["a"].shape[0]

    kind = lib.jax.ShapeDtypeStruct
    out = {"sum": kind((3,), np.float32), "size": kind((1,), np.int32)}
    return lib.pl.pallas_call(kernel, out, interpret=True), [{"a": normal(3), "b": normal(3, seed=1)}]


def integers(lib):
    def kernel(x_ref, o_ref, seen):
        o_ref[...] = x_ref[...].astype(np.int8) + 1
        seen[...] = (x_ref[...] > 2).astype(np.int32)

    block = lib.pl.BlockSpec((3,), lambda i: (i,))
    kind = lib.jax.ShapeDtypeStruct
    f = lib.pl.pallas_call(
        kernel, [kind((5,), np.int8), kind((5,), np.int32)], grid=2, in_specs=[block], out_specs=[block, block],
        interpret=True,
    )  # fmt: skip
    return f, [np.arange(5, dtype=np.int32)]


def revisited(lib):
    pl = lib.pl

    def kernel(x_ref, o_ref):
        first = pl.program_id(1) == 0
        o_ref[...] = lib.np.where(first, 0.0, o_ref[...]) + x_ref[...].sum(1)

    f = call(
        lib, kernel, (4,), grid=(2, 3), in_specs=[pl.BlockSpec((2, 2), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((2,), lambda i, j: (i,)),
    )  # fmt: skip
    return f, [normal(4, 6)]


def copies(lib):
    pl, pltpu = lib.pl, lib.pltpu

    def kernel(x_ref, o_ref, buffer, sem, counter):
        part = pl.ds(2 * pl.program_id(0), 2)
        copy = pltpu.async_copy(x_ref.at[part], buffer, sem.at[0])
        copy.wait()
        buffer[...] = buffer[...] * 2
        pltpu.sync_copy(buffer, o_ref.at[part])
        pl.semaphore_signal(counter, 3)
        pl.semaphore_wait(counter, 2)
        o_ref[2 * pl.program_id(0)] = o_ref[2 * pl.program_id(0)] + pl.semaphore_read(counter)
        pl.semaphore_wait(counter)

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    scratch = [pltpu.VMEM((2,), np.float32), pltpu.SemaphoreType.DMA((2,)), pltpu.SemaphoreType.REGULAR]
    f = call(lib, kernel, (4,), grid=2, in_specs=[anywhere], out_specs=anywhere, scratch_shapes=scratch)
    return f, [normal(4)]


def masked(lib):
    def kernel(x_ref, y_ref, o_ref):
        part = lib.pl.ds(4 * lib.pl.program_id(0), 4)
        mask = lib.np.arange(4) + 4 * lib.pl.program_id(0) < 6
        lib.pltpu.store(o_ref.at[part], lib.pltpu.load(x_ref.at[part], mask=mask) * 2, mask=mask)

    return call(lib, kernel, (6,), grid=2, input_output_aliases={1: 0}), [normal(6), normal(6, seed=1)]


def masked_rows(lib):
    """Rows of 13 elements in arrays of 16, as softmax is written for GPUs."""

    def kernel(x_ref, o_ref):
        row, mask = lib.pl.program_id(0), lib.np.arange(16) < 13
        part = (row, lib.pl.ds(0, 16))
        shown = lib.triton.load(
            x_ref.at[part], mask=mask, other=-float("inf"), cache_modifier=".cg", eviction_policy="evict_last"
        )
        found = lib.np.exp(shown - shown.max())
        lib.triton.store(o_ref.at[part], found / found.sum(), mask=mask, eviction_policy="evict_first")

    return call(lib, kernel, (3, 13), grid=3), [normal(3, 13)]


def scoped(lib):
    def kernel(x_ref, o_ref):
        def run(a, b):
            a[...] = x_ref[...] * 2
            b[...] = a[...][::-1]
            return b[...]

        o_ref[...] = lib.pl.run_scoped(run, lib.pltpu.VMEM((4,), np.float32), b=lib.pltpu.VMEM((4,), np.float32))

        @lib.pl.loop(0, 4, step=2)
        def _(i):
            o_ref[i] = o_ref[i] + 1

    return call(lib, kernel, (4,)), [normal(4)]


def words(lib):
    pltpu = lib.pltpu

    def kernel(x_ref, a_ref, b_ref, c_ref, d_ref):
        x = x_ref[...]
        a_ref[...] = pltpu.roll(x, 3, 1, stride=1, stride_axis=0)
        b_ref[...] = pltpu.bitcast(x, np.int16)
        packed = pltpu.pack_elementwise([x, x + 1], packed_dtype=np.int16)
        c_ref[...] = pltpu.unpack_elementwise(packed, index=1, packed_dtype=np.int16, unpacked_dtype=np.int32)
        d_ref[...] = pltpu.repeat(x, 2, 0)

    kind = lib.jax.ShapeDtypeStruct
    out = [kind((4, 8), np.int32), kind((8, 8), np.int16), kind((4, 8), np.int32), kind((8, 8), np.int32)]
    f = lib.pl.pallas_call(kernel, out, interpret=True)
    return f, [np.random.RandomState(0).randint(-1000, 1000, (4, 8)).astype(np.int32)]


def carried_references(lib):
    """Loops whose carry has references in it."""
    lax = lib.jax.lax

    def kernel(code_ref, x_ref, o_ref):
        def turn(i, carry):
            total, codes, (xs, n) = carry
            rows = [lambda total, xs, i, row=row: total + xs[i, row] * 2.0**i for row in (0, 1)]
            return lax.switch(codes[i], rows, total, xs, i), codes, (xs, n + 1)

        total, _, (xs, n) = lax.fori_loop(0, 4, turn, (lib.np.float32(0), code_ref, (x_ref, 0)))
        o_ref[...] = lib.np.zeros(3, np.float32) + total

        def write(carry, i):
            out, count = carry
            out[i] += xs[i, 0] * count
            return (out, count + 1), None

        (out, n), _ = lax.scan(write, (o_ref, n), lib.np.arange(3))

        def double(carry):
            out, i = carry
            out[i] = 2 * out[i]
            return out, i + 1

        lax.while_loop(lambda carry: carry[1] < code_ref[1] + 1, double, (out, 0))

    codes, x = np.array([0, 1, 1, 0], np.int32), normal(4, 2)
    return call(lib, kernel, (3,)), [codes, x]


PROGRAMS = [
    add_one, matmul, squeezed_rows, element_windows, prefetched_rows, aliased, dynamic_grid, dynamic_slices, pytrees,
    integers, revisited, copies, scoped, carried_references, masked_rows,
]  # fmt: skip
SMOOTH = [add_one, squeezed_rows, dynamic_slices, revisited]
