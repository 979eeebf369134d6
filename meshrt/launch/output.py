"""What the workers print: split into lines, prefixed with the rank, kept for the report, copied to log files."""

from __future__ import annotations

import errno
import os
import re
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TextIO

from meshrt.launch.noise import without_noise

LINE_LIMIT = 64 * 1024  # bytes; a longer line is cut into several
TAIL_LINES = 50
_ERASES = re.compile(r"\x1b\[[02]?K")
_REDRAW_S = 1.0  # a progress bar redraws its line with carriage returns; one picture a second is enough in a log


class LineSplitter:
    """Bytes in, whole lines out, carriage returns included.

    A line that is redrawn before it ends is given in pieces, once a second: what was drawn so far.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._redrawn_at = float("-inf")

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """The lines that `data` completes, without their ends; `now` in seconds."""
        *out, rest = (self._rest + data).split(b"\n")
        while len(rest) > LINE_LIMIT:
            out.append(rest[:LINE_LIMIT])
            rest = rest[LINE_LIMIT:]
        if b"\r" in rest and now - self._redrawn_at >= _REDRAW_S:
            drawn, _, rest = rest.rpartition(b"\r")
            if drawn:
                out.append(drawn)
            self._redrawn_at = now
        self._rest = rest
        return out

    def close(self) -> list[bytes]:
        """The last line, if the stream ended within one."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


def picture(line: bytes) -> bytes:
    """What a terminal shows of a line: behind a carriage return its characters are overwritten, one by one."""
    if b"\r" not in line:
        return line
    shown = ""
    for text in line.decode("utf-8", "surrogateescape").rstrip("\r").split("\r"):
        erased = _ERASES.search(text) is not None  # to the end of the line, or all of it
        shown = text if erased else text + shown[len(text) :]
    return shown.encode("utf-8", "surrogateescape")


class Console:
    """The launcher's own stdout and stderr, written line by line so that lines of several ranks never mix.

    `alone` is held while something is written or drawn: threads of servers tell of strangers here.
    """

    def __init__(self, out: BinaryIO | None = None, err: BinaryIO | None = None):
        self._streams = {"stdout": out or _own(sys.stdout), "stderr": err or _own(sys.stderr)}
        self.closed = False
        self.alone = threading.RLock()
        self.before_writing: Callable[[], None] | None = None  # takes away what is drawn below the lines

    def move(self, former: BinaryIO, stream: BinaryIO) -> None:
        """Writes to `stream` from now on what went to `former`."""
        self._streams = {name: stream if one is former else one for name, one in self._streams.items()}

    def write(self, stream: str, prefix: str, lines: list[bytes]) -> None:
        """Writes `lines` behind ``[prefix] ``. When the reader has gone (``| head``), `closed` becomes true; a stream
        that cannot be written for another reason (a full disk) ends there, with a word on the other one."""
        with self.alone:
            self._write(stream, prefix, lines)

    def _write(self, stream: str, prefix: str, lines: list[bytes]) -> None:
        target = self._streams[stream]
        if self.closed or not lines or target is None:
            return
        head = f"[{prefix}] ".encode() if prefix else b""
        if self.before_writing is not None:
            self.before_writing()
        try:
            _write_all(target, b"".join(head + line + b"\n" for line in lines))
        except OSError as e:
            with open(os.devnull, "wb") as nowhere:  # else the interpreter fails again when it flushes at its exit
                os.dup2(nowhere.fileno(), target.fileno())
            self._streams[stream] = None
            gone = isinstance(e, BrokenPipeError)
            why = (
                "who read it has gone. The job ends" if gone else f"it cannot be written: {e.strerror}. The job goes on"
            )
            other = "stderr" if stream == "stdout" else "stdout"
            self.write(other, "", [f"meshrt launch: {stream} ends here, {why}".encode()])
            self.closed |= gone

    def say(self, text: str) -> None:
        """Tells the user something of the launcher's own, on stderr."""
        self.write("stderr", "", [line.encode("utf-8", "replace") for line in text.splitlines()])


def _own(stream: TextIO | None) -> BinaryIO | None:
    """The bytes of one of this process's streams; None where it was started with that one closed."""
    return None if stream is None else stream.buffer


def _write_all(target: BinaryIO, data: bytes) -> None:
    """Writes and flushes, also where somebody who shares the terminal made it one that does not wait."""
    try:
        target.write(data)
    except BlockingIOError as e:
        rest = data[e.characters_written :]
        select.select([], [target.fileno()], [])
        _write_all(target, rest)
        return
    while True:
        try:
            target.flush()
            return
        except BlockingIOError:
            select.select([], [target.fileno()], [])


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
        lines = [picture(line) for line in lines]
        if not self._verbose:
            lines = [own for line in lines if (own := without_noise(line)) is not None]
        self._tail.extend(lines)
        self._console.write(self._name, self._prefix, lines)


class Log:
    """The log file of one process. A full disk ends the log, with a word about it, and not the job."""

    def __init__(self, path: Path, console: Console, append: bool = False):
        self._path, self._console = path, console
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO | None = open(path, "ab" if append else "wb")  # noqa: SIM115 -- open as long as the process runs

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


_FULL = (errno.ENOSPC, errno.EDQUOT)


class Logs:
    """Log files of a job: ``g0000/r0001.log`` (stdout and stderr together), ``g0000/service.log``."""

    def __init__(self, directory: Path | None, console: Console):
        self._directory, self._console = directory, console
        self.append = False  # to logs that a former launcher of the same job has begun

    def open(self, generation: int, name: str) -> Log | None:
        """The log of one process; None when no directory was asked for, or the disk is full, which is said. OSError
        when it cannot be made for another reason."""
        if self._directory is None:
            return None
        path = self._directory / f"g{generation:04d}" / f"{name}.log"
        try:
            return Log(path, self._console, self.append)
        except OSError as e:
            if e.errno not in _FULL:
                raise
            self._console.say(f"meshrt launch: there will be no {path}: {e.strerror}")
            return None
