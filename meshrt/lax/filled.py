"""Arrays of one value that lie where they are asked to, or where another array lies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.basic.shapes import broadcast_in_dim, canonical_shape
from meshrt.core.basic.varying import in_order, vary
from meshrt.core.trace import EVAL, Tracer, current_trace
from meshrt.core.types import aval_of
from meshrt.jit import jit
from meshrt.primitives.axis_types import is_explicit
from meshrt.primitives.conversion import bind_conversion, convert_element_type
from meshrt.primitives.device_put import device_put
from meshrt.primitives.reshape import filling, spread
from meshrt.primitives.sharding import with_sharding_constraint
from meshrt.runtime import backend
from meshrt.sharding._state import context as mesh_context
from meshrt.sharding.context import off_other_devices
from meshrt.sharding.named import NamedSharding, SingleDeviceSharding
from meshrt.sharding.spec import PartitionSpec
from meshrt.sharding.typed import abstract
from meshrt.xla import jaxlib_api

__all__ = ["broadcast_like", "empty", "full", "full_like", "sharding_like", "varying_like"]


def full(shape: Sequence[int], fill_value: Any, dtype: Any = None, *, sharding: Any = None) -> Any:
    """An array of `shape` filled with the scalar `fill_value`.

    `sharding` is a Sharding, a PartitionSpec of the mesh in context or a device; by default the array is not placed.

    Args:
      shape: sizes of the result.
      fill_value: a scalar.
      dtype: the dtype of the result.
      sharding: the sharding of the result.

    >>> lax.full((2,), 7)
    Array([7, 7], dtype=int32, weak_type=True)
    """
    return filled(shape, fill_value, dtype, sharding, keeps_weak=False)


def filled(shape: Sequence[int], fill_value: Any, dtype: Any, sharding: Any, *, keeps_weak: bool) -> Any:
    """As `full`. A placed array is weakly typed only where its sharding is its type's (`keeps_weak`), as in JAX."""
    shape, value = filling(shape, fill_value, dtype)
    if sharding is None:
        return spread(value, shape)
    if current_trace() is not EVAL or isinstance(value, Tracer):
        if isinstance(sharding, NamedSharding | PartitionSpec) and is_explicit(sharding):
            return broadcast_in_dim(value, shape, (), out_sharding=sharding)
        return constrained_to(spread(value, shape), sharding)
    if not keeps_weak:
        value = np.asarray(value, aval_of(value).dtype)[()]
    # Each device makes its own part: the whole may fit on none.
    if isinstance(sharding, PartitionSpec) or (isinstance(sharding, NamedSharding) and not sharding.is_concrete):
        return _filler(shape, sharding)(value)
    if isinstance(sharding, NamedSharding):
        with off_other_devices(sharding):
            return _filler(shape, sharding)(value)
    return device_put(spread(value, shape), sharding)


def empty(shape: int | Sequence[int], dtype: Any, *, out_sharding: Any = None) -> Any:
    """An array of `shape` and `dtype` whose elements mean nothing (here they are zeros).

    `out_sharding` is a NamedSharding, or a PartitionSpec of the mesh in context.

    Args:
      shape: sizes of the result.
      dtype: the dtype of the result.
      out_sharding: the sharding of the result over Explicit axes.

    >>> lax.empty((2, 3), jnp.float32).shape
    (2, 3)
    """
    return full((shape,) if isinstance(shape, int) else shape, 0, dtype, sharding=out_sharding)


def broadcast_like(arr: Any, like_arr: Any) -> Any:
    """`arr` with the shape of `like_arr`, to which it broadcasts by NumPy's rules, and with its sharding.

    Raises:
      ArgumentValueError: the shapes do not broadcast.

    Args:
      arr: an array.
      like_arr: an array, whose shape is taken.

    >>> lax.broadcast_like(jnp.array([[1]]), jnp.ones((2, 2)))
    Array([[1, 1],
           [1, 1]], dtype=int32)
    """
    aval, like = aval_of(arr), aval_of(like_arr)
    missing = like.ndim - aval.ndim
    if missing < 0 or any(n not in (1, m) for n, m in zip(aval.shape, like.shape[missing:])):
        raise errors.ArgumentValueError(
            f"broadcast_like cannot broadcast {aval.short()} to the shape of {like.short()}: dimensions, "
            "aligned from the right, must be equal or 1"
        )
    dims = range(missing, like.ndim)
    return broadcast_in_dim(arr, like.shape, dims, out_sharding=like.explicit)


def constrained_to(x: Any, where: Any) -> Any:
    """`x` while it is traced, where a Sharding, a PartitionSpec or a device says."""
    return with_sharding_constraint(x, SingleDeviceSharding(where) if isinstance(where, jaxlib_api.Device) else where)


@functools.lru_cache(maxsize=1024)
def _filler(shape: tuple[int, ...], sharding: Any) -> Callable[[Any], Any]:
    fill: Callable[[Any], Any] = jit(lambda value: spread(value, shape), out_shardings=sharding)
    return fill


backend.on_clear(_filler.cache_clear)  # their shardings hold devices


def sharding_like(x: Any, shape: tuple[int, ...]) -> Any:
    """The sharding that an array of `shape` made like `x` gets: that of `x` if it was placed, and fits the shape."""
    if isinstance(x, Tracer):
        return x.aval.explicit if x.aval.shape == shape else None
    sharding = getattr(x, "sharding", None)
    if sharding is None or not getattr(x, "committed", True) or getattr(x, "weak_type", False):
        return None
    if current_trace() is not EVAL:
        return None
    if not sharding.is_concrete:  # of a ShapeDtypeStruct
        around = mesh_context.concrete
        if around is None or around.abstract_mesh is not sharding.mesh.abstract_mesh:
            return None
        sharding = sharding.update(mesh=around)
    return sharding if tuple(x.shape) == shape or sharding.is_fully_replicated else None


def full_like(
    x: Any, fill_value: Any, dtype: Any = None, shape: Sequence[int] | None = None, sharding: Any = None
) -> Any:
    """An array like `x` filled with `fill_value`; of the same shape, it is sharded like `x` as well.

    In a manual region it varies over the axes over which `x` does.

    Args:
      x: an array.
      fill_value: a scalar.
      dtype: the dtype of the result.
      shape: sizes of the result.
      sharding: the sharding of the result.

    >>> lax.full_like(jnp.ones(2), 7)
    Array([7., 7.], dtype=float32)
    """
    aval = abstract(x)
    if sharding is None:
        sharding = sharding_like(x, aval.shape if shape is None else canonical_shape(shape))
    out = full(
        aval.shape if shape is None else shape, fill_value, aval.dtype if dtype is None else dtype, sharding=sharding
    )
    if dtype is None:
        out = as_wide(out, aval.dtype)
    if dtype is None and aval.weak_type:
        out = convert_element_type(out, aval.dtype, weak_type=True)
    return varying_like(out, x)


def as_wide(out: Any, dtype: Any) -> Any:
    """`out` in the dtype of the array that it was made like: one of 64 bits stays so after x64 is off again."""
    return out if aval_of(out).dtype == dtype else bind_conversion(out, dtype, False)


def varying_like(out: Any, x: Any) -> Any:
    """`out`, which was made to be like `x`, as a value that varies over what `x` varies over: fit to be its successor
    in a loop, or another branch's result beside it."""
    # An array is in no region; a ShapeDtypeStruct may describe a value of one.
    mat = x.aval.mat if isinstance(x, Tracer) else getattr(x, "manual_axis_type", None)
    return vary(out, in_order(mat.varying)) if mat is not None and mat.varying else out
