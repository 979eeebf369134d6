"""What the doctor makes of what it finds, and what it finds here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshrt.cli import doctor as doctor_command
from meshrt.cli.main import main
from meshrt.launch.doctor import visit
from meshrt.launch.doctor.diagnosis import Examined, diagnose
from meshrt.launch.placing import ssh

from .processes import gone

FACTS = {
    "name": "a", "python": "3.11.7", "packages": {"meshrt": "1", "jaxlib": "0.10.2", "numpy": "2", "grpcio": None},
    "devices": {"cpu": 4}, "accelerators": [], "cores": 8, "memory": {"all": 2**34, "free": 2**33},
    "open_files": 65536, "temporary": {"folder": "/tmp", "free": 2**40}, "port": True, "own_name": "10.0.0.1",
    "environment": {}, "proxies": [], "reach": 0.001,
}  # fmt: skip


def host(name: str = "a", clock: float = 0.0, failure: str | None = None, **facts: object) -> Examined:
    return Examined(name, {} if failure else {**FACTS, **facts}, clock, 0.001, failure)


def test_nothing_is_wrong():
    assert diagnose([host("a"), host("b"), host("c")]) == []


@pytest.mark.parametrize(
    ("odd", "severity", "what", "todo"),
    [
        (host("b", failure="Connection refused"), "error", "cannot be examined: Connection refused", "ssh b true"),
        (host("b", packages={"meshrt": "1", "jaxlib": "0.12"}), "error", "jaxlib is 0.12, elsewhere 0.10.2", "=="),
        (host("b", packages={"meshrt": None, "jaxlib": "0.10.2"}), "error", "meshrt is not installed", "pip install"),
        (host("b", python="3.13.1"), "error", "Python is 3.13, elsewhere 3.11", "Python 3.11"),
        (host("b", clock=-2.5), "warning", "2.5 s behind", "chrony"),
        (host("b", clock=90), "error", "90.0 s ahead", "chrony"),
        (host("b", devices={"error": "no driver"}), "error", "cannot be used: no driver", "meshrt.devices()"),
        (host("b", devices={"cpu": 4}, accelerators=["nvidia0"]), "warning", "nvidia0", "cuda12"),
        (host("b", devices={"cpu": 2}), "warning", "2 cpu, elsewhere 4 cpu", "leave the host out"),
        (host("b", port={"error": "denied"}), "error", "listen", "firewall"),
        (host("b", reach={"error": "timed out"}), "error", "does not reach this machine: timed out", "--listen"),
        (host("b", own_name="127.0.1.1"), "warning", "127.0.1.1", "--no-agents"),
        (host("b", open_files=256), "warning", "256 files", "ulimit"),
        (host("b", temporary={"folder": "/tmp", "free": 2**20}), "warning", "/tmp has 1 MiB free", "TMPDIR"),
        (host("b", proxies=["http_proxy"]), "warning", "http_proxy", "no_proxy"),
        (host("b", environment={"XLA_FLAGS": "x"}), "warning", "XLA_FLAGS is 'x', elsewhere not set", "--env"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_one_of_three(odd, severity, what, todo):
    (problem,) = diagnose([host("a"), odd, host("c")])
    assert (problem.host, problem.severity) == ("b", severity)
    assert what in problem.what and todo in problem.todo


def test_errors_come_first():
    found = diagnose([host("a", clock=2), host("b", failure="gone"), host("c")])
    assert [p.severity for p in found] == ["error", "warning"]


def doctor(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "meshrt", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_this_machine(monkeypatch):
    monkeypatch.setenv("MESHRT_JOB_SECRET", "not to be shown")
    done = doctor("--json")
    assert "not to be shown" not in done.stdout
    found = json.loads(done.stdout)
    (only,) = found["hosts"]
    assert only["facts"]["devices"] == {"cpu": only["facts"]["devices"]["cpu"]} and only["failure"] is None
    assert only["facts"]["environment"]["MESHRT_JOB_SECRET"] == "********"
    assert done.returncode == int(any(p["severity"] == "error" for p in found["problems"]))
    done = doctor("--no-devices")
    assert "jaxlib" in done.stdout and max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--hosts", "a", "--hostfile", "b"], "leave the other one out"),
        (["--hosts", "a;b"], "not the name of a host"),
        (["--hostfile", "/no/such"], "cannot be read"),
        (["--hosts", "a", "-o", "colour=red"], "no such option"),
        (["--timeout", "0"], "--timeout"),
    ],
)
def test_a_wrong_command_is_one_line(capsys, arguments, why):
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and why in said and len(said.splitlines()) == 1


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_what_ssh_leaves_behind_is_not_waited_for(tmp_path):
    fake = program(tmp_path / "ssh", f"echo no route >&2\nsleep 60 >/dev/null & echo $! > {tmp_path}/pid\nexit 255")
    (found,) = visit.examine(["127.0.0.1"], ssh.Options(ssh=(str(fake),)), 50.0)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # ProcessLookupError if it was waited for
    assert found.failure == "no route"


def test_ctrl_c_ends_it_and_what_it_started(tmp_path, signals_are_heard):
    fake = program(tmp_path / "ssh", f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; exec sleep 60")
    command = [sys.executable, "-m", "meshrt", "doctor", "--hosts", "127.0.0.1", "-o", f"ssh={fake}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "pid").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in said
    while not gone(int((tmp_path / "pid").read_text())):  # it has been killed; the system takes its time
        time.sleep(0.02)


@pytest.mark.parametrize(("seconds", "text"), [(-1e-5, "+0.0 ms"), (-0.0123, "-12.3 ms"), (61.0, "+61.0 s")])
def test_how_far_a_clock_is_off(seconds, text):
    assert doctor_command._seconds(seconds) == text
