"""Tracing: what happens when a primitive is applied.

There is one current trace per thread. `Primitive.bind` hands the operation to it; a trace looks at the operands that
are its own tracers and passes the operation on to its parent when there are none. The bottom trace evaluates.

    EvalTrace      runs the primitive on arrays
    JaxprTrace     records an equation
    JVPTrace, LinearTrace, BatchTrace   in meshrt.transforms
"""

from __future__ import annotations

import gc
import operator
import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from meshrt import errors
from meshrt.config import settings
from meshrt.core import source
from meshrt.core.axes import apart, axes_in_scope, manual_mesh
from meshrt.core.completion import Completion
from meshrt.core.dimensions.expression import DimExpr
from meshrt.core.jaxpr import NO_EFFECTS, Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var, check
from meshrt.core.manual import ManualAxisType
from meshrt.core.operators import ArrayOperators
from meshrt.core.types import ShapedArray, aval_of, no_truth_value, register_aval
from meshrt.dtypes import float0

if TYPE_CHECKING:
    from meshrt.core.primitive import Primitive

__all__ = [
    "EvalTrace", "JaxprTrace", "JaxprTracer", "Trace", "Tracer", "context", "current_trace", "set_trace",
    "trace_to_jaxpr",
]  # fmt: skip


class Trace:
    """Interprets primitives. `requires_low` says that it processes array types only: see `meshrt.core.high`."""

    __slots__ = ("__weakref__",)

    requires_low: bool

    def process_primitive(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        raise NotImplementedError

    @property
    def main(self) -> Trace:
        """The trace itself, by which libraries tell the tracers of one trace from those of another."""
        return self


class Tracer(ArrayOperators):
    """A stand-in for an array while a function is being traced."""

    __slots__ = ("_trace", "aval")

    _trace: Trace
    aval: ShapedArray

    def __init__(self, trace: Trace, aval: ShapedArray):
        self._trace, self.aval = trace, aval

    @property
    def shape(self) -> tuple[int, ...]:
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        return self.aval.ndim

    @property
    def size(self) -> int:
        return self.aval.size

    @property
    def nbytes(self) -> int:
        return self.aval.nbytes

    @property
    def itemsize(self) -> int:
        return int(self.aval.dtype.itemsize)

    @property
    def weak_type(self) -> bool:
        return self.aval.weak_type

    @property
    def mat(self) -> ManualAxisType:
        return self.aval.mat

    @property
    def sharding(self) -> Any:
        raise AttributeError(
            f"{type(self).__name__} has no attribute 'sharding': where a traced value lies is decided later. What its "
            "type says of it is meshrt.typeof(x).sharding"
        )

    def concrete(self) -> Any:
        """The array behind the tracer if there is one, else None (a JVP tracer over concrete values has one)."""
        return None

    def origin(self) -> str:
        """Where the tracer was made, for error messages."""
        return ""

    def _need(self, what: str, error: type[errors.ConcretizationError] = errors.ConcretizationError) -> Any:
        value = self.concrete()
        if value is None:
            raise error(concretization_message(self, what))
        return value

    def __bool__(self) -> bool:
        if self.aval.size != 1:
            raise no_truth_value(self.aval)
        return bool(self._need(_BRANCH, errors.TracerBoolConversionError))

    def __int__(self) -> int:
        return int(self._scalar("int"))

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        if self.aval.shape or self.aval.dtype.kind not in "iu":
            raise errors.ArgumentTypeError(
                f"Only integer scalar arrays can be converted to a scalar index. Got {self.aval}"
            )
        return operator.index(self._need(_INDEX, errors.TracerIntegerConversionError))

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        # Never the known value of a tracer that has one: what NumPy computes with it would have no derivative.
        raise errors.TracerArrayConversionError(concretization_message(self, _NUMPY))

    def item(self, *args: int) -> Any:
        """One element as a Python scalar, of a tracer whose value is known."""
        return np.asarray(self._need(f"{NOT_CONCRETE}: item() was applied to a traced array")).item(*args)

    def _scalar(self, kind: str) -> Any:
        if self.aval.shape:
            raise errors.ArgumentTypeError(f"Only scalar arrays can be converted to Python scalars. Got {self.aval}")
        what = f"{NOT_CONCRETE}: {kind}() was applied (try using `x.astype({kind})`) to a traced array"
        return self._need(what)

    def __copy__(self) -> Tracer:
        return self  # tracers are never written to

    def __deepcopy__(self, memo: Any) -> Tracer:
        return self

    def __len__(self) -> int:
        if not self.aval.shape:
            raise TypeError("len() of unsized object: the array has no dimensions")
        return self.aval.shape[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}<{self.aval.str_short()}>"

    def block_until_ready(self) -> Tracer:
        return self


register_aval(Tracer, lambda t: t.aval)


# What everybody who looks for such an error looks for.
NOT_CONCRETE = "Abstract tracer value encountered where concrete value is expected"
_BRANCH = "Attempted boolean conversion (by if, while, assert, and, or, not) of traced array"
_INDEX = "The __index__() method was called on traced array (by range(), a list index or a static argument)"
_NUMPY = "The numpy.ndarray conversion method __array__() was called (by a NumPy function) on traced array"


def concretization_message(tracer: Tracer, what: str) -> str:
    made = tracer.origin()
    return (
        f"{what} with shape {str(tracer.aval).lstrip('~')}. {'It ' + made + '. ' if made else ''}A traced function is "
        "run once, without data, "
        "for all values of its arguments. Use meshrt.numpy.where or meshrt.lax.cond for branches, "
        "meshrt.lax.while_loop or fori_loop for loops, or make the argument static (jit(..., static_argnums=...))"
    )


class EvalTrace(Trace):
    """The bottom trace. `evaluate` is set by the dispatcher (`meshrt.dispatch`), which stands above the core."""

    __slots__ = ()

    requires_low = True
    evaluate: ClassVar[Callable[[Primitive, Sequence[Any], dict[str, Any]], Any]]

    def process_primitive(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if primitive.impl is not None:
            return primitive.impl(*args, **params)
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


def leaked(tracer: Tracer, primitive: Primitive | None = None) -> errors.LeakedTracerError:
    use = f" by {primitive.name} at {source.capture()}" if primitive is not None else ""
    made = tracer.origin()
    return errors.LeakedTracerError(
        f"Encountered an unexpected tracer: a traced value of type {tracer.aval} was used{use} after the function that "
        f"was being traced had returned{'; it ' + made if made else ''}. Return the value from the function instead of "
        "storing it in a global state: a variable, an attribute or a container",
        tracer,
    )


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

    def concrete(self) -> Any:
        return self._trace.value_of(self)

    def origin(self) -> str:
        if isinstance(self.source, str):
            return f"is {self.source} of {self._trace.name}"
        return f"was created on line {self.source}" if self.source is not None else ""


class JaxprTrace(Trace):
    """Records every primitive as an equation. Values of enclosing traces and arrays become constants.

    Programs over high types are recorded only where `requires_low` is False.
    """

    __slots__ = ("closed", "consts", "eqns", "is_high", "literals", "name", "requires_low")

    def __init__(self, name: str = "", requires_low: bool = True):
        self.name = name
        self.eqns: list[Eqn] = []
        self.consts: dict[int, tuple[Var, Any]] = {}
        self.literals: dict[tuple[type, Any], Literal] = {}
        self.closed = False
        self.is_high = False
        self.requires_low = requires_low

    def argument(self, aval: ShapedArray, where: Any = None) -> JaxprTracer:
        """A tracer that stands for an argument of the program; `where` names it in messages."""
        if aval.is_high:
            self.is_high = True
        return JaxprTracer(self, Var(aval), where)

    def value_of(self, tracer: JaxprTracer) -> Any:
        """The array that a tracer stands for, None where it is not known before the program runs."""
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
            entry = self.consts[id(value)] = (Var(self.captured_type(value)), value)
        return entry[0]

    def captured_type(self, value: Any) -> ShapedArray:
        """The type that a value from outside has in the program."""
        return _captured_type(value)

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
            raise leaked(next(a for a in args if isinstance(a, Tracer)), primitive)
        atoms = []
        for a in args:
            atoms.append(a._var if type(a) is JaxprTracer and a._trace is self else self.atom(a))
        avals = tuple([a.aval for a in atoms])
        types = primitive.infer(avals, params)
        where = source.capture()
        outvars = [Var(t) for t in types]
        effects = NO_EFFECTS if primitive.effects_rule is None else primitive.effects(avals, params)
        self.eqns.append(Eqn(primitive, atoms, outvars, params, where, effects))
        if primitive.multiple_results:
            return [JaxprTracer(self, v, where) for v in outvars]
        return JaxprTracer(self, outvars[0], where)

    def close(self, args: Sequence[JaxprTracer], outs: Sequence[Any]) -> ClosedJaxpr:
        """Ends the trace: the program from `args` to `outs` with its captured constants."""
        atoms = [self.atom(o) for o in outs]
        self.closed = True
        entries = list(self.consts.values())
        jaxpr = Jaxpr([v for v, _ in entries], [t._var for t in args], atoms, self.eqns, self.name, None, self.is_high)
        return ClosedJaxpr(jaxpr, [value for _, value in entries])


def _captured_type(value: Any) -> ShapedArray:
    """The type that a value from outside has in a program.

    In a manual region each device has it whole; in a branch that devices choose by themselves it varies.
    """
    aval = aval_of(value)
    if axes_in_scope():
        if aval.sharding is not None:
            mesh = manual_mesh()
            aval = aval if mesh is None else aval.inside(mesh)
        if isinstance(value, Tracer) and not apart().issubset(aval.vma):
            aval = aval.update(vma=aval.vma.union(apart()))
    elif aval.sharding is not None:  # in a region axes have other types
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
    arg_names: Sequence[str] = (),
    requires_low: bool = True,
    trace: JaxprTrace | None = None,
) -> ClosedJaxpr:
    """Stages `fun`, a function of flat arrays that returns a flat sequence of arrays; in `trace`, if one is given."""
    if trace is None and must_check():
        return checked(lambda t: (trace_to_jaxpr(fun, in_avals, name, arg_names, trace=t), None), name, requires_low)[0]
    if trace is None:
        trace = JaxprTrace(name, requires_low)
    names = arg_names or [f"argument {i}" for i in range(len(in_avals))]
    args = [trace.argument(a, n) for a, n in zip(in_avals, names)]
    try:
        with set_trace(trace):
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
    """What `stage` makes in a new trace, with the checks that settings ask for: of the Jaxpr, and that nothing refers
    to the trace any more."""
    trace = JaxprTrace(name, requires_low)
    made = stage(trace)
    if settings.enable_checks:
        check(made[0].jaxpr)
    if settings.check_tracer_leaks:
        kept = weakref.ref(trace)
        del trace
        _refuse_leaks(kept, name)
    return made


def _refuse_leaks(kept: weakref.ref[JaxprTrace], name: str) -> None:
    """Raises if anything still refers to values of a trace that has ended, and with that to the trace."""
    gc.collect()
    trace = kept()
    if trace is None:
        return
    tracers = [x for x in gc.get_referrers(trace) if isinstance(x, Tracer)]
    if tracers:
        listed = ", ".join(f"{x.aval}, which {x.origin()}" for x in tracers)
        raise errors.LeakedTracerError(
            f"Leaked trace {type(trace).__name__}: {name} has ended, but traced values of it are still referred to: "
            f"{listed}. Return values instead of storing them in a variable, an attribute or a container",
            tracers[0],
        )


def eval_jaxpr(jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Runs `jaxpr` in the current trace, attributing each equation to its own source line."""
    if jaxpr.is_high:
        raise errors.InternalError(f"{jaxpr.name} has high types; meshrt.core.high.lower_jaxpr makes it one of arrays")
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
