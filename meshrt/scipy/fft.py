"""Cosine transforms: names and signatures are those of ``jax.scipy.fft``, of type 2 and its inverse."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, errors, lax
from meshrt.contexts import usual_promotion
from meshrt.core.dimensions.expression import is_symbolic_dim
from meshrt.core.tracebacks import offer as _offer
from meshrt.jit import jit
from meshrt.numpy.names import missing as _missing
from meshrt.numpy.operands import canonical_axes, operand

__all__ = ["dct", "dctn", "idct", "idctn"]
__getattr__ = _missing(__name__, __all__)

# One axis of a real array, transformed: (x, axis, norm) -> an array of the same shape.
Step = Callable[[Any, int, str | None], Any]


@usual_promotion
def dct(x: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The cosine transform y[k] = 2 sum_j x[j] cos(pi k (2 j + 1) / 2 N) of the last axis, or of `axis`.

    Args:
      x: real or complex; the parts of a complex array are transformed separately.
      type: 2.
      n: the length that the axis is cut or padded with zeros to, N.
      norm: None or "backward"; "ortho" for an orthogonal matrix: y[0] / sqrt(4 N), y[k] / sqrt(2 N).

    Raises:
      UnsupportedError: another type.
      ArgumentValueError: another norm.
      AxisError: there is no such axis.

    >>> import meshrt.numpy as mnp, meshrt.scipy as msp
    >>> msp.fft.dct(mnp.array([1.0, 2.0, 3.0]))
    Array([12.       , -3.4641016,  0.       ], dtype=float32)
    """
    return _over_axes("dct", _forward, x, type, None if n is None else (n,), (axis,), norm)


@usual_promotion
def idct(x: Any, type: int = 2, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse of `dct`, with its arguments.

    >>> meshrt.scipy.fft.idct(jnp.array([4.0, 0.0])).round(3)
    Array([1., 1.], dtype=float32)
    """
    return _over_axes("idct", _backward, x, type, None if n is None else (n,), (axis,), norm)


@usual_promotion
def dctn(
    x: Any,
    type: int = 2,
    s: Sequence[int] | int | None = None,
    axes: Sequence[int] | int | None = None,
    norm: str | None = None,
) -> Any:
    """`dct` of each of `axes` (by default all, or the last len(s)), cut or padded to the lengths `s` before.

    Raises:
      ArgumentValueError: more lengths than dimensions; another norm.
      UnsupportedError: another type.

    >>> meshrt.scipy.fft.dctn(jnp.ones((2, 2))).round(3)
    Array([[16.,  0.],
           [ 0.,  0.]], dtype=float32)
    """
    return _over_axes("dctn", _forward, x, type, s, axes, norm)


@usual_promotion
def idctn(
    x: Any,
    type: int = 2,
    s: Sequence[int] | int | None = None,
    axes: Sequence[int] | int | None = None,
    norm: str | None = None,
) -> Any:
    """The inverse of `dctn`, with its arguments.

    >>> meshrt.scipy.fft.idctn(jnp.ones((2, 2))).shape
    (2, 2)
    """
    return _over_axes("idctn", _backward, x, type, s, axes, norm)


def _over_axes(name: str, step: Step, x: Any, kind: int, lengths: Any, axes: Any, norm: str | None) -> Any:
    x = jnp.asarray(operand(name, x))
    if kind != 2:
        raise errors.UnsupportedError(f"{name}: Only DCT type 2 is implemented, got type={kind}")
    if norm not in (None, "backward", "ortho"):
        raise errors.ArgumentValueError(
            f"jax.scipy.fft.{name}: norm={norm!r} is not implemented; use None, 'backward' or 'ortho'"
        )
    if lengths is not None:
        lengths = tuple(map(operator.index, lengths if np.iterable(lengths) else (lengths,)))
        if len(lengths) > x.ndim:
            raise errors.ArgumentValueError(
                f"{name}: s must have at most x.ndim ({x.ndim}) elements, got {len(lengths)}"
            )
    if axes is None:
        axes = range(x.ndim - (x.ndim if lengths is None else len(lengths)), x.ndim)
    axes = canonical_axes(tuple(axes) if np.iterable(axes) else (axes,), x.ndim, name)
    if not dtypes.issubdtype(x.dtype, np.inexact):
        x = x.astype(dtypes.canonicalize_dtype(dtypes.to_inexact_dtype(x.dtype)))
    return _transformed(x, step, axes, lengths, norm)


@jit(static_argnums=(1, 2, 3, 4))
def _transformed(x: Any, step: Step, axes: tuple[int, ...], lengths: Any, norm: str | None) -> Any:
    if dtypes.issubdtype(x.dtype, np.complexfloating):
        parts = (_transformed(part, step, axes, lengths, norm) for part in (x.real, x.imag))
        return lax.complex(*parts)
    if lengths is not None:
        missing = dict(zip(axes, lengths))
        ends = [(0, missing.get(i, size) - size, 0) for i, size in enumerate(x.shape)]
        x = lax.pad(x, jnp.zeros((), x.dtype), ends)
    for axis in axes:
        if is_symbolic_dim(x.shape[axis]):
            raise errors.UnsupportedError(
                f"cosine transforms are Fourier transforms, whose length is a number in every program, but dimension "
                f"{axis} has the symbolic size {x.shape[axis]}: give this dimension a number"
            )
        x = step(x, axis, norm)
    return x


def _along(values: np.ndarray[Any, Any], x: Any, axis: int) -> np.ndarray[Any, Any]:
    """Constants [N] that multiply x along an axis, in the complex dtype of x."""
    return np.expand_dims(values, [i for i in range(x.ndim) if i != axis]).astype(dtypes.result_type(x.dtype, 1j))


# Makhoul, "A fast cosine transform in one and two dimensions", 1980: even elements first, then the odd ones backwards,
# and the cosine transform is the real part of a Fourier transform turned by pi k / 2 N.


def _forward(x: Any, axis: int, norm: str | None) -> Any:
    size = x.shape[axis]
    odd = lax.rev(lax.slice_in_dim(x, 1, None, 2, axis), (axis,))
    spectrum = jnp.fft.fft(lax.concatenate([lax.slice_in_dim(x, 0, None, 2, axis), odd], axis), axis=axis)
    return (spectrum * _along(_turn(size, -1) * 2 / _norms(size, norm), x, axis)).real


def _backward(x: Any, axis: int, norm: str | None) -> Any:
    size = x.shape[axis]
    weights = _norms(size, norm)
    weights[:1] /= 2
    mixed = jnp.fft.ifft(x * _along(_turn(size, 1) * weights, x, axis), axis=axis).real
    middle = (size + 1) // 2
    even = lax.slice_in_dim(mixed, 0, middle, 1, axis)
    odd = lax.rev(lax.slice_in_dim(mixed, middle, size, 1, axis), (axis,))
    return _spread(even, axis, 0, size) + _spread(odd, axis, 1, size)


def _turn(size: int, sign: int) -> np.ndarray[Any, Any]:
    return np.exp(sign * 0.5j * np.pi * np.arange(size) / size)


def _norms(size: int, norm: str | None) -> np.ndarray[Any, Any]:
    """What each coefficient is divided by."""
    if norm != "ortho":
        return np.ones(size)
    return np.sqrt(np.where(np.arange(size) == 0, 4.0, 2.0) * size)


def _spread(x: Any, axis: int, start: int, size: int) -> Any:
    """Elements of x at start, start + 2, ... of an axis of that size, zeros between them."""
    count = x.shape[axis]
    end = size - start - max(0, 2 * count - 1)
    pads = [(start, end, 1) if i == axis else (0, 0, 0) for i in range(x.ndim)]
    return lax.pad(x, jnp.zeros((), x.dtype), pads)


_offer(globals(), __all__)
