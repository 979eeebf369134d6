"""Small values that the processes of a job leave for each other, and places where they meet.

Values are kept by the coordination service until the job ends or they are deleted. Waiting ends early, with PeerLost,
when a process of the job is lost.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from meshrt.distributed.state import DistributedContext, context
from meshrt.errors import ArgumentTypeError, DistributedError, PeerLost
from meshrt.xla import jaxlib_api

__all__ = ["barrier", "key_value_delete", "key_value_get", "key_value_set", "read"]

_SLICE_S = 0.5  # between looks at whether somebody has been lost
_PREFIX = "user/"  # apart from what meshrt and jaxlib keep there


def key_value_set(key: str, value: str | bytes) -> None:
    """Leaves `value` under `key` for all processes; text is kept as UTF-8.

    Raises:
      DistributedError: there is a value under `key` already, the service refuses it, or this process is in no job.
      ArgumentTypeError: `value` is neither text nor bytes.

    >>> meshrt.distributed.key_value_set("port", "4711")  # doctest: +SKIP
    """
    if not isinstance(value, str | bytes):
        raise ArgumentTypeError(f"key_value_set: expected text or bytes for {key!r}. Got {type(value).__name__}")
    data = value.encode() if isinstance(value, str) else value
    try:
        _place().client.key_value_set_bytes(_PREFIX + key, data)
    except jaxlib_api.XlaError as e:
        raise DistributedError(f"key_value_set: {key!r} cannot be set: {e}. Delete it first, or use a new key") from e


def key_value_get(key: str, timeout_seconds: float = 300.0) -> bytes:
    """What a process left under `key`; waits until one does.

    Raises:
      DistributedError: none does within `timeout_seconds`, the service fails, or this process is in no job.
      PeerLost: a process of the job is lost meanwhile.

    >>> meshrt.distributed.key_value_get("port")  # doctest: +SKIP
    b'4711'
    """
    try:
        found = read(_place(), _PREFIX + key, timeout_seconds)
    except jaxlib_api.XlaError as e:
        raise DistributedError(f"key_value_get: {key!r} cannot be read: {e}") from e
    if found is None:
        raise DistributedError(
            f"key_value_get: no process has set {key!r} within {timeout_seconds:g} s. Does one call "
            "key_value_set with the same key?"
        )
    return found


def read(ctx: DistributedContext, key: str, timeout_s: float) -> bytes | None:
    """What is under a key of the service, or comes there within `timeout_s`; None if nothing does.

    PeerLost if a process of the job is lost meanwhile; XlaError if the service fails.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        left = deadline - time.monotonic()
        try:
            found: bytes = ctx.client.blocking_key_value_get_bytes(key, int(1000 * max(0.001, min(_SLICE_S, left))))
            return found
        except jaxlib_api.XlaError as e:
            if "DEADLINE_EXCEEDED" not in str(e):
                raise
            if ctx.member is not None and ctx.member.lost:
                raise ctx.member.lost_error(ctx.member.lost) from None
            if left <= _SLICE_S:
                return None


def key_value_delete(key: str) -> None:
    """Removes what is under `key`; nothing happens where nothing is.

    Raises:
      DistributedError: the service fails, or this process is in no job.

    >>> meshrt.distributed.key_value_delete("port")  # doctest: +SKIP
    """
    try:
        _place().client.key_value_delete(_PREFIX + key)
    except jaxlib_api.XlaError as e:
        raise DistributedError(f"key_value_delete: {key!r} cannot be removed: {e}") from e


def barrier(name: str, timeout_seconds: float = 300.0, processes: Collection[int] | None = None) -> None:
    """Returns when all processes, or those of `processes`, have come to the barrier of this name.

    Raises:
      PeerLost: one of them is lost or has ended its script.
      DistributedError: not all come within `timeout_seconds`, or this process is none of them, or in no job.

    >>> meshrt.distributed.barrier("data is written")  # doctest: +SKIP
    """
    ctx = _place()
    expected = sorted(range(ctx.num_nodes) if processes is None else set(processes))
    assert ctx.member is not None  # of a context that `initialize` made
    if ctx.node_id not in expected:
        raise DistributedError(f"barrier {name!r}: process {ctx.node_id} is not one of {expected}")
    came = ctx.member.alive(expected, f"barrier {name}", timeout_seconds)
    if came != expected:
        gone = sorted(set(expected) - set(came))
        why = "; ".join(ctx.member.lost.get(p, f"process {p} ended its script") for p in gone)
        ctx.member.note_told(gone)
        raise PeerLost(f"barrier {name!r}: {why}", gone)


def _place() -> DistributedContext:
    ctx = context()
    if ctx is None:
        raise DistributedError("this process is in no job; call meshrt.distributed.initialize() first")
    return ctx
