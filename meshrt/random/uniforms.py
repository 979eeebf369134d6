"""Random bits, uniform numbers and integers, and what every sampler does with its arguments.

Each sampler takes a key, a shape and a dtype; the numbers equal JAX's for the same arguments. ``out_sharding``
constrains the sharding of the result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.operators import ArrayOperators
from meshrt.core.trace import EVAL, current_trace
from meshrt.core.types import aval_of
from meshrt.jit import jit
from meshrt.numpy import logic
from meshrt.numpy import prims as el
from meshrt.numpy import ufuncs as uf
from meshrt.numpy.arrays import asarray
from meshrt.numpy.operands import ShapeError, broadcast_shapes, broadcast_to_shape, scalar_like, shape_tuple
from meshrt.numpy.selection import clip, where
from meshrt.primitives import random as rn
from meshrt.primitives.axis_types import in_auto_mode
from meshrt.random.keys import typed
from meshrt.sharding import NamedSharding

__all__ = ["bits", "randint", "uniform"]


def float_dtype(name: str, dtype: Any) -> np.dtype:
    """The dtype to sample: the default float for None. ArgumentValueError if it is not floating."""
    dtype = dtypes.check_user_dtype(float if dtype is None else dtype, name)
    if not dtypes.issubdtype(dtype, np.floating):
        raise errors.ArgumentValueError(f"dtype argument to `{name}` must be a float dtype, got {dtype}")
    return dtype


def checked_dtype(name: str, dtype: Any, *parameters: Any) -> np.dtype:
    """`float_dtype`; TypePromotionError if a parameter's dtype does not promote to it."""
    dtype = float_dtype(name, dtype)
    for p in parameters:
        if aval_of(p).dtype != dtype and dtypes.result_type(p, dtype) != dtype:
            raise dtypes.TypePromotionError(
                f"In arguments to {name}, cannot safely cast argument of type {aval_of(p).dtype} to {dtype}; ask for "
                f"another dtype, or convert the parameter with astype"
            )
    return dtype


class IntegerDtypeError(errors.ArgumentTypeError, errors.ArgumentValueError):
    """Integers were to be drawn in a dtype that holds none."""


def int_dtype(name: str, dtype: Any) -> np.dtype:
    """The dtype to sample: the default integer for None. An error of both classes (JAX's functions do not agree) if it
    is no integer."""
    dtype = dtypes.check_user_dtype(int if dtype is None else dtype, name)
    if not dtypes.issubdtype(dtype, np.integer):
        raise IntegerDtypeError(
            f"{name} only accepts integer dtypes, got {dtype}: the dtype argument to `{name}` must be an int dtype"
        )
    return dtype


def sample_shape(name: str, shape: Any, *parameters: Any) -> tuple[int, ...]:
    """The shape of the samples: ``shape``, which the parameters must broadcast to, or what they broadcast to."""
    return broadcast_shape(name, shape, *(aval_of(p).shape for p in parameters))


def broadcast_shape(name: str, shape: Any, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """`sample_shape` for parameters of these shapes."""
    if shape is None:
        return broadcast_shapes(*shapes) if shapes else ()
    shape = shape_tuple(shape)
    if shapes and (joint := broadcast_shapes(shape, *shapes)) != shape:
        raise ShapeError(
            f"{name} parameter shapes must be broadcast-compatible with shape argument, and the result of broadcasting "
            f"the shapes must equal the shape argument, but got result {joint} for shape argument {shape}: the "
            f"parameters have shapes {shapes}"
        )
    return shape


def placed(x: Any, out_sharding: Any) -> Any:
    """``x`` whole on a mesh of Auto axes, if that is asked for; Explicit axes are seen to by `in_auto_mode`.

    A mesh without axes, which is that of the type of an array on one device, asks for nothing.
    """
    if out_sharding is None or (isinstance(out_sharding, NamedSharding) and not out_sharding.mesh.axis_names):
        return x
    return lax.with_sharding_constraint(x, out_sharding)


def parameter(x: Any, dtype: np.dtype, shape: tuple[int, ...]) -> Any:
    """A parameter as ``dtype``: a scalar, or an array of the samples' shape."""
    x = el.convert_element_type(x, dtype)
    return broadcast_to_shape(x, shape) if aval_of(x).ndim else x


@in_auto_mode
def bits(key: Any, shape: Any = (), dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Uniformly random bits as unsigned integers (uint32 by default).

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    >>> meshrt.random.bits(meshrt.random.key(0), (2,)).dtype
    dtype('uint32')
    """
    key, _ = typed("bits", key)
    dtype = dtypes.default_uint_dtype() if dtype is None else dtypes.check_user_dtype(dtype, "bits")
    if not dtypes.issubdtype(dtype, np.unsignedinteger):
        raise errors.ArgumentValueError(f"dtype argument to `bits` must be an unsigned int dtype, got {dtype}")
    return placed(rn.random_bits(key, dtype.itemsize * 8, shape_tuple(shape)), out_sharding)


def one_program(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun(key, shape, dtype, *parameters)` as one compiled program where it would run operation by operation."""
    compiled: list[Any] = []

    @functools.wraps(fun)
    def run(key: Any, shape: tuple[int, ...], dtype: Any, *parameters: Any) -> Any:
        if current_trace() is not EVAL or not all(isinstance(x, _PLAIN) for x in parameters):
            return fun(key, shape, dtype, *parameters)
        if not compiled:
            compiled.append(jit(fun, static_argnums=(1, 2)))
        return compiled[0](key, shape, dtype, *parameters)

    return run


_PLAIN = (ArrayOperators, np.ndarray, np.generic, bool, int, float)


@in_auto_mode
def uniform(
    key: Any, shape: Any = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0, *, out_sharding: Any = None
) -> Any:
    """Numbers from [minval, maxval).

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      shape: sizes of the result; by default those of the parameters broadcast together.
      dtype: dtype of the result; by default the default one of its kind.
      minval: the least value.
      maxval: the end of the range, which is not drawn.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    Returns:
      Floats.

    >>> meshrt.random.uniform(meshrt.random.key(0), (3,))
    Array([0.947667  , 0.9785799 , 0.33229148], dtype=float32)
    """
    key, _ = typed("uniform", key)
    dtype = float_dtype("uniform", dtype)
    if type(shape) in (tuple, list) and not shape and (of_one := _shape_of_one(minval, maxval)) is not None:
        minval, maxval = (lax.reshape(b, ()) if aval_of(b).ndim else b for b in (minval, maxval))
        return placed(lax.reshape(draw_uniform(key, (), dtype, minval, maxval), of_one), out_sharding)
    shape = sample_shape("uniform", shape, minval, maxval)
    return placed(draw_uniform(key, shape, dtype, minval, maxval), out_sharding)


def _shape_of_one(minval: Any, maxval: Any) -> tuple[int, ...] | None:
    """The shape of one number between bounds of which one is an array, all of one element: as in JAX, that of the lower
    bound. None for other bounds."""
    shapes = [aval_of(bound).shape for bound in (minval, maxval)]
    return shapes[0] if any(shapes) and all(set(s) <= {1} for s in shapes) else None


def _unit_floats(key: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Numbers from [0, 1)."""
    info = dtypes.finfo(dtype)
    drawn = 8 if info.nmant < 8 else info.bits
    if info.bits not in (8, 16, 32, 64):
        raise errors.ArgumentTypeError(f"uniform: dtype {dtype} is not supported; use 16, 32 or 64 bits")
    return unit_floats(rn.random_bits(key, drawn, shape), drawn, dtype)


def unit_floats(bits: Any, drawn: int, dtype: np.dtype) -> Any:
    """Numbers from [0, 1) of `drawn` random bits each: these become the fraction of a float in [1, 2), from which 1 is
    taken."""
    info = dtypes.finfo(dtype)
    word = np.dtype(f"uint{info.bits}")
    x = el.convert_element_type(bits, word)
    x = el.shift_right_logical_p.bind(x, np.asarray(drawn - info.nmant, word)[()])
    one = np.asarray(1, dtype).view(word)[()]
    x = el.bitcast_convert_type_p.bind(el.or_p.bind(x, one), new_dtype=dtype)
    return el.sub_p.bind(x, np.asarray(1, dtype)[()])


@one_program
def draw_uniform(key: Any, shape: tuple[int, ...], dtype: np.dtype, minval: Any, maxval: Any) -> Any:
    """Numbers from [minval, maxval): an array of ``shape`` for every key."""
    return between(_unit_floats(key, shape, dtype), dtype, shape, minval, maxval)


def between(floats: Any, dtype: np.dtype, shape: tuple[int, ...], minval: Any, maxval: Any) -> Any:
    """Numbers from [0, 1) as such from [minval, maxval)."""
    low, high = parameter(minval, dtype, shape), parameter(maxval, dtype, shape)
    span = (
        np.subtract(high, low)
        if isinstance(low, np.generic) and isinstance(high, np.generic)
        else el.sub_p.bind(high, low)
    )
    return el.max_p.bind(low, el.add_p.bind(el.mul_p.bind(floats, span), low))


@in_auto_mode
def randint(key: Any, shape: Any, minval: Any, maxval: Any, dtype: Any = None, *, out_sharding: Any = None) -> Any:
    """Integers from [minval, maxval); ``minval`` where that is empty.

    Twice as many bits as the dtype has are drawn, so the bias for ranges that are no power of two is small.

    Args:
      key: a key (`meshrt.random.key`), or an old-style one of `PRNGKey`.
      shape: sizes of the result.
      minval: the least value.
      maxval: the end of the range, which is not drawn.
      dtype: dtype of the result; by default the default one of its kind.
      out_sharding: the sharding of the result over Explicit axes: each device draws its own part.

    Returns:
      Integers.

    >>> meshrt.random.randint(meshrt.random.key(0), (4,), 0, 10)
    Array([9, 0, 2, 3], dtype=int32)
    """
    key, _ = typed("randint", key)
    dtype = int_dtype("randint", dtype)
    shape = sample_shape("randint", shape, minval, maxval)
    info = dtypes.iinfo(dtype)
    work = dtype
    if info.bits < 32:
        work = np.dtype("int32")
        minval = clip(asarray(minval).astype(work), int(info.min), int(info.max))
        maxval = clip(asarray(maxval).astype(work), int(info.min), int(info.max) + 1)
    out = _randint(key, shape, work, minval, maxval)
    return placed(el.convert_element_type(out, dtype), out_sharding)


def _as_integer(x: Any) -> Any:
    x = asarray(x)
    return x if dtypes.issubdtype(x.dtype, np.integer) else x.astype(int)


def _clipped(x: Any, dtype: np.dtype) -> Any:
    to, own = dtypes.iinfo(dtype), dtypes.iinfo(x.dtype)
    x = clip(x, scalar_like(x, max(to.min, own.min)), scalar_like(x, min(to.max, own.max)))
    return el.convert_element_type(x, dtype)


@one_program
def _randint(key: Any, shape: tuple[int, ...], dtype: np.dtype, minval: Any, maxval: Any) -> Any:
    minval, maxval = _as_integer(minval), _as_integer(maxval)
    top = min(int(dtypes.iinfo(dtype).max), int(dtypes.iinfo(maxval.dtype).max))
    beyond = el.gt_p.bind(maxval, scalar_like(maxval, top))  # e.g. 256 for uint8
    minval, maxval = _clipped(minval, dtype), _clipped(maxval, dtype)
    width = dtypes.iinfo(dtype).bits
    word = np.dtype(f"uint{width}")
    first, second = (rn.random_bits(k, width, shape) for k in two_keys(key))
    span = el.convert_element_type(uf.subtract(maxval, minval), word)
    span = where(uf.less_equal(maxval, minval), word.type(1), span)
    span = where(logic.logical_and(beyond, uf.greater(maxval, minval)), el.add_p.bind(span, word.type(1)), span)
    # (a * 2**width + b) mod span, without wider integers; a span of 0 stands for all 2**width values.
    factor = el.rem_p.bind(word.type(2 ** (width // 2)), span)
    factor = el.rem_p.bind(el.mul_p.bind(factor, factor), span)
    span, factor = (broadcast_to_shape(v, shape) if aval_of(v).ndim else v for v in (span, factor))
    offset = el.mul_p.bind(el.rem_p.bind(first, span), factor)
    offset = el.rem_p.bind(el.add_p.bind(offset, el.rem_p.bind(second, span)), span)
    return uf.add(minval, el.convert_element_type(offset, dtype))


def two_keys(key: Any) -> tuple[Any, Any]:
    """Two new keys from one."""
    keys = rn.random_split(key, (2,))
    return keys[0], keys[1]
