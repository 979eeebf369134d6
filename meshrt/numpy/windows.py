"""Windows for spectral analysis, and the Bessel function that Kaiser's is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.dimensions.expression import is_symbolic_dim, non_negative_dim
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray, promoted_inexact
from meshrt.numpy.operands import static_int
from meshrt.primitives.special import bessel_i0e, bessel_i1e
from meshrt.transforms.custom_derivatives import custom_jvp

__all__ = ["bartlett", "blackman", "hamming", "hanning", "i0", "kaiser"]


def _points(name: str, M: Any) -> Any:
    """A static number of points; one that is no integer is cut off."""
    if is_symbolic_dim(M):
        return non_negative_dim(M)
    size = int(M) if isinstance(M, float) else static_int(M, f"{name}: M")
    if size < 0:
        raise errors.ArgumentTypeError(f"{name}: the number of points M must not be negative, got {size}")
    return size


def _places(size: Any, dtype: Any) -> Any:
    """Where the points of a window of symbolic size lie between -1 and 1; a single one at 0."""
    last = asarray(size, dtype) - 1
    return (2 * lax.iota(dtype, size) - last) / lax.max(last, asarray(1, dtype))


def _cosines(*factors: float) -> Callable[[Any], Any]:
    return lambda x: sum(f * lax.cos(k * np.pi * x) for k, f in enumerate(factors))


def _window(
    name: str, values: Callable[[int], np.ndarray], formula: Callable[[Any], Any], doc: str, example: str
) -> Callable[[int], Any]:
    """A window whose values are known where it is written: NumPy computes them. Those of a window of symbolic size
    follow from the `formula` of `_places`."""

    def function(M: int) -> Any:
        size = _points(name, M)
        dtype = dtypes.default_float_dtype()
        if is_symbolic_dim(size):
            return formula(_places(size, dtype)).astype(dtype)
        return asarray(np.ones(size, dtype) if size <= 1 else values(size).astype(dtype))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The {doc} window of ``M`` points, a vector of the default float type.\n\n{example}\n"
    return function


bartlett = _window(
    "bartlett", np.bartlett, lambda x: 1 - lax.abs(x), "Bartlett (triangular)", ">>> print(jnp.bartlett(3))\n[0. 1. 0.]"
)
blackman = _window(
    "blackman", np.blackman, _cosines(0.42, 0.5, 0.08), "Blackman",
    ">>> print(jnp.blackman(3).round(3))\n[-0.  1. -0.]",
)  # fmt: skip
hamming = _window("hamming", np.hamming, _cosines(0.54, 0.46), "Hamming", ">>> print(jnp.hamming(3))\n[0.08 1.   0.08]")
hanning = _window("hanning", np.hanning, _cosines(0.5, 0.5), "Hann", ">>> print(jnp.hanning(3))\n[0. 1. 0.]")


def kaiser(M: int, beta: Any) -> Any:
    """The Kaiser window of ``M`` points; ``beta`` is its shape and may be traced.

    Args:
      M: the number of points.
      beta: the shape of the window.

    >>> jnp.kaiser(3, 5.0)
    Array([0.03671089, 0.99999994, 0.03671089], dtype=float32)
    """
    size = _points("kaiser", M)
    dtype = dtypes.default_float_dtype()
    if is_symbolic_dim(size):
        places = _places(size, dtype)
        return i0(beta * lax.sqrt(lax.max(asarray(0, dtype), 1 - places * places))) / i0(beta)
    if size <= 1:
        return asarray(np.ones(size, dtype))
    half = 0.5 * (size - 1)
    height = np.sqrt(np.maximum(0, 1 - ((np.arange(size) - half) / half) ** 2)).astype(dtype)
    return i0(beta * asarray(height)) / i0(beta)


def i0(x: Any) -> Any:
    """The modified Bessel function of the first kind and order zero, elementwise.

    >>> jnp.i0(0.0)
    Array(1.0000001, dtype=float32, weak_type=True)
    """
    (x,) = promoted_inexact("i0", x)
    if not dtypes.issubdtype(x.dtype, np.floating):
        raise errors.ArgumentValueError(f"Unsupported input type to jax.numpy.i0: {x.dtype}; it takes real numbers")
    return _i0(x)


@custom_jvp
def _i0(x: Any) -> Any:
    size = el.abs_p.bind(x)
    return el.mul_p.bind(el.exp_p.bind(size), bessel_i0e(size))


@_i0.defjvp
def _i0_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    slope = lax.mul(lax.exp(lax.abs(x)), bessel_i1e(x))
    return _i0(x), el.mul_p.bind(t, slope)
