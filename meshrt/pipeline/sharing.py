"""`jit(f)` written twice is one jitted function: programs often call `jit(f)(x)` in a loop.

With other options it is another program of the same traces: `jit(f, out_shardings=...)` does not run `f` again after
`eval_shape(f, ...)`, and gives what that gave, metadata and all.

Functions are told apart by identity and held weakly: their caches go when they do.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from meshrt.heuristics import SHARED_OPTIONS
from meshrt.pipeline.driver import Driver
from meshrt.pipeline.keys import SharedTraces
from meshrt.pipeline.options import JitOptions
from meshrt.pipeline.static_arguments import WEAKLY_HELD

__all__ = ["driver_for"]

_lock = threading.Lock()


class _OfFunction:
    """What the jitted functions of one function share: the drivers by options, and their traces by its name then."""

    __slots__ = ("drivers", "traces")

    def __init__(self) -> None:
        self.drivers: dict[Any, Driver] = {}
        self.traces: dict[str, SharedTraces] = {}


_shared: weakref.WeakKeyDictionary[Any, _OfFunction] = weakref.WeakKeyDictionary()


def driver_for(fun: Callable[..., Any], name: str, options: JitOptions) -> Driver:
    """The caches of `jit(fun)` with these options: those of an earlier one, if `fun` is an ordinary function or a
    `functools.partial`.

    Not with `max_traces`, which counts what one jitted function does. Of options that cannot be hashed, such as
    dictionaries of shardings, only the traces are those of others.
    """
    if type(fun) not in WEAKLY_HELD or options.max_traces is not None:
        return Driver(fun, name, options)
    with _lock:
        of_function = _shared.setdefault(fun, _OfFunction())
        drivers, traces = of_function.drivers, of_function.traces.setdefault(name, SharedTraces())
        _drop_oldest(of_function.traces)
        key = _key(name, options)
        try:
            found = drivers.get(key)
        except TypeError:  # unhashable
            return Driver(fun, name, options, traces=traces)
        if found is None:
            found = drivers[key] = Driver(fun, name, options, weakly=True, traces=traces)
            _drop_oldest(drivers)
        return found


def _drop_oldest(made: dict[Any, Any]) -> None:
    """Of what was made for one function, beyond what is kept."""
    while len(made) > SHARED_OPTIONS:
        del made[next(iter(made))]


def _key(name: str, options: JitOptions) -> Any:
    """Options with what equality passes over: how shardings are written, and True beside 1."""
    written = tuple(None if s is None else repr(s) for s in (options.in_shardings, options.out_shardings))
    return name, options, written, tuple(type(value) for _, value in options.compiler_options)
