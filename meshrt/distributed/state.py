"""This process's place in its job, once it has one."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshrt.distributed.connection import Entrance
from meshrt.distributed.member import Member
from meshrt.runtime import backend, process_groups

if TYPE_CHECKING:
    from meshrt.launch.local_service import LocalService

__all__ = ["SHUTDOWN_S", "DistributedContext", "adopt", "context", "forget", "next_number"]

SHUTDOWN_S = 300.0  # how long a process that finished stays for its peers, as in JAX


@dataclass(frozen=True, slots=True)
class DistributedContext:
    """This process's place in the job and its connection: what the backend needs to show all devices.

    `client` is jaxlib's client of the coordination service, `node_id` this process's number among
    `num_nodes`, `local_address` the address of this host that its peers can reach, `service` the coordination
    service if this process started it, `launched` whether meshrt's launcher is in charge. `member` is this
    process's connection to the door of the job, which `entrance` led through. `local_device_ids` are the accelerators
    that it is restricted to (None: all), `shutdown_timeout_s` the seconds for which it stays for its peers at the end,
    and `carries` says whether it came from a former job of `elastic` that lost nobody, whose state can be carried.

    >>> job = meshrt.distributed.context()
    >>> (0, 1) if job is None else (job.node_id, job.num_nodes)
    (0, 1)
    """

    client: Any
    node_id: int
    num_nodes: int
    local_address: str = "127.0.0.1"
    local_device_ids: tuple[int, ...] | None = None
    service: LocalService | None = None
    launched: bool = False
    shutdown_timeout_s: float = SHUTDOWN_S
    member: Member | None = None
    entrance: Entrance | None = None
    carries: bool = False


_context: DistributedContext | None = None
_numbers: dict[str, int] = {}
_lock = threading.Lock()


def context() -> DistributedContext | None:
    """The connection of this process; None before `initialize` and after `shutdown`.

    >>> meshrt.distributed.context() is None
    True
    """
    return _context


def next_number(kind: str) -> int:
    """The number of a call of a kind that all processes of the job make in the same order: a name that they agree on.

    Each job counts from 0, also one that goes on with fewer processes: the loss may have interrupted those that are
    left in different calls.
    """
    with _lock:
        number = _numbers.get(kind, 0)
        _numbers[kind] = number + 1
    return number


def adopt(ctx: DistributedContext) -> None:
    """Makes `ctx` this process's place, and tells the runtime who its peers are; before it has started a client."""
    global _context
    backend.set_process_info(
        backend.ProcessInfo(ctx.client, ctx.node_id, ctx.num_nodes, ctx.local_address, ctx.local_device_ids)
    )
    process_groups.set_job(ctx.member)
    with _lock:
        _numbers.clear()
    _context = ctx


def forget() -> None:
    """This process has no place any more."""
    global _context
    _context = None
    backend.set_process_info(None)
    process_groups.set_job(None)
