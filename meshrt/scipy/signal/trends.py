"""Trends of signals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import errors, lax
from meshrt.jit import jit
from meshrt.numpy.operands import canonical_axis
from meshrt.scipy.operands import separate

__all__ = ["detrend"]


def detrend(data: Any, axis: int = -1, type: str = "linear", bp: Any = 0, overwrite_data: None = None) -> Any:
    """A signal less its mean, or less the lines that fit its parts best.

    Args:
      data: of any shape.
      axis: along which samples follow one another.
      type: "linear", or "constant" for the mean.
      bp: where one line ends and the next begins: an int or several, static.

    Returns:
      An array of data's shape, of floating or complex dtype.

    Raises:
      ArgumentValueError: another type, or break points outside the signal.
      UnsupportedError: overwrite_data is given.

    >>> import meshrt.numpy as mnp, meshrt.scipy as msp
    >>> mnp.abs(mnp.round(msp.signal.detrend(mnp.array([1.0, 3.0, 5.0]))))
    Array([0., 0., 0.], dtype=float32)
    """
    if overwrite_data is not None:
        raise errors.UnsupportedError("detrend: overwrite_data argument not implemented; arrays do not change")
    if type not in ("constant", "linear"):
        raise errors.ArgumentValueError(f"Trend type must be 'linear' or 'constant', got {type!r}.")
    (x,) = separate("detrend", jnp.asarray(data))
    axis = canonical_axis(axis, x.ndim, "detrend")
    if type == "constant":
        return x - jnp.mean(x, axis, keepdims=True)
    size = x.shape[axis]
    bounds = np.unique(np.r_[0, bp, size])
    if bounds[0] < 0 or bounds[-1] > size:
        raise errors.ArgumentValueError(
            "Breakpoints must be non-negative and less than length of data along given axis, which is "
            f"{size}, got bp={bp}"
        )
    return _without_lines(x, axis, tuple(map(int, bounds)))


@jit(static_argnums=(1, 2))
def _without_lines(x: Any, axis: int, bounds: tuple[int, ...]) -> Any:
    """Each part less its projection onto constants and lines, of which an orthonormal basis is known beforehand."""
    x = jnp.moveaxis(x, axis, -1)
    parts = []
    for start, stop in itertools.pairwise(bounds):
        lines = np.stack([np.ones(stop - start), np.arange(stop - start)], -1)
        basis = np.linalg.qr(lines - [0, lines[:, 1].mean()])[0].astype(x.dtype)
        part = x[..., start:stop]
        shares = jnp.matmul(part, basis, precision=lax.Precision.HIGHEST)
        parts.append(part - jnp.matmul(shares, basis.T, precision=lax.Precision.HIGHEST))
    return jnp.moveaxis(jnp.concatenate(parts, -1) if parts else x, -1, axis)
