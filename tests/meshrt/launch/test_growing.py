"""Ranks that are started while others run, to join them: what launcher and door decide, and real jobs."""

from __future__ import annotations

import pytest

from meshrt.launch.membership.roster import RefusedError
from meshrt.launch.model import (
    CheckpointTold,
    ExitStatus,
    HostJoined,
    HostLost,
    Phase,
    ServiceExited,
    ServiceReady,
    Start,
    Timer,
    TimerFired,
    WorkerError,
    WorkerExited,
    WorkerGrowable,
    WorkerLost,
    WorkerMeshed,
    WorkerRaised,
)
from meshrt.launch.report import summary
from tests.meshrt.launch.stepping import KILL, OK, TERM, Driver
from tests.meshrt.launch.test_roster import VERSIONS, Job

# --- the launcher.


def shrunk():
    """A job of two hosts with two ranks each, whose second host was lost, while the others go on and let others in."""
    do = Driver(num_processes=2, nodes=(1, 2), elastic=True)
    do(Start)
    for host in "ab":
        do(HostJoined, host=host)
    do(ServiceReady, address="h:1")
    for rank in range(4):
        do(WorkerMeshed, rank=rank)
    do(WorkerGrowable, rank=0)
    do(HostLost, host="b", why="silent")
    for rank in (2, 3):
        do(WorkerExited, rank=rank, status=ExitStatus(lost="silent"))
    for rank in (0, 1):
        do(WorkerMeshed, rank=rank, round=1)
    assert do.state.phase is Phase.RUNNING and do.clocks.get(Timer.REGROW) is None
    return do


def test_a_host_that_comes_gets_new_ranks_that_join_the_others():
    do = shrunk()
    do(HostJoined, host="b")
    assert do.clocks == {Timer.REGROW: 5.0}
    start, told = do(TimerFired, timer=Timer.REGROW)
    assert start.ranks == (4, 5) and told.text == "starting ranks 4, 5 on b, to join the ranks that run"
    assert [do.state.host_of(r) for r in range(6)] == ["a", "a", "b", "b", "b", "b"]
    assert [do.state.slot_of(r) for r in range(6)] == [0, 1, 0, 1, 0, 1]
    assert do.clocks == {Timer.GROW: 300.0} and do.state.charged == 0  # hosts that come are free
    assert do(WorkerMeshed, rank=4, round=2) == [] == do(WorkerMeshed, rank=0, round=2)
    assert [c.text for c in do(WorkerMeshed, rank=5, round=2)] == ["the job has grown to 4 ranks"]
    assert do.clocks == {Timer.GROW: None} and do.state.phase is Phase.RUNNING
    do(WorkerExited, rank=4, status=ExitStatus(signal=9))  # from now on it is one of them
    assert do.state.phase is Phase.REGROUPING
    for rank in (0, 1, 5):
        do(WorkerMeshed, rank=rank, round=3)
    for rank in (0, 1, 5):
        do(WorkerExited, rank=rank, status=OK)
    assert do(ServiceExited, status=OK)[-1].exit_code == 0
    assert summary(do.state) == "meshrt launch: succeeded without rank 2, 3, 4, with rank 5, which joined later"


def test_a_rank_that_failed_is_replaced_within_the_budget():
    do = Driver(num_processes=2, max_restarts=1, elastic=True).running()
    do(WorkerGrowable, rank=0)
    for failed, new in ((1, 2), (2, None)):
        do(WorkerExited, rank=failed, status=ExitStatus(code=3))
        do(WorkerMeshed, rank=0, round=2 * failed)
        assert do.clocks.get(Timer.REGROW) == (None if new is None else 5.0)
        if new is not None:
            assert do(TimerFired, timer=Timer.REGROW)[0].ranks == (new,)
            assert do.state.slot_of(new) == 1  # also where ranks are bound to cores
            do(WorkerMeshed, rank=new, round=3)
            assert do.state.charged == 1
    do(CheckpointTold, step=3, committed=True)  # the job came further
    assert do.state.charged == 0


@pytest.mark.parametrize("budget", [0, 1])
def test_one_that_vanished_with_exit_code_0_is_replaced_within_the_budget_too(budget):
    do = Driver(num_processes=2, max_restarts=budget, elastic=True).running()
    do(WorkerGrowable, rank=0)
    do(WorkerLost, rank=1, why="its connection closed", ended=True)
    do(WorkerExited, rank=1, status=OK)
    do(WorkerMeshed, rank=0, round=1)
    assert do.clocks.get(Timer.REGROW) == (5.0 if budget else None)
    if budget:
        assert do(TimerFired, timer=Timer.REGROW)[0].ranks == (2,)
        do(WorkerMeshed, rank=2, round=2)
        do(WorkerMeshed, rank=0, round=2)
        assert do.state.charged == 1
    for rank in (0, 2) if budget else (0,):
        do(WorkerExited, rank=rank, status=OK)
    assert do(ServiceExited, status=OK)[-1].exit_code == 0


@pytest.mark.parametrize("how", ["exits", "raises", "late", "others end"])
def test_newcomers_that_do_not_make_it_cost_the_others_nothing(how):
    do = shrunk()
    do(HostJoined, host="b")
    do(TimerFired, timer=Timer.REGROW)
    if how == "others end":
        do(WorkerExited, rank=0, status=OK)
        (ends,) = do(WorkerExited, rank=1, status=OK)
        assert (ends.ranks, ends.signal) == ((4, 5), TERM)
    elif how == "late":
        told, ends = do(TimerFired, timer=Timer.GROW)
        assert "ranks 4, 5 did not join within 300 s (--start-timeout)" in told.text and ends.signal == KILL
    elif how == "raises":
        (told,) = do(WorkerRaised, rank=4, error=WorkerError("ValueError", "no\nway"))
        assert told.text == "rank 4, which was to join, raised ValueError: no"
    for rank in (4, 5):
        do(WorkerExited, rank=rank, status=ExitStatus(code=3))
    if how != "others end":
        assert do.state.phase is Phase.RUNNING and Timer.REGROW not in do.clocks  # no budget for another attempt
        for rank in (0, 1):
            do(WorkerExited, rank=rank, status=OK)
    assert do(ServiceExited, status=OK)[-1].exit_code == 0


@pytest.mark.parametrize("let_in", [True, False])
def test_another_loss_while_a_newcomer_is_on_its_way(let_in):
    do = Driver(num_processes=3, max_restarts=1, elastic=True).running()
    do(WorkerGrowable, rank=0)
    do(WorkerExited, rank=2, status=ExitStatus(code=3))
    for rank in (0, 1):
        do(WorkerMeshed, rank=rank, round=1)
    do(TimerFired, timer=Timer.REGROW)
    do(WorkerExited, rank=1, status=ExitStatus(signal=9))
    if let_in:
        do(WorkerMeshed, rank=3, round=2)  # the others come together with it
    (announce,) = do(WorkerMeshed, rank=0, round=2)
    assert announce.left == 1 + let_in and do.state.coming == (set() if let_in else {3})
    assert do.clocks.get(Timer.GROW) == (None if let_in else 300.0)


def test_the_others_may_come_together_before_the_launcher_knows_who_is_lost():
    do = Driver(num_processes=1, nodes=(1, 3), elastic=True)
    do(Start)
    for host in "abc":
        do(HostJoined, host=host)
    do(ServiceReady, address="h:1")
    for rank in (0, 1, 2):
        do(WorkerMeshed, rank=rank)
    for rank in (0, 1):  # the door saw at once that its connection closed; the coordinator waits for its lease
        do(WorkerMeshed, rank=rank, round=1)
    do(HostLost, host="c", why="silent")
    (announce,) = do(WorkerExited, rank=2, status=ExitStatus(lost="silent"))
    assert (announce.left, do.state.phase) == (2, Phase.RUNNING)


def test_where_the_scripts_let_nobody_in_all_start_again_for_a_host_that_comes():
    do = Driver(num_processes=1, nodes=(1, 2), elastic=True)
    do(Start)
    do(HostJoined, host="a")
    do(TimerFired, timer=Timer.LAST_CALL)
    do(ServiceReady, address="h:1")
    do(WorkerMeshed, rank=0)
    do(HostJoined, host="b")
    (stop,) = do(TimerFired, timer=Timer.REGROW)
    assert stop.signal == TERM and do.state.phase is Phase.STOPPING


# --- the roster.


def about(host="n"):
    return {"host": host, "pid": 7, "versions": VERSIONS}


def waiting(**patience):
    """Two processes that run, and two that were started together to join them; all members have been told."""
    job = Job(2, **patience)
    job.roster.come(4, 2, about(), job.now)
    job.pass_time(1)
    assert job.sent(0) == []  # one more is expected
    job.roster.come(5, 2, about(), job.now)
    job.pass_time(1)
    assert job.sent(0) == [("growing", {})] == job.sent(1)
    return job


def test_members_leave_off_behind_the_furthest_and_newcomers_get_the_numbers_behind_theirs():
    job = waiting()
    job.roster.at_boundary(0, 3)
    assert job.sent(0) == []
    job.roster.at_boundary(1, 5)
    assert job.sent(0) == [("leave", {"at": 6, "without": []})] == job.sent(1)
    for process in (0, 1):
        job.roster.regroup(process, job.now)
    assert job.roster.to_regroup() == [0, 1]
    job.roster.regrouped("unix:1")
    place = {"processes": 4, "former": [0, 1], "service": "unix:1", "whole": True, "generation": 1}
    assert [job.sent(p) for p in range(4)] == [[("regrouped", {"process": p, **place})] for p in range(4)]
    assert [m.rank for m in job.roster.present] == [0, 1, 4, 5] and not job.roster.growth.newcomers


def test_a_loss_meanwhile_takes_newcomers_in_without_the_state():
    job = waiting()
    job.roster.at_boundary(0, 3)
    job.roster.fail(1, "it raised")
    assert "lost" in [kind for kind, _ in job.sent(0)]
    job.roster.regroup(0, job.now)
    job.roster.regrouped("unix:1")
    ((_, fields),) = job.sent(0)
    assert (fields["processes"], fields["whole"]) == (3, False)


def test_nobody_is_let_in_by_a_job_that_ends():
    job = waiting()
    job.roster.at_boundary(0, 3)
    job.roster.finish(1, {}, job.now)
    assert ("leave", {"at": None}) in job.sent(0)
    job.pass_time(30)
    assert job.sent(0) == []
    job.roster.at_boundary(0, 4)  # it had been on its way
    assert job.sent(0) == [("leave", {"at": None})]


def test_one_whose_companion_never_comes_is_let_in_later():
    job = Job(2)
    job.roster.come(4, 2, about(), job.now)
    job.pass_time(10)
    assert job.sent(0) == []
    job.pass_time(1)
    assert job.sent(0) == [("growing", {})]


@pytest.mark.parametrize(
    ("rank", "versions", "text"),
    [
        (1, VERSIONS, "somebody has come as rank 1 already"),
        (4, VERSIONS, "somebody has come as rank 4 already"),
        (5, {"jaxlib": "0"}, "rank 5 on host n runs jaxlib 0, but process 0 .* Install the same"),
    ],
)
def test_a_newcomer_that_does_not_belong_here_is_refused(rank, versions, text):
    job = Job(2)
    job.roster.come(4, 1, about(), job.now)
    with pytest.raises(RefusedError, match=text) as caught:
        job.roster.come(rank, 1, {**about(), "versions": versions}, job.now)
    assert not caught.value.fatal


# --- real jobs.

GROWS = """\
import meshrt, numpy as np
from meshrt.sharding import NamedSharding, PartitionSpec as P
meshrt.distributed.initialize()
job, seen = meshrt.distributed.elastic(), []
step_of = meshrt.jit(lambda x, w: x * w + 1)
while not job.finished:
    with job:
        count = meshrt.device_count()
        mesh = meshrt.make_mesh((count,), ("x",))
        split, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
        state = job.carried({"x": split, "w": whole, "step": 0, "note": 0, "host": 0, "seed": 0})
        seen.append((count, state and state["step"] > 5))
        if state is None:
            x = meshrt.make_array_from_callback((12, 2), split, lambda i: np.arange(24, dtype="f4").reshape(12, 2)[i])
            w = meshrt.make_array_from_callback((), whole, lambda i: np.float32(0.5))
            state = {"x": x, "w": w, "step": 0, "note": f"of {rank}", "host": np.full(2, rank, "i2")}
            state["seed"] = meshrt.numpy.float32(rank)
        while job.generation < rounds or state["step"] < least:
            state = {**state, "x": step_of(state["x"], state["w"]), "step": state["step"] + 1}
            float(state["x"].sum())
            time.sleep(0.01)
            if state["step"] == 3:
                fail()
            if job.grows(state):
                break
want = np.arange(24, dtype="f4").reshape(12, 2)
for _ in range(state["step"]):
    want = want * np.float32(0.5) + np.float32(1)
same = all(np.array_equal(np.asarray(s.data), want[s.index]) for s in state["x"].addressable_shards)
rest = (state["note"], state["host"].tolist(), state["host"].dtype.name, float(state["seed"]))
print(meshrt.process_index(), seen, job.generation, same, rest, flush=True)
"""


@pytest.mark.parametrize("deed", ["os.kill(os.getpid(), 9)", pytest.param("os._exit(0)", marks=pytest.mark.slow)])
def test_a_rank_that_is_gone_is_replaced_and_the_state_comes_from_the_others(launch, deed):
    body = f"rounds, least = 2, 9\ndef fail():\n    if rank == 1: {deed}\n{GROWS}"
    options = ("--nproc", 2, "--devices-per-process", 1, "--elastic", "--max-restarts", 1)
    result = launch(*options, body=body, timeout=200)
    assert result.code == 0, result.err
    rest = "2 True ('of 0', [0, 0], 'int16', 0.0)"
    assert sorted(result.out.splitlines()) == [
        f"[0] 0 [(2, None), (1, None), (2, True)] {rest}", f"[2] 1 [(2, True)] {rest}",
    ]  # fmt: skip
    assert "starting rank 2, to join the ranks that run" in result.err and "has grown to 2 ranks" in result.err
    assert result.err.splitlines()[-1] == "meshrt launch: succeeded without rank 1, with rank 2, which joined later"


@pytest.mark.slow
def test_a_newcomer_that_fails_is_let_go_and_the_job_goes_on(launch):
    failing = "if rank == 2: sys.exit(3)\ndef fail():\n    if rank == 1: os.kill(os.getpid(), 9)\n"
    body = f"rounds, least = 1, 700\n{failing}{GROWS}"
    options = ("--nproc", 2, "--devices-per-process", 1, "--elastic", "--max-restarts", 1)
    result = launch(*options, body=body, timeout=200)
    assert result.code == 0 and "[0] 0 [(2, None), (1, None)] 1 True" in result.out, result.err
    assert "rank 2, which was to join, ended: exit code 3; the others go on without it" in result.err
    assert "starting rank 3" not in result.err  # the budget is spent


@pytest.mark.slow
def test_a_host_that_comes_back_has_its_ranks_join_those_that_run(hosts):
    body = f"rounds, least = 2, 9\ndef fail():\n    if rank == 2: os.kill(os.getppid(), 9)\n{GROWS}"
    hosts.start("--nodes", "1:2", "--nproc", 2, "--devices-per-process", 1, "--elastic", body=body)
    hosts.agent("a", "b")
    hosts.until("the 2 ranks that are left go on")
    hosts.agent("b")
    result = hosts.finish()
    assert result.code == 0, result.err
    rest = "2 True ('of 0', [0, 0], 'int16', 0.0)"
    assert sorted(result.out.splitlines()) == [
        *(f"[a:{r}] {r} [(4, None), (2, None), (4, True)] {rest}" for r in (0, 1)),
        *(f"[b:{r}] {r - 2} [(4, True)] {rest}" for r in (4, 5)),
    ]
    assert "starting again" not in result.err and "starting ranks 4, 5 on b" in result.err
