"""Recomputing (rematerialising) a value in another layout instead of resharding it.

A dispatch mask of a mixture of experts, a one-hot matrix, a causal mask, a broadcast bias: such a value is large, and
it is computed from small ones by pointwise operations and broadcasts. Where it is wanted in another layout, its sources
are resharded and the operations repeated, if that sends less: one_hot(labels) f32[4096@x, 32000] wanted as [4096,
32000@x] takes an all-gather of 16 KiB of labels instead of an all-to-all of half a gigabyte."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from propagation.program import Op, Value

from ..emit import LocalValue
from ..heuristics import RECOMPUTED_SENT_SHARE, RECOMPUTED_SOURCE_SHARE, RECOMPUTED_STEPS
from ..layout import Dims
from .context import Context
from .state import Recipe, State

__all__ = ["cost", "note", "pays", "write"]


def note(
    ctx: Context,
    op: Op,
    operands: Sequence[Value],
    layouts: Callable[[Dims], tuple[Dims, ...] | None],
    work: Callable[[list[LocalValue], Dims], LocalValue],
) -> None:
    """Remembers how the single result of `op` was computed, if its sources are small enough. `layouts(dims)` are the
    layouts of `operands` for a layout of the result (None if there are none), `work(refs, dims)` writes `op` on them.
    """
    env = ctx.env
    state = env[op.results[0]]
    if state.make is not None or not state.versions or len(state.shape) < 2:
        return
    limit = RECOMPUTED_SOURCE_SHARE * state.bytes
    sources, total = [], 0.0
    for v in operands:
        source = env[v]
        if source.make is None:
            total += source.bytes if source.recipe is None else source.recipe.bytes
            if total > limit or not (source.versions or source.recipe):
                return
        sources.append(source)

    def at_home(refs: list[LocalValue], dims: Dims) -> LocalValue:
        outer, ctx.op = ctx.op, op
        try:
            return work(refs, dims)
        finally:
            ctx.op = outer

    state.recipe = Recipe(tuple(sources), layouts, at_home, total)


def cost(ctx: Context, state: State, dims: Dims, move: float) -> float:
    """Bytes of having `state` in `dims`: `move`, or those of recomputing it, the time of its work included, if less."""
    work = 2 * state.itemsize * ctx.elements(state.shape, dims) * ctx.redundancy
    again = work + _sent(ctx, state, dims, RECOMPUTED_SENT_SHARE * move - work, RECOMPUTED_STEPS)
    return min(move, again)


def pays(ctx: Context, state: State, dims: Dims, move: float) -> bool:
    """Whether to recompute `state` in `dims` rather than send `move` bytes."""
    return _sent(ctx, state, dims, RECOMPUTED_SENT_SHARE * move, RECOMPUTED_STEPS) < RECOMPUTED_SENT_SHARE * move


def _sent(ctx: Context, state: State, dims: Dims, limit: float, depth: int) -> float:
    """Bytes of bringing the sources of `state` to the layouts that recomputing it in `dims` needs, their own
    recomputation considered; infinite if not less than `limit`."""
    total, recipe = 0.0, state.recipe
    if not depth or limit <= 0 or recipe is None:
        return float("inf")
    layouts = recipe.operands(dims)
    if layouts is None:
        return float("inf")
    for source, wanted in zip(recipe.sources, layouts):
        move = ctx.move_bytes(source, wanted)
        if move and source.recipe is not None:
            move = min(move, _sent(ctx, source, wanted, RECOMPUTED_SENT_SHARE * move, depth - 1))
        total += move
        if total >= limit:
            return float("inf")
    return total


def write(ctx: Context, state: State, dims: Dims) -> LocalValue:
    """Recomputes `state` in `dims`, in the current region."""
    recipe = state.recipe
    layouts = None if recipe is None else recipe.operands(dims)
    assert recipe is not None and layouts is not None
    refs = [ctx.get_state(s, wanted) for s, wanted in zip(recipe.sources, layouts)]
    return recipe.write(refs, dims)
