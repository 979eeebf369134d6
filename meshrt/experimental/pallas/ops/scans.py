"""The selective scan of state-space models (Mamba): a linear recurrence whose coefficients depend on the input."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt import numpy as jnp
from meshrt.custom_derivatives import custom_vjp
from meshrt.experimental.pallas.ops import scan_kernels as kernels
from meshrt.experimental.pallas.ops.placement import Split, sized
from meshrt.experimental.pallas.ops.tiles import agreeing

__all__ = ["selective_scan"]


def selective_scan(
    x: Any, delta: Any, a: Any, b: Any, c: Any, d: Any = None, *, block_sizes: tuple[int, int] | None = None
) -> Any:
    """Per channel, with a state of n numbers that starts at zero:

        h[t] = exp(delta[t] * a) * h[t-1] + delta[t] * b[t] * x[t]        y[t] = c[t] · h[t] + d * x[t]

    States stay in a core's memory. The backward pass computes them anew, block by block, from those at the blocks'
    beginnings. Batch and channels are split over a mesh; only the derivatives of b and c are added up over channels.

    Args:
      x, delta: (batch, steps, channels), floating-point.
      a: (channels, states). b, c: (batch, steps, states). d: (channels,) or None. Floating-point.
      block_sizes: steps and channels of a block; chosen by default.

    Returns y (batch, steps, channels) of x's dtype; states and sums are float32 at least.

    >>> import meshrt.numpy as jnp
    >>> one = jnp.ones((1, 3, 1))
    >>> selective_scan(one, one, jnp.zeros((1, 1)), one, one).ravel()
    Array([1., 2., 3.], dtype=float32)

    Raises:
      ArgumentTypeError: shapes or dtypes do not fit.
    """
    x, delta, a, b, c = (jnp.asarray(v) for v in (x, delta, a, b, c))
    d = None if d is None else jnp.asarray(d)
    _check(x, delta, a, b, c, d)
    out = _scan(*agreeing(x, delta, a, b, c), None if block_sizes is None else tuple(block_sizes))
    return out if d is None else out + (d * x).astype(x.dtype)


def _check(x: Any, delta: Any, a: Any, b: Any, c: Any, d: Any) -> None:
    ok = x.ndim == 3 and a.ndim == 2 and x.shape == delta.shape and a.shape[0] == x.shape[2]
    ok = ok and b.shape == c.shape == (*x.shape[:2], a.shape[1]) and (d is None or d.shape == x.shape[2:])
    if not ok:
        raise errors.ArgumentTypeError(
            "selective_scan takes x and delta (batch, steps, channels), a (channels, states), b and c (batch, steps, "
            f"states), d (channels,), but got {x.shape}, {delta.shape}, {a.shape}, {b.shape}, {c.shape} and "
            f"{None if d is None else d.shape}"
        )
    for name, v in zip(("x", "delta", "a", "b", "c", "d"), (x, delta, a, b, c, d)):
        if v is not None and not dtypes.issubdtype(v.dtype, np.floating):
            raise errors.ArgumentTypeError(f"selective_scan takes floating-point arrays, but {name} is {v.dtype}")


@functools.partial(custom_vjp, nondiff_argnums=(5,))
def _scan(x: Any, delta: Any, a: Any, b: Any, c: Any, blocks: Any) -> Any:
    return _forward.rule("m t c, m t c, c n, m t n, m t n -> m t c", whole=("t", "n"), blocks=blocks)(x, delta, a, b, c)


def _scan_forward(x: Any, delta: Any, a: Any, b: Any, c: Any, blocks: Any) -> Any:
    return _scan(x, delta, a, b, c, blocks), (x, delta, a, b, c)


def _scan_backward(blocks: Any, kept: Any, cotangent: Any) -> Any:
    rule = "m t c, m t c, c n, m t n, m t n, m t c -> m t c, m t c, c n, m t n, m t n"
    return tuple(_backward.rule(rule, whole=("t", "n"), blocks=blocks)(*kept, cotangent))


_scan.defvjp(_scan_forward, _scan_backward)


@sized("scan")
def _forward(split: Split, x: Any, delta: Any, a: Any, b: Any, c: Any, *, blocks: Any) -> Any:
    return kernels.forward(x, delta, a.T, b[..., None], c[..., None], blocks)


@sized("scan")
def _backward(split: Split, x: Any, delta: Any, a: Any, b: Any, c: Any, cotangent: Any, *, blocks: Any) -> Any:
    dx, ddelta, da, db, dc = kernels.backward(x, delta, a.T, b[..., None], c[..., None], cotangent, blocks)
    da = split.sum(jnp.sum(da, 0), "m").T.astype(a.dtype)
    db, dc = (split.sum(jnp.sum(v[..., 0], 1), "c").astype(like.dtype) for v, like in ((db, b), (dc, c)))
    return dx, ddelta, da, db, dc
