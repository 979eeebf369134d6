"""Several judges of one program, asked from threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Queue
from types import TracebackType
from typing import Any

from meshrt.autoshard.figures import Figures, Subject, impossible, subject_of
from meshrt.errors import InspectError
from meshrt.inspect.annotations import ArgumentAxes
from meshrt.inspect.guard import Limits

__all__ = ["Judges"]

# Processes at most: each holds the program. Chosen, not measured.
MOST = 8

Process = subprocess.Popen[bytes]


class Judges:
    """A context manager. `ask` may be called before earlier answers are there.

    `name` is what messages call the program, `topology` a name or a file, `seconds` bound the processor time of each.

    Raises InspectError if the program cannot be read. A candidate of which a judge dies is one that cannot be made.
    """

    def __init__(self, name: str, module: str | bytes, topology: str | None, seconds: float, count: int | None = None):
        self.name = name
        self.count = count or max(1, min(MOST, os.cpu_count() or 1))
        self._module = module.encode() if isinstance(module, str) else module
        limits = Limits()
        self._options = {
            "bytes": len(self._module), "topology": topology, "memory_bytes": limits.memory_bytes,
            "seconds": limits.seconds + seconds,
        }  # fmt: skip
        self._idle: Queue[Process] = Queue()
        self._all: list[Process] = []
        self._threads = ThreadPoolExecutor(self.count)
        self._lock = threading.Lock()
        self._is_over = False
        self._subject: Subject | None = None

    def __enter__(self) -> Judges:
        try:
            first = self._start(describe=True)
            for _ in range(self.count - 1):
                self._start()
            self._subject = subject_of(self._read(first))
            for process in self._all[1:]:
                self._read(process)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        for process in self._all:
            self._idle.put(process)
        return self

    @property
    def subject(self) -> Subject:
        """What is known of the program, once the judges have started."""
        assert self._subject is not None, "judges are entered before they are asked"
        return self._subject

    def _start(self, describe: bool = False) -> Process:
        process = subprocess.Popen(
            [sys.executable, "-m", "meshrt.autoshard.judge"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._all.append(process)
        self._write(process, json.dumps({**self._options, "describe": describe}).encode() + b"\n" + self._module)
        return process

    def _write(self, process: Process, data: bytes) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(data)
            process.stdin.flush()
        except BrokenPipeError:
            pass  # reading its answer says how it ended

    def _read(self, process: Process) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise InspectError(f"{self.name}: a process that judged it ended with code {process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise InspectError(f"{self.name}: {reply['error']}")
        return reply

    def ask(
        self, mesh: Mapping[str, int], arguments: Sequence[ArgumentAxes | None], is_first: bool = False
    ) -> Future[Figures]:
        """The figures of a candidate, once they are there: at a first look, or thoroughly. Arguments of which None is
        said stay as they are."""
        line = json.dumps({"mesh": dict(mesh), "arguments": arguments, "is_first": is_first}).encode() + b"\n"
        return self._threads.submit(self._answer, line)

    def _answer(self, line: bytes) -> Figures:
        process = self._idle.get()
        try:
            self._write(process, line)
            return Figures(**self._read(process))
        except InspectError as e:  # it ended: the candidate is none, and the others are still to be judged
            with self._lock:
                if not self._is_over:
                    process = self._start()
                    self._read(process)
            return impossible(str(e))
        finally:
            self._idle.put(process)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:  # no judge is started from here on
            self._is_over = True
        for process in self._all:
            process.kill()
        for process in self._all:
            process.communicate()
        self._threads.shutdown()
