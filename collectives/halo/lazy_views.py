"""Lazy views: slices, pads and concatenations along split dimensions are bound as `View`s of what they are cut out of,
and only when somebody asks for the result do elements travel, once and directly to where they end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from propagation.program import Op, Value

from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context
from ..layouts.state import Joined, Run, Span, View
from .exchange import assemble

__all__ = ["join", "leave"]


def leave(
    ctx: Context, op: Op, base: LocalValue, spans: Sequence[Span], dims: Dims, number: float | int | bool | None,
    after: Callable[[LocalValue], LocalValue] | None, scalar: LocalValue | None,
    share: Callable[[], LocalValue | None] | None = None,
) -> None:  # fmt: skip
    """Binds the result to the lazy view of `spans` of `base`. `share()`, if given, cuts it out of a window that it
    shares with other slices, if there is one."""
    spans = [span for span in spans if not span.is_all]
    if not spans:
        ctx.bind(op.results[0], dims, base if after is None else after(base))
        return

    def cut() -> LocalValue:
        x = None if share is None else share()
        if x is not None:
            return x
        x = base
        for d, size, start, length in spans:
            low = max(0, start)
            run = Run(0, low, low - start, min(size, start + length) - low)
            x = assemble(ctx, d, dims[d], [x], [size], length, [run] if run.length > 0 else [], scalar)
        return x if after is None else after(x)

    first, more = spans[0], tuple(spans[1:])
    ctx.bind_view(
        op.results[0],
        View(base, first.size, first.dim, first.start, first.length, dims, cut, number, after, scalar, more),
    )


def join(ctx: Context, op: Op, dims: Dims, d: int, joined: Joined) -> None:
    """Binds the result to the concatenation `joined` along `d`: written at once, or a lazy view if only slices use
    it."""
    result = op.results[0]
    refs, sizes, runs = joined
    length = result.type.shape[d]

    def cut() -> LocalValue:
        return assemble(ctx, d, dims[d], refs, sizes, length, runs, None)

    if len(runs) == 1 and runs[0].stride == 1:
        (run,) = runs
        leave(ctx, op, refs[run.operand], [Span(d, sizes[run.operand], run.start, length)], dims, None, None, None)
    elif _only_sliced(ctx, result):
        ctx.bind_view(result, View(refs[0], sizes[0], d, 0, length, dims, cut, joined=joined))
    else:
        ctx.bind(result, dims, cut())


def _only_sliced(ctx: Context, value: Value) -> bool:
    while len(value.uses) == 1 and value in ctx.returned_as:
        value = ctx.returned_as[value]
    return bool(value.uses) and all(use.op.name == "stablehlo.slice" for use in value.uses)
