"""Traced values that are used, or still referred to, after their trace has ended."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

from meshrt import errors
from meshrt.core import source
from meshrt.core.tracer import Tracer

if TYPE_CHECKING:
    from meshrt.core.primitive import Primitive

__all__ = ["leaked", "refuse_leaks"]


def leaked(tracer: Tracer, primitive: Primitive | None = None) -> errors.LeakedTracerError:
    use = f" by {primitive.name} at {source.capture()}" if primitive is not None else ""
    made, told = tracer.origin(), tracer.traced_for()
    lines = [
        "Encountered an unexpected tracer. A function transformed by meshrt had a side effect, allowing for a "
        f"reference to an intermediate value with type {str(tracer.aval).lstrip('~')} wrapped in a "
        f"{type(tracer).__name__} to escape the scope of the transformation: a traced value of type {tracer.aval} was "
        f"used{use} after the function that was being traced had returned. Return the value from the function instead "
        "of storing it in a global state: a variable, an attribute or a container.",
        *([] if told is None else [f"The function being traced when the value leaked was {told.traced()}."]),
        *([f"The leaked intermediate value {made}."] if made else []),
    ]
    return errors.LeakedTracerError("\n".join(lines), tracer)


def refuse_leaks(kept: weakref.ref[Any], name: str) -> None:
    """Raises if anything still refers to values of a trace that has ended, and with that to the trace.

    Args:
      kept: the trace.
      name: the function that was traced.
    """
    gc.collect()
    trace = kept()
    if trace is None:
        return
    tracers = [x for x in gc.get_referrers(trace) if isinstance(x, Tracer)]
    if tracers:
        origins = [(x.aval, x.origin()) for x in tracers]
        listed = ", ".join(f"{aval}, which {origin}" if origin else str(aval) for aval, origin in origins)
        raise errors.LeakedTracerError(
            f"Leaked trace {type(trace).__name__}: {name} has ended, but traced values of it are still referred to: "
            f"{listed}. Return values instead of storing them in a variable, an attribute or a container",
            tracers[0],
        )
