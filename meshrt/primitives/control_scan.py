"""The primitive `scan`: derivatives, batching and dead-code rule.

    scan[jaxpr num_consts num_carry length reverse unroll] consts... carry... xs...  ->  carry... ys...

The body `jaxpr` maps consts, carry and one slice of each xs to carry and one slice of each ys. Its type rule and
lowering are in `control_scan_lowering`, the bodies of reverse mode in `control_scan_reverse`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from meshrt.core.basic.parts import exchanged, in_front
from meshrt.core.basic.shapes import instantiate, move_dim, zeros
from meshrt.core.basic.varying import declared
from meshrt.core.jaxpr import Atom, Eqn, Jaxpr, Var
from meshrt.core.primitive import Primitive, is_undefined
from meshrt.core.references import is_ref, is_ref_type
from meshrt.core.spaces import DEVICE
from meshrt.core.trace import eval_jaxpr
from meshrt.core.types import aval_of
from meshrt.primitives.control_discharge import scan_rule
from meshrt.primitives.control_high import scan_opened
from meshrt.primitives.control_scan_lowering import infer, lower
from meshrt.primitives.control_scan_reverse import plan_of, recompute, transposed
from meshrt.primitives.control_staging import body_effects, carry_fixpoint, permuted, split3, with_vars
from meshrt.transforms.batching import MappedAxis, batch_jaxpr, flags_of, led
from meshrt.transforms.jvp import jvp_jaxpr
from meshrt.transforms.linear import given_linear
from meshrt.transforms.linearize import linear_zero_p
from meshrt.transforms.ordering import TOKEN
from meshrt.transforms.references import with_moved_refs
from meshrt.transforms.running_sums import is_added_to, returning
from meshrt.transforms.tools import WeakCache, dce

__all__ = ["scan_p"]

# ---------------------------------------------------------------------------------------------------------------------
# Forward mode


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    jaxpr: Jaxpr,
    length: int,
    reverse: bool,
    num_consts: int,
    num_carry: int,
    unroll: int,
) -> tuple[Any, Any]:
    nonzero = [t is not None for t in tangents]
    nz_consts, nz_carry, nz_xs = split3(nonzero, num_consts, num_carry)
    num_ys = len(jaxpr.outvars) - num_carry

    def step(carry: tuple[bool, ...]) -> tuple[Any, Sequence[bool]]:
        closed, nz_out = jvp_jaxpr(jaxpr, (*nz_consts, *carry, *nz_xs), (*carry, *[False] * num_ys))
        return (closed, nz_out), nz_out[:num_carry]

    (closed, nz_out), nz_carry = carry_fixpoint(nz_carry, step)
    extra, counts = len(closed.consts), (num_consts, num_carry, len(nz_xs))
    primal_at = _ranges(extra, counts)
    tangent_at = _ranges(extra + sum(counts), (sum(nz_consts), sum(nz_carry), sum(nz_xs)))
    ins = [i for p, t in zip(primal_at, tangent_at) for i in (*p, *t)]
    y_at = _ranges(0, (num_carry, num_ys))
    ty_at = _ranges(num_carry + num_ys, (sum(nz_carry), sum(nz_out) - sum(nz_carry)))
    body = permuted(closed.jaxpr, [*range(extra), *ins], [i for p, t in zip(y_at, ty_at) for i in (*p, *t)])
    operands = list(closed.consts)
    for part, tangent, flags in zip(
        split3(primals, num_consts, num_carry), split3(tangents, num_consts, num_carry), (nz_consts, nz_carry, nz_xs)
    ):
        operands += [*part, *[instantiate(t, p) for p, t, nz in zip(part, tangent, flags) if nz]]
    outs = scan_p.bind(
        *operands, jaxpr=body, length=length, reverse=reverse, unroll=unroll,
        num_consts=extra + num_consts + sum(nz_consts), num_carry=num_carry + sum(nz_carry),
    )  # fmt: skip
    carry, t_carry, rest = split3(outs, num_carry, sum(nz_carry))
    ys, t_ys, _ = split3(rest, num_ys, len(rest))
    found = iter((*t_carry, *t_ys))
    return [*carry, *ys], [next(found) if nz else None for nz in nz_out]


def _ranges(start: int, counts: Sequence[int]) -> list[range]:
    out = []
    for n in counts:
        out.append(range(start, start + n))
        start += n
    return out


# ---------------------------------------------------------------------------------------------------------------------
# Reverse mode

_plans: WeakCache = WeakCache()
_transposes: WeakCache = WeakCache()


def _linearize(linear_trace: Any, primals: Sequence[Any], tangents: Sequence[Any], params: dict[str, Any]) -> Any:
    jaxpr, num_consts, num_carry = params["jaxpr"], params["num_consts"], params["num_carry"]
    nonzero = tuple(t is not None for t in tangents)
    length = params["length"]
    plan = _plans.get(
        jaxpr,
        (num_consts, num_carry, nonzero, length, given_linear.get()),
        lambda: plan_of(jaxpr, num_consts, num_carry, nonzero, length),
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


def _linear_zero(linear_trace: Any, primal: Any) -> Any:
    return linear_trace.record(linear_zero_p, [], {"aval": aval_of(primal).to_tangent_aval()})


def _transpose(
    cts: Sequence[Any],
    *operands: Any,
    jaxpr: Jaxpr,
    length: int,
    reverse: bool,
    num_consts: int,
    num_carry: int,
    unroll: int,
) -> list[Any]:
    consts, _, xs = split3(operands, num_consts, num_carry)
    added = [i for i, c in enumerate(consts) if is_undefined(c) and not c.aval.is_high and is_added_to(jaxpr, i)]
    if added:
        params = {"jaxpr": jaxpr, "length": length, "reverse": reverse, "unroll": unroll}
        changed = _passing({**params, "num_consts": num_consts, "num_carry": num_carry}, added)
        params, order, at = cast(Any, changed)
        with_sums = [*cts[:at], *[None] * len(added), *cts[at:]]
        places = dict(zip(order, _transpose(with_sums, *[operands[i] for i in order], **params)))
        return [places[i] for i in range(len(operands))]
    # Carries are linear whether or not the initial value is known (then it is zero).
    lin_consts, lin_xs = tuple(map(is_undefined, consts)), tuple(map(is_undefined, xs))
    linear = (*lin_consts, *[True] * num_carry, *lin_xs)
    ct_carry, ct_ys = cts[:num_carry], cts[num_carry:]
    nz_carry, nz_ys = tuple(c is not None for c in ct_carry), tuple(c is not None for c in ct_ys)
    t = _transposes.get(
        jaxpr, (num_consts, num_carry, linear, nz_carry, nz_ys),
        lambda: transposed(jaxpr, num_consts, num_carry, linear, nz_carry, nz_ys),
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


def _passing(params: dict[str, Any], positions: Sequence[int]) -> tuple[dict[str, Any], Sequence[int], int] | None:
    """What is constant becomes a carry, which each turn returns as it got it."""
    jaxpr, num_consts = params["jaxpr"], params["num_consts"]
    if any(i >= num_consts for i in positions):
        return None
    order = [*[i for i in range(num_consts) if i not in positions], *positions, *range(num_consts, len(jaxpr.invars))]
    body = returning(permuted(jaxpr, order, range(len(jaxpr.outvars))), [*map(order.index, positions)], 0)
    count = len(positions)
    changed = {"jaxpr": body, "num_consts": num_consts - count, "num_carry": params["num_carry"] + count}
    return {**params, **changed}, order, 0


# ---------------------------------------------------------------------------------------------------------------------
# Batching


def _batch(axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    jaxpr, num_consts, num_carry = params["jaxpr"], params["num_consts"], params["num_carry"]
    first_x = num_consts + num_carry
    b_carry: Sequence[bool] = [d is not None for d in dims[num_consts:first_x]]
    b_consts = flags_of(args[:num_consts], dims[:num_consts])
    # A slice of a reference has its mapped dimension one place before the whole; of others both are moved.
    within = [d - 1 if is_ref(x) and isinstance(d, int) and d else d for x, d in zip(args[first_x:], dims[first_x:])]
    b_xs = flags_of(args[first_x:], within)
    num_ys, length = len(jaxpr.outvars) - num_carry, params["length"]

    def step(carry: tuple[bool, ...]) -> tuple[Any, Sequence[bool]]:
        closed, flags = batch_jaxpr(jaxpr, axis, (*b_consts, *carry, *b_xs), (*carry, *[False] * num_ys))
        return (closed, flags), flags[:num_carry]

    (closed, flags), b_carry = carry_fixpoint(b_carry, step)
    consts, carry, xs = split3(list(zip(args, dims)), num_consts, num_carry)
    operands = [
        *closed.consts,
        *[led(x, d) for x, d in consts],
        *[in_front(axis.extent, x, d) if b else x for (x, d), b in zip(carry, b_carry)],
        *[x if d is None else _behind_length(x, d, t, axis, length) for (x, d), t in zip(xs, jaxpr.in_avals[first_x:])],
    ]
    params = {**params, "jaxpr": closed.jaxpr, "num_consts": len(closed.consts) + num_consts}
    behind = [*[None] * (len(operands) - len(xs)), *[None if d and is_ref(x) else d for x, d in xs]]
    outs = list(with_moved_refs(scan_p, lambda values, _: scan_p.bind(*values, **params), operands, behind, params, 1))
    out_dims = [0 if f else None for f in flags[:num_carry]] + [1 if f else None for f in flags[num_carry:]]
    for i, member in enumerate(jaxpr.out_avals):
        if i >= num_carry and member.is_high and flags[i]:
            outs[i], out_dims[i] = exchanged(outs[i], member, axis.size, length), 0
    return outs, out_dims


def _behind_length(x: Any, dim: Any, member: Any, axis: MappedAxis, length: int) -> Any:
    """A mapped operand among the xs, with the mapped dimension behind the one that the loop runs over."""
    if is_ref_type(member) and (dim or member.memory_space is DEVICE):
        return x  # (`with_moved_refs`)
    if not member.is_high:
        return move_dim(x, dim, 1)
    return exchanged(in_front(axis.extent, x, dim), member, length, axis.size)


# ---------------------------------------------------------------------------------------------------------------------
# Dead code

_dce_cache: WeakCache = WeakCache()


def _live_body(jaxpr: Jaxpr, num_consts: int, num_carry: int, used: tuple[bool, ...]) -> tuple[Any, Any, Any, Any]:
    """Dead-code elimination in the body: (the body, or None if nothing is dead; flags of the consts, carries and xs
    that are needed). A carry is needed if its result is used or if another needed carry depends on it.
    """
    used_carry, used_ys = used[:num_carry], used[num_carry:]
    flags = tuple(used_carry)
    while True:
        kept, needed = dce(jaxpr, (*flags, *used_ys))
        joined = tuple(a or b for a, b in zip(flags, needed[num_consts : num_consts + num_carry]))
        if joined == flags:
            break
        flags = joined
    consts, _, xs = split3(needed, num_consts, num_carry)
    keep = (*consts, *flags, *xs)
    if (
        all(keep)
        and all(used_ys)
        and len(kept.eqns) == len(jaxpr.eqns)
        and all(a is b for a, b in zip(kept.eqns, jaxpr.eqns))
    ):
        return None, consts, flags, xs
    return with_vars(kept, [v for v, k in zip(kept.invars, keep) if k], kept.outvars), consts, flags, xs


def _dce(eqn: Eqn, used: Sequence[bool]) -> Eqn:
    p = eqn.params
    used = tuple(used)
    key = (p["num_consts"], p["num_carry"], used)
    body, consts, carry, xs = _dce_cache.get(
        p["jaxpr"], key, lambda: _live_body(p["jaxpr"], p["num_consts"], p["num_carry"], used)
    )
    if body is None:
        return eqn
    invars = [a for a, k in zip(eqn.invars, (*consts, *carry, *xs)) if k]
    outvars = [v for v, k in zip(eqn.outvars, (*carry, *used[p["num_carry"] :])) if k]
    return eqn.replace(invars, outvars, {**p, "jaxpr": body, "num_consts": sum(consts), "num_carry": sum(carry)})


# ---------------------------------------------------------------------------------------------------------------------
# Ordered effects


def _thread(eqn: Eqn, token: Atom, threaded: Callable[[Jaxpr], Jaxpr]) -> tuple[list[Eqn], Atom]:
    """The token is the first carry."""
    p, new = eqn.params, Var(TOKEN)
    body, n = threaded(p["jaxpr"]), p["num_consts"]
    body = permuted(body, [*range(1, n + 1), 0, *range(n + 1, len(body.invars))], range(len(body.outvars)))
    invars = [*eqn.invars[:n], token, *eqn.invars[n:]]
    return [eqn.replace(invars, [new, *eqn.outvars], {**p, "jaxpr": body, "num_carry": p["num_carry"] + 1})], new


def _bind(*args: Any, **params: Any) -> Any:
    return scan_p.bind(*args, **params)


scan_p: Primitive = Primitive(
    "scan", infer, lower=lower, jvp=_jvp, linearize=_linearize, transpose=_transpose, batch=_batch, batch_axis=True,
    scope="while", batches_refs=True, dce=_dce, passing=_passing, recompute=recompute,
    discharge=scan_rule(lambda: scan_p),
    thread=_thread,
    effects=lambda *avals, jaxpr, **_: body_effects("scan", jaxpr),
    multiple_results=True, cache_types=False, varies=lambda params: declared(params["jaxpr"].in_avals),
    applies=lambda params: [(params["jaxpr"], range(len(params["jaxpr"].invars)))],
    to_lojax=scan_opened(_bind, True), unbox=scan_opened(_bind, False),
)  # fmt: skip
