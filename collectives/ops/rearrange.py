"""Plumbing for operations that move the elements of one operand (transpose, reshape, broadcast, slice, reverse): they
map layouts of the operand to layouts of the result and back.

A transpose of f32[8, 6] maps ((0,), ()) forward to ((), (0,)). Operand and result need no communication in layouts that
map to each other; which pair is used is decided by what resharding operand and result would send.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from propagation.program import Op, Value

from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts import recompute
from ..layouts.context import Context
from ..partial_sums import deferred_reduction

__all__ = ["rearrange"]


def rearrange(
    ctx: Context,
    op: Op,
    value: Value,
    forward: Callable[[Dims], tuple[Dims, Dims]],
    backward: Callable[[Dims], tuple[Dims, Dims]],
    local: Callable[[LocalValue, Dims, Dims], LocalValue],
    is_linear: bool = True,
    again: bool = False,
    sends: Callable[[Dims], float] = lambda before: 0.0,
    also: Sequence[tuple[Dims, Dims]] = (),
    why: str = "",
) -> None:
    """Partitions an operation whose result holds elements of `value`. Layouts come as pairs (of operand, of result)
    that need no communication between them.

    forward   of an operand layout: the pair with as much of it as the operation can keep
    backward  of a wanted result layout: the pair with as much of it as the operation can give
    local     (ref, before, after): writes the operation on one piece, between the layouts of a pair
    again     whether repeating the operation on a smaller operand may replace resharding its result (`recompute`)
    sends     bytes that `local` itself sends for an operand layout
    also      more pairs to choose from
    why       what a full-gather finding says of operand dimensions that cannot stay split
    """
    result = op.results[0]
    state = ctx.state(value)
    if state.make is not None:

        def make(dims: Dims) -> LocalValue:
            before, after = backward(dims)
            ref = local(ctx.get(value, before), before, after)
            return ctx.reshard(result.type.shape, ref, after, dims)

        ctx.bind_lazy(result, make)
        return
    partial = deferred_reduction.deferred(ctx, value) if is_linear else None
    if partial is not None:
        before, after = forward(partial.dims)
        if before == partial.dims:
            deferred_reduction.apply(ctx, op, partial, after, lambda ref: local(ref, before, after))
            return
    want, have = ctx.want(result), state.layout
    candidates = [backward(want), forward(have)]
    candidates += [forward(d) for d in list(state.versions)[1:]]
    candidates += also
    before, after = _cheapest(ctx, value, result, candidates, sends)
    lost = [d for d, (a, b) in enumerate(zip(have, candidates[1][0])) if a != b]
    ctx.bind(result, after, local(ctx.gathered(value, before, why, lost), before, after))
    if again:

        def layouts(dims: Dims) -> tuple[Dims, ...] | None:
            before, after = backward(dims)
            return (before,) if after == dims else None

        def work(refs: list[LocalValue], dims: Dims) -> LocalValue:
            return local(refs[0], backward(dims)[0], dims)

        recompute.note(ctx, op, (value,), layouts, work)


def _cheapest(
    ctx: Context, value: Value, result: Value, candidates: Sequence[tuple[Dims, Dims]], sends: Callable[[Dims], float]
) -> tuple[Dims, Dims]:
    """The pair of layouts to work in: of `candidates`, the first of which is made for the wanted result, the second for
    what there is of the operand."""
    state = ctx.state(value)
    wanted, kept = candidates[:2]
    if not any(sends(before) for before, _ in candidates):
        if wanted[0] in state.versions and wanted[1] == ctx.want(result):
            return wanted
        if kept[0] == state.layout and not state.pending and result.type.size == value.type.size:
            return kept  # no communication here; a consumer reshards the result if it has to
    per_element, least = 2 * ctx.itemsize(result) * ctx.redundancy, math.inf
    best, *others = dict.fromkeys(candidates)
    for before, after in (best, *others) if others else ():
        cost = ctx.move_cost(value, before) + sends(before)
        cost += ctx.elements(result.type.shape, after) * per_element
        if cost < least:  # else there is no need to look ahead
            cost += ctx.later_cost(result, after)
            if cost < least:
                best, least = (before, after), cost
    return best
