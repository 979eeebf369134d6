"""What a checkpoint policy saves of a program, and which operations are run again for the rest.

The policy is asked for each operation, also for those inside of branches and loops: their primitives have a rule
`recompute` that splits the Jaxprs in their parameters. With `save_only_these_names("h")`,

    c:f32[8] = cond[branches={a. sin a, h = name[h] .., cos h; ..}] p x        c, a residual, is cos h

runs forward as `cond` that also returns h:f32[8] (zeros from the other branch); h is saved, and run again is
`cond[branches={a h. cos h; ..}] p x h`.

A policy may also answer with an `Offloadable`: what is saved then is the value in another memory, and the first thing
that is run again brings it back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from meshrt import errors
from meshrt.core.basic.memory import memory_put_p
from meshrt.core.jaxpr import Eqn, Jaxpr, Literal, Var
from meshrt.core.spaces import space_of_kind
from meshrt.transforms.residuals import renamed

__all__ = ["Offloadable", "Policy", "Recompute", "Saveable", "Split", "fresh_copy", "inlined", "split"]

# Answers of policies, by name.
Saveable, Recompute = True, False


class Offloadable(NamedTuple):
    """A policy's answer: results are saved in the kind of memory `dst`, and brought back to `src`, where they lie."""

    src: str
    dst: str


Policy = Callable[..., bool | Offloadable]


@dataclass(slots=True, eq=False)
class Split:
    """`forward` computes all that was computed before and the `saved` values; `again` computes what was wanted from the
    saved values and the arguments.
    """

    forward: list[Eqn] = field(default_factory=list)
    saved: list[Var] = field(default_factory=list)
    again: list[Eqn] = field(default_factory=list)


def split(body: Jaxpr, wanted: Sequence[Any], policy: Policy | None) -> Split:
    """Splits the equations of `body` so that the variables `wanted` can be had from what `policy` saves.

    Callbacks that look at values are called again if the policy does not save them, or saves none of what they see.
    """
    live = {v for v in wanted if type(v) is Var}
    unsaved = _unsaved(body, policy) if body.effects and policy is not None else frozenset()
    found = Split()
    for eqn in reversed(body.eqns):
        flags = [v in live for v in eqn.outvars]
        if not any(flags):
            found.forward.append(eqn)
            if eqn.effects and (
                policy is None
                or not policy(eqn.primitive, *[a.aval for a in eqn.invars], **eqn.params)
                or (not eqn.outvars and all(type(a) is Literal or a in unsaved for a in eqn.invars))
            ):
                # Whoever looks at values wants to see that they are computed again.
                found.again.append(_pruned(eqn, flags))
                live.update(a for a in eqn.invars if type(a) is Var)
            continue
        inside = Split([eqn], [], [])
        if policy is None:
            inside.again = [_pruned(eqn, flags)]
        elif eqn.primitive.recompute is not None:
            inside = eqn.primitive.recompute(eqn, flags, policy) or Split([eqn], [], [_pruned(eqn, flags)])
        else:
            answer = _answer(policy, eqn)
            saved = [v for v, f in zip(eqn.outvars, flags) if f]
            if isinstance(answer, Offloadable):
                inside = _offloaded(eqn, saved, answer)
            elif answer:
                inside.saved = saved
            else:
                inside.again = [_pruned(eqn, flags)]
        found.forward += reversed(inside.forward)
        found.saved += reversed(inside.saved)
        found.again += reversed(inside.again)
        live.update(a for e in inside.again for a in e.invars if type(a) is Var)
    return Split(found.forward[::-1], found.saved[::-1], found.again[::-1])


def _answer(policy: Policy, eqn: Eqn) -> bool | Offloadable:
    answer = policy(eqn.primitive, *[a.aval for a in eqn.invars], **eqn.params)
    if not isinstance(answer, bool | np.bool_ | Offloadable):
        raise errors.ArgumentTypeError(
            f"Value returned by a remat policy should be a bool or an `Offloadable`, but for '{eqn.primitive.name}' at "
            f"{eqn.source} it is {answer} of type {type(answer)}"
        )
    return answer


def _offloaded(eqn: Eqn, values: Sequence[Var], answer: Offloadable) -> Split:
    """`eqn` with those of its results that are wanted, saved in another memory and brought back from there."""
    there = [Var(v.aval.update(memory_space=space_of_kind(answer.dst))) for v in values]
    for v in values:
        if v.aval.memory_space is not space_of_kind(answer.src):
            raise errors.MemorySpaceError(
                f"a checkpoint policy offloads from the memory {answer.src!r}, but the result of "
                f"'{eqn.primitive.name}' at {eqn.source} has type {v.aval.short()}; name the memory where it lies"
            )
    away = [Eqn(memory_put_p, [v], [t], {"kind": answer.dst}, eqn.source) for v, t in zip(values, there)]
    back = [Eqn(memory_put_p, [t], [v], {"kind": answer.src}, eqn.source) for v, t in zip(values, there)]
    return Split([eqn, *away], there, back)


def _unsaved(body: Jaxpr, policy: Policy) -> set[Var]:
    """The arguments, and what is computed by operations that `policy` runs again where their results are wanted."""
    found = set(body.invars)
    for eqn in body.eqns:
        if eqn.primitive.recompute is None and not policy(eqn.primitive, *[a.aval for a in eqn.invars], **eqn.params):
            found.update(eqn.outvars)
    return found


def _pruned(eqn: Eqn, used: Sequence[bool]) -> Eqn:
    return eqn if eqn.primitive.dce is None or all(used) else eqn.primitive.dce(eqn, used)


def fresh_copy(jaxpr: Jaxpr, operands: Sequence[Any]) -> tuple[list[Eqn], list[Any]]:
    """(the equations of `jaxpr` applied to `operands`, with variables of their own, its results)."""
    eqns = []
    copies: dict[Var, Any] = dict(zip(jaxpr.invars, operands))
    for e in jaxpr.eqns:
        fresh = [Var(v.aval) for v in e.outvars]
        eqns.append(e.replace([copies.get(a, a) if type(a) is Var else a for a in e.invars], fresh))
        copies.update(zip(e.outvars, fresh))
    return eqns, [o if type(o) is Literal else copies[o] for o in jaxpr.outvars]


def inlined(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` with calls of jitted functions written out, so that a policy sees the operations inside."""
    if not any(e.primitive.calls for e in jaxpr.eqns):
        return jaxpr
    eqns: list[Eqn] = []
    names: dict[Var, Any] = {}
    for eqn in jaxpr.eqns:
        eqn = renamed(eqn, names)
        if eqn.primitive.calls is None:
            eqns.append(eqn)
            continue
        copies, outs = fresh_copy(inlined(eqn.params[eqn.primitive.calls]), eqn.invars)
        eqns += copies
        names.update(zip(eqn.outvars, outs))
    outs = [names.get(o, o) if type(o) is Var else o for o in jaxpr.outvars]
    return Jaxpr((), jaxpr.invars, outs, eqns, is_high=jaxpr.is_high, name=jaxpr.name)
