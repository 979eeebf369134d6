"""What a built program sends, item by item: the communication plan's rows with the operations behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..ir.program import Collective, LocalFunction, Region

__all__ = ["Sent", "sent_by"]


class Sent(NamedTuple):
    """A collective and how often it runs per run of the program, None in a loop of unknown length. What was combined
    stands member by member; `is_looped` says whether it lies in a loop."""

    collective: Collective
    times: int | None
    is_looped: bool

    @property
    def bytes(self) -> float:
        """Sent by the busiest device per run of the program; a loop of unknown length counts once."""
        return self.collective.bytes * (1 if self.times is None else self.times)


def sent_by(main: LocalFunction, functions: Mapping[str, LocalFunction]) -> Iterator[Sent]:
    """Every collective of a program, in program order."""
    yield from _sent(main.region, 1, False, functions)


def _sent(region: Region, times: int | None, is_looped: bool, functions: Mapping[str, LocalFunction]) -> Iterator[Sent]:
    for items in (region.prologue, region.items):
        for item in items:
            if item.collective is not None:
                for each in item.collective.members or (item.collective,):
                    yield Sent(each, times, is_looped)
            for inner in item.regions:
                if inner.kind != "body":
                    known = None if times is None or inner.trips is None else times * inner.trips
                    yield from _sent(inner, known, is_looped or inner.kind == "loop", functions)
            if item.name == "func.call":
                yield from _sent(functions[item.callee].region, times, is_looped, functions)
