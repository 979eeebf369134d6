"""Scalars and NumPy arrays as arrays of the current trace."""

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
    traced = as_constant(scalar)
    if traced is not None:
        return traced
    aval = aval_of(scalar)
    return from_numpy(literal_value(scalar, aval), weak_type=aval.weak_type)


def as_constant(value: Any) -> Any:
    """A scalar or NumPy array as a tracer of the program that is being recorded, of which it becomes a constant without
    an equation; None where none is being recorded."""
    trace: Any = context.trace
    while not isinstance(trace, JaxprTrace):
        if trace is EVAL or isinstance(trace, EagerTrace):
            return None
        trace = trace.parent
    atom: Any = trace.atom(value)  # such a tracer is an operand, never an argument, so a literal needs no variable
    return JaxprTracer(trace, atom, source.capture())
