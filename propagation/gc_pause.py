"""Holds back Python's cyclic garbage collector while a stage builds a program.

A stage allocates hundreds of thousands of objects that all stay alive until it is done, so every pass of the collector
meanwhile walks them in vain: a quarter to a half of a stage's time.
"""

from __future__ import annotations

import gc
import threading

__all__ = ["collector_paused"]

_lock = threading.Lock()
_holders = 0


class collector_paused:
    """Disables the collector inside a `with`, unless it is disabled already. Nested and concurrent uses count."""

    __slots__ = ("_held",)
    _held: bool

    def __enter__(self) -> None:
        global _holders
        with _lock:
            self._held = _holders > 0 or gc.isenabled()
            if self._held:
                _holders += 1
                gc.disable()

    def __exit__(self, *_: object) -> None:
        global _holders
        if self._held:
            with _lock:
                _holders -= 1
                if _holders == 0:
                    gc.enable()
