"""How a process leaves its job, and what the next job does not inherit."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

import meshrt.distributed
from meshrt.checkpoint import job
from meshrt.distributed import state
from meshrt.distributed.connection import Entrance
from meshrt.errors import ConfigError
from meshrt.launch.engines.protocol import SERVICE_SCRIPT
from meshrt.launch.membership.frames import Frames
from meshrt.launch.settings import Settings

FAILS = """
import os, sys
from meshrt.distributed import leaving
leaving.install(lambda: True, lambda why: os.write(2, b"told: " + why.encode()), lambda: 0)
sys.stdout = open(int(sys.argv[1]), "w", buffering=4096, closefd=False)
print("nobody reads this")
{end}
"""


def _left(end):
    reading, writing = os.pipe()
    os.close(reading)
    script = FAILS.format(end=end)
    done = subprocess.run(
        [sys.executable, "-c", script, str(writing)],
        check=False, pass_fds=[writing], capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    os.close(writing)
    return done


def test_who_fails_gets_away_although_nobody_reads_its_output():
    done = _left("raise RuntimeError('boom')")
    assert done.returncode == 1 and "told: it raised RuntimeError: boom" in done.stderr
    assert "BrokenPipeError" not in done.stderr  # else the interpreter went on to wait for the peers


def test_a_code_is_kept_although_nobody_reads_the_output():
    done = _left("leaving.note_failure(7)")
    assert done.returncode == 7 and "BrokenPipeError" not in done.stderr


def test_calls_of_all_processes_are_counted_by_job(monkeypatch):
    told = []
    monkeypatch.setattr(state.backend, "set_process_info", told.append)
    monkeypatch.setattr(state.process_groups, "set_job", told.append)
    context = lambda count: state.DistributedContext(object(), 0, count)
    state.adopt(context(3))
    try:
        first = [job.current(1.0).prefix for _ in range(2)]
        state.adopt(context(2))  # one was lost; another of those left may have made one call only
        assert [job.current(1.0).prefix for _ in range(2)] == first == ["meshrt/checkpoint/0", "meshrt/checkpoint/1"]
    finally:
        state.forget()


def test_a_place_in_a_job_does_not_show_its_secret():
    entrance = Entrance(None, Frames(), ("h", 1), "h", "unix:/x", "s3cret")  # type: ignore[arg-type]
    assert "s3cret" not in repr(state.DistributedContext(None, 0, 1, entrance=entrance))


@pytest.mark.parametrize("seconds", [0.8, 0, -1, float("nan"), True, "8"])
def test_a_silence_that_processes_which_are_well_keep_too_is_refused(seconds):
    with pytest.raises(ConfigError, match=r"heartbeat_timeout_seconds=.*at least 2"):
        meshrt.distributed.initialize("127.0.0.1:1", 2, 1, heartbeat_timeout_seconds=seconds)
    if seconds == 0.8:
        with pytest.raises(ConfigError, match=r"heartbeat_timeout = 0\.8: expected at least 2"):
            Settings(heartbeat_timeout=seconds)


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.15])
def test_a_service_that_is_ended_while_it_starts_says_nothing(seconds):
    process = subprocess.Popen(
        [sys.executable, str(SERVICE_SCRIPT), "--num-processes", "1"], stderr=subprocess.PIPE, text=True
    )
    time.sleep(seconds)
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert err == "" and process.returncode in (0, -15)


def test_a_door_that_strangers_reach_without_a_secret_is_spoken_of(monkeypatch):
    monkeypatch.delenv("MESHRT_JOB_SECRET", raising=False)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    call = f"initialize('127.0.0.1:{port}', 1, 0, coordinator_bind_address='0.0.0.0:{port}')"
    command = [sys.executable, "-c", f"import meshrt; meshrt.distributed.{call}"]
    found = [
        subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, **env}
        ).stderr
        for env in ({}, {"MESHRT_JOB_SECRET": "a long enough secret"})
    ]
    assert "without MESHRT_JOB_SECRET whoever reaches it may join" in found[0] and "may join" not in found[1]
