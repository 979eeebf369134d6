"""Reshape, transpose, broadcast and bitcast: operations that keep elements and rename their positions.

Mostly they need no communication: a reshape of f32[64@x, 128] to f32[8192] is f32[8192@x], since x splits the row-major
order of elements at the same places. Where it does not ([6@x, 4] to [24] over 4 devices: rows 2 + 2 + 2 + 0 are
elements 8 + 8 + 8 + 0, but [24] is 6 + 6 + 6 + 6), devices exchange the elements between the old and the new borders
(`_Realigned`), or axes go to another dimension by an all-to-all, or the dimension is gathered."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from propagation.attributes import integers
from propagation.program import Op, Value

from ..decide.candidate import Candidate, Sent
from ..halo.exchange import windows
from ..heuristics import ELSEWHERE_SHARE
from ..ir.program import LocalValue
from ..layout import Dims, local_shape
from ..layouts.context import Context
from ..partial_sums import deferred_reduction
from .rearrange import rearranged


def transpose(ctx: Context, op: Op) -> Iterator[Candidate]:
    order = integers(op.attrs["permutation"])
    inverse = [order.index(i) for i in range(len(order))]

    def forward(dims: Dims) -> tuple[Dims, Dims]:
        return dims, tuple(dims[i] for i in order)

    def backward(dims: Dims) -> tuple[Dims, Dims]:
        return tuple(dims[i] for i in inverse), dims

    def local(ref: LocalValue, before: Dims, after: Dims) -> LocalValue:
        return ctx.local_one(op, [ref], ctx.piece_shape(op.results[0], after))

    return rearranged(ctx, op, op.operands[0], forward, backward, local, again=True)


@functools.lru_cache(maxsize=1 << 16)
def carried(
    shape: tuple[int, ...], dims: Dims, new_shape: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[Dims, Dims]:
    """What of layout `dims` a reshape from `shape` to `new_shape` keeps without communication: (that part, its layout
    after the reshape).

    Seen from the row-major order of elements, splitting a dimension of stride s and size n by an atom of size k
    splits the stretch [s*n/k, s*n). The reshape keeps the split if, in the new shape, that stretch is the top of what
    is still whole of some dimension.
    """
    strides, new_strides = _strides(shape), _strides(new_shape)
    tops = [s * n for s, n in zip(new_strides, new_shape)]
    same = {(s, n): j for j, (s, n) in enumerate(zip(new_strides, new_shape)) if n > 1}
    kept: list[tuple[int, ...]] = []
    out: list[list[int]] = [[] for _ in new_shape]
    for n, s, atoms in zip(shape, strides, dims):
        j = same.get((s, n))
        if j is not None:  # the dimension stays as it is, divisible or not
            kept.append(atoms)
            out[j] = list(atoms)
            continue
        mine = []
        top = s * n
        for a in atoms:
            low, odd = divmod(top, sizes[a])
            if odd or not low or low % s:
                break
            j = next((j for j, t in enumerate(new_strides) if t <= low and top <= t * new_shape[j]), None)
            if j is None or tops[j] != top or (low % new_strides[j]):
                break
            tops[j] = low
            out[j].append(a)
            mine.append(a)
            top = low
        kept.append(tuple(mine))
    return tuple(kept), tuple(map(tuple, out))


def _strides(shape: Sequence[int]) -> list[int]:
    out, stride = [], 1
    for n in reversed(shape):
        out.append(stride)
        stride *= n
    return out[::-1]


class _Realigned(NamedTuple):
    """Dimension `old` of a tensor and dimension `new` of its reshape, which hold the same elements and are split by the
    same axes, but into pieces with other borders, since one of them does not divide. In units of `row` elements, the
    greatest common divisor of both dimensions' strides, there are `size` rows, of which a device holds `have` before
    and `want` after the reshape."""

    old: int
    new: int
    row: int
    size: int
    have: int
    want: int


def _realigned(
    shape: tuple[int, ...], before: Dims, new_shape: tuple[int, ...], after: Dims, sizes: tuple[int, ...]
) -> _Realigned | None:
    """The dimension along which elements move in a reshape between two layouts; None if no elements do."""
    old, new = local_shape(shape, before, sizes), local_shape(new_shape, after, sizes)
    if math.prod(old) == math.prod(new):
        return None
    tops, new_tops = ([s * n for s, n in zip(_strides(which), which)] for which in (shape, new_shape))
    for i, j in itertools.product(range(len(shape)), range(len(new_shape))):
        if not before[i] or before[i] != after[j] or tops[i] != new_tops[j]:
            continue
        under, new_under = math.prod(old[i + 1 :]), math.prod(new[j + 1 :])
        row = math.gcd(under, new_under)
        found = _Realigned(i, j, row, shape[i] * under // row, old[i] * under // row, new[j] * new_under // row)
        rest = math.prod(old[:i]) == math.prod(new[:j]) and shape[i] * under == new_shape[j] * new_under
        if rest and found.have != found.want:
            return found
    return None


@functools.lru_cache(maxsize=1 << 16)
def _cut_elsewhere(
    shape: tuple[int, ...], dims: Dims, new_shape: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[Dims, Dims]:
    """`carried`, plus the split of one dimension that does not divide, where devices exchange elements between its old
    and new borders (see `_Realigned`)."""
    kept, out = carried(shape, dims, new_shape, sizes)
    tops, new_tops = ([s * n for s, n in zip(_strides(which), which)] for which in (shape, new_shape))
    for i, j in itertools.product(range(len(shape)), range(len(new_shape))):
        if dims[i] == kept[i] or tops[i] != new_tops[j] or min(shape[i], new_shape[j]) == 1:
            continue
        before = (*kept[:i], dims[i], *kept[i + 1 :])
        after = tuple(tuple([a for a in d if a not in dims[i]]) for d in out)
        after = (*after[:j], dims[i], *after[j + 1 :])
        if not out[j] or set(out[j]) <= set(dims[i]):
            if _realigned(shape, before, new_shape, after, sizes) is not None:
                return before, after
    return kept, out


def reshape(ctx: Context, op: Op) -> Iterator[Candidate]:
    """A local reshape between layouts that `carried` finds. If that would gather something, also considered: exchanging
    elements between the borders of a dimension that does not divide, and an all-to-all to another dimension."""
    value, result = op.operands[0], op.results[0]
    shape, new_shape = value.type.shape, result.type.shape
    sizes, through = ctx.sizes, carried
    also: list[tuple[Dims, Dims]] = []
    state, want = ctx.state(value), ctx.want(result)
    if state.make is None and not deferred_reduction.deferred(ctx, value):
        after, before = carried(new_shape, want, shape, sizes)
        have = state.layout
        named = [carried(shape, have, new_shape, sizes), (before, after)]
        cut = _cut_elsewhere(shape, have, new_shape, sizes), _cut_elsewhere(new_shape, want, shape, sizes)[::-1]
        sent = lambda pair: (
            ctx.move_cost(value, pair[0])
            + ctx.later_cost(result, pair[1])
            + (fetched + ctx.message if (fetched := _fetched(ctx, value, new_shape, *pair)) else 0.0)
        )
        if cut != tuple(named) and min(map(sent, cut)) < min(map(sent, named)):
            through, also = _cut_elsewhere, named
        exchanged = _exchanged(ctx, shape, have, new_shape)
        if exchanged and min(map(sent, exchanged)) < ELSEWHERE_SHARE * min(map(sent, (*named, *also))):
            also += exchanged

    def forward(dims: Dims) -> tuple[Dims, Dims]:
        return through(shape, dims, new_shape, sizes)

    def backward(dims: Dims) -> tuple[Dims, Dims]:
        after, before = through(new_shape, dims, shape, sizes)
        return before, after

    def local(ref: LocalValue, before: Dims, after: Dims) -> LocalValue:
        new = local_shape(new_shape, after, sizes)
        s = _realigned(shape, before, new_shape, after, sizes)
        if s is not None:
            lead = math.prod(ref.shape) // (s.have * s.row)
            rows = ctx.realiser.reshape(ctx.region, ref, (lead, s.have, s.row), ctx.loc)
            starts = [c * s.want for c in range(ctx.atoms.product(before[s.old]))]
            zero = ctx.realiser.zero(ctx.region, (), ref.dtype)
            ref = windows(ctx, 1, before[s.old], rows, s.size, starts, s.want, zero)
        assert math.prod(ref.shape) == math.prod(new), (shape, before, new_shape, after)
        return ctx.local_one(op, [ref], new)

    def sends(before: Dims) -> tuple[Sent, ...]:
        size = _fetched(ctx, value, new_shape, before, forward(before)[1]) if fetches else 0.0
        return (Sent("collective_permute", tuple([a for d in before for a in d]), size),) if size else ()

    fetches = through is _cut_elsewhere
    why = f"its pieces along this dimension are no pieces of the result, {result.type.text}"
    sent_by = sends if fetches else None
    return rearranged(ctx, op, value, forward, backward, local, again=not fetches, sends=sent_by, also=also, why=why)


def _exchanged(ctx: Context, shape: tuple[int, ...], have: Dims, new_shape: tuple[int, ...]) -> list[tuple[Dims, Dims]]:
    """Pairs of layouts in which the axes that a reshape cannot keep of `have` have moved to another dimension."""
    kept = carried(shape, have, new_shape, ctx.sizes)[0]
    lost = tuple(a for before, after in zip(have, kept) for a in before if a not in after)
    out = []
    for d, n in enumerate(shape) if lost else ():
        moved = (*kept[:d], (*kept[d], *lost), *kept[d + 1 :])
        if kept[d] == have[d] and n and n % ctx.atoms.product(moved[d]) == 0:
            before, after = carried(shape, moved, new_shape, ctx.sizes)
            if before == moved:
                out.append((before, after))
    return out


def _fetched(ctx: Context, value: Value, new_shape: tuple[int, ...], before: Dims, after: Dims) -> float:
    """Bytes that a device receives in a reshape of `value` between two layouts."""
    s = _realigned(value.type.shape, before, new_shape, after, ctx.sizes)
    if s is None:
        return 0.0
    rows = _lacking(s, ctx.atoms.product(before[s.old]))
    return rows * ctx.elements(value.type.shape, before) // s.have * ctx.itemsize(value)


def _lacking(s: _Realigned, p: int) -> int:
    """The most rows that a device has after the reshape and not before."""
    most = 0
    for c in range(p):
        low, high = c * s.want, min(s.size, (c + 1) * s.want)
        kept = min(high, (c + 1) * s.have) - max(low, c * s.have)
        most = max(most, high - low - max(0, kept))
    return most


def transposed(ctx: Context, op: Op, value: Value, dims: Dims) -> Iterator[Candidate]:
    """For the look-ahead: a transpose carries a layout on."""
    yield Candidate((dims,), (tuple([dims[i] for i in integers(op.attrs["permutation"])]),))


def reshaped(ctx: Context, op: Op, value: Value, dims: Dims) -> Iterator[Candidate]:
    """For the look-ahead: a reshape carries on what it can keep of a layout, and the rest is gathered first."""
    kept, after = carried(value.type.shape, dims, op.results[0].type.shape, ctx.sizes)
    yield Candidate((kept,), (after,))


def repeated(ctx: Context, op: Op, value: Value, dims: Dims) -> Iterator[Candidate]:
    """For the look-ahead: a broadcast carries a layout on, and every device makes its part of what is repeated. Its
    operand, which is smaller than the result, may also be resharded first to give the result its wanted layout."""
    result = op.results[0]
    shape, new_shape, want = value.type.shape, result.type.shape, ctx.want(result)
    place = integers(op.attrs["broadcast_dimensions"]) if shape else ()
    after: list[tuple[int, ...]] = [()] * len(new_shape)
    for d, n, j in zip(dims, shape, place):
        after[j] = d if new_shape[j] == n else ()
    used = {a for d in after for a in d}
    filled = tuple([d or tuple([a for a in w if a not in used]) for d, w in zip(after, want)])
    yield Candidate((None,), (filled,))
    (inner,) = _before_broadcast(op, want)
    if inner != dims and result.type.size != value.type.size:
        yield Candidate((inner,), (want,))


def _before_broadcast(op: Op, dims: Dims) -> tuple[Dims]:
    """The layout of the operand of a broadcast whose result is in `dims`."""
    value, shape = op.operands[0], op.results[0].type.shape
    place = integers(op.attrs["broadcast_dimensions"]) if value.type.shape else ()
    return (tuple([dims[j] if shape[j] == n else () for j, n in zip(place, value.type.shape)]),)


def broadcast_in_dim(ctx: Context, op: Op) -> Iterator[Candidate]:
    value, result = op.operands[0], op.results[0]
    shape, new_shape = value.type.shape, result.type.shape
    place = integers(op.attrs["broadcast_dimensions"]) if shape else ()
    grows = result.type.size > value.type.size

    def backward(dims: Dims) -> tuple[Dims, Dims]:
        return tuple(dims[j] if new_shape[j] == n else () for j, n in zip(place, shape)), dims

    def forward(dims: Dims) -> tuple[Dims, Dims]:
        kept = tuple(d if new_shape[j] == n else () for d, j, n in zip(dims, place, shape))
        out = list(ctx.want(result))
        used = {a for d in kept for a in d}
        for j in range(len(out)):
            out[j] = tuple(a for a in out[j] if a not in used)
        for d, j in zip(kept, place):
            out[j] = d
        return kept, tuple(out)

    def local(ref: LocalValue, before: Dims, after: Dims) -> LocalValue:
        return ctx.local_one(op, [ref], ctx.piece_shape(result, after))

    if not shape:  # a scalar can be repeated into any layout
        into = lambda: ctx.bind_lazy(result, lambda dims: local(ctx.get(value, ()), (), dims))
        return iter((Candidate((None,), (None,), into),))
    return rearranged(ctx, op, value, forward, backward, local, is_linear=not grows, again=True)


def bitcast_convert(ctx: Context, op: Op) -> Iterator[Candidate]:
    """Between element types of different widths a minor dimension comes or goes, which stays whole."""
    value, result = op.operands[0], op.results[0]
    rank, new_rank = len(value.type.shape), len(result.type.shape)

    def backward(dims: Dims) -> tuple[Dims, Dims]:
        if new_rank > rank:
            return dims[:rank], (*dims[:rank], ())
        return (*dims, *((),) * (rank - new_rank)), dims

    def forward(dims: Dims) -> tuple[Dims, Dims]:
        kept = (*dims[:new_rank], *((),) * (rank - new_rank)) if rank > new_rank else dims
        return kept, (*dims, ()) if new_rank > rank else kept[:new_rank]

    def local(ref: LocalValue, before: Dims, after: Dims) -> LocalValue:
        return ctx.local_one(op, [ref], ctx.piece_shape(result, after))

    why = "along its last dimension lie the parts of one element"
    return rearranged(ctx, op, value, forward, backward, local, is_linear=False, why=why)


AHEAD = {
    "stablehlo.transpose": transposed,
    "stablehlo.reshape": reshaped,
    "stablehlo.broadcast_in_dim": repeated,
}

BEHIND = {"stablehlo.broadcast_in_dim": _before_broadcast}

CANDIDATES = {
    "stablehlo.transpose": transpose,
    "stablehlo.reshape": reshape,
    "stablehlo.broadcast_in_dim": broadcast_in_dim,
    "stablehlo.bitcast_convert": bitcast_convert,
}
