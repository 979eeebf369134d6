"""Parts of matrices, as derivatives of decompositions need them: diagonals, and what is beside them."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.core.basic.shapes import broadcast_in_dim, reduce_sum_p
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives import elementwise as ew
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.reshape import broadcasted_iota

__all__: list[str] = []


def eye_like(x: Any) -> Any:
    """Ones on the diagonals of matrices like `x`, zeros elsewhere."""
    aval: ShapedArray = aval_of(x)
    rows, columns = (broadcasted_iota(np.int32, aval.shape, aval.ndim - d) for d in (2, 1))
    return convert_element_type(ew.eq_p.bind(rows, columns), aval.dtype)


def diagonal_part(x: Any) -> Any:
    """`x` with zeros off the diagonal."""
    return ew.mul_p.bind(x, eye_like(x))


def off_diagonal(x: Any) -> Any:
    """`x` with zeros on the diagonal."""
    return ew.sub_p.bind(x, diagonal_part(x))


def diagonal(x: Any) -> Any:
    """The diagonals of square matrices."""
    return reduce_sum_p.bind(diagonal_part(x), axes=(aval_of(x).ndim - 1,))


def as_rows(w: Any) -> Any:
    """Vectors repeated as the rows of square matrices."""
    shape = aval_of(w).shape
    return broadcast_in_dim(w, (*shape, shape[-1]), (*range(len(shape) - 1), len(shape)))


def safe_inverse(x: Any) -> Any:
    """1 / x off the diagonal of square matrices, 0 on it."""
    eye = eye_like(x)
    return ew.sub_p.bind(ew.div(1, ew.add_p.bind(x, eye)), eye)
