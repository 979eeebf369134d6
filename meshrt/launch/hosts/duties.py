"""The agent's side, as a pure state machine: what it has been told, what it has not yet got rid of, and its lease.

Whatever the coordinator says goes through `told`, whatever the local engine reports through `reported`; both give what
is to be done. A report stays until the coordinator has settled it, and goes again into each new session.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from meshrt.launch.engines.protocol import Exited, Said, Spec, Task
from meshrt.launch.hosts.messages import (
    Alive,
    Down,
    Happened,
    Over,
    Prepare,
    Settled,
    Signal,
    Stale,
)
from meshrt.launch.membership.naps import Naps

__all__ = ["Deed", "Duties", "EndAll", "Kill", "Leave", "Start"]

KILL = int(signal.SIGKILL)
_ASK_S = 3.0  # to hear of the coordinator, of an agent that slept; Chosen: its ranks run on meanwhile


@dataclass(frozen=True, slots=True)
class Start:
    """Start these."""

    specs: tuple[Spec, ...]


@dataclass(frozen=True, slots=True)
class Kill:
    """Signal these tasks."""

    tasks: tuple[Task, ...]
    number: int


@dataclass(frozen=True, slots=True)
class EndAll:
    """End everything that runs, at once; nothing of it is reported any more. The session is over: the agent has another
    name for its life, under which it joins again."""

    why: str


@dataclass(frozen=True, slots=True)
class Leave:
    """The job is over: leave with this exit code."""

    exit_code: int
    why: str


Deed = Start | Kill | EndAll | Leave


@dataclass
class Duties:
    """`incarnation` makes names for lives of this agent: each forgets what the former one was told."""

    incarnation: Callable[[], str]
    lease_s: float
    heard_at: float
    running: set[Task] = field(default_factory=set)
    unsettled: list[Happened] = field(default_factory=list)
    _seq: int = 0

    def __post_init__(self) -> None:
        self._naps = Naps()
        self.name = self.incarnation()
        self._told: set[Task] = set()

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Those it has been told to start and whose ends are not settled."""
        return tuple(self._told)

    def told(self, message: Down, now: float) -> list[Deed]:
        """The coordinator says this."""
        self.heard_at = now
        match message:
            case Alive():
                return []
            case Prepare(specs=specs):
                fresh = tuple(s for s in specs if s.task not in self._told)
                self._told |= {s.task for s in fresh}
                self.running |= {s.task for s in fresh}
                return [Start(fresh)] if fresh else []
            case Signal(tasks=tasks, number=number):
                here = tuple(t for t in tasks if t in self.running)
                return [Kill(here, number)] if here else []
            case Settled(seq=seq):
                self._settle(seq)
                return []
            case Stale(why=why):
                return self._forget(why)
            case Over(exit_code=code, why=why):
                return [EndAll(why), Leave(code, why)]

    def reported(self, found: Said | Exited, output: int = 0) -> Happened | None:
        """The local engine reports this of a task; None where it is of a former life and nobody wants to know."""
        if found.task not in self.running:
            return None
        if isinstance(found, Exited):
            self.running.discard(found.task)
        self._seq += 1
        happened = Happened(self._seq, found, output)
        self.unsettled.append(happened)
        return happened

    def opened(self, now: float) -> Sequence[Happened]:
        """A session begins: what is to be said in it first."""
        self.heard_at = now
        return tuple(self.unsettled)

    def tick(self, now: float) -> list[Deed]:
        """Time passed: an agent that nobody answers ends its processes, for its place is about to be given away. One
        that slept with them asks first: its coordinator may have slept, too, and if not, it says so at once."""
        if self._naps.slept(now):
            self.heard_at = max(self.heard_at, now - self.lease_s + _ASK_S)
        silent = now - self.heard_at
        if not self._told or silent <= self.lease_s:
            return []
        return self._forget(f"the coordinator has not answered for {silent:.0f} s")

    def _settle(self, seq: int) -> None:
        ended = {h.report.task for h in self.unsettled if h.seq <= seq and isinstance(h.report, Exited)}
        self._told -= ended
        self.unsettled = [h for h in self.unsettled if h.seq > seq]

    def _forget(self, why: str) -> list[Deed]:
        self.name = self.incarnation()
        self._told.clear()
        self.running.clear()
        self.unsettled.clear()
        return [EndAll(why)]
