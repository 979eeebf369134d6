"""Logarithms, angles and what is built of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.primitive import Primitive
from meshrt.core.types import aval_of
from meshrt.dispatch import at_once
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray
from meshrt.numpy.broadcasting import common_shape
from meshrt.numpy.choose import choose
from meshrt.numpy.logic import isposinf, logical_or
from meshrt.numpy.operands import broadcast_to_shape, in_one_dtype, operand, promote_inexact, scalar_like
from meshrt.numpy.pointwise import arctan2
from meshrt.numpy.ufuncs import imag, real, strong_scalar, weak_as
from meshrt.transforms.custom_jvp import fused_custom_jvp

__all__ = [
    "angle", "deg2rad", "degrees", "heaviside", "hypot", "log2", "log10", "logaddexp", "logaddexp2",
    "rad2deg", "radians", "sinc",
]  # fmt: skip


@at_once(1)
def log2(x: Any, /) -> Any:
    """Logarithm to base 2, elementwise.

    >>> jnp.log2(jnp.array([1.0, 8.0]))
    Array([0., 3.], dtype=float32)
    """
    (x,) = promote_inexact("log2", x)
    return _by_parts(lambda part: el.div_p.bind(part, strong_scalar(part, np.log(2))), el.log_p.bind(x))


@at_once(1)
def log10(x: Any, /) -> Any:
    """Logarithm to base 10, elementwise.

    >>> jnp.log10(jnp.array([1.0, 100.0]))
    Array([0., 2.], dtype=float32)
    """
    (x,) = promote_inexact("log10", x)
    return _by_parts(lambda part: el.mul_p.bind(part, strong_scalar(part, 1 / np.log(10))), el.log_p.bind(x))


def _by_parts(scale: Callable[[Any], Any], x: Any) -> Any:
    """`scale` of a real x, or of both parts of a complex one: a complex factor would make NaN of inf + 0j."""
    if aval_of(x).dtype.kind != "c":
        return scale(x)
    return el.complex(scale(el.real_p.bind(x)), scale(el.imag_p.bind(x)))


def logaddexp(x: Any, y: Any, /) -> Any:
    """log(exp(x) + exp(y)) without overflow, elementwise."""
    given = x, y
    x, y = promote_inexact("logaddexp", x, y)
    out = _natural(x, y)
    return weak_as(out, *given) if aval_of(out).dtype.kind == "c" else out


def logaddexp2(x: Any, y: Any, /) -> Any:
    """log2(2**x + 2**y) without overflow, elementwise."""
    given = x, y
    x, y = promote_inexact("logaddexp2", x, y)
    return weak_as(_binary(x, y), *given)


def _sum_of_powers(x: Any, y: Any, exponential: Primitive, scale: float) -> Any:
    """The larger operand plus log(1 + base ** -difference); infinities of one sign have no difference."""
    top = el.max_p.bind(x, y)
    if aval_of(x).dtype.kind == "c":
        return _complex_sum_of_powers(x, y, top, exponential, scale)
    apart = el.sub_p.bind(x, y)
    near = el.log1p_p.bind(exponential.bind(el.neg_p.bind(el.abs_p.bind(apart))))
    near = near if scale == 1.0 else el.mul_p.bind(near, scalar_like(near, scale))
    return choose(el.ne_p.bind(apart, apart), el.add_p.bind(x, y), el.add_p.bind(top, near))


def _complex_sum_of_powers(x: Any, y: Any, top: Any, exponential: Primitive, scale: float) -> Any:
    """The principal value: powers don't change where the imaginary part is moved by whole turns."""
    low = el.sub_p.bind(el.add_p.bind(x, y), el.add_p.bind(top, top))
    near = el.log1p_p.bind(exponential.bind(low))
    out = el.add_p.bind(top, near if scale == 1.0 else el.mul_p.bind(near, scalar_like(near, scale)))
    half = scalar_like(el.imag_p.bind(out), np.pi * scale)
    turn = el.add_p.bind(half, half)
    angle = el.rem_p.bind(el.add_p.bind(el.imag_p.bind(out), half), turn)
    angle = choose(el.lt_p.bind(angle, scalar_like(angle, 0)), el.add_p.bind(angle, turn), angle)
    return el.complex(el.real_p.bind(out), el.sub_p.bind(angle, half))


def _with_weights(name: str, exponential: Primitive, scale: float) -> Callable[[Any, Any], Any]:
    """`_sum_of_powers` of one base, under the name that programs show. Its derivative is base ** (operand - result):
    also for equal operands, where the larger of them and the absolute value of their difference have no derivative."""

    def summed(x: Any, y: Any) -> Any:
        return _sum_of_powers(x, y, exponential, scale)

    summed.__name__ = summed.__qualname__ = name
    function = fused_custom_jvp(summed)

    @function.defjvp
    def derivative(primals: Any, tangents: Any) -> Any:
        out = function(*primals)
        # An infinite result has no difference from its operand, which has all of the weight.
        weights = [exponential.bind(el.sub_p.bind(_without_infinity(p), _without_infinity(out))) for p in primals]
        return out, el.add_p.bind(*(el.mul_p.bind(t, w) for t, w in zip(tangents, weights)))

    return function


def _without_infinity(x: Any) -> Any:
    if aval_of(x).dtype.kind == "c":
        infinite = el.eq_p.bind(el.real_p.bind(x), np.asarray(np.inf, el.real_p.bind(x).dtype)[()])
        return choose(infinite, scalar_like(x, 0), x)
    return choose(isposinf(x), scalar_like(x, 0), x)


_natural = _with_weights("logaddexp", el.exp_p, 1.0)
_binary = _with_weights("logaddexp2", el.exp2_p, 1 / np.log(2))


@at_once(2)
def hypot(x1: Any, x2: Any, /) -> Any:
    """sqrt(x1*x1 + x2*x2) without overflow, elementwise.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array, which broadcasts with the first.

    >>> jnp.hypot(3.0, 4.0)
    Array(5., dtype=float32, weak_type=True)
    """
    given = x1, x2
    x1, x2 = promote_inexact("hypot", x1, x2)
    if aval_of(x1).dtype.kind == "c":
        raise errors.ArgumentValueError("jnp.hypot is not well defined for complex-valued inputs; take abs first")
    x1, x2 = el.abs_p.bind(x1), el.abs_p.bind(x2)
    infinite = logical_or(isposinf(x1), isposinf(x2))
    big, small = el.max_p.bind(x1, x2), el.min_p.bind(x1, x2)
    zero = el.eq_p.bind(big, scalar_like(big, 0))
    ratio = el.div_p.bind(small, choose(zero, scalar_like(big, 1), big))
    root = el.sqrt_p.bind(el.add_p.bind(el.integer_pow_p.bind(ratio, y=2), scalar_like(big, 1)))
    out = choose(zero, big, el.mul_p.bind(big, root))
    return weak_as(choose(infinite, scalar_like(out, np.inf), out), *given)


@functools.partial(fused_custom_jvp, nondiff_argnums=(0,))
def _sinc_at_zero(order: int, x: Any) -> Any:
    """Derivative number `order` of sin(x) / x at 0, shaped like x: (-1)^(order/2) / (order + 1), or 0 if it is odd."""
    value = 0.0 if order % 2 else (-1.0) ** (order // 2) / (order + 1)
    return broadcast_to_shape(scalar_like(x, value), aval_of(x).shape)


@_sinc_at_zero.defjvp
def _sinc_at_zero_jvp(order: int, primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    return _sinc_at_zero(order, *primals), el.mul_p.bind(_sinc_at_zero(order + 1, *primals), *tangents)


@at_once(1)
def sinc(x: Any, /) -> Any:
    """sin(pi x) / (pi x), and 1 at 0, elementwise.

    >>> jnp.sinc(jnp.array([0.0, 0.5]))
    Array([1.        , 0.63661975], dtype=float32)
    """
    (x,) = promote_inexact("sinc", x)
    x = asarray(x)
    zero = el.eq_p.bind(x, scalar_like(x, 0))
    scaled = el.mul_p.bind(x, scalar_like(x, np.pi))
    angle = choose(zero, scalar_like(x, 1), scaled)
    return choose(zero, _sinc_at_zero(0, scaled), el.div_p.bind(el.sin_p.bind(angle), angle))


@at_once(1)
def deg2rad(x: Any, /) -> Any:
    """Degrees to radians, elementwise.

    >>> jnp.deg2rad(jnp.array([0.0, 180.0]))
    Array([0.       , 3.1415927], dtype=float32)
    """
    x = asarray(promote_inexact("deg2rad", x)[0])
    return el.mul_p.bind(x, scalar_like(x, np.pi / 180))


@at_once(1)
def rad2deg(x: Any, /) -> Any:
    """Radians to degrees, elementwise.

    >>> jnp.degrees(jnp.pi)
    Array(180., dtype=float32, weak_type=True)
    """
    x = asarray(promote_inexact("rad2deg", x)[0])
    return el.mul_p.bind(x, scalar_like(x, 180 / np.pi))


radians, degrees = deg2rad, rad2deg


@at_once(2)
def heaviside(x1: Any, x2: Any, /) -> Any:
    """0 for negative x1, 1 for positive x1, x2 at 0, elementwise.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array, which broadcasts with the first.

    >>> jnp.heaviside(jnp.array([-1.0, 0.0, 1.0]), 0.5)
    Array([0. , 0.5, 1. ], dtype=float32)
    """
    given = x1
    x1, x2 = map(asarray, in_one_dtype("heaviside", (x1, x2), inexact=True))
    if x1.ndim and x2.ndim:  # of any ranks, whatever the setting numpy_rank_promotion says
        shape = common_shape("heaviside", x1.shape, x2.shape)
        x1, x2 = broadcast_to_shape(x1, shape), broadcast_to_shape(x2, shape)
    zero, one = scalar_like(x1, 0), scalar_like(x1, 1)
    at_zero = choose(el.ne_p.bind(x1, x1), x1, x2)
    return weak_as(choose(el.lt_p.bind(x1, zero), zero, choose(el.gt_p.bind(x1, zero), one, at_zero)), given)


def angle(z: Any, deg: bool = False) -> Any:
    """Angle of complex numbers in radians, or in degrees.

    Args:
      z: an array of complex or real numbers.
      deg: in degrees instead of radians.

    >>> jnp.angle(jnp.array([1 + 1j, -1.0]), deg=True)
    Array([ 45., 180.], dtype=float32)
    """
    z = asarray(operand("angle", z))
    if z.dtype.kind != "c" and (not dtypes.issubdtype(z.dtype, np.floating) or z.ndim == 0):
        z = el.convert_element_type(z, dtypes.default_float_dtype())
    out = arctan2(imag(z), real(z))
    weak = z.dtype.kind == "c" and z.weak_type  # of real numbers it is a constant, which is strong
    out = el.convert_element_type(out, np.dtype(dtypes.finfo(z.dtype).dtype), weak_type=weak)
    return rad2deg(out) if deg else out
