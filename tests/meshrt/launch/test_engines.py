"""The launcher over engines: the collection of them, and whole jobs over one without processes, clocks or sleeping."""

from __future__ import annotations

import os
import signal
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshrt import config
from meshrt.cli.main import main
from meshrt.errors import ConfigError, InternalError
from meshrt.launch import engines
from meshrt.launch.engines.local import LocalEngine
from meshrt.launch.engines.protocol import Capabilities, Exited, Task
from meshrt.launch.environment import COMPILED, compiled_bound
from meshrt.launch.model import ExitStatus
from meshrt.runtime import compile_cache
from tests.meshrt.launch.simulated import JOINING, MESHED, OK, SimulatedEngine, raised, ready, run

TERM, KILL, INT = int(signal.SIGTERM), int(signal.SIGKILL), int(signal.SIGINT)
GLOO = raised("JaxRuntimeError", "Gloo all-reduce failed: Connection closed by peer [10.0.0.2]:7597")
CONNECTING = [(0.1, JOINING), (0.2, MESHED)]


def working(seconds=1.0, status=OK):
    return [*CONNECTING, (seconds, status)]


# --- whole jobs.


@pytest.mark.smoke
def test_a_job_over_an_engine():
    engine = SimulatedEngine(lambda generation, rank: [*CONNECTING, (0.5, b"loss %d\n" % rank), (1.0 + rank, OK)])
    result = run(engine, nproc=2, devices_per_process=3, env={"A": "b"})
    assert (result.code, result.out, result.err) == (0, ["[0] loss 0", "[1] loss 1"], [])
    assert engine.calls == [("start", "service"), ("start", "0", "1"), ("signal", TERM, "service")]
    assert engine.closed and engine.now == pytest.approx(0.1 + 2.0 + 0.01)
    spec = engine.specs[Task(0, 1)]
    assert spec.target == ("script", "train.py", "--steps", "3")
    env = spec.environment({"HOME": "/there", "MESHRT_LAUNCH_FD": "7"}, None)
    assert "MESHRT_LAUNCH_FD" not in env and spec.environment({}, 9)["MESHRT_LAUNCH_FD"] == "9"
    wanted = {"HOME": "/there", "A": "b", "MESHRT_PROCESS_ID": "1", "MESHRT_COORDINATOR_ADDRESS": "h:0",
              "MESHRT_NUM_CPU_DEVICES": "3"}  # fmt: skip
    assert env.items() >= wanted.items()


@pytest.mark.smoke
def test_the_rank_that_fails_first_is_named_before_those_that_echo_it():
    def script(generation, rank):
        if rank == 2:
            return [*CONNECTING, (5.0, raised("ValueError", "bad batch 17")), (5.3, ExitStatus(code=1))]
        if rank == 1:  # its exit is seen first
            return [*CONNECTING, (4.9, ("stderr", b"half a line")), (5.1, GLOO), (5.1, ExitStatus(code=1))]
        return CONNECTING

    engine = SimulatedEngine(script)
    result = run(engine, nproc=3)
    assert result.code == 1
    assert result.err == [
        "[1] half a line",
        "meshrt launch: rank 2 failed first: ValueError: bad batch 17 [exit code 1] (5.1 s after the start)",
        "  | ValueError: bad batch 17",
        "  then: rank 1 lost its connection to a peer [exit code 1]; rank 0 was stopped by the launcher "
        "[killed by SIGTERM]",
    ]
    assert engine.calls[2:] == [("signal", TERM, "0"), ("signal", TERM, "service")]


def test_a_rank_that_does_not_start():
    engine = SimulatedEngine(
        lambda generation, rank: [(0.0, ExitStatus(reason="no such image"))] if rank == 1 else CONNECTING
    )
    result = run(engine, nproc=2)
    assert result.code == 1
    assert result.err[0].startswith("meshrt launch: rank 1 failed first: could not be started: no such image (")
    assert engine.running == set() and engine.closed


def test_a_service_that_does_not_start():
    engine = SimulatedEngine(service=lambda generation: [(0.0, ExitStatus(reason="no hosts"))])
    result = run(engine, nproc=2, max_restarts=1)
    assert result.code == 1 and engine.calls == [("start", "service")] * 2
    assert result.err[0].startswith("meshrt launch: the coordination service failed first: could not be started: no ho")
    assert result.err[-1] == "meshrt launch: gave up after 1 restart"


def test_a_service_that_never_says_where_it_listens():
    engine = SimulatedEngine(service=lambda generation: [])
    assert run(engine).code == 1 and engine.now == pytest.approx(60.01)
    assert engine.calls == [("start", "service"), ("signal", TERM, "service")]


@pytest.mark.smoke
def test_restarts_begin_generations_of_their_own(tmp_path):
    engine = SimulatedEngine(
        lambda generation, rank: working(status=ExitStatus(code=9) if (generation, rank) in {(0, 1), (1, 0)} else OK)
    )
    result = run(engine, nproc=2, max_restarts=2, log_dir=str(tmp_path))
    assert result.code == 0 and result.err[-1] == "meshrt launch: succeeded after 2 restarts"
    assert [spec.place.address for task, spec in engine.specs.items() if task.rank == 0] == ["h:0", "h:1", "h:2"]
    assert [c for c in engine.calls if c[0] == "start"] == [("start", "service"), ("start", "0", "1")] * 3
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.log")) == [
        f"g000{g}/{name}.log" for g in range(3) for name in ("r0000", "r0001", "service")
    ]


def test_a_rank_that_ignores_sigterm_is_killed_when_the_grace_is_over():
    engine = SimulatedEngine(
        lambda generation, rank: working(status=ExitStatus(code=4)) if rank else CONNECTING, stubborn=frozenset({0})
    )
    assert run(engine, nproc=2, grace=7.0).code == 4
    settled = 0.1 + 1.0 + 1.0  # the service, the failure, the moment in which others may fail by themselves
    assert engine.calls[2:] == [("signal", TERM, "0"), ("signal", KILL, "0"), ("signal", KILL, "service")]
    assert engine.now == pytest.approx(settled + 7.0 + 2 * 0.01)


def test_a_timer_that_fires_while_what_clears_it_is_reported_counts_no_more():
    # The rank raised and leaves in the very moment in which the wait for the others' errors is over.
    script = lambda g, r: [(0.0, GLOO), (1.0, OK), (1000.0, OK)]
    engine = SimulatedEngine(script, lambda generation: [(0.1, ready("h:1"))])
    assert run(engine, nproc=1).code == 1
    assert engine.running == set()


def test_limits_are_on_the_engines_clock():
    engine = SimulatedEngine(lambda generation, rank: CONNECTING)
    assert run(engine, nproc=2, timeout=3600).code == 124
    assert engine.now == pytest.approx(3600.02)
    engine = SimulatedEngine(lambda generation, rank: CONNECTING[: 1 - rank])
    result = run(engine, nproc=2, start_timeout=300)
    assert "rank 1 did not call meshrt.distributed.initialize()" in result.err[0]
    assert engine.now == pytest.approx(0.1 + 0.1 + 300.02)


def test_an_interrupt_reaches_the_ranks():
    interrupt = [*CONNECTING, (3.0, lambda: signal.raise_signal(signal.SIGINT))]
    engine = SimulatedEngine(lambda generation, rank: CONNECTING if rank else interrupt)
    result = run(engine, nproc=2, max_restarts=3)
    assert result.code == 130 and "stopped by SIGINT" in result.err[0]
    assert engine.calls[2:] == [("signal", INT, "0", "1"), ("signal", TERM, "service")]


def test_messages_that_are_none_are_ignored():
    bad = [("message", b"nonsense"), ready("h:6"), {"kind": "raised"}]
    engine = SimulatedEngine(lambda generation, rank: [*[(0.3, deed) for deed in bad], *working()])
    result = run(engine)
    assert result.code == 0 and len(result.err) == 3
    assert all(
        line.startswith("meshrt launch: rank 0 sent ") and line.endswith("it was ignored") for line in result.err
    )


# --- what an engine can and cannot do.


@pytest.mark.parametrize(
    ("can", "asked", "message"),
    [
        (Capabilities(restarts=False), {"max_restarts": 2}, "max_restarts = 2: the engine 'simulated' cannot start"),
        (Capabilities(output=False), {"log_dir": "logs"}, "log_dir = 'logs': what the processes print does not come"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_before_anything_starts(tmp_path, monkeypatch, can, asked, message):
    monkeypatch.chdir(tmp_path)
    engine = SimulatedEngine(capabilities=can)
    with pytest.raises(ConfigError, match=message):
        run(engine, **asked)
    assert engine.calls == [] and engine.closed and list(tmp_path.iterdir()) == []
    assert run(SimulatedEngine(capabilities=can)).code == 0


@pytest.mark.parametrize(("signals", "sent"), [({TERM, INT}, INT), ({TERM}, TERM), (set(), KILL)])
def test_an_engine_gets_the_nearest_signal_that_it_can_send(signals, sent):
    interrupt = [*CONNECTING, (3.0, lambda: signal.raise_signal(signal.SIGINT))]
    engine = SimulatedEngine(lambda generation, rank: interrupt, capabilities=Capabilities(signals=frozenset(signals)))
    assert run(engine).code == 130
    assert engine.calls[2] == ("signal", sent, "0")


def test_a_report_of_an_unknown_task_is_the_engines_fault_and_ends_everything():
    class Confused(SimulatedEngine):
        def wait(self, seconds, wake):
            return [Exited(Task(5, 0), self.now, OK)]

    engine = Confused()
    with pytest.raises(InternalError, match=r"Task\(generation=5, rank=0\).* does not run"):
        run(engine)
    assert engine.closed


# --- any job ends, leaves nobody, and is told alike each time.

DEEDS = st.sampled_from([
    JOINING, MESHED, b"line\n", ("stderr", b"torn"), ("message", b"?"), GLOO, raised("ValueError", "x"), OK,
    ExitStatus(code=3), ExitStatus(code=78), ExitStatus(signal=9), ExitStatus(reason="none"),
])  # fmt: skip
SCRIPTS = st.lists(st.tuples(st.floats(0.0, 20.0), DEEDS), max_size=6)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 3), st.integers(0, 2), st.sampled_from([None, 30.0]), st.data())
def test_any_job_ends_and_leaves_nobody(nproc, restarts, timeout, data):
    drawn = {(g, r): data.draw(SCRIPTS) for g in range(restarts + 1) for r in range(nproc)}
    stubborn = data.draw(st.frozensets(st.integers(0, nproc - 1)))
    lost = data.draw(st.sampled_from([None, 5.0]))  # when the service ends by itself

    def service(generation):
        return [(0.1, ready("h:1")), *([] if lost is None else [(lost, ExitStatus(signal=9))])]

    def once():
        # Whoever is still there after a while is done.
        script = lambda g, r: [*drawn[g, r], (1000.0, OK)]
        engine = SimulatedEngine(script, service, stubborn=stubborn)
        left = []
        end = engine.close
        engine.close = lambda: (left.extend(engine.running), end())
        outcome = run(engine, nproc=nproc, max_restarts=restarts, timeout=timeout)
        assert left == [] and {t.generation for t in engine.specs} <= set(range(restarts + 1))
        return outcome, engine.calls, engine.now

    assert once() == once()


# --- the collection.

PRETEND = """
from tests.meshrt.launch.simulated import OK, SimulatedEngine

def make(environ):
    return SimulatedEngine(lambda generation, rank: [(1.0, b"here is %d\\n" % rank), (2.0, OK)], name="pretend")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that belongs to the package of engines."""
    monkeypatch.setattr(engines, "__path__", [*engines.__path__, str(tmp_path)])
    yield tmp_path
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(f"{engines.__name__}.{path.stem}", None)


def test_engines_are_the_modules_of_their_package(folder):
    known = engines.names()
    assert "local" in known and "pretend" not in known
    assert isinstance(engines.make("local", {}), LocalEngine)
    (folder / "pretend.py").write_text(PRETEND)
    (folder / "_parts.py").write_text("")
    assert engines.names() == sorted([*known, "pretend"])
    assert f"{engines.__name__}.pretend" not in sys.modules, "an engine is imported when it is asked for"
    assert engines.make("pretend", {}).name == "pretend"


@pytest.mark.parametrize("name", ["slurm", "protocol", "", "../local"])
def test_an_unknown_engine_lists_the_known_ones(name):
    with pytest.raises(ConfigError, match=r"there is no such engine; known are: .*local"):
        engines.make(name, {})


def test_an_engine_that_lacks_a_package_says_which(folder):
    (folder / "heavy.py").write_text("import a_package_that_is_not_there\n")
    with pytest.raises(ConfigError, match=r"engine = 'heavy': it cannot be used here: .*a_package_that_is_not_there"):
        engines.make("heavy", {})


@pytest.mark.smoke
def test_the_command_line_selects_an_engine(folder, tmp_path_factory, capsys):
    (folder / "pretend.py").write_text(PRETEND)
    script = tmp_path_factory.mktemp("scripts") / "script.py"
    script.write_text("raise SystemExit('this engine runs no scripts')")
    with pytest.raises(SystemExit) as left:
        main(["launch", "--engine", "pretend", "--nproc", "2", str(script)])
    assert (left.value.code, capsys.readouterr().out) == (0, "[0] here is 0\n[1] here is 1\n")
    with pytest.raises(SystemExit) as left:
        main(["launch", "--engine", "nothing", str(script)])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("meshrt: error: engine = 'nothing': there is no such engine; known are: ")
    assert {"local", "pretend"} <= set(said.strip().partition("known are: ")[2].split(", "))


def test_the_launchers_folder_of_compiled_programs_is_bounded_and_a_users_own_is_not(tmp_path, monkeypatch):
    engine = LocalEngine({})
    try:
        environ = engine._sharing()
        shared = environ[COMPILED]
        assert os.stat(shared).st_mode & 0o777 == 0o700 and engine._sharing() == environ
        monkeypatch.setattr(os, "environ", dict(environ))
        bound = compiled_bound(environ, shared)
        for folder, size, most in ((shared, 1 << 40, bound), (shared, -1, bound), (shared, 5, 5), (tmp_path, 7, 7)):
            with config.settings.override(compilation_cache_dir=str(folder), compilation_cache_max_size=size):
                assert compile_cache._disk().max_bytes == most
    finally:
        engine.close()
    assert not os.path.exists(shared)
    assert LocalEngine({COMPILED: str(tmp_path)})._sharing() == {COMPILED: str(tmp_path)}
