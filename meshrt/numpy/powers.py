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


def power(x1: Any, x2: Any, /) -> Any:
    """x1 to the power of x2, elementwise. An exponent that is one known integer becomes repeated products.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array, which broadcasts with the first.

    >>> jnp.power(2, jnp.array([1, 2, 3]))
    Array([2, 4, 8], dtype=int32)
    """
    if isinstance(x2, np.ndarray) and x2.ndim == 0:
        x2 = x2[()]
    elif isinstance(x2, ArrayOperators) and x2.ndim == 0 and not is_unknown(x2):
        if dtypes.issubdtype(x2.dtype, np.integer):
            x2 = operator.index(x2)
    if isinstance(x2, (int, np.integer)):  # False and True too
        return _integer_power(x1, operator.index(x2))
    x1, x2 = operand("power", x1), operand("power", x2, 1)
    if dtypes.issubdtype(aval_of(x2).dtype, np.integer) and dtypes.issubdtype(aval_of(x1).dtype, np.inexact):
        return el.pow_p.bind(*fit_shapes("power", [x1, x2]))
    x1, x2 = promote_numeric("power", x1, x2)
    dtype = aval_of(x1).dtype
    if dtypes.issubdtype(dtype, np.integer):
        return _integer_bases(x1, x2)
    return el.pow_p.bind(x1, x2)


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
