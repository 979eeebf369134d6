"""Grids are printed as the tables of `rich` that they stand for, in terminals and where there is none."""

from __future__ import annotations

import io
import random

import pytest
from rich.console import Console

from meshrt.inspect.grid import Grid
from meshrt.inspect.render import table

TEXTS = ("", "f32[8]", "state['a']", "Größe", "数据", "x" * 30, "two words", "12 KiB", "e\u0301", "👩", "[bold]")


def drawn(seed: int) -> Grid:
    """A grid of random texts."""
    draw = random.Random(seed)
    columns = tuple((name, draw.choice(("left", "right"))) for name in draw.sample(TEXTS[1:], draw.randint(1, 4)))
    cell = lambda: draw.choice(TEXTS) + draw.choice(("", "", "\n" + draw.choice(TEXTS[1:])))
    rows = [tuple(cell() for _ in columns) for _ in range(draw.randint(0, 5))]
    totals = tuple(draw.choice(TEXTS) for _ in columns)
    return Grid(draw.choice(("T", "Arguments", "a long title of a narrow table")), columns, rows, totals, table)


def printed(what: object, width: int, is_terminal: bool) -> str:
    colours = "truecolor" if is_terminal else None
    out = Console(file=io.StringIO(), force_terminal=is_terminal, color_system=colours, width=width, highlight=False)
    out.print(what, soft_wrap=not is_terminal, markup=False)
    return "\n".join(line.rstrip() for line in out.file.getvalue().splitlines())


@pytest.mark.parametrize("seed", range(40))
def test_a_grid_prints_the_characters_that_rich_prints(seed):
    grid = drawn(seed)
    for width in (24, 60, 500):
        assert printed(grid, width, False) == printed(grid._folded(), width, False)


def test_styles_are_those_of_rich():
    grid = Grid("Sizes", (("name", "left"), ("bytes", "right")), [("w\nf32[2]", "8 B")], ("total", "8 B"), table)
    shown = printed(grid, 60, True).splitlines()
    theirs = printed(grid._folded(), 60, True).splitlines()
    for code in ("\x1b[1m", "\x1b[2m", "\x1b[3m"):
        assert [code in a for a in shown] == [code in a for a in theirs]
