"""What ranks say at their end, however long and strange: the cause stays named, and terminals obey nobody."""

from __future__ import annotations

import os

import pytest

from meshrt.errors import ConfigError
from meshrt.launch import bootstrap, placing, report, settings, wire
from meshrt.launch.engines._processes import Child
from meshrt.launch.engines.protocol import Task
from meshrt.launch.model import Announce, ExitStatus, Failure, Incident, IncidentKind, WorkerError

TASK = Task(0, 0)


@pytest.mark.parametrize(
    "raised",
    [
        "ValueError('y' * 2_000_000)",
        "ValueError(chr(0x1F600) * 2_000_000)",
        "ValueError('line' * 100 + chr(10) * 1_000_000 + 'end')",
        "type('E' * 300_000, (Exception,), {})('x')",
        "ExceptionGroup('many', [ValueError(chr(1) * 3000)] * 400)",
    ],
)
def test_an_exception_of_any_size_is_told(raised):
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        raise eval(raised)
    except Exception as e:
        error = e
    told = []
    os.environ[bootstrap.FD_VARIABLE] = str(write)
    real, bootstrap.os.write = os.write, lambda _, data: told.append(bytes(data)) or len(data)
    try:
        assert bootstrap.send_exception(error)
    finally:
        bootstrap.os.write = real
        del os.environ[bootstrap.FD_VARIABLE]
        os.close(read)
        os.close(write)
    (message,) = told
    found = wire.decode(message.rstrip(b"\n")).error
    assert found.type == type(error).__qualname__[:200] and found.traceback[-1]
    assert found.message == str(error)[:8000]


def test_of_many_lines_the_first_and_the_last_are_told():
    lines = [f"{k}: {'x' * 200}" for k in range(300)]
    found = bootstrap._shortened(lines)
    assert found[0] == lines[0] and found[-1] == lines[-1] and any(line.endswith("lines left out") for line in found)
    assert bootstrap._shortened(lines[:3]) == lines[:3]


def test_of_a_line_that_is_too_long_only_its_beginning_is_heard():
    process = object.__new__(Child)
    process._unfinished, process._skipping = b"", False
    long = b"x" * (3 * wire.LINE_LIMIT)
    for sizes in (1000, wire.LINE_LIMIT, 10**9):
        data = b'{"kind": "joining"}\n' + long + b"\n" + b'{"kind": "left"}\n{"kind"'
        heard = [line for at in range(0, len(data), sizes) for line in process._lines(data[at : at + sizes])]
        assert heard[0] == b'{"kind": "joining"}' and heard[2:] == [b'{"kind": "left"}'], [len(x) for x in heard]
        with pytest.raises(wire.WireError, match=r"longer than the limit of 262144 bytes: b'xxx"):
            wire.decode(heard[1])
        process._lines(b': "left"}\n')


def described(error, tail=()):
    failure = Failure(0, 1.0, status=ExitStatus(code=1), error=error, tail=tail)
    return report.describe(
        Announce(cause=0, incident=Incident(IncidentKind.WORKER, 0, 1.0, 0, failures=(failure,))), 0.0
    )


def test_a_report_tells_a_terminal_nothing():
    text = "\x1b[2J\x1b]0;title\x07a\rb\x1b[31mred\x9b2K\tend"
    shown = described(WorkerError("ValueError", text.replace("\r", ""), ("Traceback", text)))
    assert "ValueError: abred2K\tend [exit code 1]" in shown and "  | abred2K\tend" in shown
    assert set(map(ord, shown)) & {*range(9), *range(11, 32), 127, *range(128, 160)} == set()
    assert "  | abred2K\tend" in described(None, tail=(text,))


def test_a_report_has_no_endless_lines():
    shown = described(WorkerError("ValueError", "z" * 5000, ("z" * 5000,)))
    assert max(map(len, shown.splitlines())) < 2100 and "characters)" in shown


def test_an_interrupt_of_a_rank_is_told_as_one(launch):
    assert launch(body="raise KeyboardInterrupt").code == 130


def test_names_that_are_not_known_have_their_nearest(tmp_path):
    (tmp_path / "a.toml").write_text("[launch]\nnprocs = 2\n")
    with pytest.raises(ConfigError, match=r"unknown key nprocs .*did you mean nproc\?"):
        settings.read(tmp_path / "a.toml")
    with pytest.raises(ConfigError, match=r"'slrum': there is no such engine; .*did you mean slurm\?"):
        placing.module("slrum")
