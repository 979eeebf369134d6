"""`jax._src.compilation_cache_interface`: what a place of compiled programs can do."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from meshrt.compat.layer._src.caching import StrictABC

__all__ = ["CacheInterface"]


class CacheInterface(StrictABC):
    """Bytes by name. Subclasses say where they are kept."""

    _path: Any

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """The bytes of a name; None if there are none."""

    @abstractmethod
    def put(self, key: str, value: bytes) -> None:
        """Keeps bytes under a name."""
