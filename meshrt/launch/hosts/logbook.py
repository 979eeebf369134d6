"""The last lines that each rank printed, for `meshrt launch logs`, and for those who follow them."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from meshrt.launch.engines.protocol import Output, Task
from meshrt.launch.noise import without_noise
from meshrt.launch.output import LineSplitter

__all__ = ["Line", "Logbook"]

LINES = 1000  # kept of each rank
BYTES = 1 << 20  # Chosen: a thousand lines of a terminal's width are a tenth of it
TOTAL = 256 << 20  # of all ranks, which share it where they are many
_LINES_BITS = 32  # of a line's number; the others are the logbook's
_KEEPING = 200  # bytes that it costs to keep a line, beside its content


@dataclass(frozen=True, slots=True)
class Line:
    """One line that a task printed. Numbers rise, and those of two logbooks differ."""

    host: str
    task: Task
    stderr: bool
    data: bytes
    number: int


class _Last:
    """The last lines of one task."""

    def __init__(self) -> None:
        self.lines: deque[Line] = deque()
        self._size = 0

    def add(self, line: Line, limit: int) -> None:
        self.lines.append(line)
        self._size += _KEEPING + len(line.data)
        while len(self.lines) > LINES or (self._size > limit and len(self.lines) > 1):
            self._size -= _KEEPING + len(self.lines.popleft().data)


class Logbook:
    """Lines of the present generation and of the one before, which may say why it ended; older ones are forgotten."""

    def __init__(self) -> None:
        self._lines: dict[Task, _Last] = {}
        self._hosts: dict[Task, str] = {}
        self._splitters: dict[tuple[Task, str], LineSplitter] = {}
        self._followers: set[Callable[[Line], None]] = set()
        self._lock = threading.Lock()
        self._newest = -1  # generation
        self._book = secrets.randbits(31)
        self._number = self._book << _LINES_BITS

    def begin(self, task: Task, host: str) -> None:
        """A task is started on a host."""
        with self._lock:
            if task.generation > self._newest:  # once, and not for each of its ranks: there may be thousands
                self._newest = task.generation
                self._forget(task.generation - 1)
            self._lines.setdefault(task, _Last())
            self._hosts[task] = host

    def _forget(self, first: int) -> None:
        """What is of generations before `first`."""
        for old in [task for task in self._lines if task.generation < first]:
            del self._lines[old], self._hosts[old]
        self._splitters = {key: found for key, found in self._splitters.items() if key[0].generation >= first}

    def feed(self, found: Output) -> None:
        """A task printed this."""
        with self._lock:
            if found.task in self._lines:
                splitter = self._splitters.setdefault((found.task, found.stream), LineSplitter())
                self._add(found.task, found.stream, splitter.feed(found.data, found.at))

    def end(self, task: Task) -> None:
        """A task has ended, perhaps within a line."""
        with self._lock:
            for key in [key for key in ((task, "stdout"), (task, "stderr")) if key in self._splitters]:
                self._add(*key, self._splitters.pop(key).close())

    def _add(self, task: Task, stream: str, found: list[bytes]) -> None:
        """What a task printed itself of these lines; the runtime's are for log files."""
        lines, limit = self._lines[task], min(BYTES, TOTAL // len(self._lines))
        for data in (own for line in found if (own := without_noise(line)) is not None):
            self._number += 1
            line = Line(self._hosts[task], task, stream == "stderr", data, self._number)
            lines.add(line, limit)
            for follow in self._followers:
                follow(line)

    def last(self, count: int, follow: Callable[[Line], None] | None = None) -> list[Line]:
        """The last `count` lines of each task, task by task; `follow` hears of each one after them. For a follower they
        are in the order in which they came: one that is cut off takes up `behind` the last that it has seen."""
        with self._lock:
            found = [line for last in self._lines.values() for line in list(last.lines)[-count:]] if count else []
            if follow is None:
                return found
            self._followers.add(follow)
            return sorted(found, key=lambda line: line.number)

    def behind(self, number: int, follow: Callable[[Line], None]) -> list[Line]:
        """The lines behind the one of this number, all of them where it is of another logbook; `follow` hears of each
        one after them."""
        with self._lock:
            self._followers.add(follow)
            known = number >> _LINES_BITS == self._book
            found = [line for last in self._lines.values() for line in last.lines if not known or line.number > number]
            return sorted(found, key=lambda line: line.number)

    def leave(self, follow: Callable[[Line], None]) -> None:
        """A follower has gone."""
        with self._lock:
            self._followers.discard(follow)
