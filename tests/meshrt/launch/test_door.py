"""The door of a job over real sockets: strangers, hostile lines, and the way through to the service."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from meshrt.distributed import connection
from meshrt.distributed.clusters import Identity
from meshrt.launch import service
from meshrt.launch.membership import folders, frames
from meshrt.launch.membership.door import Door
from meshrt.launch.membership.folders import private_folder, remove_folder
from meshrt.launch.membership.roster import Roster
from meshrt.launch.membership.tunnel import Tunnel
from meshrt.launch.noise import Sparing

VERSIONS = {"meshrt": "1", "jaxlib": "1"}


class Running:
    """A door in a thread, for two processes with a secret; its service is an echo."""

    def __init__(self):
        self.folder = private_folder()
        self.echo = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.echo.bind(f"{self.folder}/0")
        self.echo.listen()
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.roster = Roster(2)
        self.told, self.logged, self.closing = [], [], False
        self.secret = "s3cret"
        service = lambda count: f"unix:{self.folder}/0"
        door = Door(
            listener, self.secret, self.roster, service, lambda *news: self.told.append(news), self.logged.append
        )
        self.thread = threading.Thread(target=door.serve, args=(lambda: self.closing,), daemon=True)
        self.thread.start()

    def knock(self):
        return Guest(self.address)

    def member(self, process):
        guest = self.knock()
        guest.join(process, 2, self.secret)
        assert guest.next()["kind"] == "welcome"
        return guest


class Guest:
    def __init__(self, address):
        self.sock = socket.create_connection(address, timeout=10)
        self.cut = frames.Frames(frames.LINE_LIMIT)
        self.got = []
        self.nonce = self.next()["nonce"]

    def next(self):
        while not self.got:
            data = self.sock.recv(65536)
            if not data:
                return None
            self.got += self.cut.feed(data)
        return self.got.pop(0)

    def until(self, kind):
        while (fields := self.next())["kind"] != kind:
            continue
        return fields

    def send(self, kind, **fields):
        self.sock.sendall(frames.encode(kind, **fields))

    def join(self, process, count, secret, **about):
        proof = frames.proof(secret, "join", self.nonce, process, count)
        about = {"host": "h", "pid": 1, "versions": VERSIONS, **about}
        self.send("join", process=process, processes=count, proof=proof, nonce="n", about=about)


@pytest.fixture
def door(monkeypatch):
    monkeypatch.setattr("meshrt.launch.membership.door._TICK_S", 0.02)
    running = Running()
    yield running
    running.closing = True
    running.thread.join(5)
    assert not running.thread.is_alive()
    remove_folder(running.folder)


def test_members_are_welcomed_by_a_door_that_proves_itself_and_hear_of_losses(door):
    one = door.knock()
    one.join(0, 2, door.secret)
    welcome = one.next()
    assert frames.proves(welcome["proof"], door.secret, "welcome", "n") and welcome["service"].startswith("unix:")
    other = door.member(1)
    assert one.until("formed")["hosts"] == {"0": "h", "1": "h"}
    other.sock.close()
    assert "its connection closed without a word" in one.until("lost")["why"]
    one.sock.close()


@pytest.mark.parametrize(
    ("first", "answer"),
    [
        (lambda g: g.join(1, 2, "wrong"), "it does not know this job's secret"),
        (lambda g: g.send("join", process=1, processes=2), "it does not know this job's secret"),
        (lambda g: g.send("join", process=1, processes=2, proof="\ud800"), "it does not know this job's secret"),
        (lambda g: g.join(0, 2, "s3cret"), "has joined as process 0 already"),
        (lambda g: g.join(5, 2, "s3cret"), "process_id is a whole number"),
        (lambda g: g.join("1", 2, "s3cret"), "what this version of meshrt cannot read"),
        (lambda g: g.sock.sendall(b"GET / HTTP/1.1\r\n\r\n"), "that was a line that is not JSON"),
        (lambda g: g.sock.sendall(b"[" * 5000 + b"\n"), "that was a line that is not JSON"),
        (lambda g: g.sock.sendall(b'"text"\n'), "that was a line that is no message"),
        (
            lambda g: g.sock.sendall(b"x" * (frames.STRANGER_LIMIT + 1)),
            "that was a line of 16385 bytes, more than the 16384",
        ),
    ],
)
def test_strangers_are_refused_and_the_job_of_the_others_goes_on(door, first, answer):
    one = door.member(0)
    guest = door.knock()
    first(guest)
    assert answer in guest.next()["why"]
    assert guest.next() is None
    assert len(door.logged) == 1  # one line for whoever runs the job, too
    door.member(1).sock.close()
    assert one.until("lost")["process"] == 1
    one.sock.close()


def test_a_replayed_proof_does_not_open(door):
    seen = door.knock()
    proof = frames.proof(door.secret, "join", seen.nonce, 1, 2)
    guest = door.knock()
    guest.send("join", process=1, processes=2, proof=proof, about={})
    assert "secret" in guest.next()["why"]


def test_a_wrong_number_of_processes_is_told_to_all(door):
    one = door.member(0)
    guest = door.knock()
    guest.join(1, 3, door.secret)
    assert "was started as one of 3 processes, but this job has 2" in guest.next()["why"]
    assert "was started as one of 3 processes" in one.until("refused")["why"]
    one.sock.close()


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "beat", "launched": {"0": "x"}},
        {"kind": "finished"},
        {"kind": "agree", "circle": "0,1", "number": "one", "record": {}},
        {"kind": "explained", "circle": "0,1", "number": 0, "text": "!!!"},
        {"kind": "no such kind"},
        {"kind": "finished", "launched": [1]},
        {"kind": "beat", "launched": {"0,1": float("inf")}},
        {"kind": "beat", "pending": {"0,x": 1.0}},
        {"kind": "agree", "circle": "x", "number": 0, "record": {}},
        {"kind": "alive", "circle": "7", "name": "n"},
    ],
)
def test_a_member_that_sends_nonsense_harms_nobody(door, message):
    one, other = door.member(0), door.member(1)
    one.send(**message)
    other.send("failed", why="it raised X")
    assert "it raised X" in one.until("lost")["why"]
    one.sock.close()
    other.sock.close()


def test_the_service_is_reached_through_the_door_by_who_has_the_secret(door):
    def answer():
        inner, _ = door.echo.accept()
        while data := inner.recv(1 << 16):
            inner.sendall(data)

    threading.Thread(target=answer, daemon=True).start()
    data = bytes(range(256)) * 4096
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(10)
        client.connect(Tunnel(door.address, door.secret).address.removeprefix("unix:"))
        threading.Thread(target=client.sendall, args=(data,), daemon=True).start()
        got = b""
        while len(got) < len(data):
            got += client.recv(1 << 16)
    assert got == data
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(10)
        client.connect(Tunnel(door.address, "wrong").address.removeprefix("unix:"))
        assert client.recv(1) == b""


def test_a_door_closes_behind_its_last_member(door):
    one = door.member(0)
    door.closing = True
    time.sleep(0.1)
    assert door.thread.is_alive()
    one.sock.close()
    door.thread.join(5)
    assert not door.thread.is_alive()


def test_one_that_wakes_up_after_the_others_went_on_without_it_does_not_speak_for_another(door):
    door.roster.count = 4
    guests = [door.knock() for _ in range(4)]
    for process, guest in enumerate(guests):
        guest.join(process, 4, door.secret)
        guest.until("formed" if process == 3 else "welcome")
    first, stopped, ended, last = guests
    ended.send("finished", launched={})
    stopped.send("failed", why="it stopped")
    assert first.until("lost")["process"] == 1
    while not door.roster.members[2].finished:
        time.sleep(0.01)
    first.send("regroup")
    last.send("regroup")
    assert [g.until("regrouped")["process"] for g in (first, last)] == [0, 1]
    ended.until("over")
    with contextlib.suppress(OSError):  # its connection has ended
        stopped.send("failed", why="it woke up")
    last.send("failed", why="its own words")
    assert "its own words" in first.until("lost")["why"]
    first.sock.close()
    last.sock.close()


def test_a_link_to_other_files_in_the_place_of_a_left_folder_is_not_followed(monkeypatch, tmp_path):
    parent, precious = tmp_path / "t", tmp_path / "precious"
    parent.mkdir()
    precious.mkdir()
    (precious / "file").touch()
    monkeypatch.setattr(folders, "_LONGEST", 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(parent))
    living = private_folder()
    stem = living.rpartition(f"-{os.getpid()}-")[0]
    nobody = 1 << 22  # more than any process's number
    os.symlink(precious, f"{stem}-{nobody}-0")
    os.mkdir(f"{stem}-{nobody}-1")
    os.mkdir(f"{parent}/meshrt-door-00000000-{nobody}-2")  # of another host that shares the folder
    remove_folder(private_folder())
    left = sorted(os.listdir(parent))
    assert os.path.basename(living) in left and f"meshrt-door-00000000-{nobody}-2" in left
    assert (precious / "file").exists() and f"{stem}-{nobody}-1" not in [f"{parent}/{name}" for name in left]
    with pytest.raises(OSError, match=r"."):
        remove_folder(f"{stem}-{nobody}-0")


def test_a_stranger_that_hammers_is_counted_and_not_told_of_each_time():
    said, now = [], [0.0]
    tell = Sparing(said.append, lambda: now[0])
    for at in (0.0, 0.1, 0.15, 0.3, 0.35):
        now[0] = at
        tell("it came")
    assert said == ["it came", "2 more of the kind were left out", "it came"]
    for at in (0.4, 0.6, 0.9):  # nobody else comes
        now[0] = at
        tell.tick()
    assert said[3:] == ["1 more of the kind was left out"]


def test_the_count_of_strangers_is_told_when_no_more_come():
    said, now, due = [], [0.0], []
    tell = Sparing(said.append, lambda: now[0], lambda seconds, call: due.append((now[0] + seconds, call)))
    for now[0] in (0.0, 0.1, 0.15):
        tell("it came")
    ((at, call),) = due
    now[0] = at
    call()
    assert said == ["it came", "2 more of the kind were left out"]


def test_who_says_nothing_makes_room_for_others_and_may_come_again(door, monkeypatch):
    monkeypatch.setattr("meshrt.launch.membership.door._STRANGERS", 3)
    silent = [door.knock() for _ in range(5)]
    for guest in silent[:2]:
        answer = guest.next()
        assert answer["kind"] == "refused" and answer["again"] is True and guest.next() is None
    member = door.member(0)  # although the others stay
    assert "had to make room for others" in door.logged[0]
    for guest in (*silent, member):
        guest.sock.close()


def test_a_process_that_had_to_make_room_at_the_door_knocks_again(monkeypatch):
    monkeypatch.setenv("MESHRT_JOB_SECRET", "s3cret")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        knocks = []

        def serve() -> None:
            for say in ("refused", "nothing", "welcome"):
                sock, _ = listener.accept()
                with sock:
                    sock.sendall(frames.encode("hello", nonce="1"))
                    (join,) = frames.Frames().feed(sock.recv(65536))
                    knocks.append(join["kind"])
                    if say == "refused":
                        sock.sendall(frames.encode("refused", why="many came", again=True))
                    elif say == "welcome":
                        proof = frames.proof("s3cret", "welcome", join["nonce"])
                        sock.sendall(frames.encode("welcome", proof=proof, service="unix:x"))

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        entrance = connection.enter(Identity(address, 1, 0, None, False, "test"), 60.0)
        thread.join()
        entrance.sock.close()
        assert knocks == ["join"] * 3 and entrance.service == "unix:x"


@pytest.mark.skipif(sys.platform != "linux", reason="reads limits and times from /proc")
def test_a_door_without_descriptors_lets_members_in_and_rests():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    limits = ["bash", "-c", 'ulimit -n 64; exec "$@"', "x"]
    command = [sys.executable, str(Path(service.__file__).with_name("serve.py")), "--num-processes", "2"]
    environ = {**os.environ, "MESHRT_JOB_SECRET": "s3cret"}
    serving = subprocess.Popen([*limits, *command, "--bind", f"127.0.0.1:{port}"], env=environ, stderr=subprocess.PIPE)
    silent = []
    try:
        first = reach(("127.0.0.1", port))
        first.join(0, 2, "s3cret")
        assert first.next()["kind"] == "welcome"
        for _ in range(100):
            silent.append(socket.create_connection(("127.0.0.1", port), timeout=60))
        second = reach(("127.0.0.1", port))
        second.join(1, 2, "s3cret")
        assert second.next()["kind"] == "welcome"
        assert first.until("formed")["hosts"] == {"0": "h", "1": "h"}
        for guest in (first, second):
            guest.sock.close()
    finally:
        serving.kill()
        said = serving.communicate()[1].decode()
        for sock in silent:
            sock.close()
    assert "was not let in: it had to make room for others" in said


def reach(address):
    """A guest at a door that may not be there yet."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return Guest(address)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
