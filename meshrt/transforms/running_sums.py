"""Cotangents that are added up in place: of an operand of which a program reads parts.

The transpose of a read of a part (`dynamic_slice`) writes the part's cotangent into an array of zeros. Added to the sum
of what was pulled back before, it is an addition to a part of that sum, which compilers do in place. Two of them added
to each other first, or one that a branch returns, are additions of whole arrays: in a loop over the parts, quadratic.
So an application that reads parts inside (a call, a branch, a loop) is pulled back as one that returns the operand as
well: then its transpose takes the sum so far, and adds to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt.core.jaxpr import Eqn, Jaxpr, Var
from meshrt.core.primitive import Primitive
from meshrt.transforms.tools import WeakCache

__all__ = ["is_added_to", "reads_parts", "returning"]

_uses: WeakCache = WeakCache()
_returning: WeakCache = WeakCache()


def reads_parts(primitive: Primitive, params: dict[str, Any], position: int) -> bool:
    """Whether an application that may return operands as well reads parts of this one inside."""
    if primitive.passing is None or primitive.applies is None:
        return False
    inside = ((jaxpr, [*places]) for jaxpr, places in primitive.applies(params))
    if not any(position in places and _part_uses(jaxpr, places.index(position))[0] for jaxpr, places in inside):
        return False
    return primitive.passing(params, (position,)) is not None


def is_added_to(jaxpr: Jaxpr, argument: int) -> bool:
    """Whether the cotangent of an argument has several summands of which one is that of a part, or a part is read
    further inside, so that it matters what is added first."""
    parts, uses, inside = _part_uses(jaxpr, argument)
    return inside or (parts > 0 and uses > 1)


def _part_uses(jaxpr: Jaxpr, argument: int) -> tuple[int, int, bool]:
    """(how many equations read parts of the argument, how many use it, whether one reads parts inside)."""
    return _uses.get(jaxpr, argument, lambda: _count(jaxpr, jaxpr.invars[argument]))


def _count(jaxpr: Jaxpr, var: Var) -> tuple[int, int, bool]:
    places = [(e, i) for e in jaxpr.eqns for i, a in enumerate(e.invars) if a is var]
    inside = sum(_inside(e, i) for e, i in places)
    parts = sum(e.primitive.reads_part and i == 0 for e, i in places)
    return parts + inside, len(places), inside > 0


def _inside(eqn: Eqn, position: int) -> bool:
    return reads_parts(eqn.primitive, eqn.params, position)


def returning(jaxpr: Jaxpr, arguments: Sequence[int], at: int) -> Jaxpr:
    """`jaxpr` that returns these arguments as well, before its result `at`; the same object for the same request."""
    key = (tuple(arguments), at)

    def make() -> Jaxpr:
        outs = list(jaxpr.outvars)
        outs[at:at] = [jaxpr.invars[i] for i in arguments]
        return Jaxpr((), jaxpr.invars, outs, jaxpr.eqns, jaxpr.effects, is_high=jaxpr.is_high, name=jaxpr.name)

    return _returning.get(jaxpr, key, make)
