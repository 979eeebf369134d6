"""Calling a coordinator: the channel, the proofs that go with each call, and its refusals in one line."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from typing import Any

# gRPC's own care for forks stops its threads around each process that an agent starts, and says so on stderr.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
from google.protobuf.message import Message

from meshrt.errors import ConfigError, DistributedError
from meshrt.launch.environment import SECRET
from meshrt.launch.hosts import codec
from meshrt.launch.hosts.messages import RefusedError, plain
from meshrt.launch.hosts.security import SECRET_FILE, Trust
from meshrt.launch.hosts.signing import AlteredError, Seal
from meshrt.launch.hosts.wire import coordinator_pb2 as pb
from meshrt.launch.hosts.wire import coordinator_pb2_grpc as stubs
from meshrt.launch.membership import frames

__all__ = ["END", "NONCE", "PROOF", "REFUSAL", "UNPROVED", "Calls", "broken", "unreachable"]

NONCE, PROOF = "meshrt-nonce", "meshrt-proof"  # of a call, as metadata
REFUSAL, END = "meshrt-refusal", "meshrt-end"  # and behind its answer
UNPROVED = "meshrt-unproved"  # with a knock: the answer to the one before was no proof

_CALL_S = 10.0
_OPTIONS = (
    ("grpc.max_receive_message_length", 64 * codec.MESSAGE_LIMIT),  # of a coordinator that has proved itself
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
)
# Those with which a coordinator means no, or not like this; all others are of the network, or pass.
_REFUSALS = {
    grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.ABORTED,
}  # fmt: skip


class Calls:
    """A channel to the coordinator at `address`, which proves itself before anything is asked of it."""

    def __init__(self, address: str, trust: Trust):
        self._trust, self.address = trust, address
        self._made: dict[str, str] = {}  # the method of each call, by its nonce
        certificates = trust.certificates
        if certificates is None:
            self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        else:
            # Optional wheel: certificates need `cryptography`, a secret does not.
            from meshrt.launch.hosts.certificates import CERTIFIED_NAME

            credentials = grpc.ssl_channel_credentials(
                certificates.authority, certificates.key, certificates.certificate
            )
            named = (("grpc.ssl_target_name_override", CERTIFIED_NAME),)
            self._channel = grpc.secure_channel(address, credentials, options=(*_OPTIONS, *named))
        self._stub = stubs.CoordinatorStub(self._channel)

    @staticmethod
    def digest(request: Message) -> str:
        """What a proof says of a request's content."""
        return hashlib.sha256(request.SerializeToString(deterministic=True)).hexdigest()

    def close(self) -> None:
        """Ends all calls."""
        self._channel.close()

    def knock(self) -> str:
        """A nonce for one call. RefusedError if who answers does not know the job's secret; grpc.RpcError."""
        own = frames.new_nonce()
        reply = self._stub.Knock(pb.KnockRequest(nonce=own), timeout=_CALL_S)
        if not frames.proves(reply.proof, self._trust.secret, "coordinator", own, reply.nonce):
            self._say_unproved(own)
            raise RefusedError(self._unproved(), "PERMISSION_DENIED")
        return str(reply.nonce)

    def _unproved(self) -> str:
        if not self._trust.secret:
            return f"{self.address} has a secret for its job, and none is given here: set {SECRET}, or {SECRET_FILE}"
        return (
            f"{self.address} did not prove that it knows this job's secret: it is of another job, or the secrets differ"
        )

    def _say_unproved(self, nonce: str) -> None:
        """Who listens there may know nothing of it otherwise: no call follows."""
        try:
            self._stub.Knock(pb.KnockRequest(nonce=nonce), metadata=((UNPROVED, "1"),), timeout=_CALL_S)
        except grpc.RpcError:
            return  # whoever it is, it need not know

    def call(self, method: str, request: Message, nonce: str | None = None) -> Any:
        """A call with one answer. RefusedError, AlteredError, grpc.RpcError."""
        nonce = nonce or self.knock()
        metadata = self._metadata(method, self.digest(request), nonce)
        reply = getattr(self._stub, method)(request, metadata=metadata, timeout=_CALL_S)
        return Seal(self._trust, nonce, method, "down").check(reply)

    def listen(self, method: str, request: Message) -> Iterable[Any]:
        """A call that is answered by a stream, for as long as it takes. AlteredError if not all of it comes."""
        nonce = self.knock()
        metadata = self._metadata(method, self.digest(request), nonce)
        seal = Seal(self._trust, nonce, method, "down")
        return _Answers(getattr(self._stub, method)(request, metadata=metadata), seal, ends=True)

    def stream(self, method: str, requests: Iterable[Message], nonce: str) -> Any:
        """A call that sends a stream, and is answered by one, or in the end."""
        up, down = (Seal(self._trust, nonce, method, way) for way in ("up", "down"))
        signed = (up.sign(request) for request in requests)
        answer = getattr(self._stub, method)(signed, metadata=self._metadata(method, "stream", nonce))
        return answer if isinstance(answer, Message) else _Answers(answer, down)

    def _metadata(self, method: str, digest: str, nonce: str) -> tuple[tuple[str, str], ...]:
        self._made[nonce] = method
        return ((NONCE, nonce), (PROOF, frames.proof(self._trust.secret, "call", nonce, method, digest)))

    def refusal(self, error: grpc.RpcError) -> RefusedError | None:
        """What the coordinator said in refusing a call of these; None where it said nothing, where another attempt may
        help, and where somebody else may have said it."""
        code, details = error.code(), str(error.details())
        if code not in _REFUSALS:
            return None
        return RefusedError(plain(details), code.name) if self._is_proved(error, code.name, details) else None

    def _is_proved(self, error: grpc.RpcError, code: str, details: str) -> bool:
        if not self._trust.signs:
            return True
        given = dict(error.trailing_metadata() or ())
        nonce = str(given.get(NONCE, ""))
        known = (nonce, self._made.get(nonce, ""), code, details)
        return nonce in self._made and frames.proves(given.get(REFUSAL), self._trust.secret, "refusal", *known)


class _Answers:
    """The answers of a call, each checked as it comes: AlteredError."""

    def __init__(self, call: Any, seal: Seal, ends: bool = False):
        self._call, self._seal, self._ends = call, seal, ends

    def __iter__(self) -> Iterator[Any]:
        for answer in self._call:
            try:
                yield self._seal.check(answer)
            except AlteredError:
                self._call.cancel()
                raise
        if self._ends:
            self._seal.check_end(dict(self._call.trailing_metadata() or ()).get(END))

    def cancel(self) -> None:
        """Ends the call."""
        self._call.cancel()


def unreachable(address: str, error: grpc.RpcError) -> ConfigError:
    """For people: why nobody could be spoken to."""
    details = _details(error)
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return ConfigError(
            f"what answers at {address} does not speak this meshrt's protocol ({details}): install the same version of "
            "meshrt on all hosts, if that is the job's coordinator"
        )
    if error.code() in _REFUSALS:
        return ConfigError(
            f"somebody at {address} refuses the call ({details}), and does not prove to know this job's secret: it may "
            "be forged on its way"
        )
    hint = "it does not run there, is behind a firewall, or one side uses --tls and the other does not"
    if "resolv" in details or "lookup" in details:
        return ConfigError(f"no coordinator answers at {address}: there is no host of that name")
    if "CERTIFICATE" in details.upper() or "handshake" in details.lower():
        hint = "the certificates of the two sides are not of one job, or have expired"
    elif "Socket closed" in details or "reset" in details:
        hint = (
            "what runs there ends the connection: one side uses --tls and the other does not, or the certificate of "
            "this side is of another job, or has expired"
        )
    return ConfigError(f"no coordinator answers at {address} ({details}); {hint}")


def broken(address: str, error: grpc.RpcError) -> DistributedError:
    """For people: why one who was spoken to is not there any more."""
    return DistributedError(f"the connection to the coordinator at {address} broke ({_details(error)})")


def _details(error: grpc.RpcError) -> str:
    """What gRPC says of it, without the story of its attempts."""
    words = plain(str(error.details() or "").partition("\n")[0]) or str(error.code().name)
    if "OPENSSL_internal:" in words:
        return words.rpartition("OPENSSL_internal:")[2].removesuffix(": OK")
    return words.rpartition(": ")[2] if "last error:" in words else words
