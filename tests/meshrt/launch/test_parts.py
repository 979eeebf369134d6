"""The launcher's small parts: lines, messages, settings, variables, addresses."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import types
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshrt.launch
from meshrt.distributed.doing import Observer
from meshrt.errors import ConfigError, DistributedError
from meshrt.launch import bootstrap, settings, wire
from meshrt.launch.address import join_address, split_address
from meshrt.launch.environment import Place, worker_environment
from meshrt.launch.noise import without_noise
from meshrt.launch.output import LINE_LIMIT, LineSplitter, picture
from meshrt.launch.service import listen
from meshrt.runtime import process_groups

# --- lines.


@given(st.binary(max_size=300).map(lambda b: b.replace(b"\r", b"")), st.lists(st.integers(0, 300), max_size=8))
def test_lines_do_not_depend_on_how_the_bytes_arrive(data, cuts):
    splitter, out, at = LineSplitter(), [], 0
    for cut in [*sorted(cuts), len(data)]:
        out += splitter.feed(data[at:cut], 0.0)
        at = max(at, cut)
    out += splitter.close()
    expected = data.split(b"\n")
    assert out == (expected[:-1] if expected[-1] == b"" else expected)


def test_a_redrawn_line_is_shown_once_a_second_and_at_its_end():
    splitter = LineSplitter()
    assert splitter.feed(b"1%\r2%\r", 0.0) == [b"1%\r2%"]
    assert splitter.feed(b"3%\r4%\r", 0.5) == []
    assert splitter.feed(b"5%\r", 1.5) == [b"3%\r4%\r5%"]
    assert splitter.feed(b"99%\r100%\nnext", 1.6) == [b"99%\r100%"]
    assert splitter.close() == [b"next"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"plain", b"plain"),
        (b"dos\r", b"dos"),
        (b"1%\r100%", b"100%"),
        (b"loading weights\rdone", b"doneing weights"),  # as a terminal has it: nothing that is left is lost
        (b"loading weights\r\x1b[Kdone", b"\x1b[Kdone"),
        ("größer\rok".encode(), "okößer".encode()),
        (b"\xff\xfe\r.", b".\xfe"),
    ],
)
def test_a_line_with_carriage_returns_is_shown_as_by_a_terminal(line, shown):
    assert picture(line) == shown


def test_an_endless_line_is_cut():
    pieces = LineSplitter().feed(b"x" * (2 * LINE_LIMIT + 1), 0.0)
    assert [len(p) for p in pieces] == [LINE_LIMIT, LINE_LIMIT]


# --- the runtime's own lines.

GLOO = b"[Gloo] Rank 3 is connected to 7 peer ranks. Expected number of connected peer ranks is : 7"
TORN = b"[Gloo] Rank [Gloo] Rank 21 is connected to  is connected to 77 peer ranks. Expected number of connected peer "


@pytest.mark.parametrize(
    ("line", "own"),
    [
        (GLOO, None),
        (b"[Gloo] Rank 0[Gloo] Rank 1 is connected to  is connected to 11 peer ranks. ", None),
        (b"1 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3", None),
        (b"1 is connected to 3", b"1 is connected to 3"),
        (b"node 1 is connected to 3 peer ranks. ", b"node 1 is connected to 3 peer ranks. "),
        (b"loading ..." + GLOO, b"loading ..."),
        (b"", b""),
        (b"7", b"7"),
        (GLOO + b" and so on", GLOO + b" and so on"),
        (b"[Gloo] Rank 3 failed", b"[Gloo] Rank 3 failed"),
        (
            b"W1123 10:55:12.758   247 preemption_notifier.cc:90] SIGTERM caught at 2026-11-23T10:55:12.75+00:00",
            None,
        ),
        (b"the line " + GLOO + b" means little", b"the line " + GLOO + b" means little"),
        (TORN + b"x", TORN + b"x"),
    ],
)
def test_only_what_the_runtime_printed_is_left_out(line, own):
    assert without_noise(line) == own


@given(st.binary(max_size=200))
def test_what_a_script_prints_is_never_left_out(line):
    assert without_noise(line) == line or b"[Gloo] Rank " in line or b"peer ranks" in line


# --- messages.


def test_an_exception_survives_the_pipe(monkeypatch):
    read_end, write_end = os.pipe()
    monkeypatch.setenv(bootstrap.FD_VARIABLE, str(write_end))
    try:
        raise ValueError("schlecht: ü\nzweite")
    except ValueError as e:
        assert bootstrap.send_exception(e)
    message = wire.decode(os.read(read_end, 65536).rstrip(b"\n"))
    os.close(read_end)
    os.close(write_end)
    assert (message.error.type, message.error.message) == ("ValueError", "schlecht: ü\nzweite")
    assert message.error.traceback[0] == "Traceback (most recent call last):"


def test_without_a_launcher_nothing_is_sent(monkeypatch):
    monkeypatch.delenv(bootstrap.FD_VARIABLE, raising=False)
    assert not bootstrap.send(kind="meshed")


def test_what_threads_tell_at_once_comes_in_whole_lines(monkeypatch):
    read_end, write_end = os.pipe()
    monkeypatch.setenv(bootstrap.FD_VARIABLE, str(write_end))
    tell = lambda: [bootstrap.send(kind="raised", type="E", message="x" * 9000, traceback=[]) for _ in range(20)]
    threads = [threading.Thread(target=tell) for _ in range(4)]
    for thread in threads:
        thread.start()
    with os.fdopen(read_end, "rb") as lines:  # a pipe holds seven of them
        messages = [wire.decode(next(lines)) for _ in range(80)]
    for thread in threads:
        thread.join()
    os.close(write_end)
    assert all(isinstance(m, wire.Raised) and m.error.message == "x" * 9000 for m in messages)


@given(st.one_of(st.binary(max_size=60), st.recursive(
    st.none() | st.text(max_size=5) | st.integers() | st.sampled_from(["raised", "ready", "meshed"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["kind", "type", "message", "traceback", "address"]), inner, max_size=5),
).map(lambda value: json.dumps(value).encode())))  # fmt: skip
def test_any_bytes_are_a_message_or_a_wire_error(line):
    try:
        assert isinstance(wire.decode(line), wire.Message)
    except wire.WireError:
        pass


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"x" * (wire.LINE_LIMIT + 1), "longer than the limit"),
        (b"[" * 100_000, "not JSON"),
        (b'{"kind": "raised", "type": "E", "message": "m", "traceback": "t"}', "not a list of lines"),
        (b'{"kind": "dance"}', "unknown kind 'dance'"),
    ],
)
def test_bad_messages_are_described(line, text):
    with pytest.raises(wire.WireError, match=text):
        wire.decode(line)


# --- settings.


def _config(tmp_path, text):
    path = tmp_path / "c.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[launch]\nnprocs = 2", "unknown key nprocs in [launch]; known are nproc, nodes, devices_per_process"),
        ("[launch]\nnproc = '2'", "nproc = '2': expected a whole number from 1 to 65536"),
        ("[launch]\nnproc = true", "nproc = True: expected a whole number"),
        ("[launch]\ntimeout = -1", "timeout = -1: expected a time in seconds, more than 0"),
        ("[launch]\ntimeout = nan", "timeout = nan: expected a time in seconds"),
        ("[launch.env]\nA = 1", 'A = 1: expected text, as in A = "1"'),
        ("[launch.env]\n'A B' = 'x'", "'A B' is not the name of an environment variable"),
        ("[launch.env]\nMESHRT_PROCESS_ID = '7'", "env: MESHRT_PROCESS_ID is set by the launcher"),
        ("[launch]\nengine = 3", "engine = 3: expected the name of an engine"),
        ("[launch]\nlog_dir = 3", "log_dir = 3: expected the path of a directory"),
        ("[other]\n", "expected one table, [launch]; found other"),
        ("", "expected one table, [launch]; found none"),
        ("nproc = ", "cannot be read as TOML"),
    ],
)
def test_a_bad_configuration_says_where_and_why(tmp_path, text, message):
    with pytest.raises(ConfigError) as caught:
        settings.read(_config(tmp_path, text))
    assert "c.toml: " in str(caught.value) and message in str(caught.value)


def test_every_configuration_of_the_repository_is_valid():
    files = sorted((Path(__file__).parents[3] / "configs" / "launch").glob("*.toml"))
    assert files
    for file in files:
        assert settings.read(file).nproc > 1
    assert settings.find("local-2x4", settings.folders()).name == "local-2x4.toml"


def test_an_unknown_configuration_lists_the_known_ones():
    with pytest.raises(ConfigError, match="one of: local-2x2-restart, local-2x4, slurm-2x4"):
        settings.find("nope", settings.folders())
    with pytest.raises(ConfigError, match="no launch configuration"):
        settings.find("../launch/local-2x4", settings.folders())


def test_the_command_line_wins_and_variables_join(tmp_path):
    base = settings.read(_config(tmp_path, "[launch]\nnproc = 2\ngrace = 1\n[launch.env]\nA = 'a'\nB = 'b'"))
    both = settings.override(base, nproc=3, env={"B": "c"})
    assert (both.nproc, both.grace, both.env) == (3, 1, {"A": "a", "B": "c"})


# --- variables and addresses.


def _environment(base, devices=None, extra=(), address="10.0.0.1:5"):
    return worker_environment(base, Place(1, 2, 3, 4, address), devices, dict(extra), 9)


def test_a_workers_place_cannot_be_overridden():
    env = _environment({"MESHRT_PROCESS_ID": "7"}, extra={"MESHRT_PROCESS_ID": "8", "X": "y"})
    assert env["MESHRT_PROCESS_ID"] == "1" and env["X"] == "y"
    assert (env["MESHRT_NUM_PROCESSES"], env["MESHRT_GENERATION"], env["MESHRT_LAUNCH_FD"]) == ("2", "3", "9")


def test_a_rank_that_starts_a_job_of_its_own_hands_it_nothing_of_how_it_joined():
    env = _environment({"MESHRT_JOINS": "2", "MESHRT_ELASTIC": "1"})
    assert not {"MESHRT_JOINS", "MESHRT_ELASTIC"} & env.keys()
    assert _environment({}, extra={"MESHRT_JOINS": "1"})["MESHRT_JOINS"] == "1"


def test_a_number_of_devices_that_the_user_set_is_kept():
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    assert _environment({})["MESHRT_NUM_CPU_DEVICES"] == "4"
    assert "MESHRT_NUM_CPU_DEVICES" not in _environment(flags)
    assert _environment(flags, devices=2)["MESHRT_NUM_CPU_DEVICES"] == "2"
    assert _environment({"MESHRT_NUM_CPU_DEVICES": "6"})["MESHRT_NUM_CPU_DEVICES"] == "6"


def test_the_coordinator_is_not_reached_through_a_proxy():
    assert "no_grpc_proxy" not in _environment({})
    assert _environment({"https_proxy": "p"})["no_grpc_proxy"] == "10.0.0.1"
    assert _environment({"http_proxy": "p", "no_proxy": "a,b"})["no_grpc_proxy"] == "a,b,10.0.0.1"


@pytest.mark.parametrize("pair", [("127.0.0.1", 80), ("::1", 1), ("host.name", 65535)])
def test_addresses_round_trip(pair):
    assert split_address(join_address(*pair)) == pair


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:70000", "host:-1", "host:x", "host:٣"])
def test_bad_addresses(text):
    with pytest.raises(DistributedError, match="expected host:port"):
        split_address(text)


def test_a_taken_port_is_an_error(monkeypatch):
    monkeypatch.setattr("meshrt.launch.service._PORT_WAIT_S", 0.0)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(DistributedError, match="Address already in use"):
            listen("127.0.0.1", taken.getsockname()[1])


def test_an_address_of_another_host_cannot_be_bound():
    with pytest.raises(DistributedError, match="name an address of this host in coordinator_bind_address"):
        listen("192.0.2.1", 0)


def test_no_module_of_the_launcher_hides_one_of_the_standard_library():
    """bootstrap.py and reaper.py are run by path, which puts this folder first on the module path."""
    names = {p.stem for p in Path(meshrt.launch.__file__).parent.glob("*.py")} - {"__init__"}
    assert not names & sys.stdlib_module_names


# --- what a process is doing.


class Hasty:
    """A circle whose thread has gone on whenever it is looked at again."""

    launched, pending = 4, lambda self: 2.0

    def __init__(self, **programs):
        self._programs = programs

    def __getattr__(self, name):
        return self._programs.pop(name, None)


@pytest.mark.parametrize("name, told", [("agreeing", "about to launch step"), ("current", "in step 4 of its shared")])
def test_what_a_process_does_is_told_while_it_goes_on(monkeypatch, name, told):
    """The thread that tells it would end otherwise, and the process count as lost."""
    program = types.SimpleNamespace(name="step", record={}, where="")
    monkeypatch.setattr(process_groups, "circles", lambda: [Hasty(**{name: program})])
    assert Observer().look()["text"].startswith(told)


def test_a_compilation_may_end_while_it_is_asked_for(monkeypatch):
    class Ended(list):
        __bool__ = lambda self: True

    monkeypatch.setattr(process_groups, "_compiling", Ended())
    assert process_groups.being_compiled() is None
    with process_groups.compiling("jit_step"):
        assert process_groups.being_compiled() == "jit_step"
