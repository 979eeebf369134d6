"""Jaxprs: typed programs in A-normal form, with a printer and a checker.

jaxpr  ::= { lambda constvars; invars . let eqns in outvars }
eqn    ::= outvars = primitive[params] atoms
atom   ::= Var | Literal
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import numpy as np

from meshrt.core.references import ALLOC, settled_effects
from meshrt.core.source import Source
from meshrt.core.text_layout import Break, Document, Group, Nested, laid_out
from meshrt.core.types import ShapedArray, short_dtype
from meshrt.errors import JaxprTypeError

if TYPE_CHECKING:
    from meshrt.core.primitive import Primitive

__all__ = [
    "Atom",
    "ClosedJaxpr",
    "Eqn",
    "Jaxpr",
    "JaxprTypeError",
    "Literal",
    "Var",
    "check",
    "final_states",
    "sources_of",
    "subjaxprs",
]

# What running an equation does beside computing its results: see `meshrt.core.effects`.
Effects = frozenset[Any]
NO_EFFECTS: Effects = frozenset()


@final  # so that `type(a) is Literal` tells the checker what the other case is
class Var:
    """A variable, equal only to itself."""

    __slots__ = ("aval",)

    aval: ShapedArray

    def __init__(self, aval: ShapedArray):
        self.aval = aval

    def __repr__(self) -> str:
        return f"Var(id={id(self)}):{self.aval.str_short()}"


@final
class Literal:
    """A scalar constant written in place of a variable."""

    __slots__ = ("aval", "val")

    aval: ShapedArray
    val: Any

    def __init__(self, val: Any, aval: ShapedArray):
        self.val, self.aval = val, aval

    def __repr__(self) -> str:
        return f"Literal({self.val})"


Atom = Var | Literal


class Eqn:
    """`outvars = primitive[params] invars`, with the user's source line and the effects of running it."""

    __slots__ = ("effects", "invars", "outvars", "params", "primitive", "source")

    primitive: Primitive
    invars: Sequence[Atom]
    outvars: Sequence[Var]
    params: dict[str, Any]
    source: Source
    effects: Effects

    def __init__(
        self,
        primitive: Primitive,
        invars: Sequence[Atom],
        outvars: Sequence[Var],
        params: dict[str, Any],
        source: Source,
        effects: Effects = NO_EFFECTS,
    ):
        self.primitive, self.invars, self.outvars = primitive, invars, outvars
        self.params, self.source, self.effects = params, source, effects

    @property
    def source_info(self) -> Source:
        """The source under the name that programs which walk over JAX's Jaxprs know."""
        return self.source

    def replace(self, invars: Sequence[Atom], outvars: Sequence[Var], params: dict[str, Any] | None = None) -> Eqn:
        return Eqn(
            self.primitive, invars, outvars, self.params if params is None else params, self.source, self.effects
        )

    def __repr__(self) -> str:
        return laid_out(_Printer().eqn(self))


class Jaxpr:
    """A program. `constvars` are bound to the constants of a `ClosedJaxpr`.

    Identity is equality: caches may key on the object. `is_high` says that high (hijax) types or primitives stand in
    it: see `meshrt.core.high`.
    """

    __slots__ = ("__weakref__", "constvars", "effects", "eqns", "invars", "is_high", "name", "outvars")

    constvars: tuple[Var, ...]
    invars: tuple[Var, ...]
    outvars: tuple[Atom, ...]
    eqns: Sequence[Eqn]
    name: str
    effects: Effects
    is_high: bool

    def __init__(
        self,
        constvars: Sequence[Var],
        invars: Sequence[Var],
        outvars: Sequence[Atom],
        eqns: Sequence[Eqn],
        name: str = "",
        effects: Effects | None = None,
        is_high: bool = False,
    ):
        self.constvars, self.invars, self.outvars = tuple(constvars), tuple(invars), tuple(outvars)
        self.eqns = eqns
        self.name = name
        if effects is None:
            effects = NO_EFFECTS
            for e in eqns:
                if e.effects:
                    effects = effects | e.effects
            if effects and ALLOC in effects:
                effects = settled_effects(effects, eqns)
        self.effects = effects
        self.is_high = is_high or _any_high(eqns)

    # Where parameters of JAX's primitives hold a ClosedJaxpr, those of meshrt's hold a Jaxpr that captures nothing.
    # Programs that walk over either ask for these two.
    @property
    def jaxpr(self) -> Jaxpr:
        """The program itself."""
        return self

    @property
    def consts(self) -> list[Any]:
        """What a program without `constvars` captures: nothing."""
        if self.constvars:
            raise AttributeError("the values of a Jaxpr's constvars stand in the ClosedJaxpr around it")
        return []

    @property
    def in_avals(self) -> list[ShapedArray]:
        return [v.aval for v in self.invars]

    @property
    def out_avals(self) -> list[ShapedArray]:
        return [v.aval for v in self.outvars]

    @property
    def mut_types(self) -> dict[Var, Any]:
        """Of the arguments and captured values that are written to: the type that each one has in the end."""
        found = final_states(self)
        return {v: v.aval.in_state(found[v]) for v in (*self.constvars, *self.invars) if v in found}  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return laid_out(_Printer(_shared(self)).program(self))


def _any_high(eqns: Sequence[Eqn]) -> bool:
    for e in eqns:
        if e.primitive.to_lojax is not None and e.primitive.is_high(*[a.aval for a in e.invars], **e.params):
            return True
    return False


def final_states(jaxpr: Jaxpr) -> dict[Var, Any]:
    """The type states in which the mutable values of a program are when it ends, of those that it writes to."""
    states: dict[Var, Any] = {}
    if jaxpr.is_high:
        for e in jaxpr.eqns:
            if any(a.aval.mutable for a in e.invars):
                for i, state in e.primitive.final_states([a.aval for a in e.invars], e.params).items():
                    v = e.invars[i]
                    if type(v) is Var:
                        states[v] = state
    return states


class ClosedJaxpr:
    """A Jaxpr and the values of its `constvars`."""

    __slots__ = ("__weakref__", "consts", "jaxpr")

    jaxpr: Jaxpr
    consts: list[Any]

    def __init__(self, jaxpr: Jaxpr, consts: Sequence[Any] = ()):
        if len(jaxpr.constvars) != len(consts):
            raise ValueError(f"{len(consts)} constants given for {len(jaxpr.constvars)} constvars")
        self.jaxpr, self.consts = jaxpr, list(consts)

    @property
    def constvars(self) -> tuple[Var, ...]:
        return self.jaxpr.constvars

    @property
    def invars(self) -> tuple[Var, ...]:
        return self.jaxpr.invars

    @property
    def outvars(self) -> tuple[Atom, ...]:
        return self.jaxpr.outvars

    @property
    def name(self) -> str:
        return self.jaxpr.name

    @property
    def literals(self) -> list[Any]:
        """The captured values, by their older name."""
        return self.consts

    @property
    def in_avals(self) -> list[ShapedArray]:
        return self.jaxpr.in_avals

    @property
    def out_avals(self) -> list[ShapedArray]:
        return self.jaxpr.out_avals

    @property
    def eqns(self) -> Sequence[Eqn]:
        return self.jaxpr.eqns

    @property
    def effects(self) -> Effects:
        return self.jaxpr.effects

    @property
    def is_high(self) -> bool:
        return self.jaxpr.is_high

    def __repr__(self) -> str:
        return repr(self.jaxpr)


def subjaxprs(params: dict[str, Any]) -> Iterator[Jaxpr]:
    """The Jaxprs among an equation's parameters, those in tuples included."""
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, Jaxpr):
                yield item
            elif isinstance(item, ClosedJaxpr):
                yield item.jaxpr


def sources_of(jaxpr: Jaxpr) -> Iterator[Source]:
    """The lines of a Jaxpr's equations, of those inside of them too."""
    for eqn in jaxpr.eqns:
        if eqn.source is not None:
            yield eqn.source
        for inner in subjaxprs(eqn.params):
            yield from sources_of(inner)


# ---------------------------------------------------------------------------------------------------------------------
# Printing


def _name(index: int) -> str:
    """A number of base 26 in letters."""
    index, letter = divmod(index, 26)
    return (_name(index) if index else "") + chr(ord("a") + letter)


def _shared(program: Jaxpr) -> dict[Jaxpr, str]:
    """Names for the Jaxprs that stand in a program several times, in the order in which they are met, outer ones first.

    What stands in one of those counts as often as it.
    """
    found: dict[Jaxpr, tuple[int, str]] = {}
    rest = deque([program])
    while rest:
        for e in rest.popleft().eqns:
            name = e.params.get("name")
            for inner in subjaxprs(e.params):
                times, called = found.get(inner, (0, name.strip("<>") if isinstance(name, str) else "jaxpr"))
                found[inner] = (times + 1, called)
                if times < 2:  # once more than once is several times
                    rest.append(inner)
    names: dict[Jaxpr, str] = {}
    used: Counter[str] = Counter()
    for inner, (times, called) in found.items():
        if times > 1:
            names[inner] = f"{called}{used[called] or ''}"
            used[called] += 1
    return names


class _Printer:
    """Documents of programs. `shared` are the Jaxprs that stand before a program, under names."""

    def __init__(self, shared: Mapping[Jaxpr, str] = MappingProxyType({})) -> None:
        self.shared = shared
        self.names: dict[Var, str] = {}
        self.fresh = itertools.count()
        self.used: set[Any] | None = None

    def var(self, v: Var) -> str:
        if v not in self.names:
            self.names[v] = _name(next(self.fresh))
        return self.names[v]

    def typed(self, v: Var) -> str:
        return f"{self.var(v)}:{v.aval.short()}"

    def result(self, v: Var) -> str:
        return self.typed(v) if self.is_used(v) else f"_:{v.aval.short()}"

    def is_used(self, v: Var) -> bool:
        """Whether something in the program takes a result; of a single equation nobody knows."""
        return self.used is None or v in self.used

    def index(self, a: Atom) -> str:
        """An operand among the indices of a reference."""
        return str(a.val) if isinstance(a, Literal) else self.var(a)

    def atom(self, a: Atom) -> str:
        if isinstance(a, Literal):
            val = a.val.item() if isinstance(a.val, np.ndarray | np.generic) else a.val
            return f"{val}:{short_dtype(a.aval.dtype)}[]"
        return self.var(a)

    def param(self, value: Any) -> Document:
        if isinstance(value, Jaxpr | ClosedJaxpr):
            return self.shared.get(value.jaxpr) or self.jaxpr(value.jaxpr)
        if isinstance(value, tuple) and any(isinstance(v, Jaxpr | ClosedJaxpr) for v in value):
            return self.enclosed("(", [self.param(v) for v in value], ")")
        if callable(value) and hasattr(value, "__name__"):
            return str(value.__name__)
        return str(value)

    def enclosed(self, opening: str, parts: list[Document], closing: str) -> Document:
        inside: list[Document] = [opening]
        for i, part in enumerate(parts):
            inside += [Break() if i else Break(""), part]
        return Group([Nested(2, inside), Break(""), closing])

    def row(self, parts: Sequence[str], separator: str = "") -> Document:
        if len(parts) < 2:
            return parts[0] if parts else ""
        row: list[Document] = []
        for i, part in enumerate(parts):
            row += [separator, Group([Break()]), part] if i else [part]
        return Group([Nested(2, row)])

    def alike(self, inside: Sequence[Atom], outside: Sequence[Atom]) -> None:
        """What a call gives to a Jaxpr, and takes from it, has one name inside and outside."""
        taken: set[Var] = set()
        for own, other in zip(inside, outside):
            if isinstance(own, Literal) or isinstance(other, Literal):
                continue
            if own not in self.names and other not in taken and self.is_used(other):
                taken.add(other)
                self.names[own] = self.var(other)

    @staticmethod
    def shown(e: Eqn) -> list[tuple[str, Any]]:
        """The parameters in order, those of a function's call behind its name. Without a rule of the primitive, those
        that are None are left out."""
        if e.primitive.shown is not None:
            params = list(e.primitive.shown(e).items())
        else:
            params = [(k, v) for k, v in e.params.items() if v is not None]
        by_name = e.primitive.calls is not None or e.primitive.shown is not None
        return sorted(params, key=lambda kv: (not by_name or kv[0] != "name", kv[0]))

    def eqn(self, e: Eqn) -> Document:
        if e.primitive.printed is not None:
            shown: str = e.primitive.printed(self, e)
            return shown
        called = e.params[e.primitive.calls] if e.primitive.calls is not None else None
        if called is not None and called.jaxpr not in self.shared:
            self.alike(called.jaxpr.invars, e.invars)
            self.alike(called.jaxpr.outvars, e.outvars)
        outs: list[Document] = [self.row([self.result(v) for v in e.outvars]), " = "] if e.outvars else []
        given: list[Document] = [[f"{k}=", self.param(v)] for k, v in self.shown(e)]
        args: list[Document] = [" ", self.row([self.atom(a) for a in e.invars])]
        text: list[Document] = [*outs, e.primitive.name, self.enclosed("[", given, "]") if given else "", *args]
        return "".join(text) if all(type(part) is str for part in text) else text  # type: ignore[arg-type]  # all are str

    def program(self, j: Jaxpr) -> Document:
        """A Jaxpr behind those that it shares."""
        before: list[Document] = [[f"let {name} = ", self.jaxpr(j), " in", Break()] for j, name in self.shared.items()]
        return [*before, self.jaxpr(j)]

    def jaxpr(self, j: Jaxpr) -> Document:
        outer, self.used = self.used, {a for e in j.eqns for a in e.invars} | set(j.outvars)
        head = [f"{{ {'high ' if j.is_high else ''}lambda ", self.row([self.typed(v) for v in j.constvars])]
        head += ["; ", self.row([self.typed(v) for v in j.invars]), ". let"]
        eqns: list[Document] = [Break()]
        for i, e in enumerate(j.eqns):
            eqns += [Break("; "), self.eqn(e)] if i else [self.eqn(e)]
        outs = ["(", self.row([self.atom(a) for a in j.outvars], ","), ",)" if len(j.outvars) == 1 else ")"]
        written = [f"{self.var(v)}:{t.short()}" for v, t in j.mut_types.items()]
        outs += [f" leaving {', '.join(written)}"] if written else []
        self.used = outer
        return Group([Nested(2, [*head, Nested(2, eqns), Break(), "in ", *outs]), " }"])


# ---------------------------------------------------------------------------------------------------------------------
# Checking


def check(jaxpr: Jaxpr | ClosedJaxpr) -> None:
    """Raises JaxprTypeError unless every variable is defined once, before its use, with the type its equation gives."""
    if isinstance(jaxpr, ClosedJaxpr):
        jaxpr = jaxpr.jaxpr
    if not jaxpr.is_high and (_any_high(jaxpr.eqns) or any(v.aval.is_high for v in (*jaxpr.constvars, *jaxpr.invars))):
        raise JaxprTypeError(f"high types stand in a program that is not marked as high:\n{jaxpr}")
    defined: set[Var] = set()

    def define(v: Var, where: str) -> None:
        if v in defined:
            raise JaxprTypeError(f"{where} binds {v} a second time in\n{jaxpr}")
        defined.add(v)

    for v in (*jaxpr.constvars, *jaxpr.invars):
        define(v, "the argument list")
    for e in jaxpr.eqns:
        _check_eqn(e, defined, jaxpr)
        for v in e.outvars:
            define(v, f"equation {e}")
        for sub in subjaxprs(e.params):
            check(sub)
    for a in jaxpr.outvars:
        if isinstance(a, Var) and a not in defined:
            raise JaxprTypeError(f"the result {a} is not defined in\n{jaxpr}")


def _check_eqn(e: Eqn, defined: set[Var], jaxpr: Jaxpr) -> None:
    for a in e.invars:
        if isinstance(a, Var) and a not in defined:
            raise JaxprTypeError(f"{a} is used before its definition by {e} at {e.source} in\n{jaxpr}")
    outs = e.primitive.infer(tuple(a.aval for a in e.invars), e.params)
    if len(outs) != len(e.outvars):
        raise JaxprTypeError(f"{e} at {e.source} should have {len(outs)} results")
    for v, aval in zip(e.outvars, outs):
        if v.aval.is_high or aval.is_high:
            if v.aval.normalize() != aval.normalize():
                raise JaxprTypeError(f"{e} at {e.source} gives {aval.short()}, not {v.aval.short()}")
            continue
        if v.aval.shape != aval.shape or v.aval.dtype != aval.dtype:
            raise JaxprTypeError(f"{e} at {e.source} gives {aval.short()}, not {v.aval.short()}")
