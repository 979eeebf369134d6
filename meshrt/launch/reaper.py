"""Kills what the launcher started if the launcher itself is killed: ``python reaper.py``, process groups on stdin.

The kernel ends the workers with the launcher (see bootstrap.py), but not what they started themselves. The
launcher writes ``add PGID MARK`` and ``drop PGID`` lines; the end of the pipe, which comes however the launcher
ends, means: SIGKILL for every group that was added and not dropped, and for whoever bears its mark: a variable of the
environment that processes pass on to those they start, also to those that leave the group by a session of their own.
Standard library only, run by path.
"""

from __future__ import annotations

import os
import signal
import sys

MARK = "MESHRT_TASK_MARK"
_ROUNDS = 20  # somebody may start another process while we look


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: dict[int, str] = {}
    for line in sys.stdin:
        word, group, *mark = line.split()
        if word == "add":
            groups[int(group)] = mark[0]
        else:
            groups.pop(int(group), None)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            continue
    end_marked(set(groups.values()))


def end_marked(marks: set[str]) -> None:
    """SIGKILL for all processes of this user that bear one of `marks`, until none is left (Linux only)."""
    wanted = [f"{MARK}={mark}".encode() for mark in marks]
    for _ in range(_ROUNDS):
        found = [pid for pid in _processes() if any(mark in _environment(pid) for mark in wanted)]
        if not found:
            return
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _environment(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:  # it has ended, or is another user's
        return []


if __name__ == "__main__":
    main()
