"""Bounds how many executions are pending at once on a set of devices.

Executions are launched without waiting. Each device admits 32 pending ones (XLA's CPU client); the launch of the next
blocks, in the middle of a step whose other devices have not been launched yet. When the steps communicate, no step
can then finish: an unawaited loop over 8 virtual devices on 2 cores hangs for ever, and so do two processes of two
devices each. Staying well below that number keeps launches from ever blocking halfway.

A token of an execution is cheap but not free, so only every few executions ask for one; executions on one set of
devices finish in order, so awaiting a token awaits everything before it.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import Any

from meshrt import config
from meshrt.heuristics import UNFINISHED_PER_DEVICE
from meshrt.runtime import backend

__all__ = ["Flight", "flight_of"]


class Flight:
    """The pending executions of one set of devices."""

    __slots__ = ("_lock", "count", "stride", "tokens")

    def __init__(self, limit: int):
        # Two tokens are outstanding at most, each standing for `stride` executions.
        self.stride = max(1, limit // 2)
        self.count = 0
        self.tokens: deque[Any] = deque()
        self._lock = threading.Lock()

    def due(self) -> bool:
        """Counts one execution; whether it should come with a token for `add`."""
        self.count += 1
        return self.count % self.stride == 0

    def add(self, token: Any) -> None:
        """Notes a token; waits for the one before it if there is one."""
        with self._lock:
            self.tokens.append(token)
            oldest = self.tokens.popleft() if len(self.tokens) > 1 else None
        if oldest is not None:
            oldest.block_until_ready()


_flights: dict[frozenset, Flight] = {}
_lock = threading.Lock()


def flight_of(devices: tuple[Any, ...]) -> Flight | None:
    """The flight of a set of devices; None for a single one, where no execution waits for another."""
    if len(devices) == 1:
        return None
    key = frozenset(devices)
    found = _flights.get(key)
    if found is None:
        with _lock:
            found = _flights.setdefault(key, Flight(config.settings.max_in_flight))
            _share(config.settings.max_in_flight)
    return found


def _share(limit: int) -> None:
    """Divides what a device admits among the sets that it belongs to, at two pending executions a set or more."""
    sets = Counter(device for devices in _flights for device in devices)
    for devices, flight in _flights.items():
        flight.stride = max(1, min(limit, UNFINISHED_PER_DEVICE // max(sets[d] for d in devices)) // 2)


def _clear() -> None:
    _flights.clear()


backend.on_clear(_clear)
config.settings.on_update("max_in_flight", _share)
