"""Products of matrices with a collective inside: around a ring of devices, each step's copy runs beside its product.

Both functions are called in the program of one device (within `shard_map`). Each is the other's derivative.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt import numpy as jnp
from meshrt.custom_derivatives import custom_vjp
from meshrt.experimental.pallas.ops import ring_kernels as kernels
from meshrt.experimental.pallas.ops.heuristics import CORES
from meshrt.experimental.pallas.ops.products import Form, call
from meshrt.experimental.pallas.ops.tiles import accumulator, agreeing

__all__ = ["all_gather_matmul", "matmul_reduce_scatter"]


def all_gather_matmul(x: Any, w: Any, axis_name: str, *, block_columns: int | None = None) -> Any:
    """all_gather(x, axis_name, tiled) @ w, in one kernel: devices multiply what has arrived while they pass it on.

    What was gathered is kept for the backward pass, in which `matmul_reduce_scatter` makes the cotangent of x.

    Args:
      x: (m, k), this device's rows. w: (k, n), of x's dtype; usually this device's columns.
      axis_name: the axis of the mesh around which the rows travel.
      block_columns: columns of a block of w; chosen by default. Besides, a core holds m rows of x.

    Returns (devices * m, n), the rows in the order of the devices.

    >>> import meshrt, meshrt.numpy as jnp
    >>> mesh = meshrt.make_mesh((1,), ("x",), axis_types=(meshrt.sharding.AxisType.Auto,))
    >>> ring = lambda x: all_gather_matmul(x, x, "x")
    >>> meshrt.shard_map(ring, mesh=mesh, in_specs=meshrt.P("x"), out_specs=meshrt.P("x"))(jnp.eye(2))
    Array([[1., 0.],
           [0., 1.]], dtype=float32)

    Raises:
      ArgumentTypeError: shapes or dtypes do not fit.
    """
    x, w = jnp.asarray(x), jnp.asarray(w)
    _check("all_gather_matmul", x, w)
    return _gathered(*agreeing(x, w), (axis_name, False, block_columns))


def matmul_reduce_scatter(x: Any, w: Any, axis_name: str, *, block_columns: int | None = None) -> Any:
    """psum_scatter(x @ w, axis_name, tiled) over rows, in one kernel: partial sums travel while products are made.

    Partial sums are float32 at least.

    Args:
      x: (devices * m, k). w: (k, n), of x's dtype.
      axis_name, block_columns: as in `all_gather_matmul`.

    Returns (m, n): this device's rows of the sum.

    >>> import meshrt, meshrt.numpy as jnp
    >>> mesh = meshrt.make_mesh((1,), ("x",), axis_types=(meshrt.sharding.AxisType.Auto,))
    >>> ring = lambda x: matmul_reduce_scatter(x, x, "x")
    >>> meshrt.shard_map(ring, mesh=mesh, in_specs=meshrt.P("x"), out_specs=meshrt.P("x"))(jnp.eye(2))
    Array([[1., 0.],
           [0., 1.]], dtype=float32)

    Raises:
      ArgumentTypeError: shapes or dtypes do not fit, or the devices do not divide the rows.
    """
    x, w = jnp.asarray(x), jnp.asarray(w)
    _check("matmul_reduce_scatter", x, w)
    count = lax.axis_size(axis_name)
    if x.shape[0] % count:
        raise errors.ArgumentTypeError(
            f"matmul_reduce_scatter: {count} devices along {axis_name!r} do not divide the {x.shape[0]} rows of x "
            f"{x.shape}; pad x"
        )
    return _scattered(*agreeing(x, w), (axis_name, False, block_columns))


def _check(name: str, x: Any, w: Any) -> None:
    if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[0]:
        raise errors.ArgumentTypeError(f"{name} takes x (rows, k) and w (k, n), but got {x.shape} and {w.shape}")
    if x.dtype != w.dtype or not dtypes.issubdtype(x.dtype, np.floating):
        raise errors.ArgumentTypeError(
            f"{name} takes floating-point operands of one dtype, got {x.dtype} and {w.dtype}; convert them"
        )


# `how` is (axis, whether w is transposed: (n, k), columns of a block)


@functools.partial(custom_vjp, nondiff_argnums=(2,))
def _gathered(x: Any, w: Any, how: Any) -> Any:
    return kernels.all_gather(x, w, *how)[0]


def _gathered_forward(x: Any, w: Any, how: Any) -> Any:
    out, arrived = kernels.all_gather(x, w, *how)
    return out, (arrived, w)


def _gathered_backward(how: Any, kept: Any, cotangent: Any) -> Any:
    axis, turned, _ = how
    arrived, w = kept
    dx = _scattered(cotangent, w, (axis, not turned, None))
    return dx, _of_weights(arrived, cotangent, axis, turned).astype(w.dtype)


_gathered.defvjp(_gathered_forward, _gathered_backward)


def _of_weights(arrived: Any, rows: Any, axis: str, turned: bool) -> Any:
    """The product of what arrived, in the order in which it did, with its rows of another matrix: (k, n), or (n, k)."""
    count, m, k = arrived.shape
    order = (lax.axis_index(axis) - jnp.arange(count)) % count
    rows = rows.reshape(count, m, -1)[order].reshape(count * m, -1)
    flat = arrived.reshape(count * m, k)
    operands = (rows, flat) if turned else (flat, rows)
    return call(*operands, None, Form(True, False), None, CORES.matmul, False, accumulator(rows))[0]


@functools.partial(custom_vjp, nondiff_argnums=(2,))
def _scattered(x: Any, w: Any, how: Any) -> Any:
    return kernels.reduce_scatter(x, w, *how)


def _scattered_forward(x: Any, w: Any, how: Any) -> Any:
    return _scattered(x, w, how), (x, w)


def _scattered_backward(how: Any, kept: Any, cotangent: Any) -> Any:
    axis, turned, _ = how
    x, w = kept
    dx, arrived = kernels.all_gather(cotangent, w, axis, not turned, None)
    return dx, _of_weights(arrived, x, axis, not turned).astype(w.dtype)


_scattered.defvjp(_scattered_forward, _scattered_backward)
