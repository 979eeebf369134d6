"""The coordinator's side of all agents, as a pure state machine: who is in, what runs where, what they must be told.

Time, messages and connections are handed in; what follows is taken from `outbox` (for agents), `reports` (for the
launcher's shell, as an engine reports) and `notices` (for people). An agent is in the job from its join until its lease
ends: `lease_s` after it was last heard. It ends its own processes earlier than that when it is not answered, so that
its place can be given away then.

Commands survive broken connections and another coordinator: what a host should run is known here, what it has been
told is known there, and each new session settles the difference. Reports are repeated by the agent until they are
settled, which they are when the shell has taken the next ones; and none counts twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from meshrt.launch.engines.protocol import (
    Exited,
    HostDown,
    HostUp,
    Output,
    Report,
    Said,
    ServiceSpec,
    Spec,
    Task,
)
from meshrt.launch.hosts.messages import (
    Alive,
    Applicant,
    Beat,
    Chunk,
    Down,
    Happened,
    Leaving,
    Prepare,
    RefusedError,
    Settled,
    Signal,
    Stale,
    Up,
)
from meshrt.launch.model import ExitStatus

__all__ = ["BEAT_S", "LEASE_S", "SELF_END_S", "WARN_S", "Fleet", "Host"]

LEASE_S = 10.0  # stops and cuts of 3 s heal unnoticed; another generation costs some seconds
SELF_END_S = 8.0  # an agent ends its processes before its place is given away
WARN_S = 3.0
BEAT_S = 1.0  # how often agents say that they live
_BEAT_LIMIT_S = 2.5  # three in the time after which an agent that is not answered ends its processes
_BEATS_PER_S = 4000.0  # of all agents; Chosen: 10,000 of them leave more than half a core
_SPECS = 64  # in one message, whose size is limited
_OUTPUT_S = 2.0  # how long the end of a task waits for output that is on its way beside it


@dataclass
class Host:
    """A host whose agent has joined."""

    name: str
    address: str
    incarnation: str
    heard_at: float
    cores: int = 1
    connected: bool = False
    warned: bool = False
    leaving: str | None = None
    seq: int = 0  # of the last report that came
    unsettled: set[int] = field(default_factory=set)
    tasks: set[Task] = field(default_factory=set)  # that are placed here
    offset: float | None = None  # of the coordinator's clock before the agent's, with the least delay seen


def _order(task: Task) -> tuple[int, int]:
    return task.generation, -1 if task.rank is None else task.rank


@dataclass
class _Placed:
    spec: Spec
    host: str
    signal: int | None = None
    chunks: int = 0


@dataclass
class _Held:
    """The end of a task whose output has not all come."""

    report: Exited
    host: str
    seq: int
    chunks: int
    until: float


class Fleet:
    """All hosts of a job. `expected` are hosts, with the incarnations of their agents, that were in it under a former
    coordinator: they have one lease to come back."""

    def __init__(
        self, versions: Mapping[str, str], now: float, expected: Mapping[str, str] | None = None,
        lease_s: float = LEASE_S,
    ):  # fmt: skip
        self.hosts: dict[str, Host] = {
            name: Host(name, "", incarnation, now) for name, incarnation in (expected or {}).items()
        }
        self.tasks: dict[Task, _Placed] = {}
        self.outbox: list[tuple[str, str, Down]] = []  # host, incarnation of its agent, message
        self.reports: list[Report] = []
        self.notices: list[str] = []
        self._versions = dict(versions)
        self._lease_s = lease_s
        self._held: dict[Task, _Held] = {}
        # What the shell has not taken, and what it is at: host, incarnation, seq.
        self._taken: list[tuple[str, str, int]] = []
        self._settling: list[tuple[str, str, int]] = []

    # --- coming and going.

    def join(self, who: Applicant, now: float) -> Host:
        """Lets an agent in, or back in. RefusedError if its name is taken, or its versions are others."""
        self._check_versions(who)
        known = self.hosts.get(who.name)
        if known is not None and known.incarnation != who.incarnation:
            self._check_name_is_free(known, who, now)
            self._lose(known, "its agent was started anew", now)
            known = None
        if known is None and who.again and who.tasks:
            raise RefusedError("what it runs is of another life of this job; it must end that first", "ABORTED")
        if known is None:
            known = Host(who.name, who.address, who.incarnation, now, who.cores)
            self.hosts[who.name] = known
            self.reports.append(HostUp(who.name, now, who.incarnation))
        known.address, known.cores = who.address, who.cores
        self._heard(known, now)
        return known

    def _check_versions(self, who: Applicant) -> None:
        for name, ours in self._versions.items():
            if (theirs := who.versions.get(name)) != ours:
                raise RefusedError(
                    f"host {who.name} has {name} {theirs}, and the coordinator {ours}: install the same on all hosts"
                )

    def _check_name_is_free(self, known: Host, who: Applicant, now: float) -> None:
        silent = now - known.heard_at
        same_place = known.address in ("", who.address)
        if (silent < WARN_S and (known.connected or not same_place)) or (not same_place and silent < self._lease_s):
            raise RefusedError(
                f"a host {who.name} is in this job already, at {known.address}; give one of the agents another --name",
                "ALREADY_EXISTS",
            )

    def open(self, name: str, incarnation: str, tasks: Iterable[Task], now: float) -> None:
        """A session of an agent begins, which knows these tasks. RefusedError if it has not joined."""
        host = self._current(name, incarnation)
        if host is None:
            raise RefusedError(f"host {name} has not joined, or was lost since", "ABORTED")
        host.connected = True
        self._heard(host, now)
        known = set(tasks)
        self._prepare(host, [self.tasks[task] for task in sorted(host.tasks - known, key=_order)])
        for task in known & self.tasks.keys():
            if (number := self.tasks[task].signal) is not None:
                self._tell(host, Signal((task,), number))
        if stale := tuple(t for t in known if t not in self.tasks):
            self._tell(host, Signal(stale, 9))

    def closed(self, name: str, incarnation: str) -> None:
        """The session of an agent broke; it has the rest of its lease to open another one."""
        host = self._current(name, incarnation)
        if host is not None:
            host.connected = False

    def ended(self, name: str, why: str, now: float) -> None:
        """Somebody who sees the agent's process knows that it has ended, and everything with it."""
        if (host := self.hosts.get(name)) is not None:
            self._lose(host, why, now)

    def tick(self, now: float) -> None:
        """Time passed."""
        for host in list(self.hosts.values()):
            silent = now - host.heard_at
            if silent > self._lease_s:
                self._lose(host, self._silence(host, silent), now)
            elif silent > max(WARN_S, 2 * self.beat_s) and not host.warned:
                host.warned = True
                self.notices.append(
                    f"nothing was heard of host {host.name}{self._ranks(host)} for {silent:.0f} s: it is stopped or "
                    f"cut off, or its agent ended; it is lost after {self._lease_s:g} s"
                )
        for held in [h for h in self._held.values() if h.until <= now]:
            self._end(held)

    def _silence(self, host: Host, silent: float) -> str:
        broken = "" if host.connected else ", and its connection is closed"
        return (
            f"nothing was heard of it for {silent:.0f} s{broken}: its agent was killed, it is stopped, or it is cut off"
        )

    def _ranks(self, host: Host) -> str:
        ranks = self.ranks(host.name)
        return f" (rank {', '.join(map(str, ranks))})" if ranks else ""

    @property
    def beat_s(self) -> float:
        """How often each agent is to say that it lives: less often where there are many."""
        return min(_BEAT_LIMIT_S, max(BEAT_S, len(self.hosts) / _BEATS_PER_S))

    def ranks(self, name: str) -> list[int]:
        """The ranks that run on a host."""
        host = self.hosts.get(name)
        return [] if host is None else sorted(t.rank for t in host.tasks if t.rank is not None)

    def _current(self, name: str, incarnation: str) -> Host | None:
        host = self.hosts.get(name)
        return host if host is not None and host.incarnation == incarnation else None

    def _tell(self, host: Host, message: Down) -> None:
        self.outbox.append((host.name, host.incarnation, message))

    def _heard(self, host: Host, now: float) -> None:
        host.heard_at = now
        if host.warned:
            host.warned = False
            self.notices.append(f"host {host.name} is back")

    def _lose(self, host: Host, why: str, now: float) -> None:
        del self.hosts[host.name]
        self._tell(host, Stale(why))
        self.reports.append(HostDown(host.name, now, host.leaving or why))
        for task in sorted(host.tasks, key=_order):
            if (held := self._held.get(task)) is not None:
                self._end(held)
                continue
            del self.tasks[task]
            self.reports.append(Exited(task, now, ExitStatus(lost=host.leaving or why)))

    # --- what agents say.

    def receive(self, name: str, incarnation: str, message: Up, now: float) -> None:
        """An agent's message in its session. Of one that is lost nothing counts but that it is told so."""
        host = self._current(name, incarnation)
        if host is None:
            self.outbox.append((name, incarnation, Stale("it was lost to the job before")))
            return
        self._heard(host, now)
        match message:
            case Beat(at=at):
                host.offset = now - at if host.offset is None else min(host.offset, now - at)
                self._tell(host, Alive(self.beat_s))
            case Happened():
                self._happened(host, message, now)
            case Leaving(why=why):
                host.leaving = why

    def _happened(self, host: Host, message: Happened, now: float) -> None:
        if message.seq <= host.seq:
            return  # it came before the connection broke
        host.seq = message.seq
        found = self._on_our_clock(host, message.report, now)
        placed = self.tasks.get(found.task)
        if placed is None or placed.host != host.name:  # it was settled under a former coordinator, or is stale
            if not host.unsettled:
                self._tell(host, Settled(host.seq))
            return
        host.unsettled.add(message.seq)
        if isinstance(found, Said):
            self._report(host.name, message.seq, found)
            return
        if host.leaving is not None and not found.status.ok:
            found = replace(found, status=ExitStatus(lost=host.leaving))
        held = _Held(found, host.name, message.seq, message.chunks, now + _OUTPUT_S)
        if placed.chunks >= message.chunks:
            self._end(held)
        else:
            self._held[found.task] = held

    def _on_our_clock(self, host: Host, found: Said | Exited, now: float) -> Said | Exited:
        return replace(found, at=now if host.offset is None else min(now, found.at + host.offset))

    def log(self, name: str, incarnation: str, chunk: Chunk, now: float) -> Output | None:
        """A piece of output; gives it as it was reported, or None where the task is not of this job any more."""
        host, placed = self._current(name, incarnation), self.tasks.get(chunk.task)
        if host is None or placed is None or placed.host != name:
            return None
        placed.chunks += 1
        found = Output(chunk.task, now, "stderr" if chunk.stderr else "stdout", chunk.data)
        self.reports.append(found)
        held = self._held.get(chunk.task)
        if held is not None and placed.chunks >= held.chunks:
            self._end(held)
        return found

    def _end(self, held: _Held) -> None:
        task = held.report.task
        self._held.pop(task, None)
        del self.tasks[task]
        if (host := self.hosts.get(held.host)) is not None:
            host.tasks.discard(task)
        self._report(held.host, held.seq, held.report)

    def _report(self, name: str, seq: int, found: Report) -> None:
        self.reports.append(found)
        host = self.hosts.get(name)
        if host is not None:
            self._taken.append((name, host.incarnation, seq))

    # --- what the shell wants.

    def start(self, specs: Sequence[Spec], now: float) -> None:
        """Starts these on their hosts, as soon as those are in touch."""
        fresh: dict[str, list[_Placed]] = {}
        for spec in specs:
            name = spec.host or ""
            host = self.hosts.get(name)
            if host is None:
                self.reports.append(Exited(spec.task, now, ExitStatus(lost=f"host {name} was gone before it started")))
                continue
            placed = _Placed(spec, name)
            self.tasks[spec.task] = placed
            host.tasks.add(spec.task)
            fresh.setdefault(name, []).append(placed)
        for name, placed_here in fresh.items():
            if self.hosts[name].connected:
                self._prepare(self.hosts[name], placed_here)

    def _prepare(self, host: Host, placed: Sequence[_Placed]) -> None:
        specs = []
        for p in placed:
            if isinstance(p.spec, ServiceSpec):
                address = f"[{host.address}]" if ":" in host.address else host.address
                p.spec = replace(p.spec, bind=f"{address}:0")
            specs.append(p.spec)
        for first in range(0, len(specs), _SPECS):
            self._tell(host, Prepare(tuple(specs[first : first + _SPECS])))

    def signal(self, tasks: Sequence[Task], number: int) -> None:
        """Signals these, at the latest when their hosts are in touch again."""
        hosts: dict[str, list[Task]] = {}
        for task in tasks:
            if (placed := self.tasks.get(task)) is not None:
                placed.signal = number
                hosts.setdefault(placed.host, []).append(task)
        for name, some in hosts.items():
            if name in self.hosts and self.hosts[name].connected:
                self._tell(self.hosts[name], Signal(tuple(some), number))

    def take_reports(self) -> list[Report]:
        """What is new for the shell. What it took the last time it has dealt with: that is settled now."""
        for name, incarnation, seq in self._settling:
            host = self._current(name, incarnation)
            if host is not None:
                host.unsettled.discard(seq)
        for name in dict.fromkeys(name for name, _, _ in self._settling):
            if (host := self.hosts.get(name)) is not None:
                seq = min(host.unsettled) - 1 if host.unsettled else host.seq
                self._tell(host, Settled(seq))
        self._settling, self._taken = self._taken, []
        reports, self.reports = self.reports, []
        return reports
