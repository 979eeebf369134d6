"""Holds a process on a host for somebody elsewhere: started by a remote shell or a cluster, run by path.

The first line on stdin says what to start: ``{"command": [...], "variables": {...}, "directory": ..., "grace": 5}``, so
that nothing of it stands on a command line. The end of stdin, which comes however the other side ends, or a signal,
means: SIGTERM, and after the grace SIGKILL, for the process and everything that it started, also what made a session
of its own. If this process is itself killed, the reaper (reaper.py) ends all of them. Exits with the process's code, or
128 + its signal. Standard library only.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_LINE_LIMIT = 16 << 20  # bytes
_SWEEPS = 50
_MARK = "MESHRT_TASK_MARK"  # as reaper.py knows it
WRONG = 2  # exit code: what is to be started cannot be


def main() -> int:
    """Holds the process until it ends; gives the code to exit with."""
    read_end, write_end = os.pipe()
    for fd in (read_end, write_end):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    _adopt_orphans()
    told = _told()
    if told is None:
        return WRONG
    reaper, mark = _reaper(), os.urandom(12).hex()
    try:
        process = subprocess.Popen(
            told["command"], env={**os.environ, **told["variables"], _MARK: mark}, cwd=told.get("directory"),
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except OSError as e:
        print(f"meshrt launch: {os.uname().nodename}: cannot start {told['command'][0]}: {e}", file=sys.stderr)
        reaper.communicate()
        return WRONG
    _tell(reaper, f"add {process.pid} {mark}\n")
    code = _watched(process, read_end, float(told.get("grace", 5.0)))
    _end_descendants(but=reaper.pid)
    _tell(reaper, f"drop {process.pid}\n")
    reaper.communicate()
    return code if code >= 0 else 128 - code


def _reaper() -> subprocess.Popen[bytes]:
    """In a session of its own, and without the mark of whoever started this process: neither's end is its own."""
    environ = {name: value for name, value in os.environ.items() if name != _MARK}
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).resolve().parents[1] / "reaper.py")], env=environ,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def _tell(reaper: subprocess.Popen[bytes], line: str) -> None:
    assert reaper.stdin is not None  # as asked for
    try:
        reaper.stdin.write(line.encode())
        reaper.stdin.flush()
    except BrokenPipeError:
        return  # without a reaper all goes on, but for the case that it is there for


def _adopt_orphans() -> None:
    """Makes what a child leaves behind a child of this process (Linux), so that it can be found."""
    if sys.platform.startswith("linux"):
        import ctypes  # start-up time: of other systems

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _told() -> dict[str, Any] | None:
    line = b""
    while b"\n" not in line and len(line) < _LINE_LIMIT:
        data = os.read(0, 1 << 16)
        if not data:
            return None  # whoever wanted something has gone
        line += data
    try:
        told: dict[str, Any] = json.loads(line)
        told["command"][0], told["variables"].items()
    except (ValueError, LookupError, TypeError, AttributeError) as e:
        print(f"meshrt launch: what was sent to {os.uname().nodename} cannot be read: {e!r}", file=sys.stderr)
        return None
    return told


def _watched(process: subprocess.Popen[bytes], wakeups: int, grace: float) -> int:
    """Waits for the process; stops it when stdin ends or a signal comes. Its return code."""
    sources, deadline = [0, wakeups], None
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(sources, [], [], left)
        asked = False
        if wakeups in ready:
            asked = any(n != signal.SIGCHLD for n in os.read(wakeups, 4096))
        if 0 in ready and not os.read(0, 1 << 16):
            sources.remove(0)
            asked = True
        if (code := process.poll()) is not None:
            return code
        if asked and deadline is None:
            deadline = time.monotonic() + grace
            _signal(process.pid, signal.SIGTERM)
            _signal(process.pid, signal.SIGCONT)
        elif deadline is not None and time.monotonic() >= deadline:
            _signal(process.pid, signal.SIGKILL)
            return process.wait()


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def _end_descendants(but: int) -> None:
    """SIGKILL for all that is left below this process, until nothing is, but for the process `but`."""
    for _ in range(_SWEEPS):
        left = [pid for pid in _descendants() if pid != but]
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.02)


def _descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, waiting = list[int](), [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


if __name__ == "__main__":
    sys.exit(main())
