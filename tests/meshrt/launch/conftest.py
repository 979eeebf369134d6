"""Runs the launcher as a user does, and looks for processes it may have left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

PREAMBLE = """\
import os, signal, subprocess, sys, time
rank, generation = int(os.environ["MESHRT_PROCESS_ID"]), int(os.environ["MESHRT_GENERATION"])
"""


@dataclass
class Result:
    code: int
    out: str
    err: str
    seconds: float

    @property
    def report(self) -> str:
        """The launcher's own lines."""
        lines = self.err.splitlines()
        return "\n".join(lines[next((i for i, x in enumerate(lines) if x.startswith("meshrt launch")), len(lines)) :])


class Launcher:
    """Writes scripts and runs them; each job's processes carry a mark in their environment to find them by."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.mark = f"MESHRT_TEST_MARK={os.getpid()}-{folder.name}-{time.monotonic_ns()}"

    def script(self, body: str, name: str = "script.py") -> Path:
        path = self.folder / name
        path.write_text(PREAMBLE + body)
        return path

    def start(self, *arguments: object, body: str | None = None) -> subprocess.Popen:
        name, value = self.mark.split("=")
        env = {**os.environ, name: value}
        for variable in ("MESHRT_NUM_CPU_DEVICES", "XLA_FLAGS", "TF_CPP_MIN_LOG_LEVEL"):
            env.pop(variable, None)
        target = [str(self.script(body))] if body is not None else []
        return subprocess.Popen(
            [sys.executable, "-m", "meshrt", "launch", *map(str, arguments), *target],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=self.folder,
        )  # fmt: skip

    def finish(self, process: subprocess.Popen, since: float, timeout: float = 60) -> Result:
        out, err = process.communicate(timeout=timeout)
        return Result(process.returncode, out, err, time.monotonic() - since)

    def __call__(self, *arguments: object, body: str | None = None, timeout: float = 60) -> Result:
        since = time.monotonic()
        return self.finish(self.start(*arguments, body=body), since, timeout)

    def left_behind(self, within_s: float = 3.0) -> list[str]:
        """Command lines of this job's processes that are still there after at most `within_s`."""
        deadline = time.monotonic() + within_s
        while (found := self._alive()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def _alive(self) -> list[str]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found


@pytest.fixture
def launch(tmp_path):
    launcher = Launcher(tmp_path)
    yield launcher
    assert launcher.left_behind() == []


def wait_for(process: subprocess.Popen, text: str) -> None:
    """Reads the launcher's stdout until a line holds `text`."""
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"the launcher ended without {text!r}: {process.stderr.read()}")
