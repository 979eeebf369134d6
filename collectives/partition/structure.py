"""Plumbing for operations that rearrange one operand: layouts map forward to the result and back to the operand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from propagation.program import Op, Value

from ..emit import Ref
from ..layout import Dims
from . import linear, recompute
from .context import Context

__all__ = ["rearrange"]


def rearrange(
    ctx: Context,
    op: Op,
    value: Value,
    forward: Callable[[Dims], tuple[Dims, Dims]],
    backward: Callable[[Dims], tuple[Dims, Dims]],
    local: Callable[[Ref, Dims, Dims], Ref],
    is_linear: bool = True,
    again: bool = False,
    sends: Callable[[Dims], float] = lambda before: 0.0,
    also: Sequence[tuple[Dims, Dims]] = (),
    why: str = "",
) -> None:
    """Partitions an operation whose result holds elements of `value`.

    `forward(dims)` returns the part of an operand layout that the operation can keep and the result layout it
    gives; `backward(dims)` returns, for a wanted result layout, the operand layout and the part of the wanted layout it
    gives. `local(ref, before, after)` writes the operation on one piece. `again` says that repeating the operation on a
    smaller operand may replace moving its result; `sends(before)` are the bytes that `local` itself sends; `also` are
    more pairs of layouts to choose from. `why` says what keeps an operation from staying split as its operand is.
    """
    result = op.results[0]
    state = ctx.state(value)
    if state.make is not None:

        def make(dims: Dims) -> Ref:
            before, after = backward(dims)
            ref = local(ctx.get(value, before), before, after)
            return ctx.reshard(result.type.shape, ref, after, dims)

        ctx.bind_lazy(result, make)
        return
    if is_linear and linear.deferred(ctx, value):
        have = state.partial.dims
        before, after = forward(have)
        if before == have:
            linear.apply(ctx, op, value, after, lambda ref: local(ref, before, after))
            return
    want = ctx.want(result)
    candidates = [backward(want), forward(state.dims)]
    candidates += [forward(d) for d in list(state.versions)[1:]]
    candidates += also
    shape, bits = result.type.shape, ctx.bits(result)
    own = any(sends(before) for before, _ in candidates)
    if not own and candidates[0][0] in state.versions and candidates[0][1] == want:
        best = candidates[0]
    elif not own and candidates[1][0] == state.dims and not state.pending and result.type.size == value.type.size:
        best = candidates[1]  # a change of names only: the result can be moved where its consumer wants it
    else:
        per_element, least = 2 * bits * ctx.redundancy, math.inf
        best, *others = dict.fromkeys(candidates)
        for before, after in (best, *others) if others else ():
            cost = ctx.move_cost(value, before) + sends(before) + ctx.elements(shape, after) * per_element
            if cost < least:  # else its users need not be asked
                cost += ctx.later_cost(result, after)
                if cost < least:
                    best, least = (before, after), cost
    before, after = best
    lost = [d for d, (a, b) in enumerate(zip(state.dims, candidates[1][0])) if a != b]
    ctx.bind(result, after, local(ctx.gathered(value, before, why, lost), before, after))
    if again:

        def layouts(dims: Dims) -> tuple[Dims, ...] | None:
            before, after = backward(dims)
            return (before,) if after == dims else None

        def work(refs: list[Ref], dims: Dims) -> Ref:
            return local(refs[0], backward(dims)[0], dims)

        recompute.note(ctx, op, (value,), layouts, work)
