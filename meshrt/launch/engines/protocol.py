"""What the launcher needs of an engine: whatever places the processes of a job and tells what becomes of them.

The launcher's shell hands an engine *specs* (what to start, as plain values that could be sent to another host) and
gets *reports* (what was printed, said and ended). An engine decides where a process runs and how; when to start,
signal and give up is the state machine's business. A job of two ranks, seen from the shell:

    engine.start([ServiceSpec(generation=0, num_processes=2)])
    engine.wait(60.0, wake)    [Said(service, 0.2, b'{"kind": "ready", "address": "10.0.0.1:4711"}')]
    engine.start([WorkerSpec(Place(0, 2, 0, 0, "10.0.0.1:4711"), ...), WorkerSpec(Place(1, 2, ...), ...)])
    engine.wait(None, wake)    [Output(rank 1, 0.9, "stderr", b"Traceback ..."), Exited(rank 1, 0.9, exit code 1)]
    engine.signal([rank 0], SIGTERM)
    engine.wait(5.0, wake)     [Exited(rank 0, 1.0, killed by SIGTERM)]
    engine.signal([service], SIGKILL)
    engine.wait(10.0, wake)    [Exited(service, 1.1, killed by SIGKILL)]
    engine.close()
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from meshrt.launch.environment import Place, service_environment, worker_environment
from meshrt.launch.membership.patience import SILENT_S, STALL_S
from meshrt.launch.model import ExitStatus

__all__ = [
    "SERVICE_SCRIPT",
    "Capabilities",
    "Engine",
    "Exited",
    "Handed",
    "HostDown",
    "HostUp",
    "KnowsSilences",
    "Output",
    "Report",
    "ResizeAsked",
    "Said",
    "ServiceSpec",
    "Spec",
    "Startable",
    "StopAsked",
    "Task",
    "WorkerSpec",
]

SERVICE_SCRIPT = Path(__file__).parents[1] / "serve.py"


# --- what to start.


@dataclass(frozen=True, slots=True)
class Task:
    """The name of one process of a job: a rank of a generation, or, with `rank` None, its coordination service."""

    generation: int
    rank: int | None = None

    def __str__(self) -> str:
        return "service" if self.rank is None else str(self.rank)


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """The coordination service of a generation. An engine whose ranks run on other hosts sets `bind` to an address of
    the service's host that they reach; port 0 is any free port. Who joins must have `secret`; a rank that says nothing
    for `silent_s`, or keeps others waiting for `stall_s`, is lost. `host` is where it
    runs, in a job of several hosts."""

    generation: int
    num_processes: int
    bind: str = "127.0.0.1:0"
    secret: str = field(default="", repr=False)
    host: str | None = None
    silent_s: float = SILENT_S
    stall_s: float = STALL_S

    @property
    def task(self) -> Task:
        return Task(self.generation)

    @property
    def target(self) -> tuple[str, ...]:
        """The arguments of bootstrap.py behind the launcher's process id."""
        return (
            "script", str(SERVICE_SCRIPT), "--num-processes", str(self.num_processes), "--bind", self.bind,
            "--silent", str(self.silent_s), "--stall", str(self.stall_s),
        )  # fmt: skip

    @property
    def stdin(self) -> None:
        """Nothing to read."""

    def environment(self, base: Mapping[str, str], channel: int | None) -> dict[str, str]:
        """As `WorkerSpec.environment`."""
        return service_environment(base, channel, self.secret)


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One rank. `target` are the arguments of bootstrap.py: ("script", path, ...) or ("module", name, ...). `host` is
    where it runs, in a job of several hosts."""

    place: Place
    target: tuple[str, ...]
    devices_per_process: int | None
    variables: Mapping[str, str]
    host: str | None = None

    @property
    def task(self) -> Task:
        return Task(self.place.generation, self.place.rank)

    @property
    def stdin(self) -> None:
        """Nothing to read."""

    def environment(self, base: Mapping[str, str], channel: int | None) -> dict[str, str]:
        """The variables of the process. `base` are those it finds on its host, `channel` the descriptor of the pipe on
        which it speaks to the engine, None where there is no such pipe."""
        return worker_environment(base, self.place, self.devices_per_process, self.variables, channel)


Spec = ServiceSpec | WorkerSpec


@dataclass(frozen=True, slots=True)
class Handed:
    """What a process reads on its stdin. Where it `stays` open, its end asks the process to stop, in place of signals,
    and comes too when the launcher is killed."""

    data: bytes
    stays: bool = True


class Startable(Protocol):
    """What a process of this machine is started from: a spec, or another value that says the same."""

    @property
    def task(self) -> Task:
        """Its name."""
        ...

    @property
    def target(self) -> tuple[str, ...]:
        """The arguments of bootstrap.py behind the launcher's process id."""
        ...

    @property
    def stdin(self) -> Handed | None:
        """What the process reads; None: nothing."""
        ...

    def environment(self, base: Mapping[str, str], channel: int | None) -> dict[str, str]:
        """Its variables, as `WorkerSpec.environment`."""
        ...


# --- what happened. `at` is on the launcher's clock (seconds); an engine on other hosts translates.


@dataclass(frozen=True, slots=True)
class Output:
    """A task printed `data`, which may end within a line."""

    task: Task
    at: float
    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True)
class Said:
    """A task sent a message: one line as wire.py reads it, without its end."""

    task: Task
    at: float
    line: bytes


@dataclass(frozen=True, slots=True)
class Exited:
    """A task's process ended with all that it had started, or it could not be started (`status.reason`)."""

    task: Task
    at: float
    status: ExitStatus


@dataclass(frozen=True, slots=True)
class HostUp:
    """A host has come, on which tasks can be started; `incarnation` names the life of what starts them there."""

    host: str
    at: float
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class HostDown:
    """A host has gone. The ends of its tasks are reported behind this, or were before."""

    host: str
    at: float
    why: str


@dataclass(frozen=True, slots=True)
class HostLeaves:
    """A host is about to go: what runs there was asked to end, and nothing else is to be started there."""

    host: str
    at: float
    why: str


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Somebody asked the engine to end the job (`meshrt launch stop`), or it cannot go on, and `why` says that."""

    at: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class ResizeAsked:
    """Somebody asked for another number of hosts."""

    at: float
    nodes: int


Report = Output | Said | Exited | HostUp | HostDown | HostLeaves | StopAsked | ResizeAsked


# --- the engine.


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do; what it cannot is refused before anything starts, or done in the nearest way.

    signals   those that reach a process; None: all of them
    restarts  whether the ranks can be started again (`--max-restarts`)
    output    whether what processes print comes to the launcher (`--log-dir`), or stays where they run
    """

    signals: frozenset[int] | None = None
    restarts: bool = True
    output: bool = True

    def nearest(self, number: int) -> int:
        """The signal to send for `number`: itself, else SIGTERM, else SIGKILL, which every engine can."""
        if self.signals is None or number in self.signals:
            return number
        return int(signal.SIGTERM if signal.SIGTERM in self.signals else signal.SIGKILL)


class Engine(Protocol):
    """Promises: every task that was started is reported `Exited` exactly once, after all else that is reported of it;
    no method but `wait` takes noticeable time; `start` and `signal` do not raise for what happens to a process."""

    @property
    def name(self) -> str:
        """As `--engine` has it."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What it can do; the same for the engine's life."""
        ...

    def start(self, specs: Sequence[Spec]) -> None:
        """Starts these together: all ranks of a generation, or its coordination service alone."""
        ...

    def signal(self, tasks: Sequence[Task], number: int) -> None:
        """Sends a signal of its capabilities, or SIGKILL, to all processes of these tasks. Some may have ended since;
        a stopped process wakes up to a signal that asks it to end."""
        ...

    def wait(self, seconds: float | None, wake: int) -> Sequence[Report]:
        """What has happened, in order. Returns at once if something has, else when something does, when `seconds` have
        passed (None: never), or when the descriptor `wake` can be read, which is left to the caller."""
        ...

    def close(self) -> None:
        """Ends all that is left, and lets go of everything; once more, nothing. What ends by it is not reported."""
        ...


@runtime_checkable
class KnowsSilences(Protocol):
    """An engine of several hosts."""

    def silences(self) -> Mapping[str, float]:
        """The seconds since each host was heard of, by its name; asked by another thread."""
        ...
