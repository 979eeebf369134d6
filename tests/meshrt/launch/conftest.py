"""Runs the launcher as a user does, and looks for processes it may have left."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

# Of a process that does not end: no figure of how long it may take, since a loaded machine starts one in a minute.
HANGS_S = 300

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

    def start(self, *arguments: object, body: str | None = None, within: Sequence[str] = ()) -> subprocess.Popen:
        env = self.environment()
        target = [str(self.script(body))] if body is not None else []
        return subprocess.Popen(
            [*within, sys.executable, "-m", "meshrt", "launch", *map(str, arguments), *target],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=self.folder,
        )  # fmt: skip

    def environment(self, **more: str) -> dict[str, str]:
        """A user's, without what the tests set for themselves: jobs that are compared compute with the same flags."""
        name, value = self.mark.split("=")
        own = ("MESHRT_NUM_CPU_DEVICES", "XLA_FLAGS", "TF_CPP_MIN_LOG_LEVEL")
        return {**{k: v for k, v in os.environ.items() if k not in own}, name: value, **more}

    def finish(self, process: subprocess.Popen, since: float, timeout: float = HANGS_S) -> Result:
        out, err = process.communicate(timeout=timeout)
        return Result(process.returncode, out, err, time.monotonic() - since)

    def __call__(self, *arguments: object, body: str | None = None, timeout: float = HANGS_S) -> Result:
        since = time.monotonic()
        return self.finish(self.start(*arguments, body=body), since, timeout)

    def left_behind(self, within_s: float = 15.0) -> list[str]:
        """Command lines of this job's processes that are still there after at most `within_s`."""
        deadline = time.monotonic() + within_s
        while (found := self._alive()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def _alive(self) -> list[str]:
        return list(self.processes().values())

    def processes(self) -> dict[int, str]:
        """This job's processes that are there, with their command lines."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
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


# --- jobs on several hosts.

SECRET = "a secret of sixteen and more"


class Hosts:
    """A coordinator and its agents."""

    def __init__(self, launch: Launcher, monkeypatch: pytest.MonkeyPatch):
        self._launch = launch
        monkeypatch.setenv("MESHRT_JOB_SECRET", SECRET)
        self.agents: dict[str, subprocess.Popen] = {}
        self.coordinator: subprocess.Popen | None = None
        self.address = ""
        self.said: list[str] = []

    def start(self, *arguments: object, body: str | None = None, within: Sequence[str] = ()) -> None:
        self.since = time.monotonic()
        self.coordinator = self._launch.start("coordinator", *arguments, body=body, within=within)
        self.until("the coordinator listens")
        self.address = re.search(r"--coordinator (\S+)", self.said[-1])[1]

    def until(self, text: str) -> str:
        """Reads what the coordinator says on stderr until it says `text`."""
        for line in self.coordinator.stderr:
            self.said.append(line)
            if text in line:
                return line
        raise AssertionError(f"the coordinator ended without {text!r}: {''.join(self.said)}")

    def agent(self, *names: str, within: Sequence[str] = (), **env: str) -> None:
        for name in names:
            self.agents[name] = self.command("agent", "--name", name, within=within, **env)

    def command(self, word: str, *arguments: object, within: Sequence[str] = (), **env: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "meshrt", "launch", word, "--coordinator", self.address, *map(str, arguments)]
        return subprocess.Popen(
            [*within, *command], env=self._launch.environment(**env), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, cwd=self._launch.folder,
        )  # fmt: skip

    def ask(self, word: str, *arguments: object, **env: str) -> Result:
        done = self.command(word, *arguments, **env)
        out, err = done.communicate(timeout=HANGS_S)
        return Result(done.returncode, out, err, 0.0)

    def finish(self) -> Result:
        found = self._launch.finish(self.coordinator, self.since)
        return Result(found.code, found.out, "".join(self.said) + found.err, found.seconds)

    def ends(self, name: str) -> Result:
        out, err = self.agents[name].communicate(timeout=HANGS_S)
        return Result(self.agents[name].returncode, out, err, 0.0)


@pytest.fixture
def hosts(launch, monkeypatch):
    made = Hosts(launch, monkeypatch)
    yield made
    for process in (made.coordinator, *made.agents.values()):
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()


# --- hosts that are network namespaces.

_numbers = itertools.count()


class Network:
    """Namespaces a and b with a coordinator's c, on one bridge in a namespace of its own."""

    def __init__(self) -> None:
        self.mark = f"mr{os.getpid() % 10000}x{next(_numbers)}"
        self.subnet = f"10.213.{os.getpid() % 250}"
        self.address = {name: f"{self.subnet}.{i + 1}" for i, name in enumerate("cab")}

    def build(self) -> None:
        self._ip("netns", "add", self.hub)
        self._ip("-n", self.hub, "link", "add", "bridge0", "type", "bridge")
        self._ip("-n", self.hub, "link", "set", "bridge0", "up")
        for name, address in self.address.items():
            self._ip("netns", "add", self.space(name))
            self._ip("-n", self.hub, "link", "add", f"v{name}", "type", "veth", "peer", "name", "eth",
                     "netns", self.space(name))  # fmt: skip
            self._ip("-n", self.hub, "link", "set", f"v{name}", "master", "bridge0", "up")
            for arguments in (("addr", "add", f"{address}/24", "dev", "eth"), ("link", "set", "eth", "up")):
                self._ip("-n", self.space(name), *arguments)
            self._ip("-n", self.space(name), "link", "set", "lo", "up")

    @property
    def hub(self) -> str:
        return f"{self.mark}hub"

    def space(self, name: str) -> str:
        return f"{self.mark}{name}"

    def cut(self, name: str, down: bool = True) -> None:
        self._ip("-n", self.hub, "link", "set", f"v{name}", "down" if down else "up")

    def slow(self, name: str) -> None:
        """From now on little goes to and from a host, and what is more is dropped."""
        shape = ("root", "tbf", "rate", "256kbit", "burst", "2kb", "limit", "6kb")
        for space, device in ((self.hub, f"v{name}"), (self.space(name), "eth")):
            command = ["ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", device, *shape]
            if shutil.which("tc") is None or subprocess.run(command, capture_output=True, check=False).returncode:
                pytest.skip("needs tc")

    def dropped(self, name: str) -> int:
        """Packets that a slow host has sent in vain."""
        command = ["ip", "netns", "exec", self.space(name), "tc", "-s", "qdisc", "show", "dev", "eth"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return int(re.search(r"dropped (\d+)", shown)[1])

    def close(self) -> None:
        for space in (*map(self.space, self.address), self.hub):
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)

    def _ip(self, *arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def network():
    if sys.platform != "linux" or shutil.which("ip") is None:
        pytest.skip("needs ip netns")
    made = Network()
    try:
        try:
            made.build()
        except subprocess.CalledProcessError as e:
            pytest.skip(f"needs network namespaces: {e.stderr.decode().strip()}")
        yield made
    finally:
        made.close()


@pytest.fixture
def spread(network, launch: Launcher):
    """Starts commands of `meshrt launch` in namespaces."""
    running = []

    def start(space: str, *arguments: object, **streams: object) -> subprocess.Popen:
        command = ["ip", "netns", "exec", network.space(space), sys.executable, "-m", "meshrt", "launch"]
        env = launch.environment(MESHRT_JOB_SECRET=SECRET)
        process = subprocess.Popen(
            [*command, *map(str, arguments)], text=True, env=env, cwd=launch.folder,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
        )  # fmt: skip
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
            process.communicate()
