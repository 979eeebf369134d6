"""The engine of a coordinator: its processes run on hosts, whose agents speak to server.py. A lock around Fleet."""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from meshrt.launch.engines.protocol import Capabilities, Exited, Output, Report, ResizeAsked, Spec, StopAsked, Task
from meshrt.launch.hosts.fleet import Fleet
from meshrt.launch.hosts.logbook import Logbook
from meshrt.launch.hosts.messages import Applicant, Chunk, Down, Over, Up
from meshrt.launch.model import FINAL, State
from meshrt.launch.transitions import exit_code

__all__ = ["HostsEngine"]

_TICK_S = 0.5
_DEAF_S = 1.0  # since the server's last turn; Chosen: hosts are warned of after three
_FAREWELL_S = 3.0  # for agents to hear that the job is over


class HostsEngine:
    """What the shell of a coordinator drives.

    Args:
      versions: of this host, which those of agents must equal.
      expected: hosts of a former coordinator, with the incarnations of their agents.
      notify: is told what people should know.
    """

    def __init__(
        self, versions: Mapping[str, str], notify: Callable[[str], None], expected: Mapping[str, str] | None = None,
        lease_s: float | None = None, clock: Callable[[], float] = time.monotonic,
    ):  # fmt: skip
        self.name, self.capabilities = "hosts", Capabilities()
        self._clock, self._notify = clock, notify
        times = {} if lease_s is None else {"lease_s": lease_s}
        self._fleet = Fleet(versions, clock(), expected, **times)
        self._lock = threading.Lock()
        self._asked: list[Report] = []
        self._wake_reader, self._wake_writer = os.pipe()
        for end in (self._wake_reader, self._wake_writer):
            os.set_blocking(end, False)
        self._serving = self._closed = False
        self._awake = False  # the shell was woken, and has not looked yet
        self._tick_at = 0.0
        self._listened_at: float | None = None
        self._senders: dict[str, Callable[[Down], None]] = {}
        self._incarnations: dict[str, str] = {}  # of the agents behind the senders
        self.state: State | None = None
        self.logbook = Logbook()
        self.started_at = clock()

    # --- what the shell does.

    def watch(self, state: State) -> None:
        """The job's state changed."""
        self.state = state

    def start(self, specs: Sequence[Spec]) -> None:
        """Starts these on the hosts that they name."""
        for spec in specs:
            self.logbook.begin(spec.task, spec.host or "")
        with self._lock:
            self._fleet.start(specs, self._clock())
            self._send()

    def signal(self, tasks: Sequence[Task], number: int) -> None:
        """Signals the process groups of these."""
        with self._lock:
            self._fleet.signal(tasks, number)
            self._send()

    def wait(self, seconds: float | None, wake: int) -> list[Report]:
        """What agents have reported."""
        self._serving = True
        deadline = None if seconds is None else self._clock() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(wake, selectors.EVENT_READ)
            selector.register(self._wake_reader, selectors.EVENT_READ)
            while True:
                reports = self._take()
                left = None if deadline is None else max(0.0, deadline - self._clock())
                if reports or left == 0.0:
                    return reports
                ready = selector.select(_TICK_S if left is None else min(left, _TICK_S))
                if any(key.fd == wake for key, _ in ready):
                    return self._take()

    def _take(self) -> list[Report]:
        try:
            os.read(self._wake_reader, 65536)
        except BlockingIOError:
            pass  # nobody woke us: time has passed
        with self._lock:
            self._awake = False
            now = self._clock()
            if now >= self._tick_at:  # it looks at all hosts, and each one that joins wakes us
                self._tick_at = now + _TICK_S / 2
                if self._listened_at is None or now - self._listened_at < _DEAF_S:
                    self._fleet.tick(now)
            asked, self._asked = self._asked, []
            reports = [*self._fleet.take_reports(), *asked]
            self._send()
            notices, self._fleet.notices = self._fleet.notices, []
        for notice in notices:
            self._notify(notice)
        for ended in (found.task for found in reports if isinstance(found, Exited)):
            self.logbook.end(ended)
        return reports

    def close(self) -> None:
        """Tells all agents that the job is over, and waits a little until they have gone."""
        if self._closed:
            return
        self._closed = True
        over = Over(*self._ending())
        with self._lock:
            for send in self._senders.values():
                send(over)
        deadline = time.monotonic() + _FAREWELL_S
        while self._senders and time.monotonic() < deadline:
            time.sleep(0.02)

    def _ending(self) -> tuple[int, str]:
        state = self.state
        if state is None or state.phase not in FINAL:
            return 1, "the coordinator ended before the job"
        return exit_code(state), f"the job {state.phase.value}"

    # --- what agents do; called by the server's thread.

    @property
    def serving(self) -> bool:
        """Whether the shell is at work: before, nobody is let in."""
        return self._serving and not self._closed

    def listening(self) -> None:
        """The server has had its turn. If that was long ago (this process was stopped, or has more to do than it can),
        what agents said meanwhile comes only now: their silence counts from here."""
        with self._lock:
            now = self._clock()
            if self._listened_at is not None and now - self._listened_at >= _DEAF_S:
                self._fleet.excuse(now - self._listened_at, now)
            self._listened_at = now

    def join(self, who: Applicant, send: Callable[[Down], None]) -> None:
        """An agent joins, and its session begins; `send` is how it is reached, from any thread. RefusedError if it is
        not let in."""
        with self._lock:
            now, name = self._clock(), who.name
            self._fleet.join(who, now)  # or it is refused, and who is in stays in touch
            self._send()  # a former agent of the host hears that it was lost
            self._fleet.open(name, who.incarnation, now)
            former = self._senders.get(name)
            self._senders[name], self._incarnations[name] = send, who.incarnation
            if former is not None:
                self._notify(f"host {name} opened another session")
            self._woken()

    def closed(self, name: str, incarnation: str, send: Callable[[Down], None]) -> None:
        """A session ended."""
        with self._lock:
            if self._senders.get(name) == send:
                del self._senders[name], self._incarnations[name]
                self._fleet.closed(name, incarnation, self._clock())
                self._woken()

    def receive(self, name: str, incarnation: str, message: Up) -> None:
        """An agent's message."""
        with self._lock:
            self._fleet.receive(name, incarnation, message, self._clock())
            self._woken()

    @property
    def beat_s(self) -> float:
        """How often agents are to say that they live."""
        return self._fleet.beat_s

    @property
    def checkpoint_s(self) -> float:
        """How long ranks that save before they end may take."""
        return 0.0 if self.state is None else self.state.policy.checkpoint_s

    @property
    def unread(self) -> int:
        """Bytes of output that the shell has not taken."""
        return self._fleet.unread

    def log(self, name: str, incarnation: str, chunk: Chunk) -> None:
        """A piece of the output of a task."""
        with self._lock:
            found = self._fleet.log(name, incarnation, chunk, self._clock())
            if isinstance(found, Output):
                self.logbook.feed(found)  # before the shell, and with it the logbook, hears that the task has ended
            self._woken()

    def agent_ended(self, name: str, why: str) -> None:
        """The process of an agent is known to have ended, and everything with it."""
        with self._lock:
            self._fleet.ended(name, why, self._clock())
            self._woken()

    def _woken(self) -> None:
        """After a change: sends what is to be sent, and wakes the shell if there is news."""
        self._send()
        if self._fleet.reports or self._asked:
            self._wake()

    def _send(self) -> None:
        outbox, self._fleet.outbox = self._fleet.outbox, []
        for name, incarnation, message in outbox:
            if self._incarnations.get(name) == incarnation and (send := self._senders.get(name)) is not None:
                send(message)

    def _wake(self) -> None:
        """Under the lock. While the shell has not taken what it was woken for, it is not woken again: thousands join at
        once, and each write hands the interpreter to the other thread."""
        if not self._awake:
            self._awake = True
            os.write(self._wake_writer, b"\0")

    # --- what the command line asks; called by the server's thread.

    def ask_stop(self, why: str = "") -> None:
        """The job is to end: somebody asked for it, or `why`."""
        with self._lock:
            self._asked.append(StopAsked(self._clock(), why))
            self._wake()

    def ask_resize(self, nodes: int) -> None:
        """The job is to run on another number of hosts."""
        with self._lock:
            self._asked.append(ResizeAsked(self._clock(), nodes))
            self._wake()

    def silences(self) -> dict[str, float]:
        """Seconds since each host was heard of."""
        with self._lock:
            now = self._clock()
            return {h.name: now - h.heard_at for h in self._fleet.hosts.values()}

    def hosts(self) -> list[tuple[str, str, bool, float, list[int], int]]:
        """Of each host: name, address, whether it is connected, seconds of silence, ranks, cores."""
        with self._lock:
            now = self._clock()
            return [
                (h.name, h.address, h.connected, now - h.heard_at, self._fleet.ranks(h.name), h.cores)
                for h in self._fleet.hosts.values()
            ]
