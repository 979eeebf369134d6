"""Making a value once more instead of moving it.

A dispatch mask of a mixture of experts, a one-hot matrix, a causal mask, a broadcast bias: such a value is large, and
what it is made of is small. Where it is wanted in another layout, its sources are moved and the pointwise work between
is repeated, if that sends less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from propagation.program import Op, Value

from ..emit import Ref
from ..layout import Dims
from .context import Context
from .state import Recipe, State

__all__ = ["cost", "note", "pays", "write"]

LIGHT = 1 / 4  # sources at most this part of the value
DEPTH = 24
GAIN = 0.5  # the sources must send at most this part of what moving the value would


def note(
    ctx: Context,
    op: Op,
    operands: Sequence[Value],
    layouts: Callable[[Dims], tuple[Dims, ...] | None],
    work: Callable[[list[Ref], Dims], Ref],
) -> None:
    """Remembers how the single result of `op` was made, if its sources are small enough.

    `layouts(dims)` are the layouts of `operands` for a layout of the result
    (None if they cannot give it), `work(refs, dims)` writes `op` on them.
    """
    env = ctx.env
    state = env[op.results[0]]
    if state.make is not None or not state.versions or len(state.shape) < 2:
        return
    limit = LIGHT * state.bytes
    sources, total = [], 0.0
    for v in operands:
        source = env[v]
        if source.make is None:
            total += source.bytes if source.recipe is None else source.recipe.bytes
            if total > limit or not (source.versions or source.recipe):
                return
        sources.append(source)

    def at_home(refs: list[Ref], dims: Dims) -> Ref:
        outer, ctx.op = ctx.op, op
        try:
            return work(refs, dims)
        finally:
            ctx.op = outer

    state.recipe = Recipe(tuple(sources), layouts, at_home, total)


def cost(ctx: Context, state: State, dims: Dims, move: float) -> float:
    """Bytes that having `state` in `dims` takes: `move`, or less if it is made again, its time included."""
    work = 2 * state.bits * ctx.elements(state.shape, dims) * ctx.redundancy
    again = work + _sent(ctx, state, dims, GAIN * move - work, DEPTH)
    return min(move, again)


def pays(ctx: Context, state: State, dims: Dims, move: float) -> bool:
    """Whether to make `state` again in `dims` rather than send `move` bytes."""
    return _sent(ctx, state, dims, GAIN * move, DEPTH) < GAIN * move


def _sent(ctx: Context, state: State, dims: Dims, limit: float, depth: int) -> float:
    """Bytes that the sources send; infinite if not less than `limit`."""
    total = 0.0
    if not depth or limit <= 0:
        return float("inf")
    layouts = state.recipe.operands(dims)
    if layouts is None:
        return float("inf")
    for source, wanted in zip(state.recipe.sources, layouts):
        move = ctx.move_bytes(source, wanted)
        if move and source.recipe is not None:
            move = min(move, _sent(ctx, source, wanted, GAIN * move, depth - 1))
        total += move
        if total >= limit:
            return float("inf")
    return total


def write(ctx: Context, state: State, dims: Dims) -> Ref:
    """Makes `state` again in `dims`, in the current region."""
    recipe = state.recipe
    refs = [ctx.get_state(s, wanted) for s, wanted in zip(recipe.sources, recipe.operands(dims))]
    return recipe.write(refs, dims)
