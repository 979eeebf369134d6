"""How the launcher asks a rank of a job with ``--elastic`` to leave the others, which go on with what it holds.

By a signal that waits: a rank keeps it from before its script begins, and looks after it from time to time, so that it
interrupts nothing, is not lost before somebody looks, and ends nobody. Who knows nothing of it ignores it, as the
processes do that a rank has started.
"""

from __future__ import annotations

import signal

__all__ = ["GRACE_S", "LEAVE", "await_request", "host_stays_s", "is_asked"]

LEAVE = int(signal.SIGURG)
GRACE_S = 5.0  # from an agent's SIGTERM to the SIGKILL to ranks that neither save nor hand over what they hold


def host_stays_s(checkpoint_s: float) -> float:
    """How long the agent of a host that leaves gives ranks that save, or hand over what they hold, when asked to."""
    return max(GRACE_S, checkpoint_s)


def await_request() -> None:
    """From now on the signal waits in this process, and in its threads to come. From the main thread only.

    With a handler, for a system need not keep a blocked signal that would be ignored: Linux does, macOS does not.
    """
    signal.signal(LEAVE, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, {LEAVE})


def is_asked() -> bool:
    """Whether it has come since this was asked last."""
    if LEAVE not in signal.sigpending():
        return False
    signal.sigwait({LEAVE})
    return True
