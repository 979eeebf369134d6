"""Forward-mode differentiation. A zero tangent is None everywhere inside: rules never see arrays of zeros."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from meshrt.core.basic.parts import packed
from meshrt.core.basic.reshard import as_split
from meshrt.core.basic.shapes import instantiate
from meshrt.core.jaxpr import ClosedJaxpr, Jaxpr
from meshrt.core.lojax import may_unbox
from meshrt.core.primitive import Primitive, missing_rule
from meshrt.core.source import transformed
from meshrt.core.trace import JaxprTrace, Trace, Tracer, context, eval_jaxpr, set_trace
from meshrt.core.types import aval_of, in_program
from meshrt.transforms.discharge import Cell, differentiated_refs, settled, through_values
from meshrt.transforms.linear import LinearTrace
from meshrt.transforms.tools import WeakCache, hoist_consts

__all__ = ["JVPTrace", "JVPTracer", "jvp_flat", "jvp_jaxpr"]


class JVPTracer(Tracer):
    """A value and its (nonzero) tangent."""

    __slots__ = ("primal", "tangent")
    _trace: JVPTrace

    def __init__(self, trace: JVPTrace, primal: Any, tangent: Any):
        self._trace, self.primal, self.tangent = trace, primal, tangent
        self.aval = primal.aval if isinstance(primal, Tracer) else aval_of(primal)

    def __repr__(self) -> str:
        if type(self._trace.parent) is LinearTrace:
            return f"GradTracer(primal={self.primal}, typeof(tangent)={self.tangent.aval.short()})"
        return f"JVPTracer(primal={self.primal}, tangent={self.tangent})"

    def concrete(self) -> Any:
        return self.primal.concrete() if isinstance(self.primal, Tracer) else self.primal

    @property
    def has_tangent(self) -> bool:
        return self.aval.dtype.kind not in "iub"

    def below(self) -> Any:
        return self.primal


class JVPTrace(Trace):
    """Applies jvp rules in `parent`. When the parent is a LinearTrace, this is linearization."""

    __slots__ = ("_contents", "parent")
    requires_low = False

    def __init__(self, parent: Trace):
        self.parent = parent
        self._contents: dict[int, Any] | None = None

    @property
    def contents(self) -> dict[int, Any]:
        """Of mutable values by identity: the value, and the tangents of what it holds."""
        if self._contents is None:
            self._contents = {}
        return self._contents

    def wrap(self, primal: Any, tangent: Any) -> Any:
        return primal if tangent is None else JVPTracer(self, primal, tangent)

    def unwrap(self, value: Any) -> tuple[Any, Any]:
        if type(value) is JVPTracer and value._trace is self:
            return value.primal, value.tangent
        return value, None

    def process_primitive(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        primals, tangents, active = [], [], False
        for a in args:
            if type(a) is JVPTracer and a._trace is self:
                primals.append(a.primal)
                tangents.append(a.tangent)
                active = True
            else:
                primals.append(a)
                tangents.append(None)
        parent = self.parent
        saved = context.trace
        context.trace = parent
        try:
            if not active and not primitive.allocates:
                if primitive.to_lojax is None:  # as `bind_in`, for most
                    return parent.process_primitive(primitive, primals, params)
                return primitive.bind_in(parent, primals, params)
            if primitive.discharge is not None and not primitive.on_cells:
                refs = differentiated_refs(primitive, primals, tangents, params)
                if refs:
                    context.trace = self
                    return through_values(primitive, args, params, refs)
            if primitive.linearize is not None and type(parent) is LinearTrace:
                out, tangent_out = primitive.linearize(parent, primals, tangents, params)
            elif primitive.jvp is not None:
                out, tangent_out = primitive.jvp(primals, tangents, **params)
            else:
                raise missing_rule(primitive, "jvp", "cannot be differentiated")
        finally:
            context.trace = saved
        if not primitive.multiple_results:
            return out if tangent_out is None else self._pair(out, tangent_out)
        return [p if t is None else self._pair(p, t) for p, t in zip(out, tangent_out)]

    def process_high(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """By the rules of the primitive; one that has none is lowered, and what it then does is differentiated."""
        if primitive.boxes is not None:
            return primitive.boxes.jvp(self, args, params)
        args = [packed(a) for a in args]
        if may_unbox(primitive, args, params):
            return primitive.unbox(*args, **params)  # type: ignore[misc]
        if primitive.jvp is None and primitive.linearize is None:
            return primitive.to_lojax(*args, **params)  # type: ignore[misc]
        return self.process_primitive(primitive, args, params)

    def _pair(self, primal: Any, tangent: Any) -> JVPTracer:
        """A result with its tangent, which is split as it is."""
        tracer = JVPTracer(self, primal, tangent)
        if type(tangent) is Cell:
            return tracer
        own = tangent.aval if isinstance(tangent, Tracer) else aval_of(tangent)
        if own.explicit is not tracer.aval.explicit and not (own.is_high or tracer.aval.is_high):
            with set_trace(self.parent):
                tracer.tangent = as_split(tangent, tracer.aval.explicit)
        return tracer


def jvp_flat(fun: Any, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Values and tangents (None for zero) of a flat function, in the current trace."""
    trace = JVPTrace(context.trace)
    args = [trace.wrap(p, t) for p, t in zip(primals, tangents)]
    with set_trace(trace), transformed("jvp"):
        outs = fun(*args)
    pairs = [trace.unwrap(o) for o in outs]
    return [p for p, _ in pairs], [t for _, t in pairs]


_jvp_cache: WeakCache = WeakCache()
_first = operator.itemgetter(0)


def jvp_jaxpr(
    jaxpr: Jaxpr, nonzeros: tuple[bool, ...], instantiate_out: tuple[bool, ...] | bool = False
) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    """The Jaxpr of the jvp: arguments are the primals, then the tangents whose `nonzeros` flag is set; results are
    the primal results, then the nonzero tangents (all those that `instantiate_out` names). Also returns which
    results have a tangent. Cached by `jaxpr`.
    """
    return _jvp_cache.get(
        jaxpr, (nonzeros, instantiate_out), lambda: _jvp_jaxpr(jaxpr, nonzeros, instantiate_out), _first
    )


def _jvp_jaxpr(jaxpr, nonzeros, instantiate_out):
    jaxpr = settled(jaxpr)
    trace = JaxprTrace(jaxpr.name, requires_low=False)
    primals = [trace.argument(a) for a in jaxpr.in_avals]
    kinds = [in_program(a.to_tangent_aval()) if nz else None for a, nz in zip(jaxpr.in_avals, nonzeros)]
    tangents = [None if kind is None else trace.argument(kind) for kind in kinds]
    if isinstance(instantiate_out, bool):
        instantiate_out = (instantiate_out,) * len(jaxpr.outvars)
    with set_trace(trace):
        outs, tangents_out = jvp_flat(lambda *xs: eval_jaxpr(jaxpr, (), xs), primals, tangents)
        tangents_out = [
            instantiate(t, o) if i and aval_of(o).is_differentiable else t
            for t, o, i in zip(tangents_out, outs, instantiate_out)
        ]
        args = [*primals, *[t for t in tangents if t is not None]]
        closed = trace.close(args, [*outs, *[t for t in tangents_out if t is not None]])
    return hoist_consts(closed), tuple(t is not None for t in tangents_out)
