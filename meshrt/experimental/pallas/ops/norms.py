"""RMSNorm: rows divided by the root of their mean square, times a scale."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt import numpy as jnp
from meshrt.custom_derivatives import custom_vjp
from meshrt.experimental import pallas as pl
from meshrt.experimental.pallas import tpu as pltpu
from meshrt.experimental.pallas.ops import heuristics
from meshrt.experimental.pallas.ops.placement import Split, sized
from meshrt.experimental.pallas.ops.tiles import accumulator, agreeing, within
from meshrt.shape_dtype import ShapeDtypeStruct

__all__ = ["rms_norm"]


def rms_norm(x: Any, scale: Any, *, epsilon: float = 1e-6, block_rows: int | None = None) -> Any:
    """x / sqrt(mean(x²) + epsilon) * scale along the last dimension, read once forward and once backward.

    Means are float32 at least. All but the last dimension are split over a mesh without communication; the derivative
    of `scale` is added up.

    Args:
      x: (..., d), floating-point. scale: (d,), floating-point.
      block_rows: how many rows a core holds at once; chosen from the width by default.

    >>> import meshrt.numpy as jnp
    >>> rms_norm(jnp.array([[3.0, -3.0]]), jnp.array([1.0, 2.0])).round(2)
    Array([[ 1., -2.]], dtype=float32)

    Raises:
      ArgumentTypeError: shapes or dtypes do not fit. ArgumentValueError: `block_rows` is no positive number.
    """
    x, scale = jnp.asarray(x), jnp.asarray(scale)
    if x.ndim < 1 or scale.shape != x.shape[-1:]:
        raise errors.ArgumentTypeError(
            f"rms_norm of x {x.shape} takes a scale of shape {x.shape[-1:]}, got {scale.shape}"
        )
    for what, v in (("x", x), ("scale", scale)):
        if not dtypes.issubdtype(v.dtype, np.floating):
            raise errors.ArgumentTypeError(f"rms_norm takes floating-point arrays, but {what} is {v.dtype}; convert it")
    if block_rows is not None and not (isinstance(block_rows, int | np.integer) and block_rows > 0):
        raise errors.ArgumentValueError(
            f"rms_norm: block_rows is how many rows a block has, 1 or more; got {block_rows!r}"
        )
    return _rms_norm(*agreeing(x, scale), float(epsilon), None if block_rows is None else (0, int(block_rows)))


@functools.partial(custom_vjp, nondiff_argnums=(2, 3))
def _rms_norm(x: Any, scale: Any, epsilon: float, blocks: Any) -> Any:
    return _normalise(x, scale, epsilon, blocks)[0]


def _normalise(x: Any, scale: Any, epsilon: float, blocks: Any) -> Any:
    rows = _rows(x)
    return _forward.rule(f"{rows} d, d -> {rows} d, {rows}", whole=("d",), epsilon=epsilon, blocks=blocks)(x, scale)


def _rms_norm_forward(x: Any, scale: Any, epsilon: float, blocks: Any) -> Any:
    out, inverse = _normalise(x, scale, epsilon, blocks)
    return out, (x, scale, inverse)


def _rms_norm_backward(epsilon: float, blocks: Any, kept: Any, cotangent: Any) -> Any:
    rows = _rows(kept[0])
    rule = f"{rows} d, d, {rows}, {rows} d -> {rows} d, d"
    return tuple(_backward.rule(rule, whole=("d",), blocks=blocks)(*kept, cotangent))


_rms_norm.defvjp(_rms_norm_forward, _rms_norm_backward)


def _rows(x: Any) -> str:
    return " ".join(f"m{i}" for i in range(x.ndim - 1))


@sized("norm")
def _forward(split: Split, x: Any, scale: Any, *, epsilon: float, blocks: tuple[int, int]) -> Any:
    """(results, the inverse of each row's root mean square)."""
    flat = x.reshape(-1, x.shape[-1])
    rows, width = flat.shape
    acc = accumulator(x)
    size = heuristics.rows_of(rows, width, blocks)
    whole, one = pl.BlockSpec((size, width), lambda i: (i, 0)), pl.BlockSpec((size, 1), lambda i: (i, 0))
    out, inverse = pl.pallas_call(
        functools.partial(_forward_kernel, epsilon=epsilon, acc=acc),
        grid=(pl.cdiv(rows, size),),
        in_specs=[whole, pl.BlockSpec((1, width), lambda i: (0, 0))],
        out_specs=[whole, one],
        out_shape=[ShapeDtypeStruct(flat.shape, x.dtype), ShapeDtypeStruct((rows, 1), acc)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        cost_estimate=_cost(flat, 2),
        name="rms_norm",
    )(flat, scale.reshape(1, -1))
    return out.reshape(x.shape), inverse.reshape(x.shape[:-1])


def _forward_kernel(x_ref: Any, scale_ref: Any, out_ref: Any, inverse_ref: Any, *, epsilon: float, acc: Any) -> None:
    x = x_ref[...].astype(acc)
    inverse = lax.rsqrt(jnp.sum(x * x, axis=1, keepdims=True) / x.shape[1] + np.asarray(epsilon, acc)[()])
    out_ref[...] = (x * inverse * scale_ref[...].astype(acc)).astype(out_ref.dtype)
    inverse_ref[...] = inverse


def _plain_backward(split: Split, x: Any, scale: Any, inverse: Any, cotangent: Any, *, blocks: Any) -> Any:
    """For GPUs: the sum over rows, for which a kernel would walk through them one block after the other, is one of the
    compiler's reductions. Of 8192 x 4096 in bfloat16 on an H200 0.11 ms, by the kernel 7."""
    acc = accumulator(x)
    normal, g = x.astype(acc) * inverse[..., None], cotangent.astype(acc)
    scaled = g * scale.astype(acc)
    along = jnp.mean(scaled * normal, axis=-1, keepdims=True)
    dx = (inverse[..., None] * (scaled - normal * along)).astype(x.dtype)
    rows = tuple(range(x.ndim - 1))
    return dx, split.sum(jnp.sum(g * normal, rows), *[f"m{i}" for i in rows]).astype(scale.dtype)


@sized("norm", on_gpus=_plain_backward)
def _backward(split: Split, x: Any, scale: Any, inverse: Any, cotangent: Any, *, blocks: tuple[int, int]) -> Any:
    flat, g = x.reshape(-1, x.shape[-1]), cotangent.reshape(-1, x.shape[-1])
    rows, width = flat.shape
    acc = accumulator(x)
    size = heuristics.rows_of(rows, width, blocks)
    whole, one = pl.BlockSpec((size, width), lambda i: (i, 0)), pl.BlockSpec((size, 1), lambda i: (i, 0))
    single = pl.BlockSpec((1, width), lambda i: (0, 0))
    dx, dscale = pl.pallas_call(
        functools.partial(_backward_kernel, rows=rows, acc=acc),
        grid=(pl.cdiv(rows, size),),
        in_specs=[whole, single, one, whole],
        out_specs=[whole, single],
        out_shape=[ShapeDtypeStruct(flat.shape, x.dtype), ShapeDtypeStruct((1, width), acc)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        cost_estimate=_cost(flat, 3),
        name="rms_norm_backward",
    )(flat, scale.reshape(1, -1), inverse.reshape(-1, 1), g)
    split_rows = [f"m{i}" for i in range(x.ndim - 1)]
    return dx.reshape(x.shape), split.sum(dscale.reshape(-1), *split_rows).astype(scale.dtype)


def _backward_kernel(
    x_ref: Any, scale_ref: Any, inverse_ref: Any, g_ref: Any, dx_ref: Any, dscale_ref: Any, *, rows: int, acc: Any
) -> None:
    step = pl.program_id(0)

    @pl.when(step == 0)
    def _start() -> None:
        dscale_ref[...] = jnp.zeros(dscale_ref.shape, acc)

    x, g, inverse = (within(ref[...], step, 0, rows).astype(acc) for ref in (x_ref, g_ref, inverse_ref))
    normal = x * inverse
    scaled = g * scale_ref[...].astype(acc)
    along = jnp.sum(scaled * normal, axis=1, keepdims=True) / x.shape[1]
    dx_ref[...] = (inverse * (scaled - normal * along)).astype(dx_ref.dtype)
    dscale_ref[...] += jnp.sum(g * normal, axis=0, keepdims=True)


def _cost(x: Any, passes: int) -> Any:
    return pl.CostEstimate(
        flops=4 * passes * x.size, transcendentals=x.shape[0], bytes_accessed=passes * x.size * x.dtype.itemsize
    )
