"""How far this process is, for those who watch the job."""

from __future__ import annotations

import os
import time

from meshrt.distributed.profiling import asked_for
from meshrt.errors import ArgumentValueError
from meshrt.launch import bootstrap

__all__ = ["check_count", "checkpoint_begun", "checkpoint_committed", "progress"]

_EVERY_S = 0.5  # Chosen: people look once a second
_told_at = float("-inf")
_traced = asked_for(os.environ)


def progress(step: int, tokens: int | None = None) -> None:
    """Tells the launcher that this process has done `step` steps, and `tokens` tokens in all; without one, nothing.

    Cheap enough for each step: at most two messages a second are sent. `meshrt launch --metrics-port` shows them, and
    `--profile` records from one step to another.

    Raises:
      ArgumentValueError: a number is not a whole number from 0 on.

    >>> meshrt.distributed.progress(10, tokens=20_480)
    """
    global _told_at
    check_count("progress", "step", step)
    if tokens is not None:
        check_count("progress", "tokens", tokens)
    if _traced is not None:
        _traced.told(step)
    now = time.monotonic()
    if now - _told_at >= _EVERY_S:
        _told_at = now
        bootstrap.send(kind="progress", step=step, tokens=tokens, memory=_memory())


def checkpoint_committed(step: int) -> None:
    """Tells the launcher that the checkpoint of `step` is complete, so that the job could start again from there.

    A CheckpointManager does so by itself. One process tells it for all, when nothing can go wrong with it any more.

    Raises:
      ArgumentValueError: `step` is no whole number from 0 on.

    >>> meshrt.distributed.checkpoint_committed(1000)
    """
    check_count("checkpoint_committed", "step", step)
    bootstrap.send(kind="checkpoint", step=step, committed=True)


def checkpoint_begun(step: int) -> None:
    """Tells the launcher that the checkpoint of `step` is being written."""
    bootstrap.send(kind="checkpoint", step=step, committed=False)


def check_count(function: str, name: str, value: object) -> None:
    """ArgumentValueError unless `value` is a whole number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ArgumentValueError(f"{function}: {name}={value!r}: expected a whole number, at least 0")


def _memory() -> int | None:
    """Bytes that this process has in memory, where the system says so."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        return None
