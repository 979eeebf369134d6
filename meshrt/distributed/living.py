"""Which processes of the job live, and which are about to be ended."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from meshrt.distributed.state import DistributedContext, context
from meshrt.errors import ArgumentValueError, DistributedError, ProcessFailureError
from meshrt.runtime import jaxlib_api

__all__ = ["live_devices", "reached_preemption_sync_point"]

_preemption: Any = None
_preemption_lock = threading.Lock()


def reached_preemption_sync_point(step_id: int) -> bool:
    """Whether all processes have come to the step at which they should save, after one was told that it will be ended.

    The notice is a SIGTERM, which from the first call of this function on no longer ends the process. All processes
    start from the same step and call this at every one; when one gets notice, all agree on the next step that none has
    begun, and there this returns True once. In a job of one process without `meshrt.distributed` it returns False.

    >>> meshrt.distributed.reached_preemption_sync_point(3)
    False
    """
    global _preemption
    ctx = context()
    if ctx is None:
        return False
    with _preemption_lock:
        if _preemption is None:
            _preemption = jaxlib_api.preemption_manager(ctx.client)
    reached: bool = _preemption.reached_sync_point(int(step_id))
    return reached


class _LiveDevices:
    """`with live_devices(devices) as alive:` runs the block on the devices of processes that live.

    The processes of `devices` come together when the block begins and when it ends. At its end all of them agree:
    either the block ran in all, or a process died or raised meanwhile, and every process that is left gets a
    ProcessFailureError with the `failed_devices`. For the others to go on, nobody may end them: use no launcher that
    stops a job when a rank fails.

    Raises:
      DistributedError: `meshrt.distributed.initialize` has not been called. ArgumentValueError: no devices are given,
        or none of them belongs to this process.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], set[Any]] = {}  # as of the end of the last block

    @contextlib.contextmanager
    def __call__(self, devices: Sequence[Any]) -> Iterator[list[Any]]:
        ctx = context()
        if ctx is None:
            raise DistributedError(
                "live_devices: Distributed meshrt not initialized. Call meshrt.distributed.initialize() first"
            )
        if not devices:
            raise ArgumentValueError("live_devices: No devices provided; pass meshrt.devices(), for example")
        if all(d.process_index != ctx.node_id for d in devices):
            raise ArgumentValueError(
                "live_devices: Provided devices do not have any local devices; only processes that have some take part"
            )
        key = tuple(devices)
        before = self._known.get(key) or _alive(ctx, devices)
        failure: Exception | None = None
        try:
            yield sorted(before, key=lambda d: d.id)
        except Exception as e:  # whether it is this process's own error or a dead peer's, the end of the block tells
            failure = e
        self._known[key] = after = _alive(ctx, devices)
        failed = before - after
        if failed:
            raise ProcessFailureError(failed) from failure
        if failure is not None:
            raise failure


live_devices = _LiveDevices()


def _alive(ctx: DistributedContext, devices: Sequence[Any]) -> set[Any]:
    """The devices whose processes live, the same in all of them."""
    assert ctx.member is not None  # of a context that `initialize` made
    living = ctx.member.alive({d.process_index for d in devices})
    return {d for d in devices if d.process_index in living}
