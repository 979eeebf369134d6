"""The parts of a job's state that its processes keep while they come together anew, and who has which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Box", "Kept", "Leaf", "Piece", "box_of", "common", "within"]

Box = tuple[tuple[int, int], ...]  # of each dimension: from, to


class Piece(NamedTuple):
    """A part of a leaf, and the process that kept it."""

    owner: int
    box: Box

    def bytes(self, itemsize: int) -> int:
        """How many it takes."""
        return int(np.prod(self.shape, dtype=np.int64)) * itemsize

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the part."""
        return tuple(stop - start for start, stop in self.box)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf as all processes know it: `dtype` "" is a plain `value`; else the `pieces` cover `shape`."""

    path: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    pieces: tuple[Piece, ...] = ()
    value: Any = None


@dataclass(frozen=True, slots=True)
class Kept:
    """What this process kept: all `leaves`, and its own `data`, the pieces of each leaf that it owns in order."""

    leaves: tuple[Leaf, ...]
    data: tuple[tuple[np.ndarray, ...], ...]


def box_of(index: Sequence[slice], shape: Sequence[int]) -> Box:
    """Where a shard lies in its array."""
    return tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))


def common(one: Box, other: Box) -> Box | None:
    """What two boxes share."""
    found = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return found if all(start < stop for start, stop in found) else None


def within(box: Box, outer: Box) -> tuple[slice, ...]:
    """Where a box lies in one that holds it."""
    return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(box, outer, strict=True))
