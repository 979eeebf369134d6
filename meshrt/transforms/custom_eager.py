"""Calls of functions with custom derivatives on values that are known: the function, or its rule, is run as Python.

What is neither staged nor mapped, at most differentiated, has values: functions and rules may branch on them. Such a
call is not staged to a Jaxpr, but one operation whose parameters are the Python functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.basic.shapes import broadcast_in_dim_p
from meshrt.core.jaxpr import NO_EFFECTS
from meshrt.core.primitive import Primitive
from meshrt.core.source import is_replaying
from meshrt.core.trace import EvalTrace, JaxprTrace, JaxprTracer, Tracer, context
from meshrt.core.typed_numbers import as_typed
from meshrt.core.types import aval_of
from meshrt.transforms.arguments import fun_name
from meshrt.transforms.high import flatten
from meshrt.transforms.jvp import JVPTrace
from meshrt.transforms.linear import LinearTrace

__all__ = ["Call", "closed_over", "is_known", "known_call", "traced"]


def is_known(leaves: Sequence[Any]) -> bool:
    """Whether the values of all of `leaves` are known, and what is done with them happens now."""
    trace: Any = context.trace
    while isinstance(trace, JVPTrace | LinearTrace):
        trace = trace.parent
    if not isinstance(trace, EvalTrace):
        return False
    return all((not isinstance(x, Tracer) or x.concrete() is not None) and not aval_of(x).is_high for x in leaves)


def traced(operands: Sequence[Any]) -> list[Any]:
    """The operands of a staged call. Where it stands in a program that is run again, a literal is a value like those
    that the program computes: a rule may tell arrays from numbers, and treat numbers as what is not differentiated.
    Where the function is called now, numbers are those of the caller, and rules may branch on them.
    """
    if not is_replaying():
        return list(operands)
    trace: Any = context.trace
    while not isinstance(trace, JaxprTrace | EvalTrace):
        trace = trace.parent
    return [_traced(trace, x) if isinstance(x, _NUMBERS) else x for x in operands]


_NUMBERS = (bool, int, float, complex, np.generic)


def _traced(trace: JaxprTrace | EvalTrace, number: Any) -> Any:
    if isinstance(trace, JaxprTrace):
        literal: Any = trace.literal(number)  # such a tracer is an operand, never an argument: it needs no variable
        return JaxprTracer(trace, literal, None)
    return broadcast_in_dim_p.bind(number, shape=(), broadcast_dimensions=())


class Call:
    """A function of pytrees as one of flat lists, which knows the structure of its result once it has run."""

    __slots__ = ("_within", "fun", "in_tree", "out_tree")

    def __init__(self, fun: Callable[..., Any], in_tree: Any):
        self.fun, self.in_tree = fun, in_tree
        self.out_tree: Any = None
        self._within = context.trace

    def __call__(self, *leaves: Any) -> list[Any]:
        try:
            outs, self.out_tree = flatten(self.fun(*self.in_tree.unflatten(map(as_typed, leaves))))
        except errors.LeakedTracerError as e:
            if e.tracer is None or not self._differentiates(e.tracer):
                raise
            raise closed_over(f"the function {fun_name(self.fun)} with custom derivatives") from None
        return outs

    def _differentiates(self, tracer: Tracer) -> bool:
        """Whether the call is made while a derivative is taken with respect to `tracer`."""
        trace: Any = self._within
        while trace is not None and trace is not tracer._trace:
            trace = getattr(trace, "parent", None)
        return trace is not None


def closed_over(what: str) -> errors.ClosedOverError:
    return errors.ClosedOverError(
        f"{what} was differentiated with respect to a value that it closes over; its rules speak of arguments "
        "only. Pass the value to the function as an argument, and extend the rules"
    )


def _not_lowered(*args: Any, **params: Any) -> Any:
    raise errors.InternalError("a call on values that are known was staged")


def known_call(name: str, **rules: Any) -> Primitive:
    """The operation `name[call rule] arguments... -> results...` with these rules of differentiation."""
    staged = "calls on values that are not known are staged, as another primitive"
    return Primitive(
        name, _not_lowered, lower=_not_lowered, impl=lambda *args, call, rule: call(*args), multiple_results=True,
        effects=lambda *avals, **_: NO_EFFECTS, cache_types=False, absent=dict.fromkeys(("transpose", "batch"), staged),
        **rules,
    )  # fmt: skip
