"""One child process of the launcher: its process group, its pipes, its end; and the keeper that outlives us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from meshrt.launch.model import ExitStatus
from meshrt.launch.output import Log, Stream
from meshrt.launch.wire import LINE_LIMIT

_HERE = Path(__file__).parent
SERVICE_SCRIPT = _HERE / "serve.py"
_READ = 64 * 1024
_READS_AT_END = 256  # of what a process left in a pipe; bounded, since a detached child may go on writing


class Keeper:
    """The process that kills our process groups if we are killed ourselves (keeper.py)."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_HERE / "keeper.py")],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def tell(self, word: str, group: int) -> None:
        """``add`` or ``drop`` a process group. A keeper that is gone is no reason to stop the job."""
        try:
            os.write(self._process.stdin.fileno(), f"{word} {group}\n".encode())
        except BrokenPipeError:
            return

    def close(self) -> None:
        """Lets the keeper end; it kills whatever was not dropped."""
        self._process.stdin.close()
        self._process.wait()


class Child:
    """A process in a session of its own, started through bootstrap.py, whose pipes are read without blocking.

    `on_line` gets each line of the message pipe. Signals go to the whole process group. OSError from the
    constructor means that the process was not started.
    """

    def __init__(
        self, target: Sequence[str], make_env: Callable[[int], Mapping[str, str]],
        out: Stream, err: Stream, log: Log | None, on_line: Callable[[bytes], None],
    ):  # fmt: skip
        read_end, write_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, str(_HERE / "bootstrap.py"), str(os.getpid()), *target],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=dict(make_env(write_end)), pass_fds=(write_end,), start_new_session=True,
            )  # fmt: skip
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        self.pid = self._process.pid
        self.err = err
        self._messages = b""
        self._on_line = on_line
        self._readers: dict[int, Callable[[bytes, float], None]] = {
            self._process.stdout.fileno(): out.feed,
            self._process.stderr.fileno(): err.feed,
            read_end: self._take_messages,
        }
        self._streams = (out, err)
        self._log = log
        self._message_fd = read_end
        for fd in self._readers:
            os.set_blocking(fd, False)

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors to wait for."""
        return tuple(self._readers)

    def read(self, fd: int, now: float) -> bool | None:
        """Reads once from `fd`: True with data, None when there is none yet, False when its writers have closed it."""
        try:
            data = os.read(fd, _READ)
        except BlockingIOError:
            return None
        if data:
            self._readers[fd](data, now)
        return bool(data)

    def signal(self, number: int) -> None:
        """Sends `number` to the process group; one that asks to stop also wakes stopped processes."""
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
        return ExitStatus(signal=-code) if code < 0 else ExitStatus(code=code)

    def close(self, now: float) -> None:
        """Reads what is left in the pipes and closes them."""
        for fd in self._readers:
            for _ in range(_READS_AT_END):
                if not self.read(fd, now):
                    break
        for stream in self._streams:
            stream.close()
        if self._log is not None:
            self._log.close()
        self._process.stdout.close()
        self._process.stderr.close()
        os.close(self._message_fd)

    def _take_messages(self, data: bytes, now: float) -> None:
        *lines, self._messages = (self._messages + data).split(b"\n")
        if len(self._messages) > LINE_LIMIT:
            lines, self._messages = [*lines, self._messages], b""
        for line in lines:
            self._on_line(line)


def _has_ended(pid: int) -> bool:
    """Whether the child ended, without reaping it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
