"""Cotangents that are added up in place: of an operand of which a program reads parts.

The transpose of a read of a part (`dynamic_slice`) writes the part's cotangent into an array of zeros. Added to the sum
of what was pulled back before, it is an addition to a part of that sum, which compilers do in place. Two of them added
to each other first, or one that a branch returns, are additions of whole arrays: in a loop over the parts, quadratic.
So an application that reads parts inside (a call, a branch, a loop) is pulled back as one that returns the operand as
well: then its transpose takes the sum so far, and adds to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from meshrt.core.jaxpr import Atom, Eqn, Jaxpr
from meshrt.core.primitive import Primitive
from meshrt.core.types import aval_of
from meshrt.transforms.tools import WeakCache

__all__ = ["add_parts_by", "added_part", "is_added_to", "reads_parts", "returning"]


class _Adder(NamedTuple):
    is_block: Callable[[dict[str, Any]], bool]
    add: Callable[[Any, Any, dict[str, Any]], Any]


_adders: dict[Primitive, _Adder] = {}
_uses: WeakCache = WeakCache()
_returning: WeakCache = WeakCache()


def add_parts_by(
    primitive: Primitive, is_block: Callable[[dict[str, Any]], bool], add: Callable[[Any, Any, dict[str, Any]], Any]
) -> None:
    """Says that `primitive` reads a static part of its operand, a block where `is_block(params)`: then
    `add(sum, cotangent, params)` adds its cotangent to the sum of those of the whole."""
    _adders[primitive] = _Adder(is_block, add)


def added_part(primitive: Primitive, params: dict[str, Any], total: Any, ct: Any) -> Any:
    """The sum of the cotangents of an operand so far and that of a part of it, if it is added to the part alone; None
    if not: where the part is most of it, or types say more than shapes and dtypes."""
    if primitive not in _adders or ct is None:
        return None
    whole, part = aval_of(total), aval_of(ct)
    alike = whole.explicit is part.explicit is None and whole.vma == part.vma
    if not alike or whole.memory_space is not part.memory_space or not _is_part(primitive, params, part, whole):
        return None
    return _adders[primitive].add(total, ct, params)


def _is_part(primitive: Primitive, params: dict[str, Any], part: Any, whole: Any) -> bool:
    """Whether what an application reads is a block that is at most half of its operand."""
    if primitive not in _adders or not _adders[primitive].is_block(params):
        return False
    return isinstance(whole.size, int) and isinstance(part.size, int) and 2 * part.size <= whole.size


class _Uses(NamedTuple):
    """How a program uses an argument: how many read parts of it, how many read it, and whether a branch, a loop or a
    static slice is among those that read parts."""

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
                more = _uses_here(eqn, i)
                found[a] = _Uses(known.parts + more.parts, known.all + more.all, known.inside or more.inside)
    return [found[v] for v in jaxpr.invars]


def _uses_here(eqn: Eqn, position: int) -> _Uses:
    if position == 0 and eqn.primitive.reads_part:
        return _Uses(1, 1, False)
    if _is_part(eqn.primitive, eqn.params, eqn.outvars[0].aval, eqn.invars[0].aval):
        return _Uses(1, 1, True)
    return _uses_inside(eqn.primitive, eqn.params, position)


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
