"""From an address to a place in the job: finding the coordinator, entering by its door, reaching its service."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from meshrt.distributed.clusters import Identity
from meshrt.errors import DistributedError
from meshrt.launch.address import FUSE_S, join_address, split_address
from meshrt.launch.environment import SECRET
from meshrt.launch.membership import frames
from meshrt.launch.membership.neighbours import where
from meshrt.launch.membership.tunnel import Tunnel, reachable
from meshrt.version import __version__
from meshrt.xla import jaxlib_api, jaxlib_distributed

__all__ = ["Entrance", "bind_address", "connect", "enter"]

_PROBE_S = 0.05
_NAME_S = 3.0  # how long a name server that does not answer is asked again
_SAY_S = 10.0  # between words to the user while waiting
_SHAKE_S = 60.0  # for the door to answer: its process may still be starting
_INIT_S = 60  # all have entered: the service has them together at once


@dataclass(frozen=True, slots=True)
class Entrance:
    """An open door behind which this process is known."""

    sock: socket.socket
    frames: frames.Frames
    address: tuple[str, int]
    local_address: str
    service: str
    secret: str = field(repr=False)
    launched: bool = False  # a launcher watches the service, and says what its end means


def bind_address(coordinator_address: str) -> str:
    """Where process 0 listens for the others: on the coordinator's address and nowhere else.

    Only a name that means loopback to its own host, as Debian gives them, stands for all of its addresses.
    """
    host, port = split_address(coordinator_address)
    if host == "localhost":
        return f"127.0.0.1:{port}"
    try:
        ipaddress.ip_address(host)
    except ValueError:
        found = _resolve(host, port, time.monotonic() + _NAME_S, late=False)
        if all(ipaddress.ip_address(a).is_loopback for a in found):
            return f"[::]:{port}" if socket.has_dualstack_ipv6() else f"0.0.0.0:{port}"
        return join_address(found[0], port)
    return coordinator_address


def _resolve(host: str, port: int, deadline: float, late: bool) -> list[str]:
    """The addresses of a host. A name that nobody knows is an error at once, or at the `deadline` where names are made
    `late`, as the pods of a cluster start."""
    asked_until, said = time.monotonic() + _NAME_S, time.monotonic()
    while True:
        try:
            return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        except (socket.gaierror, UnicodeError) as e:
            now = time.monotonic()
            patient = late or (isinstance(e, socket.gaierror) and e.errno == socket.EAI_AGAIN and now < asked_until)
            if not patient or now >= deadline:
                raise DistributedError(
                    f"the coordinator's name {host!r} does not resolve: {e}. Give coordinator_address a name that this "
                    "host knows (try `getent hosts NAME`), or an address"
                ) from None
            if now - said > _SAY_S:
                said = now
                print(f"meshrt.distributed: waiting for the name {host} to appear: {e}", file=sys.stderr)
            time.sleep(0.5)


def enter(identity: Identity, timeout_s: float) -> Entrance:
    """Knocks until the door opens, and enters. DistributedError: nobody answers, or who answers does not let us in."""
    deadline = time.monotonic() + timeout_s
    while (found := _try_to_enter(identity, deadline, timeout_s)) is None:
        if time.monotonic() + _PROBE_S >= deadline:
            raise DistributedError(
                f"the door of the job at {identity.coordinator_address} had no room for this process within "
                f"{timeout_s:g} s: too many connect to it at once, or strangers hammer at it"
            )
        time.sleep(_PROBE_S)
    return found


def _try_to_enter(identity: Identity, deadline: float, timeout_s: float) -> Entrance | None:
    """As `enter`; None where this process had to make room for others at the door."""
    secret = os.environ.get(SECRET, "")
    sock, address = _knock(identity, deadline, timeout_s)
    cut, nonce = frames.Frames(), frames.new_nonce()
    hello: Mapping[str, Any] = {}
    try:
        hello = frames.receive(sock, cut)
        kind, place = "join", (identity.process_id, identity.num_processes)
        if identity.joins is not None:
            kind, place = "come", (identity.process_id, identity.joins)
        about = {
            "host": socket.gethostname(), "pid": os.getpid(), "where": where(),
            "versions": {"meshrt": __version__, "jaxlib": jaxlib_api.RELEASE},
        }  # fmt: skip
        sock.sendall(frames.encode(
            kind, process=place[0], processes=place[1], about=about, nonce=nonce,
            proof=frames.proof(secret, kind, hello.get("nonce", ""), *place),
        ))  # fmt: skip
        cut.limit = frames.LINE_LIMIT
        answer, *others = _answers(sock, cut)
    except (OSError, frames.FrameError) as e:
        sock.close()
        if hello.get("kind") == "hello" and isinstance(e, ConnectionError | frames.ClosedError):
            return None  # what the door said last was lost with the connection
        raise DistributedError(
            f"{identity.coordinator_address} answers, but not as the door of a job: {e}. Does another program listen "
            "there? Name process 0's host, and a port that is free on it"
        ) from None
    if answer["kind"] != "welcome":
        sock.close()
        if answer.get("again") is True:
            return None
        raise DistributedError(
            f"this process may not join the job at {identity.coordinator_address}: {answer.get('why')}"
        )
    if not frames.proves(answer.get("proof"), secret, "welcome", nonce):
        sock.close()
        raise DistributedError(
            f"{identity.coordinator_address} did not prove that it knows this job's secret ({SECRET}): is it the door "
            "of another job?"
        )
    sock.settimeout(None)
    cut.waiting += others
    service = str(answer["service"])
    return Entrance(sock, cut, address, str(sock.getsockname()[0]), service, secret, identity.launched)


def _answers(sock: socket.socket, cut: frames.Frames) -> list[dict[str, Any]]:
    """At least one message."""
    while True:
        data = sock.recv(1 << 16)
        if not data:
            raise frames.ClosedError("the connection was closed")
        if found := cut.feed(data):
            return found


def _knock(identity: Identity, deadline: float, timeout_s: float) -> tuple[socket.socket, tuple[str, int]]:
    host, port = split_address(identity.coordinator_address)
    last: OSError | None = None
    said = time.monotonic()
    while True:
        for address in _resolve(host, port, deadline, identity.late_names):
            try:
                sock = socket.create_connection((address, port), timeout=max(0.1, deadline - time.monotonic()))
            except OSError as e:
                last = e
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(_SHAKE_S)
            return sock, (address, port)
        now = time.monotonic()
        if now + _PROBE_S >= deadline:
            raise DistributedError(
                f"the coordinator at {identity.coordinator_address} could not be reached within {timeout_s:g} s: "
                f"{last}. Is process 0 running, and does the address name its host and port?"
            ) from None
        if now - said > _SAY_S:
            said = now
            print(
                f"meshrt.distributed: waiting for process 0 at {identity.coordinator_address}: {last}", file=sys.stderr
            )
        time.sleep(_PROBE_S)


def connect(entrance: Entrance, service: str, process_id: int) -> Any:
    """jaxlib's client, connected to the service behind the door."""
    here = reachable(service)
    if here and entrance.launched:
        address = service
    else:
        address = Tunnel(entrance.address, entrance.secret, service if here else None).address
    client = jaxlib_distributed.distributed_client(
        address, process_id, init_timeout_s=_INIT_S, heartbeat_timeout_s=FUSE_S, shutdown_timeout_s=_INIT_S
    )
    client.connect()
    return client
