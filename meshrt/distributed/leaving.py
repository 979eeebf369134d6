"""How a process leaves its job: after success it waits for the others, after failure it tells them and goes."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import traceback
import types
from collections.abc import Callable

from meshrt.core.tracebacks import strip
from meshrt.errors import PeerLost
from meshrt.runtime import process_groups

__all__ = ["flush", "install", "note_failure"]

_QUIET_S = 2.0  # Chosen: what waits for a program fails within milliseconds once connections are broken

_failed: int | None = None  # the exit code with which this process is leaving
_installed = False


def note_failure(code: int) -> None:
    """Says that this process is leaving with exit code `code`, not 0: it will not wait for its peers.

    For a script that ends itself after a failure which no exception tells: what is left of it runs, and then the
    process ends with this code, and its peers hear of it. In a process that is in no job nothing happens.

    >>> if not math.isfinite(loss):  # doctest: +SKIP
    ...     meshrt.distributed.note_failure(3)
    ...     sys.exit(3)
    """
    global _failed
    _failed = code


def install(is_member: Callable[[], bool], tell: Callable[[str], None], finish: Callable[[], int]) -> None:
    """From now on the interpreter's exits go through here.

    Args:
      is_member: whether this process is in a job still.
      tell: says to the others why this process fails.
      finish: waits for the others and leaves the job; gives the exit code.
    """
    global _installed
    if _installed:
        return
    _installed = True
    former = sys.excepthook

    def leave_at_once(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        if isinstance(error, PeerLost):  # it came out of whatever waited: the user's line is what matters
            strip(error)
            trace = error.__traceback__
        former(kind, error, trace)
        if is_member():
            tell(_in_a_line(error))
            flush()
            os._exit(130 if issubclass(kind, KeyboardInterrupt) else 1)

    sys.excepthook = leave_at_once
    atexit.register(_at_exit, is_member, tell, finish)


def _in_a_line(error: BaseException) -> str:
    """What was raised, and where in the script."""
    if isinstance(error, PeerLost) and error.processes:
        return f"it cannot go on without process {', '.join(map(str, sorted(error.processes)))}"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[0].filename}:{frames[0].lineno}" if frames else ""
    text = str(error).strip().partition("\n")[0]
    return f"it raised {type(error).__qualname__}{': ' if text else ''}{text[:500]}{place}"


def _at_exit(is_member: Callable[[], bool], tell: Callable[[str], None], finish: Callable[[], int]) -> None:
    if not is_member():
        return
    code = _failed
    if code is None and getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1"):
        code = 1  # an exception ended the script, and another hook than ours printed it
    if code is not None:
        # The interpreter would go on to destroy the client, and wait there for collectives whose peers wait
        # for us.
        tell(f"it left with exit code {code}")
        flush()
        os._exit(code & 0xFF or 1)
    code = finish()
    if code or not process_groups.quiet(_QUIET_S):
        flush()
        os._exit(code)


def flush() -> None:
    """Writes out what is buffered, where somebody reads it still: who leaves must get away in any case."""
    if "logging" in sys.modules:
        sys.modules["logging"].shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a pipe that was closed at the other end, or a closed file
            if stream is not None:
                stream.flush()
