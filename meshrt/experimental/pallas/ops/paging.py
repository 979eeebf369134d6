"""Attention of one query per sequence to keys and values that lie in pages: decoding with a cache."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt import numpy as jnp
from meshrt.custom_derivatives import custom_vjp
from meshrt.experimental import pallas as pl
from meshrt.experimental.pallas import tpu as pltpu
from meshrt.experimental.pallas.ops.placement import Split, sized
from meshrt.experimental.pallas.ops.tiles import accumulator, agreeing, contract, finite, positions
from meshrt.shape_dtype import ShapeDtypeStruct

__all__ = ["paged_attention"]


def paged_attention(
    query: Any, key_pages: Any, value_pages: Any, lengths: Any, page_indices: Any, *, scale: float | None = None
) -> Any:
    """softmax(scale * query @ keysᵀ) @ values, where a sequence's keys are the pages that a table names.

    Pages are fetched one by one as the table says; those behind a sequence's end are not. Sequences and heads are split
    over a mesh without communication; pages are whole on each device, for its heads.

    Args:
      query: (batch, heads, width), floating-point.
      key_pages, value_pages: (groups, pages, page_size, width) of query's dtype; heads is a multiple of groups.
      lengths: int32 (batch,), how many keys each sequence has. Without any the result is zero.
      page_indices: int32 (batch, pages of a sequence): the page of each `page_size` keys. Entries behind a sequence's
        end are not read. Sequences may share pages.
      scale: 1 / sqrt(width) by default.

    Returns (batch, heads, width). Query and pages have derivatives.

    >>> import meshrt.numpy as jnp
    >>> pages = jnp.arange(8.0).reshape(1, 2, 2, 2)
    >>> paged_attention(jnp.zeros((1, 1, 2)), pages, pages, jnp.array([4]), jnp.array([[1, 0]]))
    Array([[[3., 4.]]], dtype=float32)

    Raises:
      ArgumentTypeError: shapes or dtypes do not fit.
    """
    q, k, v, lengths, table = (jnp.asarray(x) for x in (query, key_pages, value_pages, lengths, page_indices))
    _check(q, k, v, lengths, table)
    how = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    return _attention(*agreeing(q, k, v, lengths.astype(np.int32), table.astype(np.int32)), how)


def _check(q: Any, k: Any, v: Any, lengths: Any, table: Any) -> None:
    if q.ndim != 3 or k.ndim != 4 or k.shape != v.shape or k.shape[3] != q.shape[2] or q.shape[1] % k.shape[0]:
        raise errors.ArgumentTypeError(
            "paged_attention takes query (batch, heads, width), key_pages and value_pages (groups, pages, page_size, "
            f"width), heads a multiple of groups, but got {q.shape}, {k.shape} and {v.shape}"
        )
    if table.ndim != 2 or table.shape[0] != q.shape[0] or lengths.shape != q.shape[:1]:
        raise errors.ArgumentTypeError(
            f"paged_attention takes lengths ({q.shape[0]},) and page_indices ({q.shape[0]}, pages of a sequence), got "
            f"{lengths.shape} and {table.shape}"
        )
    if not q.dtype == k.dtype == v.dtype or not dtypes.issubdtype(q.dtype, np.floating):
        raise errors.ArgumentTypeError(
            f"paged_attention takes floating-point arrays of one dtype, got {q.dtype}, {k.dtype} and {v.dtype}"
        )
    if not all(dtypes.issubdtype(x.dtype, np.integer) for x in (lengths, table)):
        raise errors.ArgumentTypeError(
            f"paged_attention takes integer lengths and page_indices, got {lengths.dtype} and {table.dtype}"
        )


@functools.partial(custom_vjp, nondiff_argnums=(5,))
def _attention(q: Any, k: Any, v: Any, lengths: Any, table: Any, scale: float) -> Any:
    return _attend(q, k, v, lengths, table, scale)[0]


def _attend(q: Any, k: Any, v: Any, lengths: Any, table: Any, scale: float) -> Any:
    text, statics = _rule(q, k)
    heads = text.split(",")[0]
    made = _forward.rule(f"{text} -> {heads}, {heads[:-2]}", **statics, scale=scale, blocks=None)
    return made(q, k, v, lengths, table)


def _attention_forward(q: Any, k: Any, v: Any, lengths: Any, table: Any, scale: float) -> Any:
    out, log = _attend(q, k, v, lengths, table, scale)
    return out, (q, k, v, lengths, table, out, log)


def _attention_backward(scale: float, kept: Any, cotangent: Any) -> Any:
    q, k, v, lengths, table, out, log = kept
    acc = accumulator(q)
    delta = jnp.sum(cotangent.astype(acc) * out.astype(acc), -1)
    text, statics = _rule(q, k)
    heads = text.split(",")[0]
    rule = f"{text}, {heads}, {heads[:-2]}, {heads[:-2]} -> {heads}, g p s d, g p s d"
    made = _backward.rule(rule, **statics, scale=scale, blocks=None)(q, k, v, lengths, table, cotangent, log, delta)
    return *made, None, None


_attention.defvjp(_attention_forward, _attention_backward)


def _rule(q: Any, k: Any) -> tuple[str, dict[str, Any]]:
    shared = q.shape[1] // k.shape[0]
    heads = "g" if shared == 1 else "(g r)"
    statics = {"whole": ("p", "s", "d", "n"), "factor_sizes": () if shared == 1 else (("r", shared),)}
    return f"b {heads} d, g p s d, g p s d, b, b n", statics


class _Walk:
    """The grid (sequences, groups, pages of a sequence), and the windows of what lies along it."""

    def __init__(self, q: Any, k: Any, table: Any):
        self.batch, self.width = q.shape[0], q.shape[2]
        self.groups, _, self.page, _ = k.shape
        self.shared = q.shape[1] // self.groups
        self.count = table.shape[1]
        self.dtype, self.acc = q.dtype, accumulator(q)
        self.grid = (self.batch, self.groups, self.count)
        self.pages = pl.BlockSpec((None, None, self.page, self.width), self._page)

    def _page(self, b: Any, g: Any, i: Any, lengths: Any, table: Any) -> Any:
        """The page with keys `i * page` and on; behind the end the last one, which is there already."""
        last = jnp.maximum(lengths[b] - 1, 0) // self.page
        return g, table[b, jnp.minimum(i, last)], 0, 0

    def rows(self, width: int) -> Any:
        """The window of an array (batch, groups, heads of a group, width)."""
        return pl.BlockSpec((None, None, self.shared, width), lambda b, g, i, lengths, table: (b, g, 0, 0))

    def rows_type(self, width: int, dtype: Any) -> Any:
        return ShapeDtypeStruct((self.batch, self.groups, self.shared, width), dtype)

    def call(self, kernel: Any, name: str, in_specs: Any, out_specs: Any, out_shape: Any, scratch: Any) -> Any:
        keys = self.batch * self.groups * self.count * self.page
        return pl.pallas_call(
            kernel,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=2, grid=self.grid, in_specs=in_specs, out_specs=out_specs, scratch_shapes=scratch
            ),
            out_shape=out_shape,
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
            cost_estimate=pl.CostEstimate(
                flops=4 * keys * self.shared * self.width, transcendentals=keys * self.shared,
                bytes_accessed=2 * keys * self.width * self.dtype.itemsize,
            ),
            name=name,
        )  # fmt: skip

    def scores(self, q: Any, k: Any, i: Any, length: Any, scale: float) -> Any:
        """(heads of a group, page): minus infinity behind the sequence's end."""
        out = contract(q, k, 1, 1, self.acc) * np.asarray(scale, self.acc)[()]
        return jnp.where(positions(i, out.shape, 1) < length, out, np.asarray(-np.inf, self.acc)[()])


def _cut(k: Any, v: Any, table: Any, keys: int) -> tuple[Any, Any, Any]:
    """Pages as several of at most so many keys where halves of them are (0: as they are), and the table of these."""
    groups, pages, page, width = k.shape
    parts = 1
    while keys and page // parts > keys and page // parts % 2 == 0:
        parts *= 2
    if parts == 1:
        return k, v, table
    k, v = (x.reshape(groups, pages * parts, page // parts, width) for x in (k, v))
    return k, v, (table[..., None] * parts + jnp.arange(parts, dtype=table.dtype)).reshape(table.shape[0], -1)


@sized("pages")
def _forward(split: Split, q: Any, k: Any, v: Any, lengths: Any, table: Any, *, scale: float, blocks: Any) -> Any:
    """(results (batch, heads, width), logs of normalisers (batch, heads))."""
    k, v, table = _cut(k, v, table, blocks[0])
    walk = _Walk(q, k, table)
    rows = walk.rows(walk.width)
    out, log = walk.call(
        functools.partial(_forward_kernel, walk=walk, scale=scale), "paged_attention", [rows, walk.pages, walk.pages],
        [rows, walk.rows(1)], [walk.rows_type(walk.width, q.dtype), walk.rows_type(1, walk.acc)],
        [pltpu.VMEM((walk.shared, n), walk.acc) for n in (1, 1, walk.width)],
    )(lengths, table, q.reshape(walk.batch, walk.groups, walk.shared, walk.width), k, v)  # fmt: skip
    return out.reshape(q.shape), log.reshape(q.shape[:2])


def _forward_kernel(
    lengths_ref: Any, table_ref: Any, q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any, log_ref: Any, top_ref: Any,
    total_ref: Any, acc_ref: Any, *, walk: _Walk, scale: float,
) -> None:  # fmt: skip
    b, i = pl.program_id(0), pl.program_id(2)
    length = lengths_ref[b]

    @pl.when(i == 0)
    def _start() -> None:
        top_ref[...] = jnp.full(top_ref.shape, -np.inf, walk.acc)
        total_ref[...] = jnp.zeros(total_ref.shape, walk.acc)
        acc_ref[...] = jnp.zeros(acc_ref.shape, walk.acc)

    @pl.when(i * walk.page < length)
    def _page() -> None:
        scores = walk.scores(q_ref[...], k_ref[...], i, length, scale)
        v = v_ref[...]
        before = top_ref[...]
        top = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
        base = finite(top)
        weights, kept = jnp.exp(scores - base), jnp.exp(before - base)
        top_ref[...] = top
        total_ref[...] = kept * total_ref[...] + jnp.sum(weights, axis=1, keepdims=True)
        acc_ref[...] = kept * acc_ref[...] + contract(weights.astype(v.dtype), v, 1, 0, walk.acc)

    @pl.when(i == walk.count - 1)
    def _finish() -> None:
        total = total_ref[...]
        out_ref[...] = (acc_ref[...] / jnp.where(total == 0, 1, total)).astype(out_ref.dtype)
        log_ref[...] = top_ref[...] + jnp.log(total)


@sized("pages")
def _backward(
    split: Split,
    q: Any,
    k: Any,
    v: Any,
    lengths: Any,
    table: Any,
    cotangent: Any,
    log: Any,
    delta: Any,
    *,
    scale: float,
    blocks: Any,
) -> Any:
    """Cotangents of query and pages. Each sequence pulls back to its own copy of a page; copies of one are added up."""
    given = k.shape
    k, v, table = _cut(k, v, table, blocks[0])
    walk = _Walk(q, k, table)
    shape = (walk.batch, walk.groups, walk.shared)
    rows, one = walk.rows(walk.width), walk.rows(1)
    own = pl.BlockSpec((None, None, None, walk.page, walk.width), lambda b, g, i, lengths, table: (b, g, i, 0, 0))
    copies = ShapeDtypeStruct((walk.batch, walk.groups, walk.count, walk.page, walk.width), walk.acc)
    dq, dk, dv = walk.call(
        functools.partial(_backward_kernel, walk=walk, scale=scale), "paged_attention_backward",
        [rows, walk.pages, walk.pages, rows, one, one], [rows, own, own],
        [walk.rows_type(walk.width, q.dtype), copies, copies], [pltpu.VMEM((walk.shared, walk.width), walk.acc)],
    )(
        lengths, table, q.reshape(*shape, walk.width), k, v, cotangent.reshape(*shape, walk.width),
        log.reshape(*shape, 1), delta.reshape(*shape, 1),
    )  # fmt: skip
    used = jnp.arange(walk.count)[None] * walk.page < lengths[:, None]
    place = jnp.where(used, table, k.shape[1])  # beyond the pages: dropped
    pages = []
    for x in (dk, dv):
        moved = jnp.swapaxes(x, 0, 1)  # (groups, batch, pages of a sequence, page, width)
        total = jnp.zeros(k.shape, walk.acc).at[:, place].add(moved, mode="drop")
        pages.append(split.sum(total, "b", "r").astype(k.dtype).reshape(given))
    return dq.reshape(q.shape), *pages


def _backward_kernel(
    lengths_ref: Any, table_ref: Any, q_ref: Any, k_ref: Any, v_ref: Any, g_ref: Any, log_ref: Any, delta_ref: Any,
    dq_ref: Any, dk_ref: Any, dv_ref: Any, acc_ref: Any, *, walk: _Walk, scale: float,
) -> None:  # fmt: skip
    b, i = pl.program_id(0), pl.program_id(2)
    length = lengths_ref[b]

    @pl.when(i == 0)
    def _start() -> None:
        acc_ref[...] = jnp.zeros(acc_ref.shape, walk.acc)

    dk_ref[...] = jnp.zeros(dk_ref.shape, walk.acc)
    dv_ref[...] = jnp.zeros(dv_ref.shape, walk.acc)

    @pl.when(i * walk.page < length)
    def _page() -> None:
        q, k, v, g = q_ref[...], k_ref[...], v_ref[...], g_ref[...]
        weights = jnp.exp(walk.scores(q, k, i, length, scale) - finite(log_ref[...]))
        ds = weights * (contract(g, v, 1, 1, walk.acc) - delta_ref[...]) * np.asarray(scale, walk.acc)[()]
        dv_ref[...] = contract(weights.astype(g.dtype), g, 0, 0, walk.acc)
        dk_ref[...] = contract(ds.astype(q.dtype), q, 0, 0, walk.acc)
        acc_ref[...] += contract(ds.astype(k.dtype), k, 1, 0, walk.acc)

    @pl.when(i == walk.count - 1)
    def _finish() -> None:
        dq_ref[...] = acc_ref[...].astype(dq_ref.dtype)
