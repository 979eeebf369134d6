"""How a value of a manual region came to vary over an axis: the operations that led to it, last first."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from meshrt.core.basic.varying import pvary_p
from meshrt.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from meshrt.core.source import Source

# Nothing for `meshrt.lax`.
__all__: list[str] = []

# A chain shows its beginning and its end, and how many steps are between.
_SHOWN_FIRST, _SHOWN_LAST = 6, 4


def chain_of(jaxpr: Jaxpr, result: int, axis: str, argument: Callable[[int], str]) -> str:
    """The chain of result number `result` of a body, and the collective that would make it the same on all devices.

    `argument(i)` says what argument i of `jaxpr` is.
    """
    steps, lines = _chain(jaxpr, jaxpr.outvars[result], axis, argument, _typed)
    made = _remedy(steps[0][0] if steps else "", axis)
    return "\n".join([f"  it varies over {axis!r} by these operations, last first:", *lines, f"  {made}"])


def chain_behind(
    jaxpr: Jaxpr, value: Atom, axis: str, argument: Callable[[int], str], varies: Callable[[Atom], Collection[Any]]
) -> list[str]:
    """The lines that say how a value of `jaxpr` came to vary over an axis; `varies` says over which a value does."""
    return _chain(jaxpr, value, axis, argument, varies)[1]


def _typed(atom: Atom) -> Collection[Any]:
    return atom.aval.vma


def _chain(
    jaxpr: Jaxpr, atom: Atom, axis: str, argument: Callable[[int], str], varies: Callable[[Atom], Collection[Any]]
) -> tuple[list[tuple[str, Source]], list[str]]:
    """The operations, last first, and the lines that tell of them and of where they begin."""
    steps: list[tuple[str, Source]] = []
    origin = _walk(jaxpr, atom, axis, steps, argument, varies)
    lines = [f"    {name} at {_where(where)}" for name, where in steps]
    if len(lines) > _SHOWN_FIRST + _SHOWN_LAST:
        hidden = len(lines) - _SHOWN_FIRST - _SHOWN_LAST
        lines[_SHOWN_FIRST:-_SHOWN_LAST] = [f"    ... {hidden} more operations ..."]
    return steps, [*lines, f"    {origin}"]


def _where(where: Source) -> str:
    return str(where) if where.code is not None else "an unknown line"


def _remedy(last: str, axis: str) -> str:
    if last.startswith("all_gather"):
        return (
            f"all_gather gives each device a copy of its own; meshrt.lax.all_gather(x, {axis!r}, to='invarying') gives "
            "all of them one value"
        )
    return f"to make it one value: meshrt.lax.psum(x, {axis!r}), or pmean, pmax, pmin of it, before it is returned"


def _walk(
    jaxpr: Jaxpr, atom: Atom, axis: str, steps: list[tuple[str, Source]], argument: Callable[[int], str],
    varies: Callable[[Atom], Collection[Any]],
) -> str:  # fmt: skip
    """Adds the operations that `atom` was computed by along values that vary over `axis`; says where they begin."""
    made: dict[Var, Eqn] = {v: e for e in jaxpr.eqns for v in e.outvars}
    places = {v: i for i, v in enumerate(jaxpr.invars)}
    while True:
        if type(atom) is Literal:
            return f"the constant {atom.val}"
        if atom in places:
            return argument(places[atom])
        eqn = made[atom]
        inner = eqn.primitive.calls
        operands = [a for a in eqn.invars if axis in varies(a)]
        if inner is not None:
            body = eqn.params[inner]
            numbers: list[int] = []
            origin = _walk(body, body.outvars[list(eqn.outvars).index(atom)], axis, steps, _noting(numbers), varies)
            if not numbers:
                return origin
            atom = eqn.invars[numbers[0]]
            continue
        if not operands:
            if eqn.primitive is pvary_p:
                return f"made to vary over {axis!r} at {_where(eqn.source)}"
            return f"{eqn.primitive.name} at {_where(eqn.source)}, which differs from device to device"
        if eqn.primitive is not pvary_p:
            steps.append((eqn.primitive.name, eqn.source))
        # What was made to vary because another operand does says less than that one.
        atom = next((a for a in operands if type(a) is not Var or not _is_cast(made.get(a), axis, varies)), operands[0])


def _is_cast(eqn: Eqn | None, axis: str, varies: Callable[[Atom], Collection[Any]]) -> bool:
    """Whether it is what makes a value vary over `axis`. One that varies by itself may be cast over other axes."""
    return eqn is not None and eqn.primitive is pvary_p and axis not in varies(eqn.invars[0])


def _noting(numbers: list[int]) -> Callable[[int], str]:
    def note(i: int) -> str:
        numbers.append(i)
        return ""

    return note
