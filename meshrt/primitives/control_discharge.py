"""The discharge rules of scan, while and cond: what a body writes becomes a carry, or a result, of it.

r:Ref{f32[3]}   constant of a loop, written     a carry
                constant of a loop, read        a constant
                sliced by a scan (xs)           xs, and ys if it is written
                operand of branches             an operand, and a result if some branch writes it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors
from meshrt.core.jaxpr import Jaxpr, Var
from meshrt.core.primitive import Primitive
from meshrt.core.types import aval_of
from meshrt.primitives.control_staging import split3, with_vars
from meshrt.transforms.discharge import Cell, Discharged, discharged

__all__: list[str] = []

Rule = Callable[[Sequence[Any], dict[str, Any]], list[Any]]


def _is_cell(value: Any) -> bool:
    return type(value) is Cell


def _held(args: Sequence[Any]) -> list[Any]:
    return [a.value if type(a) is Cell else a for a in args]


def _refuse_carried(what: str, carry: Sequence[Any]) -> None:
    if any(map(_is_cell, carry)):
        raise errors.UnsupportedError(
            f"{what} cannot carry a reference: close over it, or pass it among the constants; what it holds changes "
            "from one iteration to the next all the same"
        )


def scan_rule(get: Callable[[], Primitive]) -> Rule:
    """The rule of `scan`, made by `get()`."""

    def rule(args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
        jaxpr, num_consts, num_carry = params["jaxpr"], params["num_consts"], params["num_carry"]
        _refuse_carried("scan", args[num_consts : num_consts + num_carry])
        made = discharged(jaxpr, tuple(map(_is_cell, args)))
        captured, first = len(made.closed.consts), num_consts + num_carry
        states = [i for i in made.written if i < num_consts]
        slices = [i for i in made.written if i >= first]
        fixed = [i for i in range(num_consts) if i not in states]
        ins = [
            *range(captured), *[captured + i for i in (*fixed, *states)],
            *range(captured + num_consts, captured + len(args)),
        ]  # fmt: skip
        count = len(jaxpr.outvars)
        final = {i: count + k for k, i in enumerate(made.written)}
        outs = [*[final[i] for i in states], *range(count), *[final[i] for i in slices]]
        body = with_vars(made.jaxpr, [made.jaxpr.invars[i] for i in ins], [made.jaxpr.outvars[i] for i in outs])
        held = _held(args)
        results = get().bind(
            *made.closed.consts, *[held[i] for i in (*fixed, *states)], *held[num_consts:],
            **{**params, "jaxpr": body, "num_consts": captured + len(fixed), "num_carry": len(states) + num_carry},
        )  # fmt: skip
        for i, value in zip((*states, *slices), (*results[: len(states)], *results[len(states) + count :])):
            args[i].value = value
        return list(results[len(states) : len(states) + count])

    return rule


def while_rule(get: Callable[[], Primitive]) -> Rule:
    """The rule of `while`, made by `get()`. Condition and body may take the same reference; the condition reads."""

    def rule(args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
        cond_n, body_n = params["cond_nconsts"], params["body_nconsts"]
        cond_args, body_args, carry = split3(args, cond_n, body_n)
        _refuse_carried("while_loop", carry)
        whole = (False,) * len(carry)
        test = discharged(params["cond_jaxpr"], (*map(_is_cell, cond_args), *whole))
        if test.written:
            raise errors.UnsupportedError(
                f"the condition of a while_loop, {params['cond_jaxpr'].name}, writes to a reference: it may only read; "
                "write in the body"
            )
        body = discharged(params["body_jaxpr"], (*map(_is_cell, body_args), *whole))
        states = [body_args[i] for i in body.written]
        cond, cond_fixed = _carrying(test, cond_args, states)
        step, body_fixed = _carrying(body, body_args, states)
        count = len(params["body_jaxpr"].outvars)
        step = with_vars(step, step.invars, [*step.outvars[count:], *step.outvars[:count]])
        results = get().bind(
            *cond_fixed, *body_fixed, *_held(states), *carry,
            cond_jaxpr=cond, cond_nconsts=len(cond_fixed), body_jaxpr=step, body_nconsts=len(body_fixed),
        )  # fmt: skip
        for cell, value in zip(states, results):
            cell.value = value
        return list(results[len(states) :])

    return rule


def _carrying(made: Discharged, args: Sequence[Any], states: Sequence[Cell]) -> tuple[Jaxpr, list[Any]]:
    """A condition or body that takes its constants without the `states`, then these, then the carry; the constants."""
    jaxpr, captured = made.jaxpr, list(made.closed.consts)
    front, own = jaxpr.invars[: len(captured)], jaxpr.invars[len(captured) : len(captured) + len(args)]
    carry = jaxpr.invars[len(captured) + len(args) :]
    place = {id(a): v for a, v in zip(args, own) if type(a) is Cell}
    moved = {id(s) for s in states}
    fixed = [(v, a) for v, a in zip(own, args) if id(a) not in moved]
    carried = [place[id(s)] if id(s) in place else Var(aval_of(s.value)) for s in states]
    invars = [*front, *[v for v, _ in fixed], *carried, *carry]
    return with_vars(jaxpr, invars, jaxpr.outvars), [*captured, *_held([a for _, a in fixed])]


def cond_rule(get: Callable[[], Primitive], joined: Callable[..., Any]) -> Rule:
    """The rule of `cond`, made by `get()`; `joined` gives branches the constants of all."""

    def rule(args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
        index, *operands = args
        branches, flags = params["branches"], tuple(map(_is_cell, operands))
        written = {i for b in branches for i in discharged(b, flags).written}
        keep = tuple([i in written for i in range(len(operands))])
        made = [discharged(b, flags, keep) for b in branches]
        jaxprs, consts = joined([m.closed for m in made])
        results = get().bind(index, *consts, *_held(operands), **{**params, "branches": jaxprs})
        count = len(branches[0].outvars)
        for i, value in zip(made[0].written, results[count:]):
            operands[i].value = value
        return list(results[:count])

    return rule
