"""Clients of platforms. Names are ``jax.extend.backend``'s.

>>> get_backend("cpu").platform
'cpu'
"""

from __future__ import annotations

from typing import Any

from meshrt.caches import register_cache as register_backend_cache
from meshrt.numpy.names import missing as _missing
from meshrt.runtime import backend as _backend
from meshrt.runtime import compile_cache as _compile_cache
from meshrt.runtime.backend import clear_backends
from meshrt.runtime.backend import default_device as get_default_device

__all__ = [
    "backend_xla_version", "backends", "clear_backends", "clear_in_memory_compilation_cache", "get_backend",
    "get_default_device", "register_backend_cache",
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


def clear_in_memory_compilation_cache() -> None:
    """Forgets compiled programs of this process, but not traces; what is compiled on disk stays."""
    _compile_cache.clear()


__getattr__ = _missing(__name__, __all__)
