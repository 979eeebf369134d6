"""Attention, forward: of each row of scores the largest so far is kept, and the sum of exponentials above it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from meshrt import numpy as jnp
from meshrt.experimental import pallas as pl
from meshrt.experimental.pallas import tpu as pltpu
from meshrt.experimental.pallas.ops.attention_plan import Blocks, Plan
from meshrt.experimental.pallas.ops.tiles import contract, finite

__all__ = ["attend"]


def attend(plan: Plan, q: Any, k: Any, v: Any, *beside: Any) -> tuple[Any, Any]:
    """(results (batch, heads, queries, width), log of each row's normaliser (batch, heads, queries, 1))."""

    def at(b: Any, h: Any, i: Any, j: Any) -> Any:
        first, last = plan.columns_for(i)
        return b, h, i, jnp.clip(j, first, last) if plan.is_banded else j  # skipped blocks are not fetched

    rows = plan.by_rows(plan.width, at)
    columns = plan.by_columns(at)
    out, log = pl.pallas_call(
        functools.partial(_kernel, plan=plan),
        grid=(plan.batch, plan.heads, plan.row_blocks, plan.column_blocks),
        in_specs=[rows, columns, columns, *plan.beside(at)],
        out_specs=[rows, plan.by_rows(1, at)],
        out_shape=[plan.rows_type(plan.width, q.dtype), plan.rows_type(1, plan.dtype)],
        scratch_shapes=[
            pltpu.VMEM((plan.rows, 1), plan.dtype),
            pltpu.VMEM((plan.rows, 1), plan.dtype),
            pltpu.VMEM((plan.rows, plan.width), plan.dtype),
        ],
        compiler_params=plan.compiler_params("keys", 1, 2, plan.rows),
        cost_estimate=plan.cost(2, q.dtype.itemsize),
        name="flash_attention",
    )(q, k, v, *beside)
    return out, log


def _kernel(*refs: Any, plan: Plan) -> None:
    rest = list(refs)
    blocks = Blocks.of(plan, rest)
    out_ref, log_ref, top_ref, total_ref, acc_ref = rest
    i, j = pl.program_id(2), pl.program_id(3)
    first, last = plan.ends_of_row(i)

    @pl.when(j == first)
    def _start() -> None:
        top_ref[...] = jnp.full(top_ref.shape, -np.inf, plan.dtype)
        total_ref[...] = jnp.zeros(total_ref.shape, plan.dtype)
        acc_ref[...] = jnp.zeros(acc_ref.shape, plan.dtype)

    @pl.when(plan.meets(i, j))
    def _block() -> None:
        v = blocks.values(j)
        scores = blocks.scores(blocks.q[...], blocks.keys(j), i, j)
        before = top_ref[...]
        top = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
        base = finite(top)
        weights = jnp.exp(scores - base)
        kept = jnp.exp(before - base)
        top_ref[...] = top
        total_ref[...] = kept * total_ref[...] + jnp.sum(weights, axis=1, keepdims=True)
        acc_ref[...] = kept * acc_ref[...] + contract(weights.astype(v.dtype), v, 1, 0, plan.dtype)

    @pl.when(j == last)
    def _finish() -> None:
        total = total_ref[...]
        out_ref[...] = (acc_ref[...] / jnp.where(total == 0, 1, total)).astype(out_ref.dtype)
        log_ref[...] = top_ref[...] + jnp.log(total)
