"""Where the user wrote something: the one place that turns MLIR's locations into `file:line`.

A location may be a stack of calls, a name around another location, or several fused into one. What is shown is the
innermost line of the user's own; lines of installed packages, Python's own among them, stand for it only if there is no
other. What calls it tells operations apart that a helper makes at one line (`CallSites`). Operations of functions that
a compiler wrote (JAX's `jnp.sort` is one) have no file: they stand for the line that calls the function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from jaxlib.mlir import ir

if TYPE_CHECKING:
    from .graph import Func, Op, Value

__all__ = [
    "CallSites", "argument_locations", "argument_names", "lines", "location_text", "scope", "source", "value_lines",
    "value_source",
]  # fmt: skip

Found = TypeVar("Found", str, tuple[str, ...])

_INSTALLED = re.compile(r"[/\\](?:site-packages|dist-packages|lib[/\\]python\d[^/\\]*)[/\\]|^<frozen ")


def _frames(loc: object) -> Iterator[tuple[str, int]]:
    """(file, line) of a location, innermost first."""
    if isinstance(loc, ir.FileLineColLoc):
        yield str(getattr(loc.filename, "value", loc.filename)), loc.start_line
    elif isinstance(loc, ir.CallSiteLoc):
        yield from _frames(loc.callee)
        yield from _frames(loc.caller)
    elif isinstance(loc, ir.NameLoc):
        yield from _frames(loc.child_loc)
    elif isinstance(loc, ir.FusedLoc):
        for part in loc.locations:
            yield from _frames(part)


def _line_text(loc: ir.Location | None) -> str | None:
    found = list(_frames(loc))
    own = next((f for f in found if not _INSTALLED.search(f[0])), found[0] if found else None)
    return None if own is None else f"{own[0]}:{own[1]}"


def _line_texts(loc: ir.Location | None) -> tuple[str, ...]:
    found = list(_frames(loc))
    own = [f for f in found if not _INSTALLED.search(f[0])] or found[:1]
    return tuple(f"{file}:{line}" for file, line in own)


def _name(loc: object) -> str | None:
    if isinstance(loc, ir.NameLoc):
        return _name(loc.child_loc) or loc.name_str
    if isinstance(loc, ir.CallSiteLoc):
        return _name(loc.callee) or _name(loc.caller)
    if isinstance(loc, ir.FusedLoc):
        return next((n for part in loc.locations if (n := _name(part))), None)
    return None


def location_text(loc: ir.Location | None) -> str | None:
    """`file:line` of a location, the user's innermost own line; the name if there is no file, else None."""
    return _line_text(loc) or _name(loc)


def source(op: Op | Func) -> str | None:
    """Where the user wrote `op`: `file:line`; of an operation without a file, the line of the operation around it or
    of the call of its function; else its name, or None if the module says nothing."""
    return _first(op, _line_text) or _name(op.loc)


def lines(op: Op | Func) -> tuple[str, ...]:
    """The user's lines on which `op` was made: that of `source`, then those that called its function, as far as the
    module tells them."""
    name = _name(op.loc)
    return _first(op, _line_texts) or (() if name is None else (name,))


def _first(op: Op | Func, read: Callable[[ir.Location | None], Found | None]) -> Found | None:
    """What is read of an operation, or else of the nearest one around it or of the call of its function."""
    place: Op | Func | None = op
    while place is not None:
        found = read(place.loc)
        if found:
            return found
        place = place.parent_op if hasattr(place, "parent_op") else place.caller
    return None


class CallSites:
    """What tells operations apart that stand at one line of a helper: the line that called it.

    >>> text = '''
    ... func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    ...   %0 = stablehlo.tanh %x : tensor<8xf32> loc(callsite("helpers.py":5:1 at "train.py":31:1))
    ...   %1 = stablehlo.tanh %0 : tensor<8xf32> loc(callsite("helpers.py":5:1 at "train.py":32:1))
    ...   %2 = stablehlo.sine %1 : tensor<8xf32> loc(callsite("helpers.py":9:1 at "train.py":33:1))
    ...   return %2 : tensor<8xf32> }'''
    >>> from .program import read
    >>> made = [lines(op) for op in read(text).ops()]
    >>> [CallSites(made).caller(each) for each in made[:3]]
    ['train.py:31', 'train.py:32', None]
    """

    def __init__(self, stacks: Iterable[tuple[str, ...]]):
        self._alike: dict[str, set[tuple[str, ...]]] = {}
        for stack in stacks:
            if stack:
                self._alike.setdefault(stack[0], set()).add(stack)

    def caller(self, stack: tuple[str, ...]) -> str | None:
        """The nearest line of the callers from which on no other operation of the same line was reached alike; None
        where the line alone says which is meant, or nothing more is known."""
        if not stack:
            return None
        others = [s for s in self._alike.get(stack[0], ()) if s != stack]
        if not others or len(stack) == 1:
            return None
        apart = (n for n in range(2, len(stack) + 1) if all(s[:n] != stack[:n] for s in others))
        return stack[next(apart, len(stack)) - 1]


def scope(op: Op | Func) -> str:
    """The scopes that `op` was made in, as its location's name tells them: `jvp(layer0)/mlp` of `jvp(layer0)/mlp/tanh`.
    Of an operation without a name, those of the operation around it; "" if the module says nothing."""
    place: Op | Func | None = op
    while place is not None and hasattr(place, "parent_op"):
        path = _path(place.loc)
        if path:
            return path.rpartition("/")[0]
        place = place.parent_op
    return ""


def _path(loc: object) -> str:
    """The outermost name of a location; names further in are those of Python's functions."""
    if isinstance(loc, ir.NameLoc):
        return str(loc.name_str)
    if isinstance(loc, ir.CallSiteLoc):
        return _path(loc.callee)
    if isinstance(loc, ir.FusedLoc):
        return next((n for part in loc.locations if (n := _path(part))), "")
    return ""


def value_source(value: Value) -> str | None:
    """Where a value, and so an annotation on it, was written: of an argument of a function its own line, else the
    function's; of a result the operation's."""
    if value.op is not None:
        return source(value.op)
    owner = value.argument_of
    if owner is None:
        return None
    own = argument_locations(owner)
    return (_line_text(own[value.number]) if own else None) or source(owner)


def value_lines(value: Value) -> tuple[str, ...]:
    """That line, and those that called its function (`lines`)."""
    if value.op is not None:
        return lines(value.op)
    owner = value.argument_of
    if owner is None:
        return ()
    own = argument_locations(owner)
    return (_line_texts(own[value.number]) if own else ()) or lines(owner)


def argument_names(func: Func) -> list[str | None]:
    """The names that the locations of a function's arguments give them, as JAX writes them; None for those without."""
    return [getattr(loc, "name_str", None) for loc in argument_locations(func)] or [None] * len(func.args)


def argument_locations(owner: Op | Func) -> list[ir.Location]:
    """The locations of a function's arguments; nothing for those that are written rather than read."""
    if hasattr(owner, "parent_op") or not isinstance(owner._ir, ir.Operation):
        return []
    return [a.location for a in owner._ir.regions[0].blocks[0].arguments]
