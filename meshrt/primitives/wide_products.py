"""Products of integers in twice their width, of which the upper half is wanted."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import dtypes
from meshrt.core.basic.pointwise import joint_shape, same_dtype, spread
from meshrt.core.basic.shapes import broadcast_in_dim
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.bitcast import bitcast_convert_type
from meshrt.primitives.conversion import convert_element_type_p
from meshrt.primitives.functions import add, bitwise_and, lt, mul, shift_right_logical, sub
from meshrt.primitives.selection import select_n_p

__all__ = ["mulhi"]


def mulhi(x: Any, y: Any, /) -> Any:
    """The upper half of the product of two arrays of integers, elementwise: of 32-bit ones, bits 32 to 63.

    Raises:
      ArgumentTypeError: an operand is not of an integer dtype, or the dtypes differ.

    >>> import numpy as np, meshrt
    >>> int(meshrt.lax.mulhi(np.int32(1 << 30), np.int32(12)))
    3
    """
    a, b = aval_of(x), aval_of(y)
    same_dtype("mulhi", [a, b])
    shape = joint_shape("mulhi", [a, b], "iu")
    x, y = spread(x, shape), spread(y, shape)
    weak, a = a.weak_type and b.weak_type, aval_of(x)
    high = _upper(x, y, a.dtype) if dtypes.issubdtype(a.dtype, np.unsignedinteger) else _signed(x, y, a)
    return convert_element_type_p.bind(high, new_dtype=a.dtype, weak_type=True) if weak else high


def _signed(x: Any, y: Any, a: ShapedArray) -> Any:
    unsigned = np.dtype(f"u{a.dtype.name}")
    p, q = (bitcast_convert_type(v, unsigned) for v in (x, y))
    high = bitcast_convert_type(_upper(p, q, unsigned), a.dtype)
    # Read as unsigned, a negative x is larger by 2^bits, and the upper half by y; likewise for y.
    zero = broadcast_in_dim(np.asarray(0, a.dtype)[()], a.shape, ())
    for one, other in ((x, y), (y, x)):
        high = sub(high, select_n_p.bind(lt(one, zero), zero, other))
    return high


def _upper(x: Any, y: Any, dtype: np.dtype) -> Any:
    """Of unsigned integers, from products of their halves, none of which overflows."""
    half = 4 * dtype.itemsize
    mask, width = (dtype.type(n) for n in ((1 << half) - 1, half))
    (x_low, x_high), (y_low, y_high) = ((bitwise_and(v, mask), shift_right_logical(v, width)) for v in (x, y))
    middle = add(mul(x_high, y_low), shift_right_logical(mul(x_low, y_low), width))
    other = add(mul(x_low, y_high), bitwise_and(middle, mask))
    carried = add(shift_right_logical(middle, width), shift_right_logical(other, width))
    return add(mul(x_high, y_high), carried)
