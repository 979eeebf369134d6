"""dynamic_slice and dynamic_update_slice along split dimensions, by masked local work.

x[i : i + 2] of f32[1024] over 8 devices, i known at run time only: each device takes what it holds of the two elements,
zeros elsewhere, and the sum over devices (two elements, not x) is the slice. An update is written by each device as far
as it falls into its piece, without any communication.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

from propagation.attributes import integers
from propagation.program import Op, Value

from ..decide.candidate import Candidate
from ..decide.factors import PASS, REDUCE, Choice, Factors, Splits
from ..ir.operations import attributes
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context
from ..layouts.state import Partial
from ..lookup import indices, masked_lookup
from ..partial_sums import deferred_reduction
from .batch import rule_ahead, window_ahead
from .reshape import carried


@functools.lru_cache(maxsize=4096)
def _window_factors(shape: tuple[int, ...], window: tuple[int, ...]) -> Factors:
    """The factors of a dynamic_slice: dimensions taken whole pass through, sliced ones leave a partial sum."""
    kinds = tuple(PASS if n == m else REDUCE for n, m in zip(shape, window))
    every = tuple(range(len(shape)))
    out = tuple(i if n == m else -1 for i, (n, m) in enumerate(zip(shape, window)))
    return Factors(shape, kinds, (every,), (out,))


def dynamic_slice(ctx: Context, op: Op) -> Iterator[Candidate | Splits]:
    """A slice at a start known at run time. On a split dimension each device contributes the part that it holds, or the
    dimension is gathered, which may cost no more, and serve other users."""
    value, starts, result = op.operands[0], op.operands[1:], op.results[0]
    shape, window = value.type.shape, result.type.shape
    whole_starts = (None,) * len(starts)
    uncut = lambda dims: tuple([d if n == m else () for d, n, m in zip(dims, shape, window)])

    def write(dims: Dims, out: Dims, pending: tuple[int, ...]) -> None:
        masked_lookup.bind(ctx, result, out, pending, _slice_piece(ctx, op, ctx.get(value, dims), dims, starts))

    if ctx.state(value).make is not None:
        dims = uncut(ctx.want(result))
        yield Candidate((dims, *whole_starts), (dims,), lambda: write(dims, dims, ()))
        return
    partial = deferred_reduction.deferred(ctx, value)
    if partial is not None and uncut(partial.dims) == partial.dims:
        held = partial.dims
        yield deferred_reduction.applied(ctx, op, partial, held, lambda ref: _slice_piece(ctx, op, ref, held, starts))
        return
    byte = 2 * ctx.itemsize(result) * ctx.redundancy * math.prod(window) / max(1, math.prod(shape))  # what is read
    split = lambda choice: write(choice.operands[0], choice.results[0], choice.pending)
    splits = Splits(_window_factors(shape, window), (value,), (result,), byte, split)
    choice, _ = splits.best(ctx)
    if choice.pending:
        kept = uncut(choice.operands[0])
        yield Candidate((kept, *whole_starts), (kept,), lambda: write(kept, kept, ()))
    yield splits


def _slice_piece(ctx: Context, op: Op, ref: LocalValue, dims: Dims, starts: Sequence[Value]) -> LocalValue:
    shape, window = op.operands[0].type.shape, op.results[0].type.shape
    positions, sizes = [], []
    for d, (n, m) in enumerate(zip(shape, window)):
        if n == m:
            positions.append(ctx.realiser.index(ctx.region, 0))
            sizes.append(ref.shape[d])
            continue
        sizes.append(m)
        if not dims[d]:
            # Users may slice the result further where it has more than one position: see `_is_cut`.
            inside = m > 1 or _is_cut(ref)
            positions.append(_relative(ctx, starts[d], n - m, (), n) if inside else ctx.get(starts[d], ()))
            continue
        piece = ref.shape[d]
        ref = ctx.masked(ref, shape, dims, [d])
        ref = ctx.realiser.pad(ctx.region, ref, d, m, m, loc=ctx.loc)
        at = _relative(ctx, starts[d], n - m, dims[d], piece)
        at = _add(ctx, at, m)
        positions.append(_clamp(ctx, at, 0, piece + m))
    positions = _one_type(ctx, positions, shape, window)
    return ctx.emit(op.name, (ref, *positions), sizes, ref.dtype, attributes("stablehlo.dynamic_slice", tuple(sizes)))


def _is_cut(ref: LocalValue) -> bool:
    """Whether `ref` is a dynamic slice itself. XLA merges two into one without clamping the second start, so that
    start has to be in bounds."""
    item = ref.item
    while item is not None and item.name in ("stablehlo.reshape", "stablehlo.transpose", "stablehlo.convert"):
        item = item.operands[0].item
    return item is not None and item.name == "stablehlo.dynamic_slice"


def _relative(ctx: Context, start: Value, last: int, atoms: Sequence[int], piece: int) -> LocalValue:
    """A start index clamped to [0, last], relative to this device's piece (i32)."""
    at = indices.start(ctx, ctx.get(start, ()), last)
    if not atoms:
        return at
    return ctx.emit("stablehlo.subtract", (at, ctx.realiser.offset(ctx.region, atoms, piece)), (), "i32")


def _add(ctx: Context, x: LocalValue, n: int) -> LocalValue:
    return ctx.emit("stablehlo.add", (x, ctx.realiser.index(ctx.region, n)), (), "i32")


def _clamp(ctx: Context, x: LocalValue, low: int, high: int) -> LocalValue:
    bounds = [ctx.realiser.index(ctx.region, n) for n in (low, high)]
    return ctx.emit("stablehlo.clamp", (bounds[0], x, bounds[1]), (), "i32")


def _one_type(
    ctx: Context, refs: list[LocalValue], shape: tuple[int, ...], window: tuple[int, ...]
) -> list[LocalValue]:
    """Start indices must share one element type."""
    if len({r.dtype for r in refs}) <= 1:
        return refs
    return [r if r.dtype == "i32" else indices.start(ctx, r, n - m) for r, n, m in zip(refs, shape, window)]


@functools.lru_cache(maxsize=4096)
def _update_factors(shape: tuple[int, ...], window: tuple[int, ...]) -> Factors:
    sizes, kinds, whole, part = list(shape), [PASS] * len(shape), list(range(len(shape))), []
    for i, (n, m) in enumerate(zip(shape, window)):
        if n == m:
            part.append(i)
        else:  # the update's dimension is another one, and whole
            part.append(-1)
    return Factors(tuple(sizes), tuple(kinds), (tuple(whole), tuple(part)), (tuple(whole),))


def dynamic_update_slice(ctx: Context, op: Op) -> Iterator[Candidate | Splits]:
    """Writes a window at a start known at run time. Where the dimension is split, each device writes the part that
    falls into its piece."""
    value, update, result = op.operands[0], op.operands[1], op.results[0]
    if ctx.state(value).make is not None and ctx.state(update).make is not None:
        dims = ctx.want(result)
        yield Candidate((None,) * len(op.operands), (dims,), lambda: _update(ctx, op, dims))
        return

    stacked = _both_unreduced(ctx, value, update)
    if stacked is not None:
        write = lambda: _update_parts(ctx, op, *stacked)
        yield Candidate((None,) * len(op.operands), (stacked[0].dims,), write, tuple(stacked[0].parts))
        return

    def write_split(choice: Choice) -> None:
        _hint(ctx, value, update, choice.operands[0])
        _update(ctx, op, choice.operands[0])

    factors = _update_factors(value.type.shape, update.type.shape)
    yield Splits(factors, (value, update), (result,), 2 * ctx.itemsize(result) * ctx.redundancy, write_split)


def _both_unreduced(ctx: Context, value: Value, update: Value) -> tuple[Partial, Partial] | None:
    """A value and an update of it as unreduced sums of the same devices: each writes its addend of the one into its
    addend of the other. None if they are none, or the update is not whole where it is written."""
    base, part = deferred_reduction.deferred(ctx, value), deferred_reduction.deferred(ctx, update)
    if base is None or part is None or len(base.parts) != 1 or set(base.parts) != set(part.parts) or part.chosen:
        return None
    dims = zip(base.dims, part.dims, value.type.shape, update.type.shape)
    return (base, part) if all(b == p if n == m else not b and not p for b, p, n, m in dims) else None


def _update_parts(ctx: Context, op: Op, base: Partial, part: Partial) -> None:
    ((atoms, whole),) = base.parts.items()
    shape, window = op.operands[0].type.shape, op.operands[1].type.shape
    index = lambda d, n, m: ctx.realiser.index(ctx.region, 0) if n == m else ctx.get(op.operands[2 + d], ())
    positions = _one_type(ctx, [index(d, n, m) for d, (n, m) in enumerate(zip(shape, window))], shape, window)
    ref = ctx.emit(op.name, (whole, part.parts[atoms], *positions), whole.shape, whole.dtype)
    ctx.bind_partial(op.results[0], base.dims, {atoms: ref}, masked=base.masked or part.masked)


def _update(ctx: Context, op: Op, dims: Dims) -> None:
    """Writes an update of a value laid out as `dims`, which its result is, too."""
    value, update, starts, result = op.operands[0], op.operands[1], op.operands[2:], op.results[0]
    shape, window = value.type.shape, update.type.shape
    inner = tuple(d if n == m else () for d, n, m in zip(dims, shape, window))
    cut = [d for d, (n, m) in enumerate(zip(shape, window)) if n != m]
    base = ctx.get(value, dims)
    part = ctx.gathered(update, inner, "it is written at a traced position along this dimension", cut)
    positions, inside = [], {}
    for d, (n, m) in enumerate(zip(shape, window)):
        if n == m:
            positions.append(ctx.realiser.index(ctx.region, 0))
        elif not dims[d]:
            positions.append(ctx.get(starts[d], ()))
        else:
            at = _relative(ctx, starts[d], n - m, dims[d], base.shape[d])
            part, inside[d], where = _within(ctx, part, d, at, base.shape[d])
            positions.append(where)
    positions = _one_type(ctx, positions, shape, window)
    if inside:
        ref = _masked_update(ctx, op, base, part, positions, inside, window)
    else:
        ref = ctx.emit(op.name, (base, part, *positions), base.shape, base.dtype)
    ctx.bind(result, dims, ref)


def _within(
    ctx: Context, part: LocalValue, d: int, at: LocalValue, piece: int
) -> tuple[LocalValue, LocalValue, LocalValue]:
    """The part of an update that falls into this device's piece of `piece` positions along `d`. The update starts at
    `at`, relative to the piece: before it (negative), in it, or behind it.

    Returns (a window of positions to write, the start of the update in that window as i32, the start of the window in
    the piece); positions of the window outside of the update are to keep what they hold. A short update's window is as
    long as the update, so that nothing else of the piece is read, and it can be written in place; a long one's is the
    piece."""
    m, zero = part.shape[d], ctx.realiser.index(ctx.region, 0)
    where, first, length = zero, at, piece
    if 2 * m <= piece:
        where, length = _clamp(ctx, at, 0, piece - m), m
        first = ctx.emit("stablehlo.subtract", (at, where), (), "i32")
        if m == 1:
            return part, first, where
    spread = ctx.realiser.pad(ctx.region, part, d, length, length, loc=ctx.loc)
    back = ctx.emit("stablehlo.subtract", (ctx.realiser.index(ctx.region, length), first), (), "i32")
    back = _clamp(ctx, back, 0, length + m)
    return ctx.realiser.window(ctx.region, spread, d, back, length, ctx.loc), first, where


def _hint(ctx: Context, value: Value, update: Value, dims: Dims) -> None:
    """Tells the loop that stacks updates in `value` (see `Held.hint`) in which layout the updates are computed, if
    that is another one than `dims`: the stack could have it without any communication."""
    have = _natural(ctx, update)
    if have is None or ctx.state(update).pending:
        return
    shape, window = value.type.shape, update.type.shape
    inner = tuple(d if n == m else () for d, n, m in zip(dims, shape, window))
    if have != inner:
        ctx.state(value).prefer(tuple(d if n == m else () for d, n, m in zip(have, shape, window)))


def _natural(ctx: Context, value: Value) -> Dims | None:
    """The layout in which a value was computed, looking through reshapes and broadcasts of it."""
    op, shape = value.op, value.type.shape
    if op is not None and op.name in ("stablehlo.reshape", "stablehlo.broadcast_in_dim") and op.operands[0] in ctx.env:
        old = op.operands[0].type.shape
        before = _natural(ctx, op.operands[0])
        if before is None or math.prod(old) != math.prod(shape):
            return None
        if op.name == "stablehlo.broadcast_in_dim":
            place = dict(zip(integers(op.attrs["broadcast_dimensions"]), before))
            return tuple(place.get(i, ()) for i in range(len(shape)))
        kept, after = carried(old, before, shape, ctx.sizes)
        return after if kept == before else None
    return ctx.state(value).dims


def _masked_update(
    ctx: Context, op: Op, base: LocalValue, part: LocalValue, positions: Sequence[LocalValue],
    inside: dict[int, LocalValue], window: tuple[int, ...],
) -> LocalValue:  # fmt: skip
    """Writes `part` at `positions` of `base`, masked to the update: along each dimension d of `inside`, only positions
    [inside[d], inside[d] + window[d]) of `part` belong to it."""
    old = base
    if part.shape != base.shape:
        attrs = attributes("stablehlo.dynamic_slice", tuple(part.shape))
        old = ctx.emit("stablehlo.dynamic_slice", (base, *positions), part.shape, base.dtype, attrs)
    mask: LocalValue | None = None
    for d, first in inside.items():
        where = ctx.region.shared("stablehlo.iota", (), part.shape, "i32", attributes("stablehlo.iota", d))
        for bound, direction in ((first, "GE"), (_add(ctx, first, window[d]), "LT")):
            other = ctx.realiser.splat(ctx.region, bound, part.shape)
            attrs = attributes("stablehlo.compare", direction)
            covered = ctx.emit("stablehlo.compare", (where, other), part.shape, "i1", attrs)
            mask = covered if mask is None else ctx.emit("stablehlo.and", (mask, covered), part.shape, "i1")
    assert mask is not None
    new = ctx.emit("stablehlo.select", (mask, part, old), part.shape, base.dtype)
    if part.shape == base.shape:
        return new
    return ctx.emit(op.name, (base, new, *positions), base.shape, base.dtype)


AHEAD = {"stablehlo.dynamic_slice": window_ahead, "stablehlo.dynamic_update_slice": rule_ahead}

CANDIDATES = {
    "stablehlo.dynamic_slice": dynamic_slice,
    "stablehlo.dynamic_update_slice": dynamic_update_slice,
}
