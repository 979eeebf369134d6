"""The coordinator's gRPC server: one thread with an event loop, however many agents there are."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message
from grpc.aio import ServicerContext as Context

from meshrt.errors import ConfigError
from meshrt.launch import open_files
from meshrt.launch.address import join_address
from meshrt.launch.environment import SECRET
from meshrt.launch.hosts import codec, status
from meshrt.launch.hosts.calls import END, NONCE, PROOF, REFUSAL, UNPROVED, Calls
from meshrt.launch.hosts.engine import HostsEngine
from meshrt.launch.hosts.fleet import BACKLOG, SELF_END_S
from meshrt.launch.hosts.logbook import Line
from meshrt.launch.hosts.messages import Down, Over, RefusedError
from meshrt.launch.hosts.reading import HARD_LIMIT, Reading, readable
from meshrt.launch.hosts.security import Nonces, Trust
from meshrt.launch.hosts.signing import AlteredError, Seal
from meshrt.launch.hosts.wire import coordinator_pb2 as pb
from meshrt.launch.hosts.wire import coordinator_pb2_grpc as stubs
from meshrt.launch.membership import frames

__all__ = ["Server"]

_QUEUE = 4096  # messages that an agent may leave unread, or lines a follower, before it is given up
_PAUSE_S = 0.05
_TURN_S = 0.25
_OWN_FILES = 1024  # Chosen: descriptors for all but connections: logs of ranks, agents that were started here, figures
_NONCE_LIMIT = 64  # characters: whoever knocks is a stranger
_OPTIONS = (
    ("grpc.max_receive_message_length", HARD_LIMIT),
    ("grpc.so_reuseport", 0),  # else two coordinators could share one port
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.server_handshake_timeout_ms", 10_000),  # of a stranger who says nothing; gRPC's own patience is 2 minutes
    ("grpc.max_connection_idle_ms", 60_000),  # of one who makes no call; an agent's session is one
)


class Server:
    """Serves `engine` at `host` and `port` (0: any free one) from `start` to `stop`."""

    def __init__(
        self, engine: HostsEngine, trust: Trust, host: str, port: int, job: str, directory: str, command: str,
        log: Callable[[str], None],
    ):  # fmt: skip
        self._engine, self._trust = engine, trust
        self._host, self._port = host, port
        self._job, self._directory, self._command, self._log = job, directory, command, log
        self._nonces = Nonces()
        self._followers: set[_Outbox] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="meshrt-coordinator", daemon=True)
        self._ready = threading.Event()
        self._failure: Exception | None = None
        self._stopping: asyncio.Event | None = None

    # --- life.

    def start(self) -> str:
        """Listens; gives the address. ConfigError if it cannot."""
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            where = join_address(self._host, self._port)
            why = getattr(self._failure, "strerror", None) or self._failure
            raise ConfigError(f"--listen {where}: the coordinator cannot listen there: {why}")
        return join_address(self._host, self._port)

    def stop(self) -> None:
        """Ends all calls."""
        if self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(5.0)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        most = ("grpc.max_allowed_incoming_connections", _connections())
        server = grpc.aio.server(interceptors=(Reading(),), options=(*_OPTIONS, most))
        stubs.add_CoordinatorServicer_to_server(self, server)
        server.add_generic_rpc_handlers((_OtherProtocols(self._log),))
        address = join_address(self._host, self._port)
        certificates = self._trust.certificates
        try:
            _try_to_bind(self._host, self._port)
            if certificates is None:
                self._port = server.add_insecure_port(address)
            else:
                pair = [(certificates.key, certificates.certificate)]
                credentials = grpc.ssl_server_credentials(pair, certificates.authority, require_client_auth=True)
                self._port = server.add_secure_port(address, credentials)
            await server.start()
        except Exception as e:  # OSError, RuntimeError of gRPC: told to whoever started the server
            self._failure = e
            self._ready.set()
            return
        self._ready.set()
        turns = asyncio.ensure_future(self._take_turns())
        await self._stopping.wait()
        turns.cancel()
        for outbox in self._followers:
            outbox.put(None)
        await asyncio.sleep(0)  # they have had all lines
        await server.stop(0.5)

    async def _take_turns(self) -> None:
        while True:
            self._engine.listening()
            await asyncio.sleep(_TURN_S)

    # --- who calls.

    async def _admit(self, context: Context, method: str, request: Message | None) -> str:
        """The nonce of a call. RefusedError unless the caller knows the job's secret, and makes it the first time."""
        nonce, proof, digest = _credentials(context, readable(request))
        self._nonces.spend(nonce, proof, self._trust.secret, method, digest, time.monotonic())
        if not self._engine.serving:
            raise RefusedError("the coordinator is starting or ending", "UNAVAILABLE")
        return nonce

    def _seal(self, nonce: str, method: str, way: str) -> Seal:
        return Seal(self._trust, nonce, method, way)

    async def _refuse(self, context: Context, method: str, error: RefusedError, request: Message | None = None) -> None:
        """Answers a call with an error; what a stranger does is logged, once. Who has proved to know the secret gets
        the same proof of the refusal; nobody else does, who could have it made for the call of another one."""
        if error.kind != "UNAVAILABLE":
            self._log(f"refused {method} from {_peer(context)}: {error}")
        nonce, proof, digest = _credentials(context, request if isinstance(request, Message) else None)
        signed: tuple[tuple[str, str], ...] = ()
        if self._trust.signs and frames.proves(proof, self._trust.secret, "call", nonce, method, digest):
            refusal = frames.proof(self._trust.secret, "refusal", nonce, method, error.kind, str(error))
            signed = ((NONCE, nonce), (REFUSAL, refusal))
        await context.abort(grpc.StatusCode[error.kind], str(error), signed)

    async def _answer(
        self, context: Context, method: str, request: Message, act: Callable[[], Awaitable[Message]]
    ) -> Message:
        try:
            nonce = await self._admit(context, method, request)
            reply: Message = self._seal(nonce, method, "down").sign(await act())
            return reply
        except RefusedError as e:
            await self._refuse(context, method, e, request)
            raise  # `abort` has raised already

    # --- calls of agents.

    async def Knock(self, request: pb.KnockRequest, context: Context) -> pb.KnockReply:
        try:
            if len(readable(request).nonce) > _NONCE_LIMIT:
                raise RefusedError("a nonce that is no nonce", "INVALID_ARGUMENT")
        except RefusedError as e:
            await self._refuse(context, "Knock", e)
        if UNPROVED in dict(context.invocation_metadata() or ()):
            self._log(f"{_peer(context)} knocked, and left: {self._why_unproved()}")
        nonce = self._nonces.new(time.monotonic())
        proof = frames.proof(self._trust.secret, "coordinator", request.nonce, nonce)
        return pb.KnockReply(nonce=nonce, proof=proof)

    def _why_unproved(self) -> str:
        """Who says that the answer to its knock was no proof is a stranger, and need not be right."""
        if not self._trust.secret:
            return f"it says that it has a secret, and this job has none ({SECRET})"
        return f"it says that it has another secret than this job, or none ({SECRET})"

    async def Session(
        self, requests: AsyncIterator[pb.AgentMessage], context: Context
    ) -> AsyncIterator[pb.CoordinatorMessage]:
        try:
            nonce = await self._admit(context, "Session", None)
            up, down = (self._seal(nonce, "Session", way) for way in ("up", "down"))
            first = await anext(requests, None)
            if first is not None:
                up.check(readable(first))
            if first is None or not first.HasField("join"):
                raise RefusedError("malformed message: a session in which nobody joins", "INVALID_ARGUMENT")
            who = codec.applicant(first.join)
            name, incarnation, outbox = who.name, who.incarnation, _Outbox(self._loop)
            self._engine.join(who, outbox.put)
        except (RefusedError, AlteredError) as e:
            await self._refuse(context, "Session", _as_refusal(e))
            return
        reader = asyncio.ensure_future(self._listen(name, incarnation, requests, up, outbox, context))
        try:
            yield down.sign(pb.CoordinatorMessage(joined=self._joined()))
            while (message := await outbox.get()) is not None:
                yield down.sign(codec.from_down(message))
                if isinstance(message, Over):
                    break
        finally:
            reader.cancel()
            self._engine.closed(name, incarnation, outbox.put)

    def _joined(self) -> pb.JoinReply:
        return pb.JoinReply(
            job=self._job, beat_s=self._engine.beat_s, lease_s=SELF_END_S, directory=self._directory,
            checkpoint_s=self._engine.checkpoint_s,
        )  # fmt: skip

    async def _listen(
        self, name: str, incarnation: str, requests: AsyncIterator[pb.AgentMessage], up: Seal, outbox: _Outbox,
        context: Context,
    ) -> None:  # fmt: skip
        try:
            async for message in requests:
                self._engine.receive(name, incarnation, codec.up(up.check(readable(message))))
        except (RefusedError, AlteredError) as e:
            self._log(f"ended the session of host {name} ({_peer(context)}): {e}")
        except grpc.RpcError as e:
            self._log(f"the session of host {name} ended: {e}")
        finally:
            outbox.put(None)

    async def ReportLog(self, requests: AsyncIterator[pb.LogChunk], context: Context) -> pb.LogReceipt:
        count = 0
        try:
            up = self._seal(await self._admit(context, "ReportLog", None), "ReportLog", "up")
            async for message in requests:
                up.check(readable(message))
                while self._engine.unread >= BACKLOG:  # gRPC then reads no more from the agent, which keeps the rest
                    await asyncio.sleep(_PAUSE_S)
                self._engine.log(message.name, message.incarnation, codec.chunk(message))
                count += 1
        except (RefusedError, AlteredError) as e:
            await self._refuse(context, "ReportLog", _as_refusal(e))
        return pb.LogReceipt(chunks=count)

    # --- calls of the command line.

    async def Status(self, request: pb.StatusRequest, context: Context) -> Message:
        async def act() -> Message:
            return status.reply(self._engine, self._job, self._command, time.monotonic())

        return await self._answer(context, "Status", request, act)

    async def Resize(self, request: pb.ResizeRequest, context: Context) -> Message:
        async def act() -> Message:
            return pb.ResizeReply(answer=status.resize(self._engine, request.nodes))

        return await self._answer(context, "Resize", request, act)

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> Message:
        async def act() -> Message:
            self._log(f"the job was stopped from {_peer(context)}")
            self._engine.ask_stop()
            return pb.CancelReply(answer="the job is being stopped")

        return await self._answer(context, "Cancel", request, act)

    async def Logs(self, request: pb.LogsRequest, context: Context) -> AsyncIterator[pb.LogLine]:
        try:
            down = self._seal(await self._admit(context, "Logs", request), "Logs", "down")
        except RefusedError as e:
            await self._refuse(context, "Logs", e, request)
            return
        wanted = set(request.ranks)
        outbox: _Outbox = _Outbox(self._loop)
        self._followers.add(outbox)
        book = self._engine.logbook
        if request.after:
            lines = book.behind(request.after, outbox.put)
        else:
            lines = book.last(request.lines, outbox.put if request.follow else None)
        try:
            for line in lines:
                if not wanted or line.task.rank in wanted:
                    yield down.sign(_log_line(line))
            while request.follow and (line := await outbox.get()) is not None:
                if not wanted or line.task.rank in wanted:
                    yield down.sign(_log_line(line))
            if outbox.given_up:
                await context.abort(grpc.StatusCode.DATA_LOSS, "it was not read for too long; ask again for the rest")
            context.set_trailing_metadata(((END, down.end()),))
        finally:
            self._followers.discard(outbox)
            self._engine.logbook.leave(outbox.put)


class _OtherProtocols:  # a grpc.GenericRpcHandler
    """Answers calls of a meshrt whose protocol has another number, or other calls: people on both sides hear why."""

    def __init__(self, log: Callable[[str], None]):
        self._log = log

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """What answers a call; None to one that is not of meshrt."""
        method = str(handler_call_details.method)
        if not method.startswith("/meshrt.launch."):
            return None

        async def refuse(requests: AsyncIterator[bytes], context: Context) -> None:
            self._log(f"refused a call from {_peer(context)}: it is of another version of meshrt ({method[1:60]!r})")
            text = "the coordinator has another version of meshrt: install the same on all hosts"
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, text)

        return grpc.stream_stream_rpc_method_handler(refuse)


class _Outbox:
    """What goes to one caller, put in by any thread. One that does not read it is given up: its call ends."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop, self._home = loop, threading.get_ident()
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self.given_up = False

    def put(self, message: Down | Line | None) -> None:
        if threading.get_ident() == self._home:  # most answers are given where the question came
            self._keep(message)
            return
        try:
            self._loop.call_soon_threadsafe(self._keep, message)
        except RuntimeError:
            return  # the loop has ended, and the call with it

    def _keep(self, message: Any) -> None:
        if self.given_up:  # the call ends when its other side reads on, which may be never
            return
        self.given_up = self._queue.qsize() >= _QUEUE
        self._queue.put_nowait(None if self.given_up else message)

    def get(self) -> Coroutine[Any, Any, Any]:
        return self._queue.get()


def _credentials(context: Context, request: Message | None) -> tuple[str, str, str]:
    """The nonce and the proof that came with a call, and the digest that the proof is to be of."""
    given = dict(context.invocation_metadata() or ())
    digest = "stream" if request is None else Calls.digest(request)
    return str(given.get(NONCE, "")), str(given.get(PROOF, "")), digest


def _as_refusal(error: RefusedError | AlteredError) -> RefusedError:
    """What was altered on its way may come whole in another attempt."""
    return error if isinstance(error, RefusedError) else RefusedError(str(error), "DATA_LOSS")


def _connections() -> int:
    """How many callers there may be at once: strangers take no descriptor that the job's files and processes need."""
    files = open_files.limit()
    return max(files // 2, files - _OWN_FILES)


def _try_to_bind(host: str, port: int) -> None:
    """OSError with a reason, of which gRPC gives none."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        probe.listen()  # only now is a port taken that somebody listens at


def _peer(context: Context) -> str:
    """The address of who calls, as people write it: gRPC says `ipv4:127.0.0.1:40000`, `ipv6:%5B::1%5D:40000`, and
    nothing of one whose connection it has ended."""
    address = str(context.peer()).replace("%5B", "[").replace("%5D", "]").removeprefix("ipv4:").removeprefix("ipv6:")
    return address or "somebody who has gone"


def _log_line(line: Line) -> pb.LogLine:
    return pb.LogLine(
        host=line.host, task=codec.from_task(line.task), stderr=line.stderr, line=line.data, number=line.number
    )
