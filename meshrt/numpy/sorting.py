"""Sorting and searching."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import config, dtypes, errors, lax
from meshrt.core.completion import declared
from meshrt.core.dimensions.expression import DimExpr
from meshrt.core.types import aval_of
from meshrt.dispatch import at_once
from meshrt.jit import operation
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray
from meshrt.numpy.choose import choose
from meshrt.numpy.indexing import index_dtype, take
from meshrt.numpy.operands import (
    ShapeError,
    canonical_axis,
    operand,
)
from meshrt.primitives.reshape import iota_p
from meshrt.runtime.array import Array

__all__ = ["argpartition", "argsort", "lexsort", "partition", "searchsorted", "sort", "sort_complex", "top_k"]


def _positions(x: Any, dtype: Any, axis: int) -> Any:
    """Positions along a dimension, in an array that is split as `x`, and lies where it does."""
    kind = aval_of(x)
    if kind.explicit is not None and type(x) is Array:  # the type names no devices, which are those of an argument
        with config.override(disable_jit=False):  # a single operation, compiled all the same
            return _positions_beside(dtype, axis)(x)
    return iota_p.bind(dtype=dtype, shape=kind.shape, dimension=axis, **declared(kind, ()))


@functools.lru_cache
def _positions_beside(dtype: Any, axis: int) -> Any:
    return operation(lambda x: _positions(x, dtype, axis))


def _prepared(name: str, a: Any, axis: int | None, kind: Any, order: Any) -> tuple[Any, int]:
    x = asarray(operand(name, a))
    for argument, value in (("kind", kind), ("order", order)):
        if value is not None:
            raise errors.ArgumentTypeError(
                f"{argument!r} argument to {name} is not supported. Use stable=True or stable=False to specify sort "
                "stability."
            )
    if axis is None:
        return lax.reshape(x, (x.size,)), 0
    return x, canonical_axis(axis, x.ndim, name)


@at_once(1, ["stable", "descending"])
def sort(
    a: Any, axis: int | None = -1, *, kind: None = None, order: None = None, stable: bool = True,
    descending: bool = False,
) -> Any:  # fmt: skip
    """``a`` in ascending order along ``axis`` (flattened if None); NaN last.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension to sort along; None sorts the flattened array.
      kind: must be None: there is one way to sort.
      order: must be None: elements have no fields to sort by.
      stable: equal elements keep their order.
      descending: the largest come first.

    Returns:
      An array like `a`.

    >>> jnp.sort(jnp.array([[3, 1], [2, 4]]), axis=0)
    Array([[2, 1],
           [3, 4]], dtype=int32)
    """
    x, axis = _prepared("sort", a, axis, kind, order)
    out = lax.sort(x, dimension=axis, is_stable=stable)
    return lax.rev(out, (axis,)) if descending else out


@at_once(1, ["stable", "descending"])
def argsort(
    a: Any, axis: int | None = -1, *, kind: None = None, order: None = None, stable: bool = True,
    descending: bool = False, dtype: Any = None,
) -> Any:  # fmt: skip
    """The positions that sort ``a`` along ``axis``; equal elements keep their order if ``stable``.

    Args:
      a: an array, or what `asarray` makes one of.
      axis: the dimension to sort along; None sorts the flattened array.
      kind: must be None: there is one way to sort.
      order: must be None: elements have no fields to sort by.
      stable: equal elements keep their order.
      descending: the largest come first.
      dtype: the dtype of positions.

    Returns:
      Integers of the shape of `a`.

    >>> jnp.argsort(jnp.array([3, 1, 2]))
    Array([1, 2, 0], dtype=int32)
    """
    x, axis = _prepared("argsort", a, axis, kind, order)
    dtype = dtypes.default_int_dtype() if dtype is None else dtypes.check_user_dtype(dtype, "argsort")
    positions = _positions(x, dtype, axis)
    if descending and stable:
        x, positions = lax.rev(x, (axis,)), lax.rev(positions, (axis,))
    _, out = lax.sort_key_val(x, positions, dimension=axis, is_stable=stable)
    return lax.rev(out, (axis,)) if descending else out


def lexsort(keys: Sequence[Any], axis: int = -1) -> Any:
    """The positions that sort by several keys, the last one first in importance.

    Args:
      keys: a sequence of arrays; the last one is compared first.
      axis: the dimension to work along; negative numbers count from the end.

    >>> jnp.lexsort((jnp.array([2, 1, 3]), jnp.array([0, 0, -1])))
    Array([2, 1, 0], dtype=int32)
    """
    arrays = [asarray(operand("lexsort", k, i)) for i, k in enumerate(keys)]
    if not arrays:
        raise errors.ArgumentTypeError("need sequence of keys with len > 0 in lexsort")
    if len({k.shape for k in arrays}) > 1:
        raise ShapeError(f"lexsort: all keys must have one shape, got {', '.join(str(k.shape) for k in arrays)}")
    if arrays[0].ndim == 0:
        return lax.full((), 0, dtypes.default_int_dtype())
    axis = canonical_axis(axis, arrays[0].ndim, "lexsort")
    positions = _positions(arrays[0], dtypes.default_int_dtype(), axis)
    return lax.sort((*arrays[::-1], positions), dimension=axis, num_keys=len(arrays))[-1]


def _negated_in_order(x: Any) -> bool:
    """Whether negating turns the order of elements around. The least integer is its own negative; of floats NaNs with a
    sign come first in it, other NaNs last, as `partition` has them."""
    return dtypes.issubdtype(x.dtype, np.floating)


def _at_kth(name: str, a: Any, kth: int, axis: int) -> tuple[Any, int, int]:
    x = asarray(operand(name, a))
    if dtypes.issubdtype(x.dtype, np.complexfloating):
        raise errors.UnsupportedError(f"jnp.{name} for complex dtype is not implemented: got {x.dtype}; use sort")
    if x.dtype == np.bool_:
        raise errors.ArgumentTypeError(f"{name} does not accept dtype bool; convert with astype(int)")
    axis = canonical_axis(axis, x.ndim, name)
    return x, canonical_axis(kth, x.shape[axis], f"{name}: kth") + 1, axis


@at_once(1, ["kth"])
def partition(a: Any, kth: int, axis: int = -1) -> Any:
    """``a`` rearranged so that position ``kth`` along ``axis`` holds what sorting puts there, no larger elements
    before it and no smaller ones behind it.

    Args:
      a: an array, or what `asarray` makes one of.
      kth: the position that is to hold what sorting would put there.
      axis: the dimension to work along; negative numbers count from the end.

    >>> jnp.partition(jnp.array([5, 1, 4, 2]), 1)
    Array([1, 2, 5, 4], dtype=int32)
    """
    x, cut, axis = _at_kth("partition", a, kth, axis)
    size = x.shape[axis]
    if _negated_in_order(x):
        below, above = -lax.top_k(-x, cut, axis=axis)[0], lax.top_k(x, size - cut, axis=axis)[0]
    else:
        ordered = lax.sort(x, dimension=axis)
        below = lax.slice_in_dim(ordered, 0, cut, axis=axis)
        above = lax.rev(lax.slice_in_dim(ordered, cut, size, axis=axis), (axis,))
    return lax.concatenate([below, above], axis)


@at_once(1, ["kth"])
def argpartition(a: Any, kth: int, axis: int = -1) -> Any:
    """Positions whose elements are those of :func:`partition` up to ``kth``, and behind it in the order of ``a``.

    Args:
      a: an array, or what `asarray` makes one of.
      kth: the position that is to hold what sorting would put there.
      axis: the dimension to work along; negative numbers count from the end.

    >>> jnp.argpartition(jnp.array([5, 1, 4, 2]), 1)
    Array([1, 3, 0, 2], dtype=int32)
    """
    x, cut, axis = _at_kth("argpartition", a, kth, axis)
    size = x.shape[axis]
    if _negated_in_order(x):
        positions = lax.top_k(-x, size, axis=axis)[1]
    else:
        positions = argsort(x, axis, dtype=np.int32)
    below = lax.slice_in_dim(positions, 0, cut, axis=axis)
    above = lax.sort(lax.slice_in_dim(positions, cut, size, axis=axis), dimension=axis)
    return lax.concatenate([below, above], axis)


def sort_complex(a: Any) -> Any:
    """``a`` sorted along its last dimension, by real, then imaginary part, as complex numbers.

    >>> jnp.sort_complex(jnp.array([2 + 1j, 1 - 1j]))
    Array([1.-1.j, 2.+1.j], dtype=complex64)
    """
    x = lax.sort(asarray(operand("sort_complex", a)))
    return lax.convert_element_type(x, dtypes.to_complex_dtype(x.dtype))


def top_k(a: Any, k: int, *, axis: int = -1) -> tuple[Any, Any]:
    """The ``k`` largest elements along ``axis`` in descending order, and their positions.

    Args:
      a: an array, or what `asarray` makes one of.
      k: the number of the diagonal; 0 is the main one.
      axis: the dimension to work along; negative numbers count from the end.

    >>> jnp.top_k(jnp.array([1, 5, 3]), 2)
    (Array([5, 3], dtype=int32), Array([1, 2], dtype=int32))
    """
    values, positions = lax.top_k(asarray(operand("top_k", a)), k, axis=axis)
    return values, positions


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None, *, method: str = "scan") -> Any:
    """Where the elements of ``v`` go in the sorted vector ``a``, before ("left") or after equal elements ("right").

    ``method`` is accepted for compatibility: the search is always binary, with one gather per level.

    Args:
      a: an ascending vector.
      v: what is looked for.
      side: "left" or "right": the first or the last place that fits.
      sorter: positions that sort the first array.
      method: how to search: "scan", "scan_unrolled", "sort" or "compare_all".

    >>> jnp.searchsorted(jnp.array([1, 3, 5]), jnp.array([0, 3, 9]))
    Array([0, 1, 3], dtype=int32)
    """
    if side not in ("left", "right"):
        raise errors.ArgumentValueError(f"searchsorted: invalid argument {side=}, expected 'left' or 'right'")
    if method not in ("scan", "scan_unrolled", "sort", "compare_all"):
        raise errors.ArgumentShapeError(f"searchsorted: invalid argument {method=}")
    a = asarray(operand("searchsorted", a))
    if a.ndim != 1:
        raise ShapeError(f"searchsorted: a should be 1-dimensional, got shape {a.shape}")
    if sorter is not None:
        a = a[asarray(sorter)]
    v = asarray(operand("searchsorted", v, 1))
    dtype, weak = dtypes.promote_dtypes((a.dtype, a.aval.weak_type), (v.dtype, v.aval.weak_type))
    a, v = el.convert_element_type(a, dtype, weak), el.convert_element_type(v, dtype, weak)
    return _binary_search(a, v, side)


def _goes_after(element: Any, v: Any, side: str) -> Any:
    """Whether ``v`` belongs behind ``element``; NaN counts as larger than all numbers, complex order is by parts."""
    if element.dtype.kind == "c":
        (a, b), (c, d) = ((el.real_p.bind(x), el.imag_p.bind(x)) for x in (element, v))
        equal = el.and_p.bind(el.not_p.bind(_goes_after(a, c, "left")), _goes_after(a, c, "right"))
        return el.or_p.bind(_goes_after(a, c, "left"), el.and_p.bind(equal, _goes_after(b, d, side)))
    out = (el.lt_p if side == "left" else el.le_p).bind(element, v)
    if dtypes.issubdtype(element.dtype, np.floating):
        nan_v = el.ne_p.bind(v, v)
        nan_e = el.ne_p.bind(element, element)
        behind = nan_v if side == "right" else el.and_p.bind(nan_v, el.not_p.bind(nan_e))
        out = el.or_p.bind(out, behind)
    return out


# Of an array of which the size is not known: as many as positions of 32 bits need.
_MOST_HALVINGS = 32


def _binary_search(a: Any, v: Any, side: str) -> Any:
    count = index_dtype((a.size + 1,))

    def halved(_: Any, bounds: tuple[Any, Any]) -> tuple[Any, Any]:
        low, high = bounds
        middle = el.shift_right_logical_p.bind(el.add_p.bind(low, high), count.type(1))
        open_ = el.lt_p.bind(low, high)
        element = take(a, middle, axis=0, mode="clip")
        up = el.and_p.bind(open_, _goes_after(element, v, side))
        down = el.and_p.bind(open_, el.not_p.bind(up))
        return choose(up, el.add(middle, 1), low), choose(down, middle, high)

    bounds = lax.full(v.shape, 0, count), lax.full(v.shape, a.size, count)
    if isinstance(a.size, DimExpr):  # not written out: XLA takes minutes for so many gathers from one short array
        return lax.fori_loop(0, _MOST_HALVINGS, halved, bounds)[0]
    for level in range(a.size.bit_length()):
        bounds = halved(level, bounds)
    return bounds[0]
