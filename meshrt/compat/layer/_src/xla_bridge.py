"""`jax._src.xla_bridge`: backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meshrt.numpy.names import missing as _missing
from meshrt.runtime import backend
from meshrt.runtime.backend import default_backend, device_count, devices, local_devices, process_count, process_index

__all__ = [
    "backends_are_initialized", "default_backend", "device_count", "devices", "get_backend", "local_devices",
    "process_count", "process_index", "register_backend_factory", "register_plugin",
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


_none = _missing("jax._src.xla_bridge", __all__)


def __getattr__(name: str) -> Any:
    if name == "_backends":  # clients that have been started, by platform
        return backend.created()
    return _none(name)
