"""How the residuals of a scan's body get from the forward to the backward pass.

a constant of the loop, or computed from constants only   passed as it is, once (computed before the loop)
a slice of some xs                                         the xs again
a slice of some ys                                         the ys again
anything else (a carry, an intermediate value)             stacked by the forward scan

What is computed before the loop is looked at there too: a debug callback that sees nothing of the iteration is called
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt.core.dimensions.expression import guessed
from meshrt.core.effects import is_debug
from meshrt.core.jaxpr import Eqn, Jaxpr, Literal, Var

__all__: list[str] = []


def position(values: list[Any], value: Any) -> int:
    """The index of `value` (the object), appended if it is new."""
    for i, v in enumerate(values):
        if v is value:
            return i
    values.append(value)
    return len(values) - 1


class Places:
    """Where the backward pass can get each value of a body from: `of(var)` is ("const", k) for the k-th constant,
    ("x", k) and ("y", k) for slices of the k-th xs and ys, ("invariant", 0) for what every iteration computes alike,
    and ("new", 0) for all else, which only a stack of its own can hold.

    `body` takes `captured` values that linearization found, then consts, carry and xs, and gives carry and `num_ys` ys
    first. Loop-invariant are the captured values and all that is computed from them and the constants.
    """

    def __init__(self, body: Jaxpr, captured: int, num_consts: int, num_carry: int, num_ys: int, length: int):
        self.body, self.length = body, length
        self.num_const = captured + num_consts
        self.made_by: dict[Var, Eqn] = {}
        self.looks: list[Eqn] = []  # loop-invariant, and with debug effects
        invariant = set(body.invars[: self.num_const])
        for eqn in body.eqns:
            if all(map(is_debug, eqn.effects)) and all(type(a) is Literal or a in invariant for a in eqn.invars):
                if eqn.effects:
                    self.looks.append(eqn)
                invariant.update(eqn.outvars)
                self.made_by.update(dict.fromkeys(eqn.outvars, eqn))
        self._places: dict[Var, tuple[str, int]] = dict.fromkeys(invariant, ("invariant", 0))
        for k, v in enumerate(body.outvars[num_carry : num_carry + num_ys]):
            if type(v) is Var and v not in invariant:
                self._places[v] = ("y", k)
        for k, v in enumerate(body.invars[captured : self.num_const]):
            self._places[v] = ("const", k)
        for k, v in enumerate(body.invars[self.num_const + num_carry :]):
            self._places[v] = ("x", k)

    def of(self, value: Var) -> tuple[str, int]:
        return self._places.get(value, ("new", 0))

    def cost(self, value: Var) -> int:
        """Bytes that saving `value` takes beyond what is there anyway."""
        kind, _ = self.of(value)
        if kind in ("const", "x", "y"):
            return 0
        return guessed(value.aval.nbytes * (1 if kind == "invariant" else self.length))


class Hoisting:
    """Loop-invariant code motion: values that are wanted as residuals and equal in every iteration are computed before
    the loop, in a `prelude`, together with what they depend on, and so are debug callbacks that see only such values
    (but for loops without iterations, in which nothing happens).
    """

    def __init__(self, places: Places):
        self.places = places
        self.wanted: list[Var] = []

    def want(self, value: Var) -> int:
        """The position of `value` among the results of the prelude."""
        return position(self.wanted, value)

    def split(self, outs: Sequence[Any], stacked: Sequence[Any]) -> tuple[Jaxpr, Jaxpr, tuple[int, ...]]:
        """(prelude, forward body, positions among the prelude's results that the body takes as further constants)."""
        body, made_by = self.places.body, self.places.made_by
        looks = self.places.looks
        if looks and not self.places.length:  # asked last: whether a symbolic length is zero may be unknown
            looks = []
        moved = set(map(id, looks))
        pending = [*self.wanted, *[a for e in looks for a in e.invars if type(a) is Var]]
        while pending:
            eqn = made_by.get(pending.pop())
            if eqn is not None and id(eqn) not in moved:
                moved.add(id(eqn))
                pending += [a for a in eqn.invars if type(a) is Var]
        results = list(self.wanted)
        before = [e for e in body.eqns if id(e) in moved]
        stay = [e for e in body.eqns if id(e) not in moved]
        outside = {v for e in before for v in e.outvars}
        taken: list[Var] = []
        for a in [*[a for e in stay for a in e.invars], *outs, *stacked]:
            if type(a) is Var and a in outside:
                position(taken, a)
        takes = tuple([position(results, v) for v in taken])
        constants, rest = body.invars[: self.places.num_const], body.invars[self.places.num_const :]
        prelude = Jaxpr((), constants, results, before, name=body.name)
        forward = Jaxpr((), (*constants, *taken, *rest), (*outs, *stacked), stay, is_high=body.is_high, name=body.name)
        return prelude, forward, takes
