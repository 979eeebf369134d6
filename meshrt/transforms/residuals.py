"""Choosing what to save: residuals that are cheap to compute from something smaller, or from something saved anyway."""

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
    body: Jaxpr, residuals: Sequence[Var], linear: Jaxpr, cost: Callable[[Var], int]
) -> tuple[list[Var], Jaxpr]:
    """Which variables of the forward program to save, and the linear program that takes them (before the tangents).

    Each residual stands at the end of a chain of cheap operations, each of which has one operand. What is saved is the
    member of the chain that costs least, or one that is saved for another residual; the linear program computes the
    rest of the chain again.
    """
    made_by = {v: e for e in body.eqns if len(e.outvars) == 1 for v in e.outvars}
    chains = [_chain(v, made_by) for v in residuals]
    first = [min(chain, key=cost) for chain in chains]
    chosen = set(first)
    saved: dict[Var, None] = {}
    again: dict[int, Eqn] = {}
    for chain, base in zip(chains, first):
        if cost(base):
            base = [v for v in chain if v in chosen][-1]
        saved[base] = None
        for v in reversed(chain[: chain.index(base)]):
            again[id(made_by[v])] = made_by[v]
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
