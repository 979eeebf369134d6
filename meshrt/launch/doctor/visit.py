"""Brings the examination to hosts: over ssh, or on this machine."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

from meshrt.launch.doctor.diagnosis import Examined
from meshrt.launch.placing import ssh

__all__ = ["examine"]

_EXAM = Path(__file__).with_name("exam.py")
_END_S = 2.0  # for a killed command to be gone
_ASKED = 3  # times, for the clock: the quickest answer counts


def examine(hosts: Sequence[str], chosen: ssh.Options, timeout: float, devices: bool = True) -> list[Examined]:
    """What each host is like, in the order given; this machine alone without hosts. At most `timeout` seconds."""
    with _door() if hosts else nullcontext(0) as port:
        visits = [_Visit(host, chosen, port, timeout, devices) for host in hosts] or [
            _Visit(None, chosen, port, timeout, devices)
        ]
        try:
            for visit in visits:
                visit.thread.start()
            for visit in visits:
                visit.thread.join()
        except BaseException:  # Ctrl-C: the commands have sessions of their own and do not hear it
            for visit in visits:
                visit.end()
            raise
    return [visit.found for visit in visits]


@contextmanager
def _door() -> Iterator[int]:
    """A port of this machine that hosts try to reach; whoever comes is sent away."""
    listener = socket.create_server(("0.0.0.0", 0), backlog=1024)
    closing = threading.Event()

    def serve() -> None:
        while not closing.is_set():
            try:
                listener.accept()[0].close()
            except OSError:
                return

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        closing.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


class _Visit:
    """One host."""

    def __init__(self, host: str | None, chosen: ssh.Options, port: int, timeout: float, devices: bool):
        self._host, self._chosen, self._port, self._timeout = host, chosen, port, timeout
        self._devices = devices
        self.found = Examined(host or socket.gethostname())
        self.thread = threading.Thread(target=self._go, name=f"meshrt-visit-{host}", daemon=True)
        self._process: subprocess.Popen[str] | None = None
        self._ended = False

    def end(self) -> None:
        """Ends the visit, in whatever it is."""
        self._ended = True
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)

    def _go(self) -> None:
        exam = (self._chosen.python, "-P", str(_EXAM))
        command = (sys.executable, *exam[1:]) if self._host is None else ssh.command(self._chosen, self._host, exam)
        # A file: what ssh leaves behind for the next connections may keep a pipe open for hours.
        with tempfile.TemporaryFile("w+", errors="replace") as words:
            try:
                process = self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, text=True,
                    start_new_session=True,
                )  # fmt: skip
            except OSError as e:
                self.found.failure = f"{command[0]}: {e.strerror}"
                return
            if self._ended:
                process.kill()
            late = threading.Timer(self._timeout, process.kill)
            late.daemon = True
            late.start()
            try:
                self._talk(process)
            except (OSError, ValueError, LookupError):
                code = process.poll()
                words.seek(0)
                said = words.read().strip().splitlines()
                gone = f"no answer within {self._timeout:g} s" if code == -signal.SIGKILL else "it gave no answer"
                self.found.failure = said[-1][:300] if said else gone
            finally:
                late.cancel()
                process.kill()
                process.wait()
                for stream in (process.stdin, process.stdout):
                    if stream is not None:
                        with contextlib.suppress(OSError):  # what the host did not read any more
                            stream.close()

    def _talk(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None and process.stdout is not None
        reach = None if self._host is None else [self._way(), self._port]
        _say(process.stdin, json.dumps({"reach": reach, "devices": self._devices}))
        best = float("inf")
        for _ in range(_ASKED):
            sent, since = time.time(), time.monotonic()  # the former may be set meanwhile
            _say(process.stdin, "t")
            there = json.loads(process.stdout.readline())["now"]
            took = time.monotonic() - since
            if took < best:
                best, self.found.clock = took, there - (sent + took / 2)
        self.found.way = best
        _say(process.stdin, "go")
        facts: dict[str, Any] = json.loads(process.stdout.readline())
        self.found.facts = facts

    def _way(self) -> str:
        """The address of this machine on the way to the host."""
        name = (self._host or "").rpartition("@")[2].strip("[]")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((name, 9))
            except OSError:  # only ssh's configuration knows the name
                probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])


def _say(stream: IO[str], text: str) -> None:
    stream.write(text + "\n")
    stream.flush()
