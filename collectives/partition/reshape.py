"""Operations that rename positions: reshape, transpose, broadcast, bitcast."""

from __future__ import annotations

import functools
import itertools
import math
from typing import NamedTuple

from propagation.attributes import integers
from propagation.program import Op, Value

from ..emit import Ref
from ..layout import Dims, local_shape
from . import linear
from .context import Context
from .factors import MUCH
from .intervals import windows
from .structure import rearrange


def transpose(ctx: Context, op: Op) -> None:
    order = integers(op.attrs["permutation"])
    inverse = [order.index(i) for i in range(len(order))]

    def forward(dims: Dims):
        return dims, tuple(dims[i] for i in order)

    def backward(dims: Dims):
        return tuple(dims[i] for i in inverse), dims

    def local(ref: Ref, before, after) -> Ref:
        return ctx.local_copy(op, [ref], [ctx.piece_shape(op.results[0], after)])[0]

    rearrange(ctx, op, op.operands[0], forward, backward, local, again=True)


@functools.lru_cache(maxsize=1 << 16)
def carried(shape: tuple[int, ...], dims: Dims, new_shape: tuple[int, ...], sizes: tuple[int, ...]):
    """What of layout `dims` survives a reshape from `shape` to `new_shape`: (the part that does, its new layout).

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


def _strides(shape) -> list[int]:
    out, stride = [], 1
    for n in reversed(shape):
        out.append(stride)
        stride *= n
    return out[::-1]


class _Stretch(NamedTuple):
    """Dimension `old` of a tensor and `new` of its reshape, which begin and end together and are split alike, but cut
    at other elements: rows of as many elements as both are made of, `size` of them, of which a device has `have` and
    wants `want`."""

    old: int
    new: int
    row: int
    size: int
    have: int
    want: int


def _stretch(shape, before: Dims, new_shape, after: Dims, sizes) -> _Stretch | None:
    """The dimension whose elements change hands in a reshape between two layouts; None if they are cut alike."""
    old, new = local_shape(shape, before, sizes), local_shape(new_shape, after, sizes)
    if math.prod(old) == math.prod(new):
        return None
    tops, new_tops = ([s * n for s, n in zip(_strides(which), which)] for which in (shape, new_shape))
    for i, j in itertools.product(range(len(shape)), range(len(new_shape))):
        if not before[i] or before[i] != after[j] or tops[i] != new_tops[j]:
            continue
        under, new_under = math.prod(old[i + 1 :]), math.prod(new[j + 1 :])
        row = math.gcd(under, new_under)
        found = _Stretch(i, j, row, shape[i] * under // row, old[i] * under // row, new[j] * new_under // row)
        rest = math.prod(old[:i]) == math.prod(new[:j]) and shape[i] * under == new_shape[j] * new_under
        if rest and found.have != found.want:
            return found
    return None


@functools.lru_cache(maxsize=1 << 16)
def _cut_elsewhere(shape: tuple[int, ...], dims: Dims, new_shape: tuple[int, ...], sizes: tuple[int, ...]):
    """What `carried` says, and also of one dimension that does not divide where it begins and ends with a new one."""
    kept, out = carried(shape, dims, new_shape, sizes)
    tops, new_tops = ([s * n for s, n in zip(_strides(which), which)] for which in (shape, new_shape))
    for i, j in itertools.product(range(len(shape)), range(len(new_shape))):
        if dims[i] == kept[i] or tops[i] != new_tops[j] or min(shape[i], new_shape[j]) == 1:
            continue
        before = (*kept[:i], dims[i], *kept[i + 1 :])
        after = tuple(tuple([a for a in d if a not in dims[i]]) for d in out)
        after = (*after[:j], dims[i], *after[j + 1 :])
        if not out[j] or set(out[j]) <= set(dims[i]):
            if _stretch(shape, before, new_shape, after, sizes) is not None:
                return before, after
    return kept, out


def reshape(ctx: Context, op: Op) -> None:
    """Layouts that cut elements alike are other names of each other; where a dimension does not divide, devices fetch
    the rows between its old and new borders."""
    value, result = op.operands[0], op.results[0]
    shape, new_shape = value.type.shape, result.type.shape
    sizes, through = ctx.sizes, carried
    also: list[tuple[Dims, Dims]] = []
    state, want = ctx.state(value), ctx.want(result)
    if state.make is None and not linear.deferred(ctx, value):
        after, before = carried(new_shape, want, shape, sizes)
        named = [carried(shape, state.dims, new_shape, sizes), (before, after)]
        cut = _cut_elsewhere(shape, state.dims, new_shape, sizes), _cut_elsewhere(new_shape, want, shape, sizes)[::-1]
        sent = lambda pair: (
            ctx.move_cost(value, pair[0]) + ctx.later_cost(result, pair[1]) + _fetched(ctx, value, new_shape, *pair)
        )
        if cut != tuple(named) and min(map(sent, cut)) < min(map(sent, named)):  # to send less, not to compute less
            through, also = _cut_elsewhere, named
        exchanged = _exchanged(ctx, shape, state.dims, new_shape)
        if exchanged and min(map(sent, exchanged)) < MUCH * min(map(sent, (*named, *also))):  # likewise
            also += exchanged

    def forward(dims: Dims):
        return through(shape, dims, new_shape, sizes)

    def backward(dims: Dims):
        after, before = through(new_shape, dims, shape, sizes)
        return before, after

    def local(ref: Ref, before, after) -> Ref:
        new = local_shape(new_shape, after, sizes)
        s = _stretch(shape, before, new_shape, after, sizes)
        if s is not None:
            lead = math.prod(ref.shape) // (s.have * s.row)
            rows = ctx.realiser.reshape(ctx.region, ref, (lead, s.have, s.row), ctx.loc)
            starts = [c * s.want for c in range(ctx.atoms.product(before[s.old]))]
            zero = ctx.realiser.zero(ctx.region, (), ref.dtype)
            ref = windows(ctx, 1, before[s.old], rows, s.size, starts, s.want, zero)
        assert math.prod(ref.shape) == math.prod(new), (shape, before, new_shape, after)
        return ctx.local_copy(op, [ref], [new])[0]

    def sends(before: Dims) -> float:
        return _fetched(ctx, value, new_shape, before, forward(before)[1]) if fetches else 0.0

    fetches = through is _cut_elsewhere
    why = f"what lies together along this dimension lies apart in {result.type.text}"
    rearrange(ctx, op, value, forward, backward, local, again=not fetches, sends=sends, also=also, why=why)


def _exchanged(ctx: Context, shape: tuple[int, ...], have: Dims, new_shape: tuple[int, ...]) -> list[tuple[Dims, Dims]]:
    """Pairs of layouts in which what a reshape loses of `have` has gone over to another dimension, by an exchange."""
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
    """Bytes that a device lacks of what it has after a reshape of `value` between two layouts."""
    s = _stretch(value.type.shape, before, new_shape, after, ctx.sizes)
    if s is None:
        return 0.0
    rows = _lacking(s, ctx.atoms.product(before[s.old]))
    return rows * ctx.elements(value.type.shape, before) // s.have * ctx.bits(value)


def _lacking(s: _Stretch, p: int) -> int:
    """The most rows that a device wants and does not have."""
    most = 0
    for c in range(p):
        low, high = c * s.want, min(s.size, (c + 1) * s.want)
        kept = min(high, (c + 1) * s.have) - max(low, c * s.have)
        most = max(most, high - low - max(0, kept))
    return most


def renamed(op: Op, dims: Dims, sizes: tuple[int, ...]) -> Dims | None:
    """The layout that a transpose, reshape or broadcast gives its result if its operand is laid out as `dims` and
    nothing moves; None if something would have to, and for other operations."""
    if op.name == "stablehlo.transpose":
        return tuple(dims[i] for i in integers(op.attrs["permutation"]))
    if op.name == "stablehlo.reshape":
        kept, out = carried(op.operands[0].type.shape, dims, op.results[0].type.shape, sizes)
        return out if kept == dims else None
    if op.name == "stablehlo.broadcast_in_dim":
        shape, new_shape = op.operands[0].type.shape, op.results[0].type.shape
        out: list[tuple[int, ...]] = [()] * len(new_shape)
        for d, n, j in zip(dims, shape, integers(op.attrs["broadcast_dimensions"]) if shape else ()):
            out[j] = d if new_shape[j] == n else ()
        return tuple(out)
    return None


def broadcast_in_dim(ctx: Context, op: Op) -> None:
    value, result = op.operands[0], op.results[0]
    shape, new_shape = value.type.shape, result.type.shape
    place = integers(op.attrs["broadcast_dimensions"]) if shape else ()
    grows = result.type.size > value.type.size

    def backward(dims: Dims):
        return tuple(dims[j] if new_shape[j] == n else () for j, n in zip(place, shape)), dims

    def forward(dims: Dims):
        kept = tuple(d if new_shape[j] == n else () for d, j, n in zip(dims, place, shape))
        out = list(ctx.want(result))
        used = {a for d in kept for a in d}
        for j in range(len(out)):
            out[j] = tuple(a for a in out[j] if a not in used)
        for d, j in zip(kept, place):
            out[j] = d
        return kept, tuple(out)

    def local(ref: Ref, before, after) -> Ref:
        return ctx.local_copy(op, [ref], [ctx.piece_shape(result, after)])[0]

    if not shape:  # a scalar can be repeated into any layout
        ctx.bind_lazy(result, lambda dims: local(ctx.get(value, ()), (), dims))
    else:
        rearrange(ctx, op, value, forward, backward, local, is_linear=not grows, again=True)


def bitcast_convert(ctx: Context, op: Op) -> None:
    """Element types of different width add or drop a minor dimension, which stays whole."""
    value, result = op.operands[0], op.results[0]
    rank, new_rank = len(value.type.shape), len(result.type.shape)

    def backward(dims: Dims):
        if new_rank > rank:
            return dims[:rank], (*dims[:rank], ())
        return (*dims, *((),) * (rank - new_rank)), dims

    def forward(dims: Dims):
        kept = (*dims[:new_rank], *((),) * (rank - new_rank)) if rank > new_rank else dims
        return kept, (*dims, ()) if new_rank > rank else kept[:new_rank]

    def local(ref: Ref, before, after) -> Ref:
        return ctx.local_copy(op, [ref], [ctx.piece_shape(result, after)])[0]

    why = "along its last dimension lie the parts of one element"
    rearrange(ctx, op, value, forward, backward, local, is_linear=False, why=why)


PARTITION = {
    "stablehlo.transpose": transpose,
    "stablehlo.reshape": reshape,
    "stablehlo.broadcast_in_dim": broadcast_in_dim,
    "stablehlo.bitcast_convert": bitcast_convert,
}
