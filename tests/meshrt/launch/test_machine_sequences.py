"""The launcher's state machine: any sequence of events ends, and leaves nobody behind."""

from __future__ import annotations

import itertools
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from meshrt.launch import machine
from meshrt.launch.causes import first_cause
from meshrt.launch.model import (
    FINAL,
    CancelRequested,
    CheckpointTold,
    Event,
    ExitStatus,
    Finish,
    HostJoined,
    HostLeaving,
    HostLost,
    IncidentKind,
    Phase,
    Policy,
    ResizeRequested,
    RetireService,
    ServiceExited,
    ServiceReady,
    SetTimer,
    SignalWorkers,
    Start,
    StartNewcomers,
    StartService,
    StartWorkers,
    State,
    Timer,
    TimerFired,
    WorkerAttentive,
    WorkerExited,
    WorkerGrowable,
    WorkerJoining,
    WorkerLeft,
    WorkerLost,
    WorkerMeshed,
    WorkerRaised,
)
from meshrt.launch.parting import LEAVE
from meshrt.launch.transitions import exit_code
from tests.meshrt.launch.stepping import GLOO, KILL, OK, TERM


class World:
    """Processes and clocks as simple as can be: what may happen next, and the promises seen from outside."""

    def __init__(self, policy: Policy):
        self.state = State(policy)
        self.ids = itertools.count()
        self.workers: dict[int, bool] = {}  # rank -> SIGKILL was sent
        self.service: bool | None = None  # None: no process; else whether it has said that it listens
        self.doomed_service = False
        self.timers: set[Timer] = set()
        self.finish: int | None = None
        self.last_kill_timer = False
        self.hosts: set[str] = set()
        self.leaving: set[str] = set()
        self.service_host: str | None = None
        self.asked: set[int] = set()  # ranks of this generation that were signalled
        self.done: set[int] = set()  # those that ended well, and were not
        self.failed: set[int] = set()  # and those that failed, and were not, or were lost with their hosts
        self.begun = self.forgiving = 0
        self.following: deque = deque()  # what is sure to happen next

    def host_of(self, rank: int) -> str | None:
        return self.state.host_of(rank)

    def happen(self, event: Event) -> None:
        self.state, commands = machine.step(self.state, event)
        machine.check(self.state)
        for command in commands:
            assert self.finish is None
            match command:
                case StartService():
                    assert not self.workers and self.service is None
                    self.service, self.doomed_service = False, False
                    self.service_host = command.hosts[0] if command.hosts else None
                    assert set(command.hosts) <= self.hosts - self.leaving
                    self.begun += 1
                case StartWorkers():
                    assert not self.workers and self.service
                    assert set(command.hosts) <= self.hosts - self.leaving
                    count = self.state.policy.num_processes * max(1, len(command.hosts))
                    self.workers = dict.fromkeys(range(count), False)
                    self.started = set(self.workers)
                    self.asked, self.done, self.failed = set(), set(), set()
                case StartNewcomers(ranks=ranks):
                    assert self.workers and self.service and not set(ranks) & self.started
                    self.workers |= dict.fromkeys(ranks, False)
                    self.started |= set(ranks)
                case SignalWorkers(signal=number):
                    for rank in command.ranks:
                        assert rank in self.workers
                        ends_with_host = number == TERM and self.state.phase in (Phase.FORMING, Phase.RUNNING)
                        if number != LEAVE and not ends_with_host:
                            self.asked.add(rank)
                        self.workers[rank] |= number == KILL
                case RetireService():
                    assert not self.workers, "the service must outlive the workers"
                    self.doomed_service = True
                case SetTimer(timer=timer, seconds=seconds):
                    (self.timers.discard if seconds is None else self.timers.add)(timer)
                case Finish(exit_code=code):
                    self.finish = code

    def choices(self, patient: bool) -> list:
        """Events that may happen now; with `patient`, only what the world must bring about in the end."""
        out: list = []
        if self.service is False and not self.doomed_service:
            out.append(lambda e: ServiceReady(**e, address="h:1"))
        if self.service is not None and (self.doomed_service or not patient):
            out.append(lambda e: ServiceExited(**e, status=ExitStatus(signal=9)))
        for rank, doomed in self.workers.items():
            for status in (OK, ExitStatus(code=3), ExitStatus(signal=9), ExitStatus(code=78)):
                if doomed or not patient:
                    out.append(lambda e, r=rank, s=status: WorkerExited(**e, rank=r, status=s))
            if not patient:
                out += [
                    lambda e, r=rank: WorkerJoining(**e, rank=r),
                    lambda e, r=rank, n=self.state.round: WorkerMeshed(**e, rank=r, round=n + r % 2),
                    lambda e, r=rank: WorkerRaised(**e, rank=r, error=GLOO),
                    lambda e, r=rank: WorkerLost(**e, rank=r, why="silent"),
                    lambda e, r=rank: WorkerLost(**e, rank=r, why="gone", ended=True),
                    lambda e, r=rank: WorkerAttentive(**e, rank=r), lambda e, r=rank: WorkerGrowable(**e, rank=r),
                    lambda e, r=rank: WorkerLeft(**e, rank=r),
                    lambda e, r=rank: CheckpointTold(**e, step=r, committed=True),
                ]  # fmt: skip
        out += [lambda e, t=timer: TimerFired(**e, timer=t) for timer in sorted(self.timers, key=lambda t: t.value)
                if not patient or timer is not Timer.KILL]  # fmt: skip
        if not patient:
            out.append(lambda e: CancelRequested(**e, signal=2))
            out += self.host_choices()
            onward = (ServiceReady, WorkerMeshed, HostJoined)  # else few jobs would come as far as to run
            out += 4 * [make for make in out if isinstance(make({"id": 0, "at": 0.0}), onward)]
        return out

    def host_choices(self) -> list:
        """What hosts may do, and users with them."""
        if self.state.policy.nodes is None:
            return []
        out: list = [lambda e: ResizeRequested(**e, nodes=1 + e["id"] % 3)]
        out += [lambda e, h=host: HostJoined(**e, host=h) for host in "abc" if host not in self.hosts]
        for host in sorted(self.hosts):
            out.append(lambda e, h=host: HostLost(**e, host=h, why="silent"))
            if host not in self.leaving:
                out.append(lambda e, h=host: HostLeaving(**e, host=h, why="SIGTERM"))
        return out

    def host_goes(self, host: str) -> None:
        """The ends of what ran there are told next."""
        lost = ExitStatus(lost="silent")
        self.hosts.discard(host)
        self.leaving.discard(host)
        ranks = [rank for rank in self.workers if self.host_of(rank) == host]
        if self.service is not None and self.service_host == host:
            self.following.append(lambda e: ServiceExited(**e, status=lost))
        self.following += [lambda e, r=rank: WorkerExited(**e, rank=r, status=lost) for rank in ranks]

    def take(self, make_event) -> None:
        number = next(self.ids)
        event = make_event({"id": number, "at": float(number)})
        match event:
            case ServiceReady():
                self.service = True
            case ServiceExited():
                self.service = None
            case WorkerExited(rank=rank, status=status):
                del self.workers[rank]
                went = self.host_of(rank) in self.leaving  # what ends then, ends with its host, however
                if rank not in self.asked or status.lost is not None:
                    (self.failed if went or not status.ok else self.done).add(rank)
            case WorkerRaised(rank=rank) | WorkerLost(rank=rank):
                self.failed |= {rank} - self.asked
            case HostJoined(host=host):
                self.hosts.add(host)
            case HostLeaving(host=host):
                self.leaving.add(host)
            case HostLost(host=host):
                self.host_goes(host)
            case CheckpointTold():
                self.forgiving += event.step > self.state.committed
            case TimerFired(timer=timer):
                self.timers.discard(timer)
                self.last_kill_timer = timer is Timer.KILL
        self.happen(event)
        while self.following and self.finish is None:
            self.take(self.following.popleft())

    def check_the_end(self) -> None:
        """What the job's end says is what happened."""
        state = self.state
        assert self.finish is not None and state.phase in FINAL
        assert (self.finish == 0) == (state.phase is Phase.SUCCEEDED) and self.finish == exit_code(state)
        resizes = sum(i.kind is IncidentKind.RESIZE for i in state.incidents)
        assert self.begun <= (1 + self.forgiving) * (1 + state.policy.max_restarts) + resizes
        assert Timer.JOB not in self.timers
        if self.finish == 0:  # each rank that the others did not go on without ended its work by itself
            assert self.started - state.departed == self.done - state.departed != set()
        elif state.incident.kind is IncidentKind.WORKER:
            cause = first_cause(state.incident.failures)
            assert cause.consequence is not None or cause.rank is None or cause.rank in self.failed
        for rank in self.workers:  # nobody is left but who survives SIGKILL
            assert self.workers[rank] and self.last_kill_timer
        assert self.service is None or self.last_kill_timer


@settings(max_examples=400, deadline=None)
@given(
    st.integers(1, 3), st.integers(0, 2), st.sampled_from([None, 9.0]), st.booleans(),
    st.sampled_from([None, (1, 2), (1, 3), (2, 3)]), st.lists(st.integers(0, 10_000), max_size=60), st.data(),
)  # fmt: skip
def test_any_sequence_of_events_ends_and_leaves_nobody(count, restarts, timeout, elastic, nodes, picks, data):
    world = World(Policy(count, restarts, timeout_s=timeout, elastic=elastic, nodes=nodes, last_call_s=0.0))
    world.happen(Start(id=next(world.ids), at=0.0))
    for pick in picks:
        if world.finish is not None:
            break
        options = world.choices(patient=False)
        world.take(options[pick % len(options)])
    if world.finish is None:  # a person presses Ctrl-C twice, and from then on only what must happen happens
        for _ in range(2):
            if world.finish is None:
                world.take(lambda e: CancelRequested(**e, signal=2))
    for _ in range(50):
        if world.finish is not None:
            break
        options = world.choices(patient=True)
        assert options, f"stuck: {world.state}"
        world.take(options[data.draw(st.integers(0, len(options) - 1))])
    world.check_the_end()
