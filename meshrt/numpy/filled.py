"""Arrays of one value: full, zeros, ones, and those like another array, which lie where that one lies."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt._keytypes import KeyType
from meshrt.core.basic.shapes import canonical_shape
from meshrt.core.types import aval_of
from meshrt.lax.filled import as_wide, filled, sharding_like, varying_like
from meshrt.numpy.arrays import asarray, placed
from meshrt.numpy.operands import PYTHON_SCALARS, aval_for, broadcast_to_shape, operand, refuse_broadcast, shape_tuple
from meshrt.primitives.random import random_wrap
from meshrt.sharding.typed import asked, check_divides, fitted

__all__ = ["empty", "empty_like", "full", "full_like", "ones", "ones_like", "zeros", "zeros_like"]


def full(shape: Any, fill_value: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """An array of ``shape`` filled with ``fill_value``, a scalar or an array that broadcasts to it.

    Args:
      shape: sizes of the result.
      fill_value: the value, which broadcasts to the shape.
      dtype: the dtype of the result; by default the one that follows from the operands.
      device: a device or a sharding to put the result on.
      out_sharding: the sharding of the result over Explicit axes.

    Returns:
      An array.

    >>> jnp.full((2,), 7)
    Array([7, 7], dtype=int32, weak_type=True)
    """
    return _full("full", shape, fill_value, dtype, device, out_sharding)


def _full(name: str, shape: Any, fill_value: Any, dtype: Any, device: Any, out_sharding: Any) -> Any:
    if type(dtype) is int:
        raise dtypes.DTypeError(
            f"{name}: dtype={dtype} is not a dtype. Did you accidentally write `jax.numpy.{name}({shape}, {dtype})` "
            f"when you meant `jax.numpy.{name}({(*shape_tuple(shape), dtype)})`, with one tuple for the shape?"
        )
    shape = shape_tuple(shape, name)
    if isinstance(dtype, KeyType) and isinstance(fill_value, int):  # keys whose words are all alike
        words = _full(name, dtype.physical_shape(shape), fill_value, np.uint32, None, None)
        return placed(random_wrap(words, dtype.impl), device, out_sharding)
    dtype = None if dtype is None else dtypes.check_user_dtype(dtype, name)
    if isinstance(fill_value, PYTHON_SCALARS):
        return _fill(name, shape, fill_value, dtype, device, out_sharding)
    fill_value = operand(name, fill_value, 1)
    own = aval_of(fill_value).shape
    if not own:
        return _fill(name, shape, fill_value, dtype, device, out_sharding)
    refuse_broadcast(aval_of(fill_value) if dtype is None else aval_of(fill_value).update(dtype=dtype), shape)
    return placed(broadcast_to_shape(asarray(fill_value, dtype), shape), device, out_sharding)


def _fill(name: str, shape: tuple[int, ...], value: Any, dtype: Any, device: Any, out_sharding: Any) -> Any:
    if device is not None and out_sharding is not None:
        raise errors.ArgumentTypeError("give either device or out_sharding, not both")
    if out_sharding is not None:
        wanted = asked(out_sharding, len(shape), f"jnp.{name}")
        if wanted is not None and not getattr(out_sharding, "uneven", False):
            check_divides(wanted, shape, f"jnp.{name}")
        out_sharding = fitted(out_sharding, len(shape))
    where = device if device is not None else out_sharding
    return filled(shape, value, dtype, where, keeps_weak=out_sharding is not None)


def zeros(shape: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """An array of zeros, float32 unless ``dtype`` is given.

    Args:
      shape: sizes of the result.
      dtype: the dtype of the result; by default the one that follows from the operands.
      device: a device or a sharding to put the result on.
      out_sharding: the sharding of the result over Explicit axes.

    >>> jnp.zeros((2,))
    Array([0., 0.], dtype=float32)
    """
    return _full("zeros", shape, 0, float if dtype is None else dtype, device, out_sharding)


def ones(shape: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """An array of ones, float32 unless ``dtype`` is given.

    Args:
      shape: sizes of the result.
      dtype: the dtype of the result; by default the one that follows from the operands.
      device: a device or a sharding to put the result on.
      out_sharding: the sharding of the result over Explicit axes.

    >>> jnp.ones((2,), dtype=jnp.int32)
    Array([1, 1], dtype=int32)
    """
    return _full("ones", shape, 1, float if dtype is None else dtype, device, out_sharding)


def empty(shape: Any, dtype: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """An array of zeros: uninitialised memory does not exist here.

    Args:
      shape: sizes of the result.
      dtype: the dtype of the result; by default the one that follows from the operands.
      device: a device or a sharding to put the result on.
      out_sharding: the sharding of the result over Explicit axes.

    >>> jnp.empty((2, 3)).shape
    (2, 3)
    """
    return _full("empty", shape, 0, float if dtype is None else dtype, device, out_sharding)


def full_like(
    a: Any, fill_value: Any, dtype: Any = None, shape: Any = None, *, device: Any = None, out_sharding: Any = None
) -> Any:
    """An array of the shape and dtype of ``a`` filled with ``fill_value``.

    Args:
      a: an array, or what `asarray` makes one of.
      fill_value: the value, which broadcasts to the shape.
      dtype: the dtype of the result; by default the one that follows from the operands.
      shape: sizes of the result; by default those of `a`.
      device: a device or a sharding to put the result on.
      out_sharding: the sharding of the result over Explicit axes.

    >>> jnp.full_like(jnp.ones(2), 7)
    Array([7., 7.], dtype=float32)
    """
    return _full_like("full_like", a, fill_value, dtype, shape, device, out_sharding)


def _full_like(name: str, a: Any, fill_value: Any, dtype: Any, shape: Any, device: Any, out_sharding: Any) -> Any:
    convert = getattr(a, "__jax_array__", None)
    if convert is not None:
        a = convert()
    return varying_like(_filled_like(name, a, fill_value, dtype, shape, device, out_sharding), a)


def _filled_like(name: str, a: Any, fill_value: Any, dtype: Any, shape: Any, device: Any, out_sharding: Any) -> Any:
    if not (hasattr(a, "shape") and hasattr(a, "dtype")):  # whatever describes an array will do
        aval_for(name, a)
    own_shape = a.shape if hasattr(a, "shape") else ()
    weak = False
    if dtype is None:
        own, weak = dtypes.dtype_and_weak_type(a)
        if (dtype := dtypes.canonicalize_dtype(own)) != own:
            return as_wide(_filled_like(name, a, fill_value, dtype, shape, device, out_sharding), own)
    shape = own_shape if shape is None else shape
    if isinstance(dtype, KeyType) and isinstance(fill_value, int):
        return _full(name, shape, fill_value, dtype, None, None)
    if device is None and out_sharding is None:
        device = sharding_like(a, canonical_shape(shape))
    if weak and isinstance(fill_value, PYTHON_SCALARS):
        kind = dtypes.scalar_type_of(dtype)
        scalar = kind(fill_value.real if isinstance(fill_value, complex) and kind is not complex else fill_value)
        if aval_of(scalar).dtype == dtype:
            return _fill(name, shape_tuple(shape, name), scalar, None, device, out_sharding)
    return _full(name, shape, fill_value, dtype, device, out_sharding)


def zeros_like(a: Any, dtype: Any = None, shape: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """Zeros of the shape and dtype of ``a``.

    Args:
      a: an array, or what `asarray` makes one of.
      dtype: the dtype of the result; by default the one that follows from the operands.
      shape: sizes of the result; by default those of `a`.
      device: a device or a sharding to put the result on.
      out_sharding: the sharding of the result over Explicit axes.

    >>> jnp.zeros_like(jnp.array([5, 6]))
    Array([0, 0], dtype=int32)
    """
    return _full_like("zeros_like", a, 0, dtype, shape, device, out_sharding)


def ones_like(a: Any, dtype: Any = None, shape: Any = None, *, device: Any = None, out_sharding: Any = None) -> Any:
    """Ones of the shape and dtype of ``a``.

    Args:
      a: an array, or what `asarray` makes one of.
      dtype: the dtype of the result; by default the one that follows from the operands.
      shape: sizes of the result; by default those of `a`.
      device: a device or a sharding to put the result on.
      out_sharding: the sharding of the result over Explicit axes.

    >>> jnp.ones_like(jnp.array([5.0, 6.0]))
    Array([1., 1.], dtype=float32)
    """
    return _full_like("ones_like", a, 1, dtype, shape, device, out_sharding)


def empty_like(
    prototype: Any, dtype: Any = None, shape: Any = None, *, device: Any = None, out_sharding: Any = None
) -> Any:
    """As :func:`zeros_like`.

    Args:
      prototype: an array.
      dtype: the dtype of the result; by default the one that follows from the operands.
      shape: sizes of the result; by default those of `prototype`.
      device: a device or a sharding to put the result on.
      out_sharding: the sharding of the result over Explicit axes.

    >>> jnp.empty_like(jnp.ones(2)).dtype
    dtype('float32')
    """
    return _full_like("empty_like", prototype, 0, dtype, shape, device, out_sharding)
