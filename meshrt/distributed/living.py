"""Which processes of the job live, and which are about to be ended."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from meshrt.distributed.progress import check_count
from meshrt.distributed.state import DistributedContext, context
from meshrt.errors import ArgumentValueError, DistributedError, ProcessFailureError
from meshrt.launch import bootstrap
from meshrt.xla import jaxlib_distributed

__all__ = ["checkpoint_requested", "live_devices", "reached_preemption_sync_point"]

_preemption: tuple[Any, Any] | None = None  # the client of the job, and what hears of notices in it
_preemption_lock = threading.Lock()
_notice: _Notice | None = None  # in a process that is in no job
_saving = False  # the last answer was that it is to save


class _Notice:
    """Whether this process was told that it will be ended, from when this is made."""

    def __init__(self) -> None:
        self._given = False
        signal.signal(signal.SIGTERM, self._take)

    def _take(self, number: int, frame: object) -> None:
        self._given = True

    def take(self) -> bool:
        """Whether a notice has come since it was last asked for."""
        given, self._given = self._given, False
        return given


def checkpoint_requested(step: int) -> bool:
    """Whether to save a checkpoint at this step, because the job is about to be ended; the same in all processes.

    Ask at every step, in all processes with the same numbers. SIGTERM to any of them is the request, be it from a
    cluster that takes a host away, from `meshrt launch stop`, or from the launcher, which makes the job larger or
    ends it. It no longer ends the process, and all agree on the next step that none has begun. The launcher then
    waits for `--checkpoint-timeout` in place of `--grace`, and after a checkpoint of a later step than ever before a
    job has all of its restarts again. Processes that end without asking about another step have not done their work,
    also with exit code 0: the job starts again within `--max-restarts`, or ends with exit code 143.

    In a process that is in no job the main thread asks first.

    Raises:
      ArgumentValueError: `step` is no whole number from 0 on. DistributedError: a thread asks first in a process that
        is in no job, since only the main thread can hear signals.

    >>> for step in range(100):  # doctest: +SKIP
    ...     state = train_step(state)
    ...     if meshrt.distributed.checkpoint_requested(step):
    ...         manager.save(step, state)
    ...         break
    """
    global _notice
    check_count("checkpoint_requested", "step", step)
    if context() is not None:
        return reached_preemption_sync_point(step)
    if _notice is None:
        if threading.current_thread() is not threading.main_thread():
            raise DistributedError(
                "checkpoint_requested: only the main thread can hear SIGTERM. Ask there once, before others do"
            )
        _notice = _Notice()
        bootstrap.send(kind="attentive")
    return _told(_notice.take())


def _told(saves: bool) -> bool:
    """An answer; the launcher knows of the last one, so that a process which then ends has not ended its work."""
    global _saving
    if saves != _saving:
        _saving = saves
        bootstrap.send(kind="attentive", saving=saves)
    return saves


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
        if _preemption is None or _preemption[0] is not ctx.client:
            _preemption = ctx.client, jaxlib_distributed.preemption_manager(ctx.client)
            bootstrap.send(kind="attentive")
        manager = _preemption[1]
    return _told(bool(manager.reached_sync_point(int(step_id))))


class _LiveDevices:
    """`with live_devices(devices) as alive:` runs the block on the devices of processes that live.

    The processes of `devices` come together when the block begins and when it ends. At its end all of them agree:
    either the block ran in all, or a process died or raised meanwhile, and every process that is left gets a
    ProcessFailureError with the `failed_devices`. For the others to go on, nobody may end them: use no launcher that
    stops a job when a rank fails.

    Raises:
      DistributedError: `meshrt.distributed.initialize` has not been called. ArgumentValueError: no devices are given,
        or none of them belongs to this process. ProcessFailureError: at the end of the block, as said above; what the
        block raised is its cause. PeerLost: the job has given this process up.

    >>> with meshrt.distributed.live_devices(meshrt.devices()) as alive:  # doctest: +SKIP
    ...     state = train_step(state, alive)
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
