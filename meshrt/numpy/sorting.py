"""Sorting and searching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.core.basic.shapes import reshape_p
from meshrt.core.completion import declared
from meshrt.core.types import aval_of
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray
from meshrt.numpy.choose import choose
from meshrt.numpy.indexing import take, take_along_axis
from meshrt.numpy.operands import (
    ShapeError,
    canonical_axes,
    canonical_axis,
    operand,
    promote_inexact,
    unsupported_argument,
)
from meshrt.numpy.reductions import any as any_
from meshrt.numpy.reductions import sum as total
from meshrt.primitives.reshape import iota_p

__all__ = ["argsort", "lexsort", "median", "nanmedian", "partition", "searchsorted", "sort", "top_k"]


def _prepared(name: str, a: Any, axis: int | None, kind: Any, order: Any) -> tuple[Any, int]:
    if kind is not None or order is not None:
        raise errors.ArgumentTypeError(f"{name}: kind and order are not supported; use stable=True or stable=False")
    x = asarray(operand(name, a))
    if axis is None:
        return reshape_p.bind(x, new_sizes=(x.size,)), 0
    return x, canonical_axis(axis, x.ndim, name)


def sort(
    a: Any, axis: int | None = -1, *, kind: None = None, order: None = None, stable: bool = True,
    descending: bool = False,
) -> Any:  # fmt: skip
    """``a`` in ascending order along ``axis`` (flattened if None); NaN last."""
    x, axis = _prepared("sort", a, axis, kind, order)
    out = lax.sort(x, dimension=axis, is_stable=stable)
    return lax.rev(out, (axis,)) if descending else out


def argsort(
    a: Any, axis: int | None = -1, *, kind: None = None, order: None = None, stable: bool = True,
    descending: bool = False, dtype: Any = None,
) -> Any:  # fmt: skip
    """The positions that sort ``a`` along ``axis``; equal elements keep their order if ``stable``."""
    x, axis = _prepared("argsort", a, axis, kind, order)
    dtype = dtypes.default_int_dtype() if dtype is None else dtypes.check_user_dtype(dtype, "argsort")
    positions = iota_p.bind(dtype=dtype, shape=x.shape, dimension=axis, **declared(aval_of(x), ()))
    if descending and stable:
        x, positions = lax.rev(x, (axis,)), lax.rev(positions, (axis,))
    _, out = lax.sort_key_val(x, positions, dimension=axis, is_stable=stable)
    return lax.rev(out, (axis,)) if descending else out


def lexsort(keys: Sequence[Any], axis: int = -1) -> Any:
    """The positions that sort by several keys, the last one first in importance."""
    arrays = [asarray(operand("lexsort", k, i)) for i, k in enumerate(keys)]
    if not arrays:
        raise errors.ArgumentTypeError("lexsort needs at least one key")
    axis = canonical_axis(axis, arrays[0].ndim, "lexsort")
    kind = aval_of(arrays[0])
    positions = iota_p.bind(dtype=dtypes.default_int_dtype(), shape=kind.shape, dimension=axis, **declared(kind, ()))
    return lax.sort((*arrays[::-1], positions), dimension=axis, num_keys=len(arrays))[-1]


def partition(a: Any, kth: int, axis: int = -1) -> Any:
    """An array in which position ``kth`` along ``axis`` holds what sorting puts there: the sorted array."""
    x = asarray(operand("partition", a))
    canonical_axis(kth, x.shape[canonical_axis(axis, x.ndim, "partition")], "partition: kth")
    return sort(x, axis)


def top_k(a: Any, k: int, *, axis: int = -1) -> tuple[Any, Any]:
    """The ``k`` largest elements along ``axis`` in descending order, and their positions."""
    return lax.top_k(asarray(operand("top_k", a)), k, axis=axis)


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None, *, method: str = "scan") -> Any:
    """Where the elements of ``v`` go in the sorted vector ``a``, before ("left") or after equal elements ("right").

    ``method`` is accepted for compatibility: the search is always binary, with one gather per level.
    """
    if side not in ("left", "right"):
        raise errors.ArgumentTypeError(f"searchsorted: side must be 'left' or 'right', got {side!r}")
    if method not in ("scan", "scan_unrolled", "sort", "compare_all", "default"):
        raise errors.ArgumentTypeError(f"searchsorted: unknown method {method!r}")
    a = asarray(operand("searchsorted", a))
    if a.ndim != 1:
        raise ShapeError(f"searchsorted needs a sorted vector, got shape {a.shape}")
    if sorter is not None:
        a = a[asarray(sorter)]
    v = asarray(operand("searchsorted", v, 1))
    dtype, weak = dtypes.promote_dtypes((a.dtype, a.aval.weak_type), (v.dtype, v.aval.weak_type))
    a, v = el.convert_element_type(a, dtype, weak), el.convert_element_type(v, dtype, weak)
    return _binary_search(a, v, side)


def _goes_after(element: Any, v: Any, side: str) -> Any:
    """Whether ``v`` belongs behind ``element``; NaN counts as larger than all numbers."""
    out = (el.lt_p if side == "left" else el.le_p).bind(element, v)
    if dtypes.issubdtype(element.dtype, np.floating):
        nan_v = el.ne_p.bind(v, v)
        nan_e = el.ne_p.bind(element, element)
        behind = nan_v if side == "right" else el.and_p.bind(nan_v, el.not_p.bind(nan_e))
        out = el.or_p.bind(out, behind)
    return out


def _binary_search(a: Any, v: Any, side: str) -> Any:
    low = lax.full(v.shape, 0, np.int32)
    high = lax.full(v.shape, a.size, np.int32)
    for _ in range(int(a.size).bit_length()):
        middle = el.shift_right_logical_p.bind(el.add_p.bind(low, high), np.int32(1))
        open_ = el.lt_p.bind(low, high)
        element = take(a, middle, axis=0, mode="clip")
        up = el.and_p.bind(open_, _goes_after(element, v, side))
        down = el.and_p.bind(open_, el.not_p.bind(up))
        low = choose(up, el.add(middle, 1), low)
        high = choose(down, middle, high)
    return low


def median(a: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """The middle value over ``axis``, or the mean of the two middle ones; NaN if there is one."""
    x, shape, axes, n = _middle_input("median", a, axis, out)
    ordered = lax.sort(x, dimension=x.ndim - 1)
    lo, hi = (n - 1) // 2, n // 2
    middle = el.add(el.mul(ordered[..., lo], 0.5), el.mul(ordered[..., hi], 0.5))
    middle = choose(any_(el.ne_p.bind(x, x), -1), np.asarray(np.nan, x.dtype)[()], middle)
    return _with_kept(middle, shape, axes, keepdims)


def nanmedian(a: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """The middle value over ``axis`` of elements that are not NaN."""
    x, shape, axes, _ = _middle_input("nanmedian", a, axis, out)
    x = lax.convert_element_type(x, x.dtype)  # not weak any more
    ordered = lax.sort(x, dimension=x.ndim - 1)  # NaN come last
    count = total(el.eq_p.bind(x, x), -1, np.int32, keepdims=True)
    lo = el.max_p.bind(el.div(el.sub(count, 1), 2), np.int32(0))
    hi = el.div(count, 2)
    low, high = (
        take_along_axis(ordered, i, -1, mode="clip") for i in (lo, el.min_p.bind(hi, np.int32(x.shape[-1] - 1)))
    )
    middle = reshape_p.bind(el.add(el.mul(low, 0.5), el.mul(high, 0.5)), new_sizes=x.shape[:-1])
    return _with_kept(middle, shape, axes, keepdims)


def _middle_input(name: str, a: Any, axis: Any, out: Any) -> tuple:
    """The operand with the reduced dimensions merged into a last one."""
    unsupported_argument(name, "out", out)
    x = asarray(promote_inexact(name, a)[0])
    shape, axes = x.shape, canonical_axes(axis, x.ndim, name)
    kept = [i for i in range(x.ndim) if i not in axes]
    x = lax.transpose(x, (*kept, *axes))
    n = int(np.prod([shape[i] for i in axes], dtype=int))
    if n == 0:
        raise ShapeError(f"{name} of an array of shape {shape} has nothing to choose from")
    return reshape_p.bind(x, new_sizes=(*(shape[i] for i in kept), n)), shape, axes, n


def _with_kept(x: Any, shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> Any:
    if not keepdims:
        return x
    return reshape_p.bind(x, new_sizes=tuple(1 if i in axes else n for i, n in enumerate(shape)))
