"""`jax._src.xla_bridge`: backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshrt import errors
from meshrt.numpy.names import missing as _missing
from meshrt.runtime import backend
from meshrt.runtime.backend import default_backend, device_count, devices, local_devices, process_count, process_index

__all__ = [
    "backends_are_initialized", "canonicalize_platform", "default_backend", "device_count", "devices",
    "expand_platform_alias", "get_backend", "is_known_platform", "known_platforms", "local_devices",
    "process_count", "process_index", "register_backend_factory", "register_plugin",
    "using_pjrt_c_api",
]  # fmt: skip


def get_backend(platform: str | None = None) -> Any:
    """The client of a platform, the default one's if None."""
    return backend.devices(platform)[0].client


def backends_are_initialized() -> bool:
    """Whether anything has used a device."""
    return backend.is_created()


def register_plugin(
    plugin_name: str, *, priority: int = 400, library_path: str | None = None, options: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Makes the platform of a PJRT plugin known."""
    backend.register_plugin(plugin_name, library_path, options, priority=priority)


def register_backend_factory(name: str, factory: Callable[[], Any], *, priority: int = 0, **_: Any) -> None:
    """Makes a platform known whose clients `factory()` makes."""
    backend.register_plugin(name, client=lambda options: factory(), priority=priority)


_ALIASES = {"gpu": ["cuda", "rocm", "oneapi"]}


def expand_platform_alias(platform: str) -> list[str]:
    """The platforms that a name stands for."""
    return list(_ALIASES.get(platform, [platform]))


def known_platforms() -> set[str]:
    """The names of platforms that there are somewhere."""
    return {"cpu", "tpu", *_ALIASES, *(name for names in _ALIASES.values() for name in names)}


def is_known_platform(platform: str) -> bool:
    """Whether a name is that of a platform."""
    return platform in known_platforms() or platform in backend.created()


def canonicalize_platform(platform: str) -> str:
    """The platform of this process that a name stands for. RuntimeError if there is none."""
    for name in expand_platform_alias(platform):
        try:
            return str(backend.devices(name)[0].platform) if platform in _ALIASES else platform
        except RuntimeError:
            continue
    raise BackendMissingError(
        f"Unknown backend: '{platform}' requested, but no platforms that are instances of {platform} are present. "
        f"Platforms present are: {','.join(backend.created())}"
    )


class BackendMissingError(errors.MeshrtError, RuntimeError):
    """There is no platform that a name stands for."""


def using_pjrt_c_api(client: Any = None) -> bool:
    """Whether the platform of a client is a plugin's."""
    return "PJRT C API" in (get_backend() if client is None else client).platform_version


_none = _missing("jax._src.xla_bridge", __all__)


def __getattr__(name: str) -> Any:
    if name == "_backends":  # clients that have been started, by platform
        return backend.created()
    return _none(name)
