"""`custom_lin`, the linear map that a `custom_vjp` call leaves, applied to tangents.

Users' rules have no such direction, so whoever runs the map raises. Where the function is the library's own and has a
rule `push`, the map is what that computes, of whatever it is run on: values, a program, tangents, a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from meshrt import errors
from meshrt.core.basic.shapes import zeros
from meshrt.core.jaxpr import Eqn
from meshrt.core.trace import trace_to_jaxpr
from meshrt.transforms.batching import MappedAxis, batch_flat
from meshrt.transforms.jvp import jvp_flat
from meshrt.transforms.tools import hoist_consts
from propagation.asm import Ref

__all__ = ["no_forward_mode", "push_batched", "push_differentiated", "push_lowered", "pushed"]


def no_forward_mode(*args: Any, **params: Any) -> NoReturn:
    raise errors.ForwardModeError(
        "can't apply forward-mode autodiff (jvp) to a custom_vjp function: it has only a rule for reverse mode. Use "
        "custom_jvp, whose rules serve both modes, or grad and vjp instead of jvp and jacfwd"
    )


def pushed(
    *operands: Any, backward: Any, num_residuals: int, nonzeros: Sequence[bool], out_avals: Sequence[Any],
    live: Sequence[bool],
) -> list[Any]:  # fmt: skip
    """The tangents of the results that have one. ForwardModeError where there is no rule for it."""
    if backward.push is None:
        no_forward_mode()
    given = iter(operands[num_residuals:])
    moved = backward.push(operands[:num_residuals], [next(given) if nz else None for nz in nonzeros])
    found = [t for t, is_live in zip(moved, live) if is_live]
    return [zeros(aval) if t is None else t for t, aval in zip(found, out_avals, strict=True)]


def push_lowered(ctx: Any, eqn: Eqn, *operands: Ref) -> list[Ref]:
    """As a part of a program."""
    closed = trace_to_jaxpr(lambda *xs: pushed(*xs, **eqn.params), [v.aval for v in eqn.invars], eqn.primitive.name)
    closed = hoist_consts(closed)
    return ctx.jaxpr(closed.jaxpr, [*[ctx.array(np.asarray(c)) for c in closed.consts], *operands])


def push_differentiated(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    """With its derivative."""
    return jvp_flat(lambda *xs: pushed(*xs, **params), primals, tangents)


def push_batched(axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> Any:
    """For every member of a batch."""
    return batch_flat(lambda *xs: pushed(*xs, **params), axis, args, dims)
