"""The launcher's state machine, without processes, clocks or sleeping."""

from __future__ import annotations

import itertools
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrt.launch import machine
from meshrt.launch.causes import LOST_PEER, LOST_SERVICE, STOPPED, echo_of, first_cause
from meshrt.launch.model import (
    FINAL,
    Announce,
    CancelRequested,
    CheckpointTold,
    Event,
    ExitStatus,
    Failure,
    Finish,
    HostJoined,
    HostLeaving,
    HostLost,
    Incident,
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
    Tell,
    Timer,
    TimerFired,
    WorkerAttentive,
    WorkerError,
    WorkerExited,
    WorkerGrowable,
    WorkerJoining,
    WorkerLost,
    WorkerMeshed,
    WorkerRaised,
)

OK = ExitStatus(code=0)
TERM, KILL = int(signal.SIGTERM), int(signal.SIGKILL)
GLOO = WorkerError("JaxRuntimeError", "UNKNOWN: Gloo all-reduce failed: Connection closed by peer [127.0.0.1]:7597")


class Driver:
    """Feeds events with rising ids and times, checks the promises, and keeps all commands."""

    def __init__(self, **policy):
        self.state = State(Policy(**{"num_processes": 2, **policy}))
        self._ids = itertools.count()
        self.now = 0.0

    def __call__(self, kind: type[Event], **fields):
        self.now += 0.1
        event = kind(id=next(self._ids), at=self.now, **fields)
        self.state, commands = machine.step(self.state, event)
        machine.check(self.state)
        assert all(c.cause == event.id for c in commands)
        self.clocks = {c.timer: c.seconds for c in commands if isinstance(c, SetTimer)}
        return [c for c in commands if not isinstance(c, SetTimer)]

    def running(self):
        self(Start)
        self(ServiceReady, address="h:1")
        for rank in range(self.state.policy.num_processes):
            self(WorkerJoining, rank=rank)
            self(WorkerMeshed, rank=rank)
        assert self.state.phase is Phase.RUNNING
        return self


def kinds(commands):
    return [type(c) for c in commands]


# --- the table.

# Which events each phase accepts, written down a second time.
_ALWAYS = {Timer.JOB, CancelRequested, HostJoined, HostLeaving, HostLost, ResizeRequested}
_WORKERS = {
    WorkerJoining, WorkerMeshed, WorkerAttentive, WorkerGrowable, CheckpointTold, WorkerRaised, WorkerLost,
    WorkerExited,
}  # fmt: skip
EXPECTED = {
    Phase.NEW: {Start},
    Phase.GATHERING: _ALWAYS | {Timer.GATHER, Timer.LAST_CALL, Timer.BACKOFF},
    Phase.WAITING: _ALWAYS | {ServiceReady, ServiceExited, Timer.SERVICE},
    Phase.FORMING: _ALWAYS | _WORKERS | {ServiceReady, ServiceExited, Timer.FORM},
    Phase.RUNNING: _ALWAYS | _WORKERS | {ServiceReady, ServiceExited, Timer.REGROW, Timer.GROW},
    Phase.REGROUPING: _ALWAYS | _WORKERS | {ServiceReady, ServiceExited, Timer.REGROUP},
    Phase.SETTLING: _ALWAYS | _WORKERS | {ServiceReady, ServiceExited, Timer.SETTLE},
    Phase.STOPPING: _ALWAYS | _WORKERS | {ServiceReady, ServiceExited, Timer.GRACE},
    Phase.KILLING: _ALWAYS | _WORKERS | {ServiceReady, ServiceExited, Timer.KILL},
    Phase.SUCCEEDED: set(),
    Phase.FAILED: set(),
    Phase.CANCELLED: set(),
}
_FIELDS = {
    ServiceReady: {"address": "h:1"}, ServiceExited: {"status": OK}, WorkerJoining: {"rank": 0},
    WorkerMeshed: {"rank": 0}, WorkerRaised: {"rank": 0, "error": GLOO}, WorkerExited: {"rank": 0, "status": OK},
    WorkerLost: {"rank": 0, "why": "silent"}, CancelRequested: {"signal": 2}, WorkerAttentive: {"rank": 0},
    WorkerGrowable: {"rank": 0},
    CheckpointTold: {"step": 10, "committed": True},
    HostJoined: {"host": "a"}, HostLost: {"host": "a", "why": "silent"}, HostLeaving: {"host": "a", "why": "asked"},
    ResizeRequested: {"nodes": 2},
}  # fmt: skip


def make(kind):
    if isinstance(kind, Timer):
        return TimerFired(id=7, at=1.0, timer=kind)
    return kind(id=7, at=1.0, **_FIELDS.get(kind, {}))


def test_the_table_holds_exactly_the_expected_pairs():
    assert set(EXPECTED) == set(Phase)
    assert set(machine.TABLE) == {(phase, kind) for phase, kinds in EXPECTED.items() for kind in kinds}


@pytest.mark.parametrize("phase", Phase, ids=lambda p: p.value)
def test_an_absent_pair_is_an_error_that_names_both(phase):
    for kind in set(machine.EVENT_KINDS) - EXPECTED[phase]:
        with pytest.raises(machine.InvalidTransitionError, match=rf"(?s)met .*id=7.* while {phase.value} "):
            machine.step(replace(State(Policy(1)), phase=phase), make(kind))


def test_the_glossary_of_phases_is_complete():
    text = (Path(machine.__file__).parent / "README.md").read_text()
    section = text.partition("## Phases")[2].partition("\nPromises")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == {p.value for p in Phase}


# --- what holds in every state.

_SOUND: dict[Phase, dict] = {
    Phase.NEW: {},
    Phase.GATHERING: {},
    Phase.WAITING: {"service_live": True},
    Phase.FORMING: {"service_live": True, "live": {0, 1}, "joining": {0}},
    Phase.RUNNING: {"service_live": True, "live": {1}, "finished": {0}, "meshed": {0, 1}},
    Phase.REGROUPING: {"service_live": True, "live": {1}, "incident": Incident(IncidentKind.WORKER, 0, 0.0, 0)},
    Phase.SETTLING: {"service_live": True, "live": {1}, "incident": Incident(IncidentKind.WORKER, 0, 0.0, 0)},
    Phase.STOPPING: {"service_live": True},
    Phase.KILLING: {"live": {0}},
    Phase.SUCCEEDED: {"finished": {0, 1}},
    Phase.FAILED: {"live": {1}, "incident": Incident(IncidentKind.WORKER, 0, 0.0, 0)},
    Phase.CANCELLED: {"incident": Incident(IncidentKind.CANCEL, 0, 0.0, 0)},
}


def sound(phase, **changes):
    fields = {k: frozenset(v) if isinstance(v, set) else v for k, v in {**_SOUND[phase], **changes}.items()}
    return State(Policy(2), phase=phase, **fields)


@pytest.mark.parametrize("phase", Phase, ids=lambda p: p.value)
def test_a_sound_state_of_each_phase_passes(phase):
    machine.check(sound(phase))


@pytest.mark.parametrize(
    ("phase", "changes", "rule"),
    [
        (Phase.RUNNING, {"finished": {0, 1}}, "live and finished ranks are apart"),
        (Phase.RUNNING, {"live": {1, 2}}, "ranks are in range"),
        (Phase.RUNNING, {"finished": {2}}, "ranks are in range"),
        (Phase.FORMING, {"joining": {2}}, "ranks are in range"),
        (Phase.FORMING, {"meshed": {-1}}, "ranks are in range"),
        (Phase.SUCCEEDED, {"service_live": True}, "workers are never left in a final phase"),
        (Phase.CANCELLED, {"live": {0}}, "workers are never left in a final phase"),
        (Phase.NEW, {"live": {0}}, "no worker before the service is ready"),
        (Phase.WAITING, {"live": {0}}, "no worker before the service is ready"),
        (Phase.FORMING, {"service_live": False}, "workers run only beside a service"),
        (Phase.RUNNING, {"service_live": False}, "workers run only beside a service"),
        (Phase.RUNNING, {"live": set()}, "workers run only beside a service"),
        (Phase.REGROUPING, {"live": set()}, "workers run only beside a service"),
        (Phase.REGROUPING, {"incident": None}, "a phase that ends a generation knows why"),
        (Phase.SETTLING, {"incident": None}, "a phase that ends a generation knows why"),
        (Phase.FAILED, {"incident": None}, "a phase that ends a generation knows why"),
        (Phase.CANCELLED, {"incident": None}, "a phase that ends a generation knows why"),
        (Phase.NEW, {"generation": 1}, "the restart budget is kept"),
        (Phase.SUCCEEDED, {"finished": {1}}, "success means all finished"),
        (Phase.WAITING, {"service_live": False}, "something is left to wait for"),
        (Phase.STOPPING, {"service_live": False}, "something is left to wait for"),
        (Phase.KILLING, {"live": set()}, "something is left to wait for"),
    ],
)
def test_a_broken_promise_is_named_alone(phase, changes, rule):
    with pytest.raises(machine.InternalError) as found:
        machine.check(sound(phase, **changes))
    broken = str(found.value).removeprefix("the launcher's state breaks: ").partition(": State(")[0]
    assert broken.startswith(rule) and ";" not in broken


# --- one idea each.


@pytest.mark.smoke
def test_a_job_that_succeeds():
    do = Driver()
    assert do(Start) == [StartService(generation=0, cause=0)]
    assert do(ServiceReady, address="h:1") == [StartWorkers(generation=0, address="h:1", cause=1)]
    assert do(WorkerExited, rank=1, status=OK) == []
    assert do(WorkerExited, rank=0, status=OK) == [RetireService(cause=3)]
    assert do(ServiceExited, status=ExitStatus(signal=9)) == [Finish(exit_code=0, cause=4)]
    assert do.state.phase is Phase.SUCCEEDED
    assert [(s.before.value, s.after.value) for s in do.state.story] == [
        ("new", "waiting"), ("waiting", "forming"), ("forming", "stopping"), ("stopping", "succeeded"),
    ]  # fmt: skip


def test_the_first_cause_is_the_raiser_even_if_its_peer_is_noticed_first():
    do = Driver(num_processes=3).running()
    assert do(WorkerRaised, rank=0, error=GLOO) == []
    assert do.state.phase is Phase.SETTLING
    do(WorkerExited, rank=0, status=ExitStatus(code=1))
    do(WorkerRaised, rank=2, error=WorkerError("ValueError", "bad batch"))
    do(WorkerExited, rank=2, status=ExitStatus(code=3))
    stop = do(TimerFired, timer=Timer.SETTLE)
    assert stop == [SignalWorkers(ranks=(1,), signal=TERM, cause=do.state.story[-1].event)]
    assert kinds(do(WorkerExited, rank=1, status=ExitStatus(signal=TERM))) == [RetireService]
    announce, finish = do(ServiceExited, status=ExitStatus(signal=9))
    failures = announce.incident.failures
    assert [(f.rank, f.consequence) for f in failures] == [(0, LOST_PEER), (2, None), (1, STOPPED)]
    cause = first_cause(failures)
    assert (cause.rank, cause.error.message, cause.status.code) == (2, "bad batch", 3)
    assert finish.exit_code == 3 and do.state.phase is Phase.FAILED


def test_a_killed_worker_gives_128_plus_signal():
    do = Driver().running()
    do(WorkerExited, rank=1, status=ExitStatus(signal=KILL))
    do(WorkerRaised, rank=0, error=GLOO)
    do(WorkerExited, rank=0, status=ExitStatus(code=1))
    assert do(ServiceExited, status=ExitStatus(signal=9))[-1].exit_code == 137


def test_a_raiser_that_does_not_leave_is_stopped_and_counts_as_an_exception():
    do = Driver(num_processes=1).running()
    do(WorkerRaised, rank=0, error=WorkerError("ValueError", "x"))
    do(TimerFired, timer=Timer.SETTLE)
    do(WorkerExited, rank=0, status=ExitStatus(signal=TERM))
    assert do(ServiceExited, status=OK)[-1].exit_code == 1


@pytest.mark.parametrize(("first", "status"), [(True, ExitStatus(signal=KILL)), (False, OK)])
def test_whom_the_door_blames_is_the_cause_also_if_it_was_stopped_or_ended_well(first, status):
    do = Driver().running()
    events = [(WorkerLost, {"rank": 1, "why": "nothing was heard of it"}), (WorkerRaised, {"rank": 0, "error": GLOO})]
    for kind, fields in events if first else reversed(events):
        do(kind, **fields)
    do(WorkerExited, rank=0, status=ExitStatus(code=1))
    do(TimerFired, timer=Timer.SETTLE)
    do(WorkerExited, rank=1, status=status)
    announce, finish = do(ServiceExited, status=OK)
    cause = first_cause(announce.incident.failures)
    assert (cause.rank, cause.error.message, finish.exit_code) == (1, "nothing was heard of it", 1)


def test_losing_the_service_stops_the_workers_and_is_the_cause():
    do = Driver().running()
    assert do(ServiceExited, status=ExitStatus(signal=KILL)) == [
        SignalWorkers(ranks=(0, 1), signal=TERM, cause=do.state.story[-1].event)
    ]
    do(WorkerExited, rank=0, status=ExitStatus(signal=6))
    announce, finish = do(WorkerExited, rank=1, status=ExitStatus(signal=6))
    assert first_cause(announce.incident.failures).rank is None
    assert finish.exit_code == 137


def test_a_worker_that_ignores_the_signal_is_killed():
    do = Driver().running()
    do(CancelRequested, signal=2)
    assert do(TimerFired, timer=Timer.GRACE) == [
        SignalWorkers(ranks=(0, 1), signal=KILL, cause=do.state.story[-1].event)
    ]
    do(WorkerExited, rank=0, status=ExitStatus(signal=KILL))
    do(WorkerExited, rank=1, status=ExitStatus(signal=KILL))
    assert do(ServiceExited, status=OK)[-1].exit_code == 130
    assert do.state.phase is Phase.CANCELLED


def test_a_second_interrupt_ends_the_grace():
    do = Driver().running()
    assert do(CancelRequested, signal=2)[0].signal == 2
    assert do(CancelRequested, signal=2)[0].signal == KILL
    assert do(CancelRequested, signal=2) == []


def test_an_unkillable_worker_is_named_and_the_job_ends():
    do = Driver().running()
    do(CancelRequested, signal=15)
    do(TimerFired, timer=Timer.GRACE)
    do(WorkerExited, rank=0, status=ExitStatus(signal=KILL))
    announce, finish = do(TimerFired, timer=Timer.KILL)
    assert "rank 1 did not end within 10 s of SIGKILL" in announce.incident.detail
    assert do.state.phase is Phase.FAILED and finish.exit_code != 0


def test_a_restart_begins_a_new_generation_and_the_budget_is_kept():
    do = Driver(num_processes=1, max_restarts=1)
    do(Start)
    do(ServiceReady, address="h:1")
    do(WorkerExited, rank=0, status=ExitStatus(code=1))
    announce, start = do(ServiceExited, status=OK)
    assert (announce.restart, start.generation) == (1, 1)
    workers = do(ServiceReady, address="h:2")
    assert workers == [StartWorkers(generation=1, address="h:2", cause=do.state.story[-1].event)]
    do(WorkerExited, rank=0, status=ExitStatus(code=4))
    announce, finish = do(ServiceExited, status=OK)
    assert announce.restart is None and finish.exit_code == 4
    assert len(do.state.incidents) == 1


def fail_once(do):
    do(WorkerExited, rank=0, status=ExitStatus(code=1))
    do(ServiceExited, status=OK)
    do(ServiceReady, address="h:1")


def test_a_job_that_came_further_has_all_of_its_restarts_again():
    do = Driver(num_processes=1, max_restarts=1).running()
    for step in (10, 20, 30):
        do(CheckpointTold, step=step, committed=True)
        fail_once(do)
        assert do.state.charged == 1
    do(CheckpointTold, step=40, committed=False)  # not complete yet
    do(CheckpointTold, step=30, committed=True)  # no further than before: a loop of failures must end
    do(WorkerExited, rank=0, status=ExitStatus(code=4))
    announce, finish = do(ServiceExited, status=OK)
    assert (announce.restart, finish.exit_code, do.state.restarts) == (None, 4, 3)


def test_workers_that_save_when_asked_get_the_time_for_it():
    do = Driver(grace_s=5.0, checkpoint_s=60.0).running()
    do(WorkerAttentive, rank=1)
    do(CheckpointTold, step=10, committed=False)
    assert kinds(do(CancelRequested, signal=TERM)) == [SignalWorkers, Tell] and do.clocks[Timer.GRACE] == 60.0
    assert do(CheckpointTold, step=10, committed=True) == [] and not do.clocks  # it was being written before
    do(CheckpointTold, step=17, committed=False)
    assert kinds(do(CheckpointTold, step=17, committed=True)) == [Tell] and do.clocks == {Timer.GRACE: 5.0}
    do(WorkerExited, rank=0, status=OK)
    do(WorkerExited, rank=1, status=OK)
    assert do(ServiceExited, status=OK)[-1].exit_code == 128 + TERM


@pytest.mark.parametrize("attentive", [True, False])
def test_nobody_waits_for_a_checkpoint_that_cannot_come(attentive):
    do = Driver(grace_s=5.0, checkpoint_s=60.0).running()
    if attentive:
        do(WorkerAttentive, rank=0)
    do(CancelRequested, signal=TERM)
    assert do.clocks[Timer.GRACE] == (60.0 if attentive else 5.0)
    do(WorkerExited, rank=1, status=ExitStatus(signal=TERM))
    assert do.clocks == ({Timer.GRACE: 5.0} if attentive else {})
    interrupted = Driver(grace_s=5.0, checkpoint_s=60.0).running()
    interrupted(WorkerAttentive, rank=0)
    interrupted(CancelRequested, signal=2)
    assert interrupted.clocks[Timer.GRACE] == 5.0  # Ctrl-C ends what runs, and a failure lets nobody save
    failed = Driver(grace_s=5.0, checkpoint_s=60.0).running()
    failed(WorkerAttentive, rank=0)
    failed(WorkerExited, rank=1, status=ExitStatus(code=1))
    failed(TimerFired, timer=Timer.SETTLE)
    assert failed.clocks[Timer.GRACE] == 5.0


@pytest.mark.parametrize("attentive", [True, False])
def test_ranks_that_save_do_so_when_a_host_leaves_and_start_again_without_it(attentive):
    do = Driver(num_processes=1, nodes=(1, 2), checkpoint_s=60.0)
    do(Start)
    for host in "ab":
        do(HostJoined, host=host)
    do(ServiceReady, address="h:1")
    for rank in range(2):
        do(WorkerMeshed, rank=rank)
    if attentive:
        do(WorkerAttentive, rank=0)
    commands = do(HostLeaving, host="b", why="its agent was stopped by SIGTERM")
    if not attentive:  # what ends there is told beside this
        assert commands == [] and do.state.hosts == ("a",) and do.state.phase is Phase.RUNNING
        return
    assert do.clocks[Timer.GRACE] == 60.0 and (commands[0].ranks, commands[0].signal) == ((0, 1), TERM)
    for rank in range(2):
        do(WorkerExited, rank=rank, status=OK)
    announce, service = do(ServiceExited, status=OK)
    assert announce.incident.detail == "host b leaves (its agent was stopped by SIGTERM); the job goes on without it"
    assert service.hosts == ("a",) and do.state.charged == 0


def test_those_that_are_left_go_on_and_the_job_succeeds_without_the_lost_ones():
    do = Driver(num_processes=4, elastic=True).running()
    assert do(WorkerExited, rank=1, status=ExitStatus(signal=9)) == [] and do.state.phase is Phase.REGROUPING
    do(WorkerMeshed, rank=0, round=1)
    do(WorkerExited, rank=3, status=ExitStatus(signal=9))  # one more, meanwhile
    announce = do(WorkerMeshed, rank=2, round=1)[0]
    assert (announce.left, announce.restart, first_cause(announce.incident.failures).rank) == (2, None, 1)
    assert do.state.phase is Phase.RUNNING and do.state.departed == {1, 3}
    do(WorkerLost, rank=2, why="silent")  # it may be there still
    assert kinds(do(WorkerMeshed, rank=0, round=2)) == [Announce, SignalWorkers]
    do(WorkerExited, rank=2, status=ExitStatus(signal=9))
    do(WorkerExited, rank=0, status=OK)
    assert do(ServiceExited, status=OK)[-1].exit_code == 0 and do.state.restarts == 0


@pytest.mark.parametrize(
    "events",
    [
        [(WorkerRaised, {"rank": 0, "error": WorkerError("PeerLost", "process 1 was lost")})],
        [(TimerFired, {"timer": Timer.REGROUP})],
        [(WorkerExited, {"rank": 0, "status": ExitStatus(signal=9)})],
        [(WorkerExited, {"rank": 0, "status": ExitStatus(code=78)})],
        [(ServiceExited, {"status": ExitStatus(signal=9)})],
        [(CancelRequested, {"signal": TERM})],
    ],
)
def test_where_the_others_do_not_go_on_all_end(events):
    do = Driver(num_processes=3, elastic=True).running()
    do(WorkerAttentive, rank=0)
    do(WorkerExited, rank=1, status=ExitStatus(signal=9))
    for kind, fields in events:
        do(kind, **fields)
    if events[0][0] is WorkerExited and do.state.phase is Phase.REGROUPING:
        do(WorkerExited, rank=2, status=ExitStatus(signal=9))
    assert do.state.phase in (Phase.SETTLING, Phase.STOPPING) and do.clocks.get(Timer.GRACE) in (None, 5.0)


@pytest.mark.parametrize("status", [ExitStatus(code=78)])
def test_a_configuration_error_is_never_restarted(status):
    do = Driver(num_processes=1, max_restarts=5)
    do(Start)
    do(ServiceReady, address="h:1")
    do(WorkerExited, rank=0, status=status)
    assert kinds(do(ServiceExited, status=OK)) == [Announce, Finish]


def test_cancelling_a_failing_job_prevents_its_restart():
    do = Driver(max_restarts=5).running()
    do(WorkerExited, rank=1, status=ExitStatus(code=9))
    do(CancelRequested, signal=15)
    do(WorkerExited, rank=0, status=ExitStatus(signal=15))
    assert do(ServiceExited, status=OK)[-1] == Finish(exit_code=9, cause=do.state.story[-1].event)


def test_cancelling_while_killing_prevents_the_restart_too():
    do = Driver(num_processes=1, max_restarts=5).running()
    do(WorkerRaised, rank=0, error=WorkerError("ValueError", "x"))
    do(TimerFired, timer=Timer.SETTLE)
    do(TimerFired, timer=Timer.GRACE)
    do(CancelRequested, signal=2)
    do(WorkerExited, rank=0, status=ExitStatus(signal=KILL))
    assert kinds(do(ServiceExited, status=OK)) == [Announce, Finish]


def test_the_time_limit_ends_the_job_with_124_and_no_restart():
    do = Driver(timeout_s=5.0, max_restarts=3).running()
    do(TimerFired, timer=Timer.JOB)
    assert do.state.incident.kind is IncidentKind.TIMEOUT
    do(WorkerExited, rank=0, status=ExitStatus(signal=15))
    do(WorkerExited, rank=1, status=ExitStatus(signal=15))
    assert do(ServiceExited, status=OK)[-1].exit_code == 124


def test_a_rank_that_never_connects_is_named():
    do = Driver(num_processes=4)
    do(Start)
    do(ServiceReady, address="h:1")
    do(WorkerJoining, rank=0)
    do(WorkerJoining, rank=3)
    do(WorkerExited, rank=2, status=OK)
    do(TimerFired, timer=Timer.FORM)
    assert do.state.incident.detail == (
        "rank 1 did not call meshrt.distributed.initialize() and rank 2 finished without it "
        "within 300 s of the first rank's call"
    )


def test_timers_of_a_phase_are_set_and_cleared():
    do = Driver()
    _, first = machine.step(do.state, Start(id=0, at=0.0))
    assert [c for c in first if isinstance(c, SetTimer)] == [SetTimer(timer=Timer.SERVICE, seconds=60.0, cause=0)]
    do(Start)
    _, then = machine.step(do.state, ServiceReady(id=1, at=0.0, address="h:1"))
    assert [c for c in then if isinstance(c, SetTimer)] == [SetTimer(timer=Timer.SERVICE, seconds=None, cause=1)]


# --- echoes.


@pytest.mark.parametrize(
    ("status", "error", "tail", "expected"),
    [
        (ExitStatus(code=1), GLOO, (), LOST_PEER),
        (ExitStatus(code=1), WorkerError("RuntimeError", "step failed", (*GLOO.message.splitlines(), "the above")), (),
         LOST_PEER),
        (ExitStatus(code=1), WorkerError("ValueError", "x"), (GLOO.message,), None),
        (ExitStatus(code=1), None, (GLOO.message,), LOST_PEER),
        (ExitStatus(signal=6), None, ("JAX distributed service detected fatal errors.",), LOST_SERVICE),
        (ExitStatus(signal=9), None, (GLOO.message,), None),
        (ExitStatus(signal=11), None, (), None),
    ],
)  # fmt: skip
def test_echoes_are_recognised(status, error, tail, expected):
    assert echo_of(status, error, tail) == expected


def test_the_earliest_is_the_cause_if_all_are_echoes():
    failures = (Failure(1, 2.0, consequence=LOST_PEER), Failure(0, 1.0, consequence=LOST_PEER))
    assert first_cause(failures).rank == 0
    assert first_cause(()) is None


# --- any sequence of events ends, and leaves nobody behind.


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
