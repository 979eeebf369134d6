"""The error function and the normal distribution."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import errors, lax
from meshrt.jit import jit
from meshrt.scipy.operands import inexact, single_or_double
from meshrt.transforms.custom_derivatives import custom_jvp

__all__ = ["erf", "erfc", "erfinv", "log_ndtr", "ndtr", "ndtri"]


def erf(x: Any) -> Any:
    """The error function.

    >>> meshrt.scipy.special.erf(jnp.array([0.0, 1.0]))
    Array([0.        , 0.84270084], dtype=float32)
    """
    return lax.erf(*inexact("erf", x))


def erfc(x: Any) -> Any:
    """1 - erf(x).

    >>> meshrt.scipy.special.erfc(jnp.array([0.0, 1.0]))
    Array([1.        , 0.15729924], dtype=float32)
    """
    return lax.erfc(*inexact("erfc", x))


def erfinv(x: Any) -> Any:
    """The inverse of the error function.

    >>> meshrt.scipy.special.erfinv(jnp.array([0.0, 0.5]))
    Array([0.        , 0.47693628], dtype=float32)
    """
    return lax.erf_inv(*inexact("erfinv", x))


@jit
def ndtr(x: Any) -> Any:
    """The standard normal distribution function: the probability of values below x, of float32 or float64.

    >>> meshrt.scipy.special.ndtr(0.0)
    Array(0.5, dtype=float32)
    """
    return _ndtr(_strong("ndtr", x))


def _strong(name: str, x: Any) -> Any:
    x = single_or_double(name, jnp.asarray(x))
    return x.astype(x.dtype)


def _ndtr(x: Any) -> Any:
    """By erfc where the result is near 0 or 1, which keeps its digits in the lower tail."""
    w = x * math.sqrt(0.5)
    z = jnp.abs(w)
    tail = lax.erfc(z)
    return 0.5 * jnp.where(z < math.sqrt(0.5), 1 + lax.erf(w), jnp.where(w > 0, 2 - tail, tail))


# Wichura's algorithm AS 241 (Applied Statistics 37, 1988), PPND16: rational functions for probabilities near 1/2,
# farther away, and in the tails, numerators before denominators. Relative errors are about 1e-16.
_CENTRE = (
    (3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
     4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3, 2.1213794301586595867e4,
     3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3),
)  # fmt: skip
_SIDES = (
    (1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
     1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1, 1.48103976427480074590e-1,
     1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9),
)  # fmt: skip
_TAILS = (
    (6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
     2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
    (1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2, 7.86869131145613259100e-4,
     1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15),
)  # fmt: skip


def _ratio(x: Any, polynomials: tuple[Sequence[float], Sequence[float]]) -> Any:
    top, bottom = (functools.reduce(lambda total, c: total * x + c, reversed(p)) for p in polynomials)
    return top / bottom


@custom_jvp
def _ndtri(p: Any) -> Any:
    q = p - 0.5
    central = jnp.abs(q) <= 0.425
    middle = q * _ratio(0.180625 - jnp.where(central, q * q, 0), _CENTRE)
    smaller = jnp.where(q < 0, p, 1 - p)
    inside = (smaller > 0) & ~central
    r = jnp.sqrt(-jnp.log(jnp.where(inside, smaller, 0.05)))
    outer = jnp.where(r <= 5, _ratio(r - 1.6, _SIDES), _ratio(r - 5, _TAILS))
    outer = jnp.where(smaller == 0, np.inf, jnp.where(smaller > 0, outer, np.nan))
    return jnp.where(central, middle, jnp.where(q < 0, -outer, outer)).astype(p.dtype)


@_ndtri.defjvp
def _ndtri_jvp(primals: Any, tangents: Any) -> Any:
    (p,), (t,) = primals, tangents
    x = _ndtri(p)
    finite = jnp.where(jnp.isinf(x), 0, x)
    # Nothing moves at the ends, where the slope is infinite: they may be what a mask leaves out.
    return x, t * jnp.where(jnp.isinf(x), 0, jnp.exp(0.5 * finite * finite) * math.sqrt(2 * math.pi))


@jit
def ndtri(p: Any) -> Any:
    """The inverse of `ndtr`, of float32 or float64: NaN outside [0, 1].

    >>> meshrt.scipy.special.ndtri(0.5)
    Array(0., dtype=float32)
    """
    return _ndtri(single_or_double("ndtri", p))


def log_ndtr(x: Any, series_order: int = 3) -> Any:
    """The logarithm of `ndtr`, of float32 or float64, also where that underflows.

    Args:
      series_order: the number of terms of the asymptotic series, which stands for x below -10 (float32) or -20.

    Raises:
      ArgumentTypeError: series_order is no int; x is of another dtype.
      ArgumentValueError: series_order is negative or above 30.

    >>> meshrt.scipy.special.log_ndtr(0.0)
    Array(-0.6931472, dtype=float32)
    """
    if not isinstance(series_order, int):
        raise errors.ArgumentTypeError(f"log_ndtr: series_order must be a Python integer, got {series_order!r}")
    if not 0 <= series_order <= 30:
        raise errors.ArgumentValueError(f"log_ndtr: series_order must be non-negative and <= 30, got {series_order}")
    return _log_ndtr_program(single_or_double("log_ndtr", jnp.asarray(x)), series_order)


@functools.partial(custom_jvp, nondiff_argnums=(1,))
def _log_ndtr(x: Any, series_order: int) -> Any:
    x = x.astype(x.dtype)  # the result is not weakly typed, nor are derivatives
    lower = -10.0 if x.dtype == np.float32 else -20.0
    high, low = x > 0, x <= lower
    # One evaluation for both tails: that of the other side is log(1 - t) of a t without cancellation.
    value = _ndtr(jnp.where(high, -x, jnp.maximum(x, lower)))
    tail = _log_tail(jnp.minimum(x, lower), series_order)
    return jnp.where(high, lax.log1p(-value), jnp.where(low, tail, lax.log(value)))


@_log_ndtr.defjvp
def _log_ndtr_jvp(series_order: int, primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    value = _log_ndtr(x, series_order)
    x = x.astype(x.dtype)
    return value, lax.mul(t, jnp.exp(-0.5 * x * x - 0.5 * math.log(2 * math.pi) - value))


_log_ndtr_program = jit(_log_ndtr, static_argnums=1)


def _log_tail(x: Any, order: int) -> Any:
    """log(phi(x) / -x (1 - 1/x^2 + 1 3/x^4 - ...)) for large negative x (DLMF 7.12.1)."""
    inverse = 1 / (x * x)
    total = jnp.zeros_like(x)
    for n in range(order, 0, -1):  # 1 - (1 - 3 (1 - 5 (...)/x^2)/x^2)/x^2
        total = -(2 * n - 1) * inverse * (1 + total)
    return -0.5 * x * x - jnp.log(-x) - 0.5 * math.log(2 * math.pi) + jnp.log1p(total)
