"""The agent of one host: starts processes there as the coordinator says, and says what becomes of them."""

from __future__ import annotations

import os
import platform
import queue
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from meshrt.errors import DistributedError
from meshrt.launch import signals, wire
from meshrt.launch.address import split_address
from meshrt.launch.engines.local import LocalEngine
from meshrt.launch.engines.protocol import Exited, Output, Report, Said, ServiceSpec, Spec, Task
from meshrt.launch.hosts.duties import Deed, Duties, EndAll, Kill, Leave, Start
from meshrt.launch.hosts.link import Broken, Gone, Heard, Link, News, Opened
from meshrt.launch.hosts.messages import Applicant, Leaving, Stale, Up
from meshrt.launch.hosts.outbound import Outbound
from meshrt.launch.hosts.security import Trust
from meshrt.launch.membership.frames import new_nonce
from meshrt.launch.model import ExitStatus, signal_name
from meshrt.launch.parting import GRACE_S, host_stays_s

__all__ = ["Options", "run", "versions"]

_TICK_S = 0.5
_LAST_CALL_S = 2.5  # before SIGKILL; Chosen: half of the shortest time from being told to stop to it
_SERVICE_S = 0.5  # for a coordination service to put things in order
_FAREWELL_S = 1.0
_END_S = 10.0  # for SIGKILL to take effect
_NOT_STARTED = ExitStatus(reason="the agent of its host was told to stop")
_LEASE_S = 8.0  # until the coordinator says how long


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked of an agent. `address` None: the one from which the coordinator is reached."""

    coordinator: str
    trust: Trust
    name: str
    address: str | None = None
    join_timeout_s: float = 300.0


def versions() -> dict[str, str]:
    """What must be the same on all hosts."""
    from importlib import metadata  # start-up time: of hosts that have just started an agent, once

    return {name: metadata.version(name) for name in ("meshrt", "jaxlib")} | {
        "Python": platform.python_version().rpartition(".")[0]
    }


def own_address(coordinator: str) -> str:
    """The address of this host from which the coordinator is reached."""
    try:
        return address_towards(*split_address(coordinator))
    except OSError as e:
        raise DistributedError(f"--coordinator {coordinator}: {e.strerror or e}") from None


def address_towards(host: str, port: int) -> str:
    """The address of this host at the beginning of the way to another one. OSError if there is none."""
    family, kind, _, _, address = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def run(options: Options, environ: Mapping[str, str], say: Callable[[str], None]) -> int:
    """Serves the coordinator until the job is over; gives the job's exit code. From the main thread only.

    Raises:
      DistributedError: the coordinator's name does not resolve, it refuses this agent, or nobody answers within
        `options.join_timeout_s`.
    """
    return _Agent(options, environ, say).run()


class _Agent:
    def __init__(self, options: Options, environ: Mapping[str, str], say: Callable[[str], None]):
        self._options, self._say = options, say
        self._address = options.address or own_address(options.coordinator)
        self._versions = versions()
        self._engine = LocalEngine(environ)
        self._duties = Duties(new_nonce, _LEASE_S, time.monotonic())
        self._outbound = Outbound()
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._link: Link | None = None
        self._session: int | None = None
        self._joined = False
        self._complained = False
        self._lost_at = time.monotonic()
        self._leaving: tuple[int, float] | None = None  # by which signal, and until when
        self._kill_at = 0.0
        self._heeding: set[Task] = set()  # those that save, or hand over what they hold, when they are asked to
        self._asked: dict[Task, int] = {}  # the last signal that they got
        self._checkpoint_s = 0.0
        self._code: int | None = None

    def run(self) -> int:
        try:
            # Signals, ends of children and the link's thread write to it.
            with signals.piped() as (self._wake, self._waker):
                self._link = Link(
                    self._options.coordinator, self._options.trust, self._describe, self._tell, self._outbound
                )
                try:
                    while self._code is None:
                        self._turn()
                finally:
                    self._link.close()
        finally:
            self._engine.close()
        return self._code

    def _turn(self) -> None:
        for found in self._engine.wait(_TICK_S, self._wake):
            self._report(found)
        self._take_signals(self._wake)
        while self._code is None and not self._news.empty():
            self._hear(self._news.get())
        self._do(self._duties.tick(time.monotonic()))
        self._look_at_the_clock(time.monotonic())

    # --- this process.

    def _take_signals(self, wake: int) -> None:
        for number in signals.cancelling(wake):
            self._told_to_end(number)

    def _told_to_end(self, number: int) -> None:
        """Its ranks are asked to leave or to end, and what becomes of them is still reported; once more, it ends at
        once."""
        now = time.monotonic()
        if self._leaving is not None:
            self._engine.signal(tuple(self._duties.running), int(signal.SIGKILL))
            self._leaving = (self._leaving[0], min(self._leaving[1], now + _FAREWELL_S))
            return
        grace_s = self._grace_s()
        self._leaving = (number, now + grace_s + _FAREWELL_S)
        self._kill_at = now + grace_s
        self._send(Leaving(f"its agent was stopped by {signal_name(number)}"))
        self._ask_those_left(now)

    def _ask_those_left(self, now: float) -> None:
        """The coordinator asks the ranks here to leave the others, to save or to end, as it knows what they can, and
        retires the service when nobody uses it. Ranks that it has not asked when it is out of touch, and those that are
        left shortly before SIGKILL, are asked to end here."""
        ranks = [task for task in self._duties.running if task.rank is not None]
        if now > self._kill_at - _LAST_CALL_S:
            self._signal([task for task in ranks if self._asked.get(task) != signal.SIGTERM], int(signal.SIGTERM))
        elif self._session is None:
            self._signal([task for task in ranks if task not in self._asked], int(signal.SIGTERM))

    def _kill_those_left(self, now: float) -> None:
        """The service, which others may use as long as it can be, goes last."""
        services = [task for task in self._duties.running if task.rank is None]
        self._signal([task for task in self._duties.running if task.rank is not None], int(signal.SIGKILL))
        if now > self._kill_at + _SERVICE_S:
            self._signal(services, int(signal.SIGKILL))
        else:
            self._signal([task for task in services if task not in self._asked], int(signal.SIGTERM))

    def _signal(self, tasks: Sequence[Task], number: int) -> None:
        if tasks:
            self._asked |= dict.fromkeys(tasks, number)
            self._engine.signal(tuple(tasks), number)

    def _grace_s(self) -> float:
        """From being told to stop to SIGKILL: ranks that save, or hand over what they hold, have the time that the job
        gives them for it."""
        seconds = host_stays_s(self._checkpoint_s) if self._heeding else GRACE_S
        if seconds > GRACE_S:
            self._say(
                f"waiting up to {seconds:g} s for the ranks here to save, or to hand over what they hold "
                "(--checkpoint-timeout); another signal ends them at once"
            )
        return seconds

    def _look_at_the_clock(self, now: float) -> None:
        if self._leaving is not None:
            number, until = self._leaving
            if now > self._kill_at:
                self._kill_those_left(now)
            else:
                self._ask_those_left(now)
            settled = not self._duties.running and (not self._duties.unsettled or self._session is None)
            if settled or now > until:
                self._code = 128 + number
        elif self._session is None and now - self._lost_at > self._options.join_timeout_s:
            raise DistributedError(
                f"no coordinator let this host in at {self._options.coordinator} within "
                f"{self._options.join_timeout_s:g} s (--join-timeout)"
            )

    # --- the coordinator.

    def _describe(self) -> Applicant:
        duties = self._duties
        return Applicant(
            self._options.name, self._address, duties.name, self._versions, duties.tasks, os.cpu_count() or 1,
            self._joined, self._outbound.settled,
        )  # fmt: skip

    def _tell(self, news: News) -> None:
        self._news.put(news)
        try:
            os.write(self._waker, b"\0")
        except (BlockingIOError, OSError):
            return  # it is awake, or has ended

    def _hear(self, news: News) -> None:
        now = time.monotonic()
        match news:
            case Opened():
                self._opened(news, now)
            case Heard(number=number, message=message) if number == self._session:
                self._do(self._duties.told(message, now))
            case Broken(why=why, stale=stale):
                if stale:
                    self._do(self._duties.told(Stale(why), now))
                if self._session is not None or not self._complained:
                    self._complained = True
                    self._say(f"{why}; trying again")
                if self._session is not None:
                    self._session, self._lost_at = None, now
            case Gone(error=error):
                raise DistributedError(f"the coordinator at {self._options.coordinator} refused this host: {error}")

    def _opened(self, news: Opened, now: float) -> None:
        if news.incarnation != self._duties.name:  # it ended its processes while it joined as who ran them
            assert self._link is not None  # which says this
            self._link.renew()
            return
        if not self._joined and os.path.isdir(news.directory):
            try:
                os.chdir(news.directory)
            except OSError as e:
                self._say(f"processes start in {os.getcwd()}, since {news.directory} cannot be entered: {e.strerror}")
        if not self._joined or self._complained:
            place = f"in the job of {self._options.coordinator}{' again' if self._joined else ''}"
            self._say(f"host {self._options.name} ({self._address}) is {place}")
        self._joined, self._complained, self._session = True, False, news.number
        self._duties.lease_s, self._checkpoint_s = news.lease_s, news.checkpoint_s
        for message in self._duties.opened(now):
            self._send(message)
        if self._leaving is not None:
            self._send(Leaving(f"its agent was stopped by {signal_name(self._leaving[0])}"))

    def _send(self, message: Up) -> None:
        if self._link is not None and self._session is not None:
            self._link.send(message)

    def _do(self, deeds: list[Deed]) -> None:
        for deed in deeds:
            match deed:
                case Start(specs=specs):
                    if self._leaving is None:
                        self._engine.start([_with_secret(spec, self._options.trust) for spec in specs])
                    else:
                        for spec in specs:
                            self._report(Exited(spec.task, time.monotonic(), _NOT_STARTED))
                case Kill(tasks=tasks, number=number):
                    self._signal(tasks, number)
                case EndAll(why=why):
                    self._end_all(why, self._wake)
                    if self._link is not None and self._session is not None:
                        self._link.renew()
                case Leave(exit_code=code):
                    self._code = code

    def _end_all(self, why: str, wake: int) -> None:
        """Returns when nothing is left of what ran: a later life may have tasks of the same names."""
        if self._engine.tasks:
            self._say(f"ending all processes of this host: {why}")
        deadline = time.monotonic() + _END_S
        while self._engine.tasks and time.monotonic() < deadline:
            self._engine.signal(self._engine.tasks, int(signal.SIGKILL))
            for found in self._engine.wait(0.05, wake):
                self._report(found)
        self._outbound.forget()

    # --- the processes.

    def _report(self, found: Report) -> None:
        match found:
            case Output():
                if found.task in self._duties.running:
                    self._outbound.put(found)
            case Said() | Exited():
                self._note_kind(found)
                output = self._outbound.end(found.task, found.at) if isinstance(found, Exited) else 0
                happened = self._duties.reported(found, output)
                if happened is not None:
                    self._send(happened)

    def _note_kind(self, found: Said | Exited) -> None:
        if isinstance(found, Exited):
            self._heeding.discard(found.task)
            self._asked.pop(found.task, None)
        elif (b"attentive" in found.line or b"growable" in found.line) and _heeds(found.line):
            self._heeding.add(found.task)


def _with_secret(spec: Spec, trust: Trust) -> Spec:
    if isinstance(spec, ServiceSpec):
        return replace(spec, secret=trust.of_ranks(spec.secret))
    return replace(spec, place=replace(spec.place, secret=trust.of_ranks(spec.place.secret)))


def _heeds(line: bytes) -> bool:
    try:
        return isinstance(wire.decode(line), wire.Attentive | wire.Growable)
    except wire.WireError:  # the coordinator gets it, and says so
        return False


def complain(text: str) -> None:
    """Says something on stderr, as one line of the agent's."""
    print(f"meshrt agent: {text}", file=sys.stderr, flush=True)
