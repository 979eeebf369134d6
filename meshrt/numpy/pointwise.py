"""Elementwise functions that are one primitive after promotion."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from meshrt import dtypes
from meshrt.core.operators import ArrayOperators
from meshrt.core.primitive import Primitive
from meshrt.core.types import aval_of
from meshrt.dispatch import at_once
from meshrt.numpy import prims as el
from meshrt.numpy.choose import choose
from meshrt.numpy.operands import operand, pairwise, promote_inexact, promote_numeric, promote_pair
from meshrt.primitives.functions import numbers_of

__all__ = [
    "acos", "acosh", "add", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh",
    "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and", "bitwise_left_shift", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "cbrt", "cos", "cosh", "divide", "equal", "exp", "exp2",
    "expm1", "float_power", "greater", "greater_equal", "left_shift", "less", "less_equal", "log",
    "log1p", "maximum", "minimum", "multiply", "nextafter", "not_equal", "right_shift", "sin", "sinh",
    "sqrt", "subtract", "tan", "tanh", "true_divide",
]  # fmt: skip


def _floating(name: str, p: Primitive, doc: str, example: str) -> Callable[[Any], Any]:
    """A function of one operand, which becomes floating first."""

    def function(x: Any, /) -> Any:
        x = operand(name, x)
        if isinstance(x, ArrayOperators) and x.aval.dtype.kind in "fc":
            return p.bind(x)
        return p.bind(promote_inexact(name, x)[0])

    return at_once(1)(named(function, name, doc, example))


def named(function: Callable[..., Any], name: str, doc: str, example: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc}, elementwise.\n\n{example}\n"
    return function


exp = _floating("exp", el.exp_p, "e to the power of x", ">>> print(jnp.exp(2.0))\n7.389056")
exp2 = _floating("exp2", el.exp2_p, "2 to the power of x", ">>> print(jnp.exp2(2.0))\n4.0")
expm1 = _floating("expm1", el.expm1_p, "exp(x) - 1, exact for small x", ">>> print(jnp.expm1(2.0))\n6.389056")
log = _floating("log", el.log_p, "Natural logarithm", ">>> print(jnp.log(2.0))\n0.6931472")
log1p = _floating("log1p", el.log1p_p, "log(1 + x), exact for small x", ">>> print(jnp.log1p(2.0))\n1.0986123")
sqrt = _floating("sqrt", el.sqrt_p, "Square root", ">>> print(jnp.sqrt(2.0))\n1.4142135")
cbrt = _floating("cbrt", el.cbrt_p, "Cube root", ">>> print(jnp.cbrt(2.0))\n1.2599211")
sin = _floating("sin", el.sin_p, "Sine", ">>> print(jnp.sin(2.0))\n0.9092974")
cos = _floating("cos", el.cos_p, "Cosine", ">>> print(jnp.cos(2.0))\n-0.41614684")
tan = _floating("tan", el.tan_p, "Tangent", ">>> print(jnp.tan(2.0))\n-2.1850398")
sinh = _floating("sinh", el.sinh_p, "Hyperbolic sine", ">>> print(jnp.sinh(2.0))\n3.6268604")
cosh = _floating("cosh", el.cosh_p, "Hyperbolic cosine", ">>> print(jnp.cosh(2.0))\n3.7621958")
tanh = _floating("tanh", el.tanh_p, "Hyperbolic tangent", ">>> print(jnp.tanh(2.0))\n0.9640276")
arcsin = asin = _floating("arcsin", el.asin_p, "Inverse sine", ">>> print(jnp.arcsin(0.5))\n0.5235988")
arccos = acos = _floating("arccos", el.acos_p, "Inverse cosine", ">>> print(jnp.arccos(0.5))\n1.0471976")
arctan = atan = _floating("arctan", el.atan_p, "Inverse tangent", ">>> print(jnp.arctan(0.5))\n0.4636476")
arcsinh = asinh = _floating("arcsinh", el.asinh_p, "Inverse hyperbolic sine", ">>> print(jnp.arcsinh(0.5))\n0.48121184")
arccosh = acosh = _floating("arccosh", el.acosh_p, "Inverse hyperbolic cosine", ">>> print(jnp.arccosh(2.0))\n1.316958")
arctanh = atanh = _floating(
    "arctanh", el.atanh_p, "Inverse hyperbolic tangent", ">>> print(jnp.arctanh(0.5))\n0.54930615"
)


def _binary(
    name: str, p: Primitive, doc: str, example: str, on_bool: Primitive | None = None
) -> Callable[[Any, Any], Any]:
    """A function of two promoted operands; ``on_bool`` is what it means for booleans, if that differs."""
    if on_bool is None:

        def function(x: Any, y: Any, /) -> Any:
            x, y, _ = promote_pair(name, x, y)
            return p.bind(x, y)

    else:

        def function(x: Any, y: Any, /) -> Any:
            x, y, dtype = promote_pair(name, x, y)
            return (on_bool if dtype == np.bool_ else p).bind(x, y)

    return pairwise(named(function, name, doc, example))


def _equality(name: str, p: Primitive, joined: Primitive, doc: str, example: str) -> Callable[[Any, Any], Any]:
    """A comparison of numbers, or of an extended dtype; ``joined`` makes one of those of the numbers of an element."""

    def function(x: Any, y: Any, /) -> Any:
        if isinstance(x, ArrayOperators) and isinstance(y, ArrayOperators):
            if x.aval.is_extended and x.aval.dtype == y.aval.dtype:
                last = x.aval.dtype.physical_suffix
                x, y, _ = promote_pair(name, numbers_of(x), numbers_of(y))
                said = p.bind(x, y)
                return reduce(joined.bind, [said[(..., *i)] for i in np.ndindex(last)])
        x, y, _ = promote_pair(name, x, y)
        return p.bind(x, y)

    return pairwise(named(function, name, doc, example))


add = _binary("add", el.add_p, "Sum (of booleans: or)", ">>> print(jnp.add(jnp.array([5, 3]), 3))\n[8 6]", el.or_p)
subtract = _binary("subtract", el.sub_p, "Difference", ">>> print(jnp.subtract(jnp.array([5, 3]), 3))\n[2 0]")
multiply = _binary(
    "multiply",
    el.mul_p,
    "Product (of booleans: and)",
    ">>> print(jnp.multiply(jnp.array([5, 3]), 3))\n[15  9]",
    el.and_p,
)
maximum = _binary(
    "maximum",
    el.max_p,
    "The larger of two values; NaN if either is",
    ">>> print(jnp.maximum(jnp.array([5, 3]), 3))\n[5 3]",
)
minimum = _binary(
    "minimum",
    el.min_p,
    "The smaller of two values; NaN if either is",
    ">>> print(jnp.minimum(jnp.array([5, 3]), 3))\n[3 3]",
)
equal = _equality("equal", el.eq_p, el.and_p, "x == y", ">>> print(jnp.equal(jnp.array([5, 3]), 3))\n[False  True]")
not_equal = _equality(
    "not_equal", el.ne_p, el.or_p, "x != y", ">>> print(jnp.not_equal(jnp.array([5, 3]), 3))\n[ True False]"
)
bitwise_and = _binary("bitwise_and", el.and_p, "Bitwise and", ">>> print(jnp.bitwise_and(jnp.array([5, 3]), 3))\n[1 3]")
bitwise_or = _binary("bitwise_or", el.or_p, "Bitwise or", ">>> print(jnp.bitwise_or(jnp.array([5, 3]), 3))\n[7 3]")
bitwise_xor = _binary(
    "bitwise_xor", el.xor_p, "Bitwise exclusive or", ">>> print(jnp.bitwise_xor(jnp.array([5, 3]), 3))\n[6 0]"
)


def _comparison(name: str, p: Primitive, doc: str, example: str) -> Callable[[Any, Any], Any]:
    def function(x: Any, y: Any, /) -> Any:
        x, y, dtype = promote_pair(name, x, y)
        if dtype.kind != "c":
            return p.bind(x, y)
        parts = [(el.real_p.bind(v), el.imag_p.bind(v)) for v in (x, y)]
        (xr, xi), (yr, yi) = parts  # complex numbers compare by real part first, as in NumPy
        return choose(el.eq_p.bind(xr, yr), p.bind(xi, yi), p.bind(xr, yr))

    return pairwise(named(function, name, doc, example))


less = _comparison("less", el.lt_p, "x < y", ">>> print(jnp.less(jnp.array([5, 3]), 3))\n[False False]")
less_equal = _comparison(
    "less_equal", el.le_p, "x <= y", ">>> print(jnp.less_equal(jnp.array([5, 3]), 3))\n[False  True]"
)
greater = _comparison("greater", el.gt_p, "x > y", ">>> print(jnp.greater(jnp.array([5, 3]), 3))\n[ True False]")
greater_equal = _comparison(
    "greater_equal", el.ge_p, "x >= y", ">>> print(jnp.greater_equal(jnp.array([5, 3]), 3))\n[ True  True]"
)


def _numeric_binary(
    name: str, p: Primitive, doc: str, example: str, inexact: bool = False
) -> Callable[[Any, Any], Any]:
    prepare = promote_inexact if inexact else promote_numeric

    def function(x: Any, y: Any, /) -> Any:
        return p.bind(*prepare(name, x, y))

    return at_once(2)(named(function, name, doc, example))


left_shift = bitwise_left_shift = _numeric_binary(
    "left_shift", el.shift_left_p, "x << y", ">>> print(jnp.left_shift(jnp.array([1, 3]), 2))\n[ 4 12]"
)
float_power = _numeric_binary(
    "float_power", el.pow_p, "x to the power of y in floating point", ">>> print(jnp.float_power(2, 3))\n8.0", True
)
nextafter = _numeric_binary(
    "nextafter",
    el.nextafter_p,
    "Next number after x towards y",
    ">>> print(jnp.nextafter(1.0, 2.0) - 1)\n1.1920929e-07",
    True,
)


@at_once(2)
def arctan2(x1: Any, x2: Any, /) -> Any:
    """The angle of the point (x2, x1), elementwise.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array, which broadcasts with the first.

    >>> print(jnp.arctan2(1.0, 1.0))
    0.7853982
    """
    return el.atan2_p.bind(*promote_inexact("arctan2", x1, x2))


atan2 = arctan2


@pairwise
def right_shift(x1: Any, x2: Any, /) -> Any:
    """x1 >> x2, elementwise; keeps the sign of signed integers.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array, which broadcasts with the first.

    >>> jnp.right_shift(jnp.array([-8, 8]), 1)
    Array([-4,  4], dtype=int32)
    """
    x1, x2 = promote_numeric("right_shift", x1, x2)
    unsigned = dtypes.issubdtype(aval_of(x1).dtype, np.unsignedinteger)
    return (el.shift_right_logical_p if unsigned else el.shift_right_arithmetic_p).bind(x1, x2)


bitwise_right_shift = right_shift


@pairwise
def true_divide(x1: Any, x2: Any, /) -> Any:
    """x1 / x2 in floating point, elementwise.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array, which broadcasts with the first.

    >>> jnp.divide(1, jnp.array([2, 4]))
    Array([0.5 , 0.25], dtype=float32)
    """
    a, b, dtype = promote_pair("true_divide", x1, x2)
    if dtypes.issubdtype(dtype, np.inexact):
        return el.div_p.bind(a, b)
    # (Of the numbers as they are given: as integers of that type they may wrap around.)
    return el.div_p.bind(*promote_inexact("true_divide", x1, x2))


divide = true_divide
