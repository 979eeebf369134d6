"""Python and NumPy scalars as arrays of the current trace."""

from __future__ import annotations

from typing import Any

from meshrt.core import source
from meshrt.core.eager import EagerTrace
from meshrt.core.trace import EVAL, JaxprTrace, JaxprTracer, context, literal_value
from meshrt.core.types import aval_of
from meshrt.runtime.transfer import from_numpy

__all__: list[str] = []


def as_traced(scalar: Any) -> Any:
    """A scalar as something that has an array's methods: an Array, or where a program is being recorded a tracer, in
    whose place equations take the literal."""
    trace: Any = context.trace
    while not isinstance(trace, JaxprTrace):
        if trace is EVAL or isinstance(trace, EagerTrace):
            aval = aval_of(scalar)
            return from_numpy(literal_value(scalar, aval), weak_type=aval.weak_type)
        trace = trace.parent
    literal: Any = trace.literal(scalar)  # such a tracer is an operand, never an argument, so it needs no variable
    return JaxprTracer(trace, literal, source.capture())
