"""Jaxprs and what they consist of: for programs that walk over them. Names are ``jax.extend.core``'s.

>>> closed = meshrt.make_jaxpr(lambda x: x + 1)(2.0)  # doctest: +SKIP
>>> [eqn.primitive is core.primitives.add_p for eqn in closed.eqns]  # doctest: +SKIP
[True]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshrt.core.jaxpr import NO_EFFECTS as no_effects
from meshrt.core.jaxpr import ClosedJaxpr, Jaxpr, JaxprTypeError, Literal, Var, subjaxprs
from meshrt.core.jaxpr import Eqn as JaxprEqn
from meshrt.core.jaxpr import check as check_jaxpr
from meshrt.core.primitive import Primitive
from meshrt.core.trace import eval_jaxpr
from meshrt.extend.core import primitives
from meshrt.numpy.names import missing as _missing

__all__ = [
    "ClosedJaxpr", "Jaxpr", "JaxprEqn", "JaxprTypeError", "Literal", "Primitive", "Var", "check_jaxpr",
    "jaxpr_as_fun", "jaxprs_in_params", "no_effects", "primitives",
]  # fmt: skip


def jaxpr_as_fun(closed_jaxpr: ClosedJaxpr) -> Callable[..., list[Any]]:
    """The function of flat arrays that `closed_jaxpr` is; it returns the list of its results.

    It can be transformed and staged as any other.
    """

    def function(*args: Any) -> list[Any]:
        return list(eval_jaxpr(closed_jaxpr.jaxpr, closed_jaxpr.consts, args))

    function.__name__ = function.__qualname__ = closed_jaxpr.jaxpr.name or "jaxpr"
    return function


def jaxprs_in_params(params: dict[str, Any]) -> list[Jaxpr]:
    """The Jaxprs among the parameters of an equation: bodies of loops, branches, called functions."""
    return list(subjaxprs(params))


__getattr__ = _missing(__name__, __all__)
