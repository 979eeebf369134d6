"""Attention, backward: the weights of each block are computed anew from the logs of the normalisers.

With weights p = exp(s - log), results o = p @ v, and cotangents do and dlog:

    delta = sum(do * o) - dlog      ds = p * (do @ vᵀ - delta)
    dv = pᵀ @ do      dq = scale * ds @ k      dk = scale * dsᵀ @ q

One kernel walks over the keys for each block of queries, the other over the queries for each block of keys, of all
heads that share them.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from meshrt import numpy as jnp
from meshrt.experimental import pallas as pl
from meshrt.experimental.pallas import tpu as pltpu
from meshrt.experimental.pallas.ops.attention_plan import Blocks, Plan, rows_within
from meshrt.experimental.pallas.ops.tiles import contract, finite
from meshrt.shape_dtype import ShapeDtypeStruct

__all__ = ["of_keys", "of_queries"]


def of_queries(plan: Plan, q: Any, k: Any, v: Any, *beside: Any, given: Any, with_bias: bool) -> tuple[Any, ...]:
    """dq; and, `with_bias`, the cotangent of scores (batch, heads, queries, keys). `given` are the cotangent of the
    results, the logs of normalisers and delta."""
    if with_bias:  # blocks that are left out are zeros there
        plan = dataclasses.replace(plan, narrowed=False)

    def at(b: Any, h: Any, i: Any, j: Any) -> Any:
        first, last = plan.columns_for(i)
        return b, h, i, jnp.clip(j, first, last) if plan.is_banded else j

    rows, columns, single = plan.by_rows(plan.width, at), plan.by_columns(at), plan.by_rows(1, at)
    outs, types = [rows], [plan.rows_type(plan.width, q.dtype)]
    if with_bias:
        outs.append(pl.BlockSpec((None, None, plan.rows, plan.columns), lambda b, h, i, j: (b, h, i, j)))
        types.append(plan.rows_type(plan.keys, plan.dtype))
    made = pl.pallas_call(
        functools.partial(_queries_kernel, plan=plan, with_bias=with_bias),
        grid=(plan.batch, plan.heads, plan.row_blocks, plan.column_blocks),
        in_specs=[rows, columns, columns, *plan.beside(at), rows, single, single],
        out_specs=outs,
        out_shape=types,
        scratch_shapes=[pltpu.VMEM((plan.rows, plan.width), plan.dtype)],
        compiler_params=plan.compiler_params("keys", 2, 2, plan.rows),
        cost_estimate=plan.cost(3, q.dtype.itemsize),
        name="flash_attention_queries",
    )(q, k, v, *beside, *given)
    return tuple(made)


def of_keys(plan: Plan, q: Any, k: Any, v: Any, *beside: Any, given: Any) -> tuple[Any, Any]:
    """(dk, dv), summed over the heads that share them."""

    def at(b: Any, g: Any, j: Any, r: Any, i: Any) -> Any:
        first, last = plan.rows_for(j)
        return b, g * plan.shared + r, jnp.clip(i, first, last) if plan.is_banded else i, j

    rows, columns, single = plan.by_rows(plan.width, at), plan.by_columns(at), plan.by_rows(1, at)
    dk, dv = pl.pallas_call(
        functools.partial(_keys_kernel, plan=plan),
        grid=(plan.batch, plan.groups, plan.column_blocks, plan.shared, plan.row_blocks),
        in_specs=[rows, columns, columns, *plan.beside(at), rows, single, single],
        out_specs=[columns, columns],
        out_shape=[ShapeDtypeStruct(k.shape, k.dtype), ShapeDtypeStruct(v.shape, v.dtype)],
        scratch_shapes=[pltpu.VMEM((plan.columns, plan.width), plan.dtype)] * 2,
        compiler_params=plan.compiler_params("queries", 2, 2, 2 * plan.columns),
        cost_estimate=plan.cost(4, q.dtype.itemsize),
        name="flash_attention_keys",
    )(q, k, v, *beside, *given)
    return dk, dv


def _weights(blocks: Blocks, given: Any, i: Any, j: Any) -> tuple[Any, ...]:
    """(queries, keys, cotangent of the results, weights, cotangent of the scores) of a block, none of them with
    anything from beyond the edges."""
    plan = blocks.plan
    cotangent_ref, log_ref, delta_ref = given
    q, k = blocks.queries(i), blocks.keys(j)
    cotangent = rows_within(plan, cotangent_ref[...], i)
    log, delta = (rows_within(plan, ref[...], i) for ref in (log_ref, delta_ref))
    weights = jnp.exp(blocks.scores(q, k, i, j) - finite(log))
    of_weights = contract(cotangent, blocks.values(j), 1, 1, plan.dtype)
    return q, k, cotangent, weights, weights * (of_weights - delta)


def _queries_kernel(*refs: Any, plan: Plan, with_bias: bool) -> None:
    rest = list(refs)
    blocks = Blocks.of(plan, rest)
    given = [rest.pop(0) for _ in range(3)]
    out_ref, *of_scores, acc_ref = rest
    i, j = pl.program_id(2), pl.program_id(3)
    first, last = plan.ends_of_row(i)

    @pl.when(j == first)
    def _start() -> None:
        acc_ref[...] = jnp.zeros(acc_ref.shape, plan.dtype)

    if with_bias and plan.is_banded:
        of_scores[0][...] = jnp.zeros(of_scores[0].shape, plan.dtype)

    @pl.when(plan.meets(i, j))
    def _block() -> None:
        _, k, _, _, ds = _weights(blocks, given, i, j)
        if with_bias:
            of_scores[0][...] = ds
        acc_ref[...] += contract(ds.astype(k.dtype), k, 1, 0, plan.dtype)

    @pl.when(j == last)
    def _finish() -> None:
        out_ref[...] = (acc_ref[...] * plan.scale).astype(out_ref.dtype)


def _keys_kernel(*refs: Any, plan: Plan) -> None:
    rest = list(refs)
    blocks = Blocks.of(plan, rest)
    given = [rest.pop(0) for _ in range(3)]
    dk_ref, dv_ref, dk_acc, dv_acc = rest
    j, r, i = pl.program_id(2), pl.program_id(3), pl.program_id(4)
    first, last = plan.ends_of_column(j)

    @pl.when(jnp.logical_and(r == 0, i == first))
    def _start() -> None:
        dk_acc[...] = jnp.zeros(dk_acc.shape, plan.dtype)
        dv_acc[...] = jnp.zeros(dv_acc.shape, plan.dtype)

    @pl.when(plan.meets(i, j))
    def _block() -> None:
        q, _, cotangent, weights, ds = _weights(blocks, given, i, j)
        dv_acc[...] += contract(weights.astype(cotangent.dtype), cotangent, 0, 0, plan.dtype)
        dk_acc[...] += contract(ds.astype(q.dtype), q, 0, 0, plan.dtype)

    @pl.when(jnp.logical_and(r == plan.shared - 1, i == last))
    def _finish() -> None:
        dk_ref[...] = (dk_acc[...] * plan.scale).astype(dk_ref.dtype)
        dv_ref[...] = dv_acc[...].astype(dv_ref.dtype)
