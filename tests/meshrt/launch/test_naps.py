"""Processes that were stopped, and machines that stood still: clocks went on, and nobody is to blame for that."""

from __future__ import annotations

import io
import os
import signal
import time

import pytest

from meshrt.distributed import member
from meshrt.launch import shell
from meshrt.launch.engines.protocol import Task, WorkerSpec
from meshrt.launch.environment import Place
from meshrt.launch.hosts.duties import Duties, EndAll
from meshrt.launch.hosts.messages import Alive, Prepare, Stale
from meshrt.launch.membership.naps import Naps
from meshrt.launch.output import Console
from meshrt.launch.settings import Settings
from tests.meshrt.launch import simulated
from tests.meshrt.launch.conftest import wait_for
from tests.meshrt.launch.simulated import JOINING, MESHED, OK, SimulatedEngine
from tests.meshrt.launch.test_roster import Job

# --- the door.


@pytest.mark.parametrize("regrouping", [False, True])
def test_a_door_that_slept_blames_nobody_for_the_silence_and_later_whoever_stays_silent(regrouping):
    job = Job(3)
    job.pass_time(3)
    if regrouping:
        job.roster.fail(2, "it raised")
        job.roster.regroup(0, job.now)
    job.now += 100
    job.roster.tick(job.now)
    assert set(job.roster.lost) == ({2} if regrouping else set())
    if regrouping:
        job.roster.regroup(1, job.now)
        assert job.roster.to_regroup() == [0, 1]
        return
    job.pass_time(9, silent={1})
    assert set(job.roster.lost) == {1}


def test_nobody_has_kept_others_waiting_while_all_slept():
    job = Job(2, stall_s=20.0)
    job.beat(0, 5, waits=2.0)
    job.roster.agree(0, "0,1", 6, {"digest": "a"}, job.now)
    job.pass_time(1)
    job.now += 100
    job.roster.wake(job.now)
    job.roster.agree(0, "0,1", 7, {"digest": "b"}, job.now)
    assert not job.roster.lost
    job.pass_time(19)
    assert set(job.roster.lost) == {1}  # the time before and behind counts


def test_what_comes_late_because_much_is_to_be_done_is_no_sleep():
    naps = Naps(1.0)
    assert [naps.slept(now) for now in (0.0, 3.5, 4.0, 8.0, 12.5)] == [0.0, 0.0, 0.0, 0.0, 3.5]


# --- a member.


class Clock:
    """A clock that goes on while somebody waits, by so many seconds more each time as `jumps` has."""

    def __init__(self, jumps):
        self.now, self._jumps = 0.0, list(jumps)

    def monotonic(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds + (self._jumps.pop(0) if self._jumps else 0.0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def napping(monkeypatch, jumps):
    clock = Clock(jumps)
    monkeypatch.setattr(member, "time", clock)
    one = member.Member.__new__(member.Member)
    one._changed, one._naps, one._slept, one._heard_at = clock, Naps(1.0), [], 0.0
    return clock, one


def test_a_member_that_slept_waits_for_the_others_as_long_as_they_had_time(monkeypatch):
    clock, one = napping(monkeypatch, [0.0, 500.0, 70.0])
    assert one._wait(lambda: clock.now > 600.0, 60.0)
    clock, one = napping(monkeypatch, [0.0, 500.0])
    assert not one._wait(lambda: False, 60.0) and clock.now == pytest.approx(560.0)


def test_the_door_is_not_lost_to_a_member_that_slept_and_programs_have_not_waited_meanwhile(monkeypatch):
    clock, one = napping(monkeypatch, [])
    one._wake()
    clock.now = 101.0
    one._wake()
    assert one._heard_at == pytest.approx(100.0)
    assert one._awake(110.0) == pytest.approx(10.0)
    clock.now = 102.0
    one._wake()
    assert one._heard_at == pytest.approx(100.0)  # from now on silence counts
    assert one._awake(0.5) == 0.5


# --- an agent.


@pytest.mark.parametrize("answer", ["none", "alive", "lost"])
def test_an_agent_that_slept_asks_before_it_ends_what_it_runs(answer):
    duties = Duties(iter(["one", "two"]).__next__, 8.0, 0.0)
    task = Task(0, 1)
    duties.told(Prepare((WorkerSpec(Place(1, 2, 0, 0, "h:1", "s"), ("script", "t.py"), None, {}, "a"),)), 0.0)
    assert duties.tick(0.5) == duties.tick(7.0) == []
    assert duties.tick(60.0) == [] and duties.tasks == (task,)
    if answer == "lost":
        assert duties.told(Stale("it was lost"), 60.1) == [EndAll("it was lost")]
        return
    if answer == "alive":
        duties.told(Alive(1.0), 61.0)
        assert duties.tick(64.0) == duties.tick(67.0) == duties.tick(68.9) == []
    (late,) = duties.tick(69.5 if answer == "alive" else 63.5)
    assert isinstance(late, EndAll) and "has not answered for 8 s" in late.why


def test_an_agent_that_hears_nothing_and_has_not_slept_ends_what_it_runs_in_time():
    duties = Duties(iter(["one", "two"]).__next__, 8.0, 0.0)
    duties.told(Prepare((WorkerSpec(Place(1, 2, 0, 0, "h:1", "s"), ("script", "t.py"), None, {}, "a"),)), 0.0)
    assert [duties.tick(now) for now in (1.0, 4.0, 7.5)] == [[], [], []] != duties.tick(8.5)


# --- the launcher.


def stopping_while_it_sleeps(seconds, timeout=None):
    """Rank 0 fails; rank 1 takes 4 s to obey SIGTERM, and one second after it came all stand still."""
    engine = SimulatedEngine(stubborn=frozenset({1}), dying=0.5)

    def sleep():
        engine.now += seconds

    def script(generation, rank):
        if rank == 0:
            return [(0.1, JOINING), (0.2, MESHED), (1.0, simulated.ExitStatus(code=3))]
        return [(0.1, JOINING), (0.2, MESHED), (3.0, sleep), (5.0 + seconds, OK)]

    engine.scripts = script
    return engine, simulated.run(engine, nproc=2, grace=5.0, timeout=timeout)


def test_time_to_obey_a_signal_does_not_pass_while_the_machine_stands_still():
    engine, outcome = stopping_while_it_sleeps(600.0)
    assert outcome.code == 3 and not [call for call in engine.calls if call[:2] == ("signal", 9)]


def test_the_limit_on_the_job_does():
    engine, outcome = stopping_while_it_sleeps(600.0, timeout=60.0)
    assert engine.now > 600.0 and outcome.code == 3


def test_what_takes_long_because_a_terminal_is_slow_is_no_sleep():
    """Rank 1 disobeys SIGTERM and prints on and on, of which each piece takes ten seconds to show."""
    engine = SimulatedEngine(stubborn=frozenset({1}))

    def script(generation, rank):
        if rank == 0:
            return [(0.1, JOINING), (0.2, MESHED), (1.0, simulated.ExitStatus(code=3))]
        return [(0.1, JOINING), (0.2, MESHED), *((2.0 + n, b"line\n") for n in range(200)), (300.0, OK)]

    class Slow(io.BytesIO):
        def write(self, data):
            engine.now += 10.0
            return super().write(data)

    engine.scripts = script
    job = shell.Job(Settings(nproc=2, grace=5.0), ("script", "train.py"), environ={})
    assert shell.run(job, Console(Slow(), io.BytesIO()), engine, engine.clock) == 3
    assert [call[:2] for call in engine.calls if call[0] == "signal"][:2] == [("signal", 15), ("signal", 9)]


# --- a real job.

STEPS = """\
import meshrt, numpy as np
from meshrt.sharding import NamedSharding, PartitionSpec as P
meshrt.distributed.initialize()
split = NamedSharding(meshrt.make_mesh((meshrt.device_count(),), ("x",)), P("x"))
x = meshrt.make_array_from_callback((8,), split, lambda i: np.ones(8, "f4")[i])
step = meshrt.jit(lambda x: x + x.sum())
for number in range(200):
    x = step(x / x.sum())
    float(x.sum())
    time.sleep(0.02)
    if number == 3:
        print("stepping", flush=True)
"""


def test_a_job_whose_machine_stood_still_goes_on_whoever_wakes_up_first(launch):
    start = launch.start("--nproc", 2, "--devices-per-process", 1, "--heartbeat-timeout", 3, body=STEPS)
    since = time.monotonic()
    for _ in range(2):
        wait_for(start, "stepping")
    found = launch.processes()
    ranks = [pid for pid, command in found.items() if "script.py" in command and "bootstrap.py" in command]
    assert len(ranks) == 2, found
    for pid in found:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(10)  # twice the silence after which the door would be lost to a rank
    for pid in ranks:
        os.kill(pid, signal.SIGCONT)
    time.sleep(1.5)
    for pid in set(found) - set(ranks):
        os.kill(pid, signal.SIGCONT)
    result = launch.finish(start, since, timeout=120)
    assert result.code == 0, result.err
