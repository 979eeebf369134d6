"""Sets of numbers as arrays without repetition. Their sizes depend on values: while tracing, ``size`` gives them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.dispatch import at_once
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray, operand_array, promoted
from meshrt.numpy.choose import choose
from meshrt.numpy.cumulative import cumsum, diff
from meshrt.numpy.editing import concrete
from meshrt.numpy.filled import full, full_like, ones, zeros
from meshrt.numpy.joining import append, concatenate
from meshrt.numpy.logic import isnan, logical_and, logical_not
from meshrt.numpy.operands import ShapeError, canonical_axis, static_size
from meshrt.numpy.positions import nonzero
from meshrt.numpy.reductions import all as all_
from meshrt.numpy.reductions import any as any_
from meshrt.numpy.shapes import moveaxis, ravel, reshape
from meshrt.numpy.sorting import lexsort, searchsorted
from meshrt.numpy.ufuncs import equal, not_equal

__all__ = [
    "intersect1d", "isin", "setdiff1d", "setxor1d", "union1d", "unique", "unique_all", "unique_counts",
    "unique_inverse", "unique_values",
]  # fmt: skip

_FIX = "give size=... (and fill_value=...)"


class _UniqueAllResult(NamedTuple):
    """What :func:`unique_all` returns."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class _UniqueCountsResult(NamedTuple):
    """What :func:`unique_counts` returns."""

    values: Any
    counts: Any


class _UniqueInverseResult(NamedTuple):
    """What :func:`unique_inverse` returns."""

    values: Any
    inverse_indices: Any


class _Found(NamedTuple):
    """The distinct slices of an array along its first dimension: ``count`` of them are meant, the others fill up."""

    values: Any
    indices: Any
    inverse: Any
    counts: Any
    count: Any


# ----------------------------------------------------------------------------------------------------------
# unique


def unique(
    ar: Any, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False,
    axis: int | None = None, *, equal_nan: bool = True, size: int | None = None, fill_value: Any = None,
    sorted: bool = True,
) -> Any:  # fmt: skip
    """The distinct elements of ``ar`` in ascending order, or its distinct slices along ``axis``.

    Args:
      return_index, return_inverse, return_counts: also give positions of first occurrences, positions in the result
        of all elements, and how often each occurs.
      equal_nan: whether NaN are one value.
      size: how many to give, needed while tracing; missing ones are ``fill_value`` (the smallest by default).
      sorted: accepted for compatibility: they are.

    >>> jnp.unique(jnp.array([3, 1, 3]))
    Array([1, 3], dtype=int32)
    >>> jnp.unique(jnp.array([3, 1, 3]), size=3, fill_value=0)
    Array([1, 3, 0], dtype=int32)
    """
    x = operand_array("unique", ar)
    if size is None:
        concrete("unique", "ar", x, _FIX)
    else:
        size = static_size(size, "unique: size")
    flat, at = (ravel(x), 0) if axis is None else (x, canonical_axis(axis, x.ndim, "unique"))
    found = _unique(flat, at, equal_nan, size, fill_value)
    inverse = reshape(found.inverse, x.shape) if axis is None else found.inverse
    wanted = ((return_index, found.indices), (return_inverse, inverse), (return_counts, found.counts))
    out = (found.values, *(value for asked, value in wanted if asked))
    return out[0] if len(out) == 1 else out


def unique_all(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> _UniqueAllResult:
    """Distinct elements, positions of first occurrences, positions in the result, and counts; NaN are distinct.

    Args:
      x: an array, or what `asarray` makes one of.
      size: how many elements the result has, so that its shape is known to `jit`; by default as many as are found.
      fill_value: what fills up results that have fewer than `size` elements.

    >>> jnp.unique_all(jnp.array([3, 1, 3])).counts
    Array([1, 2], dtype=int32)
    """
    given = {"equal_nan": False, "size": size, "fill_value": fill_value}
    return _UniqueAllResult(*unique(x, return_index=True, return_inverse=True, return_counts=True, **given))


def unique_counts(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> _UniqueCountsResult:
    """Distinct elements and how often each occurs; NaN are distinct.

    Args:
      x: an array, or what `asarray` makes one of.
      size: how many elements the result has, so that its shape is known to `jit`; by default as many as are found.
      fill_value: what fills up results that have fewer than `size` elements.

    >>> jnp.unique_counts(jnp.array([3, 1, 3])).values
    Array([1, 3], dtype=int32)
    """
    return _UniqueCountsResult(*unique(x, return_counts=True, equal_nan=False, size=size, fill_value=fill_value))


def unique_inverse(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> _UniqueInverseResult:
    """Distinct elements and positions among them of all elements; NaN are distinct.

    Args:
      x: an array, or what `asarray` makes one of.
      size: how many elements the result has, so that its shape is known to `jit`; by default as many as are found.
      fill_value: what fills up results that have fewer than `size` elements.

    >>> jnp.unique_inverse(jnp.array([3, 1, 3])).inverse_indices
    Array([1, 0, 1], dtype=int32)
    """
    return _UniqueInverseResult(*unique(x, return_inverse=True, equal_nan=False, size=size, fill_value=fill_value))


def unique_values(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> Any:
    """Distinct elements; NaN are distinct.

    Args:
      x: an array, or what `asarray` makes one of.
      size: how many elements the result has, so that its shape is known to `jit`; by default as many as are found.
      fill_value: what fills up results that have fewer than `size` elements.

    >>> jnp.unique_values(jnp.array([3, 1, 3]))
    Array([1, 3], dtype=int32)
    """
    return unique(x, equal_nan=False, size=size, fill_value=fill_value)


def _unique(x: Any, axis: int, equal_nan: bool, size: int | None, fill_value: Any) -> _Found:
    if size is None:  # which elements there are was decided outside of the program, so results don't follow them
        x = lax.stop_gradient(x)
    n = x.shape[axis]
    if n == 0 and size and fill_value is None:
        raise errors.ArgumentValueError(
            "unique: an array without elements has nothing to fill the result with; give fill_value"
        )
    ordered, first, order = _in_order(moveaxis(x, axis, 0), equal_nan)
    integer = dtypes.default_int_dtype()
    if size is None:
        concrete("unique", "ar", first, _FIX)
        (at,) = nonzero(first)
    else:
        (at,) = nonzero(first, size=size) if first.shape[0] else (zeros(size, integer),)
    found = _described(ordered, first, order, at, size)
    values = found.values
    if not ordered.size:
        counts = full((1,), n, integer) if n else zeros(0, integer)
        found = found._replace(inverse=zeros(n, integer), counts=counts)
    if size is not None and fill_value is not None:
        values = _filled(values, found.count, size, asarray(fill_value).astype(values.dtype))
    return found._replace(values=moveaxis(values, 0, axis))


@at_once(4, ["size"])
def _described(ordered: Any, first: Any, order: Any, at: Any, size: int | None) -> _Found:
    """What is found where `first` is true, which is at the positions `at`."""
    if not ordered.size:
        return _Found(ordered, order, None, None, first.sum())
    inverse = zeros(first.shape, dtypes.default_int_dtype()).at[order].set(cumsum(first) - 1)
    return _Found(ordered[at], order[at], inverse, _counts(at, first, size), first.sum())


@at_once(1, ["equal_nan"])
def _in_order(x: Any, equal_nan: bool) -> tuple[Any, Any, Any]:
    """The slices of ``x`` in order, which of them differ from the one before, and where they come from."""
    n, *rest = x.shape
    is_complex = dtypes.issubdtype(x.dtype, np.complexfloating)
    if is_complex:  # NaN are one value, whatever their parts
        x = choose(isnan(x), np.asarray(np.nan, x.dtype)[()], x)
    if not math.prod(rest):
        order = zeros(1, dtypes.default_int_dtype())
        return (x[order] if n else x[:0]), zeros(1, bool), order
    order = lexsort(reshape(x, (n, math.prod(rest))).T[::-1])
    x = x[order]
    if not n:
        return x, zeros(0, bool), order
    differs = not_equal(x[1:], x[:-1])
    if dtypes.issubdtype(x.dtype, np.inexact) and equal_nan:
        differs = logical_and(differs, logical_not(logical_and(isnan(x[1:]), isnan(x[:-1]))))
    return x, concatenate([ones(1, bool), any_(differs, tuple(range(1, x.ndim)))]), order


def _filled(values: Any, count: Any, size: int, fill: Any) -> Any:
    if not values.shape[0]:
        return full_like(values, fill, shape=(size, *values.shape[1:]))
    valid = lax.expand_dims(lax.iota(np.int32, size) < count, tuple(range(1, values.ndim)))
    return choose(valid, values, fill)


def _counts(at: Any, first: Any, size: int | None) -> Any:
    """Distances of the positions where new values begin; the last one reaches to the end."""
    n = first.shape[0]
    if size is None:
        return diff(append(at, np.asarray(n, at.dtype)[()]))
    (ends,) = nonzero(first, size=size + 1)
    return diff(concatenate([ends[:1], choose(ends[1:] != 0, ends[1:], n)]))


# ----------------------------------------------------------------------------------------------------------
# Two sets


def isin(
    element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False, *, method: str = "auto"
) -> Any:
    """Whether each element occurs in ``test_elements`` (with ``invert``, whether it does not).

    Args:
      assume_unique: promises that neither has repetitions.
      method: "compare_all" ("auto"), "binary_search" or "sort".

    >>> jnp.isin(jnp.array([1, 2, 3]), jnp.array([2, 3]))
    Array([False,  True,  True], dtype=bool)
    """
    x = operand_array("isin", element)
    return reshape(_is_in(x, operand_array("isin", test_elements, 1), assume_unique, invert, method), x.shape)


@at_once(2, ["assume_unique", "invert", "method"])
def _is_in(x: Any, among: Any, assume_unique: bool, invert: bool, method: str) -> Any:
    x, among = (ravel(v) for v in promoted("isin", x, among))
    if method not in ("auto", "compare_all", "binary_search", "sort"):
        raise errors.ArgumentValueError(
            f"isin: method must be 'auto', 'compare_all', 'binary_search' or 'sort', got {method!r}"
        )
    if not x.size or not among.size:
        return full(x.shape, invert, bool)
    compare = not_equal if invert else equal
    if method in ("auto", "compare_all"):
        return (all_ if invert else any_)(compare(x[:, None], among[None, :]), -1)
    # Sorting finds what comparing with the neighbour in a sorted array finds.
    among = lax.sort(among)
    return compare(x, among[searchsorted(among, x)])


def union1d(ar1: Any, ar2: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The distinct elements of two arrays; see :func:`unique` for ``size`` and ``fill_value``.

    Args:
      ar1: an array, or what `asarray` makes one of.
      ar2: a second array.
      size: how many elements the result has, so that its shape is known to `jit`; by default as many as are found.
      fill_value: what fills up results that have fewer than `size` elements.

    >>> jnp.union1d(jnp.array([1, 2]), jnp.array([2, 3]))
    Array([1, 2, 3], dtype=int32)
    """
    x, y = operand_array("union1d", ar1), operand_array("union1d", ar2, 1)
    return unique(concatenate([x, y], None), size=size, fill_value=fill_value)


def setdiff1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, *, size: int | None = None, fill_value: Any = None
) -> Any:
    """The distinct elements of ``ar1`` that ``ar2`` does not have.

    Args:
      assume_unique: promises that neither has repetitions.
      size: how many to give, needed while tracing; missing ones are ``fill_value`` (0 by default).

    >>> jnp.setdiff1d(jnp.array([1, 2, 3]), jnp.array([2]))
    Array([1, 3], dtype=int32)
    """
    x, y = ravel(operand_array("setdiff1d", ar1)), ravel(operand_array("setdiff1d", ar2, 1))
    if size is None:
        concrete("setdiff1d", "ar1", ar1, _FIX)
    else:
        size = static_size(size, "setdiff1d: size")
    fill = asarray(0 if fill_value is None else fill_value).astype(x.dtype)
    if not x.size:
        return full_like(x, fill, shape=(size or 0,))
    if assume_unique:
        values, valid = x, ones(x.shape, bool)
    else:
        found = _unique(x, 0, True, None if size is None else x.size, None)
        values = found.values
        valid = lax.iota(np.int32, values.shape[0]) < found.count
    wanted = logical_and(valid, _is_in(values, y, assume_unique, True, "auto"))
    if size is None:
        return values[wanted]
    return _filled(values[nonzero(wanted, size=size)[0]], wanted.sum(), size, fill)


def setxor1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, *, size: int | None = None, fill_value: Any = None
) -> Any:
    """The elements that exactly one of two arrays has, sorted; the arguments are those of :func:`intersect1d`.

    Args:
      ar1: an array, or what `asarray` makes one of.
      ar2: a second array.
      assume_unique: both arrays are known to have no element twice.
      size: how many elements the result has, so that its shape is known to `jit`; by default as many as are found.
      fill_value: what fills up results that have fewer than `size` elements.

    >>> jnp.setxor1d(jnp.array([1, 2]), jnp.array([2, 3]))
    Array([1, 3], dtype=int32)
    """
    x, y = (ravel(v) for v in promoted("setxor1d", ar1, ar2))
    ordered, _, valid = _joined(x, y, assume_unique, size)
    n = ordered.shape[0]
    if not n:
        return ordered if size is None else _sized(ordered, valid, size, fill_value)
    same = logical_and(ordered[1:] == ordered[:-1], valid[1:])
    edge = zeros(1, bool)
    alone = logical_not(concatenate([edge, same]) | concatenate([same, edge]))
    return _picked("setxor1d", ordered, logical_and(alone, valid), size, fill_value)[0]


def intersect1d(
    ar1: Any, ar2: Any, assume_unique: bool = False, return_indices: bool = False, *, size: int | None = None,
    fill_value: Any = None,
) -> Any:  # fmt: skip
    """The distinct elements that two arrays have in common, sorted.

    Args:
      assume_unique: promises that neither has repetitions.
      return_indices: also give the positions of their first occurrences in either array.
      size: how many to give, needed while tracing; missing ones are ``fill_value`` (the smallest by default), and
        their positions lie behind the arrays' ends.

    >>> jnp.intersect1d(jnp.array([1, 2, 3]), jnp.array([2, 3, 4]))
    Array([2, 3], dtype=int32)
    """
    x, y = (ravel(v) for v in promoted("intersect1d", ar1, ar2))
    if size == 0 and fill_value is None:
        raise ShapeError(
            "zero-size array to reduction operation max which has no identity: intersect1d fills up with the least of "
            "its results, and with size=0 there is none; give a fill_value"
        )
    ordered, origin, valid = _joined(x, y, assume_unique, size)
    common = logical_and(ordered[1:] == ordered[:-1], valid[1:])
    values, at = _picked("intersect1d", ordered[:-1], common, size, fill_value)
    if not return_indices:
        return values
    ends = (x.size, x.size + y.size, 0)
    first, second = (_origin(origin, at + i, common, size, end) for i, end in zip((0, 1), ends))
    return values, first, second - x.size


def _origin(origin: Any, at: Any, common: Any, size: int | None, end: int) -> Any:
    if size is None:
        return origin[at]
    if not origin.shape[0]:
        return full(size, end, origin.dtype)
    found = origin.at[at].get(mode="clip")
    return choose(lax.iota(np.int32, size) < common.sum(), found, np.asarray(end, found.dtype)[()])


def _joined(x: Any, y: Any, assume_unique: bool, size: int | None) -> tuple[Any, Any, Any]:
    """(the distinct elements of both arrays in order, their positions in the joined arrays, which are meant).

    An element of both comes twice, that of ``x`` first. What is not meant fills up the end.
    """
    if assume_unique:
        values, origin, valid = concatenate([x, y]), lax.iota(np.int32, x.size + y.size), None
    else:
        parts = [_unique(v, 0, True, None if size is None else v.size, None) for v in (x, y)]
        values = concatenate([p.values for p in parts])
        origin = concatenate([parts[0].indices[: parts[0].values.shape[0]], parts[1].indices + x.size])
        valid = concatenate([lax.iota(np.int32, p.values.shape[0]) < p.count for p in parts])
    origin = el.convert_element_type(origin, dtypes.default_int_dtype())
    if valid is None or not values.shape[0]:
        valid = ones(values.shape, bool)
    missing, ordered, origin = lax.sort((logical_not(valid), values, origin), num_keys=2)
    return ordered, origin, logical_not(missing)


def _picked(name: str, values: Any, wanted: Any, size: int | None, fill_value: Any) -> tuple[Any, Any]:
    """The wanted elements of a vector, and their positions."""
    if size is None:
        concrete(name, "its operands", wanted, _FIX)
        (at,) = nonzero(wanted)
        return values[at], at
    size = static_size(size, f"{name}: size")
    if not values.shape[0]:
        return _sized(values, wanted, size, fill_value), zeros(size, dtypes.default_int_dtype())
    (at,) = nonzero(wanted, size=size)
    return _sized(values[at], wanted, size, fill_value), at


def _sized(values: Any, wanted: Any, size: int, fill_value: Any) -> Any:
    """Missing elements are ``fill_value``, in a dtype that holds it, or the smallest of those that are there, or 0."""
    if not values.shape[0]:
        return choose(zeros(size, bool), zeros(size, values.dtype), 0 if fill_value is None else fill_value)
    valid = lax.iota(np.int32, size) < wanted.sum()
    if fill_value is None:
        values = choose(valid, values, values.max())
        return choose(valid, values, values.min())
    return choose(valid, values, fill_value)
