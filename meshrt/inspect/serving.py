"""The page of a program that is being written: made anew, in a child process, whenever a file of it changes.

The server answers on the loopback interface only, at a path with a secret in it, and only to requests that name it as
their host: neither another machine nor a page of another site can read the program. A browser that shows the page keeps
a request for events open, over which it is told to load the page anew, or what is wrong with the program.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

from meshrt.errors import InspectError
from meshrt.inspect.model import Report
from meshrt.inspect.page.document import document, policy
from meshrt.inspect.rerun import Run, running

__all__ = ["Beside", "serve"]

HOST = "127.0.0.1"
LOOK = 0.25  # seconds between looks at the files. Chosen: soon enough for who saves and looks up
QUIET = 0.2  # seconds without a change before a run: editors write a file in several steps
BEAT = 15.0  # seconds between signs of life on a stream of events, so that a browser that went is noticed
MOST_FILES = 2000  # looked at below the script's folder
MOST_STREAMS = 32  # browsers that are told of events
ERROR_TEXT = 8000  # characters of what a run printed, the last ones
_Stamps: TypeAlias = dict[str, tuple[int, int] | None]  # by file: when it was written last, and how long it is
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # that of a terminal which is closed reaches no run by itself


@dataclass(frozen=True, slots=True)
class Beside:
    """What a program is compared with: how its report is made, the file or the program that it is of, and more files
    that it depends on. It is made anew when one of these changes."""

    read: Callable[[], Report]
    target: str
    others: Sequence[str] = ()


def serve(
    target: str, arguments: Sequence[str], port: int, beside: Beside | None = None, others: Sequence[str] = ()
) -> int:
    """Serves the page of a program until interrupted.

    Args:
      target: what is inspected: `FILE.py:FUNCTION`, or the file of a module.
      arguments: those of `meshrt inspect` for it, besides the form of the report.
      port: where; 0 for one that is free.
      beside: what to show beside it.
      others: more files that the report depends on.

    Returns:
      The exit code: 0 after Ctrl-C.

    Raises:
      InspectError: the port is taken; there is no report to show beside it.
    """
    state = _State()
    if beside is not None:
        _compare(beside, state)
    server = _listen(port, state)
    threading.Thread(target=server.serve_forever, name="inspect-server", daemon=True).start()
    # A flag rather than an exception, which could come between the start of a child and the note of it.
    enough = threading.Event()
    # (Under nohup a terminal that is closed ends nothing.)
    ending = [n for n in _ENDING if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, lambda *_: enough.set()) for number in ending}
    try:
        print(f"serving {target} at {server.url} (Ctrl-C ends)", flush=True)
        _watch(target, [*arguments, "--", target], state, beside, others, enough)
        print("ended", flush=True)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        state.end()
        server.shutdown()
        server.server_close()
    return 0


@dataclass(slots=True)
class _State:
    """What is served: the page, numbered, and what is wrong with the program since; `compared` is how the files stood
    that `against` is made of."""

    report: Report | None = None
    against: Report | None = None
    compared: _Stamps = field(default_factory=dict)
    version: int = 0
    error: str | None = "The program is being inspected for the first time."
    is_ended: bool = False
    streams: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def set(self, report: Report | None, error: str | None) -> None:
        """Takes what a run gave: a report, or an error, beside which the report before stays."""
        with self.changed:
            if report is not None:
                self.report = report
                self.version += 1
            self.error = error
            self.changed.notify_all()

    def end(self) -> None:
        with self.changed:
            self.is_ended = True
            self.changed.notify_all()

    def page(self) -> str:
        with self.changed:
            report, against = self.report, self.against
            live = {"events": f"events?page={self.version}", "error": self.error}
        return document(report, against, live)

    def events(self, shown: int) -> Iterator[tuple[str, str]]:
        """(name, data) of what a browser that shows a page of that number is to be told; ("", "") as a sign of life."""
        told: object = object()
        while True:
            with self.changed:
                if not self._news(shown, told):
                    self.changed.wait(BEAT)
                if self.is_ended:
                    return
                version, error, is_news = self.version, self.error, self._news(shown, told)
            if version != shown:
                yield "program", str(version)
                return
            told = error if is_news else told
            yield ("failure", json.dumps(error)) if is_news else ("", "")

    def _news(self, shown: int, told: object) -> bool:
        return self.is_ended or self.version != shown or self.error != told


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    state: _State
    secret: str

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/{self.secret}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away while it is answered is nothing to report."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _listen(port: int, state: _State) -> _Server:
    try:
        server = _Server((HOST, port), _Handler)
    except OSError as e:
        taken = "is taken" if e.errno == errno.EADDRINUSE else f"cannot be served ({e.strerror or e})"
        raise InspectError(f"--serve: port {port} {taken}; give another, or none for one that is free") from None
    server.state, server.secret = state, secrets.token_urlsafe(16)
    return server


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "meshrt", ""
    timeout = 60  # seconds for a request to arrive

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0]
        path, _, query = self.path.partition("?")
        secret, _, name = path.removeprefix("/").partition("/")
        if host not in (HOST, "localhost") or not secrets.compare_digest(secret.encode(), self.server.secret.encode()):
            self.send_error(404)
        elif name == "":
            self._page()
        elif name == "events" and (page := re.fullmatch(r"page=(\d{1,18})", query, re.ASCII)) is not None:
            self._events(int(page[1]))
        else:
            self.send_error(404)

    def _page(self) -> None:
        data = self.server.state.page().encode("ascii")
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Security-Policy", f"{policy(True)}; frame-ancestors 'none'")
        self._private()
        self.wfile.write(data)

    def _events(self, shown: int) -> None:
        state = self.server.state
        with state.changed:
            if state.streams >= MOST_STREAMS:
                self.send_error(503)
                return
            state.streams += 1
        try:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self._private()
            for name, data in state.events(shown):
                self.wfile.write((f"event: {name}\ndata: {data}\n\n" if name else ":\n\n").encode())
                self.wfile.flush()
        finally:
            with state.changed:
                state.streams -= 1

    def _private(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not reported."""


def _watch(
    target: str,
    arguments: Sequence[str],
    state: _State,
    beside: Beside | None,
    others: Sequence[str],
    enough: threading.Event,
) -> None:
    """Runs the inspection, and again whenever a file changes, until it is `enough`."""
    wrong = None
    while not enough.is_set():
        if beside is not None and _stamps(state.compared) != state.compared:
            wrong = _compare_anew(beside, state)
        files = [*_files(target, others, state.report), *state.compared]
        seen = _stamps(files)
        with running(arguments) as run:
            while not run.is_done() and _stamps(files) == seen and not enough.wait(LOOK):
                pass
            if run.is_done():
                _take(run, state, wrong)
        # A report may name files that were not looked at before.
        seen |= _stamps(f for f in _files(target, others, state.report) if f not in seen)
        while _stamps(seen) == seen and not enough.wait(LOOK):
            pass
        while (now := _stamps(seen)) != seen and not enough.wait(QUIET):
            seen = now


def _compare(beside: Beside, state: _State) -> None:
    """Makes the report beside the program's. Its files are looked at before that: what is written to them meanwhile has
    changed."""
    state.compared = _stamps(_files(beside.target, beside.others, state.against))
    against = beside.read()
    with state.changed:
        state.against = against
    state.compared = _stamps(_files(beside.target, beside.others, against)) | state.compared


def _compare_anew(beside: Beside, state: _State) -> str | None:
    """Makes that report once more; what is wrong with it, if anything is: the one before stays."""
    try:
        _compare(beside, state)
    except InspectError as e:
        return str(e)[-ERROR_TEXT:]
    return None


def _take(run: Run, state: _State, wrong: str | None) -> None:
    """Serves what a run gave, with what is wrong beside it."""
    if said := run.said():
        print(said, file=sys.stderr, flush=True)
    try:
        state.set(run.report(), wrong)
    except InspectError as e:
        state.set(None, str(e)[-ERROR_TEXT:])


def _files(target: str, others: Sequence[str], report: Report | None) -> list[str]:
    """The files that a report depends on: what is inspected, Python beside and below it, the sources that it names."""
    path = Path(target.rpartition(":")[0] if not Path(target).is_file() and ".py:" in target else target)
    found = {str(path): None} | dict.fromkeys(others)
    if path.suffix == ".py":
        found |= dict.fromkeys(_python_below(path.parent))
    if report is not None and report.program is not None:
        found |= dict.fromkeys(s.path for s in report.program.sources)
    return [*found]


def _python_below(folder: Path) -> Iterable[str]:
    """Python files of a folder and those in it, but not of hidden ones and environments, at most `MOST_FILES`."""
    count = 0
    for at, folders, names in os.walk(folder):
        folders[:] = [f for f in sorted(folders) if f[0] not in "._" and not (Path(at, f) / "pyvenv.cfg").exists()]
        for name in names:
            if name.endswith(".py"):
                count += 1
                yield os.path.join(at, name)
        if count >= MOST_FILES:
            return


def _stamps(files: Iterable[str]) -> _Stamps:
    """When files were written last, and how long they are; None for those that are not there."""
    found: _Stamps = {}
    for file in files:
        try:
            status = os.stat(file)
            found[file] = status.st_mtime_ns, status.st_size
        except OSError:
            found[file] = None
    return found
