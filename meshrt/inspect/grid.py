"""A table of texts that is printed as `rich` prints it, in a fraction of the time where nothing has to be folded.

A report has thousands of cells, and `rich` makes, measures and folds a text with styles of each of them, for each
layout that is tried. Where all cells fit, widths are lengths, and lines are joined strings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

__all__ = ["Column", "Grid"]

Column = tuple[str, Literal["left", "right"]]
_GAP = 2  # columns between two cells
_EDGE = 1  # and on either side of the table


@dataclass(frozen=True)
class Grid:
    """A title, columns with their names and sides, rows of texts without control characters, and a row of totals.

    A text may have a second line, which is dimmed. `empty` makes the table of `rich` that prints the grid where it
    does not fit.

    >>> from meshrt.inspect.render import table
    >>> grid = Grid("Sizes", (("name", "left"), ("bytes", "right")), [("w", "8 B")], ("total", "8 B"), table)
    >>> grid.width
    14
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    totals: Sequence[str]
    empty: Callable[[str], Table]

    @cached_property
    def widths(self) -> list[int]:
        """Columns of a terminal that each column of the table needs."""
        names = [name for name, _ in self.columns]
        return [max(map(_width, cells)) for cells in zip(names, *self.rows, self.totals)]

    @property
    def width(self) -> int:
        """Columns of a terminal that the whole table needs."""
        return sum(self.widths) + _GAP * (len(self.columns) - 1) + 2 * _EDGE

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(self.width, options.max_width), self.width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.width > options.max_width or cell_len(self.title) > self.width:
            yield self._folded()
            return
        line, whole = Segment.line(), " " * self.width
        yield Segment(self.title, Style(bold=True))
        yield line
        yield Segment(whole)
        yield line
        yield from self._lines([name for name, _ in self.columns], Style(bold=True))
        yield Segment(f"{'':{_EDGE}}{'─' * (self.width - 2 * _EDGE)}{'':{_EDGE}}")
        yield line
        for row in self.rows:
            yield from self._lines(row)
        if self.rows:
            yield Segment(whole)
            yield line
        yield from self._lines(self.totals)
        yield Segment(whole)
        yield line

    def _lines(self, cells: Sequence[str], style: Style | None = None) -> RenderResult:
        """The one or two lines of a row."""
        parts = [cell.split("\n") for cell in cells]
        for number in range(max(map(len, parts))):
            texts = [part[number] if number < len(part) else "" for part in parts]
            yield Segment(self._joined(texts), Style(dim=True) if number else style)
            yield Segment.line()

    def _joined(self, texts: Sequence[str]) -> str:
        padded = []
        for text, width, (_, side) in zip(texts, self.widths, self.columns):
            space = " " * (width - _cells(text))
            padded.append(space + text if side == "right" else text + space)
        return " " * _EDGE + (" " * _GAP).join(padded) + " " * _EDGE

    def _folded(self) -> Table:
        made = self.empty(self.title)
        for name, side in self.columns:
            made.add_column(name, justify=side, overflow="fold")
        for row in self.rows:
            made.add_row(*map(_text, row))
        made.add_section()
        made.add_row(*self.totals)
        return made


def _cells(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)


def _width(cell: str) -> int:
    return max(map(_cells, cell.split("\n"))) if "\n" in cell else _cells(cell)


def _text(cell: str) -> Text:
    first, newline, second = cell.partition("\n")
    return Text(first) + Text(newline) + Text(second, style="dim")
