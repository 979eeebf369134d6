"""Small pieces that several transformations share."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from meshrt.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from meshrt.core.trace import literal_value
from meshrt.core.types import aval_of
from meshrt.sharding.mesh_caches import remembered

__all__ = ["WeakCache", "as_literal", "dce", "hoist_consts"]


class WeakCache:
    """Results derived from an object, kept as long as the object lives."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: weakref.WeakKeyDictionary[Any, dict[Hashable, Any]] = weakref.WeakKeyDictionary()

    def get(
        self, owner: Any, key: Hashable, make: Callable[[], Any], program: Callable[[Any], ClosedJaxpr] | None = None
    ) -> Any:
        """`make()`, or what it gave for an equal key: under this mesh if it asked for that in context, as rules of the
        user's may. With `program`, which says what program a result holds: it is made anew each time if that captures
        mutable values, which may hold other types by then.
        """
        entries = self._entries.get(owner)
        if entries is None:
            entries = self._entries[owner] = {}
        keeps = None
        if program is not None:
            keeps = lambda made: not any(aval_of(c).mutable for c in program(made).consts)
        return remembered(entries, key, make, keeps)


def hoist_consts(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same program with its captured constants as leading arguments; `.consts` are the values to pass there.

    The Jaxpr inside has no constvars, so it can be the parameter of a primitive; `.jaxpr.constvars` is empty and the
    returned object keeps the values only for its user to prepend.
    """
    jaxpr = closed.jaxpr
    hoisted = Jaxpr(
        (),
        (*jaxpr.constvars, *jaxpr.invars),
        jaxpr.outvars,
        jaxpr.eqns,
        jaxpr.effects,
        is_high=jaxpr.is_high,
        name=jaxpr.name,
        labels=jaxpr.labels and jaxpr.labels.behind(len(jaxpr.constvars)),
    )
    return Hoisted(hoisted, closed.consts)


class Hoisted(ClosedJaxpr):
    """A Jaxpr whose first `len(consts)` arguments are to be bound to `consts`."""

    __slots__ = ()

    def __init__(self, jaxpr: Jaxpr, consts: Sequence[Any]):
        self.jaxpr, self.consts = jaxpr, list(consts)


def dce(jaxpr: Jaxpr, used: Sequence[bool] | None = None, keep_inputs: bool = True) -> tuple[Jaxpr, list[bool]]:
    """`jaxpr` without the equations that its (used) results don't need, and which arguments are needed.

    Equations with effects stay; those that hold Jaxprs are pruned inside by the `dce` rule of their primitive. With
    `keep_inputs=False` the unneeded arguments are dropped from the result.
    """
    outvars = [v for i, v in enumerate(jaxpr.outvars) if used is None or used[i]]
    live: set[Var] = {v for v in outvars if type(v) is Var}
    kept: list[Eqn] = []
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or not live.isdisjoint(eqn.outvars):
            if eqn.primitive.dce is not None:
                eqn = eqn.primitive.dce(eqn, [v in live for v in eqn.outvars])
            kept.append(eqn)
            for a in eqn.invars:
                if type(a) is Var:
                    live.add(a)
    kept.reverse()
    needed = [v in live for v in jaxpr.invars]
    invars = jaxpr.invars if keep_inputs else [v for v, n in zip(jaxpr.invars, needed) if n]
    return Jaxpr(jaxpr.constvars, invars, outvars, kept, is_high=jaxpr.is_high, name=jaxpr.name), needed


def as_literal(value: Any) -> Literal | None:
    """A Literal for Python and NumPy scalars, None for anything else."""
    scalar = isinstance(value, bool | int | float | complex | np.generic)
    if scalar or (isinstance(value, np.ndarray) and not value.ndim):
        aval = aval_of(value)
        return Literal(literal_value(value, aval), aval)
    return None
