"""Going on with the processes that are left when one is lost, without starting anything again."""

from __future__ import annotations

import dataclasses
import gc
import os
import sys
import types

from meshrt.distributed import connection
from meshrt.distributed.state import DistributedContext, adopt, context
from meshrt.errors import ArgumentValueError, DistributedError, PeerLost
from meshrt.launch import bootstrap
from meshrt.launch.environment import ELASTIC
from meshrt.runtime import backend

__all__ = ["elastic"]


class elastic:
    """A block that is done once more, in a smaller job, when a process is lost while it runs.

    >>> job = meshrt.distributed.elastic(min_processes=2)  # doctest: +SKIP
    >>> while not job.finished:  # doctest: +SKIP
    ...     with job:
    ...         mesh = meshrt.make_mesh((meshrt.device_count(),), ("data",))
    ...         train(mesh, restore(checkpoint))

    A PeerLost that leaves the block is taken: the processes that are left come together under new numbers, in the order
    of the old ones, and `meshrt.devices()` gives their devices. Then `generation` is one more, and `finished` is false.
    Arrays, meshes and compiled functions' arrays of the former job are of no use any more: make them in the block, from
    a checkpoint or from values on the host. All processes must use it alike.

    Args:
      min_processes: with fewer left the PeerLost goes on to the caller, so that whoever started the job can start it
        again. So it does under `meshrt launch` without `--elastic`, which starts all ranks again (`--max-restarts`).
      timeout_seconds: how long those that are left may take to come together.
    """

    def __init__(self, min_processes: int = 1, timeout_seconds: float = 60.0):
        if type(min_processes) is not int or min_processes < 1:
            raise ArgumentValueError(f"elastic: min_processes={min_processes!r}: expected a whole number, at least 1")
        self.finished = False
        self.generation = 0
        self._min, self._timeout_s = min_processes, timeout_seconds

    def __enter__(self) -> elastic:
        if context() is None:
            raise DistributedError("elastic: this process is in no job; call meshrt.distributed.initialize() first")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> bool:
        if error is None:
            self.finished = True
            return False
        ctx = context()
        if not isinstance(error, PeerLost) or ctx is None or not self._can_go_on(ctx):
            return False
        print(f"meshrt.distributed: going on without those that were lost: {error}", file=sys.stderr, flush=True)
        _regroup(ctx, self._timeout_s)
        self.generation += 1
        return True

    def _can_go_on(self, ctx: DistributedContext) -> bool:
        assert ctx.member is not None  # of a context that `initialize` made
        ctx.member.await_loss(self._timeout_s)  # a broken connection is noticed here before the door tells whose
        lost = set(ctx.member.lost)
        return (
            bool(lost)
            and lost <= set(range(ctx.num_nodes)) - {ctx.node_id}
            and (not ctx.launched or ELASTIC in os.environ)
            and ctx.num_nodes - len(lost) >= self._min
        )


def _regroup(ctx: DistributedContext, timeout_s: float) -> None:
    """Lets go of the former job's devices, and enters the smaller one."""
    assert ctx.member is not None and ctx.entrance is not None
    backend.clear_backends()
    gc.collect()
    place = ctx.member.regroup(timeout_s)
    process = int(place["process"])
    # The former service stays, behind the same door: what the user still holds of it does no harm.
    client = connection.connect(ctx.entrance, str(place["service"]), process)
    adopt(dataclasses.replace(ctx, client=client, node_id=process, num_nodes=int(place["processes"])))
    bootstrap.send(kind="meshed")
