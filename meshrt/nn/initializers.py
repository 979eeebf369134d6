"""Initial values of parameters: functions ``init(key, shape, dtype)``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from meshrt import dtypes, errors, lax, random
from meshrt.core.operators import ArrayOperators
from meshrt.numpy import filled
from meshrt.numpy.arrays import asarray
from meshrt.numpy.names import missing
from meshrt.numpy.operands import ShapeError, canonical_axis, shape_tuple
from meshrt.numpy.shapes import moveaxis
from meshrt.primitives.reshard import reshard

__all__ = [
    "Initializer", "constant", "delta_orthogonal", "glorot_normal", "glorot_uniform", "he_normal", "he_uniform",
    "kaiming_normal", "kaiming_uniform", "lecun_normal", "lecun_uniform", "normal", "ones", "orthogonal",
    "truncated_normal", "uniform", "variance_scaling", "xavier_normal", "xavier_uniform", "zeros",
]  # fmt: skip


@runtime_checkable
class Initializer(Protocol):
    """What makes initial values of parameters: the type of all functions here, and of those that they return.

    >>> isinstance(meshrt.nn.initializers.zeros, meshrt.nn.initializers.Initializer)
    True
    """

    def __call__(self, key: Any, shape: Any, dtype: Any = None, out_sharding: Any = None) -> Any: ...


def _dtype(dtype: Any, name: str) -> Any:
    return dtypes.default_float_dtype() if dtype is None else dtypes.check_user_dtype(dtype, name)


def zeros(key: Any, shape: Any, dtype: Any = None, out_sharding: Any = None) -> Any:
    """Zeros.

    Args:
      key: a key.
      shape: sizes of the result.
      dtype: the dtype of the result.
      out_sharding: the sharding of the result over Explicit axes.

    >>> meshrt.nn.initializers.zeros(meshrt.random.key(0), (2,))
    Array([0., 0.], dtype=float32)
    """
    return filled.zeros(shape, _dtype(dtype, "zeros"), out_sharding=out_sharding)


def ones(key: Any, shape: Any, dtype: Any = None, out_sharding: Any = None) -> Any:
    """Ones.

    Args:
      key: a key.
      shape: sizes of the result.
      dtype: the dtype of the result.
      out_sharding: the sharding of the result over Explicit axes.

    >>> meshrt.nn.initializers.ones(meshrt.random.key(0), (2,))
    Array([1., 1.], dtype=float32)
    """
    return filled.ones(shape, _dtype(dtype, "ones"), out_sharding=out_sharding)


def constant(value: Any, dtype: Any = None) -> Initializer:
    """An initializer that fills with ``value``.

    Args:
      value: the value, which broadcasts to the shape.
      dtype: the dtype of the result.

    >>> meshrt.nn.initializers.constant(3.0)(meshrt.random.key(0), (2,))
    Array([3., 3.], dtype=float32)
    """

    def init(key: Any, shape: Any, dtype: Any = dtype, out_sharding: Any = None) -> Any:
        return filled.full(shape, value, _dtype(dtype, "constant"), out_sharding=out_sharding)

    return init


def _scaled(sample: Callable[..., Any], scale: Any, dtype: Any, name: str) -> Initializer:
    def init(key: Any, shape: Any, dtype: Any = dtype, out_sharding: Any = None) -> Any:
        dtype = _dtype(dtype, name)
        return sample(key, shape, dtype, out_sharding) * np.asarray(scale, dtype)[()]

    return init


def uniform(scale: float = 1e-2, dtype: Any = None) -> Initializer:
    """An initializer that draws from [0, scale).

    Args:
      scale: by what the values are scaled.
      dtype: the dtype of the result.

    >>> meshrt.nn.initializers.uniform(0.1)(meshrt.random.key(0), (2, 3)).shape
    (2, 3)
    """
    return _scaled(lambda k, s, d, o: random.uniform(k, s, d, out_sharding=o), scale, dtype, "uniform")


def normal(stddev: float = 1e-2, dtype: Any = None) -> Initializer:
    """An initializer that draws from the normal distribution of standard deviation ``stddev``.

    Args:
      stddev: the standard deviation.
      dtype: the dtype of the result.

    >>> meshrt.nn.initializers.normal(0.02)(meshrt.random.key(0), (2, 3)).shape
    (2, 3)
    """
    return _scaled(lambda k, s, d, o: random.normal(k, s, d, out_sharding=o), stddev, dtype, "normal")


def truncated_normal(stddev: float = 1e-2, dtype: Any = None, lower: float = -2.0, upper: float = 2.0) -> Initializer:
    """An initializer that draws from the normal distribution within ``stddev`` times (lower, upper).

    Args:
      stddev: the standard deviation.
      dtype: the dtype of the result.
      lower: the lower bound, in standard deviations.
      upper: the upper bound, in standard deviations.

    >>> meshrt.nn.initializers.truncated_normal(0.02)(meshrt.random.key(0), (2, 3)).shape
    (2, 3)
    """
    return _scaled(
        lambda k, s, d, o: random.truncated_normal(k, lower, upper, s, d, out_sharding=o), stddev, dtype,
        "truncated_normal",
    )  # fmt: skip


def orthogonal(scale: Any = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """An initializer of ``scale`` times uniform orthogonal matrices.

    All dimensions but ``column_axis`` together are the rows; of rows and columns the fewer are orthonormal.

    Raises:
      ShapeError: when called, for a shape of fewer than two dimensions.

    >>> nn.initializers.orthogonal()(random.key(0), (3, 4)).shape
    (3, 4)
    """

    def init(key: Any, shape: Any, dtype: Any = dtype, out_sharding: Any = None) -> Any:
        shape, dtype = shape_tuple(shape), _dtype(dtype, "orthogonal")
        if len(shape) < 2:
            raise ShapeError(f"orthogonal initializer requires at least a 2D shape, got {shape}")
        if 0 in shape:
            return filled.zeros(shape, dtype, out_sharding=out_sharding)
        columns = shape[column_axis]
        axis = canonical_axis(column_axis, len(shape), "orthogonal")
        matrix = random.orthogonal(key, math.prod(shape) // columns, (), dtype, columns)
        matrix = lax.reshape(matrix, (*shape[:axis], *shape[axis + 1 :], columns))
        return _laid_out(np.asarray(scale, dtype)[()] * moveaxis(matrix, -1, axis), out_sharding)

    return init


def delta_orthogonal(scale: Any = 1.0, column_axis: int = -1, dtype: Any = None) -> Initializer:
    """An initializer of convolution kernels that are zero but for an orthogonal matrix in the middle.

    Xiao and others 2018. Shapes are ``(*window, inputs, outputs)`` with one to three dimensions of a window.

    Raises:
      ShapeError: when called, for shapes of other ranks, or with fewer outputs than inputs.

    Args:
      scale: by what the values are scaled.
      column_axis: the dimension of the columns.
      dtype: the dtype of the result.

    >>> meshrt.nn.initializers.delta_orthogonal()(meshrt.random.key(0), (3, 2, 2)).shape
    (3, 2, 2)
    """

    def init(key: Any, shape: Any, dtype: Any = dtype, out_sharding: Any = None) -> Any:
        shape, dtype = shape_tuple(shape), _dtype(dtype, "delta_orthogonal")
        if len(shape) not in (3, 4, 5):
            raise ShapeError(f"Delta orthogonal initializer requires a 3D, 4D or 5D shape, got {shape}")
        if shape[-1] < shape[-2]:
            raise ShapeError(
                f"delta_orthogonal: `fan_in` must be less or equal than `fan_out`, got {shape[-2]} and {shape[-1]}"
            )
        matrix = orthogonal(scale, column_axis, dtype)(key, shape[-2:])
        middle = tuple((n - 1) // 2 for n in shape[:-2])
        return _laid_out(filled.zeros(shape, dtype).at[middle].set(matrix), out_sharding)

    return init


def _laid_out(x: Any, out_sharding: Any) -> Any:
    return x if out_sharding is None else reshard(x, out_sharding)


def _size(shape: tuple[int, ...], axes: int | Sequence[int]) -> int:
    return shape[axes] if isinstance(axes, int) else math.prod(shape[i] for i in axes)


def _fans(shape: tuple[int, ...], in_axis: Any, out_axis: Any, batch_axis: Any) -> tuple[float, float]:
    """How many inputs and outputs a unit is connected to; other dimensions are a receptive field."""
    if in_axis == -2 and len(shape) <= 1:
        raise ShapeError(
            f"Can't compute input and output sizes of a {len(shape)}-dimensional weights tensor with default in_axis. "
            f"Must be at least 2D or specify in_axis explicitly. Initializers that draw {shape} without it are normal "
            "and uniform"
        )
    inputs, outputs, batch = (_size(shape, a) for a in (in_axis, out_axis, batch_axis))
    field = math.prod(shape) / inputs / outputs / batch
    return inputs * field, outputs * field


def variance_scaling(
    scale: float, mode: str, distribution: str, in_axis: Any = -2, out_axis: Any = -1, batch_axis: Any = (),
    dtype: Any = None,
) -> Initializer:  # fmt: skip
    """An initializer of variance scale / n.

    Args:
      mode: what n is: "fan_in", "fan_out", "fan_avg" (their mean) or "fan_geo_avg" (their geometric mean).
      distribution: "truncated_normal", "normal" or "uniform".
      in_axis, out_axis, batch_axis: the dimensions of inputs, of outputs, and those that are neither.

    >>> meshrt.nn.initializers.variance_scaling(2.0, "fan_in", "normal")(meshrt.random.key(0), (2, 3)).shape
    (2, 3)
    """
    if distribution not in ("truncated_normal", "normal", "uniform"):
        raise errors.ArgumentValueError(f"invalid distribution for variance scaling initializer: {distribution}")

    def init(key: Any, shape: Any, dtype: Any = dtype, out_sharding: Any = None) -> Any:
        shape = shape_tuple(shape)
        dtype = _dtype(dtype, "variance_scaling")
        share: Any = scale / _divisor(mode, *_fans(shape, in_axis, out_axis, batch_axis))
        # Symbolic sizes make it a value of the program.
        variance = (asarray if isinstance(share, ArrayOperators) else np.asarray)(share, dtype)
        return _draw(distribution, key, shape, dtype, variance, out_sharding)

    return init


def _divisor(mode: str, fan_in: float, fan_out: float) -> float:
    modes = {
        "fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2,
        "fan_geo_avg": (fan_in * fan_out) ** 0.5,
    }  # fmt: skip
    if mode not in modes:
        raise errors.ArgumentValueError(
            f"invalid mode for variance scaling initializer: {mode}; known: {', '.join(modes)}"
        )
    return modes[mode]


# The standard deviation of a standard normal number that is known to lie in (-2, 2).
_TRUNCATED_DEVIATION = 0.87962566103423978


# The same of a complex number that is known to lie in a disk of radius 2.
_TRUNCATED_COMPLEX_DEVIATION = 0.95311164380491208


def _draw(distribution: str, key: Any, shape: tuple, dtype: Any, variance: Any, out_sharding: Any) -> Any:
    root = lax.sqrt if isinstance(variance, ArrayOperators) else np.sqrt
    deviation = root(variance)
    if distribution == "normal":
        return random.normal(key, shape, dtype, out_sharding=out_sharding) * deviation.astype(dtype)[()]
    is_truncated = distribution == "truncated_normal"
    if not dtypes.issubdtype(dtype, np.floating):
        known = np.asarray(_TRUNCATED_COMPLEX_DEVIATION if is_truncated else 1, dtype)
        x = _in_disk(key, shape, dtype, 2 if is_truncated else None)
        x = x if out_sharding is None else reshard(x, out_sharding)
        return x * (deviation / known).astype(dtype)[()]
    if is_truncated:
        x = random.truncated_normal(key, -2, 2, shape, dtype, out_sharding=out_sharding)
        return x * (deviation / np.asarray(_TRUNCATED_DEVIATION, dtype)).astype(dtype)[()]
    x = random.uniform(key, shape, dtype, -1, out_sharding=out_sharding)
    return x * root(np.asarray(3, dtype) * variance).astype(dtype)[()]


def _in_disk(key: Any, shape: tuple, dtype: Any, radius: float | None) -> Any:
    """Complex numbers of any direction: standard normal ones within `radius`; None: uniform ones of variance one."""
    key_of_radius, key_of_angle = random.split(key)
    real = np.zeros((), dtype).real.dtype
    share = random.uniform(key_of_radius, shape, real)
    if radius is None:
        r = lax.sqrt(2 * share).astype(dtype)
    else:
        inside = lax.convert_element_type(1 - lax.exp(lax.convert_element_type(-(radius**2), dtype)), dtype)
        r = lax.sqrt(-lax.log(1 - inside * share.astype(dtype)))
    angle = 2 * np.pi * random.uniform(key_of_angle, shape, real).astype(dtype)
    return r * lax.exp(1j * angle)


def _preset(scale: float, mode: str, distribution: str, name: str, doc: str) -> Callable[..., Initializer]:
    def preset(in_axis: Any = -2, out_axis: Any = -1, batch_axis: Any = (), dtype: Any = None) -> Initializer:
        return variance_scaling(scale, mode, distribution, in_axis, out_axis, batch_axis, dtype)

    preset.__name__ = preset.__qualname__ = name
    preset.__doc__ = f"""{doc}: ``variance_scaling({scale}, {mode!r}, {distribution!r})``.

    >>> meshrt.nn.initializers.{name}()(meshrt.random.key(0), (2, 3)).shape
    (2, 3)
    """
    return preset


_NORMAL = "truncated_normal"
glorot_uniform = xavier_uniform = _preset(1.0, "fan_avg", "uniform", "glorot_uniform", "Glorot and Bengio 2010")
glorot_normal = xavier_normal = _preset(1.0, "fan_avg", _NORMAL, "glorot_normal", "Glorot and Bengio 2010")
lecun_uniform = _preset(1.0, "fan_in", "uniform", "lecun_uniform", "LeCun et al. 1998")
lecun_normal = _preset(1.0, "fan_in", _NORMAL, "lecun_normal", "LeCun et al. 1998")
he_uniform = kaiming_uniform = _preset(2.0, "fan_in", "uniform", "he_uniform", "He et al. 2015")
he_normal = kaiming_normal = _preset(2.0, "fan_in", _NORMAL, "he_normal", "He et al. 2015")

__getattr__ = missing(__name__, __all__)
