"""Going on in the same processes with those that are left when one is lost or leaves, and with others that come."""

from __future__ import annotations

import dataclasses
import gc
import os
import sys
import types
from typing import Any

from meshrt.distributed import connection
from meshrt.distributed.carrying import carry
from meshrt.distributed.keeping import keep
from meshrt.distributed.member import Member
from meshrt.distributed.pieces import Kept
from meshrt.distributed.state import DistributedContext, adopt, context, forget
from meshrt.errors import ArgumentValueError, DistributedError, PeerLost
from meshrt.launch import bootstrap
from meshrt.launch.environment import ELASTIC
from meshrt.runtime import backend

__all__ = ["elastic"]


class elastic:
    """A block that is done once more in another job: a smaller one when a process is lost while it runs, or when some
    are to leave, a larger one when others come.

    >>> job = meshrt.distributed.elastic(min_processes=2)  # doctest: +SKIP
    >>> while not job.finished:  # doctest: +SKIP
    ...     with job:
    ...         mesh = meshrt.make_mesh((meshrt.device_count(),), ("data",))
    ...         split = NamedSharding(mesh, PartitionSpec("data"))
    ...         state = job.carried({"weights": split, "step": 0}) or restore(checkpoint, split)
    ...         while state["step"] < steps:
    ...             state = train_step(state)
    ...             if job.grows(state):
    ...                 break

    A PeerLost that leaves the block is taken: the processes that are left come together under new numbers, in the order
    of the old ones, and `meshrt.devices()` gives their devices. Then `generation` is one more, and `finished` is false.
    Arrays, meshes and compiled functions' arrays of the former job are of no use any more: make them in the block, from
    a checkpoint or from values on the host. All processes must use it alike.

    Processes that come are let in where :meth:`grows` says so, and those that the launcher asks to leave do it there,
    whose scripts end at the end of the block by ``SystemExit(0)``; :meth:`carried` then gives the state to all others.

    Args:
      min_processes: with fewer left the PeerLost goes on to the caller, so that whoever started the job can start it
        again. So it does under `meshrt launch` without `--elastic`, which starts all ranks again (`--max-restarts`).
      timeout_seconds: how long the processes may take to come together.

    Raises:
      ArgumentValueError: `min_processes` is no whole number from 1 on. DistributedError: the block is entered in a
        process that is in no job, or the processes that are left do not come together in time.
    """

    def __init__(self, min_processes: int = 1, timeout_seconds: float = 60.0):
        if type(min_processes) is not int or min_processes < 1:
            raise ArgumentValueError(f"elastic: min_processes={min_processes!r}: expected a whole number, at least 1")
        self.finished = False
        self.generation = 0
        self._min, self._timeout_s = min_processes, timeout_seconds
        self._leaving = False
        self._kept: Kept | None = None
        self._told = False

    def __enter__(self) -> elastic:
        ctx = context()
        if ctx is None:
            raise DistributedError("elastic: this process is in no job; call meshrt.distributed.initialize() first")
        self._leaving = False
        self.generation = max(self.generation, _member(ctx).generation)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> bool:
        ctx = context()
        if error is None and (not self._leaving or ctx is None):
            self.finished = True
            return False
        if error is not None:
            if not isinstance(error, PeerLost) or ctx is None or not self._can_go_on(ctx):
                return False
            print(f"meshrt.distributed: going on without those that were lost: {error}", file=sys.stderr, flush=True)
            self._kept = None
        assert ctx is not None  # so much was asked above
        if error is None and ctx.node_id in _member(ctx).without:
            _part(ctx, self._timeout_s)
            raise SystemExit(0)
        _regroup(ctx, self._timeout_s)
        self.generation += 1
        return True

    def grows(self, state: Any = None) -> bool:
        """Whether the block is to be left here, since others wait to join or some are to leave; the same in all
        processes.

        Ask behind each step, in all processes alike. While nobody waits it costs nothing. When it is true, `state` has
        been kept in the memory of the processes that stay, to which those that leave have handed over what they alone
        held; leave the block, and the next one runs in the larger or smaller job.

        Args:
          state: a pytree of arrays, sharded or not, and of Python numbers and texts. Of what each process has for
            itself, that of the first one that stays counts.

        Raises:
          DistributedError: it was true before in this block, or this process is in no job. ArgumentTypeError: a leaf of
            the state cannot be carried. PeerLost: a process is lost while all come here.

        >>> meshrt.distributed.elastic().grows()
        Traceback (most recent call last):
            ...
        meshrt.errors.DistributedError: elastic.grows: this process is in no job; call it in the block of `with job:`
        """
        ctx = context()
        if ctx is None:
            raise DistributedError("elastic.grows: this process is in no job; call it in the block of `with job:`")
        if self._leaving:
            raise DistributedError("elastic.grows: it was true before in this block, which is to be left then")
        if not self._told and ELASTIC in os.environ:
            self._told = True
            bootstrap.send(kind="growable")
        if _member(ctx).lets_in():
            member = _member(ctx)
            self._kept = None if state is None else keep(state, ctx.node_id, ctx.num_nodes, member.without)
            self._leaving = True
        return self._leaving

    def carried(self, like: Any) -> Any:
        """The state that was given to :meth:`grows`, as arrays of this job; None if there is none to carry.

        None comes first of all, after a loss, and the second time in a block; the answer is the same in all processes,
        and all must call it alike, those that have come too.

        Args:
          like: a pytree of the state's structure, with a Sharding over this job's devices wherever an array is to be
            made. Elsewhere NumPy arrays, Python numbers and texts are as they were.

        Raises:
          ArgumentValueError: its leaves are others than those of the state. ArgumentTypeError: a PartitionSpec in place
            of a sharding. PeerLost: a process is lost meanwhile.

        >>> meshrt.distributed.elastic().carried(0) is None
        True
        """
        ctx, (kept, self._kept) = context(), (self._kept, None)
        if ctx is None or not ctx.carries or _member(ctx).carried == _member(ctx).generation:
            return None
        _member(ctx).carried = _member(ctx).generation
        return carry(kept, ctx, _member(ctx).carried, like)

    def _can_go_on(self, ctx: DistributedContext) -> bool:
        member = _member(ctx)
        member.await_loss(self._timeout_s)  # a broken connection is noticed here before the door tells whose
        lost = set(member.lost)
        return (
            bool(lost)
            and lost <= set(range(ctx.num_nodes)) - {ctx.node_id}
            and (not ctx.launched or ELASTIC in os.environ)
            and ctx.num_nodes - len(lost) >= self._min
        )


def _member(ctx: DistributedContext) -> Member:
    assert ctx.member is not None  # of a context that `initialize` made
    return ctx.member


def _part(ctx: DistributedContext, timeout_s: float) -> None:
    """Leaves the others, which have what this process held."""
    member = _member(ctx)
    bootstrap.send(kind="left")
    text = f"process {ctx.node_id} leaves the job, which goes on with fewer"
    print(f"meshrt.distributed: {text}", file=sys.stderr, flush=True)
    member.part(timeout_s)  # the others may be about to receive what it handed over
    forget()
    member.close()
    backend.clear_backends()
    gc.collect()


def _regroup(ctx: DistributedContext, timeout_s: float) -> None:
    """Lets go of the former job's devices, and enters the next one."""
    assert ctx.entrance is not None  # as above
    backend.clear_backends()
    gc.collect()
    place = _member(ctx).regroup(timeout_s)
    process, count, whole = int(place["process"]), int(place["processes"]), bool(place["whole"])
    # The former service stays, behind the same door: what the user still holds of it does no harm.
    client = connection.connect(ctx.entrance, str(place["service"]), process)
    adopt(dataclasses.replace(ctx, client=client, node_id=process, num_nodes=count, carries=whole))
    bootstrap.send(kind="meshed", round=_member(ctx).generation)
