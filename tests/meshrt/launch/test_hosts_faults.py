"""What goes wrong with hosts, networks, disks and clocks: each ends clearly, and in no more than it must."""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import pytest

pytest.importorskip("grpc")

from meshrt.cli.main import main
from meshrt.launch.address import split_address
from meshrt.launch.hosts import certificates

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="needs namespaces, and looks at processes through /proc"
)


# --- networks.


class Proxy:
    """Between agents and their coordinator: passes on little at a time, late, sometimes not for `stall_s`, and breaks
    each connection after about `pieces`."""

    def __init__(self, address: str, late_s: float, stall_s: float, pieces: int):
        self._to, self._late_s, self._stall_s, self._pieces = split_address(address), late_s, stall_s, pieces
        self._chance = random.Random(1)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.broken = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._server.accept()
                there = socket.create_connection(self._to)
            except OSError:
                return
            for ends in itertools.permutations((here, there)):
                threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            for _ in range(int(self._pieces * self._chance.uniform(0.5, 1.5))):
                if not (data := source.recv(1400)):
                    break
                time.sleep(self._chance.uniform(0, self._late_s))
                if self._chance.random() < 0.02:
                    time.sleep(self._stall_s)
                sink.sendall(data)
        except OSError:
            pass
        self.broken += 1
        for end in (source, sink):
            try:
                end.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )  # what is on its way is lost
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


def test_a_network_that_is_slow_stalls_and_breaks_costs_neither_a_restart_nor_a_line(hosts):
    hosts.start("--nodes", 2, "--nproc", 1, body="for i in range(150):\n    print(rank, i)\n    time.sleep(0.02)\n")
    proxy = Proxy(hosts.address, late_s=0.02, stall_s=0.5, pieces=60)
    hosts.address = proxy.address
    try:
        hosts.agent("a", "b")
        result = hosts.finish()
    finally:
        proxy.close()
    assert (result.code, result.report.count("starting again")) == (0, 0), result.err
    lines = result.out.splitlines()
    for rank, host in enumerate("ab"):
        assert [x for x in lines if x.startswith(f"[{host}")] == [f"[{host}:{rank}] {rank} {i}" for i in range(150)]
    assert proxy.broken > 2
    ended = hosts.ends("a")
    assert ended.code == 0 and "Traceback" not in ended.err


class Forger:
    """Between agents and their coordinator: changes a word in what passes, the first time that it comes each way."""

    def __init__(self, address: str, word: bytes, other: bytes):
        self._to, self._word, self._other = split_address(address), word, other
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.forged: set[str] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._server.accept()
                there = socket.create_connection(self._to)
            except OSError:
                return
            for way, source, sink in (("up", here, there), ("down", there, here)):
                threading.Thread(target=self._pass_on, args=(way, source, sink), daemon=True).start()

    def _pass_on(self, way: str, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if self._word in data and way not in self.forged:
                    self.forged.add(way)
                    data = data.replace(self._word, self._other)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.close()


def test_who_changes_what_passes_on_the_network_breaks_connections_and_changes_nothing(hosts, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint('argument', sys.argv[1])\n")
    hosts.start("--nodes", 1, "--nproc", 1, script, "honest")
    forger = Forger(hosts.address, b"honest", b"forged")
    hosts.address = forger.address
    try:
        hosts.agent("a")
        result = hosts.finish()
    finally:
        forger.close()
    assert (result.code, result.out) == (0, "[a:0] argument honest\n"), result.err
    assert forger.forged == {"up", "down"}
    changed = "a message was changed on its way: somebody on the network forges what is said"
    assert changed in result.err and changed in hosts.ends("a").err


def test_an_address_where_it_cannot_listen_is_named_with_the_reason(tmp_path, capfd):
    script = tmp_path / "script.py"
    script.touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SystemExit) as caught:
            main(["launch", "coordinator", "--listen", address, "--nodes", "1", str(script)])
    (said,) = capfd.readouterr().err.splitlines()
    assert caught.value.code == 2
    assert said == f"meshrt: error: --listen {address}: the coordinator cannot listen there: Address already in use"


# --- disks and files, each as one host sees them.


def seeing(*commands: str) -> list[str]:
    """Before a command: it has mounts of its own, which these make."""
    within = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*within, "mount -t tmpfs tmpfs /tmp"], check=False).returncode
    ):
        pytest.skip("needs namespaces for mounts")
    return [*within, " && ".join([*commands, 'exec "$@"']), "sh"]


WAITS = "time.sleep(60)\n"


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("mount --bind {0}/bad.py {0}/script.py", 1, "SyntaxError: invalid syntax (script.py, line 1) [exit code 1]"),
        (
            "mount -t tmpfs tmpfs {0}", 78,
            "FileNotFoundError: {0}/script.py: No such file or directory on this host (processes start in {0}); all "
            "hosts need the script [exit code 78]",
        ),
    ],
    ids=["bad", "missing"],
)  # fmt: skip
def test_a_script_that_one_host_has_otherwise_is_named_with_the_host(hosts, tmp_path, command, code, words):
    (tmp_path / "bad.py").write_text("def f(:")
    hosts.start("--nodes", 2, "--nproc", 1, "--max-restarts", 0 if code == 1 else 5, body=WAITS)
    hosts.agent("a")
    hosts.agent("b", within=seeing(command.format(tmp_path)))
    result = hosts.finish()
    assert result.code == code
    assert f"rank 1 on b failed first: {words.format(tmp_path)}" in result.err
    assert "rank 0 on a was stopped by the launcher" in result.err
    assert "starting again" not in result.err


SMALL = "mkdir -p {0}/small && mount -t tmpfs -o size=16k tmpfs {0}/small"
FILL = "{{ dd if=/dev/zero of={0}/small/x bs=1k 2>&-; true; }}"


@pytest.mark.parametrize("arguments", [("--log-dir", "small/logs"), ("--journal", "small/journal")])
def test_a_disk_that_fills_up_where_the_coordinator_writes_does_not_end_the_job(hosts, tmp_path, arguments):
    body = "print('x' * 32_000)\nif generation == 0: raise ValueError('y' * 8000)\nprint('\\ndone')\n"
    where = seeing(SMALL.format(tmp_path))
    hosts.start("--nodes", 1, "--nproc", 1, "--max-restarts", 1, *arguments, body=body, within=where)
    hosts.agent("a")
    result = hosts.finish()
    assert result.code == 0, result.err
    assert result.out.splitlines()[-1] == "[a:0] done"
    assert "cannot be written: No space left on device" in result.err


def test_a_disk_that_is_full_from_the_start(hosts, tmp_path):
    full = seeing(SMALL.format(tmp_path), FILL.format(tmp_path))
    process = hosts._launch.start("coordinator", "--nodes", 1, "--journal", "small/j", body=WAITS, within=full)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err == "meshrt: error: --journal small/j: cannot be written: No space left on device\n"
    hosts.start("--nodes", 1, "--nproc", 1, body=f"print('z', file=open('{tmp_path}/small/y', 'w'), flush=True)\n")
    hosts.agent("a", within=full, TMPDIR=str(tmp_path / "small"))
    result = hosts.finish()
    assert result.code == 1
    assert "rank 0 on a failed first: OSError: [Errno 28] No space left on device [exit code 1]" in result.err


# --- clocks.

SHIFT = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = ((int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime"))(clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += atol(getenv("CLOCK_SHIFT"));
  return failed;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  now->tv_sec = t.tv_sec, now->tv_usec = t.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *now) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return now ? *now = t.tv_sec : t.tv_sec;
}
"""
DAY = 86_400


@pytest.fixture(scope="module")
def shifted(tmp_path_factory):
    """Variables of a process whose wall clock is so many seconds off."""
    library = tmp_path_factory.mktemp("shift") / "shift.so"
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl"]
    subprocess.run(command, input=SHIFT.encode(), check=True)
    return lambda seconds: {"LD_PRELOAD": str(library), "CLOCK_SHIFT": str(seconds)}


def counting_from(seconds: int) -> Sequence[str]:
    """Before a command: its clocks that do not jump count from elsewhere, as after another start of the host."""
    command = ["unshare", "--time", "--monotonic", str(seconds), "--boottime", str(seconds), "--fork", "--kill-child"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs namespaces for clocks")
    return command


def test_hosts_whose_clocks_differ_by_days_run_a_job_and_its_causes_are_in_order(hosts, shifted):
    body = """
import meshrt.distributed
meshrt.distributed.initialize()
meshrt.distributed.barrier("all")
print("clock", time.time(), time.monotonic())
if generation == 0:
    time.sleep(0.5 * (1 - rank))
    raise ValueError(rank)
"""
    hosts.start("--nodes", 2, "--nproc", 1, "--max-restarts", 1, "--devices-per-process", 1, body=body)
    hosts.agent("a")
    hosts.agent("b", within=counting_from(1_000_000), **shifted(-3 * DAY))
    result = hosts.finish()
    assert result.code == 0, result.err
    clocks = {line[1]: [float(x) for x in line.split()[2:]] for line in result.out.splitlines() if "clock" in line}
    assert clocks["a"][0] - clocks["b"][0] > 2 * DAY and clocks["b"][1] - clocks["a"][1] > 900_000
    first = next(line for line in result.err.splitlines() if "failed first" in line)
    assert "rank 1 on b failed first: ValueError: 1" in first
    assert float(first.rpartition("(")[2].split()[0]) < 60  # seconds after the start, on the coordinator's clock
    assert "nothing was heard" not in result.err


@pytest.mark.parametrize("days", [-2, 40])
def test_a_host_whose_clock_is_outside_of_the_certificates_says_so(hosts, tmp_path, shifted, days):
    certificates.make(tmp_path / "tls", "j", 30)
    hosts.address = "127.0.0.1:1"
    result = hosts.ask("agent", "--tls", tmp_path / "tls", **shifted(days * DAY))
    assert result.code == 2
    (said,) = result.err.splitlines()
    assert said.startswith(f"meshrt: error: {tmp_path}/tls/ca.pem: the certificate counts from 2")
    assert said.endswith("here: make new ones with `meshrt launch certificates`, or set the clock")
