"""The figures of a job, as people ask for them."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace

import pytest

import meshrt
from meshrt.errors import ArgumentValueError, ConfigError
from meshrt.launch import wire
from meshrt.launch.metrics import Board, Metrics
from meshrt.launch.model import Phase, Policy, State
from meshrt.launch.settings import Settings


def figures(board: Board) -> dict[str, float]:
    lines = [line for line in board.text().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_figures_of_a_job():
    now = [100.0]
    board = Board(lambda: now[0], lambda: {'n"1': 0.5})
    state = State(Policy(4), Phase.RUNNING, live=frozenset({0, 1, 2}), joining=frozenset({0, 1}), meshed=frozenset({0}))
    board.show(replace(state, finished=frozenset({3})))
    for step in (10, 20, 30):
        board.note(0, wire.Progress(step, 100 * step, 2048))
        now[0] += 2
    found = figures(board)
    assert found['meshrt_phase{phase="running"}'] == 1 and found['meshrt_phase{phase="failed"}'] == 0
    states = {name: found[f'meshrt_ranks{{state="{name}"}}'] for name in ("starting", "joining", "running", "finished")}
    assert states == {"starting": 1, "joining": 1, "running": 1, "finished": 1}
    assert (found['meshrt_step{rank="0"}'], found['meshrt_steps_per_second{rank="0"}']) == (30, 5)
    assert (found['meshrt_tokens_per_second{rank="0"}'], found['meshrt_memory_bytes{rank="0"}']) == (500, 2048)
    assert found['meshrt_progress_age_seconds{rank="0"}'] == 2
    assert found['meshrt_heartbeat_age_seconds{host="n\\"1"}'] == 0.5
    kinds = re.findall(r"# TYPE (\S+) (\S+)", board.text())
    assert len(kinds) == len(dict(kinds)) and {kind for _, kind in kinds} == {"gauge", "counter"}
    board.show(replace(state, generation=1))
    assert figures(board)["meshrt_restarts_total"] == 1 and 'meshrt_step{rank="0"}' not in figures(board)


def test_they_are_served_on_loopback():
    metrics = Metrics("0", Board(lambda: 0.0), [].append)
    try:
        host, _, port = metrics.address.rpartition(":")
        assert host == "127.0.0.1"
        with urllib.request.urlopen(f"http://{metrics.address}/metrics", timeout=10) as reply:
            assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{metrics.address}/secrets", timeout=10)
        with pytest.raises(ConfigError, match="cannot listen there"):
            Metrics(port, Board(lambda: 0.0), [].append)
    finally:
        metrics.close()


def test_who_breaks_off_leaves_no_traceback_on_the_launchers_terminal(capfd):
    metrics = Metrics("0", Board(lambda: 0.0), [].append)
    try:
        for error in (ConnectionResetError("by peer"), BrokenPipeError()):
            try:
                raise error
            except OSError:
                metrics._server.handle_error(None, ("127.0.0.1", 1))
        assert capfd.readouterr().err == ""
    finally:
        metrics.close()


def test_connections_of_which_nobody_asks_take_few_descriptors_and_who_asks_is_answered():
    metrics = Metrics("0", Board(lambda: 0.0), [].append)
    host, _, port = metrics.address.rpartition(":")
    before, idle = len(os.listdir("/proc/self/fd")), []
    try:
        for _ in range(300):
            idle.append(socket.create_connection((host, int(port)), timeout=30))
        with urllib.request.urlopen(f"http://{metrics.address}/metrics", timeout=30) as reply:
            assert reply.status == 200
        idle[0].settimeout(30)
        assert idle[0].recv(1) == b""  # it had to make room
        deadline = time.monotonic() + 30
        while (taken := len(os.listdir("/proc/self/fd")) - before - len(idle)) > 64 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert taken <= 64
    finally:
        for sock in idle:
            sock.close()
        metrics.close()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x16\x03\x01\x1b[31m\r\n\r\n", "Bad request syntax ('\\x16\\x03\\x01\\x1b[31m')"),
        (b"DELETE / HTTP/1.1\r\n\r\n", "Unsupported method ('DELETE')"),
        (b"GET /" + b"x" * 70000, "Request-URI Too Long"),
    ],
    ids=["bytes", "method", "long"],
)  # fmt: skip
def test_what_is_no_request_is_refused_and_told(data, words):
    told = []
    metrics = Metrics("0", Board(lambda: 0.0), told.append)
    host, _, port = metrics.address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=30) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            own = ":".join(map(str, sock.getsockname()))
            while sock.recv(65536):
                pass
        (line,) = told
        assert line.startswith(f"{own} got no figures of the job: code ") and words in line and len(line) < 300
    finally:
        metrics.close()


@pytest.mark.skipif(not os.path.exists("/proc/net/if_inet6"), reason="this machine has no IPv6")
def test_they_are_served_by_ipv6():
    metrics = Metrics("[::1]:0", Board(lambda: 0.0), [].append)
    try:
        with urllib.request.urlopen(f"http://{metrics.address}/metrics", timeout=10) as reply:
            assert reply.status == 200
    finally:
        metrics.close()


@pytest.mark.parametrize("place", ["x", "70000", "h:", -1, True, 1.5])
def test_what_is_no_place_to_serve_them(place):
    with pytest.raises(ConfigError, match="expected a port, or HOST:PORT"):
        Settings(metrics_port=place)


@pytest.mark.parametrize(
    "fields", [{"step": -1}, {"step": True}, {"step": "3"}, {"step": 1, "tokens": 1 << 70}, {"step": 1, "memory": []}]
)
def test_messages_that_are_no_progress(fields):

    with pytest.raises(wire.WireError, match="not a number"):
        wire.decode(json.dumps({"kind": "progress", **fields}).encode())


def test_progress_without_a_launcher_is_nothing():
    assert meshrt.distributed.progress(3, tokens=5) is None
    with pytest.raises(ArgumentValueError, match="step=-1"):
        meshrt.distributed.progress(-1)
    with pytest.raises(ArgumentValueError, match=r"tokens=1\.5"):
        meshrt.distributed.progress(1, tokens=1.5)


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")
def test_a_job_is_watched_while_it_runs(launch):
    process = launch.start(
        "--metrics-port", 0, body="import meshrt\nmeshrt.distributed.progress(7, 70)\nprint('told', flush=True)\n"
        "import time; time.sleep(60)",
    )  # fmt: skip
    address = re.search(r"http://\S+", process.stderr.readline())[0]
    assert "told" in process.stdout.readline()
    with urllib.request.urlopen(address, timeout=10) as reply:
        text = reply.read().decode()
    process.terminate()
    process.communicate(timeout=30)
    assert 'meshrt_step{rank="0"} 7\n' in text and 'meshrt_phase{phase="forming"} 1\n' in text
    assert float(re.search(r'meshrt_memory_bytes\{rank="0"\} (\S+)', text)[1]) > 1e6
