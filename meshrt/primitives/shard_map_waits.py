"""Collectives that some devices of a manual region never come to, as they stand in a branch or loop that devices choose
by themselves: those that come wait for ever.

    lax.cond(lax.axis_index("x") > 1, lambda v: lax.psum(v, "x"), lambda v: v, v)

Here the sum over "x" waits for devices that take the other branch. (A sum over "y" does not: devices along "y" have one
predicate.) What a predicate differs over is followed through the program, as types say it of what they check only, and
take a value that was gathered for one that differs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from meshrt.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from meshrt.core.source import user_stacklevel
from meshrt.errors import DivergenceWarning
from meshrt.primitives.shard_map_chain import chain_behind
from meshrt.transforms.tools import WeakCache

# Nothing for `meshrt.lax`.
__all__: list[str] = []

Axes = frozenset[Any]
_NOWHERE: Axes = frozenset()

_looked_at: WeakCache = WeakCache()


class _Wait(NamedTuple):
    """A collective over `axis` inside of `choice`, which devices along that axis run in different ways.

    `predicate` is the value that they choose by, of the program `where`.
    """

    collective: Eqn
    choice: Eqn
    axis: Any
    where: Jaxpr
    predicate: Atom


def warn_of_waits(
    name: str, jaxpr: Jaxpr, is_typed: bool, operands: Sequence[Axes], argument: Callable[[int], str]
) -> None:
    """Warns, once for each program, of the first collective that some devices never come to.

    Args:
      name: of the function that `jaxpr` is the body of.
      is_typed: whether types say over which axes values vary.
      operands: over which axes each argument of `jaxpr` differs between devices.
      argument: what argument i is called.
    """
    _looked_at.get(jaxpr, tuple(operands), lambda: _warn(name, jaxpr, _Walk(is_typed), operands, argument))


def _warn(name: str, jaxpr: Jaxpr, walk: _Walk, operands: Sequence[Axes], argument: Callable[[int], str]) -> bool:
    walk.known.update(zip(jaxpr.invars, operands))
    wait = next(walk.waits(jaxpr), None)
    if wait is None:
        return False
    chain = chain_behind(wait.where, wait.predicate, wait.axis, walk.naming(wait.where, argument), walk.varies)
    collective, choice, axis = wait.collective, wait.choice, wait.axis
    lines = "\n".join(chain)
    warnings.warn(
        f"{collective.primitive.name} over {axis!r} at {collective.source} may wait for ever, in {name}: it stands "
        f"inside of the {choice.primitive.name} at {choice.source}, whose predicate differs between devices along "
        f"{axis!r}, so some of them never come to it (on CPUs, XLA ends the process after 40 seconds). The predicate "
        f"varies over {axis!r} by these operations, last first:\n{lines}\n"
        f"  Compute {collective.primitive.name} on all devices, outside, and choose among results with "
        f"meshrt.numpy.where; or make the predicate one value with meshrt.lax.pmax(predicate, {axis!r})",
        DivergenceWarning,
        stacklevel=user_stacklevel(),
    )
    return True


class _Walk:
    """Follows through a program over which axes values differ, and finds the collectives that wait.

    Of loops whose types say nothing (`check_vma=False`) one iteration is followed, so what differs only because an
    earlier iteration made it is not seen: rather no warning than a wrong one.
    """

    def __init__(self, is_typed: bool):
        self.is_typed = is_typed
        self.known: dict[Var, Axes] = {}
        # Of arguments of Jaxprs inside: the operand that each is, and the program in which that stands.
        self.outside: dict[Var, tuple[Jaxpr, Atom]] = {}

    def varies(self, atom: Atom) -> Axes:
        return _NOWHERE if type(atom) is Literal else self.known.get(atom, _NOWHERE)

    def waits(self, jaxpr: Jaxpr) -> Iterator[_Wait]:
        for eqn in jaxpr.eqns:
            inner = () if eqn.primitive.applies is None else eqn.primitive.applies(eqn.params)
            for body, positions in inner:
                self._enter(jaxpr, eqn, body, positions)
                yield from self.waits(body)
            differs = _NOWHERE
            if eqn.primitive.decides is not None:
                within, predicate = eqn.primitive.decides(eqn)
                differs = self.varies(predicate)
                if differs:
                    for collective, axis in _collectives(inner, differs):
                        yield _Wait(collective, eqn, axis, jaxpr if within is None else within, predicate)
            self._leave(eqn, [body for body, _ in inner], differs)

    def _enter(self, jaxpr: Jaxpr, eqn: Eqn, body: Jaxpr, positions: Sequence[int]) -> None:
        repeated = not eqn.primitive.once and (eqn.primitive.decides is None or eqn.primitive.repeats)
        for var, i in zip(body.invars, positions):
            operand = eqn.invars[i]
            # What a loop carries may differ from the second iteration on, as its type says.
            of_type = var.aval.vma if repeated and self.is_typed else _NOWHERE
            # Not with what is known: a Jaxpr may be applied several times, to different values.
            self.known[var] = self.varies(operand) | of_type
            self.outside[var] = (jaxpr, operand)

    def _leave(self, eqn: Eqn, bodies: Sequence[Jaxpr], differs: Axes) -> None:
        primitive = eqn.primitive
        operands = _NOWHERE.union(*map(self.varies, eqn.invars))
        bodies = [b for b in bodies if len(b.outvars) == len(eqn.outvars)]
        if bodies:
            for i, out in enumerate(eqn.outvars):
                found = differs.union(*[self.varies(b.outvars[i]) for b in bodies])
                # A region inside puts together what differs along its own axes.
                self.known[out] = found & out.aval.vma if self.is_typed else found
            return
        if primitive.names is not None:
            names = primitive.names(eqn.params)
            if not eqn.invars:
                operands = operands.union(names)  # the index along them
            elif primitive.alike and eqn.params.get("axis_index_groups") is None:
                operands = operands.difference(names)
        self.known.update(dict.fromkeys(eqn.outvars, operands))

    def naming(self, jaxpr: Jaxpr, argument: Callable[[int], str]) -> Callable[[int], str]:
        """What an argument of a program inside is called: as the argument of the whole program that it is."""

        def name(i: int) -> str:
            var = jaxpr.invars[i]
            while var in self.outside:
                program, atom = self.outside[var]
                if type(atom) is Literal:
                    return f"the constant {atom.val}"
                assert type(atom) is Var
                if atom not in program.invars:
                    made = next(e for e in program.eqns if atom in e.outvars)
                    return f"{made.primitive.name} at {made.source}"
                var, top = atom, program
                i = top.invars.index(var)
            return argument(i)

        return name


def _collectives(inner: Sequence[tuple[Jaxpr, Any]], differs: Axes) -> Iterator[tuple[Eqn, Any]]:
    """The collectives in programs, those in programs inside included, that wait for devices along one of these axes."""
    for body, _ in inner:
        for eqn in body.eqns:
            primitive = eqn.primitive
            if primitive.communicates and primitive.names is not None:
                axis = next((n for n in primitive.names(eqn.params) if n in differs), None)
                if axis is not None:
                    yield eqn, axis
            if primitive.applies is not None:
                yield from _collectives(primitive.applies(eqn.params), differs)
