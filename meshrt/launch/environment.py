"""The environment variables that a worker gets, and that meshrt.distributed reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from meshrt.launch.bootstrap import FD_VARIABLE

COORDINATOR_ADDRESS = "MESHRT_COORDINATOR_ADDRESS"
NUM_PROCESSES = "MESHRT_NUM_PROCESSES"
PROCESS_ID = "MESHRT_PROCESS_ID"
LOCAL_DEVICE_IDS = "MESHRT_LOCAL_DEVICE_IDS"
GENERATION = "MESHRT_GENERATION"
MAX_RESTARTS = "MESHRT_MAX_RESTARTS"
SECRET = "MESHRT_JOB_SECRET"  # who has it may join
LAUNCHED = "MESHRT_LAUNCHED"  # set by the launcher alone: the coordination service is running already
ELASTIC = "MESHRT_ELASTIC"  # set by the launcher: it lets the others go on when a process is lost
JOINS = "MESHRT_JOINS"  # set by the launcher: the job runs already; how many processes are started to join it
NUM_CPU_DEVICES = "MESHRT_NUM_CPU_DEVICES"
AGENT_NAME = "MESHRT_AGENT_NAME"  # of the agent that runs on a host
PROFILE = "MESHRT_PROFILE"  # which steps a process records, and where: JSON
COMPILED = "MESHRT_COMPILATION_CACHE_DIR"  # where processes share compiled programs
COMPILED_BOUND = "MESHRT_COMPILED_BOUND"  # BYTES:FOLDER of the one that the launcher made for them

# What the launcher says to each process, whatever else is said of it.
OWN = frozenset(
    {COORDINATOR_ADDRESS, NUM_PROCESSES, PROCESS_ID, GENERATION, MAX_RESTARTS, LAUNCHED, SECRET, FD_VARIABLE}
)

_FORCED_COUNT = "--xla_force_host_platform_device_count"
DEFAULT_DEVICES_PER_PROCESS = 4


@dataclass(frozen=True, slots=True)
class Place:
    """Where one worker stands in the job."""

    rank: int
    num_processes: int
    generation: int
    max_restarts: int
    address: str
    secret: str = field(default="", repr=False)


def worker_environment(
    base: Mapping[str, str], place: Place, devices_per_process: int | None, extra: Mapping[str, str],
    channel: int | None,
) -> dict[str, str]:  # fmt: skip
    """The environment of one worker: `base` (that of its host), the user's `extra`, then the worker's place.

    `channel` is the descriptor of the pipe on which it tells the launcher how it fares; None where it has none.

    Without `devices_per_process`, a number of CPU devices that the user has set (``MESHRT_NUM_CPU_DEVICES``,
    or ``XLA_FLAGS`` with the count JAX users set) is kept, and 4 is the default.
    """
    env = {**base, **runtime_defaults(base, devices_per_process)}
    for name in (ELASTIC, JOINS):  # of a rank that starts a job of its own
        env.pop(name, None)
    _skip_proxies(env, place.address)
    env.update(extra)
    env.update({
        COORDINATOR_ADDRESS: place.address,
        NUM_PROCESSES: str(place.num_processes),
        PROCESS_ID: str(place.rank),
        GENERATION: str(place.generation),
        MAX_RESTARTS: str(place.max_restarts),
        LAUNCHED: "1",
        SECRET: place.secret,
    })  # fmt: skip
    return _with_channel(env, channel)


def runtime_defaults(base: Mapping[str, str], devices_per_process: int | None) -> dict[str, str]:
    """The variables that make a process of a job say what it does, and how many CPU devices it has, where `base` does
    not say so already."""
    env = {
        "PYTHONUNBUFFERED": "1",  # a pipe would hold back what is printed, and lose it at an abort
        "PYTHONFAULTHANDLER": "1",
        "TF_CPP_MIN_LOG_LEVEL": "1",
    }
    env = {name: base.get(name, value) for name, value in env.items()}
    if devices_per_process is not None:
        env[NUM_CPU_DEVICES] = str(devices_per_process)
    elif NUM_CPU_DEVICES in base:
        env[NUM_CPU_DEVICES] = base[NUM_CPU_DEVICES]
    elif _FORCED_COUNT not in base.get("XLA_FLAGS", ""):
        env[NUM_CPU_DEVICES] = str(DEFAULT_DEVICES_PER_PROCESS)
    return env


def host_name(environ: Mapping[str, str]) -> str:
    """What to call the host of this process: as Slurm does, else by its own name, with a number where MPI has started
    several processes there."""
    if name := environ.get("SLURMD_NODENAME"):
        return name
    number = environ.get("OMPI_COMM_WORLD_LOCAL_RANK") or environ.get("MPI_LOCALRANKID") or "0"
    own = os.uname().nodename
    return own if number == "0" else f"{own}-{number}"


def service_environment(base: Mapping[str, str], channel: int | None, secret: str | None = None) -> dict[str, str]:
    """The environment of the coordination service's process; `channel` as for a worker. Without `secret`, that of
    `base`."""
    env = {k: v for k, v in base.items() if k not in (COORDINATOR_ADDRESS, NUM_PROCESSES, PROCESS_ID)}
    if secret is not None:
        env[SECRET] = secret
    if env.get("TF_CPP_MIN_LOG_LEVEL") in (None, "1"):  # 1 is meshrt's own default; the service warns of how it is used
        env["TF_CPP_MIN_LOG_LEVEL"] = "2"
    return _with_channel(env, channel)


def _with_channel(env: dict[str, str], channel: int | None) -> dict[str, str]:
    """A launcher that was itself started by one inherits the variable, but its processes not the pipe."""
    env.pop(FD_VARIABLE, None)
    return env if channel is None else {**env, FD_VARIABLE: str(channel)}


def _skip_proxies(env: dict[str, str], address: str) -> None:
    """Connections to the coordinator must not go through an HTTP proxy, where they would hang."""
    if not any(name in env for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY")):
        return
    host = address.rpartition(":")[0].strip("[]")
    hosts = env.get("no_grpc_proxy") or env.get("no_proxy") or env.get("NO_PROXY") or ""
    env["no_grpc_proxy"] = ",".join(filter(None, (hosts, host)))


def compiled_bound(environ: Mapping[str, str], folder: str) -> int | None:
    """How many bytes of compiled programs `folder` may have, if the launcher made it; None of a user's own."""
    size, _, made = environ.get(COMPILED_BOUND, "").partition(":")
    return int(size) if made == folder and size.isdigit() else None
