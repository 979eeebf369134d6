"""Recording and transposing linear programs: the second half of reverse mode.

Linearization is forward mode whose tangents are tracers of a `LinearTrace`. Operations on known values go straight to
the trace below; operations on tangents are recorded on a tape, with the known values they use (the residuals) beside
them. The backward pass walks the tape in reverse. There is no separate partial evaluation: what is known is simply
executed. (The idea of linearize-then-transpose: Radul, Paszke, Frostig, Johnson, Maclaurin, "You Only Linearize Once",
POPL 2023.)
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from meshrt import errors
from meshrt.core import source
from meshrt.core.basic.pointwise import add_tangents
from meshrt.core.basic.reshard import cotangent_of, cotangent_type
from meshrt.core.basic.shapes import zeros
from meshrt.core.jaxpr import NO_EFFECTS, ClosedJaxpr, Effects, Eqn, Jaxpr, Literal, Var
from meshrt.core.primitive import NotLinearError, Primitive, Undefined, is_undefined, missing_rule
from meshrt.core.trace import JaxprTrace, Trace, Tracer, context, set_trace
from meshrt.core.types import ShapedArray, aval_of
from meshrt.transforms.running_sums import reads_parts
from meshrt.transforms.tools import WeakCache, as_literal, hoist_consts

__all__ = [
    "LinearTrace", "LinearTracer", "Purpose", "backward", "backward_jaxpr", "given_linear", "linearizing_for",
    "purpose", "taken_as_linear", "transpose_jaxpr",
]  # fmt: skip


class Purpose(enum.Enum):
    """What a derivative is linearized for: operations over high types may have a rule for each (`HiPrimitive`s')."""

    PULL = enum.auto()  # to be transposed
    PUSH = enum.auto()  # to be applied to tangents
    RECOMPUTE = enum.auto()  # to be computed again in the backward pass, and then transposed


purpose: ContextVar[Purpose] = ContextVar("meshrt_purpose", default=Purpose.PULL)


@contextmanager
def linearizing_for(why: Purpose) -> Iterator[None]:
    """Says what derivatives that are linearized inside the block are for."""
    token = purpose.set(why)
    try:
        yield
    finally:
        purpose.reset(token)


given_linear: ContextVar[bool] = ContextVar("meshrt_given_linear", default=False)


@contextmanager
def taken_as_linear(flag: bool) -> Iterator[None]:
    """Says whether Jaxprs that are linearized inside the block are linear programs already, in the operands that have
    tangents. Then what depends on those is recorded as it is, not differentiated: what turns out not to be linear is
    refused when it is transposed, as it is outside of a Jaxpr.
    """
    token = given_linear.set(flag)
    try:
        yield
    finally:
        given_linear.reset(token)


class LinearTracer(Tracer):
    """A tangent: known only to be a linear function of the inputs of its trace."""

    __slots__ = ("_var",)

    def __init__(self, trace: LinearTrace, var: Var):
        self._trace, self._var, self.aval = trace, var, var.aval


class Step:
    """One recorded linear operation: `args` are Vars (linear) or values of the trace below (residuals)."""

    __slots__ = ("args", "effects", "outvars", "params", "primitive", "source")

    def __init__(
        self, primitive: Primitive, args: list[Any], params: dict[str, Any], outvars: Sequence[Var], where: Any,
        effects: Effects = NO_EFFECTS,
    ):  # fmt: skip
        self.primitive, self.args, self.params = primitive, args, params
        self.outvars, self.source, self.effects = outvars, where, effects


class LinearTrace(Trace):
    """Records operations on its tracers, passes all others to `parent`."""

    __slots__ = ("parent", "tape")
    requires_low = False

    def __init__(self, parent: Trace):
        self.parent = parent
        self.tape: list[Step] = []

    def input(self, aval: ShapedArray) -> LinearTracer:
        return LinearTracer(self, Var(aval))

    def process_primitive(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        for a in args:
            if type(a) is LinearTracer and a._trace is self:
                if primitive.linearize is not None:
                    return self._apply_with_jaxprs(primitive, args, params)
                return self.record(primitive, args, params)
        saved = context.trace
        context.trace = self.parent
        try:
            if primitive.to_lojax is None:  # as `bind_in`, for most
                return self.parent.process_primitive(primitive, args, params)
            return primitive.bind_in(self.parent, args, params)
        finally:
            context.trace = saved

    def process_high(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Operations over tangents are linear, so they are recorded as they are."""
        if primitive.applies is None:
            if any(type(a) is LinearTracer and a._trace is self for a in args):
                return self.record(primitive, args, params)
        return self.process_primitive(primitive, args, params)

    def _apply_with_jaxprs(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """A loop, branch or call over tangents may have known results beside linear ones (a counter beside a sum).

        Its Jaxprs are said to be linear in the linear operands: its rule for derivatives, which knows where Jaxprs take
        and give them, then finds which results are linear, and the others are values.
        """
        assert primitive.linearize is not None
        mine = [type(a) is LinearTracer and a._trace is self for a in args]
        decided = [a.aval for a, m in zip(args, mine) if m and not a.aval.is_differentiable]
        if decided:
            raise _not_linear(primitive, decided, source.capture(), "takes what cannot be linear in its arguments")
        with set_trace(self), taken_as_linear(True):
            primals = [zeros(a.aval) if m else a for a, m in zip(args, mine)]
            tangents = [a if m else None for a, m in zip(args, mine)]
            outs, tangents_out = primitive.linearize(self, primals, tangents, params)
        if not primitive.multiple_results:
            return outs if tangents_out is None else tangents_out
        return [o if t is None else t for o, t in zip(outs, tangents_out)]

    def record(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """Puts an operation on the tape. Linear operands are tracers of this trace, all others are residuals."""
        step_args, avals = [], []
        for a in args:
            if type(a) is LinearTracer and a._trace is self:
                step_args.append(a._var)
                avals.append(a.aval)
            else:
                step_args.append(a)
                avals.append(a.aval if isinstance(a, Tracer) else aval_of(a))
        types = tuple(avals)
        outvars = [Var(t) for t in primitive.infer(types, params)]
        effects = primitive.effects(types, params)
        self.tape.append(Step(primitive, step_args, params, outvars, source.capture(), effects))
        if primitive.multiple_results:
            return [LinearTracer(self, v) for v in outvars]
        return LinearTracer(self, outvars[0])

    def not_linear(self, tracer: LinearTracer) -> errors.DifferentiationError:
        """The error for a result that depends on inputs and that nothing can be linear in, as it is no number."""
        step = next(s for s in self.tape if tracer._var in s.outvars)
        dependent = [a.aval for a in step.args if type(a) is Var]
        return _not_linear(step.primitive, dependent, step.source, f"gives {tracer.aval.short()}")

    def unknown_value(self, tracer: LinearTracer) -> errors.DifferentiationError:
        """The error for a result whose value an operation computed together with a tangent, so that it is not known."""
        reaching = _reaching(self.tape, [tracer._var])
        steps = [s for s in self.tape if not reaching.isdisjoint(s.outvars)]
        step = next((s for s in steps if s.primitive.transpose is None), steps[-1] if steps else None)
        what = "one itself is returned" if step is None else f"{step.primitive.name} at {step.source} takes them"
        return errors.DifferentiationError(
            f"Linearization failed to produce known values for all output primals: a result of type "
            f"{tracer.aval.short()} depends on tangents ({what}), as where an operation has forward mode only. Use "
            "meshrt.jvp or meshrt.jacfwd, or define custom_jvp or custom_vjp around it"
        )

    def to_jaxpr(
        self, inputs: Sequence[LinearTracer], outs: Sequence[LinearTracer], name: str = ""
    ) -> tuple[Jaxpr, list[Any]]:
        """The live part of the tape as a Jaxpr whose arguments are the residuals, then `inputs`; and the residuals.

        What looks at tangents (a debug callback in the rule of a custom_jvp) is live too.
        """
        live = {o._var for o in outs}
        steps = []
        for step in reversed(self.tape):
            if any(v in live for v in step.outvars) or step.effects:
                steps.append(step)
                live.update([a for a in step.args if type(a) is Var])
        steps.reverse()
        residuals: dict[int, tuple[Var, Any]] = {}
        eqns = []
        for step in steps:
            atoms: list[Any] = []
            for a in step.args:
                atoms.append(a if type(a) is Var else _residual(a, residuals))
            eqns.append(Eqn(step.primitive, atoms, step.outvars, step.params, step.source, step.effects))
        entries = list(residuals.values())
        invars = [*(v for v, _ in entries), *(t._var for t in inputs)]
        return Jaxpr((), invars, [o._var for o in outs], eqns, name=name), [value for _, value in entries]


def _residual(value: Any, residuals: dict[int, tuple[Var, Any]]) -> Var | Literal:
    literal = as_literal(value)
    if literal is not None:
        return literal
    entry = residuals.get(id(value))
    if entry is None:
        entry = residuals[id(value)] = (Var(aval_of(value)), value)
    return entry[0]


def backward(
    tape: Sequence[Step], outs: Sequence[Any], cts: Sequence[Any], inputs: Sequence[Var | None],
    unwanted: Sequence[Var | None] = (),
) -> list[Any]:  # fmt: skip
    """Pulls `cts` (None for zero) at the variables `outs` back to `inputs` along `tape`, in the current trace. Those of
    `inputs` that are `unwanted` get None, and nothing is computed for them alone."""
    env: dict[Var, Any] = {}
    for var, ct in zip(outs, cts):
        if ct is not None and var is not None:
            env[var] = add_tangents(env.get(var), ct)
    if not env:
        return [None] * len(inputs)
    sums = set(inputs).intersection(outs)
    reaching: set[Var] | None = None
    idle: frozenset[Var | None] = _depending_only_on(unwanted, tape) if unwanted else frozenset()
    previous = source.set_replay(None)
    try:
        for step in reversed(tape):
            if idle.issuperset(step.outvars) and not step.primitive.pulls_zeros:
                continue
            if env.keys().isdisjoint(step.outvars):
                if not step.primitive.pulls_zeros:
                    continue
                reaching = _reaching(tape, outs) if reaching is None else reaching
                if reaching.isdisjoint(step.outvars):
                    continue
            _pull(step.primitive, step.args, step.outvars, step.params, step.source, env, sums)
    finally:
        source.set_replay(previous)
    return [None if v is None or v in idle else env.get(v) for v in inputs]


def _depending_only_on(inputs: Sequence[Var | None], tape: Sequence[Step]) -> frozenset[Var | None]:
    """`inputs` and the variables of a tape that depend on no others."""
    found = set(inputs)
    for step in tape:
        if found.issuperset([a for a in step.args if type(a) is Var]):
            found.update(step.outvars)
    return frozenset(found)


def _reaching(tape: Sequence[Step], outs: Sequence[Any]) -> set[Var]:
    """The variables that results are computed from."""
    found = {v for v in outs if v is not None}
    for step in reversed(tape):
        if not found.isdisjoint(step.outvars):
            found.update([a for a in step.args if type(a) is Var])
    return found


def _pull(primitive, args, outvars, params, where, env: dict[Var, Any], sums: set[Var | None]) -> None:
    """One step of the backward pass: from the cotangents of `outvars` to those of the linear `args` (Vars)."""
    step_cts = [env.pop(v, None) for v in outvars]
    if primitive.transpose is None:
        raise missing_rule(primitive, "transpose", "cannot be differentiated in reverse mode", where)
    source.set_replay(source.transposed(where))
    args, params, step_cts = _with_sums(primitive, args, params, step_cts, env, sums)
    operands = [Undefined(a.aval) if type(a) is Var else a for a in args]
    try:
        pulled = primitive.transpose(step_cts if primitive.multiple_results else step_cts[0], *operands, **params)
    except NotLinearError:
        dependent = [a.aval for a in args if type(a) is Var]
        raise _not_linear(primitive, dependent, where, "takes several operands that depend on its arguments") from None
    for a, ct in zip(args, pulled):
        if type(a) is Var and ct is not None:
            env[a] = add_tangents(env.get(a), cotangent_of(a.aval, ct))


def _with_sums(
    primitive, args, params, cts, env: dict[Var, Any], sums: set[Var | None]
) -> tuple[Any, dict[str, Any], list[Any]]:  # fmt: skip
    """(operands, parameters, cotangents) with which a step is pulled back: where it reads parts of operands that are
    among `sums`, inputs that the program around returns (a loop does so that their cotangents are added up turn by
    turn), as an application that returns them as well, whose cotangents are the sums so far."""
    if primitive.passing is None or not sums:
        return args, params, cts
    places: dict[Var, int] = {}
    for i, a in enumerate(args):
        if type(a) is Var and a in sums and a in env and not a.aval.is_high:
            places.setdefault(a, i)
    added = [i for i in places.values() if reads_parts(primitive, params, i)]
    if not added:
        return args, params, cts
    params, order, at = primitive.passing(params, added)
    return [args[i] for i in order], params, [*cts[:at], *[env.pop(args[i]) for i in added], *cts[at:]]


def _not_linear(primitive: Primitive, avals: Sequence[Any], where: Any, why: str) -> errors.DifferentiationError:
    shown = ", ".join(a.short() for a in avals)
    return errors.DifferentiationError(
        f"a function that is not linear cannot be transposed: {primitive.name} of {shown} at {where} {why}. "
        "Linearize it first (meshrt.linearize, meshrt.vjp), or make all operands but one constants"
    )


def backward_jaxpr(jaxpr: Jaxpr, args: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
    """Pulls `cts` back through a Jaxpr that is linear in the arguments given as `Undefined`.

    Equations that don't depend on those are evaluated. Returns one cotangent (or None) for every argument.
    """
    known: dict[Var, Any] = {}
    linear: set[Var] = set()
    for v, a in zip(jaxpr.invars, args):
        if is_undefined(a):
            linear.add(v)
        else:
            known[v] = a
    steps = []
    trace = context.trace
    previous = source.set_replay(None)
    try:
        for eqn in jaxpr.eqns:
            if any(type(a) is Var and a in linear for a in eqn.invars):
                linear.update(eqn.outvars)
                operands = [a.val if type(a) is Literal else a if a in linear else known[a] for a in eqn.invars]
                steps.append(Step(eqn.primitive, operands, eqn.params, eqn.outvars, eqn.source))
                continue
            source.set_replay(eqn.source)
            out = eqn.primitive.bind_in(
                trace, [a.val if type(a) is Literal else known[a] for a in eqn.invars], eqn.params
            )
            known.update(zip(eqn.outvars, out if eqn.primitive.multiple_results else [out]))
    finally:
        source.set_replay(previous)
    outs = [v if type(v) is Var and v in linear else None for v in jaxpr.outvars]
    return backward(steps, outs, cts, jaxpr.invars)


_transpose_cache: WeakCache = WeakCache()
_first = operator.itemgetter(0)


def transpose_jaxpr(
    jaxpr: Jaxpr, linear: tuple[bool, ...], nonzero_cts: tuple[bool, ...]
) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    """The transpose as a Jaxpr: arguments are the known arguments, then the nonzero cotangents; results are the
    nonzero cotangents of the linear arguments. Also returns which of those are nonzero. Cached by `jaxpr`.
    """
    return _transpose_cache.get(
        jaxpr, (linear, nonzero_cts), lambda: _transpose_jaxpr(jaxpr, linear, nonzero_cts), _first
    )


def _transpose_jaxpr(jaxpr, linear, nonzero_cts):
    trace = JaxprTrace(jaxpr.name, requires_low=False)
    known = [None if lin else trace.argument(a) for a, lin in zip(jaxpr.in_avals, linear)]
    cts = [trace.argument(cotangent_type(a)) if nz else None for a, nz in zip(jaxpr.out_avals, nonzero_cts)]
    with set_trace(trace):
        args = [Undefined(a) if lin else k for a, lin, k in zip(jaxpr.in_avals, linear, known)]
        pulled = [c for c, lin in zip(backward_jaxpr(jaxpr, args, cts), linear) if lin]
        ins = [x for x in (*known, *cts) if x is not None]
        closed = trace.close(ins, [c for c in pulled if c is not None])
    return hoist_consts(closed), tuple(c is not None for c in pulled)
