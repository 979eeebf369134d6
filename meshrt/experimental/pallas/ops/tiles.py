"""What the kernels that ship have in common: sums and masks of blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import dtypes, lax
from meshrt import numpy as jnp
from meshrt.core.basic.varying import in_order, vary
from meshrt.core.types import NOT_VARYING, aval_of

__all__ = ["accumulator", "agreeing", "contract", "finite", "positions", "within"]


def accumulator(*arrays: Any) -> np.dtype:
    """The dtype in which sums over elements of these arrays are kept: float32 at least."""
    dtype = np.dtype(np.float32)
    for x in arrays:
        dtype = np.dtype(dtypes.promote_types(dtype, x.dtype))
    return dtype


def agreeing(*arrays: Any) -> list[Any]:
    """The arrays (or None), all varying over the axes of a manual region that any of them varies over: rules of
    derivatives give each the cotangent of its type."""
    varying = NOT_VARYING.union(*[aval_of(x).vma for x in arrays if x is not None])
    return [x if x is None else vary(x, in_order(varying.difference(aval_of(x).vma))) for x in arrays]


def contract(x: Any, y: Any, over_x: int, over_y: int, dtype: Any) -> Any:
    """The product of two blocks, summed over one dimension of each in `dtype`."""
    return lax.dot_general(x, y, (((over_x,), (over_y,)), ((), ())), preferred_element_type=dtype)


def positions(block: Any, shape: tuple[int, int], dim: int) -> Any:
    """int32 of this shape: the positions along `dim` of the elements of block number `block`."""
    return block * shape[dim] + lax.broadcasted_iota(np.int32, shape, dim)


def within(x: Any, block: Any, dim: int, size: int) -> Any:
    """A block of a matrix whose dimension `dim` has `size` elements in all: zero where it reaches beyond.

    Blocks at the edge hold anything there, NaN among it, which must not enter sums.
    """
    if size % x.shape[dim] == 0:
        return x
    return jnp.where(positions(block, x.shape, dim) < size, x, jnp.zeros((), x.dtype))


def finite(x: Any) -> Any:
    """`x`, but 0 for minus infinity: what to take away from the scores of a row that has none."""
    return lax.select(x == -np.inf, jnp.zeros(x.shape, x.dtype), x)
