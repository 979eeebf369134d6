"""Which failure came first: tells a worker's own failure from the echo of another one's.

When a process goes, its peers' collectives fail within a fraction of a second, and any of the resulting exits
may be noticed before the one that caused them. So failures are collected for a moment, echoes are recognised
by what the transport and the coordination service say, and the earliest failure that is no echo is named as
the cause.
"""

from __future__ import annotations

import re

from meshrt.launch.model import ExitStatus, Failure, WorkerError

LOST_PEER = "lost its connection to a peer"
LOST_SERVICE = "was aborted by the distributed runtime, which lost a peer or the coordination service"
STOPPED = "was stopped by the launcher"
LOST = "lost to the others"  # the type of what the job's door says of a worker

_ECHOES = (
    (re.compile(r"Gloo.*(closed by peer|reset by peer|Read error|Broken pipe|Connection refused|connectFullMesh)",
                re.IGNORECASE | re.DOTALL), LOST_PEER),
    (re.compile(r"\bPeerLost\b"), LOST_PEER),
    (re.compile(r"distributed service detected fatal errors|Shutdown barrier has failed"
                r"|Failed to send RPC to coordination service|tasks are unhealthy"), LOST_SERVICE),
)  # fmt: skip


def echo_of(status: ExitStatus | None, error: WorkerError | None, tail: tuple[str, ...]) -> str | None:
    """What the failure is an echo of, in words; None for a failure of the worker's own.

    A reported exception is judged by itself and the exceptions it was raised from; without one, the end of
    stderr is, but only if the process left by an exit code or SIGABRT (nobody sends SIGKILL because a peer is
    gone).
    """
    if error is not None:
        text = "\n".join((error.type, error.message, *error.traceback))
    elif status is not None and status.signal in (None, 6):
        text = "\n".join(tail)
    else:
        return None
    return next((words for pattern, words in _ECHOES if pattern.search(text)), None)


def first_cause(failures: tuple[Failure, ...]) -> Failure | None:
    """The earliest failure that is not an echo, or the earliest at all if all are; None without any."""
    own = [f for f in failures if f.consequence is None]
    return min(own or failures, key=lambda f: f.at, default=None)
