"""Reverse mode of `scan`: a forward scan that saves residuals, a linear scan of tangents, its transpose.

What is saved between the two decides the memory of training: `control_scan_residuals` says how each residual of the
body gets to the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshrt.core.jaxpr import Jaxpr
from meshrt.core.trace import JaxprTrace, eval_jaxpr, set_trace
from meshrt.core.types import aval_of
from meshrt.primitives.control_scan import carry_fixpoint, scan_p, split3
from meshrt.primitives.control_scan_residuals import Hoisting, Places, position
from meshrt.primitives.control_staging import permuted
from meshrt.transforms.linear import transpose_jaxpr
from meshrt.transforms.linearize import linearize_jaxpr
from meshrt.transforms.residuals import cheapest_residuals, residual_vars
from meshrt.transforms.tools import WeakCache, add_tangents, hoist_consts, is_undefined, zeros

__all__: list[str] = []


@dataclass(slots=True, eq=False)
class _Plan:
    """How one body is linearized.

    `prelude` computes loop-invariant values from the constants (`consts` first, which linearization captured); those
    in `body_takes` (positions among its results) are constants of the forward body, after all others. `forward` gives
    carry, ys and the `num_stacked` new stacks. `sources` say where the residuals of `linear` come from, loop-invariant
    ones (`num_fixed`) first: ("const", k), ("prelude", k), ("x", k), ("y", k), ("stack", k).
    """

    consts: list[Any]
    prelude: Jaxpr
    body_takes: tuple[int, ...]
    forward: Jaxpr
    linear: Jaxpr
    sources: list[tuple[str, int]]
    num_fixed: int
    num_stacked: int
    nonzero_carry: tuple[bool, ...]
    nonzero_ys: tuple[bool, ...]


_plans: WeakCache = WeakCache()


def _plan(jaxpr: Jaxpr, num_consts: int, num_carry: int, nonzero: tuple[bool, ...], length: int) -> _Plan:
    nz_consts, nz_carry, nz_xs = split3(nonzero, num_consts, num_carry)
    num_ys = len(jaxpr.outvars) - num_carry

    def step(carry):
        lin = linearize_jaxpr(jaxpr, (*nz_consts, *carry, *nz_xs), (*carry, *[False] * num_ys))
        return lin, lin.nonzeros_out[:num_carry]

    lin, nz_carry = carry_fixpoint(nz_carry, step)
    body = lin.forward.jaxpr
    places = Places(body, len(lin.forward.consts), num_consts, num_carry, num_ys, length)
    saved, linear = cheapest_residuals(
        body, residual_vars(lin, body), lin.linear, places.cost, lambda v: places.of(v)[0] == "invariant"
    )
    hoisting = Hoisting(places)
    stacked: list[Any] = []
    sources: list[tuple[str, int]] = []
    for value in saved:
        kind, k = places.of(value)
        if kind == "invariant":
            kind, k = "prelude", hoisting.want(value)
        elif kind == "new":
            kind, k = "stack", position(stacked, value)
        sources.append((kind, k))
    prelude, forward, takes = hoisting.split(body.outvars[: num_carry + num_ys], stacked)
    fixed = [i for i, (kind, _) in enumerate(sources) if kind in ("const", "prelude")]
    moving = [i for i, (kind, _) in enumerate(sources) if kind not in ("const", "prelude")]
    count = len(sources)
    tc, tk, tx = sum(nz_consts), sum(nz_carry), sum(nz_xs)
    order = [*fixed, *range(count, count + tc + tk), *moving, *range(count + tc + tk, count + tc + tk + tx)]
    linear = permuted(linear, order, range(len(linear.outvars)))
    return _Plan(
        lin.forward.consts, prelude, takes, forward, linear, [sources[i] for i in (*fixed, *moving)], len(fixed),
        len(stacked), nz_carry, tuple(lin.nonzeros_out[num_carry:]),
    )  # fmt: skip


def _linearize(linear_trace, primals, tangents, params):
    jaxpr, num_consts, num_carry = params["jaxpr"], params["num_consts"], params["num_carry"]
    nonzero = tuple(t is not None for t in tangents)
    length = params["length"]
    plan = _plans.get(
        jaxpr, (num_consts, num_carry, nonzero, length), lambda: _plan(jaxpr, num_consts, num_carry, nonzero, length)
    )
    consts, carry, xs = split3(primals, num_consts, num_carry)
    fixed = [*plan.consts, *consts]
    prelude = eval_jaxpr(plan.prelude, (), fixed)
    taken = [prelude[i] for i in plan.body_takes]
    forward = {**params, "jaxpr": plan.forward, "num_consts": len(fixed) + len(taken)}
    outs = scan_p.bind(*fixed, *taken, *carry, *xs, **forward)
    num_outs = len(jaxpr.outvars)
    outs, stacks = outs[:num_outs], outs[num_outs:]
    if not any(plan.nonzero_carry) and not any(plan.nonzero_ys):
        return outs, [None] * num_outs
    pools = {"const": consts, "prelude": prelude, "x": xs, "y": outs[num_carry:], "stack": stacks}
    residuals = [pools[kind][k] for kind, k in plan.sources]
    t_consts, t_carry, t_xs = split3(tangents, num_consts, num_carry)
    t_consts, t_xs = [t for t in t_consts if t is not None], [t for t in t_xs if t is not None]
    t_carry = [
        _linear_zero(linear_trace, p) if t is None else t for p, t, nz in zip(carry, t_carry, plan.nonzero_carry) if nz
    ]
    t_outs = iter(
        linear_trace.record(
            scan_p,
            [*residuals[: plan.num_fixed], *t_consts, *t_carry, *residuals[plan.num_fixed :], *t_xs],
            {**params, "jaxpr": plan.linear, "num_consts": plan.num_fixed + len(t_consts), "num_carry": len(t_carry)},
        )
    )
    return outs, [next(t_outs) if nz else None for nz in (*plan.nonzero_carry, *plan.nonzero_ys)]


def _linear_zero(linear_trace, primal):
    from meshrt.primitives.elementwise import linear_zero_p

    return linear_trace.record(linear_zero_p, [], {"aval": aval_of(primal).to_tangent_aval()})


# ---------------------------------------------------------------------------------------------------------------------
# Transposition

_transposes: WeakCache = WeakCache()


@dataclass(slots=True, eq=False)
class _Transposed:
    """`body`: (captured consts, known consts; sums over consts, ct carry; known xs, ct ys) -> (sums, ct carry; ct xs).

    The flags say which cotangents are not zero.
    """

    consts: list[Any]
    body: Jaxpr
    consts_nz: tuple[bool, ...]
    carry_nz: tuple[bool, ...]
    xs_nz: tuple[bool, ...]


def _transposed(jaxpr: Jaxpr, num_consts: int, num_carry: int, linear, ct_carry, ct_ys) -> _Transposed:
    lin_consts, _, lin_xs = split3(linear, num_consts, num_carry)
    num_linear = sum(lin_consts)

    def step(carry):
        closed, nz = transpose_jaxpr(jaxpr, linear, (*carry, *ct_ys))
        return (closed, nz), nz[num_linear : num_linear + num_carry]

    (closed, nz), carry_nz = carry_fixpoint(ct_carry, step)
    consts_nz, _, xs_nz = split3(nz, num_linear, num_carry)
    consts, carry, xs = split3(jaxpr.in_avals, num_consts, num_carry)
    lin_const_avals = [a for a, lin in zip(consts, lin_consts) if lin]
    trace = JaxprTrace(jaxpr.name)

    def arguments(avals, flags):
        return [trace.argument(a) for a, f in zip(avals, flags) if f]

    captured = [trace.argument(aval_of(c)) for c in closed.consts]
    known = arguments(consts, [not lin for lin in lin_consts])
    sums = arguments(lin_const_avals, consts_nz)
    cts = arguments(jaxpr.out_avals[:num_carry], carry_nz)
    known_xs = arguments(xs, [not lin for lin in lin_xs])
    ys = arguments(jaxpr.out_avals[num_carry:], ct_ys)
    with set_trace(trace):
        pulled = iter(eval_jaxpr(closed.jaxpr, (), [*captured, *known, *known_xs, *cts, *ys]))
        sums_out = [add_tangents(s, next(pulled)) for s in sums]
        nz_inside = nz[num_linear : num_linear + num_carry]
        carry_out = [next(pulled) if inside else None for inside in nz_inside]
        carry_out = [zeros(a) if c is None else c for a, c, f in zip(carry, carry_out, carry_nz) if f]
        ins = [*captured, *known, *sums, *cts, *known_xs, *ys]
        final = hoist_consts(trace.close(ins, [*sums_out, *carry_out, *pulled]))
    return _Transposed([*final.consts, *closed.consts], final.jaxpr, tuple(consts_nz), carry_nz, tuple(xs_nz))


def _transpose(cts, *operands, jaxpr, length, reverse, num_consts, num_carry, unroll):
    consts, _, xs = split3(operands, num_consts, num_carry)
    # Carries are linear whether or not the initial value is known (then it is zero).
    lin_consts, lin_xs = tuple(map(is_undefined, consts)), tuple(map(is_undefined, xs))
    linear = (*lin_consts, *[True] * num_carry, *lin_xs)
    ct_carry, ct_ys = cts[:num_carry], cts[num_carry:]
    nz_carry, nz_ys = tuple(c is not None for c in ct_carry), tuple(c is not None for c in ct_ys)
    t = _transposes.get(
        jaxpr, (num_consts, num_carry, linear, nz_carry, nz_ys),
        lambda: _transposed(jaxpr, num_consts, num_carry, linear, nz_carry, nz_ys),
    )  # fmt: skip
    known = [*t.consts, *[c for c, lin in zip(consts, lin_consts) if not lin]]
    lin_const_avals = [c.aval for c in consts if is_undefined(c)]
    sums = [zeros(a) for a, nz in zip(lin_const_avals, t.consts_nz) if nz]
    start = [
        zeros(v.aval) if c is None else c
        for c, v, nz in zip(ct_carry, jaxpr.outvars[:num_carry], t.carry_nz) if nz
    ]  # fmt: skip
    outs = scan_p.bind(
        *known, *sums, *start, *[x for x, lin in zip(xs, lin_xs) if not lin], *[c for c in ct_ys if c is not None],
        jaxpr=t.body, length=length, reverse=not reverse, unroll=unroll,
        num_consts=len(known), num_carry=len(sums) + len(start),
    )  # fmt: skip
    pulled = iter(outs)
    nonzero = iter((*t.consts_nz, *t.carry_nz, *t.xs_nz))
    found = [(next(pulled) if next(nonzero) else None) if lin else None for lin in linear]
    return [c if is_undefined(x) else None for c, x in zip(found, operands)]


scan_p.linearize = _linearize
scan_p.transpose = _transpose
