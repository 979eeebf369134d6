"""Ranks that leave the others, which go on: what launcher and door decide, how they are asked, and a real job."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
import types

import pytest

from meshrt.launch import parting, shell
from meshrt.launch.engines.protocol import Capabilities, Said, Task
from meshrt.launch.hosts.duties import Kill
from meshrt.launch.hosts.security import Trust
from meshrt.launch.model import (
    ExitStatus,
    HostJoined,
    HostLeaving,
    HostLost,
    IncidentKind,
    Phase,
    ResizeRequested,
    ServiceExited,
    ServiceReady,
    SignalWorkers,
    Start,
    StartNewcomers,
    Tell,
    Timer,
    TimerFired,
    WorkerAttentive,
    WorkerError,
    WorkerExited,
    WorkerGrowable,
    WorkerLeft,
    WorkerMeshed,
    WorkerRaised,
)
from meshrt.launch.output import Console
from meshrt.launch.parting import LEAVE
from meshrt.launch.report import summary
from meshrt.launch.settings import Settings
from tests.meshrt.launch import simulated
from tests.meshrt.launch.stepping import KILL, OK, TERM, Driver, kinds
from tests.meshrt.launch.test_growing import GROWS
from tests.meshrt.launch.test_roster import Job

# --- the launcher.


def running(hosts="ab", each=2, growable=True, **policy):
    do = Driver(**{"num_processes": each, "nodes": (1, len(hosts)), "elastic": True, **policy})
    do(Start)
    for host in hosts:
        do(HostJoined, host=host)
    do(ServiceReady, address="h:1")
    for rank in range(each * len(hosts)):
        do(WorkerMeshed, rank=rank)
    if growable:
        do(WorkerGrowable, rank=0)
    assert do.state.phase is Phase.RUNNING
    return do


def leave(do, *ranks):
    told = []
    for rank in ranks:
        do(WorkerLeft, rank=rank)
        told += do(WorkerExited, rank=rank, status=OK)
    return told


def test_the_ranks_of_hosts_that_are_too_many_leave_and_the_others_end_the_work():
    do = running()
    signals, told = do(ResizeRequested, nodes=1)
    assert signals.ranks == (2, 3) and signals.signal == LEAVE and do.clocks == {Timer.SHRINK: 300.0}
    assert told.text == "the ranks 2, 3 on b are to leave; the others go on with the state"
    assert leave(do, 3) == [] and do.state.phase is Phase.RUNNING
    assert [c.text for c in leave(do, 2)] == ["the job has shrunk to 2 ranks on 1 host"]
    assert do.clocks == {Timer.SHRINK: None}
    for rank in (0, 1):
        do(WorkerExited, rank=rank, status=OK)
    assert do(ServiceExited, status=OK)[-1].exit_code == 0
    assert summary(do.state) == "meshrt launch: succeeded without rank 2, 3, which left when asked to"
    assert do.state.charged == 0


def test_a_host_that_leaves_takes_no_part_of_the_state_along():
    do = running(max_restarts=0)
    signals, told = do(HostLeaving, host="b", why="its agent was stopped by SIGTERM")
    assert (signals.ranks, signals.signal) == ((2, 3), LEAVE)
    assert do.clocks == {Timer.SHRINK: 150.0}  # all still have time to save before the agent ends its ranks
    assert told.text == "the ranks 2, 3 on b are to leave; the others go on with the state"
    assert do(HostLeaving, host="b", why="in another session") == [] and not do.clocks
    leave(do, 2)
    do(WorkerLeft, rank=3)
    assert do(WorkerAttentive, rank=0) == []  # the others go on, and ask whether to save, before it has ended
    do(WorkerExited, rank=3, status=OK)
    do(HostLost, host="b", why="its agent was stopped by SIGTERM")
    assert do.state.phase is Phase.RUNNING and do.state.live == {0, 1} and do.state.charged == 0
    for rank in (0, 1):
        do(WorkerExited, rank=rank, status=OK)
    assert do(ServiceExited, status=OK)[-1].exit_code == 0


def test_the_ranks_of_a_host_that_leaves_all_start_again_without_it_if_they_do_not_leave_in_time():
    do = running()
    do(HostLeaving, host="b", why="SIGTERM")
    assert [c.signal for c in do(TimerFired, timer=Timer.SHRINK)] == [TERM] and do.state.phase is Phase.STOPPING
    for rank in range(4):
        do(WorkerExited, rank=rank, status=OK)
    assert do(ServiceExited, status=OK)[-1].hosts == ("a",)


@pytest.mark.parametrize("attentive", [False, True])
def test_where_too_few_hosts_would_be_left_its_ranks_end_or_all_save(attentive):
    """The agent leaves to the coordinator what becomes of ranks that come and go."""
    do = running(nodes=(2, 2))
    if attentive:
        do(WorkerAttentive, rank=0)
    (signals,) = [c for c in do(HostLeaving, host="b", why="SIGTERM") if isinstance(c, SignalWorkers)]
    assert (signals.ranks, signals.signal) == (((0, 1, 2, 3) if attentive else (2, 3)), TERM)


@pytest.mark.parametrize("attentive", [False, True])
def test_nobody_goes_on_without_the_host_of_the_service_and_all_start_again_on_the_others(attentive):
    do = running(max_restarts=0)
    if attentive:
        do(WorkerAttentive, rank=0)
    signals = do(HostLeaving, host="a", why="SIGTERM")[0]
    assert (signals.ranks, signals.signal) == ((0, 1, 2, 3), TERM) and do.state.phase is Phase.STOPPING
    assert do.clocks[Timer.GRACE] == (300.0 if attentive else 5.0) and do.state.incident.kind is IncidentKind.RESIZE
    do(ServiceExited, status=ExitStatus(lost="SIGTERM"))
    last = [do(WorkerExited, rank=rank, status=OK) for rank in range(4)][-1][-1]
    assert last.hosts == ("b",) and do.state.charged == 0


def test_nobody_goes_on_without_the_service_either_where_no_rank_is_left_beside_it():
    do = running(each=1, max_restarts=0)
    do(WorkerExited, rank=0, status=ExitStatus(code=1))
    do(WorkerMeshed, rank=1, round=1)
    assert do(HostLeaving, host="a", why="SIGTERM")[0].ranks == (1,) and do.state.phase is Phase.STOPPING
    do = running(each=1, max_restarts=0)
    do(WorkerExited, rank=0, status=OK)
    assert do(HostLeaving, host="a", why="SIGTERM") == []  # the others are about to end, too


def test_ranks_that_are_to_leave_in_any_case_have_less_time_on_a_host_that_leaves():
    do = running("abc", checkpoint_s=1.0)
    do(ResizeRequested, nodes=2)
    assert do.clocks == {Timer.SHRINK: 300.0}
    assert do(HostLeaving, host="c", why="SIGTERM") == [] and do.clocks == {Timer.SHRINK: 2.5}
    assert kinds(do(HostLeaving, host="b", why="SIGTERM")) == [SignalWorkers, Tell] and do.state.parting == {2, 3, 4, 5}


def test_hosts_that_were_left_are_used_again():
    do = running()
    do(ResizeRequested, nodes=1)
    assert do(ResizeRequested, nodes=2) == []  # they are on their way
    leave(do, 2)
    leave(do, 3)
    assert do.clocks[Timer.REGROW] == 5.0
    assert do(TimerFired, timer=Timer.REGROW)[0].ranks == (4, 5)


def test_where_the_scripts_let_nobody_go_all_start_again():
    do = running(growable=False)
    assert [c.signal for c in do(ResizeRequested, nodes=1)] == [TERM] and do.state.phase is Phase.STOPPING


def resized_before_all_are_connected(asks_at_once=False):
    do = Driver(num_processes=1, nodes=(1, 2), elastic=True)
    do(Start)
    for host in "ab":
        do(HostJoined, host=host)
    do(ServiceReady, address="h:1")
    do(ResizeRequested, nodes=1)
    do(WorkerMeshed, rank=0)
    if asks_at_once:
        do(WorkerGrowable, rank=0)
    return do, do(WorkerMeshed, rank=1)


def test_a_resize_before_all_are_connected_counts_when_the_script_first_asks():
    do, told = resized_before_all_are_connected()
    assert told == [] and do.clocks[Timer.SHRINK] == 300.0
    assert kinds(do(WorkerGrowable, rank=1)) == [SignalWorkers, Tell] and do.state.parting == {1}


def test_a_script_may_ask_before_the_launcher_has_heard_that_all_are_connected():
    do, told = resized_before_all_are_connected(asks_at_once=True)
    assert kinds(told) == [SignalWorkers, Tell] and do.state.parting == {1}


def test_a_resize_before_all_are_connected_has_all_start_again_where_the_script_never_asks():
    do, _ = resized_before_all_are_connected()
    (stop,) = do(TimerFired, timer=Timer.SHRINK)
    assert (stop.ranks, stop.signal) == ((0, 1), TERM) and do.state.incident.kind is IncidentKind.RESIZE


def test_a_resize_before_all_are_connected_counts_at_once_where_they_start_again():
    do = Driver(num_processes=1, nodes=(1, 2))
    do(Start)
    for host in "ab":
        do(HostJoined, host=host)
    do(ServiceReady, address="h:1")
    do(ResizeRequested, nodes=1)
    do(WorkerMeshed, rank=0)
    assert [c.signal for c in do(WorkerMeshed, rank=1)] == [TERM]


def test_ranks_that_do_not_leave_in_time_have_all_start_again():
    do = running()
    do(ResizeRequested, nodes=1)
    leave(do, 2)
    (stop,) = do(TimerFired, timer=Timer.SHRINK)
    assert (stop.ranks, stop.signal) == ((0, 1, 3), TERM) and do.state.incident.kind is IncidentKind.RESIZE
    assert do.state.incident.detail == "the job goes on with 1 host in place of 2"


def test_ranks_that_have_left_and_do_not_end_are_let_go():
    do = running()
    do(ResizeRequested, nodes=1)
    leave(do, 2)
    do(WorkerLeft, rank=3)
    (ends,) = do(TimerFired, timer=Timer.SHRINK)
    assert (ends.ranks, ends.signal) == ((3,), KILL) and do.state.phase is Phase.RUNNING
    (told,) = do(WorkerExited, rank=3, status=ExitStatus(signal=9))
    assert told.text == "the job has shrunk to 2 ranks on 1 host"


def test_newcomers_on_their_way_to_a_host_that_is_too_many_are_let_go():
    do = running()
    do(HostLost, host="b", why="silent")
    for rank in (2, 3):
        do(WorkerExited, rank=rank, status=ExitStatus(lost="silent"))
    for rank in (0, 1):
        do(WorkerMeshed, rank=rank, round=1)
    do(HostJoined, host="b")
    assert kinds(do(TimerFired, timer=Timer.REGROW)) == [StartNewcomers, Tell]
    (ends,) = do(ResizeRequested, nodes=1)
    assert (ends.ranks, ends.signal) == ((4, 5), KILL) and not do.state.coming
    for rank in (4, 5):
        assert do(WorkerExited, rank=rank, status=ExitStatus(signal=9)) == []
    assert do.state.phase is Phase.RUNNING and not do.state.crashed


@pytest.mark.parametrize("how", ["dies", "raises", "dies behind its farewell"])
def test_one_that_fails_in_place_of_leaving_is_a_loss_and_the_rest_still_leaves(how):
    do = running()
    do(ResizeRequested, nodes=1)
    if how == "dies behind its farewell":
        do(WorkerLeft, rank=2)
        assert do(WorkerRaised, rank=2, error=WorkerError("OSError", "")) == []
        assert do(WorkerExited, rank=2, status=ExitStatus(signal=11)) == [] and do.state.phase is Phase.RUNNING
        return
    if how == "raises":
        do(WorkerRaised, rank=2, error=WorkerError("ValueError", "no"))
    do(WorkerExited, rank=2, status=ExitStatus(code=1))
    assert do.state.phase is Phase.REGROUPING
    for rank in (0, 1, 3):
        do(WorkerMeshed, rank=rank, round=1)
    assert do.state.phase is Phase.RUNNING and do.clocks[Timer.SHRINK] == 300.0
    assert [c.text for c in leave(do, 3)] == ["the job has shrunk to 2 ranks on 1 host"]


def test_nobody_leaves_where_those_that_were_to_are_all_that_is_left():
    do = running(each=1)
    do(ResizeRequested, nodes=1)
    do(WorkerExited, rank=0, status=ExitStatus(code=1))
    do(WorkerMeshed, rank=1, round=1)
    assert not do.state.parting and Timer.SHRINK not in {t for t, s in do.clocks.items() if s}
    do(WorkerExited, rank=1, status=OK)
    assert do(ServiceExited, status=OK)[-1].exit_code == 0


def test_ranks_that_end_their_work_before_they_leave_have_ended_it():
    do = running(each=1)
    do(ResizeRequested, nodes=1)
    do(WorkerExited, rank=0, status=OK)
    assert do(TimerFired, timer=Timer.SHRINK) == []
    do(WorkerExited, rank=1, status=OK)
    assert do(ServiceExited, status=OK)[-1].exit_code == 0 and summary(do.state) == ""


def test_one_alone_cannot_leave():
    do = running("a", each=1)
    do(WorkerLeft, rank=0)  # a script can write anything
    do(WorkerExited, rank=0, status=OK)
    assert do(ServiceExited, status=OK)[-1].exit_code == 0 and do.state.finished == {0}


def taken_up(script, watch=None, **engine):
    """A launcher takes up a job in which rank 1 was asked to leave: what its engine was told, and its last words."""
    past = []
    kept = [Start, HostJoined, HostJoined, ServiceReady, WorkerMeshed, WorkerMeshed, WorkerGrowable, ResizeRequested]
    fields = [{}, {"host": "a"}, {"host": "b"}, {"address": "h:1"}, {"rank": 0}, {"rank": 1}, {"rank": 0}, {"nodes": 1}]
    for number, (kind, known) in enumerate(zip(kept, fields, strict=True)):
        past.append(kind(id=number, at=0.0, **known))
    engine = simulated.SimulatedEngine(script, **engine)
    record = types.SimpleNamespace(secret="s", past=past, write=lambda event: None)
    job = shell.Job(Settings(nproc=1, nodes=(1, 2), elastic=True), ("script", "train.py"), environ={})
    err = io.BytesIO()
    assert shell.run(job, Console(io.BytesIO(), err), engine, engine.clock, record, watch) == 0
    return engine.calls, err.getvalue().decode()


def test_a_launcher_that_takes_up_the_job_asks_those_once_more():
    def script(generation, rank):
        return [(1.0, simulated.OK)] if rank == 0 else [(0.5, {"kind": "left"}), (0.6, simulated.OK)]

    calls, said = taken_up(script, stubborn=frozenset({1}))
    assert ("signal", LEAVE, "1") in calls and "succeeded without rank 1, which left when asked to" in said


def test_who_watches_a_job_that_was_taken_up_sees_it_before_anything_new_happens():
    seen = []
    taken_up(lambda *_: [(1.0, simulated.OK)], watch=seen.append, stubborn=frozenset({1}))
    assert (seen[0].phase, seen[0].live, seen[0].policy.nodes) == (Phase.RUNNING, {0, 1}, (1, 2))


def test_an_engine_that_cannot_ask_ranks_to_leave_does_not_end_them_in_place_of_it():
    calls, said = taken_up(lambda *_: [(1.0, simulated.OK)], capabilities=Capabilities(signals=frozenset({TERM})))
    assert [call for call in calls if call[0] == "signal"] == [("signal", TERM, "service")] and "without" not in said


# --- the roster.


def wishing(*who, count=3):
    job = Job(count)
    for process in who:
        job.roster.wish(process, job.now)
    job.pass_time(1)
    return job


def test_all_hear_where_some_leave_and_the_others_go_on_when_those_have_handed_over():
    job = wishing(1)
    assert [job.sent(p) for p in range(3)] == [[("growing", {})]] * 3
    for process in range(3):
        job.roster.at_boundary(process, process)
    assert [job.sent(p) for p in range(3)] == [[("leave", {"at": 3, "without": [1]})]] * 3
    for process in (0, 2):
        job.roster.regroup(process, job.now)
    assert job.roster.to_regroup() == []
    job.roster.hand_over(1)
    assert job.roster.to_regroup() == [0, 2]
    job.roster.close(1)  # also if it goes at once
    assert job.roster.to_regroup() == [0, 2] and not job.roster.lost
    job.roster.regrouped("unix:1")
    place = {"processes": 2, "former": [0, 2], "service": "unix:1", "whole": True, "generation": 1}
    assert [job.sent(p) for p in range(2)] == [[("regrouped", {"process": p, **place})] for p in range(2)]


def test_one_that_is_lost_before_it_has_handed_over_takes_the_state_with_it():
    job = wishing(1)
    for process in range(3):
        job.roster.at_boundary(process, 0)
    job.roster.close(1)
    assert list(job.roster.lost) == [1]
    for process in (0, 2):
        job.roster.regroup(process, job.now)
    job.roster.regrouped("unix:1")
    assert job.sent(0)[-1][1]["whole"] is False


def test_the_loss_of_another_has_those_that_want_to_leave_do_it_later():
    job = wishing(1)
    for process in range(3):
        job.roster.at_boundary(process, 0)
    job.roster.hand_over(1)
    job.roster.fail(2, "it raised")
    job.roster.regroup(0, job.now)
    job.roster.regrouped("unix:1")
    assert job.sent(0)[-1][1]["whole"] is False  # process 0 may have broken off in the midst of it
    job = wishing(1)
    job.roster.fail(2, "it raised")
    for process in (0, 1):
        job.roster.regroup(process, job.now)
    job.roster.regrouped("unix:1")
    job.roster.outbox.clear()
    job.pass_time(1)
    assert job.sent(0) == [("growing", {})] and job.roster.growth.leaving == (1,)


def test_one_that_has_left_does_not_wait_for_others_that_end_in_place_of_going_on():
    job = wishing(1)
    for process in range(3):
        job.roster.at_boundary(process, 0)
    job.roster.hand_over(1)
    for process in (0, 2):
        assert ("over", {}) not in job.sent(1)
        job.roster.finish(process, {}, job.now)
    assert job.sent(1)[-1] == ("over", {})


def test_nobody_leaves_where_all_want_to():
    job = wishing(0, 1, 2)
    assert job.sent(0) == [] and not job.roster.growth.wishes
    job.roster.hand_over(1)  # what nobody has agreed on
    assert job.roster.to_regroup() == [] and not job.roster.growth.left


def test_one_that_was_not_to_leave_cannot_hand_over():
    job = wishing(1)
    job.roster.hand_over(2)
    job.roster.close(2)
    assert list(job.roster.lost) == [2]


# --- how a rank is asked.


def test_the_signal_waits_until_somebody_looks():
    code = (
        "import os, signal, threading\nfrom meshrt.launch import parting\nparting.await_request()\n"
        "assert callable(signal.getsignal(parting.LEAVE)), 'what would be ignored need not wait'\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "print(parting.is_asked())\nos.kill(os.getpid(), parting.LEAVE)\n"
        "print(parting.is_asked(), parting.is_asked())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "False\nTrue False\n"), done.stderr


def test_who_does_not_expect_the_signal_does_not_notice_it():
    os.kill(os.getpid(), LEAVE)
    assert not parting.is_asked()


# --- what an agent does beside it.


class Signalled:
    """An engine whose tasks run until they are told to end by SIGKILL."""

    def __init__(self):
        self.got = []

    def signal(self, tasks, number):
        self.got += [(task.rank, number) for task in tasks]


def stopped_agent(*tasks, in_touch, heeding=False):
    """One of which these ranks' processes run, from the moment at which it was told to end."""
    agent = pytest.importorskip("meshrt.launch.hosts.agent", exc_type=ImportError)  # it needs grpcio
    found = agent._Agent(agent.Options("127.0.0.1:1", Trust(), "a", "127.0.0.1"), {}, lambda text: None)
    found._engine.close()
    found._engine, found._session, found._checkpoint_s = Signalled(), 1 if in_touch else None, 60.0
    found._duties.running |= {Task(0, rank) for rank in tasks}
    if heeding:
        found._report(Said(Task(0, 0), 0.0, b'{"kind": "growable"}'))
    found._told_to_end(TERM)
    return found


@pytest.mark.parametrize("heeding", [False, True])
def test_an_agent_leaves_it_to_the_coordinator_to_ask_its_ranks_and_the_service_goes_last(heeding):
    found = stopped_agent(None, 0, 1, in_touch=True, heeding=heeding)
    found._do([Kill((Task(0, 1),), TERM)])
    assert found._engine.got == [(1, TERM)]  # nothing of its own
    ends_at = found._kill_at
    assert round(ends_at - time.monotonic()) == (60 if heeding else 5)
    for at in (ends_at - 3, ends_at - 2, ends_at - 1, ends_at + 0.1, ends_at + 0.6):
        found._look_at_the_clock(at)
    assert found._engine.got[1] == (0, TERM)
    killed = [(rank, KILL) for rank in (0, 1)]
    assert sorted(found._engine.got[2:4]) == killed and found._engine.got[4] == (None, TERM)
    assert sorted(found._engine.got[5:7]) == killed and found._engine.got[7:] == [(None, KILL)]


def test_an_agent_out_of_touch_ends_the_ranks_that_nobody_has_asked():
    found = stopped_agent(None, 0, 1, in_touch=False)
    assert sorted(found._engine.got) == [(0, TERM), (1, TERM)]
    found = stopped_agent(0, 1, in_touch=True)
    found._do([Kill((Task(0, 1),), LEAVE)])
    found._session = None  # those that hand over do so without the coordinator
    found._look_at_the_clock(time.monotonic())
    assert found._engine.got == [(1, LEAVE), (0, TERM)]


# --- a real job.


def test_a_smaller_job_goes_on_in_its_processes_with_the_state(hosts):
    body = f"rounds, least = 1, 9\ndef fail(): print('stepping', file=sys.stderr, flush=True)\n{GROWS}"
    hosts.start("--nodes", "1:2", "--nproc", 2, "--devices-per-process", 1, "--elastic", body=body)
    hosts.agent("a", "b")
    hosts.until("stepping")
    assert hosts.ask("resize", 1).code == 0
    result = hosts.finish()
    assert result.code == 0, result.err
    rest = "1 True ('of 0', [0, 0], 'int16', 0.0)"
    assert sorted(result.out.splitlines()) == [f"[a:{r}] {r} [(4, None), (2, True)] {rest}" for r in (0, 1)]
    assert "the ranks 2, 3 on b are to leave" in result.err and "starting again" not in result.err
    assert result.err.splitlines()[-1] == "meshrt launch: succeeded without rank 2, 3, which left when asked to"


def test_an_agent_that_is_stopped_has_its_ranks_hand_over_what_they_hold(hosts):
    body = f"rounds, least = 1, 9\ndef fail(): print('stepping', file=sys.stderr, flush=True)\n{GROWS}"
    hosts.start("--nodes", "1:2", "--nproc", 1, "--devices-per-process", 1, "--elastic", body=body)
    hosts.agent("a", "b")
    hosts.until("stepping")
    hosts.agents["b"].send_signal(TERM)
    gone = hosts.ends("b")
    assert gone.code == 128 + TERM and "for the ranks here to save, or to hand over" in gone.err, gone.err
    result = hosts.finish()
    assert result.code == 0, result.err
    assert "[a:0] 0 [(2, None), (1, True)] 1 True ('of 0', [0, 0], 'int16', 0.0)" in result.out.splitlines()
    assert "rank 1 on b is to leave" in result.err and "starting again" not in result.err


SAVES = """\
import meshrt
meshrt.distributed.initialize()
job = meshrt.distributed.elastic()
with job:
    for step in range(1, 9 if generation else 9000):
        time.sleep(0.01)
        if meshrt.distributed.checkpoint_requested(step):
            sys.exit(print("saved", step, flush=True))
        assert not job.grows()
        if step == 3:
            print("stepping", file=sys.stderr, flush=True)
print("done", flush=True)
"""


def test_all_save_where_the_agent_of_the_first_host_is_stopped_and_start_again_on_the_others(hosts):
    hosts.start("--nodes", "1:2", "--nproc", 1, "--devices-per-process", 1, "--elastic", body=SAVES)
    hosts.agent("a", "b")
    hosts.until("stepping")
    hosts.until("stepping")
    hosts.agents["a"].send_signal(TERM)
    assert hosts.ends("a").code == 128 + TERM
    result = hosts.finish()
    assert result.code == 0, result.err
    at = re.search(r"saved (\d+)", result.out)[1]
    assert sorted(result.out.splitlines()) == [f"[a:0] saved {at}", "[b:0] done", f"[b:1] saved {at}"]
    assert "host a leaves (its agent was stopped by SIGTERM); the job goes on without it" in result.err
    assert "is to leave" not in result.err and "was lost" not in result.err
