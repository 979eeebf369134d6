"""Signatures of what is said in a call, where a secret stands for certificates: nobody on the way can change it.

Each call has keys of its own, one for each way, made of the job's secret and of the nonce that let the call in, which
counts once. Each message is signed with its number in the call. So none can be altered, left out, repeated, or brought
in from another call, unless the call ends by it. That a call ends, or is refused, is not signed: who stands on the way
can cut off a host in any case. Nothing is encrypted; of the ranks' secret only what is worth nothing without the job's
crosses the network (`Trust.of_ranks`).
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

from meshrt.errors import DistributedError
from meshrt.launch.hosts.security import Trust
from meshrt.launch.membership import frames

__all__ = ["AlteredError", "Seal"]

_BYTES = 16  # of a signature, enough for one that nobody can try out


class AlteredError(DistributedError):
    """A message was changed on its way, or is not of this call."""


class Seal:
    """Signs, or checks, the messages of one call in one direction, which have a field `mac`. With certificates, and
    where there is no secret, it does nothing.

    Args:
      trust: this side's.
      nonce: that let the call in.
      way: which call, and who speaks.
    """

    def __init__(self, trust: Trust, nonce: str, *way: str):
        self._on = bool(trust.secret) and trust.certificates is None
        self._key = frames.proof(trust.secret, "seal", nonce, *way).encode() if self._on else b""
        self._count = 0

    def sign(self, message: Any) -> Any:
        """The message, signed."""
        if self._on:
            message.mac = self._next(message)
        return message

    def check(self, message: Any) -> Any:
        """The message, which is as it was signed. AlteredError."""
        if self._on:
            given = bytes(message.mac)
            message.ClearField("mac")
            if not hmac.compare_digest(given, self._next(message)):
                raise AlteredError("a message was changed on its way: somebody on the network forges what is said")
        return message

    def _next(self, message: Any) -> bytes:
        self._count += 1
        data = self._count.to_bytes(8, "big") + message.SerializeToString(deterministic=True)
        # Measured: keyed BLAKE2 takes 0.5 us, HMAC 1.9 us, and thousands of hosts say each second that they live.
        return hashlib.blake2b(data, key=self._key, digest_size=_BYTES).digest()
