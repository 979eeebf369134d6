"""Plumbing for operations that move the elements of one operand (transpose, reshape, broadcast, slice, reverse): they
map layouts of the operand to layouts of the result and back.

A transpose of f32[8, 6] maps ((0,), ()) forward to ((), (0,)). Operand and result need no communication in layouts that
map to each other; which pair is used is decided by what resharding operand and result would send.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence

from propagation.program import Op, Value

from ..decide.candidate import Candidate, Sent
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts import recompute
from ..layouts.context import Context
from ..partial_sums import deferred_reduction

__all__ = ["rearranged"]


def rearranged(
    ctx: Context,
    op: Op,
    value: Value,
    forward: Callable[[Dims], tuple[Dims, Dims]],
    backward: Callable[[Dims], tuple[Dims, Dims]],
    local: Callable[[LocalValue, Dims, Dims], LocalValue],
    is_linear: bool = True,
    again: bool = False,
    sends: Callable[[Dims], tuple[Sent, ...]] | None = None,
    also: Sequence[tuple[Dims, Dims]] = (),
    why: str = "",
) -> Iterator[Candidate]:
    """The ways to do an operation whose result holds elements of `value`. Layouts come as pairs (of operand, of result)
    that need no communication between them.

    forward   of an operand layout: the pair with as much of it as the operation can keep
    backward  of a wanted result layout: the pair with as much of it as the operation can give
    local     (ref, before, after): writes the operation on one piece, between the layouts of a pair
    again     whether repeating the operation on a smaller operand may replace resharding its result (`recompute`)
    sends     what `local` itself sends for an operand layout
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

        yield Candidate((None,), (None,), lambda: ctx.bind_lazy(result, make))
        return
    partial = deferred_reduction.deferred(ctx, value) if is_linear else None
    if partial is not None:
        before, after = forward(partial.dims)
        if before == partial.dims:
            part = lambda ref: local(ref, before, after)
            yield deferred_reduction.applied(ctx, op, partial, after, part)
            return
    yield from _complete(ctx, op, value, forward, backward, local, again, sends, also, why)


def _complete(
    ctx: Context, op: Op, value: Value, forward: Callable[[Dims], tuple[Dims, Dims]],
    backward: Callable[[Dims], tuple[Dims, Dims]], local: Callable[[LocalValue, Dims, Dims], LocalValue], again: bool,
    sends: Callable[[Dims], tuple[Sent, ...]] | None, also: Sequence[tuple[Dims, Dims]], why: str,
) -> Iterator[Candidate]:  # fmt: skip
    """Those of a value that is complete, or is completed first."""
    result, state = op.results[0], ctx.state(value)

    def written(before: Dims, after: Dims, lost: Sequence[int]) -> None:
        ref = ctx.gathered(value, before, why, lost) if lost else ctx.get(value, before)
        ctx.bind(result, after, local(ref, before, after))
        if again:
            layouts = lambda dims: (backward(dims)[0],) if backward(dims)[1] == dims else None
            recompute.note(ctx, op, (value,), layouts, lambda refs, dims: local(refs[0], backward(dims)[0], dims))

    want = ctx.want(result)
    wanted = backward(want)
    if sends is None and wanted[1] == want and wanted[0] in state.versions:  # most operations are like this
        yield Candidate((wanted[0],), (want,), lambda: written(*wanted, ()))
        return
    have = state.layout
    pairs = [wanted, forward(have)]
    kept = pairs[1][0]
    pairs += [forward(d) for d in list(state.versions)[1:]]
    pairs += also
    lost = [d for d, (a, b) in enumerate(zip(have, kept)) if a != b]
    per_element = 2 * ctx.itemsize(result) * ctx.redundancy
    sent = _nothing if sends is None else sends
    found = _worth_weighing(ctx, value, result, pairs, sent)
    if len(found) == 1:
        ((before, after),) = found
        yield Candidate((before,), (after,), functools.partial(written, before, after, lost))
        return
    for before, after in found:
        work = ctx.elements(result.type.shape, after) * per_element
        write = functools.partial(written, before, after, lost)
        yield Candidate((before,), (after,), write, sent=sent(before), work=work)


def _nothing(before: Dims) -> tuple[Sent, ...]:
    """Of an operation that sends nothing itself."""
    return ()


def _worth_weighing(
    ctx: Context, value: Value, result: Value, pairs: Sequence[tuple[Dims, Dims]],
    sends: Callable[[Dims], tuple[Sent, ...]],
) -> Collection[tuple[Dims, Dims]]:  # fmt: skip
    """The pairs of layouts to weigh, of which the first is made for the wanted result, the second for what there is of
    the operand: one of these alone where it needs no communication. But where others use the operand, too, they may
    share what is sent for a result that is wanted elsewhere. (If nothing has to be sent for that, as of an operand that
    is whole, whoever wants it so can have it later.)"""
    state = ctx.state(value)
    wanted, kept = pairs[:2]
    if not any(sends(before) for before, _ in pairs):
        if wanted[0] in state.versions and wanted[1] == ctx.want(result):
            return (wanted,)
        if kept[0] == state.layout and not state.pending and result.type.size == value.type.size:
            shared = state.uses > 1 and ctx.holds_for_others and kept[1] != ctx.want(result)
            if not shared or not ctx.cost(value, wanted[0]):
                return (kept,)  # no communication here; a consumer reshards the result if it has to
    return dict.fromkeys(pairs)
