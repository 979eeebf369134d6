"""`jit(f)` written twice is one jitted function: programs often call `jit(f)(x)` in a loop.

Functions are told apart by identity and held weakly: their caches go when they do.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

from meshrt.heuristics import SHARED_OPTIONS
from meshrt.pipeline.driver import Driver
from meshrt.pipeline.options import JitOptions

__all__ = ["driver_for"]

_lock = threading.Lock()
_shared: weakref.WeakKeyDictionary[FunctionType, dict[Any, Driver]] = weakref.WeakKeyDictionary()


def driver_for(fun: Callable[..., Any], name: str, options: JitOptions) -> Driver:
    """The caches of `jit(fun)` with these options: those of an earlier one, if `fun` is an ordinary function.

    Not with `max_traces`, which counts what one jitted function does, nor with options that cannot be hashed, such as
    dictionaries of shardings.
    """
    if type(fun) is not FunctionType or options.max_traces is not None:
        return Driver(fun, name, options)
    key = _key(name, options)
    try:
        with _lock:
            drivers = _shared.setdefault(fun, {})
            found = drivers.get(key)
            if found is None:
                found = drivers[key] = Driver(fun, name, options, weakly=True)
                while len(drivers) > SHARED_OPTIONS:
                    del drivers[next(iter(drivers))]
            return found
    except TypeError:  # unhashable
        return Driver(fun, name, options)


def _key(name: str, options: JitOptions) -> Any:
    """Options with what equality passes over: how shardings are written, and True beside 1."""
    written = tuple(None if s is None else repr(s) for s in (options.in_shardings, options.out_shardings))
    return name, options, written, tuple(type(value) for _, value in options.compiler_options)
