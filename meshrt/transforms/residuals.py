"""Choosing what to save: residuals that are cheap to compute from something smaller, or from something saved anyway.

A residual of a loop is written to a stack and read back, for every turn; what is computed element by element from
other residuals costs less when the backward pass computes it again, where it fuses with what uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt.core.jaxpr import Eqn, Jaxpr, Var
from meshrt.transforms.linearize import Linearized

__all__ = ["cheapest_residuals", "renamed", "residual_vars"]

# Operations whose results are as cheap to compute as to read: views, conversions and simple arithmetic. (Where they
# have one operand but for literals; the rest of the backward pass fuses with them.)
_CHEAP = frozenset([
    "broadcast_in_dim", "reshape", "transpose", "convert_element_type", "slice", "rev", "copy", "stop_gradient", "name",
    "neg", "add", "sub", "mul", "integer_pow", "abs", "sign", "max", "min", "not", "and", "or", "xor",
    "eq", "ne", "lt", "le", "gt", "ge", "real", "imag",
])  # fmt: skip

# What else is computed element by element, with any number of operands.
_ELEMENTWISE = _CHEAP | {
    "div", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic", "square", "select_n", "clamp",
    "erf", "erfc", "sin", "cos",
}  # fmt: skip
_NONE: frozenset[Any] = frozenset()
_MOST = 16  # operations that are done again for one residual


def residual_vars(lin: Linearized, body: Jaxpr) -> list[Var]:
    """The variables of the forward program (`lin.forward.jaxpr`, or `body` with its variables) that are residuals."""
    captured, num_outs = len(lin.forward.consts), len(body.outvars) - lin.num_residuals
    places = {"arg": (body.invars, captured), "out": (body.outvars, 0), "res": (body.outvars, num_outs)}
    return [places[kind][0][places[kind][1] + k] for kind, k in lin.sources]


def renamed(eqn: Eqn, names: dict[Var, Any]) -> Eqn:
    """`eqn` with other operands."""
    if not any(type(a) is Var and a in names for a in eqn.invars):
        return eqn
    return eqn.replace([names.get(a, a) if type(a) is Var else a for a in eqn.invars], eqn.outvars)


def cheapest_residuals(
    body: Jaxpr,
    residuals: Sequence[Var],
    linear: Jaxpr,
    cost: Callable[[Var], int],
    once: Callable[[Var], bool] = lambda v: False,
) -> tuple[list[Var], Jaxpr]:
    """Which variables of the forward program to save, and the linear program that takes them (before the tangents).

    Each residual stands at the end of a chain of cheap operations, each of which has one operand. What is saved is the
    member of the chain that costs least, or one that is saved for another residual; the linear program computes the
    rest of the chain again. A chain that starts at a literal needs nothing. Of the saved values, those that are
    functions of the others, element by element, are not saved either, but for values that `once` says are computed
    once for all turns of a loop.
    """
    made_by = {v: e for e in body.eqns if len(e.outvars) == 1 for v in e.outvars}
    chains = [_chain(v, made_by) for v in residuals]
    first = [min(chain, key=cost) for chain in chains]
    chosen = set(first)
    saved: dict[Var, None] = {}
    again: dict[int, Eqn] = {}
    for chain, base in zip(chains, first):
        if _is_constant(chain[-1], made_by):
            repeated = chain
        else:
            if cost(base):
                base = [v for v in chain if v in chosen][-1]
            saved[base] = None
            repeated = chain[: chain.index(base)]
        for v in repeated:
            again[id(made_by[v])] = made_by[v]
    for eqn in _without_dependent(body, saved, made_by, cost, once):
        again[id(eqn)] = eqn
    names = dict(zip(linear.invars, residuals))
    eqns = [*[e for e in body.eqns if id(e) in again], *[renamed(e, names) for e in linear.eqns]]
    outs = [names.get(o, o) if type(o) is Var else o for o in linear.outvars]
    return list(saved), Jaxpr((), (*saved, *linear.invars[len(residuals) :]), outs, eqns, linear.name)


def _chain(value: Var, made_by: dict[Var, Eqn]) -> list[Var]:
    """`value`, the operand that it is a cheap function of, the operand of that, ..."""
    chain = [value]
    while True:
        eqn = made_by.get(chain[-1])
        if eqn is None or eqn.effects or eqn.primitive.name not in _CHEAP:
            return chain
        operands = {a for a in eqn.invars if type(a) is Var}
        if len(operands) != 1:
            return chain
        chain.append(operands.pop())


def _is_constant(value: Var, made_by: dict[Var, Eqn]) -> bool:
    """Whether `value` is a literal, broadcast perhaps."""
    eqn = made_by.get(value)
    return (
        eqn is not None and not eqn.effects and eqn.primitive.name in _CHEAP
        and not any(type(a) is Var for a in eqn.invars)
    )  # fmt: skip


def _without_dependent(
    body: Jaxpr,
    saved: dict[Var, None],
    made_by: dict[Var, Eqn],
    cost: Callable[[Var], int],
    once: Callable[[Var], bool],
) -> list[Eqn]:
    """Takes from `saved`, the last computed first, what the others determine; the operations to be done again.

    What these need beyond `saved` is added: values that are there anyway, or once for all turns and cost less. A value
    that a sharding constraint stands at is laid out like that. Unless what it is computed from is, too, that would be
    moved there a second time, so the value stays.
    """
    order = {v: i for i, e in enumerate(body.eqns) for v in e.outvars}
    wanted = _constraints(body)
    again: list[Eqn] = []

    def is_smaller_inside(a: Var) -> bool:
        """A constant, or a mask, that was only broadcast: it would be kept as large as it is used."""
        eqn = made_by.get(a)
        if eqn is None or eqn.effects or eqn.primitive.name not in _CHEAP:
            return False
        return sum(cost(b) for b in {b for b in eqn.invars if type(b) is Var}) < cost(a)

    for v in sorted((v for v in saved if v in order), key=lambda v: -order[v]):
        if once(v) or not cost(v):
            continue
        cone = _cone(v, made_by, lambda a: a in saved or not cost(a) or (once(a) and not is_smaller_inside(a)), once)
        if cone is None:
            continue
        inside = {a for e in cone for a in e.outvars}
        leaves = dict.fromkeys(a for e in cone for a in e.invars if type(a) is Var and a not in inside)
        whole = [a for a in leaves if a.aval.shape == v.aval.shape]
        if not all(wanted.get(v, _NONE) <= wanted.get(a, _NONE) for a in whole):
            continue
        if sum(cost(a) for a in leaves if a not in saved) < cost(v):
            del saved[v]
            saved.update(leaves)
            again += cone
    return again


def _constraints(body: Jaxpr) -> dict[Var, set[Any]]:
    """The shardings in which values are asked for, or are given, by the program's own constraints."""
    found: dict[Var, set[Any]] = {}
    for eqn in body.eqns:
        if eqn.primitive.name == "sharding_constraint":
            for v in (*eqn.invars, *eqn.outvars):
                if type(v) is Var:
                    found.setdefault(v, set()).add(eqn.params["sharding"])
    return found


def _cone(
    value: Var, made_by: dict[Var, Eqn], known: Callable[[Var], bool], once: Callable[[Var], bool]
) -> list[Eqn] | None:
    """The operations that compute `value`, element by element, from known values; None if some are of another kind."""
    found: dict[int, Eqn] = {}
    count = 0
    pending = [value]
    while pending:
        eqn = made_by.get(pending.pop())
        if eqn is None or eqn.effects or eqn.primitive.name not in _ELEMENTWISE:
            return None
        if id(eqn) in found:
            continue
        found[id(eqn)] = eqn
        count += not once(eqn.outvars[0])
        if count > _MOST:
            return None
        pending += [a for a in eqn.invars if type(a) is Var and not known(a)]
    return list(found.values())
