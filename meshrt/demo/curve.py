"""A curve drawn with characters."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["draw"]

# A Braille cell is two dots wide and four high; bit of each dot by (row, column).
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def draw(values: Sequence[float], width: int = 64, height: int = 10, braille: bool = True) -> list[str]:
    """`values` over their index as lines of text, with the y axis on the left; plain ASCII if not `braille`.

    Each column shows the mean of the values that fall into it. Values that are not finite are left out.
    """
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return ["no finite values to draw"]
    low, high = min(finite), max(finite)
    across, down = (2, 4) if braille else (1, 1)
    columns, rows = min(width * across, max(len(values), 1)), height * down
    dots = [[False] * (width * across) for _ in range(rows)]
    spread = (width * across - 1) / max(columns - 1, 1)
    previous = None
    for c in range(columns):
        part = values[c * len(values) // columns : (c + 1) * len(values) // columns]
        part = [v for v in part if math.isfinite(v)]
        if not part:
            previous = None
            continue
        place = 0.0 if high == low else (high - sum(part) / len(part)) / (high - low)
        here = (c * spread, place * (rows - 1))
        _line(dots, previous or here, here)
        previous = here
    lines = []
    for r in range(height):
        cells = [_cell(dots, r * down, c * across, braille) for c in range(width)]
        label = high - (high - low) * (r + 0.5) / height if height > 1 else high
        lines.append(f"{label:8.3f} {'┤' if braille else '|'}{''.join(cells)}".rstrip())
    return lines


def _line(dots: list[list[bool]], start: tuple[float, float], end: tuple[float, float]) -> None:
    steps = max(1, round(max(abs(end[0] - start[0]), abs(end[1] - start[1]))))
    for i in range(steps + 1):
        x = start[0] + (end[0] - start[0]) * i / steps
        y = start[1] + (end[1] - start[1]) * i / steps
        dots[round(y)][round(x)] = True


def _cell(dots: list[list[bool]], row: int, column: int, braille: bool) -> str:
    if not braille:
        return "*" if dots[row][column] else " "
    bits = sum(bit for r, pair in enumerate(_DOTS) for c, bit in enumerate(pair) if dots[row + r][column + c])
    return chr(0x2800 + bits) if bits else " "
