"""Images of other sizes: names and signatures are those of ``jax.image``.

Every method but nearest neighbour is a product, along each resampled dimension, with a matrix of weights
[input size, output size]. A column holds what each input pixel adds to one output pixel: a kernel around the place
where the centre of the output pixel lies in the input.
"""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import meshrt.numpy as jnp
from meshrt import errors
from meshrt.core.dimensions.expression import is_symbolic_shape
from meshrt.jit import jit
from meshrt.numpy.operands import operand, promote_inexact, shape_tuple
from meshrt.primitives.precision import Precision

__all__ = ["ResizeMethod", "resize", "scale_and_translate"]


class ResizeMethod(enum.Enum):
    """How values between pixels are found; the functions also take the names that :meth:`from_string` knows.

    NEAREST        the nearest pixel
    LINEAR         linear interpolation; a triangle where an image shrinks and `antialias` is set
    LANCZOS3, LANCZOS5   windowed sinc of radius 3 or 5
    CUBIC          Keys's cubic convolution, a = -1/2
    CUBIC_PYTORCH  the same with `antialias`; without it a = -3/4, and pixels at the border are repeated outwards
    AREA           the mean of the input over the area of an output pixel
    """

    NEAREST = 0
    LINEAR = 1
    LANCZOS3 = 2
    LANCZOS5 = 3
    CUBIC = 4
    CUBIC_PYTORCH = 5
    AREA = 6

    @staticmethod
    def from_string(s: str) -> ResizeMethod:
        """The method of a name. ArgumentValueError for other names."""
        if s not in _NAMES:
            raise errors.ArgumentValueError(f'Unknown resize method "{s}"; known are {", ".join(_NAMES)}')
        return _NAMES[s]


_NAMES = {
    "nearest": ResizeMethod.NEAREST,
    **dict.fromkeys(("linear", "bilinear", "trilinear", "triangle"), ResizeMethod.LINEAR),
    "lanczos3": ResizeMethod.LANCZOS3, "lanczos5": ResizeMethod.LANCZOS5,
    **dict.fromkeys(("cubic", "bicubic", "tricubic"), ResizeMethod.CUBIC),
    **dict.fromkeys(("cubic-pytorch", "bicubic-pytorch"), ResizeMethod.CUBIC_PYTORCH),
    "area": ResizeMethod.AREA,
}  # fmt: skip


# --- kernels: functions of the distance, which is not negative, in pixels.


def _triangle(distance: Any) -> Any:
    return jnp.maximum(0, 1 - distance)


def _lanczos(distance: Any, radius: int) -> Any:
    angle = np.pi * distance
    near = distance <= 1e-3  # both sines are zero there, and the quotient 1
    value = radius * jnp.sin(angle) * jnp.sin(angle / radius) / jnp.where(near, 1, angle * angle)
    return jnp.where(distance > radius, 0, jnp.where(near, 1, value))


def _cubic(distance: Any, a: float) -> Any:
    """The cubic convolution kernel whose slope at distance 1 is `a`."""
    x = distance
    inner = ((a + 2) * x - (a + 3)) * x * x + 1
    outer = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return jnp.where(x >= 2, 0, jnp.where(x >= 1, outer, inner))


class _Kernel(NamedTuple):
    """A kernel (None: the overlap of areas), how far it reaches, whether border pixels are repeated outwards."""

    value: Callable[[Any], Any] | None
    radius: int
    repeats: bool = False


_KEYS = _Kernel(functools.partial(_cubic, a=-0.5), 2)
_KERNELS = {
    ResizeMethod.LINEAR: _Kernel(_triangle, 1),
    ResizeMethod.LANCZOS3: _Kernel(functools.partial(_lanczos, radius=3), 3),
    ResizeMethod.LANCZOS5: _Kernel(functools.partial(_lanczos, radius=5), 5),
    ResizeMethod.CUBIC: _KEYS,
    ResizeMethod.CUBIC_PYTORCH: _Kernel(functools.partial(_cubic, a=-0.75), 2, repeats=True),
    ResizeMethod.AREA: _Kernel(None, 1),
}


def _kernel(method: ResizeMethod, antialias: bool) -> _Kernel:
    return _KEYS if method is ResizeMethod.CUBIC_PYTORCH and antialias else _KERNELS[method]


def _method(name: str, method: Any) -> ResizeMethod:
    if isinstance(method, str):
        return ResizeMethod.from_string(method)
    if not isinstance(method, ResizeMethod):
        raise errors.ArgumentTypeError(f"{name}: method must be a ResizeMethod or its name, got {method!r}")
    return method


# --- weights.

# Columns whose weights add up to less say nothing of the image.
_LEAST_SUM = 1000 * float(np.finfo(np.float32).eps)


def _weights(size: int, out_size: int, scale: Any, translation: Any, kernel: _Kernel, antialias: bool) -> Any:
    """What each of `size` pixels adds to each of `out_size` ones: [size, out_size], columns add up to 1 or 0."""
    dtype = jnp.result_type(scale, translation)
    step = 1.0 / scale  # of output pixels, in input pixels
    corners = jnp.arange(out_size, dtype=dtype) * step - translation * step
    centres = (jnp.arange(out_size, dtype=dtype) + 0.5) * step - translation * step - 0.5
    if kernel.value is None:
        weights = _overlaps(size, corners, step)
    else:
        beyond = kernel.radius if kernel.repeats else 0
        pixels = jnp.arange(-beyond, size + beyond, dtype=dtype)
        width = jnp.maximum(step, 1.0) if antialias else 1.0
        weights = kernel.value(jnp.abs(centres[None, :] - pixels[:, None]) / width)
        if beyond:
            inside = weights[beyond : size + beyond]
            inside = inside.at[0].add(weights[:beyond].sum(0))
            weights = inside.at[-1].add(weights[size + beyond :].sum(0))
    total = jnp.sum(weights, axis=0, keepdims=True)
    weights = jnp.where(jnp.abs(total) > _LEAST_SUM, weights / jnp.where(total != 0, total, 1), 0)
    if kernel.repeats:
        return weights
    return jnp.where(((centres >= -0.5) & (centres <= size - 0.5))[None, :], weights, 0)


def _overlaps(size: int, corners: Any, step: Any) -> Any:
    """How much of each input pixel lies in each output pixel."""
    left, right = corners[None, :], (corners + step)[None, :]
    pixels = jnp.arange(size, dtype=corners.dtype)[:, None]
    return jnp.maximum(0.0, jnp.minimum(right, pixels + 1.0) - jnp.maximum(left, pixels))


def _resampled(
    image: Any, shape: Sequence[int], dims: Sequence[int], scale: Any, translation: Any, kernel: _Kernel,
    antialias: bool, precision: Any,
) -> Any:  # fmt: skip
    if not dims:
        return image
    names, terms = list(range(image.ndim)), []
    for i, d in enumerate(dims):
        matrix = _weights(image.shape[d], shape[d], scale[i], translation[i], kernel, antialias)
        names[d] = image.ndim + i
        terms += [matrix.astype(image.dtype), [d, names[d]]]
    return jnp.einsum(image, list(range(image.ndim)), *terms, names, precision=precision)


# --- the functions.


def _shapes(name: str, image: Any, shape: Any) -> tuple[Any, tuple[int, ...]]:
    image, shape = jnp.asarray(operand(name, image)), shape_tuple(shape, name)
    if len(shape) != image.ndim:
        raise errors.ArgumentValueError(
            f"{name}: shape must have length equal to the number of dimensions of x; {shape} vs {image.shape}"
        )
    return image, shape


def scale_and_translate(
    image: Any,
    shape: Sequence[int],
    spatial_dims: Sequence[int],
    scale: Any,
    translation: Any,
    method: str | ResizeMethod,
    antialias: bool = True,
    precision: Any = Precision.HIGHEST,
) -> Any:
    """An image scaled and moved along some of its dimensions.

    What lies at `y` along a dimension comes to lie at ``y * scale + translation``; the centre of pixel `i` lies at
    ``i + 0.5``. Output pixels whose centre lies outside the input are 0.

    Args:
      image: an array of any dimensions; integers become floating.
      shape: the shape of the result.
      spatial_dims: the K dimensions that are scaled and moved.
      scale: [K], by how much. Differentiable, as is `translation`.
      translation: [K], by how many output pixels.
      method: a :class:`ResizeMethod` or its name; all but nearest neighbour.
      antialias: average over several pixels where the image shrinks.
      precision: of the products, as in ``lax.dot``.

    Returns:
      An array of the shape asked for, of the image's dtype made floating.

    Raises:
      ArgumentValueError: `shape` has another length than the image dimensions; nearest neighbour, or an unknown name;
        `scale` or `translation` have another length than `spatial_dims`.

    >>> scale_and_translate(  # doctest: +SKIP
    ...     jnp.eye(4), (4, 4), (0, 1), jnp.ones(2), jnp.array([1.0, 0.5]), "linear")
    """
    name = "scale_and_translate"
    image, shape = _shapes(name, image, shape)
    method = _method(name, method)
    if method is ResizeMethod.NEAREST:
        raise errors.ArgumentValueError(
            "Nearest neighbor resampling is not currently supported for scale_and_translate; take method='linear', or "
            "meshrt.image.resize where the image is only scaled"
        )
    scale, translation = map(jnp.asarray, promote_inexact(name, scale, translation))
    (image,) = map(jnp.asarray, promote_inexact(name, image))
    dims = tuple(operator.index(d) for d in spatial_dims)
    for d in dims:
        if not -image.ndim <= d < image.ndim:
            raise errors.AxisError(f"{name}: axis {d} is out of bounds for an image of {image.ndim} dimensions")
    for what, given in (("scale", scale), ("translation", translation)):
        if given.shape != (len(dims),):
            raise errors.ArgumentValueError(
                f"{name}: {what} must have one entry for each of the {len(dims)} spatial_dims {dims}, its shape is "
                f"{given.shape}"
            )
    dims = tuple(d % image.ndim for d in dims)
    return _resampled(image, shape, dims, scale, translation, _kernel(method, antialias), antialias, precision)


def resize(
    image: Any,
    shape: Sequence[int],
    method: str | ResizeMethod,
    antialias: bool = True,
    precision: Any = Precision.HIGHEST,
) -> Any:
    """An image of another size.

    Args:
      image: an array of any dimensions, of which those are resampled whose size changes.
      shape: the shape of the result.
      method: a :class:`ResizeMethod` or its name.
      antialias: average over several pixels where the image shrinks. Nothing to nearest neighbour.
      precision: of the products, as in ``lax.dot``. Nothing to nearest neighbour.

    Returns:
      An array of the shape asked for: of the image's dtype with nearest neighbour, else of that made floating.

    Raises:
      ArgumentValueError: `shape` has another length than the image dimensions, the name of the method is unknown, or
        the image has no pixels to make some of.

    >>> resize(jnp.arange(4.0), (8,), "linear").shape  # doctest: +SKIP
    (8,)
    """
    image, shape = _shapes("resize", image, shape)
    method = _method("resize", method)
    empty = [d for d, (m, n) in enumerate(zip(image.shape, shape)) if m == 0 and n != 0]
    if empty:
        raise errors.ArgumentValueError(
            f"resize: dimension {empty[0]} of the image has size 0 and cannot get size {shape[empty[0]]}"
        )
    return _resize(image, shape, method, bool(antialias), precision)


@functools.partial(jit, static_argnums=(1, 2, 3, 4))
def _resize(image: Any, shape: tuple[int, ...], method: ResizeMethod, antialias: bool, precision: Any) -> Any:
    dims = [d for d in range(image.ndim) if image.shape[d] != shape[d]]
    if method is ResizeMethod.NEAREST:
        for d in dims:
            image = jnp.take(image, _nearest(image.shape[d], shape[d]), axis=d)
        return image
    (image,) = map(jnp.asarray, promote_inexact("resize", image))
    scale = [shape[d] / image.shape[d] if shape[d] else 1.0 for d in dims]
    kernel = _kernel(method, antialias)
    return _resampled(image, shape, dims, scale, [0.0] * len(dims), kernel, antialias, precision)


def _nearest(size: int, out_size: int) -> Any:
    """The pixel in which the centre of each output pixel lies. In 32 bits, which decides where it is on a border."""
    if is_symbolic_shape((size, out_size)):
        wide, narrow = (jnp.asarray(n, np.float32) for n in (size, out_size))
        return jnp.floor((jnp.arange(out_size, dtype=np.float32) + 0.5) * wide / narrow).astype(np.int32)
    centres = (np.arange(out_size, dtype=np.float32) + np.float32(0.5)) * np.float32(size) / np.float32(out_size or 1)
    return np.floor(centres).astype(np.int32)
