"""The devices of this process, and the one client per platform behind them.

Clients start when a device is first asked for. Until then the settings `num_cpu_devices` and `platforms` may change
and `meshrt.distributed.initialize` may join this process to others.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from meshrt import config, errors
from meshrt.runtime import hardware, sockets
from meshrt.runtime.hardware import known_as, platform_of
from meshrt.sharding import devices as lookup
from meshrt.xla import jaxlib_api, jaxlib_distributed, jaxlib_plugins

if TYPE_CHECKING:
    from meshrt.lowering.capabilities import BackendCapabilities
    from meshrt.runtime.plugins import Plugin

__all__ = [
    "add_elsewhere",
    "capabilities",
    "clear_backends",
    "default_backend",
    "default_device",
    "device_count",
    "devices",
    "elsewhere",
    "is_created",
    "is_here",
    "known_as",
    "local_device_count",
    "local_devices",
    "on_clear",
    "platform_of",
    "plugins",
    "process_count",
    "process_index",
    "process_indices",
    "register_plugin",
    "set_process_info",
]


class ProcessInfo(NamedTuple):
    """This process's place among the processes of a job.

    `client` is a connected client of the distributed runtime, `hostname` the address of this process for its peers.
    """

    client: Any
    process_id: int
    num_processes: int
    hostname: str | None = None
    local_device_ids: tuple[int, ...] | None = None


_lock = threading.RLock()
_clients: dict[str, Any] = {}
_devices: dict[str, tuple[Any, ...]] = {}
_plugins: dict[str, Plugin] = {}
_default: str | None = None
_process: ProcessInfo | None = None
_collectives_port: int | None = None
_clear_hooks: list[Any] = []
# Devices that only a compiler knows, with the hardware that they stand for.
_elsewhere: dict[Any, Any] = {}


def set_process_info(info: ProcessInfo | None) -> None:
    """Says which processes the next clients join; before any device is asked for."""
    global _process
    with _lock:
        if _clients and info is not None:
            raise errors.DistributedError(
                "the devices of other processes can only join before this process uses a device; call "
                "meshrt.distributed.initialize() first in the script"
            )
        _process = info


def is_created() -> bool:
    """Whether a client has been started."""
    return bool(_clients)


def created() -> dict[str, Any]:
    """The clients that have been started, by platform."""
    return dict(_clients)


def on_clear(hook: Any) -> None:
    """Calls `hook()` when the clients are dropped: everything that remembers devices registers here."""
    _clear_hooks.append(hook)


def clear_backends() -> None:
    """Drops the clients and whatever this package remembers of devices; the next use starts new ones.

    Arrays that are still held keep their old client alive.
    """
    global _default, _collectives_port
    with _lock:
        for hook in _clear_hooks:
            hook()
        _collectives_port = None
        _clients.clear()
        _devices.clear()
        _default = None
        jaxlib_api.clear_device_caches()
        for name in ("num_cpu_devices", "platforms"):
            config.settings.thaw(name)


# ----------------------------------------------------------------------------------------------------------
# Starting clients.


def _start_cpu() -> Any:
    info = _process
    count = config.cpu_device_count()
    if info is None or info.num_processes == 1:
        return jaxlib_api.cpu_client(count)
    global _collectives_port
    before = sockets.listening_ports()
    collectives = jaxlib_distributed.gloo_collectives(info.client, hostname=info.hostname)
    _collectives_port = next(iter(sockets.listening_ports() - before), None)
    return jaxlib_api.cpu_client(
        count,
        distributed=info.client,
        process_id=info.process_id,
        num_processes=info.num_processes,
        collectives=collectives,
    )


def collectives_port() -> int | None:
    """The port on which this process waits for its peers' collectives; None where there are none over TCP."""
    return _collectives_port


def _start_cuda() -> Any:
    library = hardware.cuda_library()
    if library is None:
        raise errors.BackendError(
            "Unknown backend cuda: no plugin is installed; install the extra `meshrt[cuda12]` or `meshrt[cuda13]`"
        )
    options = jaxlib_plugins.gpu_plugin_options()
    info = _process
    if info is not None and info.num_processes > 1:
        options["node_id"], options["num_nodes"] = info.process_id, info.num_processes
        if info.local_device_ids is not None:
            options["visible_devices"] = list(info.local_device_ids)
    return jaxlib_plugins.plugin_client("cuda", library, options, info.client if info is not None else None)


def _start_tpu() -> Any:
    if importlib.util.find_spec("libtpu") is None:
        raise errors.BackendError("Unknown backend tpu: libtpu is not installed; install the extra `meshrt[tpu]`")
    import libtpu  # optional wheel

    return jaxlib_plugins.plugin_client("tpu", libtpu.get_library_path(), {})


def register_plugin(
    name: str,
    library_path: str | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    client: Callable[[Mapping[str, Any]], Any] | None = None,
    priority: int = 400,
) -> None:
    """See `meshrt.extend.backend.register_plugin`."""
    if not isinstance(name, str):
        raise errors.ArgumentTypeError(f"a plugin has the name of its platform, such as 'npu'. Got {name!r}")
    if options is not None and not isinstance(options, Mapping):
        raise errors.ArgumentTypeError(
            f"options of the plugin {name!r} are a dict of names and values. Got {options!r}"
        )
    name = known_as(name)
    if name in _STARTERS or not name:
        raise errors.ArgumentValueError(
            f"the platform {name!r} is one of meshrt's own ({', '.join(_STARTERS)}); give the plugin another name"
        )
    from meshrt.runtime.plugins import Plugin  # start-up time: few programs have plugins

    plugin = Plugin(name, library_path, dict(options or {}), client, priority)
    with _lock:
        known = _plugins.setdefault(name, plugin)
    if known != plugin:
        raise errors.ArgumentValueError(
            f"a plugin is registered for the platform {name!r} already ({known.library or known.client}); give the "
            "second one another name"
        )


def plugins() -> list[str]:
    """The names of the plugins that are known: registered, named by the environment, published by packages."""
    from meshrt.runtime.plugins import names  # start-up time, as above

    return sorted({*_plugins, *names()})


def _plugin(name: str) -> Plugin | None:
    from meshrt.runtime.plugins import found  # start-up time, as above

    return _plugins.get(name) or found(name)


_STARTERS = {"cpu": _start_cpu, "cuda": _start_cuda, "tpu": _start_tpu}


def _candidates() -> list[str]:
    """Platforms to try for the default, best first: those asked for, else registered plugins and those whose hardware
    exists."""
    asked = config.settings.platforms
    if asked is not None:
        return [known_as(p.strip()) for p in asked.split(",") if p.strip()]
    found = []
    if hardware.has_tpu() and importlib.util.find_spec("libtpu") is not None:
        found.append("tpu")
    if hardware.has_nvidia_gpu() and hardware.cuda_library() is not None:
        found.append("cuda")
    registered = sorted(_plugins, key=lambda name: -_plugins[name].priority)
    return [*registered, *found, "cpu"]


def client(platform: str | None = None) -> Any:
    """The client of a platform, started if need be. BackendError if it cannot be."""
    name = default_platform() if platform is None else _named(platform)
    found = _clients.get(name)
    if found is not None:
        return found
    with _lock:
        if name not in _clients:
            _clients[name] = _start(name)
            _devices[name] = tuple(_clients[name].devices())
        return _clients[name]


def _starter(name: str) -> Callable[[], Any]:
    own = _STARTERS.get(name)
    if own is not None:
        return own
    plugin = _plugin(name)
    if plugin is None:
        known = ", ".join([*_STARTERS, *plugins()])
        raise errors.BackendError(
            f"Unknown backend {name}. meshrt knows {known} (gpu is cuda). A plugin is made known with "
            "meshrt.extend.backend.register_plugin(name, library_path)"
        )
    info = _process
    return lambda: plugin.start(None if info is None else info.client)


def _start(name: str) -> Any:
    refuse_fork()
    _watch_forks()
    starter = _starter(name)
    try:
        started = starter()
    except jaxlib_api.XlaError as e:
        raise errors.BackendError(
            f"the platform {name!r} cannot be started: {e}. Choose another with meshrt.config.update('platforms', "
            "'cpu') or MESHRT_PLATFORMS=cpu."
        ) from e
    if name == "cpu":
        config.settings.freeze("num_cpu_devices", "the CPU devices exist already")
    config.settings.freeze("platforms", "a platform has been started already")
    return started


# A client's threads are not in the copy of its process that `fork` makes: whoever waits for them there waits for ever.
_left_behind: list[Any] = []  # clients of the process that this one is a copy of; ending one waits for its threads


@functools.cache
def _watch_forks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_note_fork)


def _note_fork() -> None:
    _left_behind.extend([*_clients.values(), *_devices.values()])
    _clients.clear()
    _devices.clear()
    _forget_first()
    config.settings.forget_calls()


def refuse_fork() -> None:
    """Raises ForkedProcessError in a process that was forked from one with devices."""
    if _left_behind:
        raise errors.ForkedProcessError(
            "this process was forked from one that had devices already, and has none of the threads that run programs "
            "on them: start it with the method 'spawn' or 'forkserver' (multiprocessing.get_context('spawn')), or fork "
            "before meshrt is used"
        )


def capabilities(platform: str | None = None) -> BackendCapabilities:
    """What the compiler of a platform takes, as its client says where it has been started; no client is."""
    from meshrt.lowering.capabilities import capabilities_of  # start-up time: programs from the disk cross no boundary

    name = default_platform() if platform is None else _named(platform)
    found = _clients.get(name)
    told = ("stablehlo_current_version", "stablehlo_minimum_version")
    return capabilities_of(name, {} if found is None else {t: getattr(found, t, None) for t in told})


def _named(platform: str) -> str:
    """The platform that a user names: "gpu" is that of ROCm where that is the default one."""
    return "rocm" if platform == "gpu" and _default == "rocm" else known_as(platform)


def default_backend() -> str:
    """The platform that arrays live on by default, as its devices call it: "cpu", "gpu" or "tpu".

    >>> meshrt.default_backend()
    'cpu'
    """
    name = default_platform()
    return "gpu" if name in ("cuda", "rocm") else name


def default_platform() -> str:
    """The platform that arrays live on by default, as compilers are told apart: "cpu", "cuda", "rocm", "tpu"."""
    global _default
    if _default is None:
        with _lock:
            if _default is None:
                name = _candidates()[0]
                if name not in _clients:
                    _clients[name] = _start(name)
                    _devices[name] = tuple(_clients[name].devices())
                _default = name
    return _default


# ----------------------------------------------------------------------------------------------------------
# Asking for devices.


def devices(backend: str | None = None) -> list[Any]:
    """All devices of the job on a platform (default: the default platform), in order of id.

    `backend` is "cpu", "gpu" (also "cuda"), "tpu" or the name of a plugin. BackendError for one that is unknown, not
    installed or cannot be started, as for all functions here.

    >>> meshrt.devices()[0].platform
    'cpu'
    """
    name = default_platform() if backend is None else _named(backend)
    client(name)
    return list(_devices[name])


def local_devices(
    process_index: int | None = None, backend: str | None = None, host_id: int | None = None
) -> list[Any]:
    """The devices of this process, or of process `process_index`, whose old name is `host_id`.

    >>> meshrt.local_devices()[0].process_index
    0
    """
    if host_id is not None:
        warnings.warn(
            "The argument to meshrt.local_devices was renamed from `host_id` to `process_index`; write "
            f"local_devices(process_index={host_id})",
            stacklevel=2,
        )
        process_index = host_id
    if process_index is None:
        mine = client(backend).process_index()
    elif process_index in process_indices(backend):
        mine = process_index
    else:
        raise errors.ArgumentValueError(
            f"Unknown process_index {process_index}: the job has the processes {process_indices(backend)}"
        )
    return [d for d in devices(backend) if d.process_index == mine]


def is_here(platform: str) -> bool:
    """Whether this process has devices of a platform: the default one, or one that has been started."""
    name = _named(platform)
    return name == default_platform() or name in _clients or platform == client().platform


def device_count(backend: str | None = None) -> int:
    """How many devices the job has on a platform.

    >>> meshrt.device_count() == len(meshrt.devices())
    True
    """
    return len(devices(backend))


def local_device_count(backend: str | None = None) -> int:
    """How many devices this process has on a platform.

    >>> meshrt.local_device_count() <= meshrt.device_count()
    True
    """
    return len(local_devices(backend=backend))


def process_index(backend: str | None = None) -> int:
    """This process's number in the job.

    >>> meshrt.process_index()
    0
    """
    return client(backend).process_index()


def process_indices(backend: str | None = None) -> list[int]:
    """The numbers of the processes that have devices.

    >>> meshrt.process_indices()
    [0]
    """
    return sorted({d.process_index for d in devices(backend)})


def process_count(backend: str | None = None) -> int:
    """How many processes have devices.

    >>> meshrt.process_count()
    1
    """
    return len(process_indices(backend))


def add_elsewhere(devices: Sequence[Any], topology: Any) -> None:
    """Notes that `devices` stand for those of hardware that is not here, a `collectives.topology.Topology`."""
    _elsewhere.update(dict.fromkeys(devices, topology))


def elsewhere(devices: Sequence[Any]) -> Any | None:
    """The hardware that `devices` stand for; None of devices that can run something."""
    return _elsewhere.get(devices[0]) if _elsewhere and devices else None


def default_device() -> Any:
    """The device of arrays that were given none: the setting `default_device`, else this process's first device."""
    chosen = config.settings.default_device
    if chosen is None:
        return _first_local()
    if isinstance(chosen, str):
        return local_devices(backend=chosen)[0]
    return chosen


def _check_default_device(field: Any, chosen: Any) -> Any:
    known = chosen is None or isinstance(chosen, jaxlib_api.Device)
    if known or (isinstance(chosen, str) and (known_as(chosen) in _STARTERS or _plugin(chosen))):
        return chosen
    raise field.bad(
        chosen,
        "meshrt.default_device must be passed either a Device object (e.g. `meshrt.devices('cpu')[0]`) or a "
        f"platform name string like 'cpu' or 'gpu', got: {chosen!r}; the platforms are {', '.join(_STARTERS)} and gpu",
    )


config.settings.on_check("default_device", _check_default_device)

_first: Any = None


def _first_local() -> Any:
    global _first
    found = _first
    if found is None:
        found = _first = local_devices()[0]
    return found


def _forget_first() -> None:
    global _first
    _first = None


on_clear(_forget_first)

lookup.provide(devices)
