"""Many slices of one tensor that differ by a few positions: each device fetches the borders that all of them need once,
and cuts every slice out of what it then has. A stencil over diagonal neighbours would else send its corners again for
every neighbour, and hold a shifted copy for each.
"""

from __future__ import annotations

from typing import NamedTuple

from propagation.attributes import integers
from propagation.program import Op, Value

from ..emit import Ref
from ..layout import Dims
from .context import Context
from .intervals import joined_windows, windows
from .state import Span

__all__ = ["slice_of"]

FEW = 5  # slices that may as well be moved one by one


class _Halo(NamedTuple):
    """A piece with borders. `firsts` is, by split dimension, the position of the sliced value at which the first
    device's begins; `pieces` how many positions each slice has there."""

    ref: Ref
    firsts: dict[int, int]
    pieces: dict[int, int]
    users: frozenset[Op]


def slice_of(ctx: Context, op: Op, dims: Dims, changed: list[int], within) -> bool:
    """Binds a slice to a part of the borders that it shares with others; False if there are none."""
    value = op.operands[0]
    state = ctx.state(value)
    key = ("halo", state, dims)
    known = state.home.known
    if key not in known:
        known[key] = _fetched(ctx, value, dims)
    halo: _Halo | None = known[key]
    if halo is None or op not in halo.users:
        return False
    ref, starts = halo.ref, integers(op.attrs["start_indices"])
    for d, first in halo.firsts.items():
        at = starts[d] - first
        ref = ctx.realiser.cut(ctx.region, ref, d, at, at + halo.pieces[d], ctx.loc)
    for d in changed:
        if not dims[d]:
            ref = within(ref, d)
    ctx.bind(op.results[0], dims, ref)
    return True


def _fetched(ctx: Context, value: Value, dims: Dims) -> _Halo | None:
    """The borders for the slices of `value`, if fetching them at once sends less, or no more for many slices."""
    slices = [use.op for use in value.uses if use.op.name == "stablehlo.slice" and ctx.want(use.op.results[0]) == dims]
    split = [d for d, atoms in enumerate(dims) if atoms]
    if len(slices) < 2 or not split:
        return None
    view, shape = ctx.views(value, dims), value.type.shape
    spans = {d: Span(d, shape[d], 0, shape[d]) for d in split}
    if view is not None and view.joined is not None:
        _, sizes, runs = view.joined
        most = max(runs, key=lambda run: run.length)
        spans[view.dim] = Span(view.dim, sizes[most.operand], most.start - most.to, view.length)
        if any(run.stride != 1 for run in runs):
            return None
    elif view is not None:
        spans.update({span.dim: span for span in view.spans})
    pieces = {d: -(-spans[d].size // ctx.atoms.product(dims[d])) for d in split}
    users = [op for op in slices if _is_shift(ctx, op, dims, pieces)]
    offsets = {tuple(integers(op.attrs["start_indices"])[d] + spans[d].start for d in split) for op in users}
    if len(offsets) < 2:
        return None
    lows, highs = ([limit(o[k] for o in offsets) for k in range(len(split))] for limit in (min, max))
    if any(max(0, -low) + max(0, high) > pieces[d] for d, low, high in zip(split, lows, highs)):
        return None
    at_once = sum((max(0, -low) + max(0, high)) / pieces[d] for d, low, high in zip(split, lows, highs))
    prefixes = [{o[: k + 1] for o in offsets} for k in range(len(split))]
    apart = sum(abs(prefix[-1]) / pieces[d] for d, found in zip(split, prefixes) for prefix in found)
    if at_once > apart or (at_once == apart and len(users) <= FEW):
        return None
    outer, ctx.region = ctx.region, ctx.state(value).home
    try:
        ref = ctx.get(value, dims) if view is None else view.base
        scalar = None if view is None else view.scalar
        fill = ctx.realiser.zero(ctx.region, (), ref.dtype) if scalar is None else scalar
        joined = None if view is None or view.joined is None else view.dim
        for d, low, high in sorted(zip(split, lows, highs), key=lambda item: item[0] != joined):
            starts = [c * pieces[d] + low for c in range(ctx.atoms.product(dims[d]))]
            if d == joined:
                starts = [s - spans[d].start for s in starts]
                ref = joined_windows(ctx, d, dims[d], view.joined, starts, pieces[d] + high - low, fill)
            elif low or high:
                ref = windows(ctx, d, dims[d], ref, spans[d].size, starts, pieces[d] + high - low, fill)
        if view is not None and view.local is not None:
            ref = view.local(ref)
    finally:
        ctx.region = outer
    firsts = {d: low - spans[d].start for d, low in zip(split, lows)}
    return _Halo(ref, firsts, pieces, frozenset(users))


def _is_shift(ctx: Context, op: Op, dims: Dims, pieces: dict[int, int]) -> bool:
    """Whether pieces of a slice are as large as those of what it is taken from."""
    result, strides = op.results[0].type.shape, integers(op.attrs["strides"])
    return all(strides[d] == 1 and -(-result[d] // ctx.atoms.product(dims[d])) == n for d, n in pieces.items())
