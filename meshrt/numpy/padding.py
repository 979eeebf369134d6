"""Repetition and borders: tile, repeat, resize, pad."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import errors, lax
from meshrt.core.basic.shapes import broadcast_in_dim_p, reshape_p
from meshrt.core.explicit import refusal
from meshrt.core.operators import ArrayOperators
from meshrt.core.types import aval_of
from meshrt.numpy import prims as el
from meshrt.numpy import reductions
from meshrt.numpy.arrays import asarray
from meshrt.numpy.filled import zeros
from meshrt.numpy.indexing import take
from meshrt.numpy.operands import (
    ShapeError,
    broadcast_to_shape,
    canonical_axis,
    operand,
    shape_tuple,
    static_int,
)
from meshrt.numpy.reductions import cumsum
from meshrt.numpy.shapes import broadcast_to, ravel, reshape, take_static
from meshrt.primitives.axis_types import constrained, in_auto_mode

__all__ = ["pad", "repeat", "resize", "tile"]

Widths = list[tuple[int, int]]

_ARGUMENTS = {
    "constant": {"constant_values"}, "empty": set(), "edge": set(), "wrap": set(), "reflect": {"reflect_type"},
    "symmetric": {"reflect_type"}, "maximum": {"stat_length"}, "minimum": {"stat_length"}, "mean": {"stat_length"},
}  # fmt: skip


def pad_with(x: Any, pad_width: Any, mode: Any, kwargs: dict[str, Any]) -> Any:
    """``x`` padded; see :func:`meshrt.numpy.pad`."""
    if not isinstance(mode, str) or mode not in _ARGUMENTS:
        raise errors.UnsupportedError(f"pad: mode {mode!r} is not supported; modes are {', '.join(_ARGUMENTS)}")
    extra = set(kwargs) - _ARGUMENTS[mode]
    if extra:
        raise errors.ArgumentTypeError(f"pad: mode {mode!r} does not take {', '.join(sorted(extra))}")
    widths = pairs(pad_width, x.ndim)
    if any(a < 0 or b < 0 for a, b in widths):
        raise ShapeError(f"pad: widths must not be negative, got {pad_width}")
    if not any(a or b for a, b in widths):
        return x
    if mode in ("constant", "empty"):
        return _constant(x, widths, kwargs.get("constant_values", 0))
    if kwargs.get("reflect_type", "even") != "even":
        raise errors.UnsupportedError("pad: reflect_type='odd' is not supported")
    if mode in ("maximum", "minimum", "mean"):
        return _statistic(x, widths, mode, kwargs.get("stat_length"))
    return _by_position(x, widths, _POSITIONS[mode])


def pairs(value: Any, rank: int) -> Widths:
    """(before, after) for each dimension, from what NumPy accepts."""
    if isinstance(value, dict):
        out = [(0, 0)] * rank
        for axis, width in value.items():
            out[axis] = tuple(np.broadcast_to(np.asarray(width), (2,)).tolist())
        return out
    widths = np.asarray(value)
    if not np.issubdtype(widths.dtype, np.integer):
        raise errors.ArgumentTypeError(f"pad: widths must be integers, got {value!r}")
    try:
        return [tuple(p) for p in np.broadcast_to(widths, (rank, 2)).tolist()]
    except ValueError:
        raise ShapeError(f"pad: widths {value!r} do not fit {rank} dimensions; give (before, after) for each") from None


def _constant(x: Any, widths: Widths, values: Any) -> Any:
    values = el.convert_element_type(asarray(values), x.dtype, aval_of(x).weak_type)
    if values.size == 1:
        scalar = lax.reshape(values, ())
        return lax.pad(x, scalar, [(a, b, 0) for a, b in widths])
    values = broadcast_to_shape(values, (x.ndim, 2))
    for axis, (a, b) in enumerate(widths):
        for side, width in enumerate((a, b)):
            if width:
                config = [(0, 0, 0)] * x.ndim
                config[axis] = (width, 0, 0) if side == 0 else (0, width, 0)
                x = lax.pad(x, values[axis, side], config)
    return x


# Position -a .. n + b - 1 of the padded array to a position of the original.
_POSITIONS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "edge": lambda k, n: np.clip(k, 0, n - 1),
    "wrap": lambda k, n: k % n,
    "reflect": lambda k, n: (n - 1) - np.abs(k % max(2 * n - 2, 1) - (n - 1)),
    "symmetric": lambda k, n: np.minimum(k % (2 * n), 2 * n - 1 - k % (2 * n)),
}


def _by_position(x: Any, widths: Widths, position: Callable[[np.ndarray, int], np.ndarray]) -> Any:
    """Borders made of slices of the array itself, so that no gather is needed."""
    for axis, (a, b) in enumerate(widths):
        n = x.shape[axis]
        if not (a or b):
            continue
        if n == 0:
            raise ShapeError(f"pad: dimension {axis} is empty and has no elements to repeat")
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
    reduce = {"maximum": reductions.max, "minimum": reductions.min, "mean": reductions.mean}[mode]
    lengths = None if stat_length is None else pairs(stat_length, x.ndim)
    for axis, (a, b) in enumerate(widths):
        n = x.shape[axis]
        parts = []
        for side, width in enumerate((a, b)):
            k = n if lengths is None else min(lengths[axis][side], n)
            edge = lax.slice_in_dim(x, 0, k, axis=axis) if side == 0 else lax.slice_in_dim(x, n - k, n, axis=axis)
            value = reduce(edge, axis=axis, keepdims=True)
            if mode == "mean" and np.issubdtype(x.dtype, np.integer):
                value = el.round_p.bind(value, rounding_method=1)
            value = el.convert_element_type(value, x.dtype)
            parts.append(broadcast_to_shape(value, (*x.shape[:axis], width, *x.shape[axis + 1 :])))
        x = lax.concatenate([parts[0], x, parts[1]], axis)
    return x


# ----------------------------------------------------------------------------------------------------------
# Public functions.


def _operand(name: str, x: Any) -> Any:
    return x if isinstance(x, ArrayOperators) else asarray(operand(name, x))


def tile(A: Any, reps: Any) -> Any:
    """``A`` laid out ``reps`` times along each dimension."""
    x = _operand("tile", A)
    reps = shape_tuple(reps)
    reps = (1,) * (x.ndim - len(reps)) + reps
    own = (1,) * (len(reps) - x.ndim) + x.shape
    if all(r == 1 for r in reps):
        return reshape(x, own)
    wide = tuple(v for r, n in zip(reps, own) for v in (r, n))
    x = broadcast_in_dim_p.bind(reshape(x, own), shape=wide, broadcast_dimensions=tuple(range(1, 2 * len(own), 2)))
    return reshape_p.bind(x, new_sizes=tuple(r * n for r, n in zip(reps, own)))


@in_auto_mode
def repeat(
    a: Any, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None, out_sharding: Any = None
) -> Any:
    """Each position along ``axis`` repeated ``repeats`` times (a number, or one per position).

    Repeats per position that are traced need ``total_repeat_length``, the static size of the result.
    """
    x = _operand("repeat", a)
    x, axis = (ravel(x), 0) if axis is None else (x, canonical_axis(axis, x.ndim, "repeat"))
    n = x.shape[axis]
    sharding = aval_of(x).sharding
    if out_sharding is None and sharding is not None and sharding.spec.partitions[axis] is not None:
        raise refusal(
            "repeat", [aval_of(x)], "Please pass sharding to `jnp.repeat` via `out_sharding` parameter.",
            "give `out_sharding=P(...)`",
        )  # fmt: skip
    if isinstance(repeats, ArrayOperators) and total_repeat_length is not None:
        out = _repeat_dynamic(x, broadcast_to(repeats, (n,)), axis, static_int(total_repeat_length, "repeat"))
    else:
        counts = np.asarray(repeats)
        if counts.ndim == 0 and total_repeat_length is None:
            out = _repeat_evenly(x, int(counts), axis)
        else:
            positions = np.repeat(np.arange(n), np.broadcast_to(counts.ravel(), (n,)))
            if total_repeat_length is not None:
                pad_to = total_repeat_length - len(positions)
                positions = np.pad(positions, (0, max(pad_to, 0)), mode="edge")[:total_repeat_length]
            out = take_static(x, positions, axis)
    return constrained(out, out_sharding, "repeat")


def _repeat_evenly(x: Any, count: int, axis: int) -> Any:
    wide = (*x.shape[: axis + 1], count, *x.shape[axis + 1 :])
    kept = tuple(i for i in range(len(wide)) if i != axis + 1)
    x = broadcast_in_dim_p.bind(x, shape=wide, broadcast_dimensions=kept)
    return reshape_p.bind(x, new_sizes=(*wide[:axis], wide[axis] * count, *wide[axis + 2 :]))


def _repeat_dynamic(x: Any, counts: Any, axis: int, total: int) -> Any:
    """Position k of the result comes from the last position whose repeats begin at or before k."""
    if total == 0 or x.shape[axis] == 0:
        return zeros((*x.shape[:axis], total, *x.shape[axis + 1 :]), x.dtype)
    starts = cumsum(counts) - counts
    marks = zeros((total,), np.int32).at[starts].add(1, mode="drop")
    return take(x, cumsum(marks) - 1, axis=axis, mode="clip")


def resize(a: Any, new_shape: Any) -> Any:
    """``a`` with another shape, repeated or cut as needed."""
    x = ravel(a)
    target = shape_tuple(new_shape)
    count = math.prod(target)
    if x.size == 0 or count == 0:
        return zeros(target, x.dtype)
    return reshape(tile(x, -(-count // x.size))[:count], target)


def pad(array: Any, pad_width: Any, mode: str = "constant", **kwargs: Any) -> Any:
    """``array`` with borders of ``pad_width`` ((before, after) per dimension, or one pair or number for all).

    Modes: constant (``constant_values``), empty, edge, wrap, reflect, symmetric, maximum, minimum, mean.
    """
    return pad_with(_operand("pad", array), pad_width, mode, kwargs)
