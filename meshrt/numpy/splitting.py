"""Arrays in parts along a dimension."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from meshrt import dtypes, lax
from meshrt.core.dimensions.expression import DimExpr, min_dim
from meshrt.core.operators import ArrayOperators
from meshrt.numpy.arrays import operand_array
from meshrt.numpy.operands import ShapeError, canonical_axis, is_unknown, static_int, static_size
from meshrt.numpy.shapes import ndim

__all__ = ["array_split", "dsplit", "hsplit", "split", "vsplit"]


class NoPartsError(ShapeError, ZeroDivisionError):
    """A dimension cannot be divided into no parts."""


def _sections(name: str, n: int, parts: Any) -> list[int]:
    """Where the pieces of a dimension of size n begin and end."""
    if isinstance(parts, (tuple, list)) or getattr(parts, "ndim", 0) > 0:
        bounds = [0, *(static_size(p, f"{name}: positions") for p in parts), n]
        sizes = [b - a for a, b in itertools.pairwise(bounds)]
        if any(s < 0 for s in sizes):
            raise ShapeError(
                f"{name}: Sizes passed to split must be nonnegative, got {sizes} of positions {bounds[1:-1]}"
            )
        return bounds
    if isinstance(parts, DimExpr):
        raise ShapeError(
            f"{name}: jax.numpy.split with a symbolic number of sections is not supported, as it decides how many "
            f"arrays there are; got {parts}"
        )
    known = int(parts) if _is_known_float(parts) else parts
    count = static_int(known, f"{name}: the number of parts")
    if count == 0:
        raise NoPartsError(f"{name}: integer division or modulo by zero: the number of parts is 0")
    if count < 0:
        raise ShapeError(f"{name}: the number of parts must be at least 1, got {count}; [p] cuts at position p")
    each, rest = divmod(n, count)
    if name == "array_split":
        return [each * i + min_dim(rest, i) for i in range(count + 1)]
    if isinstance(rest, DimExpr) or rest:
        raise ShapeError(f"array split does not result in an equal division: rest is {rest}; use array_split")
    return [each * i for i in range(count + 1)]


def _is_known_float(x: Any) -> bool:
    if isinstance(x, (float, np.floating)):
        return True
    return isinstance(x, ArrayOperators) and not is_unknown(x) and dtypes.issubdtype(x.dtype, np.floating)


def _split(name: str, ary: Any, parts: Any, axis: int) -> list[Any]:
    x = operand_array(name, ary)
    axis = canonical_axis(axis, x.ndim, name)
    bounds = _sections(name, x.shape[axis], parts)
    return [lax.slice_in_dim(x, a, b, axis=axis) for a, b in itertools.pairwise(bounds)]


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Equal parts of ``ary`` along ``axis``, or the parts between given positions.

    Args:
      ary: an array, or what `asarray` makes one of.
      indices_or_sections: how many equal parts, or where to cut.
      axis: the dimension to work along; negative numbers count from the end.

    Returns:
      A list of arrays.

    Raises:
      ValueError: the dimension does not divide into that many parts.

    >>> jnp.split(jnp.arange(6), [2, 5])
    [Array([0, 1], dtype=int32), Array([2, 3, 4], dtype=int32), Array([5], dtype=int32)]
    """
    return _split("split", ary, indices_or_sections, axis)


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """As :func:`split`; the first parts are larger by one where the size does not divide.

    Args:
      ary: an array, or what `asarray` makes one of.
      indices_or_sections: how many parts, or where to cut.
      axis: the dimension to work along; negative numbers count from the end.

    >>> jnp.array_split(jnp.arange(5), 2)
    [Array([0, 1, 2], dtype=int32), Array([3, 4], dtype=int32)]
    """
    return _split("array_split", ary, indices_or_sections, axis)


def vsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """:func:`split` along the first dimension.

    Args:
      ary: an array, or what `asarray` makes one of.
      indices_or_sections: how many equal parts, or where to cut.

    >>> [x.shape for x in jnp.vsplit(jnp.ones((4, 2)), 2)]
    [(2, 2), (2, 2)]
    """
    return _split("vsplit", ary, indices_or_sections, 0)


def hsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """:func:`split` along the second dimension, of vectors along the first.

    Args:
      ary: an array, or what `asarray` makes one of.
      indices_or_sections: how many equal parts, or where to cut.

    >>> jnp.hsplit(jnp.arange(4), 2)
    [Array([0, 1], dtype=int32), Array([2, 3], dtype=int32)]
    """
    return _split("hsplit", ary, indices_or_sections, 0 if ndim(ary) == 1 else 1)


def dsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """:func:`split` along the third dimension.

    Args:
      ary: an array, or what `asarray` makes one of.
      indices_or_sections: how many equal parts, or where to cut.

    >>> [x.shape for x in jnp.dsplit(jnp.ones((1, 2, 4)), 2)]
    [(1, 2, 2), (1, 2, 2)]
    """
    return _split("dsplit", ary, indices_or_sections, 2)
