"""Numbers from the Gumbel distribution, and positions that are drawn with their help."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.numpy import prims as el
from meshrt.numpy import ufuncs as uf
from meshrt.numpy.arrays import operand_array
from meshrt.numpy.operands import ShapeError, broadcast_shapes, canonical_axis, scalar_like, shape_tuple
from meshrt.numpy.reductions import argmax
from meshrt.numpy.selection import where
from meshrt.numpy.shapes import moveaxis
from meshrt.primitives import random as rn
from meshrt.primitives.axis_types import in_auto_mode
from meshrt.random.keys import typed
from meshrt.random.uniforms import draw_uniform, float_dtype, one_program, placed

__all__ = ["categorical", "gumbel"]


@in_auto_mode
def gumbel(key: Any, shape: Any = (), dtype: Any = None, mode: str | None = None, *, out_sharding: Any = None) -> Any:
    """Numbers from the Gumbel distribution.

    ``mode="high"`` resolves the upper tail more finely than "low", "highest" both, from 64 bits for each number (of
    float32; of other dtypes it is "high").

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      mode: "low", "high" or "highest".
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.gumbel(meshrt.random.key(0), (2,)).shape
    (2,)
    """
    key, _ = typed("gumbel", key)
    dtype, shape = float_dtype("gumbel", dtype), shape_tuple(shape)
    if mode not in (None, "low", "high", "highest"):
        raise errors.ArgumentValueError(
            f"Must provide valid mode for gumbel got: {mode}; known: 'low', 'high', 'highest'"
        )
    if mode == "highest" and dtype == np.float32:
        return placed(_finest_gumbel(key, shape, dtype), out_sharding)
    return placed((_fine_gumbel if mode in ("high", "highest") else _gumbel)(key, shape, dtype), out_sharding)


@one_program
def _gumbel(key: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    x = el.log_p.bind(draw_uniform(key, shape, dtype, dtypes.finfo(dtype).tiny, 1.0))
    return el.neg_p.bind(el.log_p.bind(el.neg_p.bind(x)))


@one_program
def _fine_gumbel(key: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    info = dtypes.finfo(dtype)
    pair = draw_uniform(key, (2, *shape), dtype, 0.0, 1.0)
    high, low = pair[0], pair[1]
    fine = high + low * scalar_like(low, 2.0**-info.nmant) + scalar_like(low, info.tiny)
    x = el.log1p_p.bind(el.neg_p.bind(where(high >= 0.5, high, fine)))
    return el.neg_p.bind(el.log_p.bind(el.neg_p.bind(x)))


def _fraction(high: Any, low: Any) -> Any:
    """The number 0.b, whose first 64 binary digits are those of two uint32, rounded towards zero to a float32."""
    bits = lambda n: scalar_like(high, n)
    lead, rest = lax.clz(high), lax.clz(low)
    upper = high >= 1
    zeros = where(upper, lead, rest + bits(32))
    shifted = where(upper, (high << lead) | lax.shift_right_logical(low, bits(32) - lead), low << rest)
    digits = lax.shift_right_logical(shifted, bits(8)) | bits(1 << 23)
    scale = lax.bitcast_convert_type((bits(127 - 24) - zeros) << bits(23), np.float32)
    return digits.astype(np.float32) * scale


@one_program
def _finest_gumbel(key: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    pair = rn.random_bits(key, 32, (2, *shape))
    high, low = pair[0], pair[1]
    below = high < scalar_like(high, 1 << 31)
    # What is above one half is found from its distance to one, 2^64 minus the digits.
    far_low = lax.bitwise_not(low) + scalar_like(low, 1)
    far_high = lax.bitwise_not(high) + (low == scalar_like(low, 0)).astype(np.uint32)
    x = _fraction(where(below, high, far_high), where(below, low, far_low))
    return where(below, -uf.log(-uf.log1p(-x)), -uf.log(-uf.log(x)))


@in_auto_mode
def categorical(
    key: Any, logits: Any, axis: int = -1, shape: Any = None, replace: bool = True, mode: str | None = None, *,
    out_sharding: Any = None,
) -> Any:  # fmt: skip
    """Positions along ``axis`` with probabilities softmax(logits), by the Gumbel trick.

    Args:
      shape: shape of the samples; it ends with the shape of ``logits`` without ``axis``.
      replace: whether positions may repeat; without, the leading dimensions of ``shape`` are drawn together.

    >>> meshrt.random.categorical(meshrt.random.key(0), jnp.array([0.0, -jnp.inf]), shape=(3,))
    Array([0, 0, 0], dtype=int32)
    """
    key, _ = typed("categorical", key)
    logits = operand_array("categorical", logits)
    axis = canonical_axis(axis, logits.ndim, "categorical")
    batch = (*logits.shape[:axis], *logits.shape[axis + 1 :])
    shape = batch if shape is None else shape_tuple(shape)
    if broadcast_shapes(shape, batch) != shape:
        raise ShapeError(f"categorical: the shape {shape} does not end with the batch shape {batch} of the logits")
    prefix = shape[: len(shape) - len(batch)]
    if not replace:
        return placed(_without_replacement(key, logits, axis, prefix, batch, mode), out_sharding)
    tail = list(shape[len(prefix) :])
    tail.insert(axis, logits.shape[axis])
    noise = gumbel(key, (*prefix, *tail), logits.dtype, mode)
    logits = lax.expand_dims(logits, range(len(prefix)))
    return placed(argmax(uf.add(noise, logits), axis=len(prefix) + axis), out_sharding)


def _without_replacement(key: Any, logits: Any, axis: int, prefix: tuple, batch: tuple, mode: Any) -> Any:
    count = math.prod(prefix)
    if count > logits.shape[axis]:
        raise ShapeError(
            f"categorical: Number of samples without replacement ({count}) cannot exceed number of categories "
            f"({logits.shape[axis]})"
        )
    noisy = uf.add(logits, gumbel(key, logits.shape, logits.dtype, mode))
    _, chosen = lax.top_k(moveaxis(noisy, axis, -1), count)
    return lax.reshape(moveaxis(chosen, -1, 0), (*prefix, *batch))
