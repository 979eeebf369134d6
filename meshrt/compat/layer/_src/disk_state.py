"""What `jax._src.compilation_cache` says of the directory of compiled programs."""

from __future__ import annotations

from typing import Any

from meshrt.config import settings

__all__ = ["is_cache_used", "is_persistent_cache_enabled"]


def is_persistent_cache_enabled() -> bool:
    """Whether compiled programs are kept on disk."""
    return settings.compilation_cache_dir is not None and settings.enable_compilation_cache


def is_cache_used(backend: Any) -> bool:
    """Whether those of a client are."""
    return is_persistent_cache_enabled()
