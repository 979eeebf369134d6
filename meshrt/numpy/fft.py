"""Discrete Fourier transforms. Each is one `lax.fft` over up to three dimensions, between slices and pads."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.tracebacks import offer
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray, operand_array, placed
from meshrt.numpy.creation import arange
from meshrt.numpy.names import missing
from meshrt.numpy.operands import ShapeError
from meshrt.numpy.shapes import moveaxis
from meshrt.numpy.turning import roll
from meshrt.numpy.ufuncs import conjugate
from meshrt.primitives.fft import FftType

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "irfft",
    "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

# Dimensions that one `lax.fft` transforms together.
_AT_ONCE = 3


def _transform(name: str, kind: FftType, a: Any, s: Any, axes: Any, norm: str | None) -> Any:
    """The transform of ``a`` over ``axes``, brought to the lengths ``s`` first and scaled as ``norm`` says."""
    x = operand_array(f"fft.{name}", a)
    if s is not None:
        s = tuple(map(operator.index, s))
        if any(n <= 0 for n in s):
            raise ShapeError(f"fft.{name}: Shape should be positive, got s={s}")
    if s is not None and axes is not None and len(s) != len(axes):
        raise ShapeError(f"fft.{name}: {len(s)} lengths {s} for {len(axes)} axes {tuple(axes)}")
    given, rank = axes, x.ndim
    last = range(rank - len(s if s is not None else x.shape if axes is None else axes), rank)
    if given is not None:
        if len(given) != len(set(given)):
            raise ShapeError(f"jax.numpy.fft.{name} does not support repeated axes. Got axes {given!r}.")
        x = moveaxis(x, tuple(given), tuple(last))
    lengths = _own_lengths(x, kind, last) if s is None else s
    if s is not None:
        x = _fit(x, kind, last, s)
    out = _in_parts(x, kind, lengths)
    if norm is not None:
        out = el.mul_p.bind(out, _scale(name, lengths, norm, out.dtype))
    return out if given is None else moveaxis(out, tuple(last), tuple(given))


def _own_lengths(x: Any, kind: FftType, axes: Sequence[int]) -> tuple[int, ...]:
    lengths = [x.shape[i] for i in axes]
    if kind is FftType.IRFFT and lengths:
        lengths[-1] = max(0, 2 * (lengths[-1] - 1))
    return tuple(lengths)


def _fit(x: Any, kind: FftType, axes: Sequence[int], s: tuple[int, ...]) -> Any:
    """``x`` cut, or padded with zeros, to what a transform of lengths ``s`` reads."""
    sizes = list(x.shape)
    for i, n in zip(axes, s):
        sizes[i] = n
    if kind is FftType.IRFFT:
        sizes[-1] = sizes[-1] // 2 + 1
    if tuple(sizes) == x.shape:
        return x
    x = x[tuple(slice(n) for n in sizes)]
    return lax.pad(x, np.zeros((), x.dtype)[()], [(0, n - m, 0) for m, n in zip(x.shape, sizes)])


def _in_parts(x: Any, kind: FftType, lengths: tuple[int, ...]) -> Any:
    """The transform over the last dimensions, at most three in one operation; a real one takes the last of them."""
    count = len(lengths)
    if not count:  # over no dimensions: the value itself, complex but for the real transform
        to = dtypes.to_inexact_dtype if kind is FftType.RFFT else dtypes.to_complex_dtype
        return x.astype(to(x.dtype))
    if count <= _AT_ONCE:
        return lax.fft(x, kind, lengths)
    n = 2 if count == 4 else _AT_ONCE
    outer = tuple(range(x.ndim - count, x.ndim - n))
    behind = tuple(range(x.ndim - count + n, x.ndim))
    forward = kind in (FftType.FFT, FftType.RFFT)
    if forward:
        x = lax.fft(x, kind, lengths[-n:])
    x = _in_parts(moveaxis(x, outer, behind), FftType.FFT if forward else FftType.IFFT, lengths[:-n])
    x = moveaxis(x, behind, outer)
    return x if forward else lax.fft(x, kind, lengths[-n:])


def _scale(name: str, lengths: Sequence[int], norm: str, dtype: Any) -> Any:
    """What the unscaled forward, or the fully scaled inverse, transform is multiplied by."""
    size, inverse = np.float64(math.prod(lengths)), name.startswith("i")
    with np.errstate(divide="ignore"):
        match norm:
            case "backward":
                factor = np.float64(1)
            case "ortho":
                factor = np.sqrt(size) if inverse else 1 / np.sqrt(size)
            case "forward":
                factor = size if inverse else 1 / size
            case _:
                raise errors.ArgumentValueError(
                    f'Invalid norm value {norm}; should be "backward","ortho" or "forward". (in fft.{name})'
                )
    return np.asarray(factor, dtype)[()]


def _one_axis(name: str, axis: Any) -> list[int] | None:
    if isinstance(axis, list | tuple):
        raise errors.ArgumentValueError(
            f"jax.numpy.fft.{name} does not support multiple axes. Please use jax.numpy.fft.{name}n. Got axis = "
            f"{axis!r}."
        )
    return None if axis is None else [axis]


def _along_one(name: str, kind: FftType, doc: str, example: str) -> Callable[..., Any]:
    def function(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
        return _transform(name, kind, a, None if n is None else [n], _one_axis(name, axis), norm)

    return _documented(function, name, f"{doc} along ``axis``, which is cut or padded to length ``n`` first", example)


def _over_two(name: str, kind: FftType, doc: str, example: str) -> Callable[..., Any]:
    def function(a: Any, s: Any = None, axes: Sequence[int] = (-2, -1), norm: str | None = None) -> Any:
        if len(axes) != 2:
            raise errors.ArgumentValueError(
                f"jax.numpy.fft.{name} only supports 2 axes. Got axes = {axes!r}; use fft.{name[:-1]}n"
            )
        return _transform(name, kind, a, s, axes, norm)

    doc = f"{doc} over two ``axes``, which are cut or padded to lengths ``s`` first"
    return _documented(function, name, doc, example)


def _over_many(name: str, kind: FftType, doc: str, example: str) -> Callable[..., Any]:
    def function(a: Any, s: Any = None, axes: Sequence[int] | None = None, norm: str | None = None) -> Any:
        return _transform(name, kind, a, s, axes, norm)

    where = "over ``axes`` (all, or the last ``len(s)``, by default), which are cut or padded to lengths ``s`` first"
    return _documented(function, name, f"{doc} {where}", example)


def _documented(function: Callable[..., Any], name: str, doc: str, example: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""The {doc}.

    Args:
      norm: where the factor 1/n belongs: to the inverse ("backward", the default), to the forward transform
        ("forward"), or its square root to both ("ortho").

    {example}
    """
    return function


fft = _along_one(
    "fft",
    FftType.FFT,
    "discrete Fourier transform",
    ">>> print(jnp.fft.fft(jnp.array([1.0, 0.0])))\n    [1.+0.j 1.+0.j]",
)
ifft = _along_one(
    "ifft",
    FftType.IFFT,
    "inverse discrete Fourier transform",
    ">>> print(jnp.fft.ifft(jnp.array([2.0, 0.0])))\n    [1.+0.j 1.+0.j]",
)
rfft = _along_one(
    "rfft",
    FftType.RFFT,
    "first half of the transform of real numbers",
    ">>> print(jnp.fft.rfft(jnp.array([1.0, 0.0])))\n    [1.+0.j 1.+0.j]",
)
irfft = _along_one(
    "irfft",
    FftType.IRFFT,
    "real inverse of :func:`rfft`",
    ">>> print(jnp.fft.irfft(jnp.array([1.0, 1.0])))\n    [1. 0.]",
)
fft2 = _over_two(
    "fft2", FftType.FFT, "discrete Fourier transform", ">>> print(jnp.fft.fft2(jnp.ones((4, 4))).shape)\n    (4, 4)"
)
ifft2 = _over_two(
    "ifft2",
    FftType.IFFT,
    "inverse discrete Fourier transform",
    ">>> print(jnp.fft.ifft2(jnp.ones((4, 4))).shape)\n    (4, 4)",
)
rfft2 = _over_two(
    "rfft2",
    FftType.RFFT,
    "first half of the transform of real numbers",
    ">>> print(jnp.fft.rfft2(jnp.ones((4, 4))).shape)\n    (4, 3)",
)
irfft2 = _over_two(
    "irfft2",
    FftType.IRFFT,
    "real inverse of :func:`rfft2`",
    ">>> print(jnp.fft.irfft2(jnp.ones((4, 4))).shape)\n    (4, 6)",
)
fftn = _over_many(
    "fftn", FftType.FFT, "discrete Fourier transform", ">>> print(jnp.fft.fftn(jnp.ones((4, 4))).shape)\n    (4, 4)"
)
ifftn = _over_many(
    "ifftn",
    FftType.IFFT,
    "inverse discrete Fourier transform",
    ">>> print(jnp.fft.ifftn(jnp.ones((4, 4))).shape)\n    (4, 4)",
)
rfftn = _over_many(
    "rfftn",
    FftType.RFFT,
    "first half of the transform of real numbers",
    ">>> print(jnp.fft.rfftn(jnp.ones((4, 4))).shape)\n    (4, 3)",
)
irfftn = _over_many(
    "irfftn",
    FftType.IRFFT,
    "real inverse of :func:`rfftn`",
    ">>> print(jnp.fft.irfftn(jnp.ones((4, 4))).shape)\n    (4, 6)",
)


def hfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The real transform of a Hermitian signal, of which ``a`` is the first half along ``axis``.

    Args:
      a: an array, or what `asarray` makes one of.
      n: the length of the result.
      axis: the dimension to work along; negative numbers count from the end.
      norm: "backward", "ortho" or "forward": where the factor 1/n goes.

    >>> jnp.fft.hfft(jnp.array([1.0, 2.0, 3.0]))
    Array([ 8., -2.,  0., -2.], dtype=float32)
    """
    x = conjugate(a)
    axes = _one_axis("hfft", axis)
    length = (x.shape[axis] - 1) * 2 if n is None else n
    return _transform("hfft", FftType.IRFFT, x, None if n is None else [n], axes, norm) * length


def ihfft(a: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse of :func:`hfft`: the first half of a Hermitian signal.

    Args:
      a: an array, or what `asarray` makes one of.
      n: how many samples are used.
      axis: the dimension to work along; negative numbers count from the end.
      norm: "backward", "ortho" or "forward": where the factor 1/n goes.

    >>> jnp.fft.ihfft(jnp.array([1.0, 2.0, 3.0, 2.0]))
    Array([ 2. +0.j, -0.5-0.j,  0. +0.j], dtype=complex64)
    """
    x = asarray(a)
    axes = _one_axis("ihfft", axis)
    length = x.shape[axis] if n is None else n
    if n is None and length == 0:
        raise ShapeError(f"fft.ihfft: no samples along axis {axis} of an array of shape {x.shape}, and n is not given")
    out = _transform("ihfft", FftType.RFFT, x, None if n is None else [n], axes, norm)
    return conjugate(out) * (1 / length)


# ----------------------------------------------------------------------------------------------------------
# Frequencies.


def _check_scalars(name: str, n: Any, d: Any) -> None:
    for argument, value, takes in (("n", n, "an int"), ("d", d, "a single value")):
        if isinstance(value, list | tuple):
            raise errors.ArgumentValueError(
                f"The {argument} argument of jax.numpy.fft.{name} only takes {takes}. Got {argument} = {list(value)}."
            )


def fftfreq(n: int, d: Any = 1.0, *, dtype: Any = None, device: Any = None) -> Any:
    """The frequencies of :func:`fft` of ``n`` samples at distance ``d``, negative ones in the second half.

    Args:
      n: the number of samples.
      d: the distance between samples.
      dtype: the dtype of the result; by default the one that follows from the operands.
      device: a device or a sharding to put the result on.

    >>> jnp.fft.fftfreq(4)
    Array([ 0.  ,  0.25, -0.5 , -0.25], dtype=float32)
    """
    _check_scalars("fftfreq", n, d)
    out = dtypes.default_float_dtype() if dtype is None else dtypes.check_user_dtype(dtype, "fftfreq")
    work = np.dtype(dtypes.finfo(dtypes.to_inexact_dtype(out)).dtype)
    position = arange(n, dtype=work)
    return placed(((position + n // 2) % n - n // 2) / asarray(d * n, work), device, None).astype(out)


def rfftfreq(n: int, d: Any = 1.0, *, dtype: Any = None, device: Any = None) -> Any:
    """The frequencies of :func:`rfft` of ``n`` samples at distance ``d``.

    Args:
      n: the number of samples.
      d: the distance between samples.
      dtype: the dtype of the result; by default the one that follows from the operands.
      device: a device or a sharding to put the result on.

    >>> jnp.fft.rfftfreq(4)
    Array([0.  , 0.25, 0.5 ], dtype=float32)
    """
    _check_scalars("rfftfreq", n, d)
    dtype = dtypes.default_float_dtype() if dtype is None else dtypes.check_user_dtype(dtype, "rfftfreq")
    return placed(arange(0, n // 2 + 1, dtype=dtype) / asarray(d * n, dtype), device, None)


def _shifted(name: str, x: Any, axes: Any, by: Callable[[int], int]) -> Any:
    x = operand_array(f"fft.{name}", x)
    if axes is None:
        axes = tuple(range(x.ndim))
    if isinstance(axes, int):
        return roll(x, by(x.shape[axes]), axes)
    return roll(x, [by(x.shape[i]) for i in axes], tuple(axes))


def fftshift(x: Any, axes: Any = None) -> Any:
    """``x`` with frequency zero in the middle of ``axes`` (all by default).

    Args:
      x: an array, or what `asarray` makes one of.
      axes: the dimensions to shift; all by default.

    >>> jnp.fft.fftshift(jnp.array([0, 1, 2, 3]))
    Array([2, 3, 0, 1], dtype=int32)
    """
    return _shifted("fftshift", x, axes, lambda n: n // 2)


def ifftshift(x: Any, axes: Any = None) -> Any:
    """The inverse of :func:`fftshift`.

    Args:
      x: an array, or what `asarray` makes one of.
      axes: the dimensions to shift; all by default.

    >>> jnp.fft.ifftshift(jnp.array([2, 3, 0, 1]))
    Array([0, 1, 2, 3], dtype=int32)
    """
    return _shifted("ifftshift", x, axes, lambda n: -(n // 2))


offer(globals(), __all__)
__getattr__ = missing(__name__, __all__)
