"""The modes of :func:`meshrt.numpy.pad`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import errors, lax
from meshrt.core.types import aval_of
from meshrt.numpy import prims as el
from meshrt.numpy.creation import asarray
from meshrt.numpy.operands import ShapeError, broadcast_to_shape

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
    from meshrt.numpy import reductions

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
