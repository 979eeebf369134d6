"""Joins this process to the others of a job, so that ``meshrt.devices()`` shows the devices of all of them.

>>> import meshrt
>>> meshrt.distributed.initialize()          # first of all, in a script run by `meshrt launch`

Under ``meshrt launch``, srun, mpirun, an indexed Job of Kubernetes or on a TPU pod no argument is needed. Elsewhere
every process gives the three that identify it; process 0 then also runs the coordination service, as a child process.
As in JAX, a process that nothing identifies is an error rather than a job of one: hosts of a wrong cluster would
each train alone without a word. A script that must run either way asks first: ``if "MESHRT_COORDINATOR_ADDRESS" in
os.environ``.

What happens to one process reaches the others as `PeerLost`, in the call that needs the lost process; see
meshrt/launch/README.md. How a process leaves: after its script finished it waits for the others, since they may still
be in a collective with it. After an exception it prints the traceback and leaves at once, so that its peers hear of it
within a fraction of a second instead of waiting for it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from meshrt.core.tracebacks import offer
from meshrt.distributed import clusters, connection, leaving
from meshrt.distributed.elastic import elastic
from meshrt.distributed.leaving import note_failure
from meshrt.distributed.living import checkpoint_requested, live_devices, reached_preemption_sync_point
from meshrt.distributed.member import DOOR, Member
from meshrt.distributed.progress import checkpoint_committed, progress
from meshrt.distributed.state import SHUTDOWN_S, DistributedContext, adopt, context, forget
from meshrt.distributed.store import barrier, key_value_delete, key_value_get, key_value_set
from meshrt.errors import ConfigError, DistributedError, PeerLost, ProgramsDifferError
from meshrt.launch import bootstrap
from meshrt.launch.address import is_loopback, split_address
from meshrt.launch.environment import SECRET
from meshrt.launch.membership.patience import LEAST_SILENT_S, SILENT_S
from meshrt.runtime import backend

if TYPE_CHECKING:
    from meshrt.launch.local_service import LocalService

__all__ = [
    "DistributedContext", "PeerLost", "ProgramsDifferError", "barrier", "checkpoint_committed", "checkpoint_requested",
    "context", "elastic", "initialize", "is_initialized", "key_value_delete", "key_value_get", "key_value_set",
    "live_devices", "note_failure", "progress", "reached_preemption_sync_point", "shutdown",
]  # fmt: skip

# How long a process that finished stays for its peers beside a launcher: only for the collectives on their way, so that
# a peer which waits for more of them fails instead of hanging.
_LAUNCHED_SHUTDOWN_S = 30.0
STALL_TIMEOUT = "MESHRT_STALL_TIMEOUT"  # how long a process may keep others waiting in a program (process 0's counts)
_LAUNCHER_WAIT_S = 7 * 24 * 3600  # to come together beside a launcher, which ends the wait and says who is missing


_lock = threading.Lock()


def is_initialized() -> bool:
    """Whether this process is part of a job of several processes.

    >>> meshrt.distributed.is_initialized()
    False
    """
    return context() is not None


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: int | Sequence[int] | None = None,
    cluster_detection_method: str | None = None,
    initialization_timeout: int = 300,
    coordinator_bind_address: str | None = None,
    heartbeat_timeout_seconds: float | None = None,
    shutdown_timeout_seconds: int | None = None,
) -> None:
    """Connects this process to its peers; returns when all are connected. The signature is JAX's.

    `coordinator_address` (``host:port``), `num_processes` and `process_id` default to what `meshrt launch`
    set (``MESHRT_COORDINATOR_ADDRESS``, ``MESHRT_NUM_PROCESSES``, ``MESHRT_PROCESS_ID``), else to the same
    names with ``JAX_``, else to what Open MPI, Slurm (in a step of srun), MPICH, a TPU pod or Kubernetes say; all from
    one of them. `cluster_detection_method` names one of those ("ompi", "slurm", "mpich", "tpu", "k8s"; "deactivate"
    for none). `local_device_ids` restricts this process to some of its accelerators. Times are in seconds:
    `initialization_timeout` is how long the others are waited for, `shutdown_timeout_seconds` how long they are when
    this process leaves.

    Process 0 listens on the coordinator's address, or on `coordinator_bind_address`, and on no other. Where
    ``MESHRT_JOB_SECRET`` is set, only processes that have the same one may join. A process of which nothing is heard
    for `heartbeat_timeout_seconds` (default 8; process 0 decides) is lost.

    Raises ConfigError when nothing says who this process is or the values make no sense, DistributedError
    when called twice, after devices have been used, when the coordinator's name is unknown or nobody answers there, or
    when it does not let this process in, and PeerLost when a process is lost while they come together.

    >>> meshrt.distributed.initialize("host0:7733", num_processes=4, process_id=0)  # doctest: +SKIP
    """
    identity = clusters.identify(
        os.environ, coordinator_address, num_processes, process_id, local_device_ids, cluster_detection_method
    )
    silent_s = _silence(heartbeat_timeout_seconds)
    with _lock:
        if context() is not None:
            raise DistributedError("meshrt.distributed.initialize() was called before; it can be called only once")
        _check_no_backend()
        bootstrap.send(kind="joining")
        service = None
        if identity.process_id == 0 and not identity.launched:
            service = _start_service(
                coordinator_bind_address or connection.bind_address(identity.coordinator_address),
                identity.num_processes, silent_s, initialization_timeout,
            )  # fmt: skip
        try:
            joined = _join(identity, service, silent_s, initialization_timeout, shutdown_timeout_seconds)
        except BaseException:
            if service is not None:
                service.stop()
            raise
        adopt(joined)
        assert joined.member is not None  # of one that joined
        bootstrap.send(kind="meshed", round=joined.member.generation)
        leaving.install(is_initialized, _tell, _finish)


def _join(
    identity: clusters.Identity, service: LocalService | None, silent_s: float, init_s: float, shutdown_s: float | None
) -> DistributedContext:
    entrance = connection.enter(identity, init_s)
    member = Member(entrance, identity.process_id, silent_s)
    process, count, service_address, carries = identity.process_id, identity.num_processes, entrance.service, False
    try:
        if identity.joins is None:
            member.await_formed(_LAUNCHER_WAIT_S if identity.launched else init_s)
        else:
            place = member.await_place(_LAUNCHER_WAIT_S)
            process, count = int(place["process"]), int(place["processes"])
            service_address, carries = str(place["service"]), bool(place["whole"])
        client = connection.connect(entrance, service_address, process)
    except BaseException:
        member.close()
        raise
    if shutdown_s is None:
        shutdown_s = _LAUNCHED_SHUTDOWN_S if identity.launched else SHUTDOWN_S
    return DistributedContext(
        client, process, count, entrance.local_address, identity.local_device_ids, service,
        identity.launched, shutdown_s, member, entrance, carries,
    )  # fmt: skip


def shutdown() -> None:
    """Waits for all processes to call it, then disconnects. Nothing happens where `initialize` was not called.

    Raises DistributedError if not all come within the time that `initialize` was given for it.

    >>> meshrt.distributed.shutdown()
    """
    with _lock:
        ctx = context()
        if ctx is None:
            return
        assert ctx.member is not None  # of a context that `initialize` made
        _await_others(ctx, ctx.member)
        forget()
        ctx.member.close()
        if ctx.service is not None:
            ctx.service.stop()


def _await_others(ctx: DistributedContext, member: Member) -> None:
    """Waits until all processes have come here, since they may still be in a collective with this one.

    Raises:
      PeerLost: what was computed together is wrong, of which the script has not heard, and no launcher does; or this
      process was lost to the others before its script ended, whatever that made of it.
    """
    if member.process in member.lost and member.process not in member.at_odds:
        raise member.lost_error({member.process: member.lost[member.process]})
    ended = member.finish(ctx.shutdown_timeout_s)
    if member.untold and not ctx.launched:
        raise member.lost_error(member.untold)
    if member.process in member.lost:
        print(f"meshrt.distributed: {member.lost[member.process]}", file=sys.stderr)
    if ended:
        return
    if DOOR in member.lost:
        raise DistributedError(
            f"process {ctx.node_id} finished, and does not know whether the others do: {member.lost[DOOR]}"
        )
    message = (
        f"process {ctx.node_id} finished, but not all of {ctx.num_nodes} processes did within "
        f"{ctx.shutdown_timeout_s:g} s"
    )
    if not ctx.launched:
        raise DistributedError(f"{message}. If they need longer, give initialize(shutdown_timeout_seconds=...).")
    print(f"meshrt.distributed: {message}; it leaves without them", file=sys.stderr)


def _tell(why: str) -> None:
    ctx = context()
    if ctx is not None and ctx.member is not None:
        ctx.member.fail(why)


def _finish() -> int:
    """The end of a script that did not fail."""
    try:
        shutdown()
    except DistributedError as e:
        print(f"meshrt.distributed: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _silence(given: float | None) -> float:
    seconds = SILENT_S if given is None else given
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= LEAST_SILENT_S:
        raise ConfigError(
            f"heartbeat_timeout_seconds={given!r}: expected a time in seconds, at least {LEAST_SILENT_S:g}: processes "
            "say once a second that they live"
        )
    return float(seconds)


def _check_no_backend() -> None:
    """The devices of the other processes can only be shown by a client that is made afterwards."""
    if backend.is_created():
        raise DistributedError(
            "meshrt.distributed.initialize() must be called before devices are used: something before it asked for "
            "the devices, made an array or ran a program. Call it first in the script."
        )


def _start_service(bind: str, count: int, silent_s: float, timeout_s: float) -> LocalService:
    from meshrt.launch.local_service import LocalService  # start-up time: most processes never need it

    if not os.environ.get(SECRET) and not is_loopback(split_address(bind)[0]):
        print(
            f"meshrt.distributed: process 0 listens on {bind}, and without {SECRET} whoever reaches it may join: set "
            "the same secret in all processes",
            file=sys.stderr,
        )
    return LocalService.start(bind, count, silent_s, timeout_s, clusters.seconds(os.environ, STALL_TIMEOUT))


offer(globals(), __all__)
