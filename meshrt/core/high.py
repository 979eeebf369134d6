"""High (hijax) types: types of values that consist of several arrays, such as a quantized matrix with its scales.

A class of values gets a high type with `register_hitype`; a primitive takes such values if it has a `to_lojax` rule,
which computes an application from the arrays inside. Below, everything works on arrays: compiled programs,
derivatives, batching. High types therefore end at the boundary of the traces that require low ones, in two ways that
both lead through this file:

    values that enter or leave a staged or transformed function     `meshrt.transforms.high.flatten` replaces them by
                                                                     their arrays, in a structure that knows how to put
                                                                     them together again
    applications of primitives in such a trace                       `Primitive.bind` calls `to_lojax`

All traces require low types but a `JaxprTrace(requires_low=False)`, which records a program over high types as it is
(`is_high`); `lower_jaxpr` turns that into the program over arrays. Where no high type is registered, nothing here
costs more than a look at an empty set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt.core.jaxpr import ClosedJaxpr, Literal, Var
from meshrt.core.trace import JaxprTrace, set_trace
from meshrt.core.types import AbstractValue, ShapedArray, aval_of, register_aval

__all__ = ["HiType", "has_high_types", "is_high_value", "lower_jaxpr", "register_hitype"]


class HiType(AbstractValue):
    """A type whose values consist of arrays. Subclasses are hashable, and equal where they mean the same type."""

    __slots__ = ()
    is_high = True

    def lo_ty(self) -> list[ShapedArray]:
        """The types of the arrays that a value consists of."""
        raise NotImplementedError(f"{type(self).__name__} requires a method lo_ty, the types of the arrays of a value")

    def lower_val(self, value: Any) -> list[Any]:
        """The arrays of a value, of the types `lo_ty()`."""
        raise NotImplementedError(f"{type(self).__name__} requires a method lower_val, the arrays of a value")

    def raise_val(self, *arrays: Any) -> Any:
        """The value that consists of these arrays (or tracers of them)."""
        raise NotImplementedError(f"{type(self).__name__} requires a method raise_val, the value made of arrays")


_classes: set[type] = set()


def register_hitype(cls: type, typeof: Callable[[Any], HiType]) -> None:
    """Makes instances of `cls` usable as operands and arguments: `typeof(value)` is the high type of one."""
    _classes.add(cls)
    register_aval(cls, typeof)


def has_high_types() -> bool:
    """Whether any class of high values is registered."""
    return bool(_classes)


def is_high_value(value: Any) -> bool:
    """Whether a value is of a class registered with a high type."""
    return type(value) in _classes


def lower_jaxpr(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program over the arrays that the high arguments and results of `closed` consist of, in their order."""
    if not closed.is_high:
        return closed
    trace = JaxprTrace(closed.jaxpr.name)
    args: list[Any] = []
    env: dict[Var, Any] = dict(zip(closed.jaxpr.constvars, closed.consts))
    for var in closed.jaxpr.invars:
        kind: Any = var.aval
        mine = [trace.argument(a) for a in (kind.lo_ty() if kind.is_high else [kind])]
        env[var] = kind.raise_val(*mine) if kind.is_high else mine[0]
        args += mine
    with set_trace(trace):
        for eqn in closed.eqns:
            ins = [a.val if type(a) is Literal else env[a] for a in eqn.invars]
            out = eqn.primitive.bind(*ins, **eqn.params)
            env.update(zip(eqn.outvars, out if eqn.primitive.multiple_results else [out]))
        outs = [a.val if type(a) is Literal else env[a] for a in closed.jaxpr.outvars]
        return trace.close(args, _arrays(outs))


def _arrays(values: Sequence[Any]) -> list[Any]:
    out: list[Any] = []
    for value in values:
        kind: Any = aval_of(value)
        out += kind.lower_val(value) if kind.is_high else [value]
    return out
