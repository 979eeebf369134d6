"""Convolutions and correlations in any number of dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import meshrt.numpy as jnp
from meshrt import errors, lax
from meshrt.jit import jit
from meshrt.numpy.operands import canonical_axes, operand
from meshrt.scipy.operands import separate

__all__ = ["convolve", "convolve2d", "correlate", "correlate2d", "fftconvolve"]

_MODES = ("full", "same", "valid")


def convolve(in1: Any, in2: Any, mode: str = "full", method: str = "auto", precision: Any = None) -> Any:
    """The convolution of two arrays of n dimensions.

    Args:
      mode: "full" gives every position where they overlap, "same" the middle ones, of the shape of in1, "valid" those
        where one lies within the other.
      method: "direct", "fft", or "auto", which is direct.
      precision: of the direct method, a `lax.Precision`, its name, or one for each operand.

    Returns:
      An array of the operands' common floating or complex dtype.

    Raises:
      ArgumentValueError: another mode or method; operands of different ranks, without elements, or neither of which is
        the larger one in all dimensions.

    >>> import meshrt.numpy as mnp, meshrt.scipy as msp
    >>> msp.signal.convolve(mnp.array([1.0, 2.0, 3.0]), mnp.array([1.0, 1.0]))
    Array([1., 3., 5., 3.], dtype=float32)
    """
    if method == "fft":
        return fftconvolve(in1, in2, mode)
    if method not in ("auto", "direct"):
        raise errors.ArgumentValueError(f"convolve: Got {method=}; expected 'auto', 'fft', or 'direct'.")
    return _direct("convolve", in1, in2, mode, precision)


def convolve2d(
    in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: float = 0, precision: Any = None
) -> Any:
    """`convolve` of matrices. What lies outside is 0.

    Raises:
      UnsupportedError: another `boundary` or `fillvalue`.
      ArgumentValueError: operands that are no matrices; see `convolve`.

    Args:
      in1: an array.
      in2: an array with as many dimensions.
      mode: "full", "same" or "valid".
      boundary: "fill".
      fillvalue: the value beyond the border.
      precision: a `lax.Precision`.

    >>> meshrt.scipy.signal.convolve2d(jnp.ones((2, 2)), jnp.ones((2, 2)))
    Array([[1., 2., 1.],
           [2., 4., 2.],
           [1., 2., 1.]], dtype=float32)
    """
    return _direct("convolve2d", *_matrices("convolve2d", in1, in2, boundary, fillvalue), mode, precision)


def correlate(in1: Any, in2: Any, mode: str = "full", method: str = "auto", precision: Any = None) -> Any:
    """The correlation of two arrays, the second conjugated. Arguments and errors are those of `convolve`.

    Args:
      in1: an array.
      in2: an array with as many dimensions.
      mode: "full", "same" or "valid".
      method: "auto", "direct" or "fft".
      precision: a `lax.Precision`.

    >>> meshrt.scipy.signal.correlate(jnp.array([1.0, 2.0, 3.0]), jnp.array([0.0, 1.0]), mode="same")
    Array([1., 2., 3.], dtype=float32)
    """
    return convolve(in1, jnp.flip(jnp.conj(operand("correlate", in2, 1))), mode, method, precision)


def correlate2d(
    in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: float = 0, precision: Any = None
) -> Any:
    """`correlate` of matrices. Arguments and errors are those of `convolve2d`.

    Args:
      in1: an array.
      in2: an array with as many dimensions.
      mode: "full", "same" or "valid".
      boundary: "fill".
      fillvalue: the value beyond the border.
      precision: a `lax.Precision`.

    >>> meshrt.scipy.signal.correlate2d(jnp.ones((2, 2)), jnp.ones((2, 2)), mode="valid")
    Array([[4.]], dtype=float32)
    """
    x, y = _matrices("correlate2d", in1, in2, boundary, fillvalue)
    if mode == "valid" and x.shape != y.shape and all(a <= b for a, b in zip(x.shape, y.shape)):
        # SciPy's definition where the second is the larger one.
        return _direct("correlate2d", jnp.flip(y), jnp.conj(x), mode, precision)
    # Walked backwards: the middle of an even number of positions is then the later one.
    return jnp.flip(_direct("correlate2d", jnp.flip(x), jnp.conj(y), mode, precision, first_slides=mode != "full"))


def fftconvolve(in1: Any, in2: Any, mode: str = "full", axes: Sequence[int] | int | None = None) -> Any:
    """The convolution of two arrays by Fourier transforms.

    Args:
      mode: see `convolve`.
      axes: those that are convolved, by default all; along the others, which must have equal sizes, each part is.

    Raises:
      ArgumentValueError: another mode; operands of different ranks, of different sizes along other axes, or, for mode
        "valid", neither of which is the larger one in all dimensions.
      AxisError: there is no such axis.

    >>> meshrt.scipy.signal.fftconvolve(jnp.array([1.0, 2.0]), jnp.array([1.0, 1.0])).round(3)
    Array([1.       , 3.0000002, 2.       ], dtype=float32)
    """
    x, y = separate("fftconvolve", in1, in2)
    if x.ndim != y.ndim:
        raise errors.ArgumentValueError(
            f"in1 and in2 should have the same dimensionality, got shapes {x.shape} and {y.shape}"
        )
    _check_mode(mode)
    along = canonical_axes(axes, x.ndim, "fftconvolve")
    if any(x.shape[i] != y.shape[i] for i in range(x.ndim) if i not in along):
        raise errors.ArgumentValueError(
            f"mapped axes must have same shape; got in1.shape={x.shape} in2.shape={y.shape} axes={along}"
        )
    if mode == "valid":
        larger = [x.shape[i] >= y.shape[i] for i in along], [x.shape[i] <= y.shape[i] for i in along]
        if not any(map(all, larger)):
            raise errors.ArgumentValueError(
                "For 'valid' mode, One input must be at least as large as the other in every dimension, got shapes "
                f"{x.shape} and {y.shape}"
            )
        x, y = (x, y) if all(larger[0]) and not all(larger[1]) else (y, x)
    return _by_fourier(x, y, mode, along)


@jit(static_argnums=(2, 3))
def _by_fourier(x: Any, y: Any, mode: str, axes: tuple[int, ...]) -> Any:
    sizes = [x.shape[i] + y.shape[i] - 1 for i in axes]
    if all(x.shape[i] == 1 or y.shape[i] == 1 for i in axes):
        out = x * y
    else:
        is_complex = x.dtype.kind == "c"
        forth, back = (jnp.fft.fftn, jnp.fft.ifftn) if is_complex else (jnp.fft.rfftn, jnp.fft.irfftn)
        out = back(forth(x, sizes, axes) * forth(y, sizes, axes), sizes, axes)
    kept = {
        "full": sizes,
        "same": [x.shape[i] for i in axes],
        "valid": [x.shape[i] - y.shape[i] + 1 for i in axes],
    }[mode]
    for axis, size, count in zip(axes, sizes, kept):
        start = (size - count) // 2
        out = lax.slice_in_dim(out, start, start + count, axis=axis)
    return out


def _check_mode(mode: str) -> None:
    if mode not in _MODES:
        raise errors.ArgumentValueError(f"mode must be one of ['full', 'same', 'valid'], got {mode!r}")


def _matrices(name: str, in1: Any, in2: Any, boundary: str, fillvalue: Any) -> tuple[Any, Any]:
    if boundary != "fill" or fillvalue != 0:
        raise errors.UnsupportedError(f"{name}() only supports boundary='fill', fillvalue=0")
    x, y = separate(name, in1, in2)
    if x.ndim != 2 or y.ndim != 2:
        raise errors.ArgumentValueError(
            f"{name}() only supports 2-dimensional inputs, got shapes {x.shape} and {y.shape}"
        )
    return x, y


def _direct(name: str, in1: Any, in2: Any, mode: str, precision: Any, first_slides: bool = True) -> Any:
    """The convolution as one operation. Of equal sizes the first slides: the sliding one is multiplied by the zeros
    of the border, which tells where infinities become NaN."""
    _check_mode(mode)
    x, y = separate(name, in1, in2)
    if x.ndim != y.ndim:
        raise errors.ArgumentValueError(
            f"{name}: in1 and in2 must have the same number of dimensions, got shapes {x.shape} and {y.shape}"
        )
    if x.size == 0 or y.size == 0:
        raise errors.ArgumentValueError(
            f"zero-size arrays not supported in convolutions, got shapes {x.shape} and {y.shape}."
        )
    swapped = all(a <= b for a, b in zip(x.shape, y.shape)) and (first_slides or x.shape != y.shape)
    if not swapped and not all(a >= b for a, b in zip(x.shape, y.shape)):
        raise errors.ArgumentValueError(
            f"One input must be smaller than the other in every dimension, got shapes {x.shape} and {y.shape}"
        )
    return _slid(x, y, mode, swapped, precision)


@jit(static_argnums=(2, 3, 4))
def _slid(x: Any, y: Any, mode: str, swapped: bool, precision: Any) -> Any:
    """The smaller one slides over the larger one, which is padded or cut such that the positions of `mode` remain."""
    pads = []
    for a, b in zip(x.shape, y.shape):
        small, full = min(a, b), a + b - 1
        inner = (small - 1, full - 2 * (small - 1))
        start, count = {"full": (0, full), "same": ((b - 1) // 2, a), "valid": inner}[mode]
        pads.append((small - 1 - start, small - 1 - (full - count - start)))
    large, small = (y, x) if swapped else (x, y)
    operands = large[None, None], jnp.flip(small)[None, None]
    return lax.conv_general_dilated(*operands, (1,) * x.ndim, pads, precision=precision)[0, 0]
