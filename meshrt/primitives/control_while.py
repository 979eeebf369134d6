"""The primitive `while`.

    while[cond_jaxpr cond_nconsts body_jaxpr body_nconsts] cond_consts... body_consts... carry...  ->  carry...

`cond_jaxpr` maps its consts and the carry to one boolean, `body_jaxpr` its consts and the carry to the next carry.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors
from meshrt.core import source
from meshrt.core.basic.parts import in_front
from meshrt.core.basic.shapes import instantiate
from meshrt.core.basic.varying import declared
from meshrt.core.effects import IO, ORDERED_IO, has_ordered
from meshrt.core.high import unlike
from meshrt.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Var
from meshrt.core.primitive import Primitive
from meshrt.core.trace import JaxprTrace, eval_jaxpr, set_trace, trace_to_jaxpr
from meshrt.core.types import ShapedArray
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.call import call_params, jit_p
from meshrt.primitives.control_discharge import while_rule
from meshrt.primitives.control_high import chosen, loop_arguments, while_opened
from meshrt.primitives.control_staging import body_effects, carry_fixpoint, permuted, split3, weak_key, with_vars
from meshrt.primitives.reduce import reduce_or_p
from meshrt.transforms.batching import Flags, MappedAxis, batch_jaxpr, flags_of, led
from meshrt.transforms.jvp import jvp_jaxpr
from meshrt.transforms.linear import given_linear
from meshrt.transforms.ordering import TOKEN
from meshrt.transforms.tools import WeakCache, dce, hoist_consts

__all__ = ["while_p"]


def _infer(*avals: ShapedArray, cond_jaxpr: Jaxpr, cond_nconsts: int, body_jaxpr: Jaxpr, body_nconsts: int) -> Any:
    carry = avals[cond_nconsts + body_nconsts :]
    for got, want in zip(carry, body_jaxpr.in_avals[body_nconsts:], strict=True):
        if unlike(got, want):
            raise errors.ArgumentTypeError(f"while: a carry of type {got.short()} where the body takes {want.short()}")
    return body_jaxpr.out_avals


def _lower(ctx: LoweringContext, eqn: Eqn, *operands: Any) -> Any:
    """`stablehlo.while` over the carry; the consts are captured from the enclosing region."""
    p = eqn.params
    cond_consts, body_consts, carry = split3(operands, p["cond_nconsts"], p["body_nconsts"])
    kinds = [r.type for r in carry]
    test, body = ctx.body.body(kinds), ctx.body.body(kinds)
    test.ret(ctx.nested(test, "cond").jaxpr(p["cond_jaxpr"], [*cond_consts, *test.args]))
    body.ret(ctx.nested(body, "body").jaxpr(p["body_jaxpr"], [*body_consts, *body.args]), loc=ctx.loc)
    return ctx.ops("stablehlo.while", carry, [v.aval for v in eqn.outvars], regions=[test, body])


# ---------------------------------------------------------------------------------------------------------------------
# Differentiation


def _jvp_params(tangents: Sequence[Any], params: dict[str, Any]) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    """(closed jvp of the body, which carries have tangents) for these (possibly zero) tangents."""
    cond_n, body_n, body = params["cond_nconsts"], params["body_nconsts"], params["body_jaxpr"]
    _, nz_consts, nz_carry = split3([t is not None for t in tangents], cond_n, body_n)

    def step(carry: tuple[bool, ...]) -> tuple[Any, Sequence[bool]]:
        closed, nz_out = jvp_jaxpr(body, (*nz_consts, *carry), carry)
        return closed, nz_out

    return carry_fixpoint(nz_carry, step)


_cond_cache: WeakCache = WeakCache()


def _with_ignored(cond: Jaxpr, avals: Sequence[Any]) -> Jaxpr:
    """The condition with further carried values of types `avals`, which it ignores."""
    return _cond_cache.get(
        cond, tuple(avals), lambda: with_vars(cond, [*cond.invars, *[Var(a) for a in avals]], cond.outvars)
    )


def _jvp_operands(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    params: dict[str, Any],
    nz_carry: Sequence[bool],
    closed: ClosedJaxpr,
) -> tuple[list[Any], list[Any], Sequence[Any], dict[str, Any]]:
    """Operands and parameters of the while that computes carry and tangents together, but for the tangents themselves:
    (known operands before the carry, body constants' tangents, carry, params, positions).
    """
    cond_n, body_n = params["cond_nconsts"], params["body_nconsts"]
    num_carry = len(nz_carry)
    extra = len(closed.consts)
    t_consts = [t for t in tangents[cond_n : cond_n + body_n] if t is not None]
    base = extra + body_n + num_carry
    ins = [
        *range(extra + body_n), *range(base, base + len(t_consts)), *range(extra + body_n, base),
        *range(base + len(t_consts), base + len(t_consts) + sum(nz_carry)),
    ]  # fmt: skip
    body = permuted(closed.jaxpr, ins, range(len(closed.jaxpr.outvars)))
    cond = _with_ignored(params["cond_jaxpr"], body.in_avals[extra + body_n + len(t_consts) + num_carry :])
    known = [*primals[:cond_n], *closed.consts, *primals[cond_n : cond_n + body_n]]
    new = {
        "cond_jaxpr": cond,
        "cond_nconsts": cond_n,
        "body_jaxpr": body,
        "body_nconsts": extra + body_n + len(t_consts),
    }
    return known, t_consts, primals[cond_n + body_n :], new


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    closed, nz_carry = _jvp_params(tangents, params)
    if not any(nz_carry):
        return while_p.bind(*primals, **params), [None] * len(nz_carry)
    known, t_consts, carry, new = _jvp_operands(primals, tangents, params, nz_carry, closed)
    t_carry = tangents[params["cond_nconsts"] + params["body_nconsts"] :]
    t_carry = [instantiate(t, p) for t, p, nz in zip(t_carry, carry, nz_carry) if nz]
    outs = while_p.bind(*known, *t_consts, *carry, *t_carry, **new)
    found = iter(outs[len(carry) :])
    return outs[: len(carry)], [next(found) if nz else None for nz in nz_carry]


def _linearize(linear_trace: Any, primals: Sequence[Any], tangents: Sequence[Any], params: dict[str, Any]) -> Any:
    """The loop runs once for its values; the linear equation runs it again beside its tangents, because the number of
    iterations, hence the size of any residuals, is unknown. That is of use in forward mode only.
    """
    if given_linear.get():
        both = linear_trace.record(while_p, [p if t is None else t for p, t in zip(primals, tangents)], params)
        return both, [None] * len(both)
    outs = while_p.bind(*primals, **params)
    closed, nz_carry = _jvp_params(tangents, params)
    if not any(nz_carry):
        return outs, [None] * len(outs)
    known, t_consts, carry, new = _jvp_operands(primals, tangents, params, nz_carry, closed)
    t_carry = tangents[params["cond_nconsts"] + params["body_nconsts"] :]
    t_carry = [instantiate(t, p) for t, p, nz in zip(t_carry, carry, nz_carry) if nz]
    both = linear_trace.record(while_p, [*known, *t_consts, *carry, *t_carry], new)
    found = iter(both[len(carry) :])
    return outs, [next(found) if nz else None for nz in nz_carry]


def _transpose(cts: Sequence[Any], *operands: Any, **params: Any) -> None:
    raise errors.DifferentiationError(
        "Reverse-mode differentiation does not work for lax.while_loop or lax.fori_loop with dynamic start/stop "
        "values. Try using lax.scan, or using fori_loop with static start/stop."
        f" The loop stands at {source.capture()}; how often it turns is not known while it is traced (in the grid of "
        "an emit_pipeline: give sizes that are Python ints)"
    )


# ---------------------------------------------------------------------------------------------------------------------
# Batching


def _batch(axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    """With an unbatched condition the body alone is batched; otherwise every member carries on until the last one is
    done, and a member that is done keeps its carry.
    """
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    if ORDERED_IO in cond.effects or ORDERED_IO in body.effects:
        raise errors.UnsupportedError(
            "Ordered IO effects not supported in vmap: a loop would call back for all elements at once; make the "
            "callbacks unordered (ordered=False), or loop over the elements with meshrt.lax.map"
        )
    cond_n, body_n = params["cond_nconsts"], params["body_nconsts"]
    batched = flags_of(args, dims)
    b_cond, b_body, _ = split3(batched, cond_n, body_n)
    test, closed, carry_b, batched_test = _mapped(axis, batched, params)
    if batched_test:
        if IO in cond.effects or IO in body.effects:
            raise errors.UnsupportedError(
                "Unordered IO effects not supported in while_loop with batched predicate: elements that are done would "
                "call back until the last one is; move the effect out of the loop, or loop over the elements with "
                "meshrt.lax.map"
            )
        carry_b = (True,) * len(carry_b)
        closed, _ = batch_jaxpr(body, axis, (*b_body, *carry_b), carry_b)
        test, _ = batch_jaxpr(cond, axis, (*b_cond, *carry_b), True)
    consts, body_consts, carry = split3(list(zip(args, dims)), cond_n, body_n)
    consts = [*test.consts, *[led(x, d) for x, d in consts]]
    body_consts = [*closed.consts, *[led(x, d) for x, d in body_consts]]
    carry = [in_front(axis.extent, x, d) if b else x for (x, d), b in zip(carry, carry_b)]
    new = {
        "cond_jaxpr": test.jaxpr, "cond_nconsts": len(consts),
        "body_jaxpr": closed.jaxpr, "body_nconsts": len(body_consts),
    }  # fmt: skip
    if batched_test:
        new["cond_jaxpr"], new["body_jaxpr"] = _masked(test.jaxpr, len(consts), closed.jaxpr, len(body_consts))
        body_consts = [*consts, *body_consts]
        new["body_nconsts"] = len(body_consts)
    outs = while_p.bind(*consts, *body_consts, *carry, **new)
    return outs, [0 if b else None for b in carry_b]


def _mapped(axis: MappedAxis, batched: Flags, params: dict[str, Any]) -> tuple[Any, Any, tuple[bool, ...], bool]:
    """Condition and body, mapped; which carries are; and whether members stop at different turns."""
    b_cond, b_body, b_carry = split3(batched, params["cond_nconsts"], params["body_nconsts"])
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    closed, carry = carry_fixpoint(b_carry, lambda carry: batch_jaxpr(body, axis, (*b_body, *carry), carry))
    test, (batched_test,) = batch_jaxpr(cond, axis, (*b_cond, *carry))
    return test, closed, carry, batched_test


_masked_cache: WeakCache = WeakCache()


def _masked(test: Jaxpr, test_n: int, body: Jaxpr, body_n: int) -> tuple[Jaxpr, Jaxpr]:
    """(condition, body) of the loop over a whole batch whose members stop at different iterations.

    The condition is true as long as it is for any member. The body evaluates it again for each member and selects: a
    member for which it is false keeps its carry. The body takes the constants of both.
    """
    return _masked_cache.get(body, (weak_key(test), test_n, body_n), lambda: _make_masked(test, test_n, body, body_n))


def _make_masked(test: Any, test_n: Any, body: Any, body_n: Any) -> tuple[Any, Any]:
    trace = JaxprTrace(test.name, requires_low=False)
    args = [trace.argument(a) for a in test.in_avals]
    with set_trace(trace):
        (going,) = eval_jaxpr(test, (), args)
        any_jaxpr = _without_consts(trace.close(args, [reduce_or_p.bind(going, axes=(0,))]))
    trace = JaxprTrace(body.name, requires_low=False)
    test_consts = [trace.argument(a) for a in test.in_avals[:test_n]]
    args = [trace.argument(a) for a in body.in_avals]
    with set_trace(trace):
        (going,) = eval_jaxpr(test, (), [*test_consts, *args[body_n:]])
        outs = eval_jaxpr(body, (), args)
        outs = [chosen(going, (old, new)) for new, old in zip(outs, args[body_n:])]
        masked = _without_consts(trace.close([*test_consts, *args], outs))
    return any_jaxpr, masked


def _without_consts(closed: ClosedJaxpr) -> Any:
    hoisted = hoist_consts(closed)
    if hoisted.consts:
        raise errors.InternalError("a batched loop captured constants that its Jaxprs should have hoisted")
    return hoisted.jaxpr


# ---------------------------------------------------------------------------------------------------------------------
# Dead code

_dce_cache: WeakCache = WeakCache()


def _live(cond: Jaxpr, cond_n: int, body: Jaxpr, body_n: int, used: tuple[bool, ...]) -> tuple[Any, Any, Any, Any, Any]:
    """Dead-code elimination: (condition, body, flags of the cond consts, body consts and carries that are needed).

    A carry is needed if its result is used, if the condition reads it, or if another needed carry depends on it.
    """
    test, needed = dce(cond)
    flags = tuple(a or b for a, b in zip(used, needed[cond_n:]))
    while True:
        kept, inside = dce(body, flags)
        joined = tuple(a or b for a, b in zip(flags, inside[body_n:]))
        if joined == flags:
            break
        flags = joined
    keep_cond, keep_body = [*needed[:cond_n], *flags], [*inside[:body_n], *flags]
    test = with_vars(test, [v for v, k in zip(test.invars, keep_cond) if k], test.outvars)
    kept = with_vars(kept, [v for v, k in zip(kept.invars, keep_body) if k], kept.outvars)
    return test, kept, needed[:cond_n], inside[:body_n], flags


def _dce(eqn: Eqn, used: Sequence[bool]) -> Eqn:
    p = eqn.params
    used = tuple(used)
    cond_n, body_n = p["cond_nconsts"], p["body_nconsts"]
    cond, body, keep_cond, keep_body, carry = _dce_cache.get(
        p["body_jaxpr"], (weak_key(p["cond_jaxpr"]), cond_n, body_n, used),
        lambda: _live(p["cond_jaxpr"], cond_n, p["body_jaxpr"], body_n, used),
    )  # fmt: skip
    invars = [a for a, k in zip(eqn.invars, (*keep_cond, *keep_body, *carry)) if k]
    outvars = [v for v, k in zip(eqn.outvars, carry) if k]
    new = {"cond_jaxpr": cond, "cond_nconsts": sum(keep_cond), "body_jaxpr": body, "body_nconsts": sum(keep_body)}
    return eqn.replace(invars, outvars, new)


# ---------------------------------------------------------------------------------------------------------------------
# Ordered effects


def _thread(eqn: Eqn, token: Atom, threaded: Callable[[Jaxpr], Jaxpr]) -> tuple[list[Eqn], Atom]:
    """The token is the first carry. A condition with ordered effects, which gives no token, is run before the loop and
    at the end of its body, and its answer carried: JAX's order, once per test.
    """
    p, new = eqn.params, Var(TOKEN)
    cond, cond_n, body_n = p["cond_jaxpr"], p["cond_nconsts"], p["body_nconsts"]
    cond_consts, body_consts, carry = split3(eqn.invars, cond_n, body_n)
    if not has_ordered(cond.effects):
        body = threaded(p["body_jaxpr"])
        body = permuted(
            body, [*range(1, body_n + 1), 0, *range(body_n + 1, len(body.invars))], range(len(body.outvars))
        )
        test = with_vars(cond, [*cond.invars[:cond_n], Var(TOKEN), *cond.invars[cond_n:]], cond.outvars)
        invars = [*cond_consts, *body_consts, token, *carry]
        return [eqn.replace(invars, [new, *eqn.outvars], {**p, "cond_jaxpr": test, "body_jaxpr": body})], new
    first, going = Var(TOKEN), Var(cond.outvars[0].aval)
    asked = Eqn(
        jit_p, [token, *cond_consts, *carry], [first, going], call_params(threaded(cond), "cond"), eqn.source,
        cond.effects,
    )  # fmt: skip
    test, body = _tested(cond, cond_n, p["body_jaxpr"], body_n, threaded)
    loop = eqn.replace(
        [*cond_consts, *body_consts, first, going, *carry], [new, Var(going.aval), *eqn.outvars],
        {"cond_jaxpr": test, "cond_nconsts": 0, "body_jaxpr": body, "body_nconsts": cond_n + body_n},
    )  # fmt: skip
    return [asked, loop], new


def _tested(
    cond: Jaxpr, cond_n: int, body: Jaxpr, body_n: int, threaded: Callable[[Jaxpr], Jaxpr]
) -> tuple[Jaxpr, Jaxpr]:
    """(condition, body) of a loop that carries (token, whether it goes on, carry...)."""

    def run(*args: Any) -> list[Any]:
        cond_consts, body_consts, (token, _, *carry) = split3(args, cond_n, body_n)
        token, *carry = eval_jaxpr(threaded(body), (), [token, *body_consts, *carry])
        token, going = eval_jaxpr(threaded(cond), (), [token, *cond_consts, *carry])
        return [token, going, *carry]

    going = cond.outvars[0].aval
    avals = [*cond.in_avals[:cond_n], *body.in_avals[:body_n], TOKEN, going, *body.in_avals[body_n:]]
    args = [Var(a) for a in avals[cond_n + body_n :]]
    test = Jaxpr((), args, [args[1]], [], name=cond.name)
    return test, trace_to_jaxpr(run, avals, body.name, requires_low=False).jaxpr


def _varies(params: dict[str, Any]) -> list[Any]:
    tested = params["cond_jaxpr"].in_avals[: params["cond_nconsts"]]
    return declared((*tested, *params["body_jaxpr"].in_avals))


def _bind(*args: Any, **params: Any) -> Any:
    return while_p.bind(*args, **params)


while_p: Primitive = Primitive(
    "while", _infer, lower=_lower, jvp=_jvp, linearize=_linearize, transpose=_transpose, batch=_batch, batch_axis=True,
    dce=_dce, discharge=while_rule(lambda: while_p), repeats=True, thread=_thread,
    selects=lambda axis, flags, params: _mapped(axis, flags, params)[-1], batches_refs=True,
    effects=lambda *avals, cond_jaxpr, body_jaxpr, **_: body_effects("while", cond_jaxpr, body_jaxpr),
    multiple_results=True, cache_types=False, varies=_varies, applies=loop_arguments,
    decides=lambda eqn: (eqn.params["cond_jaxpr"], eqn.params["cond_jaxpr"].outvars[0]),
    to_lojax=while_opened(_bind, True), unbox=while_opened(_bind, False),
)  # fmt: skip
