"""Quotients rounded down and remainders, elementwise."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import dtypes
from meshrt.core.operators import ArrayOperators
from meshrt.core.types import aval_of
from meshrt.numpy import prims as el
from meshrt.numpy.choose import choose
from meshrt.numpy.logic import logical_and
from meshrt.numpy.operands import operand, pairwise, promote_numeric, scalar_like
from meshrt.numpy.pointwise import not_equal
from meshrt.numpy.ufuncs import real_only

__all__ = ["divmod", "floor_divide", "fmod", "mod", "remainder"]


@pairwise
def floor_divide(x1: Any, x2: Any, /) -> Any:
    """x1 // x2, elementwise: the quotient rounded down.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array, which broadcasts with the first.

    >>> jnp.floor_divide(jnp.array([7, -7]), 2)
    Array([ 3, -4], dtype=int32)
    """
    x1, x2 = promote_numeric("floor_divide", x1, x2)
    dtype = aval_of(x1).dtype
    real_only("floor_divide", dtype)
    if dtypes.issubdtype(dtype, np.unsignedinteger):
        return el.div_p.bind(x1, x2)
    if dtypes.issubdtype(dtype, np.integer):
        quotient = el.div_p.bind(x1, x2)
        down = logical_and(
            not_equal(el.sign_p.bind(x1), el.sign_p.bind(x2)),
            not_equal(el.rem_p.bind(x1, x2), scalar_like(quotient, 0)),
        )
        return choose(down, el.sub_p.bind(quotient, scalar_like(quotient, 1)), quotient)
    return _float_divmod(x1, x2)[0]


def _float_divmod(x: Any, y: Any) -> tuple[Any, Any]:
    """Python's divmod of floats: the remainder has the sign of the divisor."""
    rest = el.rem_p.bind(x, y)
    zero = scalar_like(rest, 0)
    exact = choose(el.eq_p.bind(y, zero), x, el.sub_p.bind(x, rest))
    quotient = el.div_p.bind(exact, y)
    fix_up = logical_and(not_equal(rest, zero), not_equal(el.sign_p.bind(y), el.sign_p.bind(rest)))
    rest = choose(fix_up, el.add_p.bind(rest, y), rest)
    quotient = choose(fix_up, el.sub_p.bind(quotient, scalar_like(rest, 1)), quotient)
    return el.round_p.bind(quotient, rounding_method=0), rest


def divmod(x1: Any, x2: Any, /) -> Any:
    """(x1 // x2, x1 % x2), elementwise.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array, which broadcasts with the first.

    >>> jnp.divmod(jnp.array([7, -7]), 3)
    (Array([ 2, -3], dtype=int32), Array([1, 2], dtype=int32))
    """
    x1, x2 = promote_numeric("divmod", x1, x2)
    if dtypes.issubdtype(aval_of(x1).dtype, np.integer):
        return floor_divide(x1, x2), remainder(x1, x2)
    return _float_divmod(x1, x2)


@pairwise
def remainder(x1: Any, x2: Any, /) -> Any:
    """x1 % x2, elementwise, with the sign of x2; x1 for integer x2 == 0.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array, which broadcasts with the first.

    >>> jnp.mod(jnp.array([-7, 7]), 3)
    Array([2, 1], dtype=int32)
    """
    x1, x2 = promote_numeric("remainder", x1, x2)
    x2 = _nonzero_divisor(x2)
    rest = el.rem_p.bind(x1, x2)
    zero = scalar_like(rest, 0)
    other_side = el.ne_p.bind(el.lt_p.bind(rest, zero), spread_lt_zero(x2, rest))
    shift = el.and_p.bind(other_side, el.ne_p.bind(rest, zero))
    return choose(shift, el.add_p.bind(rest, x2), rest)


mod = remainder


def spread_lt_zero(y: Any, like: Any) -> Any:
    """y < 0, as an array or, for a static y, as a scalar."""
    return el.lt_p.bind(y, scalar_like(like, 0)) if isinstance(y, ArrayOperators) else np.less(y, 0)


def _nonzero_divisor(y: Any) -> Any:
    """Integer division by zero is undefined: divide by one instead."""
    if not dtypes.issubdtype(aval_of(y).dtype, np.integer):
        return y
    if not isinstance(y, ArrayOperators):
        return y if np.all(y) else np.where(y == 0, np.ones_like(y), y)[()]
    return choose(el.eq_p.bind(y, scalar_like(y, 0)), scalar_like(y, 1), y)


@pairwise
def fmod(x1: Any, x2: Any, /) -> Any:
    """Remainder of x1 / x2 with the sign of x1, elementwise; 0 for integer x2 == 0.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array, which broadcasts with the first.

    >>> jnp.fmod(jnp.array([-7, 7]), 3)
    Array([-1,  1], dtype=int32)
    """
    x1, x2 = operand("fmod", x1), operand("fmod", x2, 1)
    integers = dtypes.issubdtype(dtypes.result_type(x1, x2), np.integer)  # bool is not, and keeps x1
    x1, x2 = promote_numeric("fmod", x1, x2)
    return el.rem_p.bind(x1, _nonzero_divisor(x2) if integers else x2)
