"""The fronts of a plan as they run: their output by rank, their ends, and how they are stopped."""

from __future__ import annotations

import re
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from meshrt.launch.bootstrap import FAILED
from meshrt.launch.engines.local import LocalEngine
from meshrt.launch.engines.protocol import Exited, Output, Task
from meshrt.launch.model import ExitStatus
from meshrt.launch.noise import without_noise
from meshrt.launch.output import TAIL_LINES, Console, LineSplitter, Log, Logs, picture
from meshrt.launch.placing.plans import Front, FrontSpec, Plan

__all__ = ["Ended", "Fronts", "Told"]

_FAILED = FAILED.encode()


@dataclass(frozen=True, slots=True)
class Ended:
    """A front ended. `who` failed with `status`: the front, or the one among its processes that it blames."""

    front: Front
    who: str
    status: ExitStatus


@dataclass(frozen=True, slots=True)
class Told:
    """What a rank said of its own failure, when, and what it printed on stderr from then on."""

    rank: str
    at: float
    words: str
    lines: deque[bytes] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))


class Fronts:
    """All fronts of a plan.

    Args:
      plan: what to start.
      environ: the variables that fronts have beside their own.
      console: where their lines go.
      log_dir: where each rank's output is written, as ``g0000/rRANK.log``; None for nowhere.
      verbose: whether noise of the runtime is shown too.
      clock: seconds.
    """

    def __init__(
        self, plan: Plan, environ: Mapping[str, str], console: Console, log_dir: Path | None = None,
        verbose: bool = False, clock: Callable[[], float] = time.monotonic,
    ):  # fmt: skip
        self._engine = LocalEngine(environ, clock)
        self._specs = [FrontSpec(i, front) for i, front in enumerate(plan.fronts)]
        logs = Logs(log_dir, console)
        self._told: dict[str, Told] = {}
        self._running = {spec.task: _Printed(spec.front, console, logs, verbose, self._told) for spec in self._specs}

    @property
    def running(self) -> tuple[Task, ...]:
        """Those that have not ended."""
        return tuple(self._running)

    @property
    def told(self) -> list[Told]:
        """What ranks said of their own failures, in order of time."""
        return sorted(self._told.values(), key=lambda told: told.at)

    def start(self) -> None:
        """Starts all."""
        self._engine.start(self._specs)

    def wait(self, seconds: float | None, wake: int) -> list[Ended]:
        """Shows what was printed; who ended. Waits as `Engine.wait` does."""
        ended = []
        for found in self._engine.wait(seconds, wake):
            match found:
                case Output(task=task):
                    self._running[task].feed(found)
                case Exited(task=task, status=status):
                    printed = self._running.pop(task)
                    printed.close()
                    who, status = printed.blamed or (printed.title, status)
                    ended.append(Ended(printed.front, who, status))
        return ended

    def signal(self, number: int) -> None:
        """Asks all that run to stop, or kills them."""
        self._engine.signal(self.running, number)

    def close(self) -> None:
        """Ends what is left."""
        self._engine.signal(self.running, signal.SIGTERM)  # those that are tied by their stdin alone
        self._engine.close()


class _Printed:
    """What a front prints: lines, each of the rank that its label names."""

    def __init__(self, front: Front, console: Console, logs: Logs, verbose: bool, told: dict[str, Told]):
        self.front, self._console, self._logs, self._verbose, self._told = front, console, logs, verbose, told
        self._at = 0.0
        self._label = re.compile(front.label.pattern.encode()) if front.label is not None else None
        self._blame = re.compile(front.blame.pattern.encode()) if front.blame is not None else None
        self._splitters = {"stdout": LineSplitter(), "stderr": LineSplitter()}
        self._files: dict[str, Log | None] = {}
        self.blamed: tuple[str, ExitStatus] | None = None

    @property
    def title(self) -> str:
        """What to call it: its rank if it stands for one."""
        return f"rank {self.front.name}" if self.front.name.isdigit() else self.front.name

    def feed(self, output: Output) -> None:
        self._at = output.at
        for line in self._splitters[output.stream].feed(output.data, output.at):
            self._show(output.stream, line)

    def close(self) -> None:
        """The front ended."""
        for stream, splitter in self._splitters.items():
            for line in splitter.close():
                self._show(stream, line)
        for log in self._files.values():
            if log is not None:
                log.close()

    def _show(self, stream: str, line: bytes) -> None:
        prefix = "" if self.front.detached else self.front.name  # what it was submitted as is for other programs
        if self._label is not None:
            found = self._label.match(line)
            prefix, line = (found[1].decode(), line[found.end() :]) if found else ("", line)
        if self._blame is not None and self.blamed is None and (named := self._blame.match(line)):
            self.blamed = named[1].decode(), ExitStatus(code=int(named[2] or 1))
        log = self._log(prefix or self.front.name)
        if log is not None:
            log.write([line])
        shown: bytes | None = picture(line)
        if not self._verbose and shown is not None:
            shown = without_noise(shown)
        if stream == "stderr" and shown is not None and prefix.isdigit():
            self._note(prefix, shown)
        if shown is not None:
            self._console.write(stream, prefix, [shown])

    def _note(self, rank: str, line: bytes) -> None:
        if line.startswith(_FAILED):
            self._told[rank] = Told(rank, self._at, line[len(_FAILED) :].decode("utf-8", "replace"))
        elif rank in self._told:
            self._told[rank].lines.append(line)

    def _log(self, name: str) -> Log | None:
        if name not in self._files:
            self._files[name] = self._logs.open(0, f"r{int(name):04d}" if name.isdigit() else name)
        return self._files[name]
