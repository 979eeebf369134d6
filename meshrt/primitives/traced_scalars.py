"""Scalars and NumPy arrays as arrays of the current trace."""

from __future__ import annotations

from typing import Any

from meshrt.core import source
from meshrt.core.eager import EagerTrace
from meshrt.core.jaxpr import Literal
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
    trace = _recording()
    if trace is None:
        return None
    atom: Any = trace.atom(value)  # such a tracer is an operand, never an argument, so a literal needs no variable
    return JaxprTracer(trace, atom, source.capture())


def literal_of(value: Any) -> Any:
    """The literal that a tracer stands for in the program that is being recorded, else None. What stands for one in a
    program around it is captured like other values: how many values a function closes over does not depend on that."""
    if type(value) is JaxprTracer and type(value._var) is Literal and value._trace is _recording():
        return value._var.val
    return None


def _recording() -> JaxprTrace | None:
    """The program that is being recorded."""
    trace: Any = context.trace
    while not isinstance(trace, JaxprTrace):
        if trace is EVAL or isinstance(trace, EagerTrace):
            return None
        trace = trace.parent
    return trace
