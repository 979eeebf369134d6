"""Borders: pad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import errors, lax, tree_util
from meshrt.core.dimensions.expression import DimExpr, as_size, max_dim
from meshrt.core.types import aval_of
from meshrt.dispatch import at_once
from meshrt.numpy import averages, reductions
from meshrt.numpy import prims as el
from meshrt.numpy.arrays import asarray
from meshrt.numpy.creation import arange, linspace
from meshrt.numpy.indexing import take
from meshrt.numpy.operands import ShapeError, broadcast_to_shape, operand
from meshrt.numpy.quantiles import median
from meshrt.numpy.shapes import moveaxis, reshape, squeeze
from meshrt.numpy.turning import flip
from meshrt.transforms.vmap import vmap

__all__ = ["pad"]

Widths = list[tuple[int, int]]

_STATISTICS: dict[str, Callable[..., Any]] = {
    "maximum": reductions.max, "minimum": reductions.min, "mean": averages.mean, "median": median,
}  # fmt: skip
_ARGUMENTS = {
    "constant": {"constant_values"}, "empty": set(), "edge": set(), "wrap": set(), "reflect": {"reflect_type"},
    "symmetric": {"reflect_type"}, "linear_ramp": {"end_values"}, **{name: {"stat_length"} for name in _STATISTICS},
}  # fmt: skip


@at_once(1, ["pad_width", "mode"])
def pad(array: Any, pad_width: Any, mode: Any = "constant", **kwargs: Any) -> Any:
    """``array`` with borders of ``pad_width`` ((before, after) per dimension, or one pair or number for all).

    Args:
      mode: constant (``constant_values``), empty, edge, wrap, linear_ramp (``end_values``), reflect and symmetric
        (``reflect_type``: even or odd), maximum, minimum, mean and median (``stat_length``); or a function of
        (vector with borders of zeros, (before, after), axis, keywords) that gives the vector with its borders filled.

    Raises:
      ArgumentTypeError: widths that are no static integers.
      ArgumentValueError: negative widths, or keywords that the mode does not take.
      UnsupportedError: an unknown mode.

    >>> jnp.pad(jnp.array([1, 2]), 1)
    Array([0, 1, 2, 0], dtype=int32)
    >>> jnp.pad(jnp.array([1, 2]), (0, 2), mode="edge")
    Array([1, 2, 2, 2], dtype=int32)
    """
    x = asarray(operand("pad", array))
    widths = pairs(pad_width, x.ndim, "pad_width")
    if any(a < 0 or b < 0 for a, b in widths):
        raise ShapeError(f"pad: index can't contain negative values, but pad_width is {pad_width}; cut with slices")
    if callable(mode):
        return _by_function(x, widths, mode, kwargs)
    if mode not in _ARGUMENTS:
        raise errors.UnsupportedError(
            f"Unimplemented padding mode '{mode}' for np.pad. Modes are {', '.join(_ARGUMENTS)}, or a function"
        )
    extra = set(kwargs) - _ARGUMENTS[mode]
    if extra:
        raise errors.ArgumentValueError(
            f"pad: unsupported keyword arguments for mode {mode!r}: {extra}; it takes {sorted(_ARGUMENTS[mode])}"
        )
    if all(a == 0 and b == 0 for a, b in widths):
        return x
    if mode in ("constant", "empty"):
        return _constant(x, widths, kwargs.get("constant_values", 0))
    if mode == "linear_ramp":
        return _ramp(x, widths, kwargs.get("end_values", 0))
    if mode in _STATISTICS:
        return _statistic(x, widths, mode, kwargs.get("stat_length"))
    if kwargs.get("reflect_type", "even") == "odd":
        return _reflected(x, widths, mode)
    return _by_position(x, widths, _POSITIONS[mode])


def pairs(value: Any, rank: int, name: str) -> Widths:
    """(before, after) of integers for each dimension, from what NumPy accepts as the argument `name`."""
    if any(isinstance(n, DimExpr) for n in tree_util.tree_leaves(value)):
        return _symbolic_pairs(value, rank, name)
    found = _pairs(value, rank, name)
    if not np.issubdtype(np.asarray(found).dtype, np.integer) and rank:
        raise errors.ArgumentTypeError(f"pad: `{name}` must be of integral type, got {value!r}")
    return found


def _symbolic_pairs(value: Any, rank: int, name: str) -> Widths:
    """Pairs of sizes, some of them symbolic."""
    rows = value if isinstance(value, list | tuple) else [value]
    if not any(isinstance(row, list | tuple) for row in rows):
        rows = [rows]
    found = [tuple(as_size(n) for n in (row if isinstance(row, list | tuple) else [row])) for row in rows]
    found = [row * 2 if len(row) == 1 else row for row in found]
    found = found * rank if len(found) == 1 else found
    if len(found) != rank or any(len(row) != 2 for row in found):
        raise ShapeError(f"pad: `{name}` {value!r} does not fit {rank} dimensions; give (before, after) for each")
    return found


def _pairs(value: Any, rank: int, name: str) -> list[Any]:
    try:
        given = np.asarray(value)
    except ValueError:
        given = None
    if given is None or given.dtype == object:
        raise errors.ArgumentTypeError(f"pad: `{name}` entries must be the same shape, got {value!r}")
    if given.shape not in ((rank, 2), (1, 2), (2,), (1,), ()):
        raise ShapeError(
            f"jnp.pad: {name} with nd={rank} has unsupported shape {given.shape}. Valid shapes are ({rank}, 2), "
            "(1, 2), (2,), (1,), or ()."
        )
    return [tuple(p) for p in np.broadcast_to(given, (rank, 2)).tolist()]


def _constant(x: Any, widths: Widths, values: Any) -> Any:
    values = el.convert_element_type(asarray(values), x.dtype, aval_of(x).weak_type)
    if values.size == 1:
        scalar = lax.reshape(values, ())
        return lax.pad(x, scalar, [(a, b, 0) for a, b in widths])
    values = broadcast_to_shape(values, (x.ndim, 2))
    for axis, (a, b) in enumerate(widths):
        for side, width in enumerate((a, b)):
            if width != 0:
                config = [(0, 0, 0)] * x.ndim
                config[axis] = (width, 0, 0) if side == 0 else (0, width, 0)
                x = lax.pad(x, values[axis, side], config)
    return x


# Position -a .. n + b - 1 of the padded array to a position of the original.
_POSITIONS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "edge": lambda k, n: k.clip(0, n - 1),
    "wrap": lambda k, n: k % n,
    "reflect": lambda k, n: (n - 1) - abs(k % max_dim(2 * n - 2, 1) - (n - 1)),
    "symmetric": lambda k, n: (2 * n - 1 - abs(2 * (k % (2 * n)) - (2 * n - 1))) // 2,
}


def _by_position(x: Any, widths: Widths, position: Callable[[np.ndarray, int], np.ndarray]) -> Any:
    """Borders made of slices of the array itself, so that no gather is needed."""
    for axis, (a, b) in enumerate(widths):
        n = x.shape[axis]
        if a == 0 and b == 0:
            continue
        if n == 0:
            raise ShapeError(f"pad: dimension {axis} is empty and has no elements to repeat")
        if any(isinstance(size, DimExpr) for size in (a, b, n)):
            x = take(x, position(arange(-a, n + b), n), axis)
            continue
        before = _pieces(x, position(np.arange(-a, 0), n), axis)
        after = _pieces(x, position(np.arange(n, n + b), n), axis)
        x = lax.concatenate([*before, x, *after], axis)
    return x


def _pieces(x: Any, positions: np.ndarray, axis: int) -> list[Any]:
    """Runs of positions that go up or down by one, or stay, as slices."""
    out = []
    start = 0
    while start < len(positions):
        step = int(positions[start + 1] - positions[start]) if start + 1 < len(positions) else 1
        step = step if step in (-1, 0, 1) else 1
        end = start + 1
        while end < len(positions) and positions[end] - positions[end - 1] == step:
            end += 1
        lo, hi = sorted((int(positions[start]), int(positions[end - 1])))
        piece = lax.slice_in_dim(x, lo, hi + 1, axis=axis)
        if step == 0 and end - start > 1:
            shape = (*x.shape[:axis], end - start, *x.shape[axis + 1 :])
            piece = broadcast_to_shape(piece, shape)
        out.append(lax.rev(piece, (axis,)) if step < 0 else piece)
        start = end
    return out


def _statistic(x: Any, widths: Widths, mode: str, stat_length: Any) -> Any:
    reduce = _STATISTICS[mode]
    lengths = None if stat_length is None else pairs(stat_length, x.ndim, "stat_length")
    if lengths is not None and any(k <= 0 for pair in lengths for k in pair):
        raise errors.ArgumentValueError(
            f"pad: stat_length of 0 (or less) has no value for padding, got {stat_length!r}"
        )
    for axis, (a, b) in enumerate(widths):
        n = x.shape[axis]
        parts = []
        for side, width in enumerate((a, b)):
            k = n if lengths is None else min(lengths[axis][side], n)
            edge = lax.slice_in_dim(x, 0, k, axis=axis) if side == 0 else lax.slice_in_dim(x, n - k, n, axis=axis)
            value = reduce(edge, axis=axis, keepdims=True)
            if mode in ("mean", "median") and np.issubdtype(x.dtype, np.integer):
                value = el.round_p.bind(value, rounding_method=1)
            value = el.convert_element_type(value, x.dtype, aval_of(x).weak_type)
            parts.append(broadcast_to_shape(value, (*x.shape[:axis], width, *x.shape[axis + 1 :])))
        x = lax.concatenate([parts[0], x, parts[1]], axis)
    return x


def _ramp(x: Any, widths: Widths, end_values: Any) -> Any:
    """Borders that lead from the edges to `end_values` in equal steps."""
    ends = _pairs(end_values, x.ndim, "end_values")
    for axis, (width, end) in enumerate(zip(widths, ends)):
        n = x.shape[axis]
        edges = (lax.slice_in_dim(x, k, k + 1, axis=axis) for k in (0, n - 1))
        before, after = (
            el.convert_element_type(
                linspace(e, squeeze(edge, axis), count, endpoint=False, dtype=x.dtype, axis=axis),
                x.dtype, aval_of(x).weak_type,
            )
            for e, edge, count in zip(end, edges, width)
        )  # fmt: skip
        x = lax.concatenate([before, x, flip(after, axis)], axis)
    return x


def _reflected(x: Any, widths: Widths, mode: str) -> Any:
    """Odd reflections: the difference from an edge changes its sign there.

    Beyond both edges that repeats with a period, after which all has grown by the difference of the edges (twice).
    """
    for axis, (a, b) in enumerate(widths):
        n = x.shape[axis]
        if not (a or b):
            continue
        if n == 0:
            raise ShapeError(f"pad: dimension {axis} is empty and has no elements to reflect")
        half = n - 1 if mode == "reflect" else n
        periods, rest = np.divmod(np.concatenate([np.arange(-a, 0), np.arange(n, n + b)]), max(2 * half, 1))
        turned = rest >= n
        growth = 2 * periods if half else np.zeros_like(periods)
        shape = [-1 if d == axis else 1 for d in range(x.ndim)]
        column = lambda values, shape=shape: asarray(values.reshape(shape)).astype(x.dtype)
        first, last = (lax.slice_in_dim(x, k, k + 1, axis=axis) for k in (0, n - 1))
        even = lax.concatenate(
            _pieces(x, np.where(turned, (2 * n - 1 if half == n else 2 * n - 2) - rest, rest), axis), axis
        )
        odd = column(np.where(turned, -1, 1)) * even + column(growth + 2 * turned) * last - column(growth) * first
        odd = el.convert_element_type(odd, x.dtype, aval_of(x).weak_type)
        before, after = (lax.slice_in_dim(odd, i, j, axis=axis) for i, j in ((0, a), (a, a + b)))
        x = lax.concatenate([before, x, after], axis)
    return x


def _by_function(x: Any, widths: Widths, fill: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    x = _constant(x, widths, 0)
    for axis, width in enumerate(widths):
        rows = moveaxis(x, axis, -1)
        filled = vmap(lambda row, axis=axis, width=width: fill(row, width, axis, kwargs))(
            reshape(rows, (-1, rows.shape[-1]))
        )
        x = moveaxis(reshape(filled, rows.shape), -1, axis)
    return x
