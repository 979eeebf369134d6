"""Operations that say themselves how a checkpoint computes them again (`again` of their records).

    checkpoint(f)   with   y = op x   in f, where the rule of `op` gives (y, again):

    forward         y = op x                          as the rule computes it, and `saved`, what `again` closes over
    backward        y = again x, given `saved`        and the derivatives of that

Calls of jitted functions are written out for it; inside of loops and branches such operations are just computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from meshrt.core import source
from meshrt.core.jaxpr import ClosedJaxpr, Jaxpr, Literal, Var
from meshrt.core.trace import JaxprTrace, set_trace
from meshrt.transforms.recompute import Policy, inlined
from meshrt.transforms.tools import hoist_consts

__all__ = ["RunTwice", "run_twice"]


class RunTwice(NamedTuple):
    """`forward` gives the results and then the saved values; `again` takes `consts` before the arguments: values from
    outside, None for one that is saved."""

    forward: ClosedJaxpr
    again: Jaxpr
    consts: list[Any]


def run_twice(jaxpr: Jaxpr, policy: Policy | None) -> RunTwice | None:
    """A Jaxpr without constvars as its operations' own rules have it; None where none has one."""
    if not jaxpr.is_high:
        return None
    body = inlined(jaxpr)
    if not any(_rule(e) is not None for e in body.eqns):
        return None
    forward, again = (JaxprTrace(jaxpr.name, requires_low=False) for _ in range(2))
    args = [forward.argument(a) for a in body.in_avals]
    with set_trace(forward):
        later = [again.argument(a) for a in body.in_avals]
        outs, outs_again = _run(body, args, later, forward, again, policy)
        with set_trace(again):
            second = again.close(later, outs_again)
        saved = [c for c in second.consts if getattr(c, "_trace", None) is forward]
        first = forward.close(args, [*outs, *saved])
    consts = [None if getattr(c, "_trace", None) is forward else c for c in second.consts]
    return RunTwice(hoist_consts(first), hoist_consts(second).jaxpr, consts)


def _rule(eqn: Any) -> Any:
    return None if eqn.primitive.again is None else eqn.primitive.again(eqn.params)


def _run(
    body: Jaxpr, args: Sequence[Any], later: Sequence[Any], forward: JaxprTrace, again: JaxprTrace,
    policy: Policy | None,
) -> tuple[list[Any], list[Any]]:  # fmt: skip
    """The results of `body` in both traces; rules run in the first, what they return in the second."""
    env: dict[Var, Any] = dict(zip(body.invars, zip(args, later)))
    both = lambda a: (a.val, a.val) if type(a) is Literal else env[a]
    previous = source.set_replay(None)
    try:
        for eqn in body.eqns:
            source.set_replay(eqn.source)
            pairs = [both(a) for a in eqn.invars]
            now, then = [p[0] for p in pairs], [p[1] for p in pairs]
            rule, bind = _rule(eqn), lambda *operands, e=eqn: e.primitive.bind(*operands, **e.params)
            outs, function = (bind(*now), bind) if rule is None else rule(policy, *now)
            with set_trace(again):
                outs_again = function(*then)
            if not eqn.primitive.multiple_results:
                outs, outs_again = [outs], [outs_again]
            env.update(zip(eqn.outvars, zip(outs, outs_again)))
    finally:
        source.set_replay(previous)
    results = [both(a) for a in body.outvars]
    return [r[0] for r in results], [r[1] for r in results]
