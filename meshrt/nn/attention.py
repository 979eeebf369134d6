"""Scaled dot-product attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.nn.functions import logsumexp, softmax
from meshrt.nn.kernels import shipped
from meshrt.numpy.arrays import asarray
from meshrt.numpy.contractions import einsum
from meshrt.numpy.creation import arange
from meshrt.numpy.operands import ShapeError
from meshrt.numpy.selection import where
from meshrt.numpy.shapes import broadcast_to, expand_dims, reshape, transpose

__all__ = ["dot_product_attention"]


def dot_product_attention(
    query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, *, scale: float | None = None,
    is_causal: bool = False, query_seq_lengths: Any = None, key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None, implementation: str | None = None,
    return_residual: bool = False,
) -> Any:  # fmt: skip
    """softmax(scale * query @ key + bias) @ value, for each head.

    Shapes: query (batch, T, heads, dim), key and value (batch, S, groups, dim), where heads is a multiple of groups
    (grouped-query attention); bias and mask broadcast to (batch, heads, T, S). The batch dimension may be missing.

    Args:
      mask: boolean; false positions are not attended to.
      scale: 1 / sqrt(dim) by default.
      is_causal: attend to positions up to one's own only.
      query_seq_lengths, key_value_seq_lengths: int32 (batch,), how many positions are valid.
      local_window_size: how many positions before and after one's own may be attended to.
      implementation: None or "xla": scores are arrays of the program. "flash": a kernel that never writes them
        (`meshrt.experimental.pallas.ops.flash_attention`); queries that may attend to nothing get zeros.
      return_residual: also return the log of the normaliser, (batch, T, heads), without a derivative.

    >>> meshrt.nn.dot_product_attention(jnp.ones((2, 5, 4, 8)), jnp.ones((2, 5, 4, 8)), jnp.ones((2, 5, 4, 8)),
    ...     is_causal=True).shape
    (2, 5, 4, 8)
    """
    if implementation not in (None, "xla", "cudnn", "flash"):
        raise errors.ArgumentValueError(
            f"dot_product_attention: Unsupported implementation option: {implementation!r}; use 'xla', 'flash', or None"
        )
    if implementation == "cudnn":
        raise errors.UnsupportedError(f"dot_product_attention: implementation {implementation!r} is not available")
    shape = tuple(np.shape(query)) if not hasattr(query, "shape") else query.shape
    q, k, v = (_four(x) for x in (query, key, value))
    _check(q, k, v)
    batch, length, heads, dim = q.shape
    bias, mask = (None if x is None else _four(x) for x in (bias, mask))
    _check_scores({"bias": bias, "mask": mask}, (batch, heads, length, k.shape[1]))
    _check_lengths({"query_seq_lengths": query_seq_lengths, "key_value_seq_lengths": key_value_seq_lengths}, batch)
    groups = k.shape[2]
    if implementation == "flash":
        out, log = _flash(
            q, k, v, bias, mask, scale, is_causal, query_seq_lengths, key_value_seq_lengths, local_window_size
        )
        out = reshape(_valid(out, query_seq_lengths), shape)
        return (out, lax.stop_gradient(reshape(log.astype(k.dtype), shape[:-1]))) if return_residual else out
    q = reshape(q, (batch, length, groups, heads // groups, dim))
    logits_dtype = dtypes.promote_types(q.dtype, np.float32)
    logits = einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=logits_dtype)
    logits = logits * np.asarray(1 / math.sqrt(dim) if scale is None else scale, logits_dtype)[()]
    if bias is not None:
        logits = (logits + _grouped(bias, groups, heads)).astype(logits_dtype)
    allowed = _allowed(
        mask, is_causal, query_seq_lengths, key_value_seq_lengths, local_window_size, length, k.shape[1], groups, heads
    )
    if allowed is not None:
        logits = where(allowed, logits, np.asarray(-0.7 * dtypes.finfo(np.float32).max, logits_dtype)[()])
    logits = logits.astype(np.float32)
    weights = softmax(logits, -1).astype(k.dtype)
    out = reshape(einsum("bkgts,bskh->btkgh", weights, v), (batch, length, heads, dim))
    out = reshape(_valid(out, query_seq_lengths), shape)
    if not return_residual:
        return out
    residual = transpose(reshape(logsumexp(logits, -1).astype(k.dtype), (batch, heads, length)), (0, 2, 1))
    return out, lax.stop_gradient(reshape(residual, shape[:-1]))


def _valid(out: Any, lengths: Any) -> Any:
    """Results (batch, T, heads, dim), zero behind each sequence's end."""
    if lengths is None:
        return out
    valid = arange(out.shape[1])[None, :] < asarray(lengths)[:, None]
    return out * valid[:, :, None, None].astype(out.dtype)


def _flash(
    q: Any, k: Any, v: Any, bias: Any, mask: Any, scale: Any, is_causal: bool, q_lengths: Any, kv_lengths: Any,
    window: Any,
) -> Any:  # fmt: skip
    """(results, logs of normalisers) by the kernel. Keys behind a sequence's end are a segment of their own."""
    kernels = shipped()
    if scale is not None and not isinstance(scale, int | float | np.number):
        q, scale = (q * asarray(scale)).astype(q.dtype), 1.0  # a value of the program
    segments: dict[str, Any] = {}
    if q_lengths is not None or kv_lengths is not None:
        ends = zip((q, k), (q_lengths, kv_lengths))
        own, others = (
            broadcast_to(
                np.int32(0) if n is None else (arange(x.shape[1]) >= asarray(n)[:, None]).astype(np.int32), x.shape[:2]
            )
            for x, n in ends
        )
        segments = {"query_segments": 2 * own, "key_segments": others}
    return kernels.flash_attention(
        q, k, v, bias, mask=mask, scale=scale, causal=is_causal, window=window, return_residual=True, **segments,
    )  # fmt: skip


def _four(x: Any) -> Any:
    x = asarray(x)
    return expand_dims(x, tuple(range(4 - x.ndim))) if x.ndim < 4 else x


def _check(q: Any, k: Any, v: Any) -> None:
    if k.shape != v.shape:
        raise ShapeError(f"dot_product_attention: key and value differ in shape: {k.shape} and {v.shape}")
    if not q.dtype == k.dtype == v.dtype:
        raise errors.ArgumentValueError(
            f"dot_product_attention: key and value dtype should be {q.dtype}, query's, but got {k.dtype} and {v.dtype}"
        )
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or q.shape[2] % k.shape[2]:
        raise ShapeError(
            f"dot_product_attention: query {q.shape} does not fit key {k.shape}: batch and dim must be equal, and the "
            f"number of query heads must be a multiple of the number of key heads"
        )


def _check_scores(given: dict[str, Any], shape: tuple[int, ...]) -> None:
    for name, x in given.items():
        if x is None:
            continue
        if x.ndim != 4:
            raise ShapeError(f"dot_product_attention: {name} ndim should be 4, but got {x.ndim}")
        if any(n not in (1, full) for n, full in zip(x.shape, shape)):
            raise ShapeError(
                f"dot_product_attention: {name} of shape {x.shape} does not broadcast to {shape}, (batch, heads, T, S)"
            )
    mask = given["mask"]
    if mask is not None and mask.dtype != np.bool_:
        raise errors.ArgumentValueError(
            f"dot_product_attention: mask dtype should be bool, but got {mask.dtype}; compare it, as in mask > 0"
        )


def _check_lengths(given: dict[str, Any], batch: int) -> None:
    for name, lengths in given.items():
        if lengths is None:
            continue
        if len(np.shape(lengths)) != 1:
            raise ShapeError(f"dot_product_attention: {name} ndim should be 1, but got {len(np.shape(lengths))}")
        if np.shape(lengths)[0] != batch:
            raise ShapeError(f"dot_product_attention: {name} shape should be ({batch},), but got {np.shape(lengths)}")


def _grouped(x: Any, groups: int, heads: int) -> Any:
    """(batch, heads or 1, T, S) as (batch, groups or 1, heads per group or 1, T, S)."""
    b, n, t, s = x.shape
    return reshape(x, (b, 1, 1, t, s)) if n == 1 else reshape(x, (b, groups, heads // groups, t, s))


def _allowed(
    mask: Any, is_causal: Any, q_lengths: Any, kv_lengths: Any, window: Any, length: int, keys: int, groups: int,
    heads: int,
) -> Any:  # fmt: skip
    """Which positions may be attended to, or None for all."""
    rows, columns = arange(length)[:, None], arange(keys)[None, :]
    parts = []
    if mask is not None:
        parts.append(_grouped(mask, groups, heads))
    if is_causal:
        parts.append(rows >= columns)
    if window is not None:
        before, after = (window, window) if isinstance(window, int) else window
        parts.append((rows <= columns + before) & (rows >= columns - after))
    if q_lengths is not None:
        parts.append((rows < asarray(q_lengths)[:, None, None])[:, None, None])
    if kv_lengths is not None:
        parts.append((columns < asarray(kv_lengths)[:, None, None])[:, None, None])
    out = None
    for p in parts:
        out = p if out is None else out & p
    return out
