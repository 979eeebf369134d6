"""Kills what the launcher started if the launcher itself is killed: ``python keeper.py``, process groups on stdin.

The kernel ends the workers with the launcher (see bootstrap.py), but not what they started themselves. The
launcher writes ``add PGID`` and ``drop PGID`` lines; the end of the pipe, which comes however the launcher
ends, means: SIGKILL for every group that was added and not dropped. Standard library only, run by path.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        word, group = line.split()
        (groups.add if word == "add" else groups.discard)(int(group))
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    main()
