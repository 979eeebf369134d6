"""The launcher's state machine, without processes, clocks or sleeping: one idea each."""

from __future__ import annotations

import itertools

import pytest

from meshrt.launch import machine, report
from meshrt.launch.causes import LOST_PEER, STOPPED, first_cause
from meshrt.launch.model import (
    Announce,
    CancelRequested,
    CheckpointTold,
    ExitStatus,
    Finish,
    HostJoined,
    HostLeaving,
    HostLost,
    IncidentKind,
    Phase,
    ResizeRequested,
    RetireService,
    ServiceExited,
    ServiceReady,
    SetTimer,
    SignalWorkers,
    Start,
    StartService,
    StartWorkers,
    Tell,
    Timer,
    TimerFired,
    WorkerAttentive,
    WorkerError,
    WorkerExited,
    WorkerJoining,
    WorkerLeft,
    WorkerLost,
    WorkerMeshed,
    WorkerRaised,
)
from tests.meshrt.launch.stepping import GLOO, KILL, OK, TERM, Driver, kinds


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


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (OK, 1, "lost to the others: it left without a word (by os._exit?), and the others needed it [exit code 0]"),
        (ExitStatus(signal=KILL), 137, "killed by SIGKILL"),
    ],
)
@pytest.mark.parametrize("order", ["gone first", "noticed first", "told last"])
def test_who_vanished_is_the_cause_where_the_others_needed_it_with_exit_code_0_too(status, code, text, order):
    do = Driver().running()
    gone = (WorkerExited, {"rank": 1, "status": status})
    told = (WorkerLost, {"rank": 1, "why": "its connection closed", "ended": True})
    echo = (WorkerRaised, {"rank": 0, "error": WorkerError("PeerLost", "process 1 was lost")})
    events = {"gone first": [gone, told, echo], "noticed first": [echo, told, gone], "told last": [gone, echo, told]}
    for kind, fields in events[order]:
        do(kind, **fields)
    do(WorkerExited, rank=0, status=ExitStatus(code=1))
    announce, finish = do(ServiceExited, status=OK)
    said = report.describe(announce, 0.0)
    assert said.startswith(f"meshrt launch: rank 1 failed first: {text} (") and finish.exit_code == code
    assert "rank 0 lost its connection to a peer" in said


def test_who_vanishes_when_the_others_are_done_with_it_is_not_to_blame():
    do = Driver().running()
    for rank in range(2):
        do(WorkerLost, rank=rank, why="its connection closed", ended=True)
        do(WorkerExited, rank=rank, status=OK)
    assert do(ServiceExited, status=OK)[-1].exit_code == 0


VANISHES = [
    (WorkerLost, {"rank": 1, "why": "its connection closed", "ended": True}),
    (WorkerExited, {"rank": 1, "status": OK}),
]
TOGETHER = (WorkerMeshed, {"rank": 0, "round": 1})


@pytest.mark.parametrize(
    "order", list(itertools.permutations([*VANISHES, TOGETHER])), ids=lambda o: "-".join(k.__name__ for k, _ in o)
)
def test_the_others_go_on_without_one_that_vanished_with_exit_code_0_and_that_is_said(order):
    do = Driver(num_processes=3, elastic=True).running()
    *before, told = [do(kind, **fields) for kind, fields in order]
    assert before == [[], []] and "rank 1 left without a word, with exit code 0" in told[0].text
    assert do(WorkerMeshed, rank=2, round=1) == []
    for rank in (0, 2):
        do(WorkerExited, rank=rank, status=OK)
    assert do(ServiceExited, status=OK)[-1].exit_code == 0
    assert report.summary(do.state) == "meshrt launch: succeeded without rank 1"


def test_nobody_goes_on_without_one_that_vanished_where_all_others_have_handed_over():
    do = Driver(elastic=True).running()
    do(WorkerLeft, rank=1)
    do(WorkerMeshed, rank=1, round=1)
    do(WorkerLost, rank=0, why="its connection closed", ended=True)
    assert do(WorkerExited, rank=0, status=OK) == []
    do(WorkerExited, rank=1, status=OK)
    assert do(ServiceExited, status=OK)[-1].exit_code == 0 and tuple(do.state.finished) == (0,)


def test_that_one_vanished_is_said_too_where_another_one_failed_at_the_same_time():
    do = Driver(num_processes=4, elastic=True).running()
    do(WorkerExited, rank=2, status=ExitStatus(code=3))
    for kind, fields in VANISHES:
        do(kind, **fields)
    do(WorkerMeshed, rank=0, round=1)
    said = do(WorkerMeshed, rank=3, round=1)
    assert do.state.phase is Phase.RUNNING and any("rank 1 left" in c.text for c in said if isinstance(c, Tell))
    for rank in (0, 3):
        do(WorkerExited, rank=rank, status=OK)
    do(ServiceExited, status=OK)
    assert report.summary(do.state) == "meshrt launch: succeeded without rank 1, 2"


def test_a_host_that_is_found_lost_while_the_others_end_for_its_sake_is_the_cause():
    """Its agent was killed, say: what ran there is gone at once, the host is missed some seconds later."""
    do = Driver(num_processes=1, nodes=(2, 2))
    do(Start)
    for host in "ab":
        do(HostJoined, host=host)
    do(ServiceReady, address="h:1")
    for rank in range(2):
        do(WorkerMeshed, rank=rank)
    do(WorkerRaised, rank=0, error=GLOO)
    do(WorkerExited, rank=0, status=ExitStatus(code=1))
    do(TimerFired, timer=Timer.SETTLE)
    do(HostLost, host="b", why="silent")
    do(WorkerExited, rank=1, status=ExitStatus(lost="silent"))
    announce, finish = do(ServiceExited, status=ExitStatus(signal=9))
    said = report.describe(announce, 0.0)
    assert said.startswith("meshrt launch: rank 1 on b failed first: lost with its host: silent (")
    assert "then: rank 0 on a lost its connection to a peer [exit code 1]" in said and finish.exit_code == 1


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
    said = report.describe(announce, 0.0)
    assert said.startswith("meshrt launch: stopped by SIGTERM: rank 1 did not end within 10 s of SIGKILL and had to be")
    assert do.state.phase is Phase.FAILED and finish.exit_code != 0


def test_a_job_that_cannot_go_on_says_why_and_not_that_a_signal_came():
    do = Driver(num_processes=1, nodes=(1, 2), max_restarts=3)
    do(Start)
    announce, finish = do(CancelRequested, signal=None, why="no agent can come")
    assert report.describe(announce, 0.0) == "meshrt launch: stopped: no agent can come (0.2 s after the start)"
    assert do.state.phase is Phase.CANCELLED and finish.exit_code == 1


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


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_ranks_that_leave_once_they_have_saved_have_not_done_their_work(max_restarts):
    do = Driver(max_restarts=max_restarts).running()
    for rank in (0, 1):  # the launcher sent no signal: somebody else did
        do(WorkerAttentive, rank=rank)
        do(WorkerAttentive, rank=rank, saving=True)
    assert do(WorkerExited, rank=1, status=OK) == [] and do.state.phase is Phase.RUNNING  # the other one saves
    do(WorkerExited, rank=0, status=OK)
    announce, last = do(ServiceExited, status=OK)
    assert "rank 0, 1 saved and left, as SIGTERM to a rank had asked" in report.describe(announce, 0.0)
    if max_restarts:
        assert announce.restart == 1 and isinstance(last, StartService) and not do.state.saving
    else:
        assert last.exit_code == 128 + TERM and do.state.phase is Phase.FAILED


def test_ranks_that_go_on_after_they_have_saved_do_their_work():
    do = Driver().running()
    for rank in (0, 1):
        do(WorkerAttentive, rank=rank, saving=True)
        do(WorkerAttentive, rank=rank)
        do(WorkerExited, rank=rank, status=OK)
    assert do(ServiceExited, status=OK)[-1].exit_code == 0


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
    if not attentive:  # those there end
        assert [(c.ranks, c.signal) for c in commands] == [((1,), TERM)]
        assert do.state.hosts == ("a",) and do.state.phase is Phase.RUNNING
        return
    assert do.clocks[Timer.GRACE] == 60.0 and (commands[0].ranks, commands[0].signal) == ((0, 1), TERM)
    for rank in range(2):
        do(WorkerExited, rank=rank, status=OK)
    announce, service = do(ServiceExited, status=OK)
    assert announce.incident.detail == "host b leaves (its agent was stopped by SIGTERM); the job goes on without it"
    assert service.hosts == ("a",) and do.state.charged == 0


@pytest.mark.parametrize("phase", ["waiting", "forming", "attentive later", "regrouping"])
def test_a_host_that_leaves_before_all_are_together_does_not_end_the_job_well(phase):
    do = Driver(num_processes=1, nodes=(1, 3), elastic=True)
    do(Start)
    for host in "abc":
        do(HostJoined, host=host)
    leave = {"host": "b", "why": "SIGTERM"}
    if phase == "waiting":  # nothing was started yet
        do(HostLeaving, **leave)
    else:
        do(ServiceReady, address="h:1")
        do(WorkerMeshed, rank=0)
        if phase != "attentive later":
            do(WorkerAttentive, rank=0)
        if phase == "regrouping":
            do(WorkerMeshed, rank=1)
            do(WorkerMeshed, rank=2)
            do(WorkerExited, rank=2, status=ExitStatus(code=3))
            do(WorkerMeshed, rank=0, round=1)
        do(HostLeaving, **leave)
        if phase == "attentive later":
            do(WorkerAttentive, rank=0)
        elif phase == "regrouping":
            assert do.state.phase is Phase.REGROUPING  # they come together first, to save together
            do(WorkerMeshed, rank=1, round=1)
        assert do.state.phase is Phase.STOPPING
        for rank in sorted(do.state.live):
            do(WorkerExited, rank=rank, status=OK)
    service = do(ServiceExited, status=OK)[-1]
    assert service.hosts == ("a", "c") and do.state.charged == 0


def test_what_ends_well_on_a_host_that_leaves_has_not_ended_its_work():
    do = Driver(num_processes=1, nodes=(1, 2))
    do(Start)
    for host in "ab":
        do(HostJoined, host=host)
    do(ServiceReady, address="h:1")
    do(HostLeaving, host="b", why="SIGTERM")
    for rank in (1, 0):
        do(WorkerExited, rank=rank, status=OK)
    announce, finish = do(ServiceExited, status=OK)
    (failure,) = announce.incident.failures
    assert (failure.rank, failure.host, finish.exit_code) == (1, "b", 1) and "asked it to end" in failure.status.lost


@pytest.mark.parametrize(("event", "code"), [(lambda do: do(CancelRequested, signal=15), 143),
                                             (lambda do: do(TimerFired, timer=Timer.JOB), 124)])  # fmt: skip
def test_who_ends_a_job_that_stops_only_to_go_on_with_other_hosts_is_why_it_ends(event, code):
    do = Driver(num_processes=1, nodes=(1, 2), timeout_s=9.0)
    do(Start)
    for host in "ab":
        do(HostJoined, host=host)
    do(ServiceReady, address="h:1")
    for rank in range(2):
        do(WorkerMeshed, rank=rank)
    do(ResizeRequested, nodes=1)
    event(do)
    for rank in range(2):
        do(WorkerExited, rank=rank, status=ExitStatus(signal=15))
    assert do(ServiceExited, status=OK)[-1].exit_code == code


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
