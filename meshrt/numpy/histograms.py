"""Counts of values: bincount, digitize, histograms of one and more dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.dimensions.expression import DimExpr, is_symbolic_dim
from meshrt.core.types import aval_of
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray, operand_array, promoted_inexact
from meshrt.numpy.choose import choose
from meshrt.numpy.creation import linspace
from meshrt.numpy.cumulative import diff
from meshrt.numpy.editing import concrete
from meshrt.numpy.filled import ones_like, zeros, zeros_like
from meshrt.numpy.grids import ix_, ravel_multi_index
from meshrt.numpy.joining import stack
from meshrt.numpy.operands import ShapeError, static_int
from meshrt.numpy.reductions import ptp
from meshrt.numpy.selection import clip
from meshrt.numpy.shapes import reshape
from meshrt.numpy.sorting import searchsorted

__all__ = [
    "bincount", "digitize", "histogram", "histogram2d", "histogram_bin_edges", "histogramdd",
]  # fmt: skip


def bincount(
    x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None, out_sharding: Any = None
) -> Any:
    """How often each of 0, 1, 2, ... occurs in the vector ``x``, or the sum of ``weights`` where it does.

    Args:
      minlength: least number of counts; otherwise there are as many as the largest value needs.
      length: the number of counts, needed while tracing; larger values are left out. Negative ones count as 0.
      out_sharding: how the result is split over Explicit axes: replicated or unreduced.

    >>> jnp.bincount(jnp.array([0, 2, 2, 1]))
    Array([1, 1, 2], dtype=int32)
    """
    x = operand_array("bincount", x)
    if x.dtype == np.bool_:
        x = el.convert_element_type(x, np.int32)
    if not dtypes.issubdtype(x.dtype, np.integer):
        raise errors.ArgumentTypeError(f"x argument to bincount must have an integer type; got {x.dtype}")
    if x.ndim != 1:
        raise ShapeError(f"bincount: only 1-dimensional input supported, got shape {x.shape}")
    minlength = static_int(minlength, "bincount: minlength")
    if length is None:
        known = concrete("bincount", "x", x, "give length=...")
        length = max(minlength, int(max(0, known.max())) + 1 if known.size else 0)
    else:
        length = length if isinstance(length, DimExpr) else static_int(length, "bincount: length")
    if weights is None:
        counted: Any = np.asarray(1, dtypes.default_int_dtype())[()]
    else:
        counted = operand_array("bincount", weights, 1)
        if counted.shape != x.shape:
            raise ShapeError(f"bincount: weights of shape {counted.shape} do not fit values of shape {x.shape}")
    out = zeros(length, aval_of(counted).dtype)
    return out.at[clip(x, 0)].add(counted, mode="drop", out_sharding=out_sharding)


def digitize(x: Any, bins: Any, right: bool = False, *, method: str | None = None) -> Any:
    """The bins that elements of ``x`` fall into: positions among the monotonic ``bins``.

    Args:
      right: whether bins include their right ends, and not their left ones.
      method: as of :func:`searchsorted`.

    >>> jnp.digitize(jnp.array([0.5, 2.5]), jnp.array([1.0, 2.0]))
    Array([0, 2], dtype=int32)
    """
    x, edges = operand_array("digitize", x), operand_array("digitize", bins, 1)
    if edges.ndim != 1:
        raise ShapeError(f"digitize: bins must be a 1-dimensional array; got shape {edges.shape}")
    if edges.shape[0] == 0:
        return zeros_like(x, dtype=np.int32)
    side, how = ("left" if right else "right"), ("scan" if method is None else method)
    rising = searchsorted(edges, x, side, method=how)
    falling = edges.shape[0] - searchsorted(edges[::-1], x, side, method=how)
    return choose(edges[-1] >= edges[0], rising, falling)


# ----------------------------------------------------------------------------------------------------------
# Histograms.


def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    """The ends of ``bins`` bins of equal width over ``range`` (that of ``a`` by default), or ``bins`` if they are ends.

    ``weights`` do not matter.

    Args:
      a: an array, or what `asarray` makes one of.
      bins: how many bins, or their edges.
      range: lower and upper end of the bins.
      weights: weights of the elements.

    >>> jnp.histogram_bin_edges(jnp.array([0.0, 4.0]), bins=2)
    Array([0., 2., 4.], dtype=float32)
    """
    if isinstance(bins, str):
        raise errors.UnsupportedError(f"histogram: bins={bins!r} is not supported; give their number or their ends")
    x, given = operand_array("histogram_bin_edges", a), operand_array("histogram_bin_edges", bins, 1)
    dtype = dtypes.to_inexact_dtype(x.dtype)
    if given.ndim == 1:
        return asarray(given, dtype)
    count = bins if is_symbolic_dim(bins) else static_int(bins, "histogram: bins")
    ends = asarray([x.min(), x.max()] if range is None else range, dtype)
    if ends.shape != (2,):
        raise errors.ArgumentValueError(f"histogram: range must be a pair of numbers, got {range}")
    empty = ptp(ends) == 0
    first, last = choose(empty, ends[0] - 0.5, ends[0]), choose(empty, ends[1] + 0.5, ends[1])
    return linspace(first, last, count + 1, dtype=dtype)


def histogram(a: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool | None = None) -> Any:
    """(counts, ends of bins) of the elements of ``a``; the last bin includes its right end.

    Args:
      bins, range: as of :func:`histogram_bin_edges`.
      weights: what each element counts.
      density: divide by the widths of bins and the sum of counts, so that the integral is one.

    >>> jnp.histogram(jnp.array([1.0, 2.0, 2.0]), bins=2)
    (Array([1., 2.], dtype=float32), Array([1. , 1.5, 2. ], dtype=float32))
    """
    operand_array("histogram", bins, 1)  # refuses text
    if weights is None:
        (x,) = promoted_inexact("histogram", a)
        counted = ones_like(x)
    else:
        if np.shape(a) != np.shape(weights):
            raise ShapeError(f"histogram: weights of shape {np.shape(weights)} do not fit shape {np.shape(a)}")
        x, counted = promoted_inexact("histogram", a, weights)
    edges = histogram_bin_edges(x, bins, range)
    place = searchsorted(edges, x, side="right")
    place = choose(x == edges[-1], edges.shape[0] - 1, place)
    counts = zeros(edges.shape[0], counted.dtype).at[place].add(counted)[1:]
    if density:
        counts = counts / diff(edges) / counts.sum()
    return counts, edges


def histogram2d(
    x: Any, y: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool | None = None
) -> Any:
    """(counts, ends of bins of ``x``, ends of bins of ``y``) of points in a plane; see :func:`histogramdd`.

    Args:
      x: an array, or what `asarray` makes one of.
      y: a second array, which broadcasts with the first.
      bins: how many bins, or their edges.
      range: lower and upper end of the bins.
      weights: weights of the elements.
      density: divide by the number of elements and the width of the bins.

    >>> jnp.histogram2d(jnp.array([0.0, 1.0]), jnp.array([0.0, 1.0]), bins=2)[0]
    Array([[1, 0],
           [0, 1]], dtype=int32)
    """
    x, y = operand_array("histogram2d", x), operand_array("histogram2d", y, 1)
    if _count(bins) not in (1, 2):
        bins = [asarray(bins)] * 2
    counts, edges = histogramdd(stack([x, y], 1), bins, range, weights, density)
    return counts, edges[0], edges[1]


def _count(bins: Any) -> int:
    """How many entries a sequence has; 1 for a number."""
    try:
        return len(bins)
    except TypeError:
        return 1


def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, weights: Any = None, density: bool | None = None
) -> tuple[Any, list[Any]]:
    """(counts, list of the ends of bins per dimension) of points, the rows of ``sample``.

    Args:
      bins, range: as of :func:`histogram_bin_edges`, for all dimensions or a sequence with one for each.
      weights: what each point counts.
      density: divide by the volumes of bins and the sum of counts.

    >>> jnp.histogramdd(jnp.ones((5, 2)), bins=2)[0].shape
    (2, 2)
    """
    if weights is None:
        (points,) = promoted_inexact("histogramdd", sample)
    else:
        if np.shape(weights) != np.shape(sample)[:1]:
            raise ShapeError(
                f"histogramdd: weights of shape {np.shape(weights)} for a sample of shape {np.shape(sample)}"
            )
        points, weights = promoted_inexact("histogramdd", sample, weights)
    if points.ndim != 2:
        raise ShapeError(f"histogramdd: points must be the rows of a matrix, got shape {points.shape}")
    dims = points.shape[1]
    ranges = _per_dimension_ranges(range, dims)
    each = list(bins) if np.iterable(bins) else [bins] * dims
    if len(each) != dims:
        raise errors.ArgumentValueError(f"histogramdd: {len(each)} bins for {dims} dimensions; give one for each")
    places, edges = [], []
    for i, (own, ends) in enumerate(zip(each, ranges)):
        column = points[:, i]
        own_edges = histogram_bin_edges(column, own, ends)
        place = searchsorted(own_edges, column, side="right")
        places.append(choose(column == own_edges[-1], place - 1, place))
        edges.append(own_edges)
    sizes = tuple(e.shape[0] + 1 for e in edges)  # a bin for what lies outside, on either side
    flat = bincount(ravel_multi_index(places, sizes, mode="clip"), weights, length=math.prod(sizes))
    counts = reshape(flat, sizes)[(slice(1, -1),) * dims]
    if density:
        counts = counts.astype(points.dtype)
        counts = counts / counts.sum()
        for widths in ix_(*(diff(e) for e in edges)):
            counts = counts / widths
    return counts, edges


def _per_dimension_ranges(given: Sequence[Any] | None, dims: int) -> Sequence[Any]:
    if given is None:
        return [None] * dims
    if len(given) != dims or any(r is not None and np.shape(r)[0] != 2 for r in given):
        raise errors.ArgumentValueError(f"histogramdd: range must be {dims} pairs or Nones, got {given!r}")
    return given
