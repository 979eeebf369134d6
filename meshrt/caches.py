"""Forgetting what was traced, compiled and loaded."""

from __future__ import annotations

from typing import Any

from meshrt import dispatch
from meshrt.pipeline.driver import all_drivers
from meshrt.runtime import compile_cache

__all__ = ["clear_caches", "register_cache"]

_libraries: list[Any] = []


def register_cache(cache: Any, for_what: str = "") -> None:
    """Has `clear_caches` call `cache.cache_clear()`, a library's cache of what it made of programs or devices."""
    _libraries.append(cache)


def clear_caches() -> None:
    """Forgets every trace, program and loaded executable of this process; what is compiled on disk stays.

    >>> meshrt.clear_caches()
    """
    for driver in all_drivers():
        driver.clear()
    dispatch.clear()
    compile_cache.clear()
    for cache in _libraries:
        cache.cache_clear()
