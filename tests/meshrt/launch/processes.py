"""Whether processes are still there."""

from __future__ import annotations


def gone(pid: int) -> bool:
    """Whether a process has ended, waited for or not."""
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
