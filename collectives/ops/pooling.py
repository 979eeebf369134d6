"""select_and_scatter, the gradient of max-pooling, by halo exchange in both directions: each device fetches the border
of the operand that its own windows cover, scatters its windows' values into it, and sends what fell onto a neighbour's
piece back there, to be added."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from propagation.attributes import integers, pairs
from propagation.program import Block, Op

from ..analysis.constants import scalar_constant
from ..analysis.reducers import identity_literal, is_identity, reduction_kind
from ..decide.factors import PASS, WHOLE, Choice, Factors, Splits
from ..halo.exchange import fold, windows
from ..ir.attributes import Pairs
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context
from ..layouts.state import View
from .batch import split

_WHY = "a window moves over this dimension"


def select_and_scatter(ctx: Context, op: Op) -> Iterator[Splits]:
    """operand[n...], source[one element per window] -> [n...]. Dimensions with a trivial window pass through. Along
    others each device fetches the halo under its own windows, which is the one that the forward pooling fetched."""
    operand, source = op.operands[0].type.shape, op.operands[1].type.shape
    w = _Windows(op, len(operand))
    every = tuple(range(len(operand)))
    byte = 4 * ctx.itemsize(op.results[0]) * ctx.redundancy
    write = functools.partial(_write, ctx, op)
    factors = Factors(source, (PASS,) * len(every), (every, every, ()), (every,))
    splits = Splits(factors, op.operands, op.results, byte, write)
    choice, _ = splits.best(ctx)
    if _moving(op, choice.operands[0]) and not _may_move(op):
        kinds = tuple(PASS if w.trivial(d, operand[d], source[d]) else WHOLE for d in every)
        known = tuple(d if kinds[d] == PASS else -1 for d in every)
        yield split(ctx, op, Factors(operand, kinds, (known, known, ()), (known,)), _WHY)
    else:
        yield splits


def _moving(op: Op, dims: Dims) -> list[int]:
    """The split dimensions that a window moves over."""
    operand, source = op.operands[0].type.shape, op.operands[1].type.shape
    w = _Windows(op, len(operand))
    return [d for d, atoms in enumerate(dims) if atoms and not w.trivial(d, operand[d], source[d])]


def _may_move(op: Op) -> bool:
    """Whether windows may move over split dimensions: there is an element that is never selected, to fill what lies
    beyond the tensor with, and what falls onto a neighbour's piece can be added there."""
    worst = _never_chosen(op.regions[0])
    fill = identity_literal(worst, op.results[0].type.dtype) if worst else None
    return fill is not None and reduction_kind(op.regions[1]) == "add" and scalar_constant(op.operands[2]) == 0


def _write(ctx: Context, op: Op, choice: Choice) -> None:
    dims = choice.operands[0]
    w, moving = _Windows(op, len(dims)), _moving(op, dims)
    worst = _never_chosen(op.regions[0])
    fill = identity_literal(worst, op.results[0].type.dtype) if worst else None
    view = ctx.view(op.operands[0], dims) if moving else None
    neutral = view is not None and worst is not None and is_identity(worst, view.base.dtype, view.fill)
    cut = lambda: _scatter(ctx, op, w, dims, moving, fill, None)
    if view is None or view.dim not in moving or not view.covers or not neutral:
        ctx.bind(op.results[0], dims, cut())
        return
    base = _scatter(ctx, op, w, dims, moving, fill, view)
    ctx.bind_view(op.results[0], View(base, view.size, view.dim, view.start, view.length, dims, cut))


class _Windows:
    """The windows of an operation, per dimension: taps, step and padding."""

    def __init__(self, op: Op, rank: int):
        def numbers(name: str) -> tuple[int, ...]:
            return integers(op.attrs[name]) if name in op.attrs else (1,) * rank

        self.taps, self.step = numbers("window_dimensions"), numbers("window_strides")
        self.padding = pairs(op.attrs["padding"]) if "padding" in op.attrs else ((0, 0),) * rank

    def trivial(self, d: int, size: int, out: int) -> bool:
        return self.taps[d] == self.step[d] == 1 and tuple(self.padding[d]) == (0, 0) and size == out


def _scatter(
    ctx: Context, op: Op, w: _Windows, dims: Dims, moving: list[int], fill: str | None, view: View | None
) -> LocalValue:
    """This device's piece of the result, at the positions of the operand; if the operand is the lazy pad `view`, at
    those of its base."""
    value, source = op.operands[0], op.operands[1]
    x = ctx.get(value, dims) if view is None else view.base
    updates = ctx.masked(ctx.get(source, dims), source.type.shape, dims, moving)
    sizes, firsts, counts = {}, {}, {}
    for d in sorted(moving, key=lambda d: view is None or d != view.dim):
        here = view if view is not None and view.dim == d else None
        sizes[d] = value.type.shape[d] if here is None else here.size
        count, p = updates.shape[d], ctx.atoms.product(dims[d])
        first = -w.padding[d][0] + (0 if here is None else here.start)
        firsts[d] = tuple(first + c * count * w.step[d] for c in range(p))
        length = (count - 1) * w.step[d] + w.taps[d]
        left = [min(count, source.type.shape[d] - c * count) for c in range(p)]
        counts[d] = [(n - 1) * w.step[d] + w.taps[d] if n > 0 else 0 for n in left]
        assert fill is not None  # else windows do not move over split dimensions
        worst = ctx.realiser.constant(ctx.region, (), x.dtype, fill)
        x = windows(ctx, d, dims[d], x, sizes[d], firsts[d], length, worst, counts[d])
        if here is not None and here.local is not None:
            x = here.local(x)
    padding = Pairs(tuple([(0, 0) if d in moving else w.padding[d] for d in range(len(dims))]))
    attrs = ctx.attributes_of(op).without("padding").also({"padding": padding})
    out = ctx.local_copy(op, [x, updates, ctx.get(op.operands[2], ())], [x.shape], attrs)[0]
    for d in reversed(moving):
        out = fold(ctx, d, dims[d], out, sizes[d], firsts[d], counts[d])
    return out


def _never_chosen(block: Block) -> str | None:
    """The reduction ("max", "min") whose neutral element a selection never prefers; None for an unknown selection."""
    if len(block.ops) != 2 or block.ops[0].name != "stablehlo.compare":
        return None
    compare = block.ops[0]
    if list(compare.operands) != list(block.args) or list(block.terminator.operands) != list(compare.results):
        return None
    direction = str(compare.attrs["comparison_direction"])
    if "GE" in direction or "GT" in direction:
        return "max"
    return "min" if "LE" in direction or "LT" in direction else None


CANDIDATES = {"stablehlo.select_and_scatter": select_and_scatter}
