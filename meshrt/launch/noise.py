"""Lines that the runtime's C++ prints into a worker's output: for the log files, not for the terminal.

Only what is recognised to the last byte counts, so that nothing a script prints is ever hidden.
"""

from __future__ import annotations

import re

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
