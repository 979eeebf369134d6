"""Counting what the pipeline does: tests and reports ask, every stage reports.

>>> with events.count("trace", "compile") as n:
...     f(x)
>>> n.trace, n["compile"]
(1, 1)

Kinds in use: ``trace``, ``lower``, ``lowered`` (its module), ``propagate``, ``partition``, ``program`` (asked for by a
function that has it not), ``compile``, ``compile_topology``, ``compiled_miss`` (a Compiled's first call of a kind),
``rebind`` (an executable bound to other devices),
``offered`` (code that a file brought along is taken instead of compiling), ``dispatch_miss``, ``persistent_hit``,
``persistent_miss``, ``persistent_corrupt``,
``persistent_wait`` (for another process that makes the same entry), ``reshard``,
``host_reshard`` (a layout change that went through the host). Counts are of the whole process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from meshrt.config import settings

__all__ = ["count", "log_level", "puts", "record", "subscribe", "timed", "timers", "totals"]

_lock = threading.Lock()
_totals: Counter[str] = Counter()
_listeners: list[Callable[[str, dict[str, Any]], None]] = []


def record(kind: str, **details: Any) -> None:
    """Notes that `kind` happened once; listeners are given the details."""
    with _lock:
        _totals[kind] += 1
        listeners = tuple(_listeners)
    for listener in listeners:
        listener(kind, details)


def totals() -> dict[str, int]:
    """How often each kind has happened since the start of the process."""
    with _lock:
        return dict(_totals)


def subscribe(listener: Callable[[str, dict[str, Any]], None]) -> Callable[[], None]:
    """Calls `listener(kind, details)` at each event; returns a function that ends this."""
    with _lock:
        _listeners.append(listener)

    def unsubscribe() -> None:
        with _lock:
            if listener in _listeners:
                _listeners.remove(listener)

    return unsubscribe


# Called with what was done (``trace``, ``lower``, ``compile``), for which function, when it began and when it ended.
timers: list[Callable[[str, str, float, float], None]] = []


# Called with the leaves of a `device_put` outside of programs, where they were to go and what they have become. (No
# event: putting small values is fast, and nobody but counters of transfers asks.)
puts: list[Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], None]] = []


def log_level() -> int:
    """The level at which compilations and their parts are logged: WARNING with the setting `log_compiles`."""
    return logging.WARNING if settings.log_compiles else logging.DEBUG


# What is logged (of compilations, by those who know the program: `executable.py`).
_FINISHED = {"trace": "tracing %s for jit", "lower": "jaxpr to MLIR module conversion %s"}
_log = logging.getLogger("meshrt.compile")


class timed:
    """Tells `timers` and, if asked for, a log how long a block took that does `what` for the function `name`."""

    __slots__ = ("_name", "_start", "_what")

    _start: float

    def __init__(self, what: str, name: str):
        self._what, self._name = what, name

    def __enter__(self) -> None:
        if timers or _log.isEnabledFor(log_level()):
            self._start = time.time()

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None and hasattr(self, "_start"):
            end = time.time()
            level = log_level()
            if self._what in _FINISHED and _log.isEnabledFor(level):
                _log.log(level, f"Finished {_FINISHED[self._what]} in %.9f sec", self._name, end - self._start)
            for timer in tuple(timers):
                timer(self._what, self._name, self._start, end)


class count:
    """Counts events within a block, of the given kinds or of all; read as attributes or items during or after it."""

    __slots__ = ("_end", "_kinds", "_start")

    def __init__(self, *kinds: str):
        self._kinds = kinds
        self._start: dict[str, int] = {}
        self._end: dict[str, int] | None = None

    def __enter__(self) -> count:
        self._start, self._end = totals(), None
        return self

    def __exit__(self, *_: object) -> None:
        self._end = totals()

    def __getitem__(self, kind: str) -> int:
        now = totals() if self._end is None else self._end
        return now.get(kind, 0) - self._start.get(kind, 0)

    def __getattr__(self, kind: str) -> int:
        if kind.startswith("_"):
            raise AttributeError(kind)
        return self[kind]

    def as_dict(self) -> dict[str, int]:
        """Kind -> count; the kinds asked for, else those that happened."""
        now = totals() if self._end is None else self._end
        kinds = self._kinds or sorted(k for k in now if now[k] != self._start.get(k, 0))
        return {k: self[k] for k in kinds}

    def __repr__(self) -> str:
        return f"count({self.as_dict()})"
