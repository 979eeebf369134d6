"""Discharge: a program over references becomes one that takes what they hold and gives what they hold in the end.

    { lambda ; a:Ref{f32[3]} b:f32[3]. let         { lambda ; a:f32[3] b:f32[3]. let
        c:f32[3] <- a[...]                              d:f32[3] = mul a b
        d:f32[3] = mul c b                     ->     in (d,) }
        a[...] <- d
      in () }

It is the last pass over references before lowering. Each reference is a `Cell` while a program is run again with new
tracers; primitives say what they do to cells in their rule `discharge(args, params)`, in which some operands are cells.
References that a program makes for itself disappear. Transformations that must see values discharge a part of a program
on the way (`through_values`): forward mode where what a reference holds has a tangent, batching where members differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from meshrt import errors
from meshrt.core import source
from meshrt.core.jaxpr import ClosedJaxpr, Jaxpr, Literal, Var
from meshrt.core.primitive import Primitive
from meshrt.core.references import ALLOC, is_ref, is_ref_type, touches_refs
from meshrt.core.trace import JaxprTrace, context, set_trace
from meshrt.core.types import aval_of
from meshrt.transforms.tools import WeakCache, hoist_consts

__all__ = [
    "Cell", "Discharged", "apply_rule", "call_rule", "differentiated_refs", "discharge_state", "discharged",
    "run_discharged", "set_access", "settled", "settled_program", "through_values", "with_cells", "without_cells",
]  # fmt: skip


class Cell:
    """What a reference holds at a point of a program: `value`, an array or tracer (None: zero, of tangents only).

    `written` says whether it was replaced since the cell was made.
    """

    __slots__ = ("_value", "written")

    def __init__(self, value: Any = None):
        self._value, self.written = value, False

    @property
    def value(self) -> Any:
        return self._value

    @value.setter
    def value(self, value: Any) -> None:
        self._value, self.written = value, True

    def __repr__(self) -> str:
        return f"Cell({self._value!r})"


class Discharged(NamedTuple):
    """A Jaxpr without references: its results are the old ones, then what the `written` arguments hold in the end."""

    closed: ClosedJaxpr
    written: tuple[int, ...]

    @property
    def jaxpr(self) -> Jaxpr:
        return self.closed.jaxpr


_cache: WeakCache = WeakCache()


def discharged(jaxpr: Jaxpr, refs: tuple[bool, ...], keep: tuple[bool, ...] | None = None) -> Discharged:
    """`jaxpr`, without constvars, with the flagged arguments, references, as values. Cached by `jaxpr`.

    Other references that it takes stay. `keep` flags arguments whose final value is a result even if they are never
    written.
    """
    return _cache.get(jaxpr, (refs, keep), lambda: _discharge(jaxpr, refs, keep))


def _discharge(jaxpr: Jaxpr, refs: tuple[bool, ...], keep: tuple[bool, ...] | None) -> Discharged:
    trace = JaxprTrace(jaxpr.name, requires_low=False)
    tracers = [
        trace.argument(a.held_aval if r else a, f"argument {i}")  # type: ignore[attr-defined]
        for i, (a, r) in enumerate(zip(jaxpr.in_avals, refs))
    ]
    args: list[Any] = [Cell(t) if r else t for t, r in zip(tracers, refs)]
    with set_trace(trace):
        outs = run_discharged(jaxpr, args)
        final = [i for i, a in enumerate(args) if type(a) is Cell and (a.written or (keep is not None and keep[i]))]
        closed = trace.close(tracers, [*outs, *[args[i].value for i in final]])
    return Discharged(hoist_consts(closed), tuple(final))


def settled(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` without references of its own; those that it takes stay."""
    if not jaxpr.effects or ALLOC not in jaxpr.effects:
        return jaxpr
    made = discharged(jaxpr, (False,) * len(jaxpr.invars)).closed
    if made.consts:
        raise errors.InternalError(f"{jaxpr.name} captured constants while its references were discharged")
    return made.jaxpr


def settled_program(jaxpr: Jaxpr) -> Jaxpr:
    """As `settled`, of a whole program, which may have constvars."""
    if ALLOC not in jaxpr.effects:
        return jaxpr
    count = len(jaxpr.constvars)
    whole = Jaxpr((), (*jaxpr.constvars, *jaxpr.invars), jaxpr.outvars, jaxpr.eqns, jaxpr.effects, name=jaxpr.name)
    made = settled(whole)
    return Jaxpr(made.invars[:count], made.invars[count:], made.outvars, made.eqns, made.effects, name=made.name)


def run_discharged(jaxpr: Jaxpr, args: Sequence[Any]) -> list[Any]:
    """Runs `jaxpr`, without constvars, in the current trace; references are given as cells, which it changes."""
    env: dict[Var, Any] = dict(zip(jaxpr.invars, args))
    trace = context.trace
    previous = source.set_replay(None)
    try:
        for eqn in jaxpr.eqns:
            source.set_replay(eqn.source)
            ins = [a.val if type(a) is Literal else env[a] for a in eqn.invars]
            if ALLOC in eqn.effects or any(type(x) is Cell for x in ins):
                out = apply_rule(eqn.primitive, ins, eqn.params)
            else:
                out = eqn.primitive.bind_in(trace, ins, eqn.params)
            env.update(zip(eqn.outvars, out if eqn.primitive.multiple_results else [out]))
    finally:
        source.set_replay(previous)
    return [a.val if type(a) is Literal else env[a] for a in jaxpr.outvars]


def apply_rule(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """An application of `primitive` to operands of which some are cells."""
    if primitive.discharge is None:
        raise errors.UnsupportedError(
            f"the primitive '{primitive.name}' cannot take references: read what it needs with ref[...] before, and "
            "write its result afterwards"
        )
    return primitive.discharge(args, params)


def with_cells(bind: Callable[..., Any], jaxpr: Jaxpr, args: Sequence[Any]) -> list[Any]:
    """The discharge rule of what runs `jaxpr` once: `bind(*operands, jaxpr=...)` applies it to a discharged one."""
    made = discharged(jaxpr, tuple([type(a) is Cell for a in args]))
    outs = bind(*made.closed.consts, *[a.value if type(a) is Cell else a for a in args], jaxpr=made.jaxpr)
    count = len(jaxpr.outvars)
    for i, value in zip(made.written, outs[count:]):
        args[i].value = value
    return list(outs[:count])


def call_rule(get: Callable[[], Primitive]) -> Callable[[Sequence[Any], dict[str, Any]], list[Any]]:
    """The discharge rule of a primitive, made by `get()`, that runs the Jaxpr in its parameter `jaxpr` once."""

    def rule(args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
        rest = {k: v for k, v in params.items() if k != "jaxpr"}
        return with_cells(lambda *operands, jaxpr: get().bind(*operands, jaxpr=jaxpr, **rest), params["jaxpr"], args)

    return rule


# ----------------------------------------------------------------------------------------------------------------------
# On the way


# How the whole of what a reference holds is read and written, by operations of the current trace: those are primitives,
# which stand above (`meshrt.primitives.state`).
_read: Callable[[Any], Any]
_write: Callable[[Any, Any], Any]


def set_access(read: Callable[[Any], Any], write: Callable[[Any, Any], Any]) -> None:
    """For `meshrt.primitives.state`: how references are read and written."""
    global _read, _write
    _read, _write = read, write


def through_values(
    primitive: Primitive, args: Sequence[Any], params: dict[str, Any], chosen: Sequence[int] | None = None
) -> Any:
    """Applies `primitive`, in the current trace, to what its references hold (those at the `chosen` positions), and
    writes back what changed.
    """
    cells: dict[int, tuple[Any, Cell]] = {}
    for i, a in enumerate(args):
        if id(a) not in cells and is_ref(a) and (chosen is None or i in chosen):
            cells[id(a)] = (a, Cell(_read(a)))
    out = apply_rule(primitive, [cells[id(a)][1] if id(a) in cells else a for a in args], params)
    for ref, cell in cells.values():
        if cell.written:
            _write(ref, cell.value)
    return out


def differentiated_refs(
    primitive: Primitive, primals: Sequence[Any], tangents: Sequence[Any], params: dict[str, Any]
) -> list[int]:
    """Which operands of a part of a program are to be taken as what they hold before it is differentiated: references
    whose contents have tangents; all those that it touches where derivatives run it again.
    """
    found = [i for i, t in enumerate(tangents) if type(t) is Cell]
    if primitive.repeats and any(map(is_ref, primals)):
        if found or touches_refs(primitive.effects(tuple(map(aval_of, primals)), params)):
            return [i for i, p in enumerate(primals) if is_ref(p)]
    return found


def without_cells(tangents: Sequence[Any]) -> list[Any]:
    """The tangents without those of what references hold, for rules of the user's, which are not told of them."""
    return [None if type(t) is Cell else t for t in tangents]


# ----------------------------------------------------------------------------------------------------------------------
# The pass


def discharge_state(jaxpr: Jaxpr | ClosedJaxpr, should_discharge: bool | Sequence[bool] = True) -> ClosedJaxpr:
    """`jaxpr` as a program without references; what it is given is left as it is.

    Args:
      jaxpr: a program (`make_jaxpr` gives one), whose arguments may be references.
      should_discharge: which of its arguments, if they are references, become values; all, or a flag for each.

    Returns:
      The program that takes values in their places, and gives after its results what each of these holds in the end.

    >>> import meshrt, meshrt.numpy as jnp
    >>> closed = meshrt.make_jaxpr(lambda r: r[...])(meshrt.new_ref(jnp.zeros(3)))
    >>> closed
    { lambda ; a:Ref{f32[3]}. let b:f32[3] <- a[...] in (b,) }
    >>> discharge_state(closed)
    { lambda ; a:f32[3]. let  in (a, a) }
    """
    given = jaxpr.jaxpr if isinstance(jaxpr, ClosedJaxpr) else jaxpr
    consts = jaxpr.consts if isinstance(jaxpr, ClosedJaxpr) else []
    own = (should_discharge,) * len(given.invars) if isinstance(should_discharge, bool) else tuple(should_discharge)
    if len(own) != len(given.invars):
        raise errors.ArgumentValueError(f"{len(own)} flags for the {len(given.invars)} arguments of {given.name}")
    whole = hoist_consts(ClosedJaxpr(given, consts)).jaxpr if given.constvars else given
    count = len(given.constvars)
    refs = tuple([is_ref_type(a) and f for a, f in zip(whole.in_avals, (*[False] * count, *own))])
    made = discharged(whole, refs, refs).closed
    captured = [*made.consts, *consts]
    front, rest = made.jaxpr.invars[: len(captured)], made.jaxpr.invars[len(captured) :]
    pure = Jaxpr(front, rest, made.jaxpr.outvars, made.jaxpr.eqns, made.jaxpr.effects, name=given.name)
    return ClosedJaxpr(pure, captured)
