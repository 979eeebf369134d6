"""Bessel functions, spherical harmonics."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import errors, lax
from meshrt.contexts import usual_promotion
from meshrt.jit import jit
from meshrt.numpy.operands import operand, static_int
from meshrt.scipy.operands import floating
from meshrt.transforms.custom_derivatives import custom_jvp

__all__ = ["bessel_jn", "i0", "i0e", "i1", "i1e", "sph_harm_y"]


def i0e(x: Any) -> Any:
    """exp(-|x|) I0(x), with I0 the modified Bessel function of order 0.

    >>> meshrt.scipy.special.i0e(1.0)
    Array(0.4657596, dtype=float32, weak_type=True)
    """
    return lax.bessel_i0e(*floating("i0e", x))


def i1e(x: Any) -> Any:
    """exp(-|x|) I1(x), with I1 the modified Bessel function of order 1.

    >>> meshrt.scipy.special.i1e(1.0)
    Array(0.20791042, dtype=float32, weak_type=True)
    """
    return lax.bessel_i1e(*floating("i1e", x))


@jit
def i0(x: Any) -> Any:
    """The modified Bessel function of order 0.

    >>> meshrt.scipy.special.i0(1.0)
    Array(1.2660658, dtype=float32, weak_type=True)
    """
    (x,) = floating("i0", x)
    return jnp.exp(jnp.abs(x)) * lax.bessel_i0e(x)


@jit
def i1(x: Any) -> Any:
    """The modified Bessel function of order 1.

    >>> meshrt.scipy.special.i1(1.0)
    Array(0.5651591, dtype=float32, weak_type=True)
    """
    (x,) = floating("i1", x)
    return jnp.exp(jnp.abs(x)) * lax.bessel_i1e(x)


@usual_promotion
def bessel_jn(z: Any, *, v: int, n_iter: int = 50) -> Any:
    """The Bessel functions J_0(z), ..., J_v(z) of real z.

    Args:
      v: the highest order.
      n_iter: where the recurrence downwards begins (Miller's algorithm, DLMF 10.74(iv)): somewhat above v and |z|.

    Returns:
      A floating array [v + 1, *z.shape].

    Raises:
      ArgumentValueError: z is complex.

    >>> import meshrt.scipy as msp
    >>> print([round(float(j), 5) for j in msp.special.bessel_jn(1.0, v=2)])
    [0.7652, 0.44005, 0.1149]
    """
    (z,) = floating("bessel_jn", z)
    order, start = static_int(v, "bessel_jn: v"), static_int(n_iter, "bessel_jn: n_iter")
    return _bessel_jn_program(z, order, max(start, order + 2))


@functools.partial(custom_jvp, nondiff_argnums=(1, 2))
def _bessel_jn(z: Any, v: int, start: int) -> Any:
    tiny = float(np.sqrt(np.finfo(np.float32).tiny))
    huge = 1 / tiny
    safe = jnp.where(z == 0, 1, z)

    def down(state: Any, n: Any) -> tuple[Any, Any]:
        above, here, total, shifts = state
        below = 2 * n / safe * here - above
        total = total + jnp.where(jnp.mod(n, 2) == 1, 2 * below, 0)  # of even orders, n - 1
        # Numbers that outgrow the dtype are all made smaller, and how often is remembered.
        scale = jnp.where(jnp.abs(below) > huge, tiny, 1).astype(z.dtype)
        shifts = shifts + (scale != 1)
        state = here * scale, below * scale, total * scale, shifts
        return state, (below * scale, shifts)

    zero = jnp.zeros_like(z)
    start_state = (zero, jnp.full_like(z, tiny), zero, jnp.zeros(z.shape, np.int32))
    orders = jnp.arange(start, 0, -1).astype(z.dtype)
    (_, first, total, last), (values, shifts) = lax.scan(down, start_state, orders)
    # J_0 + 2 J_2 + 2 J_4 + ... = 1
    values = values[::-1][: v + 1] * jnp.power(tiny, (last - shifts[::-1][: v + 1]).astype(z.dtype)) / (total - first)
    at_zero = jnp.asarray(np.arange(v + 1) == 0).reshape(-1, *[1] * z.ndim)
    return jnp.where(z == 0, at_zero, values).astype(z.dtype)


@_bessel_jn.defjvp
def _bessel_jn_jvp(v: int, start: int, primals: Any, tangents: Any) -> Any:
    (z,), (t,) = primals, tangents
    values = _bessel_jn(z, v + 1, max(start, v + 3))
    slopes = jnp.concatenate([-values[1:2], (values[:v] - values[2:]) / 2])  # DLMF 10.6.1
    return values[: v + 1], t * slopes


_bessel_jn_program = jit(_bessel_jn, static_argnums=(1, 2))


@usual_promotion
def sph_harm_y(n: Any, m: Any, theta: Any, phi: Any, diff_n: int | None = None, n_max: int | None = None) -> Any:
    """The spherical harmonics Y_n^m(theta, phi), with the phase of Condon and Shortley.

    Args:
      n: degrees, integers that are not negative.
      m: orders, integers of at most n in size; beyond, harmonics are 0.
      theta: polar angles, from 0 to pi.
      phi: azimuths.
      diff_n: must be None.
      n_max: the greatest degree, which has to be given where n is traced.

    Returns:
      A complex array of the arguments' common shape, at least one dimension.

    Raises:
      UnsupportedError: diff_n is given.
      ConcretizationError: n is traced and n_max is not given.

    >>> meshrt.scipy.special.sph_harm_y(jnp.array([1]), jnp.array([0]), jnp.array([0.0]), jnp.array([0.0]), n_max=1)
    Array([0.48860252+0.j], dtype=complex64)
    """
    if diff_n is not None:
        raise errors.UnsupportedError("sph_harm_y: the 'diff_n' argument is not supported; differentiate the function")
    highest = static_int(np.max(np.asarray(n)) if n_max is None else n_max, "sph_harm_y: n_max")
    n, m = (jnp.atleast_1d(jnp.asarray(operand("sph_harm_y", x, i))) for i, x in enumerate((n, m)))
    theta, phi = floating("sph_harm_y", theta, phi)
    return _sph_harm_y(*jnp.broadcast_arrays(n, m, jnp.atleast_1d(theta), jnp.atleast_1d(phi)), highest)


@jit(static_argnums=4)
def _sph_harm_y(n: Any, m: Any, theta: Any, phi: Any, highest: int) -> Any:
    order = jnp.abs(m)
    values = _legendre(n, order, theta, highest)
    angle = order * phi
    sign = jnp.where((m < 0) & (order % 2 == 1), -1, 1)
    return lax.complex(sign * values * jnp.cos(angle), jnp.where(m < 0, -sign, sign) * values * jnp.sin(angle))


def _legendre(n: Any, m: Any, theta: Any, highest: int) -> Any:
    """Associated Legendre functions of cos(theta), normalised on the sphere: the diagonal n = m first, from there up
    in n (DLMF 14.10.3)."""
    x, y = jnp.cos(theta), -jnp.sin(theta)
    dtype = x.dtype

    def diagonal(k: Any, value: Any) -> Any:
        k = k.astype(dtype)
        return jnp.where(k <= m, value * y * jnp.sqrt((2 * k + 1) / (2 * k)), value)

    start = lax.fori_loop(1, highest + 1, diagonal, jnp.full_like(x, math.sqrt(0.25 / math.pi)))

    def up(k: Any, state: Any) -> tuple[Any, Any]:
        below, here = state
        active = (k > m) & (k <= n)
        l, o = k.astype(dtype), jnp.where(active, m, 0).astype(dtype)
        a = jnp.sqrt((4 * l * l - 1) / (l * l - o * o))
        b = jnp.sqrt(((l - 1) ** 2 - o * o) / (4 * (l - 1) ** 2 - 1))
        b = jnp.where(k - 1 > m, b, 0)
        new = a * (x * here - b * below)
        return jnp.where(active, here, below), jnp.where(active, new, here)

    _, value = lax.fori_loop(1, highest + 1, up, (jnp.zeros_like(start), start))
    return jnp.where(m > n, 0, value)
