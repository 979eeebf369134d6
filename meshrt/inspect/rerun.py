"""`meshrt inspect` run in a process of its own, for what shows several reports: those of two programs, or of one that
changes: two programs may have modules of one name, and a module that changed is imported anew only in a new process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from meshrt.errors import InspectError
from meshrt.inspect.model import Report

__all__ = ["Run", "report_apart", "running"]


@dataclass(frozen=True, slots=True)
class Run:
    """A process; what it prints goes to files, so that nobody need read along."""

    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]

    def is_done(self) -> bool:
        return self.process.poll() is not None

    def wait(self) -> None:
        self.process.wait()

    def said(self) -> str:
        """What it printed besides the report, once it is done."""
        self.err.seek(0)
        return self.err.read().decode("utf-8", "replace").strip()

    def report(self) -> Report:
        """The report, once it is done. InspectError with what it said if there is none."""
        if self.process.returncode != 0:
            raise InspectError(self.said() or f"the inspection ended with exit code {self.process.returncode}")
        self.out.seek(0)
        return Report.from_json(json.load(self.out))


@contextmanager
def running(arguments: Sequence[str]) -> Iterator[Run]:
    """A run of `meshrt inspect` that makes a report with its program; it does not outlive the block."""
    command = [sys.executable, "-m", "meshrt", "inspect", "--json", "--program", *arguments]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        # A group of its own: a foreign file is read in a process of the run's, which must end with it.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, process_group=0)
        run = Run(process, out, err)
        try:
            yield run
        finally:
            if not run.is_done():
                os.killpg(run.process.pid, signal.SIGKILL)
                run.process.wait()


def report_apart(arguments: Sequence[str]) -> Report:
    """The report, with its program, of what the arguments of `meshrt inspect` say. InspectError says what is wrong."""
    with running(arguments) as run:
        run.wait()
        try:
            return run.report()
        except InspectError as e:
            *_, last = str(e).splitlines()
            raise InspectError(last.removeprefix("meshrt: error: ")) from None
