"""Recomputing (rematerialising) a value in another layout instead of resharding it.

A dispatch mask of a mixture of experts, a one-hot matrix, a causal mask, a broadcast bias: such a value is large, and
it is computed from small ones by pointwise operations and broadcasts. Where it is wanted in another layout, its sources
are resharded and the operations repeated, if that sends less: one_hot(labels) f32[4096@x, 32000] wanted as [4096,
32000@x] takes an all-gather of 16 KiB of labels instead of an all-to-all of half a gigabyte.

Here values get their recipes; `Costs` says what following one sends, `Context` does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from propagation.program import Op, Value

from ..heuristics import RECOMPUTED_SOURCE_SHARE
from ..ir.program import LocalValue
from ..layout import Dims
from .context import Context
from .state import Recipe

__all__ = ["note"]


def note(
    ctx: Context,
    op: Op,
    operands: Sequence[Value],
    layouts: Callable[[Dims], tuple[Dims, ...] | None],
    work: Callable[[list[LocalValue], Dims], LocalValue],
) -> None:
    """Remembers how the single result of `op` was computed, if its sources are small enough, or one of the same size
    that others use too (a table, and its transpose): where those have gathered it, nothing is sent again.
    `layouts(dims)` are the layouts of `operands` for a layout of the result (None if there are none), `work(refs,
    dims)` writes `op` on them.
    """
    env = ctx.env
    state = env[op.results[0]]
    if state.make is not None or not state.versions or len(state.shape) < 2:
        return
    shared = len(operands) == 1 and env[operands[0]].uses > 1 and env[operands[0]].bytes == state.bytes
    limit = state.bytes if shared else RECOMPUTED_SOURCE_SHARE * state.bytes
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
