"""The error function of complex arguments and what is made of it: Faddeeva's, Dawson's and Fresnel's.

Faddeeva's function is w(z) = exp(-z^2) erfc(-i z) = 2 i z / pi times the integral of exp(-t^2) / (z^2 - t^2) over t >
0. The
trapezoidal rule converges geometrically for it once the poles of the integrand, where they are near, are accounted
for: Al Azah and Chandler-Wilde, "Computation of the complex error function using modified trapezoidal rules", SIAM
Journal on Numerical Analysis 59, 2021. Twelve points give all digits of a double.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, errors, lax
from meshrt.contexts import usual_promotion
from meshrt.jit import jit
from meshrt.scipy.operands import floating, inexact
from meshrt.scipy.special.pieces import in_range, polynomial, wide
from meshrt.transforms.custom_derivatives import custom_jvp

__all__ = ["dawsn", "erfcx", "fresnel", "wofz"]

_POINTS = 12
_STEP = math.sqrt(math.pi / _POINTS)
# Nodes between multiples of the step, and at them.
_MIDPOINTS = [(k + 0.5) * _STEP for k in range(_POINTS)]
_MULTIPLES = [k * _STEP for k in range(1, _POINTS)]
_SQRT_PI = math.sqrt(math.pi)
_FAR = 1e4  # where w(z) is i / (sqrt(pi) z) (1 + 1/(2 z^2)) to rounding


def wofz(z: Any) -> Any:
    """Faddeeva's function exp(-z^2) erfc(-i z), complex.

    >>> meshrt.scipy.special.wofz(jnp.complex64(1j))
    Array(0.42758355+0.j, dtype=complex64)
    """
    (z,) = inexact("wofz", z)
    return _wofz_program(z.astype(dtypes.to_complex_dtype(z.dtype)))


@custom_jvp
def _wofz(z: Any) -> Any:
    x, y = jnp.abs(z.real), jnp.abs(z.imag)
    first = _first_quadrant(x, y)
    # w(-conj z) = conj w(z), and w(-z) = 2 exp(-z^2) - w(z): DLMF 7.4.3.
    below = z.imag < 0
    growth, phase = 2 * jnp.exp((y - x) * (y + x)), 2 * x * y
    real = jnp.where(below, growth * jnp.cos(phase) - first.real, first.real)
    imag = jnp.where(below, growth * jnp.sin(phase) + first.imag, first.imag)
    value = lax.complex(real, jnp.where(z.real < 0, -imag, imag))
    return jnp.where(jnp.isnan(z.real) | jnp.isnan(z.imag), math.nan * (1 + 1j), value).astype(z.dtype)


@_wofz.defjvp
def _wofz_jvp(primals: Any, tangents: Any) -> Any:
    (z,), (t,) = primals, tangents
    value = _wofz(z)
    return value, t * (2j / _SQRT_PI - 2 * z * value)


_wofz_program = jit(_wofz)


def _first_quadrant(x: Any, y: Any) -> Any:
    """w(x + i y) for x, y >= 0."""
    far = jnp.maximum(x, y) > _FAR
    inner = _by_trapezoids(in_range(x, ~far, 1.0), in_range(y, ~far, 1.0))
    outside = lax.complex(in_range(x, far, 1.0), in_range(y, far, 1.0))
    outer = 1j / _SQRT_PI / outside * (1 + 0.5 / outside / outside)
    infinite = jnp.maximum(x, y) == np.inf
    return jnp.where(infinite, 0, jnp.where(far, outer, inner)).astype(inner.dtype)


def _by_trapezoids(x: Any, y: Any) -> Any:
    """In each rule the poles stay a quarter of a step away from the nodes."""
    z = lax.complex(x, y)
    phase = x / _STEP - jnp.floor(x / _STEP)
    high = y >= jnp.maximum(x, math.pi / _STEP)
    at_multiples = (y < x) & (phase >= 0.25) & (phase <= 0.75)
    square, scale = z * z, 2j * _STEP / math.pi * z
    between = scale * sum(math.exp(-t * t) / (square - t * t) for t in _MIDPOINTS)
    at = scale * sum(math.exp(-t * t) / (square - t * t) for t in _MULTIPLES) + 1j * _STEP / math.pi / z
    # The pole's share, 2 exp(-z^2) / (1 +- exp(-2 pi i z / h)), extended by the inverse of that exponential.
    decay, angle = jnp.exp(-2 * math.pi / _STEP * y), 2 * math.pi * phase
    turn = decay * lax.complex(jnp.cos(angle), jnp.sin(angle))
    wave = angle - 2 * x * y
    share = 2 * jnp.exp((y - x) * (y + x)) * decay * lax.complex(jnp.cos(wave), jnp.sin(wave))
    return jnp.where(high, between, jnp.where(at_multiples, at + share / (turn - 1), between + share / (turn + 1)))


def erfcx(x: Any) -> Any:
    """exp(x^2) erfc(x), of real or complex x.

    >>> meshrt.scipy.special.erfcx(1.0)
    Array(0.42758355, dtype=float32)
    """
    (x,) = inexact("erfcx", x)
    if x.dtype.kind == "c":
        return _wofz_program(lax.complex(-x.imag, x.real))
    return _erfcx_program(x)


@custom_jvp
def _erfcx(x: Any) -> Any:
    """The rule at midpoints for z = i |x|, where all is real."""
    size = jnp.abs(x)
    y = jnp.minimum(size, _FAR)
    value = 2 * _STEP / math.pi * y * sum(math.exp(-t * t) / (y * y + t * t) for t in _MIDPOINTS)
    turn = 2 * math.pi / _STEP * y
    value = jnp.where(y < math.pi / _STEP, value + 2 * jnp.exp(y * y - turn) / (1 + jnp.exp(-turn)), value)
    value = jnp.where(size > _FAR, (1 - 0.5 / size / size) / (_SQRT_PI * size), value)
    value = jnp.where(x < 0, 2 * jnp.exp(x * x) - value, value)
    return jnp.where(jnp.isnan(x), x, value).astype(x.dtype)


@_erfcx.defjvp
def _erfcx_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    value = _erfcx(x)
    return value, t * (2 * x * value - 2 / _SQRT_PI)


_erfcx_program = jit(wide(_erfcx))


@jit
def dawsn(x: Any) -> Any:
    """Dawson's integral exp(-x^2) times that of exp(t^2) from 0 to x.

    >>> meshrt.scipy.special.dawsn(1.0)
    Array(0.5380795, dtype=float32)
    """
    return wide(_dawsn)(*floating("dawsn", x))


@custom_jvp
def _dawsn(x: Any) -> Any:
    """sqrt(pi)/2 Im w(x). The pole's share is a tangent or a cotangent."""
    size = jnp.abs(x)
    a = jnp.minimum(size, _FAR)
    phase = a / _STEP - jnp.floor(a / _STEP)
    square, scale = a * a, 2 * _STEP / math.pi * a
    gauss, angle = jnp.exp(-square), math.pi * phase
    between = scale * sum(math.exp(-t * t) / (square - t * t) for t in _MIDPOINTS) + gauss * jnp.tan(angle)
    at = scale * sum(math.exp(-t * t) / (square - t * t) for t in _MULTIPLES)
    at = at + _STEP / math.pi / a - gauss / jnp.tan(angle)
    value = 0.5 * _SQRT_PI * jnp.where((phase >= 0.25) & (phase <= 0.75), at, between)
    value = jnp.where(size > _FAR, (0.5 + 0.25 / size / size) / size, value)
    return jnp.where(jnp.isnan(x), x, jnp.sign(x) * value).astype(x.dtype)


@_dawsn.defjvp
def _dawsn_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    value = _dawsn(x)
    return value, t * (1 - 2 * x * value)


@usual_promotion
@jit
def fresnel(x: Any) -> tuple[Any, Any]:
    """Fresnel's integrals, of sin(pi t^2/2) and of cos(pi t^2/2) from 0 to x.

    Raises:
      UnsupportedError: x is complex.

    >>> meshrt.scipy.special.fresnel(1.0)
    (Array(0.43825915, dtype=float32), Array(0.7798934, dtype=float32))
    """
    (x,) = inexact("fresnel", x)
    if x.dtype.kind == "c":
        raise errors.UnsupportedError("fresnel supports only real-valued inputs; take jnp.real of it before")
    return wide(_fresnel)(x)


@custom_jvp
def _fresnel(x: Any) -> tuple[Any, Any]:
    size = jnp.abs(x)
    near = size < 1.6
    small = in_range(size, near, 0.0)
    # DLMF 7.6.4 and 7.6.6.
    count = 14 if x.dtype == np.float64 else 9
    q, half = small**4, math.pi / 2
    terms = [half**k / (math.factorial(k) * (2 * k + 1)) * (-1) ** (k // 2) for k in range(2 * count)]
    cosine, sine = polynomial(q, terms[::2]), polynomial(q, terms[1::2])
    # DLMF 7.5.8: C + i S = (1 + i)/2 (1 - exp(i pi x^2/2) w(sqrt(pi)/2 (1 + i) x)).
    large = in_range(size, ~near & (size < np.inf), 2.0)
    diagonal = _SQRT_PI / 2 * large
    w = _first_quadrant(diagonal, diagonal)
    angle = half * jnp.mod(large * large, 4)  # reduced exactly before it is multiplied
    c, s = jnp.cos(angle), jnp.sin(angle)
    real, imag = 1 - (c * w.real - s * w.imag), -(c * w.imag + s * w.real)
    S, C = (imag + real) / 2, (real - imag) / 2
    S, C = jnp.where(near, small**3 * sine, S), jnp.where(near, small * cosine, C)
    S, C = (jnp.where(jnp.isnan(x), x, jnp.sign(x) * jnp.where(size == np.inf, 0.5, v)).astype(x.dtype) for v in (S, C))
    return S, C


@_fresnel.defjvp
def _fresnel_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    angle = math.pi / 2 * x * x
    return _fresnel(x), (t * jnp.sin(angle), t * jnp.cos(angle))
