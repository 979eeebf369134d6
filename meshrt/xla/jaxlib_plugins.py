"""PJRT plugins in the process: loading their shared objects, clients and descriptions of hardware of them.

One of the doors to jaxlib's private modules, for programs for other platforms than CPUs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jaxlib._jax as _jax
from jaxlib import xla_client as _xc

from meshrt.xla import jaxlib_api, jaxlib_calls
from meshrt.xla.jaxlib_api import Client

__all__ = ["deserialize", "gpu_plugin_options", "load_plugin", "plugin_client", "topology"]

_lock = threading.RLock()
_libraries: dict[str, str] = {}  # by platform, of the plugins that were loaded


def _key(name: str) -> str:
    """The name under which jaxlib's table of plugins has that of a platform.

    JAX refuses to load a plugin whose name is taken, but for "tpu", which it takes as it finds it; meshrt's are under
    names of their own, so that JAX works in a process in which meshrt has started first.
    """
    return name if name == "tpu" else f"meshrt_{name}"


def load_plugin(name: str, library: str) -> None:
    """Loads and initialises a PJRT plugin once per process; its profiler and its kernels are known from then on."""
    from meshrt.xla import jaxlib_profiling  # start-up time: most programs load no plugin

    key = _key(name)
    with _lock:
        _libraries.setdefault(name, library)
        is_known = _xc.pjrt_plugin_loaded(name)  # to JAX, which has told the profiler of it
        api = _load(key, library)
        if api is None:
            return
        if not is_known:
            jaxlib_profiling.register_plugin(api)
        jaxlib_calls.register_gpu_calls(name, api)


def _load(key: str, library: str) -> Any:
    """The C API of a plugin, loaded under a name and initialised; None if it has been already."""
    api = None if _xc.pjrt_plugin_loaded(key) else _xc.load_pjrt_plugin_dynamically(key, library)
    if not _xc.pjrt_plugin_initialized(key):
        _xc.initialize_pjrt_plugin(key)
    return api


def deserialize(
    platform: str, code: bytes, devices: Sequence[Any], options: Any, host_callbacks: Sequence[Callable[..., Any]] = ()
) -> Any:
    """`jaxlib_api.deserialize`, of code for a plugin's devices too.

    jaxlib looks for the plugin under its plain name, for the version that the code is of. JAX, where it starts on that
    platform after this, finds the name taken and goes without.
    """
    with _lock:
        if platform in _libraries:
            _load(platform, _libraries[platform])
    return jaxlib_api.deserialize(code, devices, options, host_callbacks)


def plugin_client(name: str, library: str, options: dict[str, Any], distributed: Any = None) -> Client:
    """A client of the PJRT plugin in the shared object `library`; loads it unless it is loaded already."""
    load_plugin(name, library)
    return _xc.make_c_api_client(_key(name), options, distributed)


def gpu_plugin_options() -> dict[str, Any]:
    """Allocator options for GPU clients, from the XLA_PYTHON_CLIENT_* environment variables."""
    return dict(_xc.generate_pjrt_gpu_plugin_options())


def topology(platform: str, name: str, options: dict[str, Any] | None = None) -> Any:
    """A description of hardware that need not be present; the platform's plugin must be loaded."""
    return _jax.get_default_c_api_topology(_key(platform), name, options or {})
