"""Whether a Jaxpr is a program: variables are defined before their uses, and equations give the types they say."""

from __future__ import annotations

from meshrt.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Var, has_high, subjaxprs
from meshrt.errors import JaxprTypeError

__all__ = ["check"]


def check(jaxpr: Jaxpr | ClosedJaxpr) -> None:
    """Raises JaxprTypeError unless every variable is defined once, before its use, with the type its equation gives."""
    if isinstance(jaxpr, ClosedJaxpr):
        jaxpr = jaxpr.jaxpr
    if not jaxpr.is_high and (has_high(jaxpr.eqns) or any(v.aval.is_high for v in (*jaxpr.constvars, *jaxpr.invars))):
        raise JaxprTypeError(f"high types stand in a program that is not marked as high:\n{jaxpr}")
    defined: set[Var] = set()

    def define(v: Var, where: str) -> None:
        if v in defined:
            raise JaxprTypeError(f"{where} binds {v} a second time in\n{jaxpr}")
        defined.add(v)

    for v in (*jaxpr.constvars, *jaxpr.invars):
        define(v, "the argument list")
    for e in jaxpr.eqns:
        _check_eqn(e, defined, jaxpr)
        for v in e.outvars:
            define(v, f"equation {e}")
        for sub in subjaxprs(e.params):
            check(sub)
    for a in jaxpr.outvars:
        if isinstance(a, Var) and a not in defined:
            raise JaxprTypeError(f"the result {a} is not defined in\n{jaxpr}")


def _check_eqn(e: Eqn, defined: set[Var], jaxpr: Jaxpr) -> None:
    for a in e.invars:
        if isinstance(a, Var) and a not in defined:
            raise JaxprTypeError(f"{a} is used before its definition by {e} at {e.source} in\n{jaxpr}")
    outs = e.primitive.infer(tuple(a.aval for a in e.invars), e.params)
    if len(outs) != len(e.outvars):
        raise JaxprTypeError(f"{e} at {e.source} should have {len(outs)} results")
    for v, aval in zip(e.outvars, outs):
        if v.aval.is_high or aval.is_high:
            if v.aval.normalize() != aval.normalize():
                raise JaxprTypeError(f"{e} at {e.source} gives {aval.short()}, not {v.aval.short()}")
            continue
        if v.aval.shape != aval.shape or v.aval.dtype != aval.dtype:
            raise JaxprTypeError(f"{e} at {e.source} gives {aval.short()}, not {v.aval.short()}")
