"""Lines that people can do without: those that the runtime's C++ prints into a worker's output, which are for the log
files and not for the terminal, and those that strangers cause by the hundred.

Only what is recognised to the last byte counts, so that nothing a script prints is ever hidden.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

_STRANGERS_EVERY_S = 0.2
# Gloo writes its message in pieces, so threads that connect at the same time tear each other's lines apart.
_PIECE = rb"\[Gloo\] Rank | is connected to | peer ranks\. |Expected number of connected peer ranks is : |\d+"
_GLOO = re.compile(rb"\[Gloo\] Rank (?:" + _PIECE + rb")*\Z")
_TORN_OFF = re.compile(rb"(?=.* peer ranks\. |Expected number of connected)(?:" + _PIECE + rb")+\Z")
_NOTICE = re.compile(rb"W\d{4} [\d:.]+ +\d+ preemption_notifier\.cc:\d+\] SIGTERM caught at [\dT:.+-]+\Z")


def without_noise(line: bytes) -> bytes | None:
    """What a script itself printed of `line`; None if all of it is the runtime's.

    A script that had not ended its line finds the runtime's message behind its own text.
    """
    found = _GLOO.search(line) or _TORN_OFF.match(line) or _NOTICE.search(line)
    if found is None:
        return line
    return line[: found.start()] or None


class Sparing:
    """Tells people what strangers do, but not each time that somebody hammers at a port: more of it is counted.

    Args:
      say: tells people.
      clock: seconds.
      later: has something called after so many seconds, so that the count is told when no more come. Without it who
        uses this calls `tick` from time to time.
    """

    def __init__(
        self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], None] | None = None,
    ):  # fmt: skip
        self._say, self._clock, self._later = say, clock, later
        self._at, self._left_out = float("-inf"), 0
        self._lock = threading.RLock()  # threads of a server meet strangers at once

    def __call__(self, text: str) -> None:
        with self._lock:
            if self._clock() - self._at < _STRANGERS_EVERY_S:
                self._left_out += 1
                if self._left_out == 1 and self._later is not None:
                    self._later(_STRANGERS_EVERY_S, self.tick)
                return
            self.tick()
            self._at = self._clock()
            self._say(text)

    def tick(self) -> None:
        """Time passes: tells how many were left out, once no more come."""
        with self._lock:
            if self._left_out and self._clock() - self._at >= _STRANGERS_EVERY_S:
                left_out, self._left_out = self._left_out, 0
                self._say(f"{left_out} more of the kind {'was' if left_out == 1 else 'were'} left out")
