"""Logarithms, angles and what is built of them."""

from __future__ import annotations

import numpy as np

from meshrt import dtypes
from meshrt.core.primitive import Primitive
from meshrt.core.types import aval_of
from meshrt.numpy import prims as el
from meshrt.numpy.creation import asarray
from meshrt.numpy.operands import operand, promote_inexact, scalar_like
from meshrt.numpy.pointwise import arctan2
from meshrt.numpy.selection import where
from meshrt.numpy.ufuncs import imag, isposinf, logical_or, real, real_only, strong_scalar
from meshrt.transforms.custom_derivatives import custom_jvp

__all__ = [
    "angle", "deg2rad", "degrees", "heaviside", "hypot", "log2", "log10", "logaddexp", "logaddexp2",
    "rad2deg", "radians", "sinc",
]  # fmt: skip


def log2(x, /):
    """Logarithm to base 2, elementwise."""
    (x,) = promote_inexact("log2", x)
    return el.div_p.bind(el.log_p.bind(x), strong_scalar(x, np.log(2)))


def log10(x, /):
    """Logarithm to base 10, elementwise."""
    (x,) = promote_inexact("log10", x)
    return el.mul_p.bind(el.log_p.bind(x), strong_scalar(x, 1 / np.log(10)))


def logaddexp(x, y, /):
    """log(exp(x) + exp(y)) without overflow, elementwise."""
    x, y = promote_inexact("logaddexp", x, y)
    real_only("logaddexp", aval_of(x).dtype)
    return _natural(x, y)


def logaddexp2(x, y, /):
    """log2(2**x + 2**y) without overflow, elementwise."""
    x, y = promote_inexact("logaddexp2", x, y)
    real_only("logaddexp2", aval_of(x).dtype)
    return _binary(x, y)


def _sum_of_powers(x, y, exponential: Primitive, scale: float):
    """The larger operand plus log(1 + base ** -difference); infinities of one sign have no difference."""
    top = el.max_p.bind(x, y)
    apart = el.sub_p.bind(x, y)
    near = el.log1p_p.bind(exponential.bind(el.neg_p.bind(el.abs_p.bind(apart))))
    near = near if scale == 1.0 else el.mul_p.bind(near, scalar_like(near, scale))
    return where(el.ne_p.bind(apart, apart), el.add_p.bind(x, y), el.add_p.bind(top, near))


def _with_weights(exponential: Primitive, scale: float):
    """`_sum_of_powers` of one base, whose derivative is base ** (operand - result): also for equal operands, where
    the larger of them and the absolute value of their difference have no derivative."""

    @custom_jvp
    def function(x, y):
        return _sum_of_powers(x, y, exponential, scale)

    @function.defjvp
    def derivative(primals, tangents):
        out = function(*primals)
        # An infinite result has no difference from its operand, which has all of the weight.
        weights = [exponential.bind(el.sub_p.bind(_without_infinity(p), _without_infinity(out))) for p in primals]
        return out, el.add_p.bind(*(el.mul_p.bind(t, w) for t, w in zip(tangents, weights)))

    return function


def _without_infinity(x):
    return where(isposinf(x), scalar_like(x, 0), x)


_natural, _binary = _with_weights(el.exp_p, 1.0), _with_weights(el.exp2_p, 1 / np.log(2))


def hypot(x, y, /):
    """sqrt(x*x + y*y) without overflow, elementwise."""
    x, y = promote_inexact("hypot", x, y)
    real_only("hypot", aval_of(x).dtype)
    x, y = el.abs_p.bind(x), el.abs_p.bind(y)
    infinite = logical_or(isposinf(x), isposinf(y))
    big, small = el.max_p.bind(x, y), el.min_p.bind(x, y)
    zero = el.eq_p.bind(big, scalar_like(big, 0))
    ratio = el.div_p.bind(small, where(zero, scalar_like(big, 1), big))
    root = el.sqrt_p.bind(el.add_p.bind(el.integer_pow_p.bind(ratio, y=2), scalar_like(big, 1)))
    out = where(zero, big, el.mul_p.bind(big, root))
    return where(infinite, scalar_like(out, np.inf), out)


def sinc(x, /):
    """sin(pi x) / (pi x), and 1 at 0, elementwise."""
    (x,) = promote_inexact("sinc", x)
    x = asarray(x)
    zero = el.eq_p.bind(x, scalar_like(x, 0))
    angle = where(zero, scalar_like(x, 1), el.mul_p.bind(x, scalar_like(x, np.pi)))
    return where(zero, scalar_like(x, 1), el.div_p.bind(el.sin_p.bind(angle), angle))


def deg2rad(x, /):
    """Degrees to radians, elementwise."""
    x = asarray(promote_inexact("deg2rad", x)[0])
    return el.mul_p.bind(x, scalar_like(x, np.pi / 180))


def rad2deg(x, /):
    """Radians to degrees, elementwise."""
    x = asarray(promote_inexact("rad2deg", x)[0])
    return el.mul_p.bind(x, scalar_like(x, 180 / np.pi))


radians, degrees = deg2rad, rad2deg


def heaviside(x, y, /):
    """0 for negative x, 1 for positive x, y at 0, elementwise."""
    x, y = map(asarray, promote_inexact("heaviside", x, y))
    zero, one = scalar_like(x, 0), scalar_like(x, 1)
    at_zero = where(el.ne_p.bind(x, x), x, y)
    return where(el.lt_p.bind(x, zero), zero, where(el.gt_p.bind(x, zero), one, at_zero))


def angle(z, deg: bool = False):
    """Angle of complex numbers in radians, or in degrees."""
    z = asarray(operand("angle", z))
    z = z if z.dtype.kind in "fc" else asarray(promote_inexact("angle", z)[0])
    out = el.convert_element_type(arctan2(imag(z), real(z)), np.dtype(dtypes.finfo(z.dtype).dtype))
    return rad2deg(out) if deg else out
