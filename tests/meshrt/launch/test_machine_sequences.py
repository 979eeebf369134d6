"""The launcher's state machine: any sequence of events ends, and leaves nobody behind."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from meshrt.launch import machine
from meshrt.launch.model import (
    FINAL,
    CancelRequested,
    CheckpointTold,
    Event,
    ExitStatus,
    Finish,
    Phase,
    Policy,
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
    WorkerLost,
    WorkerMeshed,
    WorkerRaised,
)
from tests.meshrt.launch.stepping import GLOO, KILL, OK


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

    def happen(self, event: Event) -> None:
        self.state, commands = machine.step(self.state, event)
        machine.check(self.state)
        for command in commands:
            assert self.finish is None
            match command:
                case StartService():
                    assert not self.workers and self.service is None
                    self.service, self.doomed_service = False, False
                case StartWorkers():
                    assert not self.workers and self.service
                    self.workers = dict.fromkeys(range(self.state.policy.num_processes), False)
                    self.started = set(self.workers)
                case StartNewcomers(ranks=ranks):
                    assert self.workers and self.service and not set(ranks) & self.started
                    self.workers |= dict.fromkeys(ranks, False)
                    self.started |= set(ranks)
                case SignalWorkers(signal=number):
                    for rank in command.ranks:
                        assert rank in self.workers
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
                    lambda e, r=rank: WorkerAttentive(**e, rank=r), lambda e, r=rank: WorkerGrowable(**e, rank=r),
                    lambda e, r=rank: CheckpointTold(**e, step=r, committed=True),
                ]  # fmt: skip
        out += [lambda e, t=timer: TimerFired(**e, timer=t) for timer in sorted(self.timers, key=lambda t: t.value)
                if not patient or timer is not Timer.KILL]  # fmt: skip
        if not patient:
            out.append(lambda e: CancelRequested(**e, signal=2))
        return out

    def take(self, make_event) -> None:
        number = next(self.ids)
        event = make_event({"id": number, "at": float(number)})
        match event:
            case ServiceReady():
                self.service = True
            case ServiceExited():
                self.service = None
            case WorkerExited(rank=rank):
                del self.workers[rank]
            case TimerFired(timer=timer):
                self.timers.discard(timer)
                self.last_kill_timer = timer is Timer.KILL
        self.happen(event)


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 3), st.integers(0, 2), st.sampled_from([None, 9.0]), st.booleans(),
    st.lists(st.integers(0, 10_000), max_size=60), st.data(),
)  # fmt: skip
def test_any_sequence_of_events_ends_and_leaves_nobody(count, restarts, timeout, elastic, picks, data):
    world = World(Policy(count, restarts, timeout_s=timeout, elastic=elastic))
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
    assert world.finish is not None and world.state.phase in FINAL
    assert (world.finish == 0) == (world.state.phase is Phase.SUCCEEDED)
    assert world.state.generation <= restarts
    assert Timer.JOB not in world.timers
    if not world.last_kill_timer:
        assert not world.workers and world.service is None
