"""Evaluating what is known of a function, recording the rest. Names are ``jax.interpreters.partial_eval``'s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from meshrt import errors
from meshrt.core.jaxpr import Eqn, Jaxpr
from meshrt.core.primitive import Primitive
from meshrt.core.trace import JaxprTrace, JaxprTracer, Trace, context, set_trace, trace_to_jaxpr
from meshrt.interpreters.ad import Rule, Rules
from meshrt.transforms import tools
from meshrt.transforms.arguments import fun_name

__all__ = [
    "DynamicJaxprTracer", "JaxprTracer", "PartialVal", "dce_jaxpr", "dce_rules", "trace_to_jaxpr_dynamic",
    "trace_to_jaxpr_nounits",
]  # fmt: skip

DynamicJaxprTracer = JaxprTracer


class PartialVal(NamedTuple):
    """A value that is known (`const`, and `aval` is None), or of which only the type is."""

    aval: Any
    const: Any

    @classmethod
    def known(cls, const: Any) -> PartialVal:
        """A known value."""
        return cls(None, const)

    @classmethod
    def unknown(cls, aval: Any) -> PartialVal:
        """A value of which the type is known."""
        return cls(aval, None)

    def is_known(self) -> bool:
        """Whether the value is known."""
        return self.aval is None

    def get_known(self) -> Any:
        """The value; None if it is not known."""
        return self.const if self.is_known() else None

    def get_aval(self) -> Any:
        """The type of a value that is not known."""
        return self.aval


class _PartialTrace(JaxprTrace):
    """Records operations on unknown values, hands all others to `parent`."""

    __slots__ = ("parent",)

    def __init__(self, parent: Trace):
        super().__init__("partial_eval")
        self.parent = parent

    def owns(self, value: Any) -> bool:
        return type(value) is JaxprTracer and value._trace is self

    def process_primitive(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        if any(map(self.owns, args)):
            return super().process_primitive(primitive, args, params)
        with set_trace(self.parent):
            return self.parent.process_primitive(primitive, args, params)


def trace_to_jaxpr_nounits(
    fun: Any, pvals: Sequence[PartialVal], instantiate: bool | Sequence[bool] = False
) -> tuple[Jaxpr, list[PartialVal], list[Any]]:
    """Runs a WrappedFun of flat arrays on values of which some are known.

    Returns a Jaxpr from the constants and the unknown arguments to the unknown results, the results as PartialVals,
    and the constants. What follows from known values alone is known; results that `instantiate` flags count as unknown.
    """
    trace = _PartialTrace(context.trace)
    args = [pv.const if pv.is_known() else trace.argument(pv.aval) for pv in pvals]
    with set_trace(trace):
        outs = list(fun.call_wrapped(*args))
    wanted = [instantiate] * len(outs) if isinstance(instantiate, bool) else list(instantiate)
    open_ = [w or trace.owns(o) for o, w in zip(outs, wanted)]
    closed = trace.close([a for a in args if trace.owns(a)], [o for o, u in zip(outs, open_) if u])
    types = iter(closed.out_avals)
    known = [PartialVal.unknown(next(types)) if u else PartialVal.known(o) for o, u in zip(outs, open_)]
    hoisted = tools.hoist_consts(closed)
    return hoisted.jaxpr, known, hoisted.consts


def trace_to_jaxpr_dynamic(
    fun: Any, in_avals: Sequence[Any], *, keep_inputs: Sequence[bool] | None = None, lower: bool = False,
    auto_dce: bool = False,
) -> tuple[Jaxpr, list[Any], list[Any]]:  # fmt: skip
    """Runs a WrappedFun of flat arrays on tracers: the program, the types of its results, and its constants.

    Arguments that `keep_inputs` does not flag are arguments of the program, but not of `fun`, so that nothing reads
    them. With `lower` there are no high types in it, with `auto_dce` nothing that the results do not need.
    """
    kept = [True] * len(in_avals) if keep_inputs is None else list(keep_inputs)
    if len(kept) != len(in_avals):
        raise errors.ArgumentValueError(
            f"trace_to_jaxpr_dynamic got {len(kept)} flags in `keep_inputs` for {len(in_avals)} types in `in_avals`; "
            f"give one flag for each type"
        )
    closed = trace_to_jaxpr(
        lambda *args: list(fun.call_wrapped(*(a for a, keep in zip(args, kept) if keep))), list(in_avals),
        fun_name(fun), requires_low=lower,
    )  # fmt: skip
    jaxpr, consts = closed.jaxpr, list(closed.consts)
    if auto_dce:
        jaxpr, _ = tools.dce(jaxpr, [True] * len(jaxpr.outvars), True)
        read = set(jaxpr.outvars).union(*(e.invars for e in jaxpr.eqns))
        bound = [(v, c) for v, c in zip(jaxpr.constvars, consts) if v in read]
        jaxpr, consts = jaxpr.replace(constvars=[v for v, _ in bound]), [c for _, c in bound]
    return jaxpr, list(closed.out_avals), consts


def _dce_of(primitive: Any, rule: Rule) -> Rule:
    """`rule(used_results, eqn) -> (used_operands, eqn or None)` as the record takes it."""
    return lambda eqn, used: rule(list(used), eqn)[1] or eqn


def _dce_shown(primitive: Any, rule: Rule) -> Rule:
    def shown(used: Sequence[bool], eqn: Eqn) -> tuple[list[bool], Eqn]:
        pruned = rule(eqn, used)
        return [any(a is b for b in pruned.invars) for a in eqn.invars], pruned

    return shown


# By primitive: which operands an equation needs for some of its results, and the equation for those.
dce_rules = Rules("dce", _dce_of, _dce_shown)


def dce_jaxpr(
    jaxpr: Jaxpr, used_outputs: Sequence[bool], instantiate: bool | Sequence[bool] = False
) -> tuple[Jaxpr, list[bool]]:
    """`jaxpr` with the results flagged in `used_outputs` only, without what they do not need, and which arguments stay
    (those that `instantiate` flags do)."""
    pruned, needed = tools.dce(jaxpr, used_outputs)
    kept = [instantiate] * len(needed) if isinstance(instantiate, bool) else list(instantiate)
    used = [n or k for n, k in zip(needed, kept)]
    invars = [v for v, u in zip(pruned.invars, used) if u]
    told = jaxpr.debug_info
    names, paths = told.filter_arg_names(used), told.filter_result_paths(used_outputs)
    info = told._replace(arg_names=names, result_paths=paths)
    return Jaxpr(pruned.constvars, invars, pruned.outvars, pruned.eqns, pruned.effects, debug_info=info), used


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise errors.MissingFunctionError(f"module {__name__!r} has no attribute {name!r}: it is not implemented")
