"""What a built program sends, item by item: the communication plan's rows with the operations behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..ir.program import Collective, LocalFunction, Region

__all__ = ["Sent", "Traffic", "sent_by"]


@dataclass(slots=True)
class Traffic:
    """Bytes that each device sends: f64[devices], the most and the least that branches make of them.

    >>> one, other = Traffic.none(2), Traffic.none(2)
    >>> one.send(8.0)
    >>> other.send(4.0, [1])
    >>> both = Traffic.of_branches([one, other])
    >>> both.most.tolist(), both.least.tolist()
    ([8.0, 8.0], [0.0, 4.0])
    """

    most: np.ndarray
    least: np.ndarray

    @staticmethod
    def none(devices: int) -> Traffic:
        """Nothing is sent yet."""
        return Traffic(np.zeros(devices), np.zeros(devices))

    @staticmethod
    def of_branches(each: Sequence[Traffic]) -> Traffic:
        """What is sent where one of several is taken, which a device chooses by itself."""
        most = np.max([sent.most for sent in each], axis=0)
        return Traffic(most, np.min([sent.least for sent in each], axis=0))

    def send(self, count: float, senders: Sequence[int] | np.ndarray | None = None) -> None:
        """Some devices, or all, send `count` bytes."""
        chosen = slice(None) if senders is None else senders
        self.most[chosen] += count
        self.least[chosen] += count

    def add(self, other: Traffic, times: int = 1) -> None:
        """What is sent by a part that runs so often."""
        self.most += other.most * times
        self.least += other.least * times

    @property
    def bytes(self) -> tuple[float, float]:
        """(least, most) bytes that the busiest device sends."""
        return float(self.least.max(initial=0.0)), float(self.most.max(initial=0.0))


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
