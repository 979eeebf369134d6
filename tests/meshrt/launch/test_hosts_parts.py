"""Small parts of a job on several hosts: its journal, the last lines of its ranks, what waits for who does not read."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import types
from io import FileIO
from pathlib import Path

import pytest

pytest.importorskip("grpc")

from meshrt import _collection
from meshrt.errors import ConfigError, DistributedError
from meshrt.launch.causes import STOPPED
from meshrt.launch.engines.protocol import HostDown, HostLeaves, HostUp, Output, ServiceSpec, Task, WorkerSpec
from meshrt.launch.environment import Place
from meshrt.launch.hosts import agent, logbook, server, status, testbed, view
from meshrt.launch.hosts.duties import Start
from meshrt.launch.hosts.engine import HostsEngine
from meshrt.launch.hosts.fleet import LEASE_S, Fleet
from meshrt.launch.hosts.journal import Journal
from meshrt.launch.hosts.link import Opened
from meshrt.launch.hosts.logbook import Logbook
from meshrt.launch.hosts.messages import Applicant, Beat, Leaving, RefusedError, Signal, Stale
from meshrt.launch.hosts.security import Trust
from meshrt.launch.hosts.wire import coordinator_pb2 as pb
from meshrt.launch.model import ExitStatus, Failure, HostJoined, Incident, IncidentKind, Policy, State

WHAT = {"target": ["script", "train.py"], "nodes": [1, 2]}
JOINED = [HostJoined(id=i, at=float(i), host=f"n{i}", incarnation="abc") for i in range(3)]


def journal(path: Path, *events: HostJoined) -> Journal:
    """One that another coordinator of the job goes on with."""
    made = Journal(path, WHAT)
    made.note(port=8476)
    for event in events:
        made.write(event)
    return made


def killed(made: Journal) -> None:
    made._file.close()


def test_a_journal_that_a_kill_cut_off_anywhere_is_taken_up_with_what_was_whole(tmp_path):
    path = tmp_path / "journal"
    killed(journal(path, *JOINED))
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    for end in (0, 1, 5, first - 1, first, first + 3, len(content) - 1, len(content)):
        path.write_bytes(content[:end])
        again = Journal(path, WHAT)
        whole = content[:end].count(b"\n")
        assert [e.host for e in again.past] == [f"n{i}" for i in range(whole - 2)]
        assert (again.secret == json.loads(content[:first])["secret"]) == (whole > 0)
        again.write(JOINED[0])
        killed(again)
        assert Journal(path, WHAT).past[-1] == JOINED[0]


def test_a_journal_has_one_coordinator_at_a_time_and_no_other_reader(tmp_path):
    path = tmp_path / "journal"
    path.touch(mode=0o644)
    first = journal(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="another coordinator writes it"):
        Journal(path, WHAT)
    killed(first)
    assert Journal(path, WHAT).header["port"] == 8476


def test_what_is_no_journal_is_left_as_it_is(tmp_path):
    path = tmp_path / "train.py"
    for content in ("print('no end')", "print()\n", '{"format": 2}\n', '{"format": 1, "what": {"target": "x"}}\n{"ev'):
        path.write_text(content)
        path.chmod(0o640)
        with pytest.raises(ConfigError, match=r"it is no journal of a job|it is of another job"):
            Journal(path, WHAT)
        assert (path.read_text(), path.stat().st_mode & 0o777) == (content, 0o640)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a disk that is always full")
def test_a_full_disk_ends_the_journal_and_not_the_job_unless_it_cannot_be_removed(tmp_path, monkeypatch):
    path, said = tmp_path / "journal", []
    made = Journal(path, WHAT, said.append)
    made._file = FileIO("/dev/full", "w")
    made.write(JOINED[0])
    (words,) = said
    assert words.startswith(f"--journal {path}: cannot be written: No space left on device. It was removed")
    assert not path.exists()
    made.write(JOINED[1])  # nowhere

    made = Journal(path, WHAT)
    made._file = FileIO("/dev/full", "w")
    monkeypatch.setattr(Path, "unlink", lambda self, **_: os.rmdir(self))
    with pytest.raises(DistributedError, match="cannot be written: No space left on device, nor removed: Not a"):
        made.write(JOINED[0])


def test_the_last_lines_of_a_rank_are_bounded_in_number_and_bytes():
    book, task = Logbook(), Task(0, 0)
    book.begin(task, "a")
    for _ in range(40):
        book.feed(Output(task, 0.0, "stdout", b"x" * 60_000 + b"\n"))
    assert sum(len(line.data) for line in book.last(1000)) <= logbook.BYTES
    book.feed(Output(task, 0.0, "stdout", b"\n" * 5000))
    assert len(book.last(5000)) == logbook.LINES


def test_the_last_lines_of_a_rank_are_its_own_and_the_one_in_which_it_ended_is_among_them():
    book, task, heard = Logbook(), Task(0, 0), []
    book.begin(task, "a")
    book.last(0, heard.append)
    noise = b"[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n"
    book.feed(Output(task, 0.0, "stdout", noise + b"step 1\nstep 2"))
    book.feed(Output(task, 0.0, "stderr", b"out of luck"))
    for _ in range(2):
        book.end(task)
    found = book.last(9)
    assert [(line.data, line.stderr) for line in found] == [
        (b"step 1", False),
        (b"step 2", False),
        (b"out of luck", True),
    ]
    assert heard == found


def test_who_was_cut_off_hears_the_lines_behind_the_last_one_and_of_another_coordinator_all():
    book, other, heard = Logbook(), Logbook(), []
    for made in (book, other):
        for rank in (0, 1):
            made.begin(Task(0, rank), "a")
        for i in range(4):
            made.feed(Output(Task(0, i % 2), 0.0, "stdout", b"%d\n" % i))
    assert [line.data for line in book.last(10)] == [b"0", b"2", b"1", b"3"]
    lines = book.last(10, heard.append)
    assert [line.data for line in lines] == [b"0", b"1", b"2", b"3"]
    assert [line.data for line in book.behind(lines[1].number, heard.append)] == [b"2", b"3"]
    assert [line.data for line in other.behind(lines[1].number, heard.append)] == [b"0", b"1", b"2", b"3"]
    book.feed(Output(Task(0, 0), 0.0, "stdout", b"later\n"))
    assert [line.data for line in heard] == [b"later"]


def test_lines_of_old_generations_are_looked_for_once_in_each_generation_and_not_for_each_rank():
    class Counted(dict):
        looks = 0

        def __iter__(self):
            self.looks += 1
            return super().__iter__()

    book = Logbook()
    book._lines = lines = Counted()
    for generation in range(4):
        for rank in range(50):
            book.begin(Task(generation, rank), "a")
            book.feed(Output(Task(generation, rank), 0.0, "stdout", b"x\ny"))
    assert lines.looks == 4
    assert {line.task.generation for line in book.last(1)} == {task.generation for task, _ in book._splitters} == {2, 3}
    book.feed(Output(Task(1, 0), 0.0, "stdout", b"late\n"))
    assert all(line.data != b"late" for line in book.last(9))


def test_many_ranks_share_what_is_kept_of_their_lines(monkeypatch):
    monkeypatch.setattr(logbook, "TOTAL", 100_000)
    book = Logbook()
    for rank in range(10):
        book.begin(Task(0, rank), "a")
    for rank in range(10):
        book.feed(Output(Task(0, rank), 0.0, "stdout", b"x" * 8))
    for rank in range(10):
        book.feed(Output(Task(0, rank), 0.0, "stdout", (b"x" * 800 + b"\n") * 100))
    assert [len(book.last(n)) for n in (1, 1000)] == [10, 100]


def test_a_follower_that_does_not_read_is_given_up_and_nothing_more_is_kept_for_it():
    async def unread() -> tuple[int, object]:
        outbox = server._Outbox(asyncio.get_running_loop())
        for i in range(3 * server._QUEUE):
            outbox.put(i)
        kept = outbox._queue.qsize()
        return kept, [await outbox.get() for _ in range(kept)][-1]

    assert asyncio.run(unread()) == (server._QUEUE + 1, None)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")
def test_agents_of_a_job_that_never_was_are_not_waited_for(launch):
    ends: list[str] = []
    here = testbed.agents_here(4, "a secret of sixteen and more", {}, "127.0.0.1:9", lambda _, why: ends.append(why))
    with pytest.raises(ConfigError, match="no log directory"), here:
        raise ConfigError("no log directory")
    assert len(ends) == 4 and not any("SIGKILL" in why for why in ends)
    assert launch.left_behind() == []


def test_an_agent_that_nohup_started_outlives_its_terminal():
    command = ["nohup", sys.executable, "-m", "meshrt", "launch", "agent", "--coordinator", "127.0.0.1:1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while "trying again" not in (line := process.stderr.readline()):
        assert line, "it ended"
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM


def test_an_agent_says_that_it_cannot_enter_the_jobs_directory_and_goes_on(tmp_path, monkeypatch):
    def refuse(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    said: list[str] = []
    found = agent._Agent(agent.Options("127.0.0.1:1", Trust(), "a", "127.0.0.1"), {}, said.append)
    monkeypatch.setattr(os, "chdir", refuse)
    try:
        found._opened(Opened(1, found._duties.name, str(tmp_path), 8.0), 0.0)
    finally:
        found._engine.close()
    assert said[0].endswith(f"{tmp_path} cannot be entered: Permission denied") and "is in the job" in said[1]


def test_an_agent_that_ended_its_processes_while_it_joined_does_not_stay_as_who_ran_them(tmp_path):
    class FakeLink:
        renewed = 0

        def renew(self) -> None:
            self.renewed += 1

    found = agent._Agent(agent.Options("127.0.0.1:1", Trust(), "a", "127.0.0.1"), {}, lambda text: None)
    found._link = link = FakeLink()
    former = found._duties.name
    found._wake, waker = os.pipe()
    try:
        found._do(found._duties.told(Stale("lost"), 0.0))
        found._opened(Opened(1, former, str(tmp_path), 8.0), 0.0)
        assert (found._session, link.renewed) == (None, 1)
        found._opened(Opened(2, found._duties.name, str(tmp_path / "none"), 8.0), 0.0)
        assert (found._session, link.renewed) == (2, 1)
    finally:
        found._engine.close()
        os.close(found._wake)
        os.close(waker)


def test_a_session_that_is_refused_does_not_cut_off_who_is_in():
    engine, told = HostsEngine({}, lambda text: None), []
    try:
        engine.join(Applicant("a", "h", "abc"), send := told.append)
        with pytest.raises(RefusedError, match="a host a is in this job already"):
            engine.join(Applicant("a", "elsewhere", "another"), [].append)
        engine.receive("a", "abc", Beat(0.0))
        assert len(told) == 1
        engine.closed("a", "abc", send)
    finally:
        engine.close()


def test_an_agent_that_takes_the_place_of_another_one_has_it_told_and_gets_what_is_for_itself():
    now, former, current = [0.0], [], []
    engine = HostsEngine({}, lambda text: None, clock=lambda: now[0])
    try:
        engine.join(Applicant("a", "h", "one"), former.append)
        now[0] = 4.0
        engine.join(Applicant("a", "h", "two", tasks=(Task(7, 1),)), send := current.append)
        assert [type(m).__name__ for m in former] == ["Stale"]
        assert current == [Signal((Task(7, 1),), 9)]  # of no task of this job
        engine.closed("a", "two", send)
    finally:
        engine.close()


def test_a_coordinator_that_did_not_listen_blames_no_host_for_it():
    now, said, told = [0.0], [], []
    engine = HostsEngine({}, said.append, clock=lambda: now[0])
    wake, waker = os.pipe()

    def reports() -> list[str]:
        return [type(found).__name__ for found in engine.wait(0.0, wake)]

    engine.listening()
    engine.join(Applicant("a", "h", "abc"), send := told.append)
    assert reports() == ["HostUp"]
    now[0] = 3 * LEASE_S  # stopped, or too busy to read
    assert reports() == [] and said == []
    engine.listening()
    assert reports() == []
    engine.receive("a", "abc", Beat(0.0))
    for _ in range(int(4 * LEASE_S)):  # now it listens, and the host says nothing
        now[0] += 0.5
        engine.listening()
    assert reports() == ["HostDown"]
    engine.closed("a", "abc", send)
    engine.close()
    for end in (wake, waker):
        os.close(end)


@pytest.mark.parametrize("secret", ["a secret of sixteen and more", ""])
def test_the_secret_of_the_ranks_does_not_cross_the_network_where_nothing_is_encrypted(secret):
    specs = (ServiceSpec(0, 1, secret="told"), WorkerSpec(Place(0, 1, 0, 0, "", "told"), (), None, {}))
    started = []
    for name in "ab":
        found = agent._Agent(agent.Options("127.0.0.1:1", Trust(secret), name, "127.0.0.1"), {}, lambda text: None)
        found._engine.close()
        found._engine = types.SimpleNamespace(start=started.extend)
        found._do([Start(specs)])
    used = {spec.environment({}, None)["MESHRT_JOB_SECRET"] for spec in started}
    assert len(started) == 4 and len(used) == 1 and (used == {"told"}) == (not secret) and secret not in used


@pytest.mark.parametrize("alive", [True, False])
def test_an_agent_that_was_started_anew_takes_the_place_of_one_that_left_its_connection_open(alive):
    fleet = Fleet({}, 0.0)
    who = lambda life: Applicant("a", "10.0.0.1", life, {}, ())
    fleet.join(who("first"), 0.0)
    fleet.open("a", "first", 0.0)
    with pytest.raises(RefusedError, match=r"an agent of host a was heard 1.0 s ago; if it has ended") as caught:
        fleet.join(who("second"), 1.0)
    assert caught.value.kind == "ABORTED"  # it tries again
    if alive:
        fleet.receive("a", "first", Beat(1.5), 1.5)
        with pytest.raises(RefusedError, match="a host a is in this job already") as caught:
            fleet.join(who("second"), 2.0)
        assert caught.value.kind == "ALREADY_EXISTS"
        return
    fleet.excuse(2.0, 3.0)  # the coordinator did not listen meanwhile
    with pytest.raises(RefusedError, match=r"an agent of host a was heard 2.9 s ago"):
        fleet.join(who("second"), 4.9)
    fleet.join(who("second"), 5.1)
    assert fleet.hosts["a"].incarnation == "second"
    assert [type(r) for r in fleet.take_reports()] == [HostUp, HostDown, HostUp]


@pytest.mark.parametrize("runs", [False, True])
def test_a_host_that_said_that_it_leaves_is_gone_when_its_agent_is(runs):
    fleet = Fleet({}, 0.0)
    fleet.join(Applicant("a", "10.0.0.1", "abc", {}, ()), 0.0)
    fleet.open("a", "abc", 0.0)
    if runs:
        fleet.start([WorkerSpec(Place(0, 1, 0, 0, "", ""), (), None, {}, host="a")], 0.5)
    fleet.receive("a", "abc", Leaving("SIGTERM"), 1.0)
    fleet.closed("a", "abc", 2.0)
    assert [type(r) for r in fleet.take_reports()] == [HostUp, HostLeaves, *([] if runs else [HostDown])]
    assert ("a" in fleet.hosts) is runs  # what it ran may still have something to say


def test_a_job_whose_scripts_have_not_joined_yet_says_so():
    reply = pb.StatusReply(job="j", phase="forming", max_nodes=1, min_nodes=1)
    for rank, word in enumerate(("started", "connecting", "running")):
        reply.ranks.append(pb.RankStatus(rank=rank, state=word, host="a"))
    said = "2 ranks of 3 not in meshrt.distributed.initialize() yet"
    assert said in view.status(reply)
    reply.phase = "running"
    assert said not in view.status(reply)


def test_the_status_of_a_job_that_was_made_larger_blames_no_rank_for_it():
    engine = HostsEngine({}, print)
    stopped = Failure(0, 2.0, ExitStatus(signal=signal.SIGTERM), consequence=STOPPED, host="a")
    words = "the job goes on with 2 hosts in place of 1"
    grown = Incident(IncidentKind.RESIZE, 0, 1.0, 1, words, failures=(stopped,))
    failed = Incident(IncidentKind.WORKER, 1, 3.0, 2, failures=(Failure(1, 3.0, ExitStatus(code=3), host="b"),))
    engine.watch(State(Policy(2), generation=2, incidents=(grown, failed)))
    happened = status.reply(engine, "j", "train.py", 0.0).incidents
    assert list(happened) == [f"generation 0: {words}", "generation 1: rank 1 on b: [exit code 3]"]


def test_collections_of_a_coordinator_are_seldom_until_it_ends():
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), _collection.seldom():
        assert gc.get_threshold() == (200_000, *before[1:])
        with _collection.seldom():
            assert gc.get_threshold() == (200_000, *before[1:])
        1 / 0
    assert gc.get_threshold() == before
    gc.set_threshold(0)  # a program that sees to it itself
    try:
        with _collection.seldom():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)


LIMITS = """\
import resource
from pathlib import Path
def files(pid):
    return Path(f"/proc/{pid}/limits").read_text().partition("Max open files")[2].split()[0]
def parent(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
agent = os.getppid()
print("rank", files("self"), "agent", files(agent), "coordinator", files(parent(agent)), flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads limits in /proc")
def test_a_coordinator_takes_the_connections_of_many_hosts_and_its_children_have_the_users_limit(launch):
    started = launch.start("--nodes", 1, body=LIMITS, within=("bash", "-c", 'ulimit -Sn 200; exec "$@"', "x"))
    result = launch.finish(started, 0.0)
    assert result.code == 0, result.err
    hard = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1 << 18)
    assert result.out == f"[local0:0] rank 200 agent 200 coordinator {hard}\n"


ABORTED = """
import os
from meshrt.launch.hosts import library_words
from meshrt.launch.output import Console
with library_words.apart(console := Console(), console.say):
    os.abort()
"""


def test_a_coordinator_that_is_aborted_says_where_it_was():
    done = subprocess.run([sys.executable, "-c", ABORTED], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in done.stderr and 'File "<string>", line 6' in done.stderr
