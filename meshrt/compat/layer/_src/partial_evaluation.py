"""Parts of programs: what `jax._src.interpreters.partial_eval` has beside `jax.interpreters.partial_eval`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt.core.jaxpr import ClosedJaxpr, Jaxpr
from meshrt.core.trace import trace_to_jaxpr
from meshrt.extend.core import jaxpr_as_fun
from meshrt.extend.linear_util import wrap_init
from meshrt.interpreters.partial_eval import PartialVal, trace_to_jaxpr_nounits
from meshrt.transforms.tools import hoist_consts

__all__ = [
    "abstract_eval_fun", "close_jaxpr", "convert_constvars_jaxpr", "move_binders_to_back", "move_binders_to_front",
    "partial_eval_jaxpr_nounits",
]  # fmt: skip


def close_jaxpr(jaxpr: Jaxpr) -> ClosedJaxpr:
    """A program that has no constants, as one with the list of them."""
    return ClosedJaxpr(jaxpr, [])


def convert_constvars_jaxpr(jaxpr: Jaxpr) -> Jaxpr:
    """The program that takes its constants as its first arguments."""
    return jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars])


def _reordered(closed: ClosedJaxpr, first: Sequence[bool]) -> ClosedJaxpr:
    invars = closed.jaxpr.invars
    assert len(first) == len(invars)
    order = [v for v, f in zip(invars, first) if f] + [v for v, f in zip(invars, first) if not f]
    return ClosedJaxpr(closed.jaxpr.replace(invars=order), closed.consts)


def move_binders_to_front(closed_jaxpr: ClosedJaxpr, to_move: Sequence[bool]) -> ClosedJaxpr:
    """The program whose flagged arguments come first."""
    return _reordered(closed_jaxpr, to_move)


def move_binders_to_back(closed_jaxpr: ClosedJaxpr, to_move: Sequence[bool]) -> ClosedJaxpr:
    """The program whose flagged arguments come last."""
    return _reordered(closed_jaxpr, [not m for m in to_move])


def partial_eval_jaxpr_nounits(
    jaxpr: ClosedJaxpr, unknowns: Sequence[bool], instantiate: bool | Sequence[bool]
) -> tuple[ClosedJaxpr, ClosedJaxpr, list[bool], list[Any]]:
    """A program in two parts: of what is known, and of the rest.

    Args:
      unknowns: which arguments are not known.
      instantiate: which results count as unknown, even if they follow from known arguments.

    Returns:
      The program of the known arguments, which gives the known results and what the other needs of them (residuals);
      the program of the residuals and the unknown arguments, which gives the unknown results; which results are
      unknown; the types of the residuals.
    """
    found: list[Any] = []

    def known_part(*known: Any) -> list[Any]:
        values = iter(known)
        pvals = [
            PartialVal.unknown(aval) if u else PartialVal.known(next(values))
            for u, aval in zip(unknowns, jaxpr.in_avals, strict=True)
        ]
        rest, outs, residuals = trace_to_jaxpr_nounits(wrap_init(jaxpr_as_fun(jaxpr)), pvals, instantiate)
        found[:] = [rest, [not pv.is_known() for pv in outs], len(residuals)]
        return [*(pv.get_known() for pv in outs if pv.is_known()), *residuals]

    first = trace_to_jaxpr(known_part, [a for a, u in zip(jaxpr.in_avals, unknowns) if not u], jaxpr.jaxpr.name)
    rest, unknown_outs, count = found
    avals = list(first.out_avals)
    second = (
        hoist_consts(ClosedJaxpr(rest, [])) if not rest.constvars else ClosedJaxpr(convert_constvars_jaxpr(rest), [])
    )
    return first, second, unknown_outs, avals[len(avals) - count :]


def abstract_eval_fun(fun: Callable[..., Any], *avals: Any, debug_info: Any = None, **params: Any) -> list[Any]:
    """The types of the results of a function of flat arrays."""
    return list(trace_to_jaxpr(lambda *args: list(fun(*args, **params)), list(avals), "abstract_eval").out_avals)
