"""The kernels of rings: a chunk of rows a step, a buffer and a pair of semaphores for each, so that no device waits for
another to have used what it sent."""

from __future__ import annotations

import functools
from typing import Any

from meshrt import lax
from meshrt import numpy as jnp
from meshrt.experimental import pallas as pl
from meshrt.experimental.pallas import tpu as pltpu
from meshrt.experimental.pallas.ops import heuristics
from meshrt.experimental.pallas.ops.tiles import accumulator, contract
from meshrt.shape_dtype import ShapeDtypeStruct

__all__ = ["COLLECTIVE_IDS", "all_gather", "reduce_scatter"]

# Which barrier each kernel uses: those that may run at one time need different ones.
COLLECTIVE_IDS = {"all_gather_matmul": 11, "matmul_reduce_scatter": 12}


def _wait_for_neighbours(axis: str, count: int) -> None:
    """Until both neighbours have entered the kernel: before, their buffers may be in use for something else."""
    mine = lax.axis_index(axis)
    barrier = pltpu.get_barrier_semaphore()
    for step in (1, count - 1):
        pl.semaphore_signal(
            barrier, 1, device_id={axis: (mine + step) % count}, device_id_type=pl.DeviceIdType.MESH
        )  # fmt: skip
    pl.semaphore_wait(barrier, 2)


def _columns(m: int, w: Any, turned: bool, block: int | None) -> tuple[int, int, Any]:
    """(columns, columns of a block, the window of w) in a grid whose second dimension are blocks of columns."""
    n, k = w.shape if turned else w.shape[::-1]
    item = w.dtype.itemsize  # windows of w and of the result have two buffers each
    size = heuristics.block_of(n, block or heuristics.columns_beside(m * k * item, 2 * (m + k) * item))
    if turned:
        return n, size, pl.BlockSpec((size, k), lambda s, j, mine: (j, 0))
    return n, size, pl.BlockSpec((k, size), lambda s, j, mine: (0, j))


def all_gather(x: Any, w: Any, axis: str, turned: bool, block: int | None) -> tuple[Any, Any]:
    """(all rows @ w, or @ wᵀ where it is `turned`; what arrived (steps, m, k): in step s the rows of the device that is
    s places before this one)."""
    count, mine = lax.axis_size(axis), lax.axis_index(axis)
    m, k = x.shape
    n, size, window = _columns(m, w, turned, block)
    return tuple(
        pl.pallas_call(
            functools.partial(_all_gather_kernel, axis=axis, count=count, turned=turned, acc=accumulator(x)),
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=(count, pl.cdiv(n, size)),
                in_specs=[pl.BlockSpec(memory_space=pl.ANY), window],
                out_specs=[
                    pl.BlockSpec((m, size), lambda s, j, mine: ((mine[0] + count - s) % count, j)),
                    pl.BlockSpec(memory_space=pl.ANY),
                ],
                scratch_shapes=[
                    pltpu.VMEM((m, k), x.dtype),
                    pltpu.SemaphoreType.DMA,
                    pltpu.SemaphoreType.DMA((count,)),
                    pltpu.SemaphoreType.DMA((count,)),
                ],
            ),
            out_shape=[
                ShapeDtypeStruct((count * m, n), x.dtype), ShapeDtypeStruct((count, m, k), x.dtype),
            ],
            compiler_params=pltpu.CompilerParams(
                dimension_semantics=("arbitrary", "arbitrary"), collective_id=COLLECTIVE_IDS["all_gather_matmul"]
            ),
            cost_estimate=pl.CostEstimate(
                flops=2 * count * m * k * n, transcendentals=0,
                bytes_accessed=(2 * count * m * k + count * w.size + count * m * n) * x.dtype.itemsize,
                remote_bytes_transferred=(count - 1) * m * k * x.dtype.itemsize,
            ),
            name="all_gather_matmul",
        )(mine.astype("int32").reshape(1), x, w)
    )  # fmt: skip


def _all_gather_kernel(
    mine_ref: Any, x_ref: Any, w_ref: Any, out_ref: Any, arrived_ref: Any, chunk_ref: Any, local: Any, sent: Any,
    received: Any, *, axis: str, count: int, turned: bool, acc: Any,
) -> None:  # fmt: skip
    step, column = pl.program_id(0), pl.program_id(1)
    right = (mine_ref[0] + 1) % count

    def passing(s: Any) -> Any:
        """The copy of what arrived in step `s` to the right neighbour, where it arrives in the next one."""
        return pltpu.make_async_remote_copy(
            arrived_ref.at[s], arrived_ref.at[s + 1], sent.at[s], received.at[s], device_id={axis: right},
            device_id_type=pl.DeviceIdType.MESH,
        )  # fmt: skip

    def copy(source: Any, target: Any) -> None:
        moving = pltpu.make_async_copy(source, target, local)
        moving.start()
        moving.wait()

    @pl.when(jnp.logical_and(step == 0, column == 0))
    def _enter() -> None:
        if count > 1:
            _wait_for_neighbours(axis, count)
        copy(x_ref, arrived_ref.at[0])

    @pl.when(column == 0)
    def _fetch() -> None:
        if count > 1:

            @pl.when(step > 0)
            def _arrive() -> None:
                passing(step - 1).wait_recv()

            @pl.when(step < count - 1)
            def _pass_on() -> None:
                passing(step).start()

        copy(arrived_ref.at[step], chunk_ref)

    out_ref[...] = contract(chunk_ref[...], w_ref[...], 1, 1 if turned else 0, acc).astype(out_ref.dtype)

    if count > 1:

        @pl.when(jnp.logical_and(column == pl.num_programs(1) - 1, step < count - 1))
        def _leave() -> None:
            passing(step).wait_send()


def reduce_scatter(x: Any, w: Any, axis: str, turned: bool, block: int | None) -> Any:
    """This device's rows of the sum over devices of x @ w, or of x @ wᵀ where it is `turned`.

    The sum of a chunk of rows starts at the device behind the one that wants it, and goes once around.
    """
    count, mine = lax.axis_size(axis), lax.axis_index(axis)
    m, k = x.shape[0] // count, x.shape[1]
    n, size, window = _columns(m, w, turned, block)
    acc, blocks = accumulator(x), pl.cdiv(n, size)
    out, _ = pl.pallas_call(
        functools.partial(_reduce_scatter_kernel, axis=axis, count=count, turned=turned, acc=acc),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(count, blocks),
            in_specs=[pl.BlockSpec((m, k), lambda s, j, mine: ((mine[0] + 2 * count - 1 - s) % count, 0)), window],
            out_specs=[pl.BlockSpec((m, size), lambda s, j, mine: (0, j)), pl.BlockSpec(memory_space=pl.ANY)],
            scratch_shapes=[
                pltpu.VMEM((m, size), acc),
                pltpu.SemaphoreType.DMA,
                pltpu.SemaphoreType.DMA((count, blocks)),
                pltpu.SemaphoreType.DMA((count, blocks)),
            ],
        ),
        out_shape=[
            ShapeDtypeStruct((m, n), x.dtype), ShapeDtypeStruct((2, count, blocks, m, size), acc),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary", "arbitrary"), collective_id=COLLECTIVE_IDS["matmul_reduce_scatter"]
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * count * m * k * n, transcendentals=0,
            bytes_accessed=count * ((m * k + w.size) * x.dtype.itemsize + 4 * m * n * acc.itemsize),
            remote_bytes_transferred=(count - 1) * m * n * acc.itemsize,
        ),
        name="matmul_reduce_scatter",
    )(mine.astype("int32").reshape(1), x, w)  # fmt: skip
    return out


def _reduce_scatter_kernel(
    mine_ref: Any, x_ref: Any, w_ref: Any, out_ref: Any, sums_ref: Any, tile_ref: Any, local: Any, sent: Any,
    received: Any, *, axis: str, count: int, turned: bool, acc: Any,
) -> None:  # fmt: skip
    """`sums_ref` holds the sums that leave, [0], and those that arrive, [1], a tile per step and block of columns."""
    step, column = pl.program_id(0), pl.program_id(1)
    right = (mine_ref[0] + 1) % count

    def passing(s: Any, j: Any) -> Any:
        return pltpu.make_async_remote_copy(
            sums_ref.at[0, s, j], sums_ref.at[1, s + 1, j], sent.at[s, j], received.at[s, j], device_id={axis: right},
            device_id_type=pl.DeviceIdType.MESH,
        )  # fmt: skip

    def copy(source: Any, target: Any) -> None:
        moving = pltpu.make_async_copy(source, target, local)
        moving.start()
        moving.wait()

    if count > 1:

        @pl.when(jnp.logical_and(step == 0, column == 0))
        def _enter() -> None:
            _wait_for_neighbours(axis, count)

    product = contract(x_ref[...], w_ref[...], 1, 1 if turned else 0, acc)

    @pl.when(step == 0)
    def _begin() -> None:
        tile_ref[...] = product

    if count > 1:

        @pl.when(step > 0)
        def _add() -> None:
            passing(step - 1, column).wait_recv()
            copy(sums_ref.at[1, step, column], tile_ref)
            tile_ref[...] += product

        @pl.when(step < count - 1)
        def _pass_on() -> None:
            copy(tile_ref, sums_ref.at[0, step, column])
            passing(step, column).start()

        @pl.when(step > 0)
        def _sent() -> None:
            passing(step - 1, column).wait_send()

    out_ref[...] = tile_ref[...].astype(out_ref.dtype)
