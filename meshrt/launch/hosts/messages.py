"""What coordinator and agents tell each other, as plain frozen values; codec.py puts them on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from meshrt.errors import DistributedError
from meshrt.launch.engines.protocol import Exited, Said, Spec, Task
from propagation.quoting import printable

__all__ = [
    "Alive",
    "Applicant",
    "Beat",
    "Chunk",
    "Down",
    "Happened",
    "Leaving",
    "Over",
    "Prepare",
    "RefusedError",
    "Settled",
    "Signal",
    "Stale",
    "Up",
    "plain",
]


def plain(text: str, limit: int = 4000) -> str:
    """Words of the other side as they may stand on a terminal: control characters, with which they could pass for
    lines of somebody else, are shown as what they are."""
    return printable(text[:limit])


class RefusedError(DistributedError):
    """The coordinator does not do what somebody asks, and says why. `kind` names gRPC's status for it."""

    def __init__(self, why: str, kind: str = "FAILED_PRECONDITION"):
        super().__init__(why)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Applicant:
    """An agent that wants to join, or to come back. `tasks` are those it has been told to start and that are not
    settled; `incarnation` is another one after it has forgotten such. Output up to the chunk of the number `output` has
    been dealt with."""

    name: str
    address: str
    incarnation: str
    versions: Mapping[str, str] = field(default_factory=dict)
    tasks: tuple[Task, ...] = ()
    cores: int = 1
    again: bool = False
    output: int = 0


# --- from an agent.


@dataclass(frozen=True, slots=True)
class Beat:
    """It lives; `at` is its clock."""

    at: float


@dataclass(frozen=True, slots=True)
class Happened:
    """A report of its local engine, on its clock. It is sent again after a break until it is settled. `output` is
    the number of the last chunk that goes ahead of the end of a task."""

    seq: int
    report: Said | Exited
    output: int = 0


@dataclass(frozen=True, slots=True)
class Leaving:
    """It was told to end, and does so a little later: meanwhile the coordinator asks its ranks to leave the others, to
    save, or to end, as the job wants it."""

    why: str


Up = Beat | Happened | Leaving


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a task's output. Numbers rise from 1 over all tasks of an agent. It is sent again after a break until
    it is settled."""

    task: Task
    at: float
    stderr: bool
    data: bytes
    number: int


# --- to an agent.


@dataclass(frozen=True, slots=True)
class Alive:
    """The answer to a beat; the next one is wanted after `beat_s`."""

    beat_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Prepare:
    """Start these, but for those that you know."""

    specs: tuple[Spec, ...]


@dataclass(frozen=True, slots=True)
class Signal:
    """Signal the processes of these tasks."""

    tasks: tuple[Task, ...]
    number: int


@dataclass(frozen=True, slots=True)
class Settled:
    """Reports up to the number `seq`, and output up to `output`, need not be sent again."""

    seq: int
    output: int = 0


@dataclass(frozen=True, slots=True)
class Stale:
    """Nothing that you run belongs to the job any more."""

    why: str


@dataclass(frozen=True, slots=True)
class Over:
    """The job has ended."""

    exit_code: int
    why: str = ""


Down = Alive | Prepare | Signal | Settled | Stale | Over
