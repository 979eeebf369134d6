"""How far this process is, for those who watch the job."""

from __future__ import annotations

import os
import time

from meshrt.errors import ArgumentValueError
from meshrt.launch import bootstrap

__all__ = ["progress"]

_EVERY_S = 0.5  # Chosen: people look once a second
_told_at = float("-inf")


def progress(step: int, tokens: int | None = None) -> None:
    """Tells the launcher that this process has done `step` steps, and `tokens` tokens in all; without one, nothing.

    Cheap enough for each step: at most two messages a second are sent. `meshrt launch --metrics-port` shows them.

    Raises:
      ArgumentValueError: a number is not a whole number from 0 on.

    >>> meshrt.distributed.progress(10, tokens=20_480)
    """
    global _told_at
    for name, value in (("step", step), ("tokens", tokens)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise ArgumentValueError(f"progress: {name}={value!r}: expected a whole number, at least 0")
    now = time.monotonic()
    if now - _told_at >= _EVERY_S:
        _told_at = now
        bootstrap.send(kind="progress", step=step, tokens=tokens, memory=_memory())


def _memory() -> int | None:
    """Bytes that this process has in memory, where the system says so."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        return None
