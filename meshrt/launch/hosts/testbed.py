"""`meshrt launch --nodes N --engine local`: a job of several hosts whose hosts are all this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from meshrt.launch import open_files
from meshrt.launch.environment import SECRET
from meshrt.launch.hosts.security import SECRET_FILE
from meshrt.launch.model import ExitStatus

__all__ = ["agents_here"]

_GRACE_S = 8.0  # agents end by themselves when the job is over
_BOOTSTRAP = Path(__file__).parents[1] / "bootstrap.py"


@contextlib.contextmanager
def agents_here(
    count: int, secret: str, environ: Mapping[str, str], address: str, ended: Callable[[str, str], None]
) -> Iterator[None]:
    """Runs `count` agents, named ``local0`` and so on, that die with this process. `ended` is told of each end."""
    env = {k: v for k, v in environ.items() if k != SECRET_FILE} | {SECRET: secret}
    agents: list[subprocess.Popen[bytes]] = []
    watchers: list[threading.Thread] = []
    try:
        for i in range(count):
            agents.append(_agent(f"local{i}", address, env))
            watchers.append(threading.Thread(target=_watch, args=(f"local{i}", agents[-1], ended), daemon=True))
            watchers[-1].start()
        yield
    except BaseException:  # there is no job, and nobody tells them
        for agent in agents:
            agent.send_signal(signal.SIGTERM)
        raise
    finally:
        _end(agents, watchers)


def _agent(name: str, address: str, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, str(_BOOTSTRAP), str(os.getpid()), "module", "meshrt", "launch", "agent",
        "--coordinator", address, "--name", name, "--quiet",
    ]  # fmt: skip
    # A terminal's Ctrl-C is the coordinator's, which then stops all processes in order.
    process = subprocess.Popen(
        command, env=dict(env), stdin=subprocess.DEVNULL, stderr=_stderr(), start_new_session=True
    )
    open_files.lower(process.pid)
    return process


def _stderr() -> int | None:
    """Python's own, since this process has another one at its number (library_words.py)."""
    try:
        return None if sys.stderr is None else sys.stderr.fileno()
    except (OSError, ValueError):
        return None


def _watch(name: str, agent: subprocess.Popen[bytes], ended: Callable[[str, str], None]) -> None:
    code = agent.wait()
    status = ExitStatus(signal=-code) if code < 0 else ExitStatus(code=code)
    ended(name, f"its agent ended: {status.describe()}")


def _end(agents: Sequence[subprocess.Popen[bytes]], watchers: Sequence[threading.Thread]) -> None:
    deadline = time.monotonic() + _GRACE_S
    for watcher in watchers:
        watcher.join(max(0.0, deadline - time.monotonic()))
    for agent in agents:
        if agent.poll() is None:
            agent.send_signal(signal.SIGKILL)
            agent.wait()
