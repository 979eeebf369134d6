"""Attention whose scores are never written: flash attention."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt import numpy as jnp
from meshrt.custom_derivatives import SymbolicZero, custom_vjp, custom_vjp_primal_tree_values
from meshrt.experimental.pallas.ops import heuristics
from meshrt.experimental.pallas.ops.attention_backward import of_keys, of_queries
from meshrt.experimental.pallas.ops.attention_forward import attend
from meshrt.experimental.pallas.ops.attention_plan import Plan
from meshrt.experimental.pallas.ops.placement import Split, sized
from meshrt.experimental.pallas.ops.tiles import accumulator, agreeing

__all__ = ["flash_attention"]


def flash_attention(
    query: Any, key: Any, value: Any, bias: Any = None, *, mask: Any = None, query_segments: Any = None,
    key_segments: Any = None, scale: float | None = None, causal: bool = False,
    window: int | tuple[int | None, int | None] | None = None, block_sizes: tuple[int, int] | None = None,
    return_residual: bool = False,
) -> Any:  # fmt: skip
    """softmax(scale * query @ keyᵀ + bias) @ value for each head, in one kernel; memory grows with the positions, not
    with their pairs, forward and backward.

    Scores and sums are float32 at least. Blocks of scores of which nothing is allowed are neither fetched nor
    computed. A query that may attend to nothing gets zeros. Batch and heads are split over a mesh without
    communication, queries too where neither `causal` nor a window is asked for; keys are gathered.

    Args:
      query: (batch, queries, heads, width), floating-point. key, value: (batch, keys, groups, width) of query's dtype;
        heads is a multiple of groups, and neighbouring heads share a group.
      bias: added to scores; four dimensions, each 1 or that of (batch, heads, queries, keys). It has a derivative,
        which is as large as the scores where somebody asks for it.
      mask: boolean like `bias`; nobody attends where it is false.
      query_segments, key_segments: integers (batch, queries) and (batch, keys): a query attends to keys of its own
        segment. Without `key_segments` they are `query_segments`.
      scale: 1 / sqrt(width) by default.
      causal: a query attends to keys up to its own position.
      window: how many positions before and after its own a query attends to; None for any number.
      block_sizes: queries and keys of a block; chosen from the shapes by default.
      return_residual: also return the log of each normaliser (batch, queries, heads), which has a derivative too.

    >>> import meshrt.numpy as jnp
    >>> x = jnp.ones((1, 3, 2, 4))
    >>> flash_attention(x, x, x, causal=True).shape
    (1, 3, 2, 4)

    Raises:
      ArgumentTypeError: shapes or dtypes do not fit each other.
    """
    q, k, v = (jnp.asarray(x) for x in (query, key, value))
    _check(q, k, v)
    bias = _with_mask(None if bias is None else jnp.asarray(bias), mask)
    sizes = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    if bias is not None:
        _check_beside("bias or mask", bias.shape, sizes)
    if query_segments is None and key_segments is not None:
        raise errors.ArgumentTypeError("flash_attention: key_segments come with query_segments; pass both")
    segments = None
    if query_segments is not None:
        given = jnp.asarray(query_segments)
        segments = (given, given if key_segments is None else jnp.asarray(key_segments))
        for x, wanted in zip(segments, ((q.shape[0], q.shape[1]), (k.shape[0], k.shape[1]))):
            if x.shape != wanted or not dtypes.issubdtype(x.dtype, np.integer):
                raise errors.ArgumentTypeError(
                    f"flash_attention: segments are integers of shape {wanted}, got {x.dtype}{list(x.shape)}"
                )
    before, after = window if isinstance(window, tuple) else (window, window)
    if causal:
        after = 0 if after is None else min(after, 0)
    how = (
        1 / math.sqrt(q.shape[-1]) if scale is None else float(scale),
        before,
        after,
        block_sizes and tuple(block_sizes),
    )
    q, k, v, bias, *own = agreeing(q, k, v, bias, *(segments or ()))
    out, log = _attention(q, k, v, bias, tuple(own) or None, how)
    return (out, log) if return_residual else out


def _with_mask(bias: Any, mask: Any) -> Any:
    """A bias that is minus infinity where the mask is false."""
    if mask is None:
        return bias
    dtype = np.dtype(np.float32) if bias is None else bias.dtype
    nothing = np.asarray(-np.inf, dtype)[()]
    return jnp.where(jnp.asarray(mask), jnp.zeros((), dtype) if bias is None else bias, nothing)


def _check(q: Any, k: Any, v: Any) -> None:
    shapes = f"query {q.shape}, key {k.shape} and value {v.shape}"
    if not (q.ndim == k.ndim == v.ndim == 4) or k.shape != v.shape or q.shape[::3] != k.shape[::3]:
        raise errors.ArgumentTypeError(
            f"flash_attention takes query (batch, queries, heads, width), key and value (batch, keys, groups, width), "
            f"but got {shapes}"
        )
    if q.shape[2] % k.shape[2]:
        raise errors.ArgumentTypeError(
            f"flash_attention: {q.shape[2]} heads are no multiple of {k.shape[2]} heads of keys, in {shapes}"
        )
    if not q.dtype == k.dtype == v.dtype or not dtypes.issubdtype(q.dtype, np.floating):
        raise errors.ArgumentTypeError(
            f"flash_attention takes floating-point arrays of one dtype, got {q.dtype}, {k.dtype} and {v.dtype}"
        )


def _check_beside(what: str, shape: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    if len(shape) != 4 or any(n not in (1, m) for n, m in zip(shape, sizes)):
        raise errors.ArgumentTypeError(
            f"flash_attention: {what} of shape {shape} does not broadcast to (batch, heads, queries, keys) = {sizes}"
        )


@functools.partial(custom_vjp, nondiff_argnums=(5,))
def _attention(q: Any, k: Any, v: Any, bias: Any, segments: Any, how: Any) -> tuple[Any, Any]:
    rule = _Rule(q, k, bias, segments, how)
    return _forward.rule(f"{rule.operands} -> {rule.queries}, {rule.logs}", **rule.statics)(
        *_flat(q, k, v, bias, segments)
    )


def _attention_forward(q: Any, k: Any, v: Any, bias: Any, segments: Any, how: Any) -> Any:
    # The bias alone has a derivative that costs memory, so it is computed only if somebody asks for it.
    of_bias = bias is not None and bias.perturbed
    q, k, v, bias, segments = custom_vjp_primal_tree_values((q, k, v, bias, segments))
    out, log = _attention(q, k, v, bias, segments, how)
    return (out, log), (q, k, v, bias, segments, out, log, of_bias)


def _attention_backward(how: Any, kept: Any, cotangents: Any) -> Any:
    q, k, v, bias, segments, out, log, of_bias = kept
    of_out, of_log = (c.instantiate() if isinstance(c, SymbolicZero) else c for c in cotangents)
    dtype = accumulator(q)
    delta = jnp.sum(of_out.astype(dtype) * out.astype(dtype), -1) - of_log
    rule = _Rule(q, k, bias, segments, how)
    results = f"{rule.queries}, {rule.keys}, {rule.keys}" + (f", {rule.scores}" if of_bias else "")
    made = _backward.rule(
        f"{rule.operands}, {rule.queries}, {rule.logs}, {rule.logs} -> {results}",
        **rule.statics, of_bias=of_bias,
    )(*_flat(q, k, v, bias, segments), of_out, log, delta)  # fmt: skip
    of_scores = None
    if of_bias:
        narrow = tuple(i for i, n in enumerate(bias.shape) if n == 1)
        of_scores = jnp.sum(made[3], narrow, keepdims=True).astype(bias.dtype)
    return made[0], made[1], made[2], of_scores, None


_attention.defvjp(_attention_forward, _attention_backward, symbolic_zeros=True)


def _flat(q: Any, k: Any, v: Any, bias: Any, segments: Any) -> list[Any]:
    return [q, k, v, *([] if bias is None else [bias]), *(segments or ())]


class _Rule:
    """The sharding rule of a call, as text: batch and heads pass through, heads as groups and the heads of each."""

    def __init__(self, q: Any, k: Any, bias: Any, segments: Any, how: Any):
        groups = k.shape[2]
        shared = q.shape[2] // groups
        heads = "g" if shared == 1 else "(g r)"
        self.queries, self.keys, self.logs, self.scores = f"b t {heads} d", "b s g d", f"b t {heads}", f"b {heads} t s"
        parts = [self.queries, self.keys, self.keys]
        if bias is not None:
            wide = zip(("b", heads, "t", "s"), bias.shape, ("b1", "h1", "t1", "s1"))
            parts.append(" ".join(narrow if n == 1 else name for name, n, narrow in wide))
        if segments is not None:
            parts += ["b t", "b s"]
        self.operands = ", ".join(parts)
        banded = how[1] is not None or how[2] is not None
        whole = [f for f in ("s", "d", *(["t"] if banded else [])) if f in self.operands.replace("(", " ").split()]
        self.statics = {
            "how": how[:3], "blocks": how[3], "whole": tuple(whole), "has_bias": bias is not None,
            "factor_sizes": () if shared == 1 else (("r", shared),),
        }  # fmt: skip


def _plan(q: Any, k: Any, bias: Any, segments: Any, how: Any, blocks: tuple[int, int]) -> Plan:
    scale, before, after = how
    batch, heads, queries, width = q.shape
    keys = k.shape[2]
    return Plan(
        batch, heads, k.shape[1], queries, keys, width, heuristics.block_of(queries, blocks[0]),
        heuristics.block_of(keys, blocks[1]), scale, before, after, None if bias is None else tuple(bias.shape),
        segments is not None, accumulator(q), q.dtype.itemsize,
    )  # fmt: skip


def _turned(*arrays: Any) -> list[Any]:
    """(batch, positions, heads, width) as the kernels have it: heads before positions."""
    return [jnp.swapaxes(x, 1, 2) for x in arrays]


def _operands(
    how: Any, blocks: Any, has_bias: bool, narrowed: bool, q: Any, k: Any, v: Any, *beside: Any
) -> tuple[Plan, list[Any]]:
    """(plan, operands of the kernels) of one device's pieces."""
    rest = list(beside)
    bias = rest.pop(0) if has_bias else None
    segments = rest or None
    q, k, v = _turned(q, k, v)
    operands = [q, k, v] if bias is None else [q, k, v, bias]
    if segments is not None:
        operands += [segments[0][:, :, None], segments[1][:, None, :]]
    return dataclasses.replace(_plan(q, k, bias, segments, how, blocks), narrowed=narrowed), operands


def _attend(narrowed: bool, split: Split, *arrays: Any, how: Any, blocks: Any, has_bias: bool) -> tuple[Any, Any]:
    plan, operands = _operands(how, blocks, has_bias, narrowed, *arrays)
    out, log = attend(plan, *operands)
    return jnp.swapaxes(out, 1, 2), jnp.swapaxes(log[..., 0], 1, 2)


@sized("attention", on_gpus=functools.partial(_attend, True))
def _forward(split: Split, *arrays: Any, **statics: Any) -> tuple[Any, Any]:
    return _attend(False, split, *arrays, **statics)


def _pull_back(
    narrowed: bool, split: Split, *arrays: Any, how: Any, blocks: Any, has_bias: bool, of_bias: bool
) -> tuple[Any, ...]:
    *own, cotangent, log, delta = arrays
    plan, operands = _operands(how, blocks, has_bias, narrowed, *own)
    given = [*_turned(cotangent), *(x[..., None] for x in _turned(log, delta))]
    dq, *of_scores = of_queries(plan, *operands, given=given, with_bias=of_bias)
    dk, dv = of_keys(plan, *operands, given=given)
    dq, dk, dv = _turned(dq, dk, dv)
    return dq, split.sum(dk, "r", "t"), split.sum(dv, "r", "t"), *of_scores


@sized("attention_gradient", on_gpus=functools.partial(_pull_back, True))
def _backward(split: Split, *arrays: Any, **statics: Any) -> tuple[Any, ...]:
    return _pull_back(False, split, *arrays, **statics)
