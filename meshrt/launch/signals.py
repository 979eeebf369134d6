"""Signals of the launcher as bytes in a pipe, which its loop waits for beside everything else."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["CANCELLING", "cancelling", "heard", "piped"]

CANCELLING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def heard() -> Iterator[int]:
    """Signals become bytes in a pipe, whose reading end is given; see `piped`."""
    with piped() as (read_end, _):
        yield read_end


@contextmanager
def piped() -> Iterator[tuple[int, int]]:
    """Signals become bytes in a pipe, whose two ends are given; former handlers come back afterwards.

    SIGCHLD is among them for engines that have child processes: their end is to end the engine's wait. Only from the
    main thread.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    old_fd = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    numbers = {*CANCELLING, signal.SIGCHLD}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # started by nohup
        numbers.remove(signal.SIGHUP)
    old = {n: signal.signal(n, lambda *_: None) for n in numbers}
    try:
        yield read_end, write_end
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_fd)
        os.close(read_end)
        os.close(write_end)


def cancelling(wakeups: int) -> list[int]:
    """The signals that ask the launcher to stop, among those that came since."""
    try:
        data = os.read(wakeups, 4096)
    except BlockingIOError:
        return []
    return [number for number in data if number in CANCELLING]
