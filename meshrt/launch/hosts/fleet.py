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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from meshrt.launch.engines.protocol import (
    Exited,
    HostDown,
    HostLeaves,
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

__all__ = ["BACKLOG", "BEAT_S", "LEASE_S", "SELF_END_S", "WARN_S", "Fleet", "Host"]

LEASE_S = 10.0  # stops and cuts of 3 s heal unnoticed; another generation costs some seconds
SELF_END_S = 8.0  # an agent ends its processes before its place is given away
WARN_S = 3.0
BEAT_S = 1.0  # how often agents say that they live
_BEAT_LIMIT_S = 2.5  # three in the time after which an agent that is not answered ends its processes
# Of all agents. Measured: one costs 0.08 ms, and an agent that joins as much as 15 of them, so that most of what a
# coordinator does while thousands come is for those that come.
_BEATS_PER_S = 1000.0
_SPECS = 64  # in one message, whose size is limited
_OUTPUT_S = 5.0  # how long the end of a task waits for the next piece of output that is on its way beside it
BACKLOG = 64 << 20  # bytes of output that may wait for a terminal or a disk
_HOSTS = 65536  # that can be in a job
_UNREAD = 4 << 20  # bytes that the ranks of one host may say while the launcher is busy elsewhere


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
    knows: frozenset[Task] = frozenset()  # tasks that it had when it joined
    output: int = 0  # the number of the last chunk that came
    printed: int = 0  # and of the last one that need not be sent again
    unread: int = 0  # bytes of what its ranks said that the launcher has not taken
    held: dict[Task, _Held] = field(default_factory=dict)
    contested_at: float | None = None  # when another agent of this name wanted to take its place
    offset: float | None = None  # of the coordinator's clock before the agent's, with the least delay seen


def _order(task: Task) -> tuple[int, int]:
    return task.generation, -1 if task.rank is None else task.rank


@dataclass
class _Placed:
    spec: Spec
    host: str
    signal: int | None = None


@dataclass
class _Held:
    """The end of a task whose output has not all come."""

    report: Exited
    seq: int
    output: int  # the number of the last chunk of its output
    until: float


@dataclass
class _Taken:
    """What the shell has taken of a host's: numbers of reports, and of the last chunk of output."""

    seqs: set[int] = field(default_factory=set)
    output: int = 0


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
        self.unread = 0  # bytes of output that the shell has not taken
        # What the shell takes next, and what it is at: of the incarnations of hosts.
        self._taken: dict[tuple[str, str], _Taken] = {}
        self._settling: dict[tuple[str, str], _Taken] = {}

    # --- coming and going.

    def join(self, who: Applicant, now: float) -> Host:
        """Lets an agent in, or back in. RefusedError if its name is taken, or its versions are others."""
        self._check_versions(who)
        known = self.hosts.get(who.name)
        if known is not None and known.incarnation != who.incarnation:
            self._check_name_is_free(known, who, now)
            self._lose(known, "its agent was started anew", now)
            known = None
        if known is None and len(self.hosts) >= _HOSTS:
            raise RefusedError(f"{_HOSTS} hosts are in this job already", "RESOURCE_EXHAUSTED")
        if known is None and who.again and who.tasks:
            raise RefusedError("what it runs is of another life of this job; it must end that first", "ABORTED")
        if known is None:
            known = Host(who.name, who.address, who.incarnation, now, who.cores)
            self.hosts[who.name] = known
            self.reports.append(HostUp(who.name, now, who.incarnation))
        known.address, known.cores, known.knows = who.address, who.cores, frozenset(who.tasks)
        known.output, known.printed = max(known.output, who.output), max(known.printed, who.output)
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
        if same_place and known.connected and silent < WARN_S:
            self._check_is_gone(known, now)
        if (silent < WARN_S and (known.connected or not same_place)) or (not same_place and silent < self._lease_s):
            raise RefusedError(
                f"a host {who.name} is in this job already, at {known.address}; give one of the agents another --name",
                "ALREADY_EXISTS",
            )

    def _check_is_gone(self, known: Host, now: float) -> None:
        """A host that was started anew has left a connection that nobody has closed. RefusedError until it is known
        whether somebody is still behind it."""
        if known.contested_at is None or now - known.contested_at > self._lease_s:
            known.contested_at = now
        if known.heard_at <= known.contested_at:
            raise RefusedError(
                f"an agent of host {known.name} was heard {now - known.heard_at:.1f} s ago; if it has ended, this one "
                "takes its place", "ABORTED",
            )  # fmt: skip

    def open(self, name: str, incarnation: str, now: float) -> None:
        """A session of an agent begins. RefusedError if it has not joined."""
        host = self._current(name, incarnation)
        if host is None:
            raise RefusedError(f"host {name} has not joined, or was lost since", "ABORTED")
        host.connected = True
        self._heard(host, now)
        known = host.knows
        for held in host.held.values():
            held.until = now + _OUTPUT_S
        if host.seq or host.printed:  # what was said of it may have been lost with the former session
            self._settle(host)
        self._prepare(host, [self.tasks[task] for task in sorted(host.tasks - known, key=_order)])
        for task in known & self.tasks.keys():
            if (number := self.tasks[task].signal) is not None:
                self._tell(host, Signal((task,), number))
        if stale := tuple(t for t in known if t not in self.tasks):
            self._tell(host, Signal(stale, 9))

    def closed(self, name: str, incarnation: str, now: float) -> None:
        """The session of an agent ended; it has the rest of its lease to open another one, unless it said that it
        leaves, and runs nothing any more."""
        host = self._current(name, incarnation)
        if host is not None:
            host.connected = False
            if host.leaving is not None and not host.tasks:
                self._lose(host, host.leaving, now)

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
            for held in [h for h in host.held.values() if host.connected and h.until <= now]:
                if self.unread < BACKLOG:  # else agents were told to wait
                    self._end(host, held)
                else:
                    held.until = now + _OUTPUT_S

    def excuse(self, seconds: float, now: float) -> None:
        """For so long nobody could be heard, for the coordinator itself did not listen."""
        for host in self.hosts.values():
            host.heard_at = min(now, host.heard_at + seconds)
            if host.contested_at is not None:  # else it would seem to have been heard since
                host.contested_at = min(now, host.contested_at + seconds)
            for held in host.held.values():
                held.until += seconds

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
            if (held := host.held.get(task)) is not None:
                self._end(host, held)
                continue
            del self.tasks[task]
            self.reports.append(Exited(task, now, ExitStatus(lost=host.leaving or why)))

    # --- what agents say.

    def receive(self, name: str, incarnation: str, message: Up, now: float) -> None:
        """An agent's message in its session. Of one that is lost nothing counts but that it is told so. RefusedError
        if its ranks say more than anybody takes."""
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
                self.reports.append(HostLeaves(host.name, now, why))

    def _happened(self, host: Host, message: Happened, now: float) -> None:
        if message.seq <= host.seq:
            return  # it came before the connection broke
        host.seq = message.seq
        found = self._on_our_clock(host, message.report, now)
        placed = self.tasks.get(found.task)
        if placed is None or placed.host != host.name:  # it was settled under a former coordinator, or is stale
            if not host.unsettled:
                self._settle(host)
            return
        host.unsettled.add(message.seq)
        if isinstance(found, Said):
            self._hear(host, message.seq, found)
            return
        if host.leaving is not None and not found.status.ok:
            found = replace(found, status=ExitStatus(lost=host.leaving))
        held = _Held(found, message.seq, message.output, now + _OUTPUT_S)
        if host.output >= message.output:
            self._end(host, held)
        else:
            host.held[found.task] = held

    def _hear(self, host: Host, seq: int, found: Said) -> None:
        host.unread += len(found.line)
        if host.unread > _UNREAD:
            host.seq = seq - 1  # it comes again in another session
            host.unsettled.discard(seq)
            host.unread -= len(found.line)
            raise RefusedError(f"its ranks say more than {_UNREAD} bytes while nobody listens", "RESOURCE_EXHAUSTED")
        self._report(host, seq, found)

    def _on_our_clock(self, host: Host, found: Said | Exited, now: float) -> Said | Exited:
        return replace(found, at=now if host.offset is None else min(now, found.at + host.offset))

    def log(self, name: str, incarnation: str, chunk: Chunk, now: float) -> Output | None:
        """A piece of output; gives it as it was reported, or None where the task is not of this job any more."""
        host, placed = self._current(name, incarnation), self.tasks.get(chunk.task)
        if host is None or chunk.number <= host.output:  # the latter came before the connection broke
            return None
        found = None
        if placed is not None and placed.host == name:
            found = Output(chunk.task, now, "stderr" if chunk.stderr else "stdout", chunk.data)
            self.reports.append(found)
            self.unread += len(chunk.data)
        self._count(host, chunk.number, now)
        return found

    def _count(self, host: Host, number: int, now: float) -> None:
        """A chunk has come, and been reported: ends of tasks that waited for it can be told."""
        host.output = number
        self._taken_of(host).output = number
        for held in list(host.held.values()):
            held.until = now + _OUTPUT_S
            if number >= held.output:
                self._end(host, held)

    def _end(self, host: Host, held: _Held) -> None:
        task = held.report.task
        host.held.pop(task, None)
        host.tasks.discard(task)
        del self.tasks[task]
        self._report(host, held.seq, held.report)

    def _report(self, host: Host, seq: int, found: Report) -> None:
        self.reports.append(found)
        self._taken_of(host).seqs.add(seq)

    def _taken_of(self, host: Host) -> _Taken:
        return self._taken.setdefault((host.name, host.incarnation), _Taken())

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
        for (name, incarnation), taken in self._settling.items():
            if (host := self._current(name, incarnation)) is None:
                continue
            host.unsettled -= taken.seqs
            host.printed = max(host.printed, taken.output)
            self._settle(host)
        for name, _ in self._taken:
            if (host := self.hosts.get(name)) is not None:
                host.unread = 0
        self._settling, self._taken, self.unread = self._taken, {}, 0
        reports, self.reports = self.reports, []
        return reports

    def _settle(self, host: Host) -> None:
        self._tell(host, Settled(min(host.unsettled) - 1 if host.unsettled else host.seq, host.printed))
