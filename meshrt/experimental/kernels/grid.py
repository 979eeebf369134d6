"""Where in its grid a kernel runs: `program_id`, `num_programs`.

The indices of a step are arguments of a kernel's Jaxpr, so that nobody who reads it has to look for them inside of
branches and loops. While a kernel is traced the frame here says which tracers stand for them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from meshrt import errors
from meshrt.core.source import capture
from meshrt.core.tracebacks import boundary

__all__ = ["DYNAMIC", "GridFrame", "current_frame", "in_grid", "num_programs", "program_id"]


class _Dynamic:
    """Stands in a grid for a size that is known only when the program runs."""

    def __repr__(self) -> str:
        return "DynamicGridDim"


DYNAMIC = _Dynamic()


@dataclass(frozen=True)
class GridFrame:
    """What stands for the indices of a step, and for the sizes of the grid (ints where they are known)."""

    indices: Sequence[Any]
    sizes: Sequence[Any]


_frame: ContextVar[GridFrame | None] = ContextVar("meshrt_grid", default=None)
current_frame = _frame.get


@contextmanager
def in_grid(frame: GridFrame | None) -> Iterator[None]:
    """Makes `frame` what `program_id` and `num_programs` look at."""
    token = _frame.set(frame)
    try:
        yield
    finally:
        _frame.reset(token)


def _axis(axis: Any, what: str) -> tuple[GridFrame, int]:
    frame = _frame.get()
    if frame is None:
        raise errors.ArgumentValueError(
            f"{what}({axis}) at {capture()} is outside of a kernel: only the function that pallas_call runs over a "
            "grid has a place in one"
        )
    at = operator.index(axis)
    if not -len(frame.sizes) <= at < len(frame.sizes):
        raise errors.ArgumentValueError(f"Axis {axis} is out of bounds for grid {tuple(frame.sizes)}")
    return frame, at


@boundary
def program_id(axis: int) -> Any:
    """The index of the running step along a dimension of the grid: an int32 scalar.

    Raises:
      ArgumentValueError: outside of a kernel, or the grid has no such dimension.
    """
    frame, at = _axis(axis, "program_id")
    return frame.indices[at]


@boundary
def num_programs(axis: int) -> Any:
    """The size of a dimension of the grid: an int, or an int32 scalar where it is computed.

    Raises:
      ArgumentValueError: outside of a kernel, or the grid has no such dimension.
    """
    frame, at = _axis(axis, "num_programs")
    return frame.sizes[at]
