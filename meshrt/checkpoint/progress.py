"""How far saving, reading or checking has come."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshrt import errors

__all__ = ["Meter", "OnProgress", "Progress", "bar"]


@dataclass(frozen=True, slots=True)
class Progress:
    """What a `progress` function is called with: `doing` is "save", "restore" or "verify", `path` the checkpoint's, and
    the bytes are those of this process.

    >>> import meshrt, tempfile
    >>> told = []
    >>> meshrt.checkpoint.save(tempfile.mkdtemp() + "/first", {"w": meshrt.numpy.ones(4)}, progress=told.append)
    >>> told[-1].doing, told[-1].done_bytes, told[-1].total_bytes
    ('save', 16, 16)
    """

    doing: str
    path: str
    done_bytes: int
    total_bytes: int


OnProgress = Callable[[Progress], None]


class Meter:
    """Counts bytes from several threads, and tells one function, one call at a time."""

    def __init__(self, told: OnProgress | bool | None, doing: str, path: str, total: int):
        if told is True:
            told = bar()
        if told is not None and told is not False and not callable(told):
            raise errors.ArgumentTypeError(f"progress is a function, or True for a bar. Got {told!r}")
        self._told: Any = told or None
        self._doing, self._path, self._done, self._total = doing, path, 0, total
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        if self._told is not None:
            with self._lock:
                self._done += count
                self._told(Progress(self._doing, self._path, self._done, self._total))

    def start(self) -> None:
        self.add(0)


def bar() -> OnProgress:
    """Draws a bar on standard error where that is a terminal; elsewhere it says nothing."""
    shown: dict[str, Any] = {}

    def told(progress: Progress) -> None:
        if not sys.stderr.isatty():
            return
        if not shown:
            # Start-up time: bars are for people who watch.
            from rich import progress as rich_progress
            from rich.console import Console

            columns = (
                rich_progress.TextColumn("{task.description}"), rich_progress.BarColumn(),
                rich_progress.DownloadColumn(), rich_progress.TransferSpeedColumn(),
            )  # fmt: skip
            shown["bar"] = rich_progress.Progress(*columns, console=Console(stderr=True))
            name = f"{progress.doing} {progress.path.rpartition('/')[2]}"
            shown["task"] = shown["bar"].add_task(name, total=progress.total_bytes)
            shown["bar"].start()
        shown["bar"].update(shown["task"], completed=progress.done_bytes)
        if progress.done_bytes >= progress.total_bytes:
            shown["bar"].stop()
            shown.clear()

    return told
