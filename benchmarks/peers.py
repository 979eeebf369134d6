"""The two processes that are compared, and the pairs of samples taken from them."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["Pairs", "Peer", "PeerError", "Peers", "alternate", "import_seconds", "start_seconds"]

ROOT = Path(__file__).resolve().parent.parent


class PeerError(RuntimeError):
    """A task failed in a peer's process; the message ends with the peer's own traceback."""


def environment(devices: int) -> dict[str, str]:
    """That of a process that is measured: as many CPU devices, and no settings of whoever measures."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MESHRT_", "JAX_"))}
    env["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    env["MESHRT_PLATFORMS"] = env["JAX_PLATFORMS"] = "cpu"
    env["TF_CPP_MIN_LOG_LEVEL"] = "2"
    env["PYTHONHASHSEED"] = "0"
    # Installed packages have their bytecode, so a checkout may write its own.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


def start_seconds(package: str, model: dict[str, Any], mesh: dict[str, int], directory: str | None = None) -> float:
    """What `benchmarks.start` measures, in a new process."""
    return _started(package, json.dumps(model), json.dumps(mesh), *([directory] if directory is not None else []))


def import_seconds(package: str) -> float:
    """Seconds to import the package, in a new process."""
    return _started(package)


def _started(package: str, *given: str) -> float:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.start", package, *given], cwd=ROOT, env=environment(8), text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise PeerError(f"the {package} process ended with code {done.returncode}:\n{done.stderr}")
    return float(done.stdout.split()[-1])


class Peer:
    """A process that has imported one package, `meshrt` or `jax`, and runs tasks of `benchmarks.tasks` on request."""

    def __init__(self, package: str, devices: int = 8):
        env = environment(devices)
        self.package = package
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", package], cwd=ROOT, env=env, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __call__(self, task: str, **arguments: Any) -> Any:
        """The result of a task; PeerError if it raised or the process ended."""
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"task": task, "arguments": arguments}) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise PeerError(f"the {self.package} process ended with code {self.process.wait()} during {task}")
        reply = json.loads(answer)
        if "error" in reply:
            raise PeerError(f"{self.package}: {task} failed:\n{reply['error']}")
        return reply["value"]

    def close(self) -> None:
        """Ends the process."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # a task that a dead process never read may still be buffered
                self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Peers:
    """meshrt and JAX, as a context manager."""

    def __init__(self, devices: int = 8):
        self.ours, self.theirs = Peer("meshrt", devices), Peer("jax", devices)

    def __enter__(self) -> Peers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ours.close()
        self.theirs.close()


@dataclass(frozen=True, slots=True)
class Pairs:
    """Samples of both sides in the order they were taken; each pair was taken back to back.

    `first` is the first discarded pair: with cold caches, as a user meets it once per process.
    """

    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    first: tuple[float, float] | None = None

    @property
    def ratios(self) -> list[float]:
        return sorted(a / b for a, b in zip(self.ours, self.theirs))

    @property
    def ratio(self) -> float:
        """The median of the pairs' ratios."""
        return statistics.median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """The lower and upper quartile of the pairs' ratios; their extremes for fewer than four pairs."""
        if len(self.ours) < 4:
            return self.ratios[0], self.ratios[-1]
        low, _, high = statistics.quantiles(self.ratios, n=4, method="inclusive")
        return low, high

    @property
    def medians(self) -> tuple[float, float]:
        return statistics.median(self.ours), statistics.median(self.theirs)


def alternate(ours: Callable[[], float], theirs: Callable[[], float], pairs: int, warm: int = 1) -> Pairs:
    """`pairs` pairs of samples after `warm` discarded ones; which side goes first alternates."""
    discarded = [(ours(), theirs()) for _ in range(warm)]
    a, b = [], []
    for i in range(pairs):
        if i % 2:
            b.append(theirs())
            a.append(ours())
        else:
            a.append(ours())
            b.append(theirs())
    return Pairs(tuple(a), tuple(b), discarded[0] if discarded else None)
