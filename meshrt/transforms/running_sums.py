"""Cotangents that are added up in place: of an operand of which a program reads parts.

The transpose of a read of a part (`dynamic_slice`) writes the part's cotangent into an array of zeros. Added to the sum
of what was pulled back before, it is an addition to a part of that sum, which compilers do in place. Two of them added
to each other first, or one that a branch returns, are additions of whole arrays: in a loop over the parts, quadratic.
So an application that reads parts inside (a call, a branch, a loop) is pulled back as one that returns the operand as
well: then its transpose takes the sum so far, and adds to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from meshrt.core.jaxpr import Atom, Jaxpr
from meshrt.core.primitive import Primitive
from meshrt.transforms.tools import WeakCache

__all__ = ["is_added_to", "reads_parts", "returning"]

_uses: WeakCache = WeakCache()
_returning: WeakCache = WeakCache()


class _Uses(NamedTuple):
    """How a program uses an argument: how many read parts of it, how many read it, and whether a branch or a loop is
    among those that read parts."""

    parts: int
    all: int
    inside: bool

    def need_sums(self) -> bool:
        """Whether it matters what is added first: there are several parts, or one whose summand is a whole array
        where it comes out; and nothing else, whose summand is an array of the whole anyway."""
        return self.parts == self.all and (self.parts > 1 or self.inside)


def reads_parts(primitive: Primitive, params: dict[str, Any], position: int) -> bool:
    """Whether an application is pulled back as one that returns this operand: it may, and reads parts of it inside."""
    return _uses_inside(primitive, params, position).need_sums() and _passes(primitive, params, position)


def is_added_to(jaxpr: Jaxpr, argument: int) -> bool:
    """Whether the cotangent of an argument is a sum to which parts are added one by one."""
    return _uses_of(jaxpr, argument).need_sums()


def _passes(primitive: Primitive, params: dict[str, Any], position: int) -> bool:
    return primitive.passing is not None and primitive.passing(params, (position,)) is not None


def _uses_of(jaxpr: Jaxpr, argument: int) -> _Uses:
    return _uses.get(jaxpr, None, lambda: _count(jaxpr))[argument]


def _count(jaxpr: Jaxpr) -> list[_Uses]:
    """Of all arguments, in one walk: a loop's body may have hundreds of them, and thousands of equations."""
    found: dict[Atom, _Uses] = {v: _Uses(0, 0, False) for v in jaxpr.invars}
    for eqn in jaxpr.eqns:
        for i, a in enumerate(eqn.invars):
            known = found.get(a)
            if known is not None:
                is_part = eqn.primitive.reads_part and i == 0
                more = _Uses(1, 1, False) if is_part else _uses_inside(eqn.primitive, eqn.params, i)
                found[a] = _Uses(known.parts + more.parts, known.all + more.all, known.inside or more.inside)
    return [found[v] for v in jaxpr.invars]


def _uses_inside(primitive: Primitive, params: dict[str, Any], position: int) -> _Uses:
    """How an application uses an operand: a call as what it calls does, branches and loops as one."""
    if primitive.passing is None or primitive.applies is None:
        return _Uses(0, 1, False)
    programs = [(j, [*places]) for j, places in primitive.applies(params)]
    found = [_uses_of(j, places.index(position)) for j, places in programs if position in places]
    if primitive.calls is not None and len(found) == 1:
        return found[0]
    parts = any(f.parts for f in found) and _passes(primitive, params, position)
    return _Uses(int(parts), 1, parts)


def returning(jaxpr: Jaxpr, arguments: Sequence[int], at: int) -> Jaxpr:
    """`jaxpr` that returns these arguments as well, before its result `at`; the same object for the same request."""
    key = (tuple(arguments), at)

    def make() -> Jaxpr:
        outs = list(jaxpr.outvars)
        outs[at:at] = [jaxpr.invars[i] for i in arguments]
        return Jaxpr((), jaxpr.invars, outs, jaxpr.eqns, jaxpr.effects, is_high=jaxpr.is_high, name=jaxpr.name)

    return _returning.get(jaxpr, key, make)
