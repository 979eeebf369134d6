"""Clients of platforms. Names are ``jax.extend.backend``'s.

>>> get_backend("cpu").platform
'cpu'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from meshrt.caches import register_cache as register_backend_cache
from meshrt.numpy.names import missing as _missing
from meshrt.runtime import backend as _backend
from meshrt.runtime import compile_cache as _compile_cache
from meshrt.runtime.backend import clear_backends
from meshrt.runtime.backend import default_device as get_default_device
from meshrt.xla import jaxlib_api as _jaxlib_api

if TYPE_CHECKING:
    from meshrt.lowering.capabilities import BackendCapabilities

__all__ = [
    "backend_xla_version", "backends", "capabilities", "clear_backends",
    "clear_in_memory_compilation_cache", "get_backend", "get_compile_options", "get_default_device",
    "register_backend_cache", "register_backend_factory", "register_plugin", "supports",
]  # fmt: skip


def get_backend(platform: Any = None) -> Any:
    """The client of a platform ("cpu", "cuda", "tpu", ...), of the default one if None; a client is its own.

    Raises:
      BackendError: no such platform, or one that cannot be started.
    """
    return _backend.client(platform) if platform is None or isinstance(platform, str) else platform


def backends() -> dict[str, Any]:
    """The clients that have been started, by platform; the default one is started if none has been."""
    _backend.default_backend()
    return _backend.created()


def backend_xla_version(platform: str | None = None) -> int | None:
    """The version of XLA that a platform's plugin states; None where the client is no plugin's."""
    return getattr(get_backend(platform), "xla_version", None)


def capabilities(platform: str | None = None) -> BackendCapabilities:
    """What the compiler of a platform takes: dialects, versions of StableHLO, element types, custom calls.

    >>> capabilities("cpu").chlo
    True

    Args:
      platform: "cpu", "cuda", "rocm", "tpu", a plugin's name; the default one if None. It need not be here.

    Raises:
      ConfigError: a file in `configs/backends` that says what no row has.
    """
    return _backend.capabilities(platform)


def register_plugin(
    name: str,
    library_path: str | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    client: Callable[[Mapping[str, Any]], Any] | None = None,
    priority: int = 400,
) -> None:
    """Makes the platform of a PJRT plugin known. It is loaded when a device of it is first asked for.

    Registered plugins come before the platforms that meshrt finds by itself where the default one is chosen; the
    setting `platforms` says otherwise. Plugins that packages publish (entry points of the group ``jax_plugins``), or
    that the environment variable ``PJRT_NAMES_AND_LIBRARY_PATHS`` names, are known without this, and never the default
    unless `platforms` asks for them.

    >>> register_plugin("npu", "/opt/npu/pjrt_plugin_npu.so", {"visible_devices": [0, 1]})
    >>> meshrt.devices("npu")

    Args:
      name: the platform, as `meshrt.devices(name)` and the setting `platforms` call it.
      library_path: the shared object, which exports `GetPjrtApi`.
      options: what its client is made with: texts, numbers, booleans and lists of numbers.
      client: in place of a shared object, a function that makes a client from the options.
      priority: which of several registered plugins is the default platform.

    Raises:
      ArgumentValueError: a platform of meshrt's own, or of another plugin; neither or both of the two.
      ArgumentTypeError: a name that is no text, options that are no dict.
    """
    _backend.register_plugin(name, library_path, options, client=client, priority=priority)


def register_backend_factory(
    name: str, factory: Callable[[], Any], *, priority: int = 0, fail_quietly: bool = True, experimental: bool = False,
    make_topology: Any = None, c_api: Any = None,
) -> None:  # fmt: skip
    """Makes a platform known whose client `factory()` makes when a device of it is first asked for.

    Args:
      name: the platform, as `meshrt.devices(name)` calls it.
      factory: makes the client.
      priority: which of several registered platforms is the default one.
      fail_quietly: a platform that cannot be started is always passed over where the default one is looked for.
      experimental, make_topology, c_api: of JAX; nothing depends on them.

    Raises:
      ArgumentValueError: a platform of meshrt's own, or of another plugin.
    """
    register_plugin(name, client=lambda options: factory(), priority=priority)


def get_compile_options(
    num_replicas: int, num_partitions: int, device_assignment: Any = None,
    env_options_overrides: Mapping[str, str] | None = None, fdo_profile: bytes | None = None,
    detailed_logging: bool = True, backend: Any = None,
) -> Any:  # fmt: skip
    """XLA's options for a program of so many replicas and partitions.

    Args:
      num_replicas: how many replicas run it. num_partitions: among how many devices each is split.
      device_assignment: the devices, or their numbers, [replicas, partitions]; by default the first ones.
      env_options_overrides: XLA's debug options.
      fdo_profile: a profile for the compiler.
      detailed_logging, backend: of JAX; nothing depends on them.
    """
    return _jaxlib_api.plain_compile_options(
        num_replicas, num_partitions, device_assignment, env_options_overrides or {}, fdo_profile
    )


def supports(
    dialect: str, op: str | None = None, version: str | None = None, dtype: str | None = None, *,
    platform: str | None = None,
) -> bool:  # fmt: skip
    """Whether a platform's compiler takes an operation: see `BackendCapabilities.supports`.

    >>> supports("stablehlo", "add", "1.9.0", platform="cpu")
    True
    """
    return _backend.capabilities(platform).supports(dialect, op, version, dtype)


def clear_in_memory_compilation_cache() -> None:
    """Forgets compiled programs of this process, but not traces; what is compiled on disk stays."""
    _compile_cache.clear()


__getattr__ = _missing(__name__, __all__)
