"""What is being traced right now: for libraries that keep state of their own beside a trace."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from meshrt.core.axes import axes_in_scope
from meshrt.core.trace import EVAL, JaxprTrace, Trace, context, current_trace, set_trace
from meshrt.sharding.mesh_caches import note_read
from meshrt.transforms.batching import BatchTrace

__all__ = [
    "OpaqueTraceState", "TraceTag", "find_top_trace", "get_opaque_trace_state", "nonempty_axis_env_DO_NOT_USE",
    "set_current_trace", "take_current_trace", "trace_state_clean", "unsafe_am_i_under_a_jit_DO_NOT_USE",
    "unsafe_am_i_under_a_vmap_DO_NOT_USE", "unsafe_get_axis_names_DO_NOT_USE",
]  # fmt: skip

set_current_trace = set_trace


class TraceTag:
    """Tells the traces of one transformation from those of another."""

    __slots__ = ("__weakref__",)


class OpaqueTraceState:
    """Stands for a moment of tracing: equal to another one of the same trace."""

    __slots__ = ("_trace",)

    def __init__(self, trace: Trace):
        self._trace = weakref.ref(trace)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpaqueTraceState) and self._trace == other._trace

    def __hash__(self) -> int:
        return hash(self._trace)

    def __repr__(self) -> str:
        return f"OpaqueTraceState({type(self._trace()).__name__})"


def get_opaque_trace_state(convention: str | None = None) -> OpaqueTraceState:
    """The state of tracing now. `convention` names who asks and changes nothing."""
    return OpaqueTraceState(current_trace())


def find_top_trace(values: Any = ()) -> Trace:
    """The trace that operations are handed to now, whatever `values` are."""
    return current_trace()


def trace_state_clean() -> bool:
    """Whether nothing is being traced."""
    return current_trace() is EVAL


@contextmanager
def take_current_trace() -> Iterator[Trace]:
    """Gives the current trace; inside the block operations are evaluated unless another trace is set."""
    trace = context.trace
    note_read()  # what is evaluated lies on the devices in context
    with set_trace(EVAL):
        yield trace


def _stack() -> Iterator[Trace]:
    trace: Any = current_trace()
    while trace is not None:
        yield trace
        trace = getattr(trace, "parent", None)


def unsafe_am_i_under_a_jit_DO_NOT_USE() -> bool:
    """Whether a program is being recorded."""
    return any(isinstance(trace, JaxprTrace) for trace in _stack())


def unsafe_am_i_under_a_vmap_DO_NOT_USE() -> bool:
    """Whether a function is being mapped."""
    return any(isinstance(trace, BatchTrace) for trace in _stack())


def unsafe_get_axis_names_DO_NOT_USE() -> list[Any]:
    """The names that collectives may use here."""
    return [axis.name for axis in axes_in_scope()]


def nonempty_axis_env_DO_NOT_USE() -> bool:
    """Whether there are axes that collectives may name."""
    return bool(axes_in_scope())
