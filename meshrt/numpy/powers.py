"""Powers and the reciprocal, elementwise."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.operators import ArrayOperators
from meshrt.core.types import aval_of
from meshrt.dispatch import at_once
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray
from meshrt.numpy.choose import choose
from meshrt.numpy.logic import logical_and
from meshrt.numpy.operands import fit_shapes, is_unknown, operand, promote_inexact, promote_numeric
from meshrt.numpy.pointwise import bitwise_and, equal, multiply, not_equal
from meshrt.numpy.ufuncs import strong_scalar

__all__ = ["pow", "power", "reciprocal", "square"]


def power(x: Any, y: Any, /) -> Any:
    """x to the power of y, elementwise. An exponent that is one known integer becomes repeated products.

    Args:
      x: an array, or what `asarray` makes one of.
      y: a second array, which broadcasts with the first.

    >>> jnp.power(2, jnp.array([1, 2, 3]))
    Array([2, 4, 8], dtype=int32)
    """
    if isinstance(y, np.ndarray) and y.ndim == 0:
        y = y[()]
    elif isinstance(y, ArrayOperators) and y.ndim == 0 and dtypes.issubdtype(y.dtype, np.integer) and not is_unknown(y):
        y = operator.index(y)
    if isinstance(y, (int, np.integer)) and not isinstance(y, (bool, np.bool_)):
        return _integer_power(x, operator.index(y))
    x, y = operand("power", x), operand("power", y, 1)
    if dtypes.issubdtype(aval_of(y).dtype, np.integer) and dtypes.issubdtype(aval_of(x).dtype, np.inexact):
        return el.pow_p.bind(*fit_shapes("power", [x, y]))
    x, y = promote_numeric("power", x, y)
    dtype = aval_of(x).dtype
    if dtypes.issubdtype(dtype, np.integer):
        return _integer_bases(x, y)
    return el.pow_p.bind(x, y)


pow = power


def _integer_power(x: Any, n: int) -> Any:
    (x,) = promote_numeric("power", x)
    if n < 0 and dtypes.issubdtype(aval_of(x).dtype, np.integer):
        raise errors.ArgumentTypeError(
            f"integers cannot be raised to the negative power {n}; convert the base first, x.astype('float32')"
        )
    return el.integer_pow_p.bind(x, y=n)


def _integer_bases(x: Any, y: Any) -> Any:
    """Binary exponentiation with a fixed number of steps: larger exponents overflow anyway."""
    x, y = map(asarray, (x, y))
    zero, one = strong_scalar(x, 0), strong_scalar(x, 1)
    result = choose(logical_and(equal(x, zero), not_equal(y, zero)), zero, one)
    for _ in range(6):
        result = choose(not_equal(bitwise_and(y, one), zero), multiply(result, x), result)
        x = multiply(x, x)
        y = el.shift_right_logical_p.bind(y, one)
    return result


@at_once(1)
def square(x: Any, /) -> Any:
    """x * x, elementwise.

    >>> jnp.square(jnp.array([2, 3]))
    Array([4, 9], dtype=int32)
    """
    (x,) = promote_numeric("square", x)
    return el.integer_pow_p.bind(x, y=2)


@at_once(1)
def reciprocal(x: Any, /) -> Any:
    """1 / x in floating point, elementwise.

    >>> jnp.reciprocal(jnp.array([2.0, 4.0]))
    Array([0.5 , 0.25], dtype=float32)
    """
    (x,) = promote_inexact("reciprocal", x)
    return el.integer_pow_p.bind(x, y=-1)
