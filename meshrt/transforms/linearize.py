"""Linearization of functions and of Jaxprs: a forward program that also returns residuals, and a linear program."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from meshrt.core.basic.parts import from_parts_p, to_parts_p
from meshrt.core.basic.shapes import zeros
from meshrt.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Var
from meshrt.core.primitive import Primitive
from meshrt.core.references import is_ref, is_ref_type
from meshrt.core.source import UNKNOWN, transformed
from meshrt.core.trace import JaxprTrace, JaxprTracer, context, eval_jaxpr, set_trace
from meshrt.core.types import ShapedArray, aval_of, in_program
from meshrt.transforms.discharge import Cell, settled
from meshrt.transforms.jvp import JVPTrace
from meshrt.transforms.linear import LinearTrace, LinearTracer, given_linear, purpose, taken_as_linear
from meshrt.transforms.tools import WeakCache, hoist_consts

__all__ = ["LinearFunction", "Linearized", "linearize_flat", "linearize_jaxpr", "opened_residuals"]


@dataclass(slots=True)
class LinearFunction:
    """What `linearize_flat` recorded: the trace with its tape, input tracers, output tangents (None for zero), and for
    arguments that are references what they hold in the end, as tangents.
    """

    trace: LinearTrace
    inputs: list[LinearTracer | None]
    outs: list[Any]
    states: list[Any]


def linearize_flat(
    fun: Callable[..., Sequence[Any]], primals: Sequence[Any], nonzeros: Sequence[bool]
) -> tuple[list[Any], LinearFunction]:
    """Runs a flat function in the current trace, recording the linear program of its tangents."""
    with taken_as_linear(False):
        return _linearize_flat(fun, primals, nonzeros)


def _linearize_flat(
    fun: Callable[..., Sequence[Any]], primals: Sequence[Any], nonzeros: Sequence[bool]
) -> tuple[list[Any], LinearFunction]:
    linear = LinearTrace(context.trace)
    trace = JVPTrace(linear)
    held = [in_program(_held(aval_of(p)).to_tangent_aval()) if nz else None for p, nz in zip(primals, nonzeros)]
    inputs = [None if a is None else linear.input(a) for a in held]
    cells = [Cell(t) if t is not None and is_ref(p) else None for p, t in zip(primals, inputs)]
    args = [trace.wrap(p, t if cell is None else cell) for p, t, cell in zip(primals, inputs, cells)]
    with set_trace(trace), transformed("jvp"):
        outs = fun(*args)
    pairs = [trace.unwrap(o) for o in outs]
    for primal, _ in pairs:
        if type(primal) is LinearTracer and primal._trace is linear:
            raise linear.unknown_value(primal)
    states = [cell.value for cell in cells if cell is not None]
    return [p for p, _ in pairs], LinearFunction(linear, inputs, [t for _, t in pairs], states)


def _record_linear(jaxpr: Jaxpr, args: Sequence[Any], nonzeros: Sequence[bool]) -> tuple[list[Any], LinearFunction]:
    """As `linearize_flat`, of a Jaxpr that is linear in the flagged arguments: values for these don't exist."""
    linear = LinearTrace(context.trace)
    inputs = [linear.input(in_program(aval_of(a))) if nz else None for a, nz in zip(args, nonzeros)]
    with taken_as_linear(False):
        with set_trace(linear):
            outs = eval_jaxpr(jaxpr, (), [a if t is None else t for a, t in zip(args, inputs)])
        mine = [type(o) is LinearTracer and o._trace is linear for o in outs]
        values = [zeros(o.aval) if m else o for o, m in zip(outs, mine)]
    return values, LinearFunction(linear, inputs, [o if m else None for o, m in zip(outs, mine)], [])


def _held(aval: Any) -> ShapedArray:
    """The type of what is differentiated in a value of type `aval`: of a reference what it holds."""
    held: ShapedArray = aval.inner_aval if is_ref_type(aval) else aval
    return held


class Linearized(NamedTuple):
    """A linearized Jaxpr.

    `forward` takes `forward.consts`, then the original arguments, and returns the results followed by
    `num_residuals` new residuals. `linear` takes all residuals, then the nonzero tangents, and returns the nonzero
    result tangents (`nonzeros_out`). Residual i of `linear` comes from `sources[i]`: ("arg", k) is argument k of the
    original, ("out", k) its result k, ("res", k) the k-th new residual.
    """

    forward: ClosedJaxpr
    linear: Jaxpr
    nonzeros_out: tuple[bool, ...]
    sources: tuple[tuple[str, int], ...]
    num_residuals: int

    def residuals(self, args: Sequence[Any], outs: Sequence[Any], new: Sequence[Any]) -> list[Any]:
        """The residual values, given the original arguments, the original results and the new residuals."""
        pools = {"arg": args, "out": outs, "res": new}
        return [pools[kind][k] for kind, k in self.sources]


_cache: WeakCache = WeakCache()
_forward = operator.attrgetter("forward")


def linearize_jaxpr(
    jaxpr: Jaxpr, nonzeros: tuple[bool, ...], instantiate_out: tuple[bool, ...] | bool = False
) -> Linearized:
    """Linearizes a Jaxpr without constvars at symbolic inputs, with respect to the arguments flagged in `nonzeros`.

    Results flagged by `instantiate_out` get a tangent even when it is zero. Cached by `jaxpr`.
    """
    why = purpose.get() if jaxpr.is_high else None
    return _cache.get(
        jaxpr,
        (nonzeros, instantiate_out, why, given_linear.get()),
        lambda: _linearize(jaxpr, nonzeros, instantiate_out),
        _forward,
    )


def _linearize(jaxpr: Jaxpr, nonzeros: tuple[bool, ...], instantiate_out: tuple[bool, ...] | bool) -> Linearized:
    if isinstance(instantiate_out, bool):
        instantiate_out = (instantiate_out,) * len(jaxpr.outvars)
    jaxpr = settled(jaxpr)
    trace = JaxprTrace(jaxpr.name, requires_low=False)
    args = [trace.argument(a) for a in jaxpr.in_avals]
    with set_trace(trace):
        if given_linear.get():
            outs, recorded = _record_linear(jaxpr, args, nonzeros)
        else:
            outs, recorded = linearize_flat(lambda *xs: eval_jaxpr(jaxpr, (), xs), args, nonzeros)
        tangents = recorded.outs
        for i, want in enumerate(instantiate_out):
            if want and not aval_of(outs[i]).is_differentiable:
                if tangents[i] is not None:
                    raise recorded.trace.not_linear(tangents[i])
            elif want and tangents[i] is None:
                tangents[i] = _known_zero(recorded.trace, outs[i])
        inputs = [t for t in recorded.inputs if t is not None]
        linear, residuals = recorded.trace.to_jaxpr(inputs, [t for t in tangents if t is not None], jaxpr.name)
        where: dict[int, tuple[str, int]] = {}
        for k, o in enumerate(outs):
            if isinstance(o, JaxprTracer):
                where[id(o._var)] = ("out", k)
        for k, a in enumerate(args):
            where[id(a._var)] = ("arg", k)
        sources: list[tuple[str, int]] = []
        new: list[Any] = []
        for r in residuals:
            place = where.get(id(r._var)) if type(r) is JaxprTracer and r._trace is trace else None
            if place is None:
                place = ("res", len(new))
                new.append(r)
            sources.append(place)
        forward = hoist_consts(trace.close(args, [*outs, *new]))
    return Linearized(forward, linear, tuple(t is not None for t in tangents), tuple(sources), len(new))


def opened_residuals(done: Linearized) -> Linearized:
    """The same with the arrays of new residuals of high types in their places, for loops and regions to keep."""
    body, linear = done.forward.jaxpr, done.linear
    count = len(body.outvars) - done.num_residuals
    if not any(v.aval.is_high for v in body.outvars[count:]):
        return done
    leaving, outs, places = list(body.eqns), list(body.outvars[:count]), []
    for v in body.outvars[count:]:
        parts: list[Any] = [v]
        if v.aval.is_high:
            parts = [Var(a) for a in to_parts_p.infer((v.aval,), {})]
            leaving.append(Eqn(to_parts_p, [v], parts, {}, UNKNOWN))
        places.append(range(len(outs) - count, len(outs) - count + len(parts)))
        outs += parts
    returning, ins, sources = [], [], []
    for v, (kind, k) in zip(linear.invars, done.sources):
        if kind == "res" and v.aval.is_high:
            parts = [Var(outs[count + i].aval) for i in places[k]]
            returning.append(Eqn(from_parts_p, parts, [v], {"kind": v.aval}, UNKNOWN))
            ins += parts
            sources += [("res", i) for i in places[k]]
        else:
            ins.append(v)
            sources.append(("res", places[k].start) if kind == "res" else (kind, k))
    ins += linear.invars[len(done.sources) :]
    forward = Jaxpr((), body.invars, outs, leaving, body.effects, is_high=body.is_high, name=body.name)
    back = Jaxpr(
        (), ins, linear.outvars, [*returning, *linear.eqns], linear.effects, is_high=linear.is_high, name=linear.name
    )
    return Linearized(
        type(done.forward)(forward, done.forward.consts), back, done.nonzeros_out, tuple(sources), len(outs) - count
    )


linear_zero_p = Primitive(
    "linear_zero",
    lambda aval: aval,
    lower=lambda ctx, eqn: ctx.full(0, eqn.params["aval"]),
    transpose=lambda ct, aval: [],
    absent=dict.fromkeys(("jvp", "batch"), "it stands on tapes only"),
)


def _known_zero(linear: LinearTrace, primal: Any) -> LinearTracer:
    """A tangent that is zero but present, for loops whose carry must have one."""
    aval = aval_of(primal).to_tangent_aval()
    return linear.record(linear_zero_p, [], {"aval": aval})
