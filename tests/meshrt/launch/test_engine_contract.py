"""What the state machine relies on, of each engine that the package has, with real and tiny processes."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable

import pytest

from meshrt.launch import engines, wire
from meshrt.launch.engines.protocol import Engine, Exited, Output, Report, Said, ServiceSpec, Task, WorkerSpec
from meshrt.launch.environment import Place

from .processes import gone

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc"),
    pytest.mark.parametrize("name", engines.names()),
]

PATIENCE = 30.0  # seconds


class Bench:
    """An engine, its wake pipe, and all that it has reported."""

    def __init__(self, engine: Engine, folder):
        self.engine, self.folder = engine, folder
        self.reports: list[Report] = []
        self.wake, self.waker = os.pipe()
        os.set_blocking(self.wake, False)

    def start(self, *bodies: str, **variables: str) -> list[Task]:
        """One rank for each script."""
        specs = []
        for rank, body in enumerate(bodies):
            script = self.folder / f"{rank}.py"
            script.write_text("import os, signal, subprocess, sys, time\n" + body)
            place = Place(rank, len(bodies), 0, 0, "127.0.0.1:1")
            specs.append(WorkerSpec(place, ("script", str(script)), None, variables))
        self.engine.start(specs)
        return [spec.task for spec in specs]

    def until(self, enough: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not enough():
            assert time.monotonic() < deadline, self.reports
            self.reports += self.engine.wait(0.02, self.wake)

    def ended(self, *tasks: Task) -> dict[Task, Exited]:
        """Waits for the end of these, and a little longer for what must not come."""
        self.until(lambda: {r.task for r in self.reports if isinstance(r, Exited)} >= set(tasks))
        for _ in range(3):
            self.reports += self.engine.wait(0.02, self.wake)
        ends = [r for r in self.reports if isinstance(r, Exited)]
        assert len(ends) == len({r.task for r in ends}), "a task ends once"
        for i, r in enumerate(self.reports):
            assert not any(later.task == r.task for later in self.reports[i + 1 :]) or not isinstance(r, Exited)
        return {r.task: r for r in ends}

    def printed(self, task: Task, stream: str = "stdout") -> bytes:
        return b"".join(r.data for r in self.reports if isinstance(r, Output) and r.task == task and r.stream == stream)

    def said(self, task: Task) -> list[wire.Message]:
        return [wire.decode(r.line) for r in self.reports if isinstance(r, Said) and r.task == task]


@pytest.fixture
def bench(name, tmp_path):
    made = Bench(engines.make(name, os.environ), tmp_path)
    yield made
    made.engine.close()
    os.close(made.wake)
    os.close(made.waker)


@pytest.mark.smoke
def test_ranks_end_once_and_after_what_they_print_and_say(bench, name):
    good, bad = bench.start(
        "print('one'); print('two', file=sys.stderr); print(os.environ['A'], os.environ['MESHRT_PROCESS_ID'])",
        "print('x' * 300_000, end=''); raise ValueError('bad')",
        A="b",
    )
    ends = bench.ended(good, bad)
    assert (ends[good].status.code, ends[bad].status.code) == (0, 1)
    assert (bench.printed(good), bench.printed(good, "stderr")) == (b"one\nb 0\n", b"two\n")
    assert bench.printed(bad) == b"x" * 300_000
    (raised,) = bench.said(bad)
    assert (raised.error.type, raised.error.message) == ("ValueError", "bad") and bench.said(good) == []
    assert all(a.at <= b.at for a, b in zip(bench.reports, bench.reports[1:])), "in the order of the clock"
    assert bench.engine.name == name


def test_a_signal_reaches_all_processes_of_a_task_and_no_other(bench):
    body = "child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); time.sleep(60)"
    one, other = bench.start(body, body)
    bench.until(lambda: bench.printed(one).endswith(b"\n") and bench.printed(other).endswith(b"\n"))
    bench.engine.signal([one], signal.SIGTERM)
    assert bench.ended(one)[one].status.signal == signal.SIGTERM
    children = [int(bench.printed(task)) for task in (one, other)]
    assert gone(children[0]) and not gone(children[1])
    bench.engine.signal([one, other], signal.SIGKILL)  # one has ended: nothing happens
    assert bench.ended(one, other)[other].status.signal == signal.SIGKILL and gone(children[1])


def test_a_stopped_process_wakes_up_to_end(bench):
    (task,) = bench.start("print('up', flush=True); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(60)")
    bench.until(lambda: bench.printed(task) == b"up\n")
    time.sleep(0.1)
    bench.engine.signal([task], signal.SIGTERM)
    assert bench.ended(task)[task].status.signal == signal.SIGTERM


def test_a_process_that_cannot_be_started_ends_with_the_reason(bench):
    (task,) = bench.start("", A="x" * 200_000)  # more than the kernel takes
    status = bench.ended(task)[task].status
    assert "too long" in status.reason and not status.ok and status.shell_code == 1


def test_the_service_says_where_it_listens_until_it_is_killed(bench):
    spec = ServiceSpec(0, 2)
    bench.engine.start([spec])
    bench.until(lambda: bool(bench.said(spec.task)))
    (ready,) = bench.said(spec.task)
    assert isinstance(ready, wire.Ready) and ready.address.startswith("127.0.0.1:")
    bench.engine.signal([spec.task], signal.SIGKILL)
    assert bench.ended(spec.task)[spec.task].status.signal == signal.SIGKILL


def test_waiting_ends_with_its_time_or_by_the_wake_pipe(bench):
    since = time.monotonic()
    assert list(bench.engine.wait(0.1, bench.wake)) == []
    assert 0.09 < time.monotonic() - since < PATIENCE
    os.write(bench.waker, b"!")
    assert list(bench.engine.wait(None, bench.wake)) == []
    assert os.read(bench.wake, 10) == b"!", "what is in the pipe is left to the caller"


def test_closing_leaves_nobody(bench):
    body = "child = subprocess.Popen(['sleep', '60']); print(os.getpid(), child.pid, flush=True); time.sleep(60)"
    (task,) = bench.start(body)
    bench.until(lambda: bench.printed(task).endswith(b"\n"))
    bench.engine.close()
    deadline = time.monotonic() + PATIENCE
    while not all(gone(int(pid)) for pid in bench.printed(task).split()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_specs_are_plain_values(name):
    place = Place(1, 2, 0, 3, "h:1")
    for spec in (ServiceSpec(4, 2, "10.0.0.1:0"), WorkerSpec(place, ("module", "train", "-x"), 4, {"A": "b"})):
        fields = json.loads(json.dumps(dataclasses.asdict(spec)))
        fields = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
        if isinstance(spec, WorkerSpec):
            fields["place"] = Place(**fields["place"])
        assert type(spec)(**fields) == spec
