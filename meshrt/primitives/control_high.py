"""Loops and branches over high types: how they are lowered to ones over arrays (see `meshrt.core.lojax`).

Contents of mutable values that a loop writes to are carried by it, so they keep their types; those that a branch
writes to are results of all branches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors
from meshrt.core.basic.parts import from_parts_p, parts_of
from meshrt.core.basic.shapes import broadcast_in_dim
from meshrt.core.high import told_apart
from meshrt.core.jaxpr import Jaxpr, Var, final_states
from meshrt.core.lojax import Opened, arrays_of, open_jaxpr, takes_apart
from meshrt.core.types import aval_of
from meshrt.primitives.control_staging import permuted
from meshrt.primitives.selection import select_n_p

__all__: list[str] = []


def _places(opened: Opened) -> list[range]:
    """Where the arrays of each argument stand among the arguments of the opened Jaxpr."""
    out, at = [], len(opened.closed.consts)
    for types in opened.ins:
        out.append(range(at, at + len(types)))
        at += len(types)
    return out


def _refuse_changes(opened: Opened, in_avals: Sequence[Any], what: str) -> None:
    for i, final in zip(opened.written, opened.finals):
        if final.normalize() != in_avals[i].normalize():
            enters, leaves = told_apart(in_avals[i], final)
            raise errors.ArgumentTypeError(
                f"type-changing mutations not allowed in the body of {what}: a mutable value from outside enters it as "
                f"{enters} and leaves it as {leaves}. Give it contents of the final type before the loop, or return "
                "values as results of the loop"
            )


def _flat(places: Sequence[range], chosen: Sequence[int]) -> list[int]:
    return [i for k in chosen for i in places[k]]


def scan_opened(bind: Callable[..., Any], every: bool) -> Callable[..., Any]:
    """The lowering of `scan`."""

    def lowered(*args: Any, jaxpr: Jaxpr, num_consts: int, num_carry: int, length: int, **params: Any) -> list[Any]:
        opened = open_jaxpr(jaxpr, every)
        _refuse_changes(opened, jaxpr.in_avals, "scan")
        if any(i >= num_consts for i in opened.written):
            raise errors.UnsupportedError(
                "scan over mutable values: a Box cannot be among the carry or the xs of a scan; close over it, and the "
                "loop carries what it holds"
            )
        places, extra = _places(opened), len(opened.closed.consts)
        fixed = [i for i in range(num_consts) if i not in opened.written]
        carry, xs = range(num_consts, num_consts + num_carry), range(num_consts + num_carry, len(args))
        order = [*range(extra), *_flat(places, [*fixed, *opened.written, *carry, *xs])]
        num_outs = sum(map(len, opened.outs))
        carried = sum(map(len, opened.outs[:num_carry]))
        finals = range(num_outs, len(opened.closed.jaxpr.outvars))
        body = permuted(opened.closed.jaxpr, order, [*finals, *range(carried), *range(carried, num_outs)])
        consts = [*opened.closed.consts, *arrays_of([args[i] for i in fixed], every)]
        start = arrays_of([args[i] for i in (*opened.written, *carry)], every)
        outs = bind(
            *consts, *start, *arrays_of([args[i] for i in xs], every), jaxpr=body, num_consts=len(consts),
            num_carry=len(start), length=length, **params,
        )  # fmt: skip
        kinds = [
            a.batched(length) if i >= num_carry and takes_apart(a, every) else a for i, a in enumerate(opened.out_avals)
        ]
        return opened.finish(args, [*outs[len(finals) :], *outs[: len(finals)]], kinds)

    return lowered


def while_opened(bind: Callable[..., Any], every: bool) -> Callable[..., Any]:
    """The lowering of `while`."""

    def lowered(
        *args: Any, cond_jaxpr: Jaxpr, cond_nconsts: int, body_jaxpr: Jaxpr, body_nconsts: int, **params: Any
    ) -> list[Any]:
        body, test = open_jaxpr(body_jaxpr, every), open_jaxpr(cond_jaxpr, every)
        _refuse_changes(body, body_jaxpr.in_avals, "while_loop")
        if test.written:
            raise errors.UnsupportedError("the condition of a while_loop writes to a Box: only its body may do that")
        cond_args, body_args = args[:cond_nconsts], args[cond_nconsts : cond_nconsts + body_nconsts]
        carry = args[cond_nconsts + body_nconsts :]
        written = {id(body_args[i]): k for k, i in enumerate(body.written)}
        # The condition takes what the body writes to from the carry.
        places, extra = _places(body), len(body.closed.consts)
        fixed = [i for i in range(body_nconsts) if i not in body.written]
        carried = [*body.written, *range(body_nconsts, body_nconsts + len(carry))]
        num_outs = sum(map(len, body.outs))
        finals = range(num_outs, len(body.closed.jaxpr.outvars))
        new_body = permuted(
            body.closed.jaxpr, [*range(extra), *_flat(places, [*fixed, *carried])], [*finals, *range(num_outs)]
        )
        new_cond, cond_consts = _condition(test, cond_args, len(carry), body, written, every)
        body_consts = [*body.closed.consts, *arrays_of([body_args[i] for i in fixed], every)]
        start = arrays_of([*[body_args[i] for i in body.written], *carry], every)
        outs = bind(
            *cond_consts, *body_consts, *start, cond_jaxpr=new_cond, cond_nconsts=len(cond_consts),
            body_jaxpr=new_body, body_nconsts=len(body_consts), **params,
        )  # fmt: skip
        return body.finish(body_args, [*outs[len(finals) :], *outs[: len(finals)]])

    return lowered


def _condition(
    test: Opened, args: Sequence[Any], num_carry: int, body: Opened, written: dict[int, int], every: bool
) -> tuple[Jaxpr, list[Any]]:
    """The condition as a function of its constants, the contents that the body writes to, and the carry."""
    places, jaxpr = _places(test), test.closed.jaxpr
    count = len(args)
    fixed = [i for i in range(count) if id(args[i]) not in written]
    contents: list[Any] = []
    for k, i in enumerate(body.written):
        mine = next((j for j in range(count) if written.get(id(args[j])) == k), None)
        contents += [jaxpr.invars[p] for p in places[mine]] if mine is not None else [Var(t) for t in body.ins[i]]
    front = [*jaxpr.invars[: len(test.closed.consts)], *[jaxpr.invars[p] for p in _flat(places, fixed)]]
    behind = [jaxpr.invars[p] for p in _flat(places, range(count, count + num_carry))]
    new = Jaxpr(
        (),
        [*front, *contents, *behind],
        jaxpr.outvars,
        jaxpr.eqns,
        jaxpr.effects,
        is_high=jaxpr.is_high,
        name=jaxpr.name,
    )
    return new, [*test.closed.consts, *arrays_of([args[i] for i in fixed], every)]


def cond_opened(bind: Callable[..., Any], joined: Callable[..., Any], every: bool) -> Callable[..., Any]:
    """The lowering of `cond`; `joined` makes branches with constants into ones of the same arguments."""

    def lowered(index: Any, *args: Any, branches: tuple[Jaxpr, ...], **params: Any) -> list[Any]:
        found = [final_states(b) for b in branches]
        written = tuple(i for i in range(len(args)) if any(b.invars[i] in states for b, states in zip(branches, found)))
        opened = [open_jaxpr(b, every, written) for b in branches]
        for other in opened[1:]:
            for one, two in zip(opened[0].finals, other.finals):
                if one.normalize() != two.normalize():
                    shown = told_apart(one, two)
                    raise errors.ArgumentTypeError(
                        "the branches of a cond leave a mutable value with contents of different types: "
                        f"{shown[0]} and {shown[1]}. Convert what they put into it to one type"
                    )
        jaxprs, consts = joined([o.closed for o in opened])
        outs = bind(index, *consts, *arrays_of(args, every), branches=jaxprs, **params)
        return opened[0].finish(args, outs)

    return lowered


def loop_arguments(params: dict[str, Any]) -> list[tuple[Jaxpr, list[int]]]:
    """Which operands of a `while` its Jaxprs take."""
    cond_n, body_n = params["cond_nconsts"], params["body_nconsts"]
    cond, body = params["cond_jaxpr"], params["body_jaxpr"]
    carry = range(cond_n + body_n, body_n + len(body.invars) - body_n + cond_n)
    return [(cond, [*range(cond_n), *carry]), (body, [*range(cond_n, cond_n + body_n), *carry])]


def chosen(which: Any, cases: Sequence[Any]) -> Any:
    """For each member of a batch, whose dimension is in front, its part of the case that `which` says: of a high type
    each of its arrays'."""
    kind: Any = aval_of(cases[0])
    if kind.is_high:
        return from_parts_p.bind(*[chosen(which, arrays) for arrays in zip(*map(parts_of, cases))], kind=kind)
    along = broadcast_in_dim(which, kind.shape, (0,)) if len(kind.shape) > 1 else which
    return select_n_p.bind(along, *cases)
