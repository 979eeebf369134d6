"""Jaxprs: typed programs in A-normal form, with a printer.

jaxpr  ::= { lambda constvars; invars . let eqns in outvars }
eqn    ::= outvars = primitive[params] atoms
atom   ::= Var | Literal
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshrt.core.atoms import Atom, Literal, Var
from meshrt.core.marks import UnspecifiedValue
from meshrt.core.naming import DebugInfo, FunctionName, Labels
from meshrt.core.references import ALLOC, settled_effects
from meshrt.core.source import EqnContext, Source
from meshrt.core.text_layout import WIDTH, Break, Document, Group, Nested, Note, coloured, laid_out
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
    "final_states",
    "has_high",
    "sources_of",
    "subjaxprs",
]

# What running an equation does beside computing its results: see `meshrt.core.effects`.
Effects = frozenset[Any]
NO_EFFECTS: Effects = frozenset()


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

    @property
    def ctx(self) -> EqnContext:
        """What was said around the equation, for programs that interpret it: `with eqn.ctx.manager`."""
        return EqnContext(self.source.compute or None, dict(self.source.marks) or None)

    def replace(
        self,
        invars: Sequence[Atom] | None = None,
        outvars: Sequence[Var] | None = None,
        params: dict[str, Any] | None = None,
        *,
        primitive: Primitive | None = None,
        effects: Effects | None = None,
        source_info: Source | None = None,
    ) -> Eqn:
        """The same equation but for what is given."""
        old: tuple[Any, ...] = (self.primitive, self.invars, self.outvars, self.params, self.source, self.effects)
        new: tuple[Any, ...] = (primitive, invars, outvars, params, source_info, effects)
        return Eqn(*[o if n is None else n for o, n in zip(old, new)])

    def __repr__(self) -> str:
        return laid_out(_Printer().eqn(self))


class Jaxpr:
    """A program. `constvars` are bound to the constants of a `ClosedJaxpr`.

    Identity is equality: caches may key on the object. `is_high` says that high (hijax) types or primitives stand in
    it: see `meshrt.core.high`. `name` is that of the function that it was (a `FunctionName`, where it was traced), and
    `labels` what that called its arguments and results, of programs that take and give the same.
    """

    __slots__ = ("__weakref__", "constvars", "effects", "eqns", "invars", "is_high", "labels", "name", "outvars")

    constvars: tuple[Var, ...]
    invars: tuple[Var, ...]
    outvars: tuple[Atom, ...]
    eqns: Sequence[Eqn]
    name: str
    effects: Effects
    is_high: bool
    labels: Labels | None

    def __init__(
        self,
        constvars: Sequence[Var],
        invars: Sequence[Var],
        outvars: Sequence[Atom],
        eqns: Sequence[Eqn],
        effects: Effects | None = None,
        debug_info: DebugInfo | None = None,
        is_high: bool = False,
        *,
        name: str = "",
        labels: Labels | None = None,
    ):
        self.constvars, self.invars, self.outvars = tuple(constvars), tuple(invars), tuple(outvars)
        self.eqns = eqns
        self.name, self.labels = (name, labels) if debug_info is None else debug_info.parts()
        if effects is None:
            effects = NO_EFFECTS
            for e in eqns:
                if e.effects:
                    effects = effects | e.effects
            if effects and ALLOC in effects:
                effects = settled_effects(effects, eqns)
        self.effects = effects
        self.is_high = is_high or has_high(eqns)

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
    def debug_info(self) -> DebugInfo:
        """What is known of the function that the program was."""
        name = self.name if isinstance(self.name, FunctionName) else FunctionName.of(self.name)
        return DebugInfo.of(name, self.labels, len(self.invars), len(self.outvars))

    def replace(self, **changes: Any) -> Jaxpr:
        """The same program but for `constvars`, `invars`, `outvars`, `eqns`, `effects`, `debug_info`, `is_high`.

        Effects that are not given are those of the equations.
        """
        told = {"name": self.name, "labels": None if {"invars", "outvars"} & changes.keys() else self.labels}
        parts = {k: changes.pop(k, getattr(self, k)) for k in ("constvars", "invars", "outvars", "eqns", "is_high")}
        return Jaxpr(**parts, **{**told, **changes})

    def pretty_print(self, *, width: int = WIDTH, use_color: bool | None = None, **style: bool) -> str:
        """The text of the program; `use_color` colours it for terminals, `style` has fields of `Style`."""
        text = laid_out(_Printer(_shared(self), Style(**style)).program(self), width)
        return coloured(text) if use_color else text

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


def has_high(eqns: Sequence[Eqn]) -> bool:
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

    @property
    def debug_info(self) -> DebugInfo:
        return self.jaxpr.debug_info

    def replace(self, *, jaxpr: Jaxpr | None = None, consts: Sequence[Any] | None = None) -> ClosedJaxpr:
        """The same but for what is given."""
        return ClosedJaxpr(self.jaxpr if jaxpr is None else jaxpr, self.consts if consts is None else consts)

    def map_jaxpr(self, change: Callable[[Jaxpr], Jaxpr]) -> ClosedJaxpr:
        """The same constants, with what `change` makes of the program."""
        return ClosedJaxpr(change(self.jaxpr), self.consts)

    def pretty_print(self, **style: Any) -> str:
        """The text of the program: see `Jaxpr.pretty_print`."""
        return self.jaxpr.pretty_print(**style)

    def __repr__(self) -> str:
        return repr(self.jaxpr)


# Of most parameters, and of what stands in tuples among them: those are looked through often.
_PLAIN_TYPES = frozenset({bool, int, float, str, type(None), UnspecifiedValue})


def subjaxprs(params: dict[str, Any]) -> Iterator[Jaxpr]:
    """The Jaxprs among an equation's parameters, those in tuples included."""
    for value in params.values():
        if type(value) in _PLAIN_TYPES:
            continue
        for item in value if isinstance(value, tuple | list) else (value,):
            if type(item) not in _PLAIN_TYPES and isinstance(item, Jaxpr | ClosedJaxpr):
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


class Style(NamedTuple):
    """What `Jaxpr.pretty_print` writes."""

    source_info: bool = False  # behind an equation the line that it comes from
    print_shapes: bool = True  # types of variables
    custom_pp_eqn_rules: bool = True  # equations as their primitives say, not with all parameters
    name_stack: bool = False  # behind an equation the path of scopes
    print_effects: bool = False  # behind the results


_PLAIN = Style()


class _Printer:
    """Documents of programs. `shared` are the Jaxprs that stand before a program, under names."""

    def __init__(self, shared: Mapping[Jaxpr, str] = MappingProxyType({}), style: Style = _PLAIN) -> None:
        self.shared, self.style = shared, style
        self.names: dict[Var, str] = {}
        self.fresh = itertools.count()
        self.used: set[Any] | None = None

    def var(self, v: Var) -> str:
        if v not in self.names:
            self.names[v] = _name(next(self.fresh))
        return self.names[v]

    def typed(self, v: Var) -> str:
        return f"{self.var(v)}:{v.aval.short()}" if self.style.print_shapes else self.var(v)

    def result(self, v: Var) -> str:
        if self.is_used(v):
            return self.typed(v)
        return f"_:{v.aval.short()}" if self.style.print_shapes else "_"

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
            if own not in self.names and other not in taken:
                taken.add(other)
                self.names[own] = self.var(other) if self.is_used(other) else "_"

    def shown(self, e: Eqn) -> list[tuple[str, Any]]:
        """The parameters in order, a call's behind its name; without a rule of the primitive, no None."""
        if not self.style.custom_pp_eqn_rules:
            return sorted(e.params.items())
        if e.primitive.shown is not None:
            params = list(e.primitive.shown(e).items())
        else:
            params = [(k, v) for k, v in e.params.items() if v is not None]
        by_name = e.primitive.calls is not None or e.primitive.shown is not None
        return sorted(params, key=lambda kv: (not by_name or kv[0] != "name", kv[0]))

    def noted(self, e: Eqn) -> Document:
        """An equation, and behind its line what the style wants to be said of where it comes from."""
        notes: list[Document] = [Note(e.source.with_column)] if self.style.source_info else []
        notes += [Note(f"[{e.source.scope if e.source else ''}]")] if self.style.name_stack else []
        return [*notes, self.eqn(e)] if notes else self.eqn(e)

    def eqn(self, e: Eqn) -> Document:
        if e.primitive.printed is not None and self.style.custom_pp_eqn_rules:
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
            eqns += [Break("; "), self.noted(e)] if i else [self.noted(e)]
        outs = ["(", self.row([self.atom(a) for a in j.outvars], ","), ",)" if len(j.outvars) == 1 else ")"]
        written = [f"{self.var(v)}:{t.short()}" for v, t in j.mut_types.items()]
        outs += [f" leaving {', '.join(written)}"] if written else []
        if self.style.print_effects:
            outs += [f" : {{ {', '.join(sorted(map(str, j.effects)))} }}"]
        self.used = outer
        return Group([Nested(2, [*head, Nested(2, eqns), Break(), "in ", *outs]), " }"])
