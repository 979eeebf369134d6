"""A job on several hosts over a simulated network: the launcher's shell and machine, the coordinator's view of its
agents, and the agents' own machines, all real; hosts, processes, messages and time are not."""

from __future__ import annotations

import heapq
import io
import itertools
import json
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from meshrt.launch import shell
from meshrt.launch.engines.protocol import Capabilities, Exited, Output, Report, Said, ServiceSpec, Spec, Task
from meshrt.launch.hosts.duties import Duties, EndAll, Kill, Start
from meshrt.launch.hosts.fleet import LEASE_S, SELF_END_S, Fleet
from meshrt.launch.hosts.messages import Applicant, Beat, RefusedError, Settled, Stale
from meshrt.launch.hosts.outbound import Outbound
from meshrt.launch.model import Event, ExitStatus, HostJoined, HostLost, Phase, State
from meshrt.launch.output import Console
from meshrt.launch.settings import Settings

VERSIONS = {"meshrt": "1"}
LONG = 6.0  # what a rank takes
KILLED = ExitStatus(signal=9)


class CrashError(Exception):
    """The coordinator is killed."""


@dataclass
class Agent:
    """One host: its agent, the processes, and its line to the coordinator."""

    world: World
    name: str
    alive: bool = True
    cut_until: float = 0.0
    session: int | None = None
    processes: dict[Task, Spec] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """The agent's process starts."""
        self.alive = True
        names = (f"{self.name}{next(self.world.numbers)}" for _ in itertools.count())
        self.duties = Duties(lambda: next(names), SELF_END_S, self.world.now)
        self.joined = False
        self.outbound, self.printed, self.sent = Outbound(), 0, 0
        self.connect(self.duties)
        self.live(self.duties)

    def live(self, life: Duties) -> None:
        """The agent's loop."""
        if self.alive and life is self.duties:
            self.do(life.tick(self.world.now))
            if self.session is not None:
                self.say(Beat(self.world.now))
            self.world.at(1.0, lambda: self.live(life))

    def connect(self, life: Duties) -> None:
        if not self.alive or life is not self.duties or self.session is not None:
            return
        if self.world.now < self.cut_until or self.world.fleet is None:
            self.world.at(0.5, lambda: self.connect(life))
            return
        who = Applicant(self.name, self.name, life.name, VERSIONS, life.tasks, 1, self.joined, self.outbound.settled)
        try:
            self.world.fleet.join(who, self.world.now)
            self.session, self.incarnation = next(self.world.numbers), who.incarnation
            self.world.fleet.open(self.name, who.incarnation, self.world.now)
        except RefusedError as e:
            self.session = None
            if e.kind == "ABORTED":
                self.do(life.told(Stale(str(e)), self.world.now))
            self.world.at(0.5, lambda: self.connect(life))
            return
        self.joined = True
        for message in life.opened(self.world.now):
            self.say(message)
        self.stream, self.sent = self.outbound.begin_stream(), self.outbound.settled
        self.show()
        self.world.flush()

    def show(self) -> None:
        """Sends the output that was not sent in this session."""
        if self.session is None or self.sent == self.printed:
            return
        if self.sent == self.outbound.settled:
            self.stream = self.outbound.wait(self.stream)
        for chunk in itertools.islice(self.outbound.take(self.stream), self.printed - self.sent):
            self.send("log", lambda incarnation, chunk=chunk: self.world.fleet.log(
                self.name, incarnation, chunk, self.world.now
            ))  # fmt: skip
        self.sent = self.printed

    def print(self, task: Task) -> None:
        if task in self.processes:
            line = f"{task.generation}/{task.rank} {len(self.world.lines_of[task])}"
            self.world.lines_of[task].append(line)
            self.outbound.put(Output(task, self.world.now, "stdout", f"{line}\n".encode()))
            self.printed += 1
            self.show()
            self.world.at(0.7, lambda: self.print(task))

    def lose_connection(self) -> None:
        if self.session is not None:
            self.session = None
            if self.world.fleet is not None:
                self.world.fleet.closed(self.name, self.incarnation, self.world.now)
        self.world.at(0.5, lambda life=self.duties: self.connect(life))

    def say(self, message: object) -> None:
        """To the coordinator, through the present session."""
        self.send("up", lambda incarnation: self.world.fleet.receive(self.name, incarnation, message, self.world.now))

    def send(self, line: str, deed: Callable[[str], object]) -> None:
        session, incarnation = self.session, self.duties.name

        def arrive() -> None:
            if self.session == session is not None and self.world.fleet is not None:
                deed(incarnation)
                self.world.flush()

        self.world.send(self, line, arrive)

    def hear(self, message: object) -> None:
        session, life = self.session, self.duties

        def arrive() -> None:
            if self.session == session is not None and self.alive and life is self.duties:
                if isinstance(message, Settled):
                    self.outbound.settle(message.output)
                self.do(life.told(message, self.world.now))

        self.world.send(self, "down", arrive)

    def do(self, deeds: Sequence[object]) -> None:
        for deed in deeds:
            match deed:
                case Start(specs=specs):
                    for spec in specs:
                        self.start(spec)
                case Kill(tasks=tasks, number=number):
                    for task in tasks:
                        self.world.at(0.05, lambda task=task, n=number: self.end(task, ExitStatus(signal=n)))
                case EndAll():
                    self.processes.clear()
                    self.outbound.forget()
                    self.lose_connection()

    def start(self, spec: Spec) -> None:
        assert spec.task not in self.processes
        self.world.started.append(spec.task)
        assert self.world.started.count(spec.task) == 1, "a task is started once"
        self.processes[spec.task] = spec
        if isinstance(spec, ServiceSpec):
            self.world.at(0.1, lambda: self.tell(spec.task, kind="ready", address=spec.bind))
            return
        self.world.at(0.1, lambda: self.print(spec.task))
        for delay, kind in ((0.2, "joining"), (0.3, "meshed")):
            self.world.at(delay, lambda kind=kind: self.tell(spec.task, kind=kind))
        self.world.at(LONG, lambda: self.end(spec.task, ExitStatus(code=0)))

    def tell(self, task: Task, **message: str) -> None:
        if task in self.processes:
            self.report(Said(task, self.world.now, json.dumps(message).encode()))

    def end(self, task: Task, status: ExitStatus) -> None:
        if self.processes.pop(task, None) is not None:
            self.report(Exited(task, self.world.now, status))

    def report(self, found: Said | Exited) -> None:
        output = self.outbound.end(found.task, self.world.now) if isinstance(found, Exited) else 0
        happened = self.duties.reported(found, output)
        if happened is not None and self.session is not None:
            self.say(happened)

    def killed(self) -> None:
        """Its process, and with it all that it started."""
        self.alive = False
        self.processes.clear()
        self.lose_connection()


class World:
    """The hosts, the network, and the engine that the shell drives; on one clock."""

    def __init__(self, hosts: Sequence[str], seed: int):
        self.now = 0.0
        self.numbers = itertools.count()
        self.chance = random.Random(seed)
        self.agenda: list[tuple[float, int, Callable[[], object]]] = []
        self.lines: dict[tuple[str, str], float] = {}
        self.started: list[Task] = []
        self.lines_of: dict[Task, list[str]] = defaultdict(list)  # what was printed
        self.out = io.BytesIO()
        self.fleet: Fleet | None = None
        self.crashing = False
        self.name, self.capabilities = "simulated", Capabilities()
        self.secret, self.past = "s", list[Event]()
        self.state: State | None = None
        self.agents = {name: Agent(self, name) for name in hosts}

    def at(self, delay: float, deed: Callable[[], object]) -> None:
        heapq.heappush(self.agenda, (self.now + delay, next(self.numbers), deed))

    def send(self, agent: Agent, direction: str, arrive: Callable[[], None]) -> None:
        """In order, after some time; over a line that is cut when it is mended."""
        key = (agent.name, direction)
        due = max(self.now, agent.cut_until) + self.chance.uniform(0.001, 0.3)
        self.lines[key] = due = max(due, self.lines.get(key, 0.0))
        self.at(due - self.now, arrive)

    def flush(self) -> None:
        outbox, self.fleet.outbox = self.fleet.outbox, []
        for name, incarnation, message in outbox:
            if self.agents[name].session is not None and self.agents[name].duties.name == incarnation:
                self.agents[name].hear(message)

    # --- the engine.

    def start(self, specs: Sequence[Spec]) -> None:
        generation = specs[0].task.generation
        old = [t for a in self.agents.values() for t in a.processes if t.generation < generation]
        assert not old, "the processes of a generation are gone before the next one begins"
        self.fleet.start(specs, self.now)
        self.flush()

    def signal(self, tasks: Sequence[Task], number: int) -> None:
        self.fleet.signal(tasks, number)
        self.flush()

    def wait(self, seconds: float | None, wake: int) -> list[Report]:
        until = self.now + (1e4 if seconds is None else seconds)
        while True:
            self.fleet.tick(self.now)
            if self.crashing:
                raise CrashError
            reports = self.fleet.take_reports()
            self.flush()
            if reports or self.now >= until:
                return reports
            step = min(until, self.now + 0.5)
            while self.agenda and self.agenda[0][0] <= step:
                self.now, _, deed = heapq.heappop(self.agenda)
                deed()
                if self.fleet.reports or self.crashing:
                    break
            else:
                self.now = step

    def close(self) -> None:
        pass

    # --- the record of the shell.

    def write(self, event: Event) -> None:
        self.past.append(event)

    def watch(self, state: State) -> None:
        self.state = state

    def crash(self) -> None:
        self.crashing = True

    def expected(self) -> dict[str, str]:
        found = {}
        for event in self.past:
            if isinstance(event, HostJoined):
                found[event.host] = event.incarnation
            elif isinstance(event, HostLost):
                found.pop(event.host, None)
        return found

    def run(self, **settings: object) -> int:
        job = shell.Job(Settings(**settings), ("script", "t.py"), environ={})
        while True:
            self.fleet = Fleet(VERSIONS, self.now, self.expected())
            self.crashing = False
            try:
                return shell.run(job, Console(self.out, self.out), self, lambda: self.now, self, self.watch)
            except CrashError:
                self.fleet = None
                for agent in self.agents.values():
                    agent.lose_connection()
                for _ in range(2):  # the time that another coordinator takes
                    self.now += 0.5

    def said(self) -> str:
        return self.out.getvalue().decode()

    def check_output(self, exactly: bool) -> None:
        """What the ranks of the last generation have printed was shown: in order, each line once, or some again that
        were shown by a coordinator just before its end."""
        for task, lines in self.lines_of.items():
            if task.generation == self.state.generation:
                said = [
                    x.partition("] ")[2] for x in self.said().splitlines() if f"] {task.generation}/{task.rank} " in x
                ]
                shown = said if exactly else list(dict.fromkeys(said))
                assert shown == lines and len(said) - len(shown) < 10


def test_an_undisturbed_job():
    world = World("ab", 0)
    assert world.run(nodes="2", nproc=2) == 0
    assert world.started == [Task(0), *(Task(0, rank) for rank in (0, 1, 2, 3))] or len(world.started) == 5
    assert world.past[-1].at < LONG + 3.0


def test_a_short_cut_heals_unnoticed():
    world = World("ab", 0)
    world.at(3.0, lambda: setattr(world.agents["b"], "cut_until", 6.0))
    assert world.run(nodes="2", nproc=1) == 0
    assert world.state.generation == 0
    world.check_output(exactly=True)


@pytest.mark.parametrize("back", [6.0, 100.0])
def test_a_host_that_is_cut_off_ends_its_processes_before_its_place_is_given_away(back):
    world = World("ab", 0)
    gone = []

    def look() -> None:
        if not world.agents["b"].processes and not gone:
            gone.append(world.now)
        world.at(0.1, look)

    world.at(3.0, lambda: setattr(world.agents["b"], "cut_until", 3.0 + LEASE_S + back))
    world.at(3.0, look)
    assert world.run(nodes="1:2", nproc=1, max_restarts=1) == 0
    lost = next(e for e in world.past if isinstance(e, HostLost))
    assert gone[0] < lost.at < 3.0 + LEASE_S + 2.0
    assert world.state.incidents[0].failures[0].host == "b"
    assert world.state.chosen == ("a",)


def test_a_coordinator_that_comes_back_finds_the_job_where_it_was():
    world = World("ab", 0)
    world.at(4.0, world.crash)
    assert world.run(nodes="2", nproc=2) == 0
    assert world.state.generation == 0 and len(world.started) == 5


def test_a_coordinator_that_comes_back_too_late_starts_the_job_again():
    world = World("ab", 0)

    def crash() -> None:
        for agent in world.agents.values():
            agent.cut_until = world.now + 15.0
        world.crash()

    world.at(4.0, crash)
    assert world.run(nodes="2", nproc=1, max_restarts=1) == 0
    assert world.state.generation == 1


KINDS = ("worker", "agent", "break", "cut", "coordinator")
FAULTS = st.tuples(st.floats(0.0, 40.0), st.sampled_from(KINDS), st.integers(0, 2), st.floats(0.5, 20.0))


@hypothesis_settings(deadline=None)
@given(
    st.lists(FAULTS, max_size=6),
    st.integers(0, 1000),
    st.sampled_from(["1:3", "2:3", "3"]),
)
def test_whatever_happens_to_hosts_the_job_ends_and_leaves_nobody(faults, seed, nodes):
    world = World("abc", seed)

    def strike(kind: str, agent: Agent, lasting: float) -> None:
        if kind == "worker" and agent.processes:
            agent.end(world.chance.choice(list(agent.processes)), KILLED)
        elif kind == "agent" and agent.alive:
            agent.killed()
            world.at(lasting, agent.begin)
        elif kind == "break":
            agent.lose_connection()
        elif kind == "cut":
            agent.cut_until = world.now + lasting
        elif kind == "coordinator":
            world.crash()

    for at, kind, number, lasting in faults:
        agent = world.agents["abc"[number]]
        world.at(at, lambda kind=kind, agent=agent, lasting=lasting: strike(kind, agent, lasting))
    code = world.run(nodes=nodes, nproc=2, max_restarts=3)
    assert world.now < 1000.0
    assert (code == 0) == (world.state.phase is Phase.SUCCEEDED)
    assert not [t for a in world.agents.values() for t in a.processes if t.rank is not None] or world.crashing
    failures = sum(kind != "break" for _, kind, _, _ in faults)
    assert code == 0 or failures > 3, world.said()
    if code == 0:
        world.check_output(exactly=all(kind != "coordinator" for _, kind, _, _ in faults))
