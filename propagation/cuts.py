"""What is left of shardings that do not divide a value."""

from __future__ import annotations

import itertools
from math import gcd

from .model import AxisRef, DimSharding, TensorSharding

__all__ = ["evenly_sharded", "is_cut"]


def evenly_sharded(sharding: TensorSharding, shape: tuple[int, ...]) -> TensorSharding:
    """`sharding` with each dimension's axes cut to the longest prefix that divides its size; of the last axis a part
    may stay. A dimension of 6 over an axis of 4 keeps the half of it: `{"a"}` becomes `{"a":(1)2}`."""
    if len(sharding.dims) != len(shape):
        return sharding
    dims = tuple(_even_dim(d, n, sharding) for d, n in zip(sharding.dims, shape))
    return sharding if dims == sharding.dims else sharding.with_dims(dims)


def _even_dim(dim: DimSharding, size: int, sharding: TensorSharding) -> DimSharding:
    if dim.factor and size % dim.factor == 0:
        return dim
    kept: list[AxisRef] = []
    for axis in dim.axes:
        common = gcd(axis.size, size)
        if common == 1:
            break
        if common != axis.size:
            kept.append(AxisRef(axis.name, axis.pre, common))
            break
        kept.append(axis)
        size //= common
    return DimSharding(kept, dim.is_open, dim.priority)


def is_cut(sharding: TensorSharding, asked: TensorSharding, shape: tuple[int, ...]) -> bool:
    """Whether a sharding at the boundary is what is left of what was asked there: each dimension begins with as much of
    that as divides it, or, if open, has the whole axes before the first part of one in it. Where `whole_axes` cut a
    closed one too, nothing tells that from what somebody says since, which counts."""

    def begins(own: DimSharding, left: DimSharding) -> bool:
        if own.axes[: len(left.axes)] == left.axes:
            return True
        whole = tuple(itertools.takewhile(lambda axis: axis.is_full(asked.mesh), left.axes))
        return left.is_open and own.axes == whole

    even = evenly_sharded(asked, shape)
    return sharding.rank == even.rank and all(map(begins, sharding.dims, even.dims))
