"""Who this process is in its job: from arguments, the launcher, or whatever else started it.

Each source is one function from the environment to a `Place`, or None where it did not start this process. The first
that did gives all fields: values of two sources are never mixed. Only what was given as an argument stands above it.
"""

from __future__ import annotations

import math
import os
import re
import socket
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from meshrt.errors import ConfigError
from meshrt.launch import environment
from meshrt.launch.address import join_address, split_address
from meshrt.launch.hostlist import expand_hosts
from meshrt.runtime import hardware

__all__ = ["SOURCES", "Identity", "identify", "seconds"]

# Ports of coordinators that nobody chose, by a number of the job: below the ports that systems give to connections.
_PORTS = range(61440, 65536)
_TPU_PORT, _KUBERNETES_PORT = 8482, 55527
_METADATA = "http://metadata.google.internal/computeMetadata/v1/instance/attributes/"
_METADATA_S = 2.0

Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Place:
    """What a source knows. `address` None: it has to be given; `late_names`: host names appear as processes start."""

    source: str
    address: str | None = None
    count: int | None = None
    rank: int | None = None
    local: tuple[int, ...] | None = None
    launched: bool = False
    late_names: bool = False
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """A process's place in its job, complete and checked."""

    coordinator_address: str
    num_processes: int
    process_id: int
    local_device_ids: tuple[int, ...] | None
    launched: bool
    source: str
    late_names: bool = False
    joins: int | None = None  # the job runs already, and so many processes were started to join it


def identify(
    environ: Environment, address: str | None = None, count: int | None = None, rank: int | None = None,
    local: int | Sequence[int] | None = None, method: str | None = None,
) -> Identity:  # fmt: skip
    """Who this process is. ConfigError if nothing says so, or the values make no sense."""
    place = _found(environ, method, complete=None not in (address, count, rank))
    launched = place.launched and address in (None, place.address)
    place = replace(
        place,
        address=place.address if address is None else address,
        count=place.count if count is None else count,
        rank=place.rank if rank is None else rank,
    )
    _check_complete(environ, place)
    address, count, rank = place.address, place.count, place.rank
    assert address is not None  # it is complete
    split_address(address)
    if type(count) is not int or count < 1:
        raise ConfigError(f"num_processes={count!r}: expected a whole number, at least 1")
    if type(rank) is not int or not 0 <= rank < count:
        raise ConfigError(f"process_id={rank!r}: expected a whole number from 0 to num_processes - 1 = {count - 1}")
    ids = _checked_devices(place.local if local is None else local)
    joins = _number(environ, environment.JOINS) if launched else None
    return Identity(address, count, rank, ids, launched, place.source, place.late_names, joins)


def _found(environ: Environment, method: str | None, complete: bool) -> Place:
    """What the first source that started this process knows; nothing where all was given as arguments."""
    if method == "deactivate" or (complete and method is None):
        chosen: list[Callable[[Environment], Place | None]] = [_variables]
    elif method is None:
        chosen = [_variables, *SOURCES.values()]
    elif method in SOURCES:
        chosen = [SOURCES[method]]
    else:
        raise ConfigError(
            f"cluster_detection_method={method!r}: meshrt knows {', '.join(SOURCES)}, and 'deactivate' for none of "
            "them; else give coordinator_address, num_processes and process_id, or start the processes with "
            "`meshrt launch`"
        )
    for source in chosen:
        place = source(environ)
        if place is not None:
            return place
    return Place("MESHRT")


def _check_complete(environ: Environment, place: Place) -> None:
    given = {"coordinator_address": place.address, "num_processes": place.count, "process_id": place.rank}
    missing = [name for name, value in given.items() if value is None]
    if not missing:
        return
    prefix = place.source if place.source in _SPELLINGS else _SPELLINGS[0]
    seen = sorted(name for name in environ if name.startswith(_TELLING))
    raise ConfigError(
        f"meshrt.distributed.initialize(): {' and '.join(missing)} should be defined. {place.hint}Start the script "
        "with `meshrt launch --nproc N SCRIPT`, or give the arguments, or set "
        f"{', '.join(f'{prefix}_{name.upper()}' for name in missing)}. A script that also runs as a single process "
        'should call it only if "MESHRT_COORDINATOR_ADDRESS" in os.environ. Looked for, in this order: MESHRT_ and '
        f"JAX_ variables, {', '.join(SOURCES)}; found in the environment: {', '.join(seen[:12]) or 'nothing of them'}."
    )


_TELLING = (
    "MESHRT_",
    "JAX_",
    "OMPI_",
    "PMIX_",
    "PMI_",
    "SLURM_",
    "JOB_COMPLETION",
    "KUBERNETES_",
    "TPU_",
    "MEGASCALE_",
)

# --- variables that people or launchers set.

_SPELLINGS = ("MESHRT", "JAX")


def _variables(environ: Environment) -> Place | None:
    prefix = next((p for p in _SPELLINGS if f"{p}_COORDINATOR_ADDRESS" in environ), None)
    if prefix is None:
        # Without an address they may be meant for an argument, but must not shadow what a cluster says.
        prefix = next((p for p in _SPELLINGS if f"{p}_PROCESS_ID" in environ), None)
        if prefix is None:
            return None
    return Place(
        prefix,
        environ.get(f"{prefix}_COORDINATOR_ADDRESS"),
        _number(environ, f"{prefix}_NUM_PROCESSES"),
        _number(environ, f"{prefix}_PROCESS_ID"),
        _devices(environ.get(f"{prefix}_LOCAL_DEVICE_IDS")),
        launched=environment.LAUNCHED in environ and prefix == "MESHRT",
    )


# --- clusters.


def _open_mpi(environ: Environment) -> Place | None:
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return None
    count, local_count = _number(environ, "OMPI_COMM_WORLD_SIZE"), _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE")
    address, hint = None, ""
    uri = re.match(r"(\d+)\.\d+;tcp6?://\[?([^,;\]]+?)\]?(?:,[^:;]*)?:\d+", environ.get("OMPI_MCA_orte_hnp_uri", ""))
    name = environ.get("PMIX_NAMESPACE", "")
    if count is not None and count == local_count:
        address = _here(uri.group(1) if uri else name)
    elif uri:
        address = join_address(uri.group(2), _port(uri.group(1)))
    else:
        hint = "This Open MPI does not tell its processes where the first one is: give coordinator_address. "
    return Place(
        "ompi", address, count, _number(environ, "OMPI_COMM_WORLD_RANK"), _one(environ, "OMPI_COMM_WORLD_LOCAL_RANK"),
        hint=hint,
    )  # fmt: skip


def _slurm(environ: Environment) -> Place | None:
    # Only srun sets these; SLURM_PROCID is 0 in a batch script too.
    if not {"SLURM_PROCID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS"} <= set(environ):
        return None
    job = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
    if environ.get("SLURM_STEP_NUM_NODES") == "1":
        address = _here(job)
    else:
        address = join_address(expand_hosts(environ["SLURM_STEP_NODELIST"])[0], _port(job))
    count, rank = _number(environ, "SLURM_STEP_NUM_TASKS"), _number(environ, "SLURM_PROCID")
    return Place("slurm", address, count, rank, _one(environ, "SLURM_LOCALID"))


def _mpich(environ: Environment) -> Place | None:
    if "PMI_RANK" not in environ or "PMI_SIZE" not in environ:
        return None
    count, local_count = _number(environ, "PMI_SIZE"), _number(environ, "MPI_LOCALNRANKS")
    address, hint = None, ""
    if count == local_count:
        address = _here(f"{os.getppid()}")  # the proxy that started all of them
    else:
        hint = "MPICH does not tell its processes where the first one is: give coordinator_address. "
    return Place("mpich", address, count, _number(environ, "PMI_RANK"), _one(environ, "MPI_LOCALRANKID"), hint=hint)


def _tpu(environ: Environment) -> Place | None:
    """TPU pods: GKE says in the environment which hosts there are, Cloud TPU machines ask their metadata server."""
    addresses = environ.get("TPU_PROCESS_ADDRESSES") or environ.get("TPU_WORKER_HOSTNAMES")
    worker = _number(environ, "TPU_WORKER_ID")
    if addresses is None and worker is None and hardware.has_tpu() and "TPU_SKIP_MDS_QUERY" not in environ:
        endpoints, number = _metadata("worker-network-endpoints"), _metadata("agent-worker-number")
        if endpoints and number and number.strip().isdigit():
            # One "name:port:address" per host.
            addresses = ",".join(e.split(":")[-1] for e in endpoints.split(","))
            worker = int(number)
    if not addresses or worker is None:
        return None
    hosts = [a.strip().rpartition(":")[0] or a.strip() for a in addresses.split(",") if a.strip()]
    slices, this = _number(environ, "MEGASCALE_NUM_SLICES") or 1, _number(environ, "MEGASCALE_SLICE_ID") or 0
    first = environ.get("MEGASCALE_COORDINATOR_ADDRESS", hosts[0]) if slices > 1 else hosts[0]
    host = first.rpartition(":")[0] or first
    address = join_address(host, _TPU_PORT)
    return Place("tpu", address, len(hosts) * slices, worker + this * len(hosts), late_names=True)


def _metadata(name: str) -> str | None:
    import urllib.request  # start-up time: on TPU machines only

    request = urllib.request.Request(_METADATA + name, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=_METADATA_S) as reply:
            return str(reply.read(1 << 20).decode())
    except OSError:  # no such server, or it does not know this
        return None


def _kubernetes(environ: Environment) -> Place | None:
    """An indexed Job, or one of a JobSet: its pods are called JOB-INDEX, and JOBSET-GROUP-NUMBER-INDEX.

    How many there are is not in a pod's environment: the manifest says it (MESHRT_NUM_PROCESSES). In a JobSet of
    several jobs it also gives MESHRT_JOB_INDEX (label jobset.sigs.k8s.io/job-global-index), MESHRT_PODS_PER_JOB, and
    MESHRT_JOBSET_COORDINATOR (label jobset.sigs.k8s.io/coordinator) if the first pod is not to coordinate.
    """
    index = _number(environ, "JOB_COMPLETION_INDEX")
    if index is None or "KUBERNETES_SERVICE_HOST" not in environ:
        return None
    job, pods = _number(environ, "MESHRT_JOB_INDEX") or 0, _number(environ, "MESHRT_PODS_PER_JOB")
    if job and pods is None:
        raise ConfigError("MESHRT_JOB_INDEX is set, and MESHRT_PODS_PER_JOB is not: set it in the JobSet's manifest")
    rank = job * (pods or 0) + index
    own = environ.get("HOSTNAME") or socket.gethostname()
    name, _, domain = own.partition(".")
    if not domain:
        domain = socket.getfqdn(own).partition(".")[2]
    stem = name.removesuffix(f"-{index}")
    if pods is not None:  # a JobSet numbers its jobs too
        stem = f"{re.sub(r'-[0-9]+$', '', stem)}-0"
    host = environ.get("MESHRT_JOBSET_COORDINATOR") or ".".join(filter(None, (f"{stem}-0", domain)))
    count = _number(environ, "MESHRT_NUM_PROCESSES") or _number(environ, "JAX_NUM_PROCESSES")
    hint = "A pod does not know how many there are: set MESHRT_NUM_PROCESSES in the Job's manifest. "
    return Place("k8s", join_address(host, _KUBERNETES_PORT), count, rank, late_names=True, hint=hint)


SOURCES: Mapping[str, Callable[[Environment], Place | None]] = {
    "ompi": _open_mpi, "slurm": _slurm, "mpich": _mpich, "tpu": _tpu, "k8s": _kubernetes,
}  # fmt: skip

# --- reading.


def _port(job: str) -> int:
    number = int(job) if job.isdigit() else zlib.crc32(job.encode())
    return _PORTS[number % len(_PORTS)]


def _here(job: str) -> str:
    return f"127.0.0.1:{_port(job)}"


def _one(environ: Environment, name: str) -> tuple[int, ...] | None:
    """The accelerator of a process by its number on the host; none where it sees too few to mean that."""
    number, visible = _number(environ, name), environ.get("CUDA_VISIBLE_DEVICES")
    if number is None or (visible is not None and number >= len(visible.split(","))):
        return None
    return (number,)


def _number(environ: Environment, name: str) -> int | None:
    text = environ.get(name)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r}: expected a whole number") from None


def seconds(environ: Environment, name: str) -> float | None:
    """A time that a variable gives; None where it is not set. ConfigError unless it is one."""
    text = environ.get(name)
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigError(f"{name}={text!r}: expected a time in seconds, more than 0")
    return number


def _devices(text: str | None) -> tuple[int, ...] | None:
    if not text:
        return None
    return _checked_devices([int(x) if x.strip().isdigit() else -1 for x in text.split(",")])


def _checked_devices(local: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if local is None:
        return None
    ids = (local,) if isinstance(local, int) else tuple(local)
    if not ids or any(type(i) is not int or i < 0 for i in ids) or len(set(ids)) != len(ids):
        raise ConfigError(f"local_device_ids={list(ids)}: expected different whole numbers, each at least 0")
    return ids
