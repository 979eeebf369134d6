"""How arrays are cut: into pieces, which processes write, and pieces into tiles, which are read and checked.

    grid     per dimension where its pieces begin, in ascending order, the first at 0
    piece    what lies between neighbouring lines of the grid: one process writes it
    tile     at most `CHECKPOINT_TILE_BYTES` of a piece: stored row by row, with a checksum of its own

A part that some device needs is read as the tiles that touch it, whatever the pieces were.

>>> grid = ((0, 4), (0,))
>>> list(pieces(grid, (6, 2)))
[((0, 4), (0, 2)), ((4, 6), (0, 2))]
>>> list(tiles(((0, 4), (0, 2)), (3, 2)))
[((0, 3), (0, 2)), ((3, 4), (0, 2))]
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence

from meshrt.heuristics import CHECKPOINT_TILE_BYTES

__all__ = [
    "Box",
    "Grid",
    "count_pieces",
    "even_grid",
    "extents",
    "finer",
    "inside",
    "meet",
    "pieces",
    "relative",
    "slices",
    "tile_shape",
    "tiles",
    "touching",
]  # fmt: skip

# Per dimension where a part of an array begins and ends.
Box = tuple[tuple[int, int], ...]
Grid = tuple[tuple[int, ...], ...]


def even_grid(shape: Sequence[int], parts: Sequence[int]) -> Grid:
    """Each dimension in so many parts of the same size, the last ones shorter, or absent where nothing is left."""
    return tuple(tuple(range(0, n, -(-n // k))) if n else (0,) for n, k in zip(shape, parts))


def finer(grid: Grid, shape: Sequence[int], factor: int) -> Grid:
    """The grid with the dimension of the longest pieces cut into (up to) `factor` times as many."""
    longest = [max(end - start for start, end in _spans(lines, n)) for lines, n in zip(grid, shape)]
    if factor < 2 or not longest:
        return grid
    dim = longest.index(max(longest))
    lines: list[int] = []
    for start, end in _spans(grid[dim], shape[dim]):
        lines += range(start, end, -(-(end - start) // factor))
    return (*grid[:dim], tuple(lines), *grid[dim + 1 :])


def tile_shape(shape: Sequence[int], bits: int) -> tuple[int, ...]:
    """The tiles of pieces of this shape: the longest dimension is halved until a tile is small enough."""
    tile = [max(n, 1) for n in shape]
    while math.prod(tile) * bits > 8 * CHECKPOINT_TILE_BYTES:
        dim = tile.index(max(tile))
        tile[dim] = -(-tile[dim] // 2)
    return tuple(tile)


def _spans(lines: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
    return zip(lines, (*lines[1:], size))


def count_pieces(grid: Grid) -> int:
    return math.prod(map(len, grid))


def pieces(grid: Grid, shape: Sequence[int]) -> Iterator[Box]:
    """All pieces, the last dimension's next to each other."""
    return itertools.product(*[tuple(_spans(lines, n)) for lines, n in zip(grid, shape)])


def tiles(piece: Box, tile: Sequence[int]) -> Iterator[Box]:
    """The tiles of a piece in the order in which they are stored."""
    rows = [[(i, min(i + t, end)) for i in range(start, end, t)] for (start, end), t in zip(piece, tile)]
    return itertools.product(*rows)


def touching(grid: Grid, shape: Sequence[int], box: Box) -> Iterator[tuple[int, Box]]:
    """The pieces that share elements with a box, and their numbers."""
    ranges = [
        range(bisect.bisect_right(lines, start) - 1, bisect.bisect_left(lines, end))
        for lines, (start, end) in zip(grid, box)
    ]
    spans = [tuple(_spans(lines, n)) for lines, n in zip(grid, shape)]
    for at in itertools.product(*ranges):
        number = 0
        for i, lines in zip(at, grid):
            number = number * len(lines) + i
        yield number, tuple(rows[i] for rows, i in zip(spans, at))


def extents(box: Box) -> tuple[int, ...]:
    return tuple(end - start for start, end in box)


def meet(a: Box, b: Box) -> Box | None:
    """What two boxes share, None if nothing."""
    both = tuple((max(s, t), min(e, f)) for (s, e), (t, f) in zip(a, b))
    return None if any(start >= end for start, end in both) else both


def inside(box: Box, outer: Box) -> bool:
    return all(t <= s and e <= f for (s, e), (t, f) in zip(box, outer))


def relative(box: Box, origin: Box) -> tuple[slice, ...]:
    """The slices of a box within the array that holds `origin`."""
    return tuple(slice(s - t, e - t) for (s, e), (t, _) in zip(box, origin))


def slices(index: Sequence[slice], shape: Sequence[int]) -> Box:
    """Slices of an array of `shape` as a box."""
    return tuple(s.indices(n)[:2] for s, n in zip(index, shape))
