"""Addresses of the coordination service, and what its two sides agree on."""

from __future__ import annotations

from meshrt.errors import DistributedError

# The door of a job (membership/) finds out who is lost. The runtime's own heartbeat, which can only abort everybody,
# is a fuse.
FUSE_S = 1000


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` as a pair. DistributedError for anything else."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise DistributedError(f"{address!r} is not an address; expected host:port, as in 10.0.0.1:8476")
    return host.removeprefix("[").removesuffix("]"), int(port)


def split_target(address: str) -> tuple[str, int]:
    """As `split_address`, of somewhere to connect to: port 0, which is any port of who listens, is nowhere."""
    host, port = split_address(address)
    if not port:
        raise DistributedError(
            f"{address!r}: nothing can be reached at port 0; give the port that the coordinator said"
        )
    return host, port


def join_address(host: str, port: int) -> str:
    """The inverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine reach an address."""
    return host in ("localhost", "::1") or host.startswith("127.")
