"""An engine without processes: tasks follow scripts, on a clock that jumps from one thing that happens to the next."""

from __future__ import annotations

import heapq
import io
import itertools
import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from meshrt.launch import shell
from meshrt.launch.engines.protocol import Capabilities, Exited, Output, Report, Said, ServiceSpec, Spec, Task
from meshrt.launch.model import ExitStatus
from meshrt.launch.output import Console
from meshrt.launch.settings import Settings

OK = ExitStatus(code=0)
JOINING, MESHED = {"kind": "joining"}, {"kind": "meshed"}

# What a task does: (seconds after its start, what). Bytes are printed on stdout, a dict is sent as a message,
# ("stderr", bytes) and ("message", bytes) are what they say, a function is called, an ExitStatus ends the task. One
# without an end runs until it is stopped.
Deed = tuple[float, bytes | dict[str, object] | tuple[str, bytes] | ExitStatus | Callable[[], object]]


def raised(kind: str, message: str) -> dict[str, object]:
    return {"kind": "raised", "type": kind, "message": message, "traceback": [f"{kind}: {message}"]}


def ready(address: str) -> dict[str, object]:
    return {"kind": "ready", "address": address}


@dataclass
class SimulatedEngine:
    """`scripts` gives a rank's deeds in a generation. Signals end a task after `dying` seconds, unless it is one of
    `stubborn` and the signal is not SIGKILL. `calls` is what the launcher asked for."""

    scripts: Callable[[int, int], Sequence[Deed]] = lambda generation, rank: [(1.0, OK)]
    service: Callable[[int], Sequence[Deed]] = lambda generation: [(0.1, ready(f"h:{generation}"))]
    capabilities: Capabilities = field(default_factory=Capabilities)
    stubborn: frozenset[int] = frozenset()
    dying: float = 0.01
    name: str = "simulated"
    now: float = 0.0
    calls: list[tuple] = field(default_factory=list)
    specs: dict[Task, Spec] = field(default_factory=dict)
    running: set[Task] = field(default_factory=set)
    closed: bool = False

    def __post_init__(self) -> None:
        self._agenda: list[tuple[float, int, Task, object]] = []
        self._order = itertools.count()

    def clock(self) -> float:
        return self.now

    # --- the protocol.

    def start(self, specs: Sequence[Spec]) -> None:
        self.calls.append(("start", *(str(spec.task) for spec in specs)))
        for spec in specs:
            task = spec.task
            assert task not in self.specs, "a task is started once"
            self.specs[task] = spec
            self.running.add(task)
            deeds = self.service(task.generation) if task.rank is None else self.scripts(task.generation, task.rank)
            assert isinstance(spec, ServiceSpec) == (task.rank is None)
            for delay, deed in deeds:
                self._plan(delay, task, deed)

    def signal(self, tasks: Sequence[Task], number: int) -> None:
        can = self.capabilities.signals
        assert can is None or number in can or number == signal.SIGKILL
        assert set(tasks) <= self.running, "signals go to tasks that run"
        self.calls.append(("signal", number, *map(str, tasks)))
        for task in tasks:
            if number == signal.SIGKILL or task.rank not in self.stubborn:
                self._plan(self.dying, task, ExitStatus(signal=number))

    def wait(self, seconds: float | None, wake: int) -> list[Report]:
        self._forget_the_dead()
        if not self._agenda or (seconds is not None and self._agenda[0][0] > self.now + seconds):
            assert seconds is not None, f"the launcher waits for ever: {self.running}"
            self.now += seconds
            return []
        at, _, task, deed = heapq.heappop(self._agenda)
        self.now = max(self.now, at)  # the launcher may have been at work meanwhile
        match deed:
            case bytes():
                return [Output(task, self.now, "stdout", deed)]
            case dict():
                return [Said(task, self.now, json.dumps(deed).encode())]
            case ("stderr", bytes() as data):
                return [Output(task, self.now, "stderr", data)]
            case ("message", bytes() as line):
                return [Said(task, self.now, line)]
            case ExitStatus():
                self.running.remove(task)
                return [Exited(task, self.now, deed)]
        deed()
        return []

    def close(self) -> None:
        self.closed = True
        self.running.clear()

    # --- inside.

    def _plan(self, delay: float, task: Task, deed: object) -> None:
        heapq.heappush(self._agenda, (self.now + delay, next(self._order), task, deed))

    def _forget_the_dead(self) -> None:
        while self._agenda and self._agenda[0][2] not in self.running:
            heapq.heappop(self._agenda)


@dataclass
class Outcome:
    code: int
    out: list[str]
    err: list[str]


def run(engine: SimulatedEngine, **settings: object) -> Outcome:
    """Runs a job over the engine, on its clock."""
    out, err = io.BytesIO(), io.BytesIO()
    job = shell.Job(Settings(**settings), ("script", "train.py"), ("--steps", "3"), environ={})
    code = shell.run(job, Console(out, err), engine, engine.clock)
    return Outcome(code, out.getvalue().decode().splitlines(), err.getvalue().decode().splitlines())
