"""Common divisors and multiples of integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.types import aval_of
from meshrt.numpy import prims as el
from meshrt.numpy.choose import choose
from meshrt.numpy.division import floor_divide
from meshrt.numpy.operands import broadcast_to_shape, promote, scalar_like
from meshrt.numpy.reductions import any as any_
from meshrt.numpy.ufuncs import absolute, weak_as

__all__ = ["gcd", "lcm"]


def _integers(name: str, x: Any, y: Any) -> tuple[Any, Any]:
    x, y = promote(name, x, y)
    if not dtypes.issubdtype(aval_of(x).dtype, np.integer):
        raise errors.ArgumentValueError(f"Arguments to jax.numpy.{name} must be integers, got dtype {aval_of(x).dtype}")
    shape = max(aval_of(x).shape, aval_of(y).shape, key=len)
    return broadcast_to_shape(absolute(x), shape), broadcast_to_shape(absolute(y), shape)


def gcd(x1: Any, x2: Any) -> Any:
    """The greatest common divisor, elementwise; never negative.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array, which broadcasts with the first.

    >>> jnp.gcd(12, jnp.array([8, 9]))
    Array([4, 3], dtype=int32)
    """
    return weak_as(_gcd(*_integers("gcd", x1, x2)), x1, x2)


# (Of the module, so that a second call finds the loop that was compiled for the first.)
def _unfinished(pair: tuple[Any, Any]) -> Any:
    return any_(el.ne_p.bind(pair[1], scalar_like(pair[1], 0)))


def _step(pair: tuple[Any, Any]) -> tuple[Any, Any]:
    a, b = pair
    zero = scalar_like(b, 0)
    ended = el.eq_p.bind(b, zero)
    rest = el.rem_p.bind(a, choose(ended, scalar_like(b, 1), b))
    return choose(ended, a, b), choose(ended, zero, rest)


def _gcd(x: Any, y: Any) -> Any:
    """Euclid's algorithm, until it has ended for every element."""
    return lax.while_loop(_unfinished, _step, (x, y))[0]


def lcm(x1: Any, x2: Any) -> Any:
    """The least common multiple, elementwise; 0 if either is 0.

    Args:
      x1: an array, or what `asarray` makes one of.
      x2: a second array, which broadcasts with the first.

    >>> jnp.lcm(4, jnp.array([6, 8]))
    Array([12,  8], dtype=int32)
    """
    x, y = _integers("lcm", x1, x2)
    divisor = _gcd(x, y)
    zero = el.eq_p.bind(divisor, scalar_like(divisor, 0))
    quotient = floor_divide(y, choose(zero, scalar_like(divisor, 1), divisor))
    return weak_as(choose(zero, scalar_like(divisor, 0), el.mul_p.bind(x, quotient)), x1, x2)
