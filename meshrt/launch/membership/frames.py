"""Messages between the processes of a job and the door: one JSON object per line over TCP, read with limits.

Whoever connects is a stranger until it has shown that it knows the job's secret, which never crosses the wire: the door
sends a nonce, the process answers with a keyed digest of it, and the door proves itself in the same way. A job without
a secret takes everybody who can reach its door.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from meshrt.errors import DistributedError

__all__ = [
    "LINE_LIMIT",
    "STRANGER_LIMIT",
    "ClosedError",
    "FrameError",
    "Frames",
    "encode",
    "new_nonce",
    "new_secret",
    "proof",
    "proves",
    "receive",
]

STRANGER_LIMIT = 16 * 1024  # bytes of a line from somebody who has not proved anything yet
LINE_LIMIT = 8 << 20  # of one from a member: the text of a program, compressed, is the longest thing sent
_READ = 64 * 1024

Fields = dict[str, Any]


class FrameError(DistributedError):
    """A line that is no message: too long, or not a JSON object."""


class ClosedError(FrameError):
    """The other side closed the connection before it said what it was to say."""


def encode(kind: str, **fields: Any) -> bytes:
    """A message as it crosses the wire."""
    return json.dumps({"kind": kind, **fields}).encode() + b"\n"


def decode(line: bytes) -> Fields:
    """The fields of a message, `kind` among them. FrameError for anything else."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise FrameError(f"a line that is not JSON: {line[:60]!r}") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("kind"), str):
        raise FrameError(f"a line that is no message: {line[:60]!r}")
    return fields


class Frames:
    """Cuts what arrives on a socket into messages."""

    def __init__(self, limit: int = STRANGER_LIMIT):
        self.limit = limit
        self.waiting: list[Fields] = []  # taken already, for the next reader
        self._rest = b""

    def feed(self, data: bytes) -> list[Fields]:
        """The messages that `data` completes. FrameError for a line that is too long or no message."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        longest = max((len(line) for line in (*lines, self._rest)), default=0)
        if longest > self.limit:
            raise FrameError(f"a line of {longest} bytes, more than the {self.limit} that are allowed")
        return [decode(line) for line in lines]

    def take_rest(self) -> bytes:
        """What came behind the last whole message, when the connection goes on with something else."""
        rest, self._rest = self._rest, b""
        return rest


def receive(sock: socket.socket, frames: Frames) -> Fields:
    """The next message on a blocking socket, read up to its end and no further than that.

    ClosedError when it closes before; TimeoutError as the socket is set.
    """
    while True:
        data = sock.recv(_READ)
        if not data:
            raise ClosedError("the connection was closed")
        found = frames.feed(data)
        if found:
            assert len(found) == 1, "each side waits for the other's answer while they shake hands"
            return found[0]


def new_nonce() -> str:
    """A number that nobody can guess, used once."""
    return os.urandom(16).hex()


new_secret = new_nonce


def proof(secret: str, *parts: object) -> str:
    """What only somebody who has the secret can say of `parts`."""
    import hashlib  # start-up time: the launcher makes secrets and proves nothing, and all ranks wait for it
    import hmac

    text = json.dumps([str(part) for part in parts])
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def proves(given: object, secret: str, *parts: object) -> bool:
    """Whether `given` is the proof of `parts`, compared in constant time."""
    import hmac  # start-up time: as above

    # JSON can hold half a surrogate pair, which is no text.
    expected = proof(secret, *parts).encode()
    return isinstance(given, str) and hmac.compare_digest(given.encode("utf-8", "replace"), expected)
