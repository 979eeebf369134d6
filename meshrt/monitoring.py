"""Events with durations and values, and those who listen. Names and signatures are ``jax.monitoring``'s.

meshrt reports what its pipeline does as events ``/meshrt/trace``, ``/meshrt/compile``, ... with the details as keyword
arguments (`meshrt.runtime.events` lists them), and under JAX's names what tools that were written for it look for: how
long tracing, lowering and compiling took, and hits and misses of the compilation cache on disk. Programs may record
events of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from meshrt import errors
from meshrt.runtime import events

__all__ = [
    "clear_event_listeners", "record_event", "record_event_duration_secs", "record_event_time_span", "record_scalar",
    "register_event_duration_secs_listener", "register_event_listener", "register_event_time_span_listener",
    "register_scalar_listener", "unregister_event_duration_listener", "unregister_event_listener",
    "unregister_event_time_span_listener", "unregister_scalar_listener",
]  # fmt: skip

Listener = Callable[..., None]

_lock = threading.Lock()


class _Listeners:
    """Those who are told of one sort of event."""

    def __init__(self, sort: str):
        self.sort = sort
        self.all: tuple[Listener, ...] = ()

    def add(self, callback: Listener) -> None:
        with _lock:
            self.all = (*self.all, callback)

    def remove(self, callback: Listener) -> None:
        with _lock:
            kept = list(self.all)
            if callback not in kept:
                raise errors.UnknownListenerError(f"{callback!r} does not listen to {self.sort}")
            kept.remove(callback)
            self.all = tuple(kept)

    def tell(self, *args: Any, **details: Any) -> None:
        for callback in self.all:
            callback(*args, **details)


_events, _durations = _Listeners("events"), _Listeners("durations")
_spans, _scalars = _Listeners("time spans"), _Listeners("scalars")


def record_event(event: str, **kwargs: str | int) -> None:
    """Tells the listeners that `event` happened.

    >>> meshrt.monitoring.record_event("/my/event")
    """
    _events.tell(event, **kwargs)


def record_event_duration_secs(event: str, duration: float, **kwargs: str | int) -> None:
    """Tells the listeners that `event` took `duration` seconds.

    >>> meshrt.monitoring.record_event_duration_secs("/my/duration", 0.5)
    """
    _durations.tell(event, duration, **kwargs)


def record_event_time_span(event: str, start_time: float, end_time: float, **kwargs: str | int) -> None:
    """Tells the listeners that `event` lasted from `start_time` to `end_time`, in seconds.

    >>> meshrt.monitoring.record_event_time_span("/my/span", 0.0, 0.5)
    """
    _spans.tell(event, start_time, end_time, **kwargs)


def record_scalar(event: str, value: float | int, **kwargs: str | int) -> None:
    """Tells the listeners of the value of `event`.

    >>> meshrt.monitoring.record_scalar("/my/scalar", 3.0)
    """
    _scalars.tell(event, value, **kwargs)


_unsubscribe: Callable[[], None] | None = None

# JAX's names.
_STAGES = {
    "trace": "/jax/core/compile/jaxpr_trace_duration",
    "lower": "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "compile": "/jax/core/compile/backend_compile_duration",
}
_ON_DISK = {
    "persistent_hit": "/jax/compilation_cache/cache_hits",
    "persistent_miss": "/jax/compilation_cache/cache_misses",
}


def _of_a_stage(what: str, name: str, start: float, end: float) -> None:
    event = _STAGES[what]
    _durations.tell(event, end - start, fun_name=name)
    _spans.tell(event, start, end, fun_name=name)
    if what == "compile":
        _events.tell("/jax/compilation_cache/compile_requests_use_cache")


def _follow() -> None:
    """Has the pipeline tell what somebody listens to, and nothing that nobody does."""
    global _unsubscribe
    with _lock:
        timed = bool(_events.all or _durations.all or _spans.all)
        if not timed:
            events.timers[:] = [t for t in events.timers if t is not _of_a_stage]
        elif _of_a_stage not in events.timers:
            events.timers.append(_of_a_stage)
        if _events.all and _unsubscribe is None:
            _unsubscribe = events.subscribe(_of_the_pipeline)
        elif not _events.all and _unsubscribe is not None:
            _unsubscribe()
            _unsubscribe = None


def register_event_listener(callback: Listener) -> None:
    """Calls `callback(event, **details)` at each event, those of meshrt's pipeline included.

    >>> listen = lambda event, **kwargs: None
    >>> meshrt.monitoring.register_event_listener(listen)
    >>> meshrt.monitoring.unregister_event_listener(listen)
    """
    _events.add(callback)
    _follow()


def _of_the_pipeline(kind: str, details: dict[str, Any]) -> None:
    _events.tell(f"/meshrt/{kind}", **details)
    if kind in _ON_DISK and str(details.get("key", "")).endswith(".xla"):  # beside them lie programs of our own
        _events.tell(_ON_DISK[kind])


def register_event_duration_secs_listener(callback: Listener) -> None:
    """Calls `callback(event, seconds, **details)` at each duration.

    >>> listen = lambda event, secs, **kwargs: None
    >>> meshrt.monitoring.register_event_duration_secs_listener(listen)
    >>> meshrt.monitoring.unregister_event_duration_listener(listen)
    """
    _durations.add(callback)
    _follow()


def register_event_time_span_listener(callback: Listener) -> None:
    """Calls `callback(event, start, end, **details)` at each time span.

    >>> listen = lambda event, start, end, **kwargs: None
    >>> meshrt.monitoring.register_event_time_span_listener(listen)
    >>> meshrt.monitoring.unregister_event_time_span_listener(listen)
    """
    _spans.add(callback)
    _follow()


def register_scalar_listener(callback: Listener) -> None:
    """Calls `callback(event, value, **details)` at each value.

    >>> listen = lambda event, value, **kwargs: None
    >>> meshrt.monitoring.register_scalar_listener(listen)
    >>> meshrt.monitoring.unregister_scalar_listener(listen)
    """
    _scalars.add(callback)


def unregister_event_listener(callback: Listener) -> None:
    """Ends `register_event_listener`. UnknownListenerError if it does not listen.

    >>> listen = lambda event, **kwargs: None
    >>> meshrt.monitoring.register_event_listener(listen)
    >>> meshrt.monitoring.unregister_event_listener(listen)
    """
    _events.remove(callback)
    _follow()


def unregister_event_duration_listener(callback: Listener) -> None:
    """Ends `register_event_duration_secs_listener`. UnknownListenerError if it does not listen.

    >>> listen = lambda event, secs, **kwargs: None
    >>> meshrt.monitoring.register_event_duration_secs_listener(listen)
    >>> meshrt.monitoring.unregister_event_duration_listener(listen)
    """
    _durations.remove(callback)
    _follow()


def unregister_event_time_span_listener(callback: Listener) -> None:
    """Ends `register_event_time_span_listener`. UnknownListenerError if it does not listen.

    >>> listen = lambda event, start, end, **kwargs: None
    >>> meshrt.monitoring.register_event_time_span_listener(listen)
    >>> meshrt.monitoring.unregister_event_time_span_listener(listen)
    """
    _spans.remove(callback)
    _follow()


def unregister_scalar_listener(callback: Listener) -> None:
    """Ends `register_scalar_listener`. UnknownListenerError if it does not listen.

    >>> listen = lambda event, value, **kwargs: None
    >>> meshrt.monitoring.register_scalar_listener(listen)
    >>> meshrt.monitoring.unregister_scalar_listener(listen)
    """
    _scalars.remove(callback)


def clear_event_listeners() -> None:
    """Ends all listening."""
    with _lock:
        for listeners in (_events, _durations, _spans, _scalars):
            listeners.all = ()
    _follow()
