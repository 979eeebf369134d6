"""What shapes are computed with, for sizes that may be symbolic: Python's and NumPy's functions where they are ints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.dimensions.expression import DimExpr, is_symbolic_shape, max_dim, min_dim

__all__ = ["broadcast_shapes", "ceil_div", "count_of_steps", "is_surely", "slice_bounds", "steps_down"]


def broadcast_shapes(*shapes: Sequence[Any]) -> tuple[Any, ...]:
    """The shape to which all broadcast. A symbolic size broadcasts with itself and with 1. ValueError if there is
    none."""
    if not any(map(is_symbolic_shape, shapes)):
        return np.broadcast_shapes(*map(tuple, shapes))
    rank = max(map(len, shapes))
    aligned = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(_common(sizes) for sizes in zip(*aligned))


def _common(sizes: Sequence[Any]) -> Any:
    wide = [n for n in sizes if n != 1]
    if any(n != wide[0] for n in wide):
        listed = ", ".join(map(str, dict.fromkeys(wide)))
        raise errors.ArgumentValueError(f"the sizes {listed} are not known to be equal")
    return wide[0] if wide else 1


def is_surely(decide: Any) -> bool:
    """What a comparison gives, False where it depends on variables: for ways that are shorter if it holds."""
    try:
        return bool(decide())
    except errors.InconclusiveDimensionOperation:
        return False


def ceil_div(n: Any, step: Any) -> Any:
    """`n / step` rounded up, of a positive step: in the form in which users write such sizes, so that they are equal.

    >>> ceil_div(7, 2), ceil_div(-7, 2)
    (4, -3)
    """
    return (n + step - 1) // step


def count_of_steps(start: Any, stop: Any, step: Any) -> Any:
    """How many numbers there are from `start` in steps of `step` before `stop`."""
    if not any(isinstance(n, DimExpr) for n in (start, stop, step)):
        return len(range(start, stop, step))
    if is_surely(lambda: step < 0):
        start, stop, step = stop, start, -step
    return max_dim(0, ceil_div(stop - start, step))


def slice_bounds(start: Any, stop: Any, step: Any, size: Any) -> tuple[Any, Any, Any, bool]:
    """``(first, end, stride, reversed)`` of the ascending slice of `size` elements that picks those of
    ``start:stop:step``."""
    if not any(isinstance(n, DimExpr) for n in (start, stop, step, size)):
        positions = range(*slice(start, stop, step).indices(size))
        if not positions:
            return 0, 0, 1, False
        if positions.step > 0:
            return positions.start, positions[-1] + 1, positions.step, False
        return positions[-1], positions.start + 1, -positions.step, True
    step = 1 if step is None else step
    is_up = _decided(lambda: step > 0, f"the step ({step})", "> 0 or < 0")
    low, high = (0, size) if is_up else (-1, size - 1)
    first = (low if is_up else high) if start is None else _bound(start, size, low, high, "start")
    end = (high if is_up else low) if stop is None else _bound(stop, size, low, high, "stop")
    if is_up:
        return first, first + max_dim(0, end - first), step, False
    count = count_of_steps(first, end, step)
    return first + (count - 1) * step, first + 1, -step, True


def steps_down(start: Any, stop: Any, step: Any, size: Any) -> tuple[Any, Any] | None:
    """``(first, end)`` of ``start:stop:step`` within `size` elements if it goes downwards and a size is symbolic; the
    place of its last element is then known only where the program runs."""
    if not any(isinstance(n, DimExpr) for n in (start, stop, step, size)) or step is None or step > 0:
        return None
    first = size - 1 if start is None else _bound(start, size, -1, size - 1, "start")
    end = -1 if stop is None else _bound(stop, size, -1, size - 1, "stop")
    return first, min_dim(first, end)


def _bound(n: Any, size: Any, low: Any, high: Any, which: str) -> Any:
    if _decided(lambda: n >= 0, f"the {which} ({n})", ">= 0"):
        return min_dim(high, n)
    return max_dim(low, size + n)


def _decided(decide: Callable[[], Any], what: str, how: str) -> bool:
    """What a comparison of a slice's numbers gives. InconclusiveDimensionOperation where it depends on variables."""
    try:
        return bool(decide())
    except errors.InconclusiveDimensionOperation as e:
        raise errors.InconclusiveDimensionOperation(
            f"In slice with non-constant elements {what} must be resolved statically if it is {how}: {e}"
        ) from None
