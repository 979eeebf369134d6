"""Joins this process to the others of a job, so that ``meshrt.devices()`` shows the devices of all of them.

>>> import meshrt
>>> meshrt.distributed.initialize()          # first of all, in a script run by `meshrt launch`

Under ``meshrt launch`` no argument is needed. Without a launcher, every process gives the three that identify
it; process 0 then also runs the coordination service, as a child process. As in JAX, a process that nothing
identifies is an error rather than a job of one: hosts of a wrongly configured cluster would each train alone
without a word. A script that must run either way asks first: ``if "MESHRT_COORDINATOR_ADDRESS" in
os.environ``.

How a process leaves: after its script finished it waits for the others, since they may still be in a
collective with it. After an exception it prints the traceback and leaves at once, so that its peers'
collectives fail within a fraction of a second instead of waiting for it.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshrt.config import settings
from meshrt.errors import ConfigError, DistributedError
from meshrt.launch import bootstrap, environment
from meshrt.launch.address import HEARTBEAT_S, split_address
from meshrt.runtime import backend, jaxlib_api

if TYPE_CHECKING:
    from meshrt.launch.local_service import LocalService

__all__ = ["DistributedContext", "context", "initialize", "is_initialized", "shutdown"]

_EXIT_BARRIER = "meshrt/exit"
_LAUNCHER_WAIT_S = 7 * 24 * 3600  # to connect beside a launcher, which ends the wait and says who is missing
# How long a process that finished stays for its peers: without a launcher as JAX, since process 0 holds the
# service; beside one only for the collectives on their way, so that a peer which waits for more of them fails
# instead of hanging.
_SHUTDOWN_S, _LAUNCHED_SHUTDOWN_S = 300, 30
_PROBE_S = 0.05


@dataclass(frozen=True, slots=True)
class DistributedContext:
    """This process's place in the job and its connection: what the backend needs to show all devices.

    `client` is jaxlib's client of the coordination service, `node_id` this process's number among
    `num_nodes`, `local_address` the address of this host that its peers can reach, `service` the coordination
    service if this process started it, `launched` whether meshrt's launcher is in charge.
    """

    client: Any
    node_id: int
    num_nodes: int
    local_address: str = "127.0.0.1"
    local_device_ids: tuple[int, ...] | None = None
    service: LocalService | None = None
    launched: bool = False
    shutdown_timeout_s: int = 300


@dataclass(frozen=True, slots=True)
class _Identity:
    coordinator_address: str
    num_processes: int
    process_id: int
    local_device_ids: tuple[int, ...] | None
    launched: bool


_lock = threading.Lock()
_context: DistributedContext | None = None
_failed: int | None = None  # the exit code with which this process is leaving


def context() -> DistributedContext | None:
    """The connection of this process; None before `initialize` and after `shutdown`."""
    return _context


def is_initialized() -> bool:
    """Whether this process is part of a job of several processes."""
    return _context is not None


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: int | Sequence[int] | None = None,
    cluster_detection_method: str | None = None,
    initialization_timeout: int = 300,
    coordinator_bind_address: str | None = None,
    heartbeat_timeout_seconds: int = 100,
    shutdown_timeout_seconds: int | None = None,
) -> None:
    """Connects this process to its peers; returns when all are connected. The signature is JAX's.

    `coordinator_address` (``host:port``), `num_processes` and `process_id` default to what `meshrt launch`
    set (``MESHRT_COORDINATOR_ADDRESS``, ``MESHRT_NUM_PROCESSES``, ``MESHRT_PROCESS_ID``), else to the same
    names with ``JAX_``; all from one of the two. `local_device_ids` restricts this process to some of its
    accelerators. Times are in seconds.

    Raises ConfigError when nothing says who this process is or the values make no sense, DistributedError
    when called twice, after devices have been used, or when the coordinator cannot be reached.
    """
    global _context
    if cluster_detection_method is not None:
        raise ConfigError(
            f"cluster_detection_method={cluster_detection_method!r}: meshrt does not read cluster environments yet; "
            "give coordinator_address, num_processes and process_id, or start the processes with `meshrt launch`"
        )
    identity = _identify(os.environ, coordinator_address, num_processes, process_id, local_device_ids)
    with _lock:
        if _context is not None:
            raise DistributedError("meshrt.distributed.initialize() was called before; it can be called only once")
        _check_no_backend()
        bootstrap.send(kind="joining")
        if shutdown_timeout_seconds is None:
            shutdown_timeout_seconds = _LAUNCHED_SHUTDOWN_S if identity.launched else _SHUTDOWN_S
        service = None
        if identity.process_id == 0 and not identity.launched:
            service = _start_service(
                coordinator_bind_address or _bind_address(identity.coordinator_address), identity.num_processes,
                heartbeat_timeout_seconds, shutdown_timeout_seconds, initialization_timeout,
            )  # fmt: skip
        try:
            local_address = _await_coordinator(identity.coordinator_address, initialization_timeout)
            client = _connect(identity, initialization_timeout, heartbeat_timeout_seconds, shutdown_timeout_seconds)
        except BaseException:
            if service is not None:
                service.stop()
            raise
        _context = DistributedContext(
            client, identity.process_id, identity.num_processes, local_address, identity.local_device_ids,
            service, identity.launched, shutdown_timeout_seconds,
        )  # fmt: skip
        backend.set_process_info(
            backend.ProcessInfo(
                client, identity.process_id, identity.num_processes, local_address, identity.local_device_ids
            )
        )
        bootstrap.send(kind="meshed")
        _install_exits()


def shutdown() -> None:
    """Waits for all processes to call it, then disconnects. Nothing happens where `initialize` was not called."""
    global _context
    with _lock:
        ctx = _context
        if ctx is None:
            return
        _wait_for_peers(ctx)
        ctx.client.shutdown()
        if ctx.service is not None:
            ctx.service.stop()
        _context = None
        backend.set_process_info(None)


def note_failure(code: int) -> None:
    """Says that this process is leaving with exit code `code`, not 0: it will not wait for its peers."""
    global _failed
    _failed = code


# --- who am I.

_SPELLINGS = ("MESHRT", "JAX")


def _identify(
    environ: Mapping[str, str], address: str | None, count: int | None, rank: int | None,
    local: int | Sequence[int] | None,
) -> _Identity:  # fmt: skip
    prefix = next((p for p in _SPELLINGS if f"{p}_COORDINATOR_ADDRESS" in environ), _SPELLINGS[0])
    launched = environment.LAUNCHED in environ and prefix == "MESHRT" and address in (
        None, environ.get(environment.COORDINATOR_ADDRESS)
    )  # fmt: skip
    address = address if address is not None else environ.get(f"{prefix}_COORDINATOR_ADDRESS")
    count = count if count is not None else _number(environ, f"{prefix}_NUM_PROCESSES")
    rank = rank if rank is not None else _number(environ, f"{prefix}_PROCESS_ID")
    given = {"coordinator_address": address, "num_processes": count, "process_id": rank}
    if missing := [name for name, value in given.items() if value is None]:
        raise ConfigError(
            f"meshrt.distributed.initialize(): {' and '.join(missing)} should be defined. Start the script with "
            "`meshrt launch --nproc N SCRIPT`, or give the arguments, or set "
            f"{', '.join(f'{prefix}_{name.upper()}' for name in missing)}. A script that also runs as a single process "
            'should call it only if "MESHRT_COORDINATOR_ADDRESS" in os.environ.'
        )
    assert address is not None  # it is not missing
    split_address(address)
    if type(count) is not int or count < 1:
        raise ConfigError(f"num_processes={count!r}: expected a whole number, at least 1")
    if type(rank) is not int or not 0 <= rank < count:
        raise ConfigError(f"process_id={rank!r}: expected a whole number from 0 to num_processes - 1 = {count - 1}")
    return _Identity(address, count, rank, _local_devices(environ, prefix, local), launched)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r}: expected a whole number") from None


def _local_devices(
    environ: Mapping[str, str], prefix: str, local: int | Sequence[int] | None
) -> tuple[int, ...] | None:
    if local is None:
        text = environ.get(f"{prefix}_LOCAL_DEVICE_IDS")
        if not text:
            return None
        local = [int(x) if x.strip().isdigit() else -1 for x in text.split(",")]
    ids = (local,) if isinstance(local, int) else tuple(local)
    if not ids or any(type(i) is not int or i < 0 for i in ids) or len(set(ids)) != len(ids):
        raise ConfigError(f"local_device_ids={list(ids)}: expected different whole numbers, each at least 0")
    return ids


# --- connecting.


def _check_no_backend() -> None:
    """The devices of the other processes can only be shown by a client that is made afterwards."""
    if backend.is_created():
        raise DistributedError(
            "meshrt.distributed.initialize() must be called before devices are used: something before it asked for "
            "the devices, made an array or ran a program. Call it first in the script."
        )


def _start_service(bind: str, count: int, heartbeat_s: int, shutdown_s: int, timeout_s: float) -> LocalService:
    from meshrt.launch.local_service import LocalService  # start-up time: most processes never need it

    return LocalService.start(bind, count, heartbeat_s, shutdown_s, timeout_s, settings.enable_recoverability)


def _bind_address(coordinator_address: str) -> str:
    """All interfaces, as JAX does, except that a loopback coordinator stays reachable from this host only."""
    host, port = split_address(coordinator_address)
    if host in ("127.0.0.1", "localhost"):
        return f"127.0.0.1:{port}"
    return f"[::]:{port}" if socket.has_dualstack_ipv6() else f"0.0.0.0:{port}"


def _await_coordinator(address: str, timeout_s: float) -> str:
    """Waits until the coordinator accepts connections; returns this host's address towards it.

    jaxlib's own connection aborts the process when it cannot get through, and backs off for a second when it
    comes too early; a plain connection does neither.
    """
    host, port = split_address(address)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with socket.create_connection((host, port), timeout=max(0.1, deadline - time.monotonic())) as probe:
                return probe.getsockname()[0]
        except OSError as e:
            if time.monotonic() + _PROBE_S >= deadline:
                raise DistributedError(
                    f"the coordinator at {address} could not be reached within {timeout_s} s: {e}. Is process 0 "
                    "running, and does the address name its host and port?"
                ) from None
            time.sleep(_PROBE_S)


def _connect(identity: _Identity, init_s: int, heartbeat_s: int, shutdown_s: int) -> Any:
    if identity.launched:  # the launcher watches the processes, and says who is missing, where jaxlib would abort
        init_s, heartbeat_s = _LAUNCHER_WAIT_S, HEARTBEAT_S
    client = jaxlib_api.distributed_client(
        identity.coordinator_address, identity.process_id, init_timeout_s=init_s, heartbeat_timeout_s=heartbeat_s,
        shutdown_timeout_s=shutdown_s,
    )  # fmt: skip
    client.connect()
    return client


# --- leaving.


def _install_exits() -> None:
    former = sys.excepthook

    def leave_at_once(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        former(kind, error, trace)
        if _context is not None:
            _flush()
            os._exit(130 if issubclass(kind, KeyboardInterrupt) else 1)

    sys.excepthook = leave_at_once
    atexit.register(_at_exit)


def _at_exit() -> None:
    if _context is None:
        return
    code = _failed
    if code is None and getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1"):
        code = 1  # an exception ended the script, and another hook than ours printed it
    if code is not None:
        # The interpreter would go on to destroy the client, and wait there for collectives whose peers wait
        # for us.
        _flush()
        os._exit(code & 0xFF or 1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the wait below is not in Python, where Ctrl-C could end it
    try:
        shutdown()
    except DistributedError as e:
        print(f"meshrt.distributed: {e}", file=sys.stderr)
        _flush()
        os._exit(1)


def _wait_for_peers(ctx: DistributedContext) -> None:
    """Waits until all processes have come here, since they may still be in a collective with this one."""
    try:
        ctx.client.wait_at_barrier(_EXIT_BARRIER, ctx.shutdown_timeout_s * 1000)
    except Exception as e:
        message = (
            f"process {ctx.node_id} finished, but not all of {ctx.num_nodes} processes did within "
            f"{ctx.shutdown_timeout_s} s"
        )
        if not ctx.launched:
            raise DistributedError(
                f"{message}: {e}. If they need longer, give initialize(shutdown_timeout_seconds=...)."
            ) from e
        print(f"meshrt.distributed: {message}; it leaves without them", file=sys.stderr)


def _flush() -> None:
    if "logging" in sys.modules:
        sys.modules["logging"].shutdown()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
