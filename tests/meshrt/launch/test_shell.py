"""The launcher with real, tiny processes. The fixture checks after each test that none of them is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshrt import _start
from tests.meshrt.launch.conftest import wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes through /proc")

SLEEP = "print('up', flush=True); time.sleep(60)\n"
# A child in the worker's process group that would outlive it.
CHILD = "subprocess.Popen(['sleep', '60'])\n"


@pytest.mark.smoke
def test_a_good_job_shows_each_line_behind_its_rank(launch):
    result = launch("--nproc", 2, launch.script("print('hello', sys.argv[1:], __name__); print('x', file=sys.stderr)"),
                    "--a", "1")  # fmt: skip
    assert result.code == 0
    lines = [f"[{r}] hello ['--a', '1'] __main__" for r in (0, 1)]
    assert sorted(result.out.splitlines()) == lines
    assert sorted(result.err.splitlines()) == ["[0] x", "[1] x"]


@pytest.mark.smoke
@pytest.mark.parametrize("verbose", [False, True])
def test_the_runtimes_own_lines_go_to_the_log_only(launch, verbose):
    gloo = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1"
    body = f"print({gloo!r}); print('[Gloo] is what I say'); print('half', end=''); print({gloo!r}); print('end')"
    logs = launch.folder / "logs"
    result = launch("--nproc", 1, "--log-dir", logs, *["--verbose"] * verbose, body=body)
    own = ["[0] [Gloo] is what I say", "[0] half" + gloo * verbose, "[0] end"]
    assert result.out.splitlines() == [f"[0] {gloo}"] * verbose + own
    assert (logs / "g0000" / "r0000.log").read_text().count(gloo) == 2


def test_a_worker_that_raises_is_named_first_with_its_traceback(launch):
    body = CHILD + "if rank == 1: raise ValueError('bad batch 17')\n" + SLEEP
    result = launch("--nproc", 3, "--log-dir", "logs", body=body)
    assert result.code == 1
    report = json.loads((launch.folder / "logs" / "report.json").read_text())
    assert len(report["incidents"]) == 1
    first, *rest = result.report.splitlines()
    assert first.startswith("meshrt launch: rank 1 failed first: ValueError: bad batch 17 [exit code 1]")
    assert rest[0] == "  | Traceback (most recent call last):"
    assert "  | ValueError: bad batch 17" in rest
    assert "bootstrap" not in result.report
    assert "rank 0 was stopped by the launcher" in rest[-1] and "rank 2 was stopped by the launcher" in rest[-1]


def test_a_long_traceback_keeps_the_scripts_own_frame_and_its_end(launch):
    body = "def f(n):\n  if n == 0: raise ValueError('deep')\n  g(n - 1)\ndef g(n):\n  f(n)\nf(30)\n"
    report = launch("--nproc", 1, body=body).report
    lines = [line for line in report.splitlines() if line.startswith("  | ")]
    assert lines[0] == "  | Traceback (most recent call last):" and lines[2].endswith("f(30)")
    assert lines[-1] == "  | ValueError: deep" and any("lines left out" in line for line in lines)
    assert len(lines) == 31


def test_a_killed_worker_is_named_with_its_signal(launch):
    result = launch("--nproc", 2, body="if rank == 1: os.kill(os.getpid(), 9)\n" + SLEEP)
    assert result.code == 137 and result.seconds < 40
    assert result.report.startswith("meshrt launch: rank 1 failed first: killed by SIGKILL")


@pytest.mark.parametrize(
    ("statement", "code", "text"),
    [
        ("sys.exit(3)", 3, "exit code 3"),
        ("sys.exit('no data in here')", 1, "SystemExit: no data in here [exit code 1]"),
        ("os._exit(9)", 9, "exit code 9"),
        ("os.abort()", 134, "killed by SIGABRT"),
    ],
)
def test_each_way_to_fail(launch, statement, code, text):
    result = launch("--nproc", 2, body=f"if rank == 0: {statement}\n{SLEEP}")
    assert result.code == code
    assert f"rank 0 failed first: {text} (" in result.report


def test_the_end_of_stderr_is_the_evidence_where_no_exception_was_reported(launch):
    result = launch("--nproc", 1, body="print('disk full', file=sys.stderr); os._exit(5)")
    assert result.code == 5 and "  | disk full" in result.report


def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace(launch):
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + CHILD + "if rank == 1: sys.exit(4)\n" + SLEEP
    result = launch("--nproc", 2, "--grace", 0.5, body=body)
    assert result.code == 4 and result.seconds < 40
    assert "rank 0 was stopped by the launcher [killed by SIGKILL]" in result.report


def test_a_worker_that_cannot_be_started(launch):
    config = launch.folder / "c.toml"
    config.write_text(f"[launch]\nnproc = 2\n[launch.env]\nA = '{'x' * 200_000}'\n")
    result = launch("--config", config, body=SLEEP)
    assert result.code == 1
    assert result.report.startswith("meshrt launch: rank 0 failed first: could not be started: ")
    assert "Argument list too long" in result.report


def test_a_stopped_worker_ends_too(launch):
    body = "if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(0.3); sys.exit(6)"
    assert launch("--nproc", 2, body=body).code == 6


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_launcher_hands_signals_on(launch, number, code):
    process = launch.start("--nproc", 2, body=CHILD + SLEEP)
    since = time.monotonic()
    wait_for(process, "up")
    process.send_signal(number)
    result = launch.finish(process, since)
    assert result.code == code
    assert f"stopped by {number.name}" in result.report


def test_a_second_interrupt_kills_at_once(launch):
    process = launch.start("--nproc", 1, "--grace", 60, body="signal.signal(2, signal.SIG_IGN)\n" + SLEEP)
    since = time.monotonic()
    wait_for(process, "up")
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert launch.finish(process, since, timeout=20).code == 130


def test_an_interrupt_while_the_launcher_begins_shows_nobody_where_that_was(launch, signals_are_heard):
    (launch.folder / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    command = [sys.executable, "-m", "meshrt", "launch", "--help"]
    env = {**os.environ, "PYTHONPATH": str(launch.folder)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_killing_the_launcher_ends_everyone(launch):
    process = launch.start("--nproc", 2, body=CHILD + SLEEP)
    wait_for(process, "up")
    assert len(launch._alive()) >= 4
    process.kill()
    process.communicate(timeout=20)
    assert launch.left_behind(within_s=5) == []


def test_losing_the_coordination_service_ends_the_job(launch):
    process = launch.start("--nproc", 2, body=SLEEP)
    since = time.monotonic()
    wait_for(process, "up")
    os.kill(_service_of(process.pid), signal.SIGKILL)
    result = launch.finish(process, since)
    assert result.code == 137
    assert result.report.startswith("meshrt launch: the coordination service failed first: killed by SIGKILL")


def _service_of(launcher: int) -> int:
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if b"serve.py" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise AssertionError("no coordination service")


def test_restarts_are_counted_and_each_generation_has_its_own_service(launch):
    body = """
print("address", generation, os.environ["MESHRT_COORDINATOR_ADDRESS"], flush=True)
if generation < 2 and rank == 1: raise RuntimeError(f"try {generation}")
"""
    result = launch("--nproc", 2, "--max-restarts", 2, "--log-dir", "logs", body=body)
    assert result.code == 0
    assert "rank 1 failed first: RuntimeError: try 0" in result.err
    assert "meshrt launch: starting again, generation 2" in result.err
    assert result.err.rstrip().endswith("meshrt launch: succeeded after 2 restarts")
    addresses = {line.split()[2:][0]: line.split()[3] for line in result.out.splitlines()}
    assert len(set(addresses.values())) == 3
    logs = launch.folder / "logs"
    assert sorted(str(p.relative_to(logs)) for p in logs.rglob("r*.log")) == [
        f"g000{g}/r000{r}.log" for g in range(3) for r in range(2)
    ]
    assert "RuntimeError: try 1" in (logs / "g0001" / "r0001.log").read_text()
    report = json.loads((logs / "report.json").read_text())
    assert (report["phase"], report["restarts"], report["exit_code"]) == ("succeeded", 2, 0)
    assert [i["failures"][0]["error"]["message"] for i in report["incidents"]] == ["try 0", "try 1"]
    assert report["story"][0]["after"] == "waiting" and report["story"][-1]["after"] == "succeeded"


def test_giving_up_when_the_budget_is_spent(launch):
    result = launch("--max-restarts", 1, body="sys.exit(7)")
    assert result.code == 7
    assert result.err.rstrip().endswith("meshrt launch: gave up after 1 restart")


def test_the_time_limit(launch):
    result = launch("--timeout", 1.5, body=SLEEP)
    assert result.code == 124 and "did not finish within 1.5 s (--timeout)" in result.report


def test_a_reader_that_leaves_ends_the_job(launch):
    process = launch.start("--nproc", 2, body="while True: print('line', flush=True); time.sleep(0.001)")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=20) == 128 + signal.SIGPIPE
    assert process.stderr.read() == "meshrt launch: stdout ends here, who read it has gone. The job ends\n"
    process.stderr.close()


@pytest.mark.parametrize("name", ["none", "none.such", "pack.none", "pack.one.none", "pack"])
def test_a_module_that_is_not_there_is_one_line_and_nothing_is_started_again(launch, name):
    (launch.folder / "pack").mkdir()
    for file in ("__init__.py", "one.py"):
        (launch.folder / "pack" / file).write_text("")
    result = launch("--max-restarts", 3, "-m", name)
    name = "pack.__main__" if name == "pack" else name  # which is what is run of a package
    assert result.code == 78 and "Traceback" not in result.err and "starting again" not in result.err
    shown, report, *_ = result.err.splitlines()
    assert shown.startswith(f"[0] meshrt launch: there is no module {name} for {sys.executable} on this host (")
    assert f"ModuleNotFoundError: there is no module {name} " in report and "[exit code 78]" in report


@pytest.mark.parametrize("where", ["__init__", "one"])
def test_a_module_whose_own_imports_fail_is_an_error_of_its_own(launch, where):
    (launch.folder / "pack").mkdir()
    for file in ("__init__", "one"):
        (launch.folder / "pack" / f"{file}.py").write_text("import not_there\n" if file == where else "")
    result = launch("-m", "pack.one")
    assert result.code == 1 and "ModuleNotFoundError: No module named 'not_there'" in result.report
    assert f'pack/{where}.py", line 1' in result.report


def test_modules_environment_and_working_directory(launch):
    launch.script("print(__name__, __spec__ is not None, sys.argv[1:], os.environ['A'], os.getcwd())", "mod.py")
    result = launch("--env", "A=b=c", "-m", "mod", "--flag")
    assert result.out == f"[0] __main__ True ['--flag'] b=c {launch.folder}\n"


def test_a_child_of_a_worker_does_not_speak_for_it(launch):
    code = "from meshrt.launch import bootstrap; print(bootstrap.send(kind='nonsense'))"
    result = launch(body=f"subprocess.run([sys.executable, '-c', {code!r}], check=True)")
    assert (result.out, result.err) == ("[0] False\n", "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_ends_the_log_and_not_the_job(launch):
    (launch.folder / "logs" / "g0000").mkdir(parents=True)
    (launch.folder / "logs" / "g0000" / "r0000.log").symlink_to("/dev/full")
    result = launch("--log-dir", "logs", body="print('one'); print('two')")
    assert result.code == 0 and result.out == "[0] one\n[0] two\n"
    reason = "it cannot be written: No space left on device"
    assert result.err == f"meshrt launch: logs/g0000/r0000.log ends here, {reason}\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("redirection", "err"),
    [
        (">/dev/full", "stdout ends here, it cannot be written: No space left on device. The job goes on"),
        (">&-", ""),
        (">&- 2>&-", ""),
    ],
)
def test_a_closed_or_full_stdout_does_not_end_the_job(launch, redirection, err):
    script = launch.script("print('one'); open('done', 'w').close()")
    command = f"exec {sys.executable} -m meshrt launch {script} {redirection}"
    result = subprocess.run(
        ["sh", "-c", command], cwd=launch.folder, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert result.returncode == 0 and (launch.folder / "done").exists(), result.stderr
    assert err in result.stderr and "Traceback" not in result.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_leaves_out_the_report(launch):
    (launch.folder / "logs").mkdir()
    (launch.folder / "logs" / "report.json").symlink_to("/dev/full")
    result = launch("--log-dir", "logs", body="print('one')")
    assert result.code == 0 and "report.json cannot be written: No space left on device" in result.err


def test_what_is_overwritten_on_the_terminal_stands_in_the_log(launch):
    result = launch("--log-dir", "logs", body="sys.stdout.write('weights 10%\\rweights 99%\\rready\\n')")
    assert result.out == "[0] readyts 99%\n"
    assert (launch.folder / "logs/g0000/r0000.log").read_bytes() == b"weights 10%\rweights 99%\rready\n"


def test_the_launcher_starts_without_the_library(launch):
    script = launch.script("pass")
    code = (
        "import sys; sys.argv[1:] = ['launch', {!r}]; sys.argv[0] = 'bin/meshrt'\n"
        "try: import meshrt\n"
        "except SystemExit as e: print(e.code, [m for m in ('jaxlib', 'numpy', 'meshrt.core') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code.format(str(script))], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "0 []\n", done.stderr


@pytest.mark.parametrize(
    ("original", "arguments", "expected"),
    [
        (["python", "-m", "meshrt", "launch", "x.py"], ["-m", "launch", "x.py"], True),
        (["python", "-X", "dev", "-m", "meshrt", "launch"], ["-m", "launch"], True),
        (["python", "-m", "other", "launch", "x.py"], ["-m", "launch", "x.py"], False),
        (["python", "/v/bin/meshrt", "launch", "x.py"], ["/v/bin/meshrt", "launch", "x.py"], True),
        (["python", "/v/bin/meshrt", "inspect", "launch"], ["/v/bin/meshrt", "inspect", "launch"], False),
        (["python", "launch.py", "launch"], ["launch.py", "launch"], False),
        (["python"], [""], False),
        ([], [], False),
    ],
)
def test_which_processes_are_the_launcher(original, arguments, expected):
    assert _start._is_launcher(original, arguments) is expected


def test_classes_of_the_script_can_be_pickled_and_threads_outlive_it(launch):
    body = """
import pickle, threading
class Thing: pass
def late():
    time.sleep(0.2)
    print(type(pickle.loads(pickle.dumps(Thing()))).__module__)
threading.Thread(target=late).start()
"""
    assert launch(body=body).out == "[0] __main__\n"


def test_the_number_of_devices_reaches_the_worker(launch):
    body = "print(os.environ.get('MESHRT_NUM_CPU_DEVICES'))"
    assert launch(body=body).out == "[0] 4\n"
    assert launch("--devices-per-process", 3, body=body).out == "[0] 3\n"


def test_what_a_worker_writes_to_the_launchers_pipe_cannot_harm_it(launch):
    lines = b'nonsense\n{"kind": "ready", "address": 1}\n'
    result = launch(body=f"os.write(int(os.environ['MESHRT_LAUNCH_FD'].split(':')[0]), {lines!r})")
    assert result.code == 0
    assert "0 sent a message that is not JSON" in result.err and "the field 'address'" in result.err
