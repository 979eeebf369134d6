"""One halo exchange for many slices of one tensor that are shifted by a few positions (stencils).

u[1:-1, 1:-1], u[2:, 1:-1], u[2:, 2:], ... of u split along both dimensions: the widest halo of all slices is fetched
once, first along one dimension and then, with what arrived, along the other (so that corners need no messages of their
own), and every slice is a local slice of piece and halo.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from propagation.attributes import integers
from propagation.program import Op, Value

from ..heuristics import SEPARATE_HALOS
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context
from ..layouts.state import Span, View
from .exchange import joined_windows, traffic, windows
from .lazy_views import leave

__all__ = ["slice_of", "window_of"]

_MOVING = {"stablehlo.slice", "stablehlo.concatenate"}  # these take what they need from the operand of a lazy slice


@dataclass(slots=True, eq=False)
class _SharedHalo:
    """A halo that slices `users` of `value`, laid out as `dims`, are cut out of.

    view    the lazy view that the value is, if it is one
    spans   by split dimension the positions of the value in what is fetched
    lows    by split dimension the first position of a piece's window, relative to the piece; `highs` the same for the
            last one, relative to the piece's end
    pieces  by split dimension the number of positions of each slice
    origins by slice and split dimension the position of a tensor as large at which the slice's first one had better lie
    """

    value: Value
    dims: Dims
    view: View | None
    spans: dict[int, Span]
    lows: dict[int, int]
    highs: dict[int, int]
    pieces: dict[int, int]
    origins: dict[Op, dict[int, int]]

    def fetch(self, ctx: Context) -> LocalValue:
        """The piece with its halo, which is fetched when somebody asks for the first time."""
        outer, ctx.region = ctx.region, ctx.within(ctx.state(self.value).home)
        try:
            ref: LocalValue | None = ctx.region.known.get(self)
            if ref is None:
                ref = ctx.region.known[self] = self._fetched(ctx)
            return ref
        finally:
            ctx.region = outer

    def _fetched(self, ctx: Context) -> LocalValue:
        view, dims = self.view, self.dims
        ref = ctx.get(self.value, dims) if view is None else view.base
        scalar = None if view is None else view.scalar
        fill = ctx.realiser.zero(ctx.region, (), ref.dtype) if scalar is None else scalar
        along, joined = (None, None) if view is None or view.joined is None else (view.dim, view.joined)
        for d in sorted(self.lows, key=lambda d: d != along):
            low, high, piece = self.lows[d], self.highs[d], self.pieces[d]
            starts = [c * piece + low for c in range(ctx.atoms.product(dims[d]))]
            if joined is not None and d == along:
                starts = [s - self.spans[d].start for s in starts]
                ref = joined_windows(ctx, d, dims[d], joined, starts, piece + high - low, fill)
            elif low or high:
                ref = windows(ctx, d, dims[d], ref, self.spans[d].size, starts, piece + high - low, fill)
        return ref if view is None or view.local is None else view.local(ref)


def slice_of(
    ctx: Context, op: Op, dims: Dims, changed: list[int], within: Callable[[LocalValue, int], LocalValue],
    origin: Callable[[Op], dict[int, int]],
) -> Callable[[], None] | None:  # fmt: skip
    """What binds a slice to a local slice of the halo that it shares with others; None if it shares none. `origin` says
    of a slice by split dimension where its first position had better lie, 0 where it does not."""
    value = op.operands[0]
    state = ctx.state(value)
    key = ("halo", state, dims)
    known = ctx.within(state.home).known
    if key not in known:
        known[key] = _halo(ctx, value, dims, origin)
    halo: _SharedHalo | None = known[key]
    return None if halo is None or op not in halo.origins else functools.partial(_cut, ctx, op, halo, changed, within)


def _cut(
    ctx: Context, op: Op, halo: _SharedHalo, changed: list[int], within: Callable[[LocalValue, int], LocalValue]
) -> None:
    """Binds a slice to its part of a halo."""
    ref, starts, origin = halo.fetch(ctx), integers(op.attrs["start_indices"]), halo.origins[op]
    for d, low in halo.lows.items():
        at = starts[d] - origin.get(d, 0) - (low - halo.spans[d].start)
        ref = ctx.realiser.cut(ctx.region, ref, d, at, at + halo.pieces[d], ctx.loc)
    for d in changed:
        if not halo.dims[d]:
            ref = within(ref, d)
    shape = op.results[0].type.shape
    spans = [Span(d, halo.spans[d].size, start, shape[d]) for d, start in origin.items()]
    leave(ctx, op, ref, spans, halo.dims, None, None, None)


def _halo(
    ctx: Context, value: Value, dims: Dims, origin: Callable[[Op], dict[int, int]]
) -> _SharedHalo | None:  # fmt: skip
    """One halo for all slices of `value`; None unless that sends less than a halo for each (or as much, for more than
    `SEPARATE_HALOS` slices)."""
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
    origins = {op: origin(op) for op in users}
    offsets = {
        tuple([starts[d] + spans[d].start - origins[op].get(d, 0) for d in split])
        for op in users for starts in [integers(op.attrs["start_indices"])]
    }  # fmt: skip
    if len(offsets) < 2:
        return None
    lows, highs = ([limit(o[k] for o in offsets) for k in range(len(split))] for limit in (min, max))
    if any(max(0, -low) + max(0, high) > pieces[d] for d, low, high in zip(split, lows, highs)):
        return None
    at_once = sum((max(0, -low) + max(0, high)) / pieces[d] for d, low, high in zip(split, lows, highs))
    prefixes = [{o[: k + 1] for o in offsets} for k in range(len(split))]
    apart = sum(abs(prefix[-1]) / pieces[d] for d, found in zip(split, prefixes) for prefix in found)
    if at_once > apart or (at_once == apart and len(users) <= SEPARATE_HALOS):
        return None
    along = dict(zip(split, lows)), dict(zip(split, highs))
    return _SharedHalo(value, dims, view, spans, *along, pieces, origins)


def _is_shift(ctx: Context, op: Op, dims: Dims, pieces: dict[int, int]) -> bool:
    """Whether the pieces of a slice are as large as those of its operand, so that it only shifts them."""
    result, strides = op.results[0].type.shape, integers(op.attrs["strides"])
    return all(strides[d] == 1 and -(-result[d] // ctx.atoms.product(dims[d])) == n for d, n in pieces.items())


@dataclass(slots=True, eq=False)
class _Window:
    """A window of positions that slices of equal sizes share: by split dimension, that of device c begins at `lows` + c
    times a slice's piece and is `more` longer than a piece. The region knows it once somebody asked for a slice."""

    lows: tuple[int, ...]
    more: tuple[int, ...]


def window_of(
    ctx: Context, op: Op, base: LocalValue, dims: Dims, spans: Sequence[Span], fill: LocalValue | None
) -> LocalValue | None:  # fmt: skip
    """A slice's piece, cut along split dimensions out of a window that it shares with slices of the same sizes; None if
    it shares none. Smaller than the operand, such slices have other borders between pieces than it has, each a little
    further than another's: their pieces overlap, and one window for all sends less than each piece by itself.

    `base` is laid out as `dims`; `spans` are its positions that the sliced value has along each split dimension.
    """
    known = ctx.region.known
    key = ("windows", base, dims, _sizes(op, spans), ctx.want(op.results[0]))
    if key not in known:
        known[key] = _shared(ctx, op, base, dims, spans)
    window = known[key].get(op)
    if window is None:
        return None
    pieces = _pieces(ctx, op, dims, spans)
    ref: LocalValue | None = known.get(window)
    if ref is None:
        ref = base
        for span, piece, low, more in zip(spans, pieces, window.lows, window.more):
            starts, counts = _reach(op, span, piece, low, more, ctx.atoms.product(dims[span.dim]))
            if low or more or piece != base.shape[span.dim]:
                scalar = ctx.realiser.zero(ctx.region, (), base.dtype) if fill is None else fill
                ref = windows(ctx, span.dim, dims[span.dim], ref, span.size, starts, piece + more, scalar, counts)
        known[window] = ref
    for span, piece, offset, low in zip(spans, pieces, _offsets(op, spans), window.lows):
        ref = ctx.realiser.cut(ctx.region, ref, span.dim, offset - low, offset - low + piece, ctx.loc)
    return ref


def _shared(ctx: Context, op: Op, base: LocalValue, dims: Dims, spans: Sequence[Span]) -> dict[Op, _Window]:
    """The windows of all slices of the same operand and sizes as `op`, where sharing sends less (or as much, for more
    than `SEPARATE_HALOS` slices). Slices far from each other have windows of their own: none is longer than a piece of
    a slice and a piece of `base` together."""
    want, sizes = ctx.want(op.results[0]), _sizes(op, spans)
    offsets = {
        other: _offsets(other, spans)
        for other in dict.fromkeys(use.op for use in op.operands[0].uses)
        if other.name == op.name and other.parent is op.parent and _sizes(other, spans) == sizes
        and ctx.want(other.results[0]) == want and all(integers(other.attrs["strides"])[s.dim] == 1 for s in spans)
        and not any(use.op.name in _MOVING for use in other.results[0].uses)
    }  # fmt: skip
    if op not in offsets:
        return {}
    first = [min(o[k] for o in offsets.values()) for k in range(len(spans))]
    near: dict[tuple[int, ...], list[Op]] = {}
    for other, found in offsets.items():
        place = tuple([(o - low) // (base.shape[s.dim] + 1) for o, low, s in zip(found, first, spans)])
        near.setdefault(place, []).append(other)
    out: dict[Op, _Window] = {}
    for members in near.values():
        apart = {offsets[m] for m in members}
        if len(apart) < 2:
            continue
        lows = tuple([min(o[k] for o in apart) for k in range(len(spans))])
        more = tuple([max(o[k] for o in apart) - low for k, low in enumerate(lows)])
        none = (0,) * len(spans)
        each = _most(_sent(ctx, op, base, dims, spans, o, none) for o in apart)
        once = _most([_sent(ctx, op, base, dims, spans, lows, more)])
        if each and (once < each or (once == each and len(apart) > SEPARATE_HALOS)):
            out.update(dict.fromkeys(members, _Window(lows, more)))
    return out


def _most(moves: Iterable[list[np.ndarray]]) -> int:
    """The most elements that one device sends in all `moves`; each is a list with an array per dimension."""
    return sum(int(np.sum(along, axis=0).max()) for along in zip(*moves))


def _sent(
    ctx: Context, op: Op, base: LocalValue, dims: Dims, spans: Sequence[Span], lows: Sequence[int], more: Sequence[int]
) -> list[np.ndarray]:
    """Elements that each device sends for a window: per dimension, by coordinate along it."""
    shape, sent = list(base.shape), []
    for span, piece, low, further in zip(spans, _pieces(ctx, op, dims, spans), lows, more):
        starts, counts = _reach(op, span, piece, low, further, ctx.atoms.product(dims[span.dim]))
        have, shape[span.dim] = shape[span.dim], 1
        sent.append(math.prod(shape) * traffic(starts, counts, span.size, have))
        shape[span.dim] = piece + further
    return sent


def _reach(op: Op, span: Span, piece: int, low: int, more: int, p: int) -> tuple[list[int], list[int]]:
    """(starts, counts) of the positions that each of `p` devices needs of a window. The last pieces of a slice that
    does not divide are shorter."""
    size = op.results[0].type.shape[span.dim]
    held = [max(0, min(piece, size - c * piece)) for c in range(p)]
    return [c * piece + low for c in range(p)], [n + more if n else 0 for n in held]


def _offsets(op: Op, spans: Sequence[Span]) -> tuple[int, ...]:
    """The position of the base at which a slice begins, by split dimension."""
    starts = integers(op.attrs["start_indices"])
    return tuple([starts[s.dim] + s.start for s in spans])


def _sizes(op: Op, spans: Sequence[Span]) -> tuple[int, ...]:
    return tuple([op.results[0].type.shape[s.dim] for s in spans])


def _pieces(ctx: Context, op: Op, dims: Dims, spans: Sequence[Span]) -> list[int]:
    return [-(-n // ctx.atoms.product(dims[s.dim])) for n, s in zip(_sizes(op, spans), spans)]
