"""Forgetting what was traced, compiled and loaded."""

from __future__ import annotations

from meshrt import dispatch
from meshrt.pipeline.driver import all_drivers
from meshrt.runtime import compile_cache

__all__ = ["clear_caches"]


def clear_caches() -> None:
    """Forgets every trace, program and loaded executable of this process; what is compiled on disk stays."""
    for driver in all_drivers():
        driver.clear()
    dispatch.clear()
    compile_cache.clear()
