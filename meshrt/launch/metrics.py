"""What a running job looks like in figures, in the text format of Prometheus: ``meshrt launch --metrics-port``.

The launcher's loop tells a `Board` what it hears; a thread serves it. Ranks tell their steps by
`meshrt.distributed.progress`.
"""

from __future__ import annotations

import contextlib
import http.server
import socket
import socketserver
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from meshrt.errors import ConfigError
from meshrt.launch.address import join_address, split_address
from meshrt.launch.model import Phase, State
from meshrt.launch.noise import Sparing
from meshrt.launch.wire import Progress

__all__ = ["Board", "Metrics", "RankFigures"]

_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
# Chosen: a rate over the last steps that were told, about half a minute of them at one message a second.
_WINDOW = 32

_ASKING = 32  # Chosen: connections at once; more of them would take descriptors that the job needs
_WORDS = 200  # characters of what a stranger sent

_STATES = ("starting", "joining", "running", "finished")

Sample = tuple[Mapping[str, str], float]


@dataclass(slots=True)
class _Rank:
    told: list[tuple[float, Progress]]  # the last ones

    def rate(self, read: Callable[[Progress], int | None]) -> float | None:
        """How fast a number grows, a second."""
        known = [(at, value) for at, progress in self.told if (value := read(progress)) is not None]
        if len(known) < 2 or known[-1][0] <= known[0][0]:
            return None
        return max(0.0, (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0]))


@dataclass(frozen=True, slots=True)
class RankFigures:
    """What is known of a rank: rates a second, `memory` in bytes, `age` the seconds since it last told its step; None
    where it has not told."""

    rank: int
    host: str | None
    state: str
    step: int | None = None
    steps_per_second: float | None = None
    tokens_per_second: float | None = None
    memory: int | None = None
    age: float | None = None


class Board:
    """What is known of a job. One thread writes, others may read at any time.

    Args:
      clock: seconds.
      silences: gives the seconds since each host was heard of, by its name.
    """

    def __init__(self, clock: Callable[[], float], silences: Callable[[], Mapping[str, float]] = dict):
        self._clock, self._silences = clock, silences
        self._lock = threading.Lock()
        self._state: State | None = None
        self._ranks: dict[int, _Rank] = {}

    def show(self, state: State) -> None:
        """The state of the job changed; with a new generation all ranks begin anew."""
        with self._lock:
            if self._state is None or state.generation != self._state.generation:
                self._ranks.clear()
            self._state = state

    def note(self, rank: int, progress: Progress) -> None:
        """A rank told how far it is."""
        with self._lock:
            told = self._ranks.setdefault(rank, _Rank([])).told
            told.append((self._clock(), progress))
            del told[:-_WINDOW]

    @property
    def phase(self) -> str:
        """What the job is at."""
        return "new" if self._state is None else self._state.phase.value

    @property
    def restarts(self) -> int:
        """How many generations followed a failure."""
        return 0 if self._state is None else self._state.restarts

    def silences(self) -> Mapping[str, float]:
        """Seconds since each host was heard of, by its name."""
        return self._silences()

    def ranks(self) -> list[RankFigures]:
        """The ranks of this generation, in order."""
        with self._lock:
            state, now = self._state, self._clock()
            if state is None:
                return []
            return [self._figures(state, rank, now) for rank in sorted(state.live | state.finished)]

    def _figures(self, state: State, rank: int, now: float) -> RankFigures:
        host, at = state.host_of(rank), _at(state, rank)
        known = self._ranks.get(rank)
        if known is None:
            return RankFigures(rank, host, at)
        when, last = known.told[-1]
        steps, tokens = known.rate(lambda p: p.step), known.rate(lambda p: p.tokens)
        return RankFigures(rank, host, at, last.step, steps, tokens, last.memory, now - when)

    def text(self) -> str:
        """All figures."""
        with self._lock:
            lines = [
                line for name, kind, help, samples in self._families() for line in _family(name, kind, help, samples)
            ]
        return "\n".join(lines) + "\n"

    def _families(self) -> Iterator[tuple[str, str, str, list[Sample]]]:
        state, now = self._state, self._clock()
        if state is not None:
            phases: list[Sample] = [({"phase": p.value}, float(p is state.phase)) for p in Phase]
            yield "phase", "gauge", "1 for the phase that the job is in.", phases
            yield "restarts_total", "counter", "Generations that followed a failure.", [({}, float(state.restarts))]
            yield "generation", "gauge", "The number of the attempt at the job.", [({}, float(state.generation))]
            yield "ranks", "gauge", "Ranks by what they are at.", _by_state(state)
        last = {rank: known.told[-1] for rank, known in sorted(self._ranks.items())}
        yield "step", "gauge", "The last step that a rank told.", [
            ({"rank": str(r)}, float(p.step)) for r, (_, p) in last.items()
        ]  # fmt: skip
        for name, help, read in (
            ("steps_per_second", "Steps of a rank, a second.", lambda p: p.step),
            ("tokens_per_second", "Tokens of a rank, a second.", lambda p: p.tokens),
        ):
            rates = [({"rank": str(r)}, known.rate(read)) for r, known in sorted(self._ranks.items())]
            yield name, "gauge", help, [(labels, rate) for labels, rate in rates if rate is not None]
        yield "progress_age_seconds", "gauge", "Since a rank last told its step.", [
            ({"rank": str(r)}, now - at) for r, (at, _) in last.items()
        ]  # fmt: skip
        yield "memory_bytes", "gauge", "What the process of a rank has in memory.", [
            ({"rank": str(r)}, float(p.memory)) for r, (_, p) in last.items() if p.memory is not None
        ]  # fmt: skip
        yield "heartbeat_age_seconds", "gauge", "Since a host was last heard of.", [
            ({"host": host}, silent) for host, silent in sorted(self._silences().items())
        ]  # fmt: skip


def _by_state(state: State) -> list[Sample]:
    found = [_at(state, rank) for rank in state.live | state.finished]
    return [({"state": name}, float(found.count(name))) for name in _STATES]


def _at(state: State, rank: int) -> str:
    """What a rank that was started is at: one of `_STATES`."""
    if rank in state.finished:
        return "finished"
    return "running" if rank in state.meshed else "joining" if rank in state.joining else "starting"


def _family(name: str, kind: str, help: str, samples: list[Sample]) -> Iterator[str]:
    if samples:
        yield f"# HELP meshrt_{name} {help}"
        yield f"# TYPE meshrt_{name} {kind}"
    for labels, value in samples:
        inside = ",".join(f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items())
        yield f"meshrt_{name}{{{inside}}} {value:.17g}" if inside else f"meshrt_{name} {value:.17g}"


class _Server(http.server.ThreadingHTTPServer):
    """Answers a bounded number of connections at once: a new one takes the place of the oldest, which is either about
    to end, or of somebody who does not ask."""

    daemon_threads = True
    request_queue_size = 128  # more than 5, so that who asks beside many others is heard at once

    def __init__(
        self, place: tuple[str, int], handler: type[http.server.BaseHTTPRequestHandler], tick: Callable[[], None]
    ):
        self._tick = tick
        self.address_family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self._asking: deque[socket.socket] = deque()
        self._asking_lock = threading.Lock()  # nothing is closed, and its number given away, while it is shut down
        super().__init__(place, handler)

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's own asks DNS for a name that nobody needs

    def service_actions(self) -> None:
        self._tick()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._asking_lock:
            self._asking.append(request)
            if len(self._asking) > _ASKING:
                with contextlib.suppress(OSError):  # its other side has gone
                    self._asking.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._asking_lock, contextlib.suppress(ValueError):  # it had to make room
            self._asking.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        if not isinstance(sys.exception(), OSError):  # who asked has gone: no news either
            super().handle_error(request, client_address)


class Metrics:
    """Serves a board at ``http://HOST:PORT/metrics`` until it is closed.

    Args:
      place: ``PORT`` on loopback, or ``HOST:PORT``; port 0 is any free one.
      log: is given what an operator wants to know of strangers.

    Raises:
      ConfigError: nobody can listen there.
    """

    def __init__(self, place: str, board: Board, log: Callable[[str], None]):
        host, port = split_address(place if ":" in place else f"127.0.0.1:{place}")
        strange = Sparing(log)

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 10.0

            def do_GET(self) -> None:
                found = self.path.partition("?")[0] in ("/metrics", "/")
                data = board.text().encode() if found else b"only /metrics is here\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", _TYPE)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass  # who asks is no news

            def log_error(self, format: str, *args: object) -> None:
                peer = join_address(*self.client_address[:2])
                strange(f"{peer} got no figures of the job: {(format % args)[:_WORDS]}")

        try:
            self._server = _Server((host, port), Handler, strange.tick)
        except OSError as e:
            raise ConfigError(f"metrics_port = {place!r}: cannot listen there: {e.strerror or e}") from None
        self.address = join_address(host, self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="meshrt-metrics", daemon=True).start()

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()
