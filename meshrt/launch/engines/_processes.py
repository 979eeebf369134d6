"""One child process of the launcher: its process group, its pipes, its end; and the reaper that outlives us."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from meshrt.launch import open_files
from meshrt.launch.engines.protocol import Handed, Output, Report, Said, Task
from meshrt.launch.model import ExitStatus
from meshrt.launch.reaper import MARK, end_marked
from meshrt.launch.wire import LINE_LIMIT

_HERE = Path(__file__).parents[1]  # where bootstrap.py and reaper.py lie
_READ = 64 * 1024
_PIPE, _PIPE_LIMIT = 64 * 1024, 1 << 20  # bytes that fit into a pipe, and that Linux lets one be made to fit
_READS_AT_END = 256  # of what a process left in a pipe; bounded, since a detached child may go on writing


class Reaper:
    """The process that kills our process groups if we are killed ourselves (reaper.py)."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_HERE / "reaper.py")],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._stdin = _pipe(self._process.stdin)

    def add(self, group: int, mark: str) -> None:
        """A process group, and whoever else bears the mark, that must not outlive the launcher."""
        self._tell(f"add {group} {mark}\n")

    def drop(self, group: int) -> None:
        """A process group that ended: its number may be given to another one."""
        self._tell(f"drop {group}\n")

    def _tell(self, line: str) -> None:
        try:
            os.write(self._stdin.fileno(), line.encode())
        except BrokenPipeError:
            return  # a reaper that is gone is no reason to stop the job

    def close(self) -> None:
        """Lets the reaper end; it kills whatever was not dropped."""
        self._stdin.close()
        self._process.wait()


class Child:
    """A process in a session of its own, started through bootstrap.py, whose pipes are read without blocking.

    `environment` makes its variables, given the descriptor of the pipe on which it sends messages. Signals go to the
    whole process group. OSError from the constructor means that the process was not started.

    With a `stdin` that stays the process ends by itself when that ends, which comes too when the launcher is killed:
    nothing else ends it then.
    """

    def __init__(
        self, target: Sequence[str], environment: Callable[[int], Mapping[str, str]], stdin: Handed | None = None
    ):
        self.mark = os.urandom(12).hex()
        read_end, write_end = os.pipe()
        tied_to = 0 if stdin is not None and stdin.stays else os.getpid()
        try:
            self._process = subprocess.Popen(
                [sys.executable, str(_HERE / "bootstrap.py"), str(tied_to), *target],
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, env={**environment(write_end), MARK: self.mark},
                pass_fds=(write_end,), start_new_session=True,
            )  # fmt: skip
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        self.pid = self._process.pid
        open_files.lower(self.pid)
        self._stdout, self._stderr = _pipe(self._process.stdout), _pipe(self._process.stderr)
        self._messages, self._unfinished, self._skipping = read_end, b"", False
        self.fds = (self._stdout.fileno(), self._stderr.fileno(), read_end)
        for fd in self.fds:
            os.set_blocking(fd, False)
        try:
            self._stdin = None if stdin is None else _kept(_pipe(self._process.stdin), stdin)
        except OSError:
            self._process.kill()
            self._process.wait()
            raise

    def read(self, fd: int, task: Task, now: float) -> list[Report] | None:
        """Reads once from one of `fds`: what it says of `task`, or None when its writers have closed it."""
        data = _available(fd)
        return None if data == b"" else self._reports(fd, data or b"", task, now)

    def signal(self, number: int) -> None:
        """Sends `number` to the process group; one that asks to stop also wakes stopped processes."""
        if self._stdin is not None and number != signal.SIGKILL:
            self._stdin.close()
            return
        try:
            os.killpg(self.pid, number)
            if number != signal.SIGKILL:
                os.killpg(self.pid, signal.SIGCONT)
        except ProcessLookupError:
            return  # all of it ended; its exit is about to be noticed

    def exited(self) -> ExitStatus | None:
        """The exit status once the process ended, after ending what is left of its group; None while it runs."""
        if not _has_ended(self.pid):
            return None
        # While the leader is not reaped its number cannot be given to another group.
        self.signal(signal.SIGKILL)
        code = self._process.wait()
        end_marked({self.mark})  # what has left the group, by a session of its own
        return ExitStatus(signal=-code) if code < 0 else ExitStatus(code=code)

    def close(self, task: Task, now: float) -> list[Report]:
        """Reads what is left in the pipes and closes them."""
        reports: list[Report] = []
        for fd in self.fds:
            for _ in range(_READS_AT_END):
                data = _available(fd)
                if not data:
                    break
                reports += self._reports(fd, data, task, now)
        self._stdout.close()
        self._stderr.close()
        os.close(self._messages)
        if self._stdin is not None:
            self._stdin.close()
        return reports

    def _reports(self, fd: int, data: bytes, task: Task, now: float) -> list[Report]:
        if not data:
            return []
        if fd != self._messages:
            return [Output(task, now, "stdout" if fd == self._stdout.fileno() else "stderr", data)]
        return [Said(task, now, line) for line in self._lines(data)]

    def _lines(self, data: bytes) -> list[bytes]:
        """The lines that end here. Of one that is too long the beginning comes at once, as one, and nothing else."""
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        if self._skipping:
            self._skipping, lines = not lines, lines[1:]
            self._unfinished = b"" if self._skipping else self._unfinished
        if len(self._unfinished) > LINE_LIMIT:
            lines.append(self._unfinished[: LINE_LIMIT + 1])
            self._skipping, self._unfinished = True, b""
        return lines


def _kept(end: IO[bytes], handed: Handed) -> IO[bytes] | None:
    """The pipe with the data in it, without waiting for its reader; None where it does not stay."""
    if len(handed.data) > _PIPE and sys.platform == "linux":
        fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, min(len(handed.data), _PIPE_LIMIT))
    os.set_blocking(end.fileno(), False)
    if os.write(end.fileno(), handed.data) < len(handed.data):
        raise OSError(errno.E2BIG, f"{len(handed.data)} bytes are more than a process can be handed")
    if handed.stays:
        return end
    end.close()
    return None


def _pipe(end: IO[bytes] | None) -> IO[bytes]:
    assert end is not None  # of a process that was started with PIPE
    return end


def _available(fd: int) -> bytes | None:
    """What can be read now: empty when the writers have closed the pipe, None when they have written nothing yet."""
    try:
        return os.read(fd, _READ)
    except BlockingIOError:
        return None


def _has_ended(pid: int) -> bool:
    """Whether the child ended, without reaping it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
