"""An agent's connection to its coordinator: a thread that joins, stays in a session, and comes back after a break."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from meshrt.errors import DistributedError
from meshrt.launch.hosts import codec
from meshrt.launch.hosts.calls import Calls, broken, unreachable
from meshrt.launch.hosts.fleet import BEAT_S
from meshrt.launch.hosts.messages import Alive, Applicant, Beat, Down, RefusedError, Settled, Up
from meshrt.launch.hosts.outbound import Outbound
from meshrt.launch.hosts.security import Trust
from meshrt.launch.hosts.signing import AlteredError
from meshrt.launch.hosts.wire import coordinator_pb2 as pb

__all__ = ["Broken", "Gone", "Heard", "Link", "Opened"]

_AGAIN_S = 0.5


@dataclass(frozen=True, slots=True)
class Opened:
    """A session began, of the agent of this incarnation."""

    number: int
    incarnation: str
    directory: str
    lease_s: float
    checkpoint_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Heard:
    """The coordinator said something in a session."""

    number: int
    message: Down


@dataclass(frozen=True, slots=True)
class Broken:
    """The connection broke, or could not be made; another attempt follows. `stale`: the coordinator has lost this
    agent, and takes it back only with nothing of what it runs."""

    why: str
    stale: bool = False


@dataclass(frozen=True, slots=True)
class Gone:
    """The coordinator refuses this agent: there will be no other attempt."""

    error: DistributedError


News = Opened | Heard | Broken | Gone


class Link:
    """`describe` says who asks to join, as of now; `tell` is given what happens, from this thread."""

    def __init__(
        self, address: str, trust: Trust, describe: Callable[[], Applicant], tell: Callable[[News], None],
        outbound: Outbound,
    ):  # fmt: skip
        self._address, self._trust, self._describe, self._tell = address, trust, describe, tell
        self._outbound = outbound
        self._outgoing: queue.SimpleQueue[Up | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._calls: Calls | None = None
        self._answers: Any = None  # gRPC's call of the present session
        self._number = 0
        self._beat_s = 1.0
        self._thread = threading.Thread(target=self._run, name="meshrt-link", daemon=True)
        self._thread.start()

    def send(self, message: Up) -> None:
        """Says this in the present session; without one it is lost."""
        self._outgoing.put(message)

    def renew(self) -> None:
        """Leaves the present session: the agent is another one from now on, and joins as such."""
        answers, self._answers = self._answers, None
        if answers is not None:
            answers.cancel()

    def close(self) -> None:
        """Leaves; nothing is told any more."""
        self._closing.set()
        self._tell = lambda _: None
        self._outgoing.put(None)
        self._outbound.begin_stream()
        self._thread.join(1.0)
        if self._calls is not None:
            self._calls.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._calls = Calls(self._address, self._trust)
            stale, former = False, self._number
            try:
                self._live(self._calls)
                why = f"the coordinator at {self._address} ended the session"
            except RefusedError as e:
                if not former:  # nobody who was in the job gives it up for one that proves nothing
                    self._tell(Gone(e))
                    return
                why = str(e)
            except grpc.RpcError as e:
                found = self._calls.refusal(e)
                if found is not None and found.kind != "ABORTED":
                    self._tell(Gone(found))
                    return
                lost = broken(self._address, e) if self._number > former else unreachable(self._address, e)
                why, stale = str(found or lost), found is not None
            except AlteredError as e:
                why = f"the session with the coordinator at {self._address} was broken off: {e}"
            finally:
                self._calls.close()
            if not self._closing.is_set():
                self._tell(Broken(why, stale))
            self._closing.wait(_AGAIN_S)

    def _live(self, calls: Calls) -> None:
        """One session, from joining to its end."""
        who = self._describe()
        let_in: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._answers = calls.stream("Session", self._say(who, let_in), calls.knock())
        answers = iter(self._answers)
        try:
            if (first := next(answers, None)) is None:
                return
            joined = codec.joined(first)
            self._outgoing, self._beat_s = queue.SimpleQueue(), joined.beat_s
            let_in.put(True)
        finally:
            let_in.put(False)
        self._number += 1
        number = self._number
        self._tell(Opened(number, who.incarnation, joined.directory, joined.lease_s, joined.checkpoint_s))
        stream = self._outbound.begin_stream()
        log = threading.Thread(target=self._stream_log, args=(calls, stream, who), name="meshrt-log", daemon=True)
        log.start()
        try:
            for answer in answers:
                message = codec.down(answer)
                if isinstance(message, Alive):
                    self._beat_s = message.beat_s
                elif isinstance(message, Settled):
                    self._outbound.settle(message.output)
                self._tell(Heard(number, message))
        finally:
            self._outgoing.put(None)
            self._outbound.begin_stream()

    def _say(self, who: Applicant, let_in: queue.SimpleQueue[bool]) -> Iterator[pb.AgentMessage]:
        """First that the agent wants to join; once it is let in, all else."""
        yield pb.AgentMessage(join=codec.from_applicant(who))
        if not let_in.get():
            return
        outgoing = self._outgoing
        # The first beat tells how clocks differ; where thousands join, it comes when it is due.
        beat_at = 0.0 if self._beat_s <= BEAT_S else time.monotonic() + self._beat_s
        while True:
            now = time.monotonic()
            if now >= beat_at:
                beat_at = now + self._beat_s
                yield codec.from_up(Beat(now))
            try:
                message = outgoing.get(timeout=max(0.0, beat_at - now))
            except queue.Empty:
                continue
            if message is None:
                return
            yield codec.from_up(message)

    def _stream_log(self, calls: Calls, stream: int, who: Applicant) -> None:
        """Sends the output as long as the session lasts, from the first piece on: many hosts print nothing for long."""
        while stream := self._outbound.wait(stream):
            chunks = (codec.from_chunk(c, who.name, who.incarnation) for c in self._outbound.take(stream))
            try:
                calls.stream("ReportLog", chunks, calls.knock())
            except (grpc.RpcError, RefusedError, ValueError):  # the last one: its channel was closed
                self._closing.wait(_AGAIN_S)  # most often the session breaks too, and the next one has its place
