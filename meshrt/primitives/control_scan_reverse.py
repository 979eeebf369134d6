"""The bodies of a scan's reverse mode: of the forward scan that saves residuals, of the linear scan of tangents, and of
its transpose.

What is saved between the two decides the memory of training: `control_scan_residuals` says how each residual of the
body gets to the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from meshrt.core.basic.pointwise import add_tangents
from meshrt.core.basic.shapes import zeros
from meshrt.core.effects import is_debug
from meshrt.core.jaxpr import Eqn, Jaxpr, Var
from meshrt.core.trace import JaxprTrace, eval_jaxpr, set_trace
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.control_scan_residuals import Hoisting, Places, position
from meshrt.primitives.control_staging import carry_fixpoint, permuted, split3
from meshrt.transforms.linear import transpose_jaxpr
from meshrt.transforms.linearize import linearize_jaxpr
from meshrt.transforms.recompute import Policy, Split, fresh_copy, inlined, split
from meshrt.transforms.residuals import cheapest_residuals, residual_vars
from meshrt.transforms.tools import hoist_consts

__all__: list[str] = []


class Plan(NamedTuple):
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


def plan_of(jaxpr: Jaxpr, num_consts: int, num_carry: int, nonzero: tuple[bool, ...], length: int) -> Plan:
    """How the body `jaxpr` is linearized, with respect to the operands flagged in `nonzero`."""
    nz_consts, nz_carry, nz_xs = split3(nonzero, num_consts, num_carry)
    num_ys = len(jaxpr.outvars) - num_carry

    def step(carry: tuple[bool, ...]) -> tuple[Any, Sequence[bool]]:
        lin = linearize_jaxpr(jaxpr, (*nz_consts, *carry, *nz_xs), (*carry, *[False] * num_ys))
        return lin, lin.nonzeros_out[:num_carry]

    lin, nz_carry = carry_fixpoint(nz_carry, step)
    body = lin.forward.jaxpr
    if any(map(is_debug, body.effects)):
        body = inlined(body)
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
    return Plan(
        lin.forward.consts, prelude, takes, forward, linear, [sources[i] for i in (*fixed, *moving)], len(fixed),
        len(stacked), tuple(nz_carry), tuple(lin.nonzeros_out[num_carry:]),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Transposition


class Transposed(NamedTuple):
    """`body`: (captured consts, known consts; sums over consts, ct carry; known xs, ct ys) -> (sums, ct carry; ct xs).

    The flags say which cotangents are not zero.
    """

    consts: list[Any]
    body: Jaxpr
    consts_nz: tuple[bool, ...]
    carry_nz: tuple[bool, ...]
    xs_nz: tuple[bool, ...]


def transposed(
    jaxpr: Jaxpr, num_consts: int, num_carry: int, linear: tuple[bool, ...], ct_carry: tuple[bool, ...],
    ct_ys: tuple[bool, ...],
) -> Transposed:  # fmt: skip
    """The body of the transposed scan. Flags: `linear` operands; carries and ys whose cotangents are not zero."""
    lin_consts, _, lin_xs = split3(linear, num_consts, num_carry)
    num_linear = sum(lin_consts)

    def step(carry: tuple[bool, ...]) -> tuple[Any, Sequence[bool]]:
        closed, nz = transpose_jaxpr(jaxpr, linear, (*carry, *ct_ys))
        return (closed, nz), nz[num_linear : num_linear + num_carry]

    (closed, nz), carry_nz = carry_fixpoint(ct_carry, step)
    consts_nz, _, xs_nz = split3(nz, num_linear, num_carry)
    consts, carry, xs = split3(jaxpr.in_avals, num_consts, num_carry)
    lin_const_avals = [a for a, lin in zip(consts, lin_consts) if lin]
    trace = JaxprTrace(jaxpr.name, requires_low=False)

    def arguments(avals: Sequence[ShapedArray], flags: Any) -> Any:
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
    return Transposed([*final.consts, *closed.consts], final.jaxpr, tuple(consts_nz), carry_nz, tuple(xs_nz))


# ---------------------------------------------------------------------------------------------------------------------
# Checkpointing


def recompute(eqn: Eqn, wanted: Sequence[bool], policy: Policy) -> Split | None:
    """The values that `policy` saves in the body are stacked; a second scan takes the stacks and computes the rest.

    The second scan has only the carries that what it computes depends on. Loop-invariant values are saved once.
    """
    params = eqn.params
    num_consts, num_carry, length = params["num_consts"], params["num_carry"], params["length"]
    body = inlined(params["jaxpr"])
    num_outs = len(body.outvars)
    flags = tuple(wanted[:num_carry])

    def step(carry: tuple[bool, ...]) -> tuple[Any, Sequence[bool]]:
        outs = [o for o, w in zip(body.outvars, (*carry, *wanted[num_carry:])) if w]
        parts = split(body, outs, policy)
        used = {a for a in [*outs, *[a for e in parts.again for a in e.invars]] if type(a) is Var}
        return (parts, used), [c or v in used for c, v in zip(carry, body.invars[num_consts : num_consts + num_carry])]

    (parts, used), flags = carry_fixpoint(flags, step)
    if not parts.saved:
        return None
    body = Jaxpr((), body.invars, body.outvars, parts.forward, is_high=body.is_high, name=body.name)
    places = Places(body, 0, num_consts, num_carry, num_outs - num_carry, length)
    hoisting = Hoisting(places)
    kinds = [places.of(v)[0] for v in parts.saved]
    fixed = [v for v, kind in zip(parts.saved, kinds) if kind == "invariant"]
    stacked = [v for v, kind in zip(parts.saved, kinds) if kind == "new"]
    for v in fixed:
        hoisting.want(v)
    prelude, forward, takes = hoisting.split(body.outvars, stacked)
    before, invariant = fresh_copy(prelude, eqn.invars[:num_consts])
    stacks = [Var(v.aval.batched(length)) for v in stacked]
    first = eqn.replace(
        [*eqn.invars[:num_consts], *[invariant[i] for i in takes], *eqn.invars[num_consts:]], [*eqn.outvars, *stacks],
        {**params, "jaxpr": forward, "num_consts": num_consts + len(takes)},
    )  # fmt: skip
    saved_ys = [(v, eqn.outvars[num_carry + places.of(v)[1]]) for v, kind in zip(parts.saved, kinds) if kind == "y"]
    middle = num_consts + num_carry
    pairs = list(zip(body.invars, eqn.invars))
    consts = [p for p in (*pairs[:num_consts], *zip(fixed, invariant)) if p[0] in used]
    carry = [p for p, c in zip(pairs[num_consts:middle], flags) if c]
    xs = [p for p in (*pairs[middle:], *saved_ys, *zip(stacked, stacks)) if p[0] in used]
    done = [y for _, y in saved_ys]
    asked = zip(body.outvars, eqn.outvars, (*flags, *wanted[num_carry:]))
    results = [(v, y) for v, y, w in asked if w and y not in done]
    ins = [*consts, *carry, *xs]
    outs = [v for v, _ in results]
    again = Jaxpr((), [v for v, _ in ins], outs, parts.again, is_high=body.is_high, name=body.name)
    second = eqn.replace(
        [a for _, a in ins], [y for _, y in results],
        {**params, "num_consts": len(consts), "num_carry": len(carry),
         "jaxpr": again},
    )  # fmt: skip
    saved = [*invariant[: len(fixed)], *done, *stacks]
    return Split([*before, first], saved, [second] if results else [])
