"""What the workers print: split into lines, prefixed with the rank, kept for the report, copied to log files."""

from __future__ import annotations

import os
import sys
from collections import deque
from pathlib import Path
from typing import BinaryIO

from meshrt.launch.noise import without_noise

LINE_LIMIT = 64 * 1024  # bytes; a longer line is cut into several
TAIL_LINES = 50
_REDRAW_S = 1.0  # a progress bar redraws its line with carriage returns; one picture a second is enough in a log


class LineSplitter:
    """Bytes in, whole lines out. Of a line redrawn with carriage returns it gives the newest picture, once a second."""

    def __init__(self) -> None:
        self._rest = b""
        self._redrawn_at = float("-inf")

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """The lines that `data` completes, without their ends; `now` in seconds."""
        *lines, rest = (self._rest + data).split(b"\n")
        out = [_newest_picture(line) for line in lines]
        while len(rest) > LINE_LIMIT:
            out.append(rest[:LINE_LIMIT])
            rest = rest[LINE_LIMIT:]
        if b"\r" in rest and now - self._redrawn_at >= _REDRAW_S:
            pictures, _, rest = rest.rpartition(b"\r")
            if picture := _newest_picture(pictures):
                out.append(picture)
            self._redrawn_at = now
        self._rest = rest
        return out

    def close(self) -> list[bytes]:
        """The last line, if the stream ended within one."""
        rest, self._rest = _newest_picture(self._rest), b""
        return [rest] if rest else []


def _newest_picture(line: bytes) -> bytes:
    return line.rstrip(b"\r").rpartition(b"\r")[2]


class Console:
    """The launcher's own stdout and stderr, written line by line so that lines of several ranks never mix."""

    def __init__(self, out: BinaryIO | None = None, err: BinaryIO | None = None):
        self._streams = {"stdout": out or sys.stdout.buffer, "stderr": err or sys.stderr.buffer}
        self.closed = False

    def write(self, stream: str, prefix: str, lines: list[bytes]) -> None:
        """Writes `lines` behind ``[prefix] ``. When the reader has gone (``| head``), `closed` becomes true."""
        if self.closed or not lines:
            return
        head = f"[{prefix}] ".encode() if prefix else b""
        target = self._streams[stream]
        try:
            target.write(b"".join(head + line + b"\n" for line in lines))
            target.flush()
        except BrokenPipeError:
            self.closed = True
            with open(os.devnull, "wb") as nowhere:  # else the interpreter fails again when it flushes at its exit
                os.dup2(nowhere.fileno(), target.fileno())

    def say(self, text: str) -> None:
        """Tells the user something of the launcher's own, on stderr."""
        self.write("stderr", "", [line.encode("utf-8", "replace") for line in text.splitlines()])


class Stream:
    """One output stream of one process: to the console, to its log file, and the last lines kept in memory.

    The log gets every byte; the other two, unless `verbose`, only what is not noise of the runtime.
    """

    def __init__(self, name: str, prefix: str, console: Console, log: Log | None, verbose: bool = False):
        self._name, self._prefix, self._console, self._log = name, prefix, console, log
        self._verbose = verbose
        self._splitter = LineSplitter()
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines, oldest first."""
        return tuple(line.decode("utf-8", "replace") for line in self._tail)

    def feed(self, data: bytes, now: float) -> None:
        """Takes what was read at `now` (seconds)."""
        self._emit(self._splitter.feed(data, now))

    def close(self) -> None:
        """The stream ended."""
        self._emit(self._splitter.close())

    def _emit(self, lines: list[bytes]) -> None:
        if self._log is not None and lines:
            self._log.write(lines)
        if not self._verbose:
            lines = [own for line in lines if (own := without_noise(line)) is not None]
        self._tail.extend(lines)
        self._console.write(self._name, self._prefix, lines)


class Log:
    """The log file of one process. A full disk ends the log, with a word about it, and not the job."""

    def __init__(self, path: Path, console: Console):
        self._path, self._console = path, console
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO | None = open(path, "wb")  # noqa: SIM115 -- open as long as the process runs

    def write(self, lines: list[bytes]) -> None:
        """Appends `lines`."""
        if self._file is None:
            return
        try:
            self._file.write(b"\n".join(lines) + b"\n")
            self._file.flush()
        except OSError as e:
            self._console.say(f"meshrt launch: {self._path} ends here, it cannot be written: {e.strerror}")
            self.close()

    def close(self) -> None:
        """Closes the file; what is written later is dropped."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                return  # what it could not write was announced by `write`


class Logs:
    """Log files of a job: ``g0000/r0001.log`` (stdout and stderr together), ``g0000/service.log``."""

    def __init__(self, directory: Path | None, console: Console):
        self._directory, self._console = directory, console

    def open(self, generation: int, name: str) -> Log | None:
        """The log of one process; None when no directory was asked for. OSError when it cannot be made."""
        if self._directory is None:
            return None
        return Log(self._directory / f"g{generation:04d}" / f"{name}.log", self._console)
