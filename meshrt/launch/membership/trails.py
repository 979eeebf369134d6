"""In which order the processes of each circle have launched the programs that they agreed on, as they tell it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshrt.launch.membership import differences

__all__ = ["Trails"]

_KEPT = 4096  # launches of a circle that are remembered, to be compared with what slower processes tell


class Trails:
    """What was launched, by circle and by the number of the launch, from 1."""

    def __init__(self) -> None:
        self._told: dict[str, dict[int, tuple[int, int, int]]] = {}  # launch: who told first, program, digest
        self._programs: dict[tuple[str, int], Mapping[str, Any]] = {}  # those that were agreed on, by their number

    def agreed(self, circle: str, number: int, record: Mapping[str, Any]) -> None:
        """The processes of a circle have agreed on another program."""
        self._programs[circle, number] = record

    def note(self, circle: str, process: int, trail: Any) -> tuple[int, str] | None:
        """`process` tells its last launches. Where one differs from what was told before: who told that, and what."""
        known = self._told.setdefault(circle, {})
        for count, number, order in trail:
            there = known.setdefault(int(count), (process, int(number), int(order)))
            if there[2] != order:
                here, said = self._named(circle, number), self._named(circle, there[1])
                if number == there[1]:
                    return there[0], f"before launch {count}"
                return there[0], f"launch {count} was {said} there and {here} here"
        for count in sorted(known)[:-_KEPT]:
            del known[count]
        return None

    def launch(self, circle: str, count: object) -> tuple[int, Mapping[str, Any]] | None:
        """Who told first of the launch of that number, and its program; None where nobody has, or it is no number."""
        there = self._told.get(circle, {}).get(count) if isinstance(count, int) else None
        return None if there is None else (there[0], self._programs.get((circle, there[1]), {}))

    def clear(self) -> None:
        """The processes come together anew."""
        self._told.clear()
        self._programs.clear()

    def _named(self, circle: str, number: int) -> str | None:
        record = self._programs.get((circle, number))
        return None if record is None else differences.named(record)
