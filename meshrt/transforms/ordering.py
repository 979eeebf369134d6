"""Ordered effects become data flow: a token, an ordinary scalar, passes through every equation that has one.

    _ = debug_callback[ordered] x                  t1 = debug_callback[ordered threaded] t0 x
    y = scan[jaxpr=.. ordered ..] c xs       ->    t2 y = scan[jaxpr=.. takes and gives a token ..] t1 c xs
    _ = debug_callback[ordered] y                  _ = debug_callback[ordered threaded] t2 y

It is the last pass before lowering, so no transformation ever sees a token, and no compiler has to know of one: a
callback takes the scalar and returns it, and what takes a value runs after what made it. Primitives with Jaxprs in
their parameters have a rule `thread(eqn, token, threaded) -> (equations, token)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.effects import has_ordered
from meshrt.core.jaxpr import Atom, Eqn, Jaxpr, Literal, Var
from meshrt.core.naming import body_name
from meshrt.core.types import ShapedArray
from meshrt.transforms.tools import WeakCache

__all__ = ["TOKEN", "in_order", "thread_call", "threaded"]

TOKEN = ShapedArray((), np.dtype(np.uint32))

_cache: WeakCache = WeakCache()


def threaded(jaxpr: Jaxpr) -> Jaxpr:
    """`jaxpr` with a token as its first argument and its first result. Cached by `jaxpr`."""
    return _cache.get(jaxpr, (), lambda: _threaded(jaxpr))


def _threaded(jaxpr: Jaxpr) -> Jaxpr:
    token = Var(TOKEN)
    eqns, last = _thread(jaxpr, token)
    return Jaxpr(
        jaxpr.constvars,
        (token, *jaxpr.invars),
        (last, *jaxpr.outvars),
        eqns,
        jaxpr.effects,
        is_high=jaxpr.is_high,
        name=jaxpr.name,
    )


def in_order(jaxpr: Jaxpr) -> Jaxpr:
    """A whole program with its ordered effects in order; itself if it has none."""
    if not has_ordered(jaxpr.effects):
        return jaxpr
    eqns, _ = _thread(jaxpr, Literal(np.uint32(0), TOKEN))
    return Jaxpr(
        jaxpr.constvars, jaxpr.invars, jaxpr.outvars, eqns, jaxpr.effects, is_high=jaxpr.is_high, name=jaxpr.name
    )


def _thread(jaxpr: Jaxpr, token: Atom) -> tuple[list[Eqn], Atom]:
    eqns: list[Eqn] = []
    for eqn in jaxpr.eqns:
        if not has_ordered(eqn.effects):
            eqns.append(eqn)
            continue
        rule = eqn.primitive.thread
        if rule is None:
            raise errors.UnsupportedError(
                f"the primitive '{eqn.primitive.name}' used at {eqn.source} cannot keep ordered effects in order; make "
                "the callbacks inside it unordered (ordered=False), or move them out of it"
            )
        made, token = rule(eqn, token, threaded)
        eqns += made
    return eqns, token


def thread_call(eqn: Eqn, token: Atom, threaded: Callable[[Jaxpr], Jaxpr], **changes: Any) -> tuple[list[Eqn], Atom]:
    """The rule of primitives that do nothing but run a Jaxpr that is their parameter."""
    new, name = Var(TOKEN), body_name(eqn.params)
    params = {**eqn.params, name: threaded(eqn.params[name]), **changes}
    return [eqn.replace([token, *eqn.invars], [new, *eqn.outvars], params)], new
