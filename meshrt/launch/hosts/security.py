"""Who may speak to whom: the job's secret, proofs that cross the wire in its place, and certificates of the job's own.

With certificates (certificates.py) both sides show theirs, which the job's own authority has signed, and everything
is encrypted. With a secret alone each call proves that the caller knows it, and the coordinator proves the same to
those who knock; what is said is signed (signing.py), and nothing is encrypted. Without either, only processes of the
same machine can be reached.
"""

from __future__ import annotations

import stat
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from meshrt.errors import ConfigError
from meshrt.launch.address import is_loopback
from meshrt.launch.environment import SECRET
from meshrt.launch.hosts.messages import RefusedError
from meshrt.launch.membership import frames

__all__ = ["SECRET_FILE", "Certificates", "Nonces", "Trust", "check_private", "read_secret"]

SECRET_FILE = "MESHRT_JOB_SECRET_FILE"
_NONCES = 65536
_NONCE_S = 60.0
_LEAST_SECRET = 16  # characters


@dataclass(frozen=True, slots=True)
class Certificates:
    """The contents of three PEM files: the job's authority, this side's certificate and its key."""

    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Trust:
    """What one side has to show, and asks of the other."""

    secret: str = field(default="", repr=False)
    certificates: Certificates | None = None

    def check_address(self, host: str) -> None:
        """ConfigError where strangers could reach `host`, and nothing keeps them out."""
        if not self.secret and self.certificates is None and not is_loopback(host):
            raise ConfigError(
                f"{host} can be reached from other machines: set {SECRET} (or {SECRET_FILE}, a file of mode 0600) on "
                "all hosts, or give --tls with certificates of `meshrt launch certificates`; without, only 127.0.0.1"
            )

    @property
    def signs(self) -> bool:
        """Whether what is said is signed: where a secret stands for certificates."""
        return bool(self.secret) and self.certificates is None

    def of_ranks(self, told: str) -> str:
        """The secret of the job's ranks, of what a coordinator tells its agents in place of it: who only listens to the
        network does not learn it."""
        return frames.proof(self.secret, "ranks", told) if self.secret else told

    def is_plain(self, host: str) -> bool:
        """Whether who listens to the network between here and `host` can read what is said."""
        return self.certificates is None and not is_loopback(host)


def read_secret(environ: Mapping[str, str]) -> str:
    """The job's secret, from the environment or the file that it names; empty without. ConfigError if it is too short,
    or its file can be read by others."""
    secret, name = environ.get(SECRET, ""), environ.get(SECRET_FILE, "")
    source = SECRET
    if not secret and name:
        source = f"{SECRET_FILE}={name}"
        try:
            check_private(Path(name))
            secret = Path(name).read_text().strip()
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"{source}: cannot be read: {getattr(e, 'strerror', None) or e}") from None
        if not secret:
            raise ConfigError(f"{source}: the file is empty")
    if secret and len(secret) < _LEAST_SECRET:
        raise ConfigError(f"{source}: the secret is shorter than {_LEAST_SECRET} characters, and could be guessed")
    return secret


def check_private(path: Path) -> None:
    """ConfigError if others than this user can read a file."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise ConfigError(f"{path}: others can read it (mode {mode:04o}); do: chmod 600 {path}")


class Nonces:
    """Numbers that were given out and count once, for a minute."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, float] = OrderedDict()

    def new(self, now: float) -> str:
        """One more."""
        while self._open and (len(self._open) >= _NONCES or next(iter(self._open.values())) < now - _NONCE_S):
            self._open.popitem(last=False)
        nonce = frames.new_nonce()
        self._open[nonce] = now
        return nonce

    def spend(self, nonce: str, proof: str, secret: str, method: str, digest: str, now: float) -> None:
        """RefusedError unless the nonce is open, and `proof` shows the secret for this call."""
        given = self._open.pop(nonce, None)
        if given is None or given < now - _NONCE_S:
            raise RefusedError("the call is too old, or was made before (its nonce is spent)", "UNAUTHENTICATED")
        if not frames.proves(proof, secret, "call", nonce, method, digest):
            raise RefusedError(f"it does not know this job's secret ({SECRET})", "PERMISSION_DENIED")
