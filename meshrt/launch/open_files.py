"""How many files, and with them connections, a process of the launcher may have open.

Systems let a process have 1024 unless it asks for more, for the sake of programs that use select(2). A coordinator has
a connection from each host, and the door of a job four descriptors for each process: both ask. What they start gets
what they had themselves.
"""

from __future__ import annotations

import resource

__all__ = ["limit", "lower", "raised"]

_MOST = 1 << 18  # of a job as large as can be: 65536 processes, four for each; some programs make tables of this size
_former: int | None = None  # before this process asked for more


def limit() -> int:
    """How many this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else min(soft, _MOST)


def raised() -> int:
    """Asks for as many as there may be; how many that is."""
    global _former
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        _former = soft if _former is None else _former
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return limit()


def lower(pid: int) -> None:
    """A child of this process may have as many as this one had before it asked for more."""
    if _former is None:
        return
    try:
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(_former, hard), hard))
    except (ProcessLookupError, PermissionError):
        return  # it has ended, or is another user's by now: more is no harm
