"""Tracing: what happens when a primitive is applied.

There is one current trace per thread. `Primitive.bind` hands the operation to it; a trace looks at the operands that
are its own tracers and passes the operation on to its parent when there are none. The bottom trace evaluates.

    EvalTrace      runs the primitive on arrays
    JaxprTrace     records an equation
    JVPTrace, LinearTrace, BatchTrace   in meshrt.transforms
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from meshrt import errors
from meshrt.config import settings
from meshrt.core import source
from meshrt.core.again import end_if_asked
from meshrt.core.axes import apart, axes_in_scope, manual_mesh
from meshrt.core.checking import check
from meshrt.core.completion import Completion
from meshrt.core.dimensions.expression import DimExpr
from meshrt.core.high import has_high_types, is_open_value
from meshrt.core.jaxpr import NO_EFFECTS, Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from meshrt.core.leaks import leaked, refuse_leaks
from meshrt.core.naming import Labels
from meshrt.core.places import Placed
from meshrt.core.told import Told, behind
from meshrt.core.tracer import Tracer, concretization_message, named_operands, not_concrete, why_unknown
from meshrt.core.types import ShapedArray, aval_of
from meshrt.dtypes import float0

if TYPE_CHECKING:
    from meshrt.core.primitive import Primitive

__all__ = [
    "EvalTrace", "JaxprTrace", "JaxprTracer", "Trace", "Tracer", "concretization_message", "context", "current_trace",
    "eval_jaxpr", "not_concrete", "set_trace", "trace_to_jaxpr", "type_state", "why_unknown",
]  # fmt: skip


class Trace:
    """Interprets primitives. `requires_low` says that it processes array types only: see `meshrt.core.high`."""

    __slots__ = ("__weakref__",)

    requires_low: bool = False

    def process_primitive(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        raise NotImplementedError

    def process_high(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """An application with high types: it is lowered where low ones are required."""
        if self.requires_low:
            return primitive.to_lojax(*args, **params)  # type: ignore[misc]
        return self.process_primitive(primitive, args, params)

    @property
    def main(self) -> Trace:
        """The trace itself, by which libraries tell the tracers of one trace from those of another."""
        return self


class EvalTrace(Trace):
    """The bottom trace. `evaluate` is set by the dispatcher (`meshrt.dispatch`), which stands above the core."""

    __slots__ = ()

    requires_low = True
    evaluate: ClassVar[Callable[[Primitive, Sequence[Any], dict[str, Any]], Any]]

    def process_primitive(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if primitive.impl is not None:
            return primitive.impl(*args, **params)
        return EvalTrace.on_arrays(primitive, args, params)

    @staticmethod
    def on_arrays(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Evaluates a primitive by the program that consists of it."""
        for a in args:
            if isinstance(a, Tracer):
                raise leaked(a, primitive)
        return EvalTrace.evaluate(primitive, args, params)


EVAL = EvalTrace()


# A context variable, as reading one costs a fifth of reading a thread-local attribute, and this is read on every
# call. Each thread starts at the bottom trace.
_current: ContextVar[Trace] = ContextVar("meshrt_trace", default=EVAL)
current_trace = _current.get


class _Context:
    """`context.trace`: the current trace, to be read and set."""

    __slots__ = ()

    @property
    def trace(self) -> Trace:
        return _current.get()

    @trace.setter
    def trace(self, trace: Trace) -> None:
        _current.set(trace)


context = _Context()


class set_trace:
    """Makes `trace` the current one inside a `with`."""

    __slots__ = ("_saved", "trace")

    _saved: Trace

    def __init__(self, trace: Trace):
        self.trace = trace

    def __enter__(self) -> Trace:
        self._saved = _current.get()
        _current.set(self.trace)
        return self.trace

    def __exit__(self, *_: object) -> None:
        _current.set(self._saved)


# ---------------------------------------------------------------------------------------------------------------------
# Staging


_SCALARS = (bool, int, float, complex, np.generic)


def literal_value(value: Any, aval: ShapedArray) -> Any:
    """What a Literal holds for a scalar of type `aval`: where it is weakly typed the Python scalar, which says so."""
    if isinstance(value, np.generic) and value.dtype == aval.dtype:
        return value
    if aval.weak_type and isinstance(value, int | float | complex):
        return value
    return np.asarray(value, aval.dtype)[()]


class JaxprTracer(Tracer):
    """Stands for a variable of the Jaxpr being built."""

    __slots__ = ("_var", "source")

    _trace: JaxprTrace
    _var: Var

    def __init__(self, trace: JaxprTrace, var: Var, where: Any):
        self._trace, self.aval, self._var, self.source = trace, var.aval, var, where

    def __repr__(self) -> str:
        return self._trace.shown(self) or f"JitTracer({self.aval})"

    def concrete(self) -> Any:
        return self._trace.value_of(self)

    def origin(self) -> str:
        if isinstance(self.source, str):
            told = self._trace.told
            return f"is {(told and told.called(self._var)) or self.source} of {self._trace.name}"
        return f"was created on line {self.source}" if self.source is not None else ""

    def traced_for(self) -> Told | None:
        return self._trace.told

    def depends_on(self) -> list[str]:
        return self._trace.names_behind(self._var)

    def computed_by(self) -> list[Eqn]:
        return behind(self._trace.eqns, self._var)


class JaxprTrace(Trace):
    """Records every primitive as an equation. Values of enclosing traces and arrays become constants.

    Programs over high types are recorded only where `requires_low` is False.
    """

    __slots__ = (
        "cells", "closed", "consts", "eqns", "is_high", "literals", "name", "outer", "places", "requires_low", "states",
        "told",
    )  # fmt: skip

    def __init__(self, name: str = "", requires_low: bool = True):
        self.name = name
        self.outer = _current.get()
        # Of mutable values: the type states of those that are operands, and those that are Python objects of this
        # trace, which hold its tracers.
        self.states: dict[Var, Any] | None = None
        self.cells: dict[int, Any] | None = None
        self.told: Told | None = None  # what messages say of the function
        self.places: dict[Var, Any] | None = None  # of arguments, where a caller told them
        self.eqns: list[Eqn] = []
        self.consts: dict[int, tuple[Var, Any]] = {}
        self.literals: dict[tuple[type, Any], Literal] = {}
        self.closed = False
        self.is_high = False
        self.requires_low = requires_low

    def argument(self, aval: ShapedArray | Placed, where: Any = None) -> JaxprTracer:
        """A tracer that stands for an argument of the program; `where` names it in messages."""
        if isinstance(aval, Placed):
            aval, place = aval
            var = Var(aval)
            if self.places is None:
                self.places = {}
            self.places[var] = place
            return JaxprTracer(self, var, where)
        if aval.is_high:
            self.is_high = True
        return JaxprTracer(self, Var(aval), where)

    def names_behind(self, var: Atom) -> list[str]:
        """The names of the arguments from which the value of a variable was computed, as far as names are known."""
        return [] if self.told is None else self.told.names_behind(self.eqns, var)

    def value_of(self, tracer: JaxprTracer) -> Any:
        """The array that a tracer stands for, None where it is not known before the program runs."""
        return None

    def shown(self, tracer: JaxprTracer) -> str | None:
        """How a tracer is printed if not by its type: by its values, where they can be known."""
        return None

    def atom(self, value: Any) -> Atom:
        """The variable or literal for an operand."""
        if type(value) is JaxprTracer and value._trace is self:
            return value._var
        if isinstance(value, Tracer):
            trace = value._trace
            if trace is self:
                raise TypeError(f"unexpected tracer {value!r}")
            if getattr(trace, "closed", False):
                raise leaked(value)
        elif isinstance(value, _SCALARS):
            return self.literal(value)
        elif type(value) is DimExpr:
            with set_trace(self):
                return self.atom(value.__jax_array__())
        elif isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype != float0:
            return self.literal(value[()])
        entry = self.consts.get(id(value))
        if entry is None:
            aval = self.captured_type(value)
            if aval.is_high:
                self.is_high = True
                if aval.mutable:
                    aval = aval.in_state(type_state(value, self.outer))  # type: ignore[attr-defined]
            entry = self.consts[id(value)] = (Var(aval), value)
        return entry[0]

    def captured_type(self, value: Any) -> ShapedArray:
        """The type that a value from outside has in the program."""
        return _captured_type(value)

    def adopted(self, ref: Any) -> Any:
        """What stands in the program for a reference from outside: the reference, if its type is the same in both."""
        return ref

    def literal(self, value: Any) -> Literal:
        """The Literal of a Python or NumPy scalar, one per type and value.

        0.0 equals -0.0, so what has zero parts is made anew.
        """
        key = (type(value), value)
        found = self.literals.get(key)
        if found is None:
            aval = aval_of(value)
            found = Literal(literal_value(value, aval), aval)
            if value and not isinstance(value, complex | np.complexfloating):
                self.literals[key] = found
        return found

    def process_primitive(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if self.closed:
            raise self.ended(args, primitive)
        atoms = []
        for a in args:
            atoms.append(a._var if type(a) is JaxprTracer and a._trace is self else self.atom(a))
        avals = tuple([a.aval for a in atoms])
        try:
            types = primitive.infer(avals, params)
        except errors.ShardingTypeError as e:
            raise named_operands(e, map(self.names_behind, atoms)) from None
        where = source.capture()
        if primitive.place is not None:
            where = source.called(where)
        outvars = [Var(t) for t in types]
        effects = NO_EFFECTS if primitive.effects_rule is None else primitive.effects(avals, params)
        self.eqns.append(Eqn(primitive, atoms, outvars, params, where, effects))
        if primitive.multiple_results:
            return [JaxprTracer(self, v, where) for v in outvars]
        return JaxprTracer(self, outvars[0], where)

    def ended(self, args: Sequence[Any], primitive: Primitive) -> errors.LeakedTracerError:
        """The error for an operation that is handed to this trace after its end."""
        for a in args:
            if isinstance(a, Tracer):
                return leaked(a, primitive)
        return errors.LeakedTracerError(
            f"{primitive.name} at {source.capture()} would become part of {self.name or 'a program'}, which has been "
            "traced to its end: its trace was made the current one and has stayed so. Leave such a context "
            "(set_current_trace, take_current_trace) where an error is raised too"
        )

    def process_high(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if self.requires_low or any(map(is_open_value, args)):
            return primitive.to_lojax(*args, **params)  # type: ignore[misc]
        args = [self.packed(a) for a in args]
        if self.cells is not None and any(id(a) in self.cells for a in args):
            return (primitive.unbox or primitive.to_lojax)(*args, **params)  # type: ignore[misc]
        self.is_high = True
        avals = [self.atom(a).aval for a in args]
        out = self.process_primitive(primitive, args, params)
        if any(a.mutable for a in avals):
            for i, state in primitive.final_states(avals, params).items():
                self.set_state(args[i], state)
        return out

    # A value of a high type that was made of tracers as a tracer of that type (`meshrt.core.basic.parts`).
    packed: ClassVar[Any] = staticmethod(lambda value: value)
    # Likewise the type of a value of a high type that varies over more axes.
    varying: ClassVar[Any] = staticmethod(lambda kind, axes: kind)

    def set_state(self, value: Any, state: Any) -> None:
        """Notes the type state of a mutable value that the program has written to."""
        if self.states is None:
            self.states = {}
        var: Any = self.atom(value)
        self.states[var] = state
        if isinstance(value, JaxprTracer) and value._trace is self:  # one from outside keeps what it has there
            value.aval = value.aval.in_state(state)  # type: ignore[attr-defined]

    def close(self, args: Sequence[JaxprTracer], outs: Sequence[Any], labels: Labels | None = None) -> ClosedJaxpr:
        """Ends the trace: the program from `args` to `outs` with its captured constants; `labels` are those of the
        function that it was told of, or the given ones."""
        end_if_asked()
        if self.is_high or has_high_types():
            outs = [self.packed(o) for o in outs]
        atoms = [self.atom(o) for o in outs]
        self.closed = True
        entries, high, told = list(self.consts.values()), self.is_high, self.told
        name, labels = (self.name, labels) if told is None else (told.function_name(), told.labels())
        constvars, invars = [v for v, _ in entries], [t._var for t in args]
        jaxpr = Jaxpr(constvars, invars, atoms, self.eqns, is_high=high, name=name, labels=labels)
        return ClosedJaxpr(jaxpr, [value for _, value in entries])


def type_state(value: Any, trace: Trace | None = None) -> Any:
    """The type state of a mutable value as a trace (by default the current one) sees it."""
    while isinstance(value, Tracer) and not isinstance(value, JaxprTracer):
        of_jvp = getattr(value, "primal", None)  # not by its truth: a tracer has none
        value = getattr(value, "value") if of_jvp is None else of_jvp  # noqa: B009  (of a trace that transforms)
    below = _current.get() if trace is None else trace
    passed: list[Any] = []
    state = _state_below(value, below, passed)
    for transforming in reversed(passed):
        state = transforming.seen_state(value, state)
    return state


def _state_below(value: Any, below: Trace, passed: list[Any]) -> Any:
    own = value._trace if isinstance(value, Tracer) else None
    while below is not EVAL and below is not own:
        if isinstance(below, JaxprTrace):
            if below.cells is not None and id(value) in below.cells:
                break
            entry = below.consts.get(id(value))
            if entry is not None:
                known = None if below.states is None else below.states.get(entry[0])
                return entry[0].aval.state if known is None else known  # type: ignore[attr-defined]
            below = below.outer
        else:
            if hasattr(below, "seen_state"):
                passed.append(below)
            below = below.parent  # type: ignore[attr-defined]
    return aval_of(value).state  # type: ignore[attr-defined]


def _captured_type(value: Any) -> ShapedArray:
    """The type that a value from outside has in a program.

    In a manual region each device has it whole; in a branch that devices choose by themselves it varies.
    """
    aval = aval_of(value)
    if axes_in_scope():
        if aval.explicit is not None:
            mesh = manual_mesh()
            aval = aval if mesh is None else aval.inside(mesh)
        if isinstance(value, Tracer) and not apart().issubset(aval.vma):
            more = apart()
            aval = JaxprTrace.varying(aval, more) if aval.is_high else aval.update(vma=aval.vma.union(more))
    elif aval.explicit is not None:  # in a region axes have other types
        aval = Completion.captured(aval)
    return aval


def record_high(trace: Trace) -> None:
    """Says of the programs being recorded by `trace` and those below it that high types stand in them."""
    below: Trace | None = trace
    while below is not None:
        if isinstance(below, JaxprTrace):
            below.is_high = True
        below = getattr(below, "parent", None)


def trace_to_jaxpr(
    fun: Callable[..., Sequence[Any]],
    in_avals: Sequence[ShapedArray],
    name: str = "",
    told: Told | None = None,
    requires_low: bool = True,
    trace: JaxprTrace | None = None,
) -> ClosedJaxpr:
    """Stages `fun`, a function of flat arrays that returns a flat sequence of arrays; in `trace`, if one is given."""
    if trace is None and must_check():
        return checked(lambda t: (trace_to_jaxpr(fun, in_avals, name, told, trace=t), None), name, requires_low)[0]
    if trace is None:
        trace = JaxprTrace(name, requires_low)
    args = [trace.argument(a, f"argument {i}") for i, a in enumerate(in_avals)]
    if told is not None:
        trace.told, told.inputs = told, [t._var for t in args]
    try:
        with set_trace(trace), source.own_scope():
            outs = fun(*args)
            return trace.close(args, outs)
    finally:
        trace.closed = True


def must_check() -> bool:
    """Whether settings ask for what `checked` does."""
    return bool(settings.check_tracer_leaks or settings.enable_checks)


def checked(
    stage: Callable[[JaxprTrace], tuple[ClosedJaxpr, Any]], name: str, requires_low: bool = True
) -> tuple[ClosedJaxpr, Any]:
    """What `stage` makes in a new trace, with the checks that settings ask for: of the Jaxpr, and for leaks."""
    trace = JaxprTrace(name, requires_low)
    made = stage(trace)
    if settings.enable_checks:
        check(made[0].jaxpr)
    if settings.check_tracer_leaks:
        kept = weakref.ref(trace)
        del trace
        refuse_leaks(kept, name)
    return made


def eval_jaxpr(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Runs `jaxpr` in the current trace, attributing each equation to its own source line."""
    if jaxpr.is_high:
        return eval_high(jaxpr, consts, args)
    env: dict[Var, Any] = dict(zip(jaxpr.constvars, consts))
    env.update(zip(jaxpr.invars, args))
    process = _current.get().process_primitive
    previous = source.set_replay(None)
    try:
        for eqn in jaxpr.eqns:
            source.set_replay(eqn.source)
            ins = [a.val if type(a) is Literal else env[a] for a in eqn.invars]
            out = process(eqn.primitive, ins, eqn.params)
            if eqn.primitive.multiple_results:
                env.update(zip(eqn.outvars, out))
            else:
                env[eqn.outvars[0]] = out
    finally:
        source.set_replay(previous)
    return [a.val if type(a) is Literal else env[a] for a in jaxpr.outvars]


def eval_high(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """As `eval_jaxpr`, for programs over high types: the current trace is asked what it takes of each equation."""
    env: dict[Var, Any] = dict(zip(jaxpr.constvars, consts))
    env.update(zip(jaxpr.invars, args))
    trace = _current.get()
    previous = source.set_replay(None)
    try:
        for eqn in jaxpr.eqns:
            source.set_replay(eqn.source)
            out = eqn.primitive.bind_in(
                trace, [a.val if type(a) is Literal else env[a] for a in eqn.invars], eqn.params
            )
            env.update(zip(eqn.outvars, out if eqn.primitive.multiple_results else [out]))
    finally:
        source.set_replay(previous)
    return [a.val if type(a) is Literal else env[a] for a in jaxpr.outvars]
