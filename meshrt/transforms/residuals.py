"""Rematerialization in loops: which residuals of a body are saved, and which the backward loop computes again.

A saved residual is written to a stack with one slice per iteration and read back from it. What is computed element by
element from other saved values is cheaper to compute again, inside the operation that uses it:

    a:f32[1024]     = exp b                    saved: 4 KB per iteration
    c:f32[128,1024] = broadcast_in_dim a       a residual of `mul c d`; computed again from `a`, not saved: 512 KB
    e:bool[128,1024] = gt d 0.0                a residual of a select; computed again if `d` is saved anyway

Which primitives are worth it is told by their traits `cheap` and `fuses`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt.core.jaxpr import Eqn, Jaxpr, Var
from meshrt.heuristics import RECOMPUTED_OPERATIONS
from meshrt.transforms.linearize import Linearized

__all__ = ["cheapest_residuals", "renamed", "residual_vars"]

_NONE: frozenset[Any] = frozenset()


def residual_vars(lin: Linearized, body: Jaxpr) -> list[Var]:
    """The variables of the forward program (`lin.forward.jaxpr`, or `body` with its variables) that are residuals."""
    captured, num_outs = len(lin.forward.consts), len(body.outvars) - lin.num_residuals
    places: dict[str, tuple[tuple[Any, ...], int]] = {
        "arg": (body.invars, captured), "out": (body.outvars, 0), "res": (body.outvars, num_outs),
    }  # fmt: skip
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

    In two steps. First each residual is followed back along cheap operations with one operand (a chain: `a` for `c`
    above); saved is the cheapest value of the chain, or one that is saved for another residual, and the linear program
    repeats the rest. Nothing is saved for a chain that starts at a literal. Then a saved value is dropped if a fused
    computation from other saved values gives it (its cone: `d` for `e` above).

    `cost(v)` are the bytes that saving `v` takes in all iterations, 0 for what is there anyway; `once(v)` says that `v`
    is loop-invariant, hence computed and saved only once.
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
    return list(saved), Jaxpr((), (*saved, *linear.invars[len(residuals) :]), outs, eqns, name=linear.name)


def _chain(value: Var, made_by: dict[Var, Eqn]) -> list[Var]:
    """[value, the operand that it is a cheap function of, the operand of that, ...]."""
    chain = [value]
    while True:
        eqn = made_by.get(chain[-1])
        if eqn is None or eqn.effects or not eqn.primitive.cheap:
            return chain
        operands = {a for a in eqn.invars if type(a) is Var}
        if len(operands) != 1:
            return chain
        chain.append(operands.pop())


def _is_constant(value: Var, made_by: dict[Var, Eqn]) -> bool:
    """Whether `value` is computed from literals only: a broadcast scalar, say."""
    eqn = made_by.get(value)
    if eqn is None or eqn.effects or not eqn.primitive.cheap:
        return False
    return not any(type(a) is Var for a in eqn.invars)


def _without_dependent(
    body: Jaxpr,
    saved: dict[Var, None],
    made_by: dict[Var, Eqn],
    cost: Callable[[Var], int],
    once: Callable[[Var], bool],
) -> list[Eqn]:
    """Removes from `saved`, last computed first, the values whose cone has leaves that cost less to save than they do.

    Leaves that were not saved yet are added: they are there anyway, or loop-invariant. Returns the equations of the
    cones. A value with a sharding constraint stays saved unless its leaves of the same shape have that constraint too:
    computing it again would reshard it again.
    """
    order = {v: i for i, e in enumerate(body.eqns) for v in e.outvars}
    wanted = _constraints(body)
    again: list[Eqn] = []

    def is_smaller_inside(a: Var) -> bool:
        """Whether a loop-invariant leaf is a broadcast of something smaller, which should be kept instead."""
        eqn = made_by.get(a)
        if eqn is None or eqn.effects or not eqn.primitive.cheap:
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
    """The shardings of the constraints that a value is an operand or the result of."""
    found: dict[Var, set[Any]] = {}
    for eqn in body.eqns:
        if eqn.primitive.constraint is not None:
            for v in (*eqn.invars, *eqn.outvars):
                if type(v) is Var:
                    found.setdefault(v, set()).add(eqn.primitive.constraint(eqn.params))
    return found


def _cone(
    value: Var, made_by: dict[Var, Eqn], known: Callable[[Var], bool], once: Callable[[Var], bool]
) -> list[Eqn] | None:
    """The equations that compute `value` from known values; None if one of them does not fuse, or they are too many."""
    found: dict[int, Eqn] = {}
    count = 0
    pending = [value]
    while pending:
        eqn = made_by.get(pending.pop())
        if eqn is None or eqn.effects or not eqn.primitive.fuses:
            return None
        if id(eqn) in found:
            continue
        found[id(eqn)] = eqn
        count += not once(eqn.outvars[0])
        if count > RECOMPUTED_OPERATIONS:
            return None
        pending += [a for a in eqn.invars if type(a) is Var and not known(a)]
    return list(found.values())
