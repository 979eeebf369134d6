"""Shardings as text: a grid of the parts of an array, with the devices that hold each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt.sharding.mesh import AbstractMesh
from meshrt.sharding.named import NamedSharding, Sharding

__all__ = ["parts", "visualize_sharding"]

# Pairs of background and text that can be told apart on dark and on light terminals.
_COLORS = (
    ("blue", "white"), ("green", "black"), ("magenta", "white"), ("yellow", "black"), ("cyan", "black"),
    ("red", "white"), ("bright_blue", "black"), ("bright_green", "black"), ("bright_magenta", "black"),
    ("bright_yellow", "black"), ("bright_cyan", "black"), ("bright_red", "black"),
)  # fmt: skip
_LINES = 10  # of a whole matrix
_WIDER = 2.5  # a character is that much higher than wide


def parts(shape: Sequence[int], sharding: Sharding) -> dict[tuple[int, ...], list[int]]:
    """The part of an array, by its position along each dimension, to the devices that hold it.

    Devices are ids; positions in the mesh where the sharding is over an AbstractMesh.
    """
    ndim = len(shape)
    tiles = np.asarray(sharding.tile_indices(ndim))
    devices = _devices(sharding)
    ids = list(range(len(tiles))) if devices is None else [d.id for d in devices]
    found: dict[tuple[int, ...], list[int]] = {}
    for device, tile in zip(ids, tiles):
        found.setdefault(tuple(map(int, tile)), []).append(device)
    return {tile: sorted(found[tile]) for tile in sorted(found)}


def _devices(sharding: Sharding) -> tuple[Any, ...] | None:
    """Those of a sharding, None for one over an AbstractMesh."""
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, AbstractMesh):
        return None
    return tuple(sharding.device_assignment)


def visualize_sharding(
    shape: Sequence[int], sharding: Sharding, *, use_color: bool = True, scale: float = 1.0, min_width: int = 9,
    max_width: int = 80, color_map: Callable[[float], tuple[float, ...]] | None = None,
) -> None:  # fmt: skip
    """Prints which device holds which part of an array of `shape`, of any rank.

    The last two dimensions make a grid. Parts along the others are grids of their own, each under its index, of which
    there is one where nothing is split there:  `[0:4, :, ...]`.

    Args:
      sharding: over devices, which are named by platform and id, or over an AbstractMesh, whose positions are numbered.
      use_color: gives each part a colour, where the output is a terminal.
      scale: how large the grid is.
      min_width, max_width: characters of a cell, of a line.
      color_map: from [0, 1] to red, green and blue in [0, 1]; the colours of parts.

    >>> meshrt.debug.visualize_sharding((8, 4), meshrt.NamedSharding(mesh, P("x")))   # doctest: +SKIP
    """
    import rich.console  # start-up time: only who draws needs it

    shape = tuple(shape)
    console = rich.console.Console(width=max_width)
    drawing = _Drawing(shape, sharding, console if use_color else None, scale, min_width, max_width, color_map)
    leading = sorted({tile[:-2] for tile in drawing.parts})
    for index in leading:
        if len(shape) > 2:
            console.print(drawing.title(index), markup=False, highlight=False)
        console.print(drawing.grid(index), end="\n\n")


class _Drawing:
    def __init__(
        self, shape: tuple[int, ...], sharding: Sharding, console: Any, scale: float, min_width: int, max_width: int,
        color_map: Callable[[float], tuple[float, ...]] | None,
    ):  # fmt: skip
        self.shape, self.scale, self.min_width, self.max_width = shape, scale, min_width, max_width
        self.parts = parts(shape, sharding)
        self.tiling = tuple(sharding.tiling(len(shape)))
        self.is_colored = console is not None and console.color_system is not None
        devices = _devices(sharding)
        self.platform = "#" if devices is None else devices[0].platform.upper()
        self.styles = _styles(len(self.parts), color_map) if self.is_colored else [""] * len(self.parts)
        self.number = {tile: i for i, tile in enumerate(self.parts)}

    def title(self, index: Sequence[int]) -> str:
        """`[0:4, :, ...]`: which part along the leading dimensions."""
        texts = []
        for i, n, size in zip(index, self.tiling, self.shape):
            step = -(-size // n)
            texts.append(":" if n == 1 else f"{i * step}:{min(size, (i + 1) * step)}")
        return f"[{', '.join(texts)}, ...]"

    def grid(self, index: tuple[int, ...]) -> Any:
        import rich.align  # start-up time: only who draws needs it
        import rich.box
        import rich.padding
        import rich.table

        rows, columns = self.rows_and_columns()
        height, width = self.cell(rows, columns)
        table = rich.table.Table(
            show_header=False, show_lines=not self.is_colored, padding=0, pad_edge=False, highlight=not self.is_colored,
            box=None if self.is_colored else rich.box.SQUARE,
        )  # fmt: skip
        line: list[Any] = []
        for row, column in itertools.product(range(rows), range(columns)):
            tile = (*index, *(row, column)[2 - min(2, len(self.shape)) :])
            text = f"{self.platform} {','.join(map(str, self.parts[tile]))}"
            space = max(0, width - len(text) - 2)
            blank = max(0, height - 2)
            around = (blank // 2, space - space // 2, blank - blank // 2, space // 2)
            cell = rich.padding.Padding(
                rich.align.Align(text, "center", vertical="middle"), around, style=self.styles[self.number[tile]]
            )
            line.append(cell)
            if column == columns - 1:
                table.add_row(*line)
                line = []
        return table

    def rows_and_columns(self) -> tuple[int, int]:
        if len(self.shape) < 2:
            return 1, (self.tiling[0] if self.tiling else 1)
        return self.tiling[-2], self.tiling[-1]

    def cell(self, rows: int, columns: int) -> tuple[int, int]:
        """(lines, characters) of a part, in the proportions of the array."""
        if len(self.shape) < 2:
            lines, ratio = 1, 1 / max(1, *self.shape, 1)
        else:
            lines = int(_LINES * self.scale / rows)
            ratio = self.shape[-1] / max(1, self.shape[-2])
        width = int(_LINES * self.scale * min(ratio, 8.0) * _WIDER / columns)
        return lines, min(max(width, self.min_width), self.max_width // columns)


def _styles(count: int, color_map: Callable[[float], tuple[float, ...]] | None) -> list[str]:
    if color_map is None:
        pairs = itertools.islice(itertools.cycle(_COLORS), count)
        return [f"{text} on {ground}" for ground, text in pairs]
    styles = []
    for i in range(count):
        rgb = [max(0, min(255, int(c * 255))) for c in color_map(i / max(1, count - 1))[:3]]
        styles.append(f"{'#000000' if _light(rgb) > 186 else '#ffffff'} on #{rgb[0]:02x}{rgb[1]:02x}{rgb[2]:02x}")
    return styles


def _light(rgb: Sequence[int]) -> float:
    """How bright a colour seems (ITU-R BT.601)."""
    return sum(w * c for w, c in zip((0.299, 0.587, 0.114), rgb))
