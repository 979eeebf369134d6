"""The door of a job: the one address that all its processes connect to, served by one thread over a selector.

A connection is a stranger's until it has joined. Members stay connected for their lives, and what they tell goes to the
roster. A connection may instead become a tunnel to the coordination service, which listens on a socket in the file
system that only this user can open, and so is reached through the door by processes on other hosts.
"""

from __future__ import annotations

import base64
import binascii
import errno
import selectors
import socket
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from meshrt.launch.membership import frames
from meshrt.launch.membership.roster import RefusedError, Roster
from meshrt.launch.noise import Sparing

__all__ = ["Door"]

_TICK_S = 0.5
_BEAT_S = 2.0  # the door's own sign of life
_SHAKE_S = 10.0  # how long a stranger may take
_STRANGERS = 1024
_BACKLOG = 4096
_READ = 256 * 1024
_HELD = 64 << 20  # bytes that a member may leave unread before it is given up
_TEXT_LIMIT = 64 << 20
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Door:
    """Serves until `serve` returns: when the last member has gone, or when `closing` says so.

    Args:
      listener: a socket that listens.
      secret: of the job; empty where everybody may join who comes.
      make_service: starts a coordination service for a number of processes and gives the path of its socket.
      tell: is given a rank and why it is lost, or why the job cannot go on, and whether it has just vanished.
      log: is given what an operator wants to know of strangers.
    """

    def __init__(
        self, listener: socket.socket, secret: str, roster: Roster, make_service: Callable[[int], str],
        tell: Callable[[int, str, bool], None], log: Callable[[str], None],
    ):  # fmt: skip
        self._listener, self._secret, self._roster = listener, secret, roster
        self._make_service, self._tell, self._log = make_service, tell, log
        self._strange = Sparing(log)
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, _Connection] = {}  # by the number of the process that joined
        self._waiting: dict[int, _Connection] = {}  # of newcomers, by rank
        self._strangers: dict[_Connection, None] = {}  # the oldest first
        self._deaf = False  # nobody can be let in: there are no descriptors, and no stranger who could make room
        self._service: str | None = None
        self._beat_at = 0.0
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, None)

    def serve(self, closing: Callable[[], bool]) -> None:
        """Serves. `closing` is asked now and then; once it says yes, the door closes behind the last member."""
        self._service = self._make_service(self._roster.count)
        while not (closing() and all(process in self._roster.lost for process in self._connections)):
            ready = self._selector.select(_TICK_S)
            self._roster.wake(time.monotonic())
            for key, events in ready:
                if key.data is None:
                    self._accept()
                else:
                    key.data(events)
            now = time.monotonic()
            self._roster.tick(now)
            self._strange.tick()
            self._settle()
            for stranger in [s for s in self._strangers if now - s.since > _SHAKE_S]:
                self._strange(f"{stranger.peer} was not let in: it said nothing for {_SHAKE_S:g} s")
                self._refuse(stranger, "nothing was said for too long")
            if now - self._beat_at > _BEAT_S:
                self._hark(True)
                self._beat_at = now
                for connection in [*self._connections.values(), *self._waiting.values()]:
                    connection.send("beat", missing=self._roster.missing())

    # --- strangers.

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError as e:
            if e.errno in _EXHAUSTED and not self._make_room():
                self._hark(False)
            return  # else it went away again
        if len(self._strangers) >= _STRANGERS:
            self._make_room()
        connection = _Connection(sock, self._selector, f"{address[0]}:{address[1]}")
        connection.on_message = lambda fields: self._shake(connection, fields)
        connection.on_end = lambda why: self._strangers.pop(connection, None)
        connection.on_nonsense = lambda why: self._mistake(connection, why)
        self._strangers[connection] = None
        connection.send("hello", nonce=connection.nonce)

    def _make_room(self) -> bool:
        """The oldest stranger goes: who belongs to the job says so at once, and comes again if it was too slow. Whether
        there was one."""
        oldest = next(iter(self._strangers), None)
        if oldest is None:
            return False
        why = "it had to make room for others, and had not said who it is"
        self._strange(f"{oldest.peer} was not let in: {why}")
        del self._strangers[oldest]
        oldest.send("refused", why=why, again=True)
        oldest.drop(why)
        return True

    def _hark(self, on: bool) -> None:
        """Whether anybody else is let in: a listener that cannot be served wakes the door without end."""
        if on and self._deaf:
            self._selector.register(self._listener, selectors.EVENT_READ, None)
        elif not on and not self._deaf:
            self._strange("nobody else can be let in: this process may open no more files (ulimit -n)")
            self._selector.unregister(self._listener)
        self._deaf = not on

    def _shake(self, connection: _Connection, fields: Mapping[str, Any]) -> None:
        kind = fields["kind"]
        process, count = fields.get("process"), fields.get("processes")
        said = (kind, connection.nonce, process, count)
        if not frames.proves(fields.get("proof"), self._secret, *said):
            self._strange(f"{connection.peer} wanted to join and did not prove that it knows the job's secret")
            self._refuse(connection, "it does not know this job's secret (MESHRT_JOB_SECRET)")
        elif kind == "tunnel":
            self._tunnel(connection)
        elif kind == "join" and isinstance(process, int) and isinstance(count, int):
            self._join(connection, process, count, fields)
        elif kind == "come" and isinstance(process, int) and isinstance(count, int):
            self._come(connection, process, count, fields)
        else:
            why = f"it knows the job's secret, and sent what this version of meshrt cannot read: {kind[:60]!r}"
            self._log(f"{connection.peer} was not let in: {why}")
            self._refuse(connection, f"{why}; install the same version on all hosts")

    def _mistake(self, connection: _Connection, why: str) -> None:
        """What a stranger sent are no messages of meshrt's."""
        if connection in self._strangers:
            self._strange(f"{connection.peer} is no process of this job: it sent {why}")
            self._refuse(connection, f"this is the door of a job of meshrt, and that was {why}")

    def _refuse(self, connection: _Connection, why: str) -> None:
        self._strangers.pop(connection, None)
        connection.send("refused", why=why)
        connection.end("refused")

    def _join(self, connection: _Connection, process: int, count: int, fields: Mapping[str, Any]) -> None:
        about = fields.get("about")
        try:
            self._roster.join(process, count, about if isinstance(about, dict) else {}, time.monotonic())
        except RefusedError as e:
            self._log(str(e))
            if e.fatal:
                self._roster.refuse_all(str(e))
                self._settle()
            self._refuse(connection, str(e))
            return
        self._strangers.pop(connection, None)
        self._admit(connection, process)
        self._welcome(connection, fields)
        self._settle()

    def _admit(self, connection: _Connection, process: int) -> None:
        """What comes on a connection is from now on said by this process."""
        connection.process = process
        self._connections[process] = connection
        connection.on_message = lambda found: self._hear(connection, found)
        connection.on_end = lambda why: self._left(connection)

    def _welcome(self, connection: _Connection, fields: Mapping[str, Any]) -> None:
        connection.frames.limit = frames.LINE_LIMIT
        answer = frames.proof(self._secret, "welcome", fields.get("nonce", ""))
        connection.send("welcome", proof=answer, service=self._service)

    def _come(self, connection: _Connection, rank: int, batch: int, fields: Mapping[str, Any]) -> None:
        """A newcomer waits, and says nothing that counts, until the members let it in."""
        about, growth = fields.get("about"), self._roster.growth
        try:
            self._roster.come(rank, batch, about if isinstance(about, dict) else {}, time.monotonic())
        except RefusedError as e:
            self._log(str(e))
            self._refuse(connection, str(e))
            return
        self._strangers.pop(connection, None)
        self._waiting[rank] = connection

        def gone(why: str) -> None:
            del self._waiting[rank]
            del growth.newcomers[rank]

        def heard(found: Mapping[str, Any]) -> None:
            growth.newcomers[rank].heard_at = time.monotonic()

        connection.on_message, connection.on_end = heard, gone
        self._welcome(connection, fields)

    def _tunnel(self, connection: _Connection) -> None:
        self._strangers.pop(connection, None)
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            inner.connect(str(self._service).removeprefix("unix:"))
        except OSError:
            inner.close()
            connection.end("the service is gone")
            return
        connection.send("through")
        other = _Connection(inner, self._selector, "service")
        other.on_bytes, connection.on_bytes = connection.write, other.write
        other.on_end, connection.on_end = connection.end, other.end
        rest = connection.frames.take_rest()
        if rest:
            other.write(rest)

    # --- members.

    def _left(self, connection: _Connection) -> None:
        process = connection.process
        if self._connections.get(process) is connection:
            del self._connections[process]
            self._roster.close(process)
            self._settle()

    def _hear(self, connection: _Connection, fields: Mapping[str, Any]) -> None:
        try:
            self._act(connection.process, fields, time.monotonic())
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, zlib.error, binascii.Error) as e:
            self._log(f"process {connection.process} sent a message that cannot be read: {e!r}")
        self._settle()

    def _act(self, process: int, fields: Mapping[str, Any], now: float) -> None:
        roster = self._roster
        if process in roster.lost:
            return
        match fields["kind"]:
            case "beat":
                roster.beat(process, fields, now)
            case "failed":
                roster.fail(process, str(fields["why"])[:4000])
            case "finished":
                roster.finish(process, fields["launched"], now, fields.get("trails"))
            case "agree":
                roster.members[process].port = fields.get("port")  # a stopped process may have said nothing since
                roster.agree(process, str(fields["circle"]), int(fields["number"]), dict(fields["record"]), now)
            case "explained":
                text = _unpacked(fields.get("text"))
                roster.explained(process, str(fields["circle"]), int(fields["number"]), text)
            case "alive":
                roster.ask_alive(process, str(fields["circle"]), str(fields["name"]), int(fields["turn"]))
            case "withdraw":
                roster.withdraw(process, str(fields["circle"]), str(fields["name"]))
            case "boundary":
                roster.at_boundary(process, int(fields["passed"]))
            case "wish":
                roster.wish(process, now)
            case "handed":
                roster.hand_over(process)
            case "regroup":
                roster.regroup(process, now)

    def _regroup(self, left: list[int]) -> None:
        came = [connection for _, connection in sorted(self._waiting.items())]
        self._waiting = {}
        self._service = self._make_service(len(left) + len(came))
        former = [self._connections[p] for p in left]
        for process, connection in self._connections.items():
            if process not in left:
                self._dismiss(connection, process)
        self._connections = {}
        for new, connection in enumerate((*former, *came)):
            self._admit(connection, new)
        self._roster.regrouped(self._service)

    def _dismiss(self, connection: _Connection, process: int) -> None:
        """Ends the connection of one that is not in the smaller job: its number is another's from now on, and what it
        says when it wakes up must not count as said by that one."""
        connection.process = -1
        connection.on_message = lambda fields: None
        connection.on_end = lambda why: None
        if process not in self._roster.lost:
            connection.send("over")  # its script ended
        connection.end("the job goes on without it")

    def _settle(self) -> None:
        """Sends what the roster wants to be sent, tells its news, and makes the smaller job that all want."""
        if left := self._roster.to_regroup():
            self._regroup(left)
        while self._roster.outbox or self._roster.news:
            outbox, self._roster.outbox = self._roster.outbox, []
            news, self._roster.news = self._roster.news, []
            for one in news:  # before those who may leave then
                self._tell(*one)
            for send in outbox:
                connection = self._connections.get(send.process)
                if connection is not None:
                    connection.send(send.kind, **send.fields)


def _unpacked(text: object) -> str | None:
    """The text of a program as members send it; None if there is none or it is far too long."""
    if not isinstance(text, str):
        return None
    stream = zlib.decompressobj()
    data = stream.decompress(base64.b64decode(text), _TEXT_LIMIT)
    return None if stream.unconsumed_tail else data.decode("utf-8", "replace")


class _Connection:
    """A socket that never blocks: messages, or bytes once it is a tunnel, to whoever set the hooks."""

    def __init__(self, sock: socket.socket, selector: selectors.BaseSelector, peer: str):
        self._sock, self._selector, self.peer = sock, selector, peer
        self.nonce, self.since = frames.new_nonce(), time.monotonic()
        self.frames = frames.Frames()
        self.process = -1
        self.on_message: Callable[[Mapping[str, Any]], None] = lambda fields: None
        self.on_bytes: Callable[[bytes], None] | None = None
        self.on_end: Callable[[str], None] = lambda why: None
        self.on_nonsense: Callable[[str], None] = lambda why: None
        self._unsent = bytearray()
        self._open = True
        self._ending = False
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(sock, selectors.EVENT_READ, self._ready)

    def send(self, kind: str, **fields: Any) -> None:
        self.write(frames.encode(kind, **fields))

    def write(self, data: bytes) -> None:
        if not self._open:
            return
        self._unsent += data
        self._flush()
        if len(self._unsent) > _HELD:
            self._close("it does not read what it is sent")

    def end(self, why: str) -> None:
        """Closes when what is left has been sent."""
        self._ending = True
        if not self._unsent:
            self._close(why)

    def drop(self, why: str) -> None:
        """Closes at once, whatever has not been sent."""
        self._close(why)

    def _close(self, why: str) -> None:
        if self._open:
            self._open = False
            self._selector.unregister(self._sock)
            self._sock.close()
            self.on_end(why)

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError as e:
            self._close(str(e))
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        self._selector.modify(self._sock, wanted, self._ready)

    def _ready(self, events: int) -> None:
        if self._open and events & selectors.EVENT_WRITE:
            self._flush()
            if self._ending and not self._unsent:
                self._close("ended")
        if self._open and events & selectors.EVENT_READ:
            self._read()

    def _read(self) -> None:
        try:
            data = self._sock.recv(_READ)
        except BlockingIOError:
            return
        except OSError as e:
            self._close(str(e))
            return
        if not data:
            self._close("closed")
        elif self.on_bytes is not None:
            self.on_bytes(data)
        elif not self._ending:
            self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            found = self.frames.feed(data)
        except frames.FrameError as e:
            self.on_nonsense(str(e))
            if not self._ending:
                self._close(str(e))
            return
        for fields in found:
            if not self._open or self._ending:
                return
            self.on_message(fields)
