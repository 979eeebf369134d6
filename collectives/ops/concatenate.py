"""Concatenations: local along a whole dimension, interval moves from all operands along a split one."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from propagation.attributes import integer
from propagation.program import Op, Value

from ..decide.candidate import Candidate, Sent
from ..halo.lazy_views import join
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context
from ..layouts.state import Run
from ..partial_sums import deferred_reduction
from .batch import moved_away, rule_ahead

__all__: list[str] = []


def concatenate(ctx: Context, op: Op) -> Iterator[Candidate]:
    """Along a whole dimension local; along a split one, interval moves from all operands."""
    result = op.results[0]
    d = integer(op.attrs["dimension"])
    shape, count = result.type.shape, len(op.operands)
    bound = [v for v in op.operands if ctx.state(v).make is None]
    if not bound:

        def make(dims: Dims) -> LocalValue:
            kept = _without(dims, d)
            return ctx.reshard(shape, _concatenated(ctx, op, kept, d), kept, dims)

        yield Candidate((None,) * count, (None,), lambda: ctx.bind_lazy(result, make))
        return
    summed = _sums(ctx, op, d)
    if summed is not None:
        yield summed
        return
    itemsize = ctx.itemsize(result)
    layouts = [ctx.want(result), *[ctx.state(v).layout for v in bound]]
    ways = [x for layout in layouts for x in (layout, _without(layout, d))]
    ways += [x for layout in layouts for x in moved_away(ctx, shape, layout, (d,))]
    for dims in dict.fromkeys(ways):
        size = itemsize * ctx.elements(shape, dims)
        sent: tuple[Sent, ...] = ()
        if dims[d] and (moved := _moved(ctx, op, dims, d)):  # at most one piece of the result, along the dimension
            sent = (Sent("collective_permute", dims[d], size * moved),)
        write = functools.partial(_write, ctx, op, dims, d)
        yield Candidate((dims,) * count, (dims,), write, sent=sent, work=2 * size * ctx.redundancy)


def _write(ctx: Context, op: Op, best: Dims, d: int) -> None:
    """Writes the concatenation in a layout."""
    if not best[d]:
        ctx.bind(op.results[0], best, _concatenated(ctx, op, best, d))
        return
    refs, sizes, runs, at = [], [], [], 0
    for v in op.operands:
        ref, size, start = _base(ctx, v, best, d)
        if ref not in refs:
            refs.append(ref)
            sizes.append(size)
        runs.append(Run(refs.index(ref), start, at, v.type.shape[d]))
        at += v.type.shape[d]
    join(ctx, op, best, d, (refs, sizes, runs))


def _sums(ctx: Context, op: Op, d: int) -> Candidate | None:
    """The way in which unreduced sums are joined part by part, so that they are reduced as one; None if operands are
    reduced first."""
    sums = [deferred_reduction.deferred(ctx, v) for v in op.operands]
    first = sums[0]
    if first is None or first.dims[d]:
        return None
    alike = lambda p: p is not None and (p.dims, set(p.parts), p.chosen) == (first.dims, set(first.parts), first.chosen)
    if not all(map(alike, sums)):
        return None

    def write() -> None:
        shape = ctx.piece_shape(op.results[0], first.dims)
        attrs = ctx.attributes_of(op)
        parts = {}
        for atoms in first.parts:
            refs = [p.parts[atoms] for p in sums if p is not None]
            parts[atoms] = ctx.emit(op.name, refs, shape, refs[0].dtype, extra=attrs)
        masked = any(p.masked for p in sums if p is not None)
        ctx.bind_partial(op.results[0], first.dims, parts, masked=masked, chosen=first.chosen)

    return Candidate((None,) * len(op.operands), (first.dims,), write, tuple(first.parts))


def _base(ctx: Context, value: Value, dims: Dims, d: int) -> tuple[LocalValue, int, int]:
    """(tensor, its size along d, start in it) that `value` is a slice of: itself, or the base of its view."""
    view = ctx.view(value, dims)
    if view is not None and view.dim == d and view.holds(0, view.length):
        return view.base, view.size, view.start
    return ctx.get(value, dims), value.type.shape[d], 0


def _moved(ctx: Context, op: Op, dims: Dims, d: int) -> float:
    """The largest share of its piece of the result that a device receives from others, operands being laid out
    alike."""
    p = ctx.atoms.product(dims[d])
    size = op.results[0].type.shape[d]
    want = -(-size // p)
    kept = [0] * p
    at = 0
    for v in op.operands:
        n = v.type.shape[d]
        view = ctx.state(v).view
        base, first = n, 0
        if view is not None and view.dims == dims and view.dim == d and view.holds(0, view.length):
            base, first = view.size, view.start
        have = -(-base // p)
        for c in range(p):
            low = max(c * want, at, at - first + c * have)
            high = min((c + 1) * want, at + n, at - first + (c + 1) * have)
            kept[c] += max(0, high - low)
        at += n
    return max(max(0, min(want, size - c * want) - k) for c, k in enumerate(kept)) / max(1, want)


def _concatenated(ctx: Context, op: Op, dims: Dims, d: int) -> LocalValue:
    refs = [ctx.get(v, dims) for v in op.operands]
    new = [*refs[0].shape[:d], op.results[0].type.shape[d], *refs[0].shape[d + 1 :]]
    return ctx.emit(op.name, refs, new, refs[0].dtype, extra=ctx.attributes_of(op))


def _without(dims: Dims, d: int) -> Dims:
    return (*dims[:d], (), *dims[d + 1 :])


AHEAD = {"stablehlo.concatenate": rule_ahead}

CANDIDATES = {"stablehlo.concatenate": concatenate}
