"""Sorting along a split dimension: by whole rows where another dimension can take the split (all-to-all, local sort,
all-to-all), else by Leighton's columnsort (IEEE Trans. Computers C-34, 1985).

The columns of columnsort are the pieces of the p devices: sort, deal the elements of each column to all columns
(all-to-all), sort, deal them back (all-to-all), and merge neighbouring columns, whose elements are by then less than
half a column out of place (two permutes of half pieces). It needs pieces of at least 2 (p - 1)^2 elements.

Elements may be dealt `c` at a time, which leaves them up to c p^2 positions out of place. On TPUs, whose arrays lie in
tiles, whole rows of a tile are dealt where columns are long enough, since a short last dimension is padded to a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from propagation.attributes import flag, integer
from propagation.program import Block, Op

from ..cost import item_bytes
from ..decide.candidate import Candidate, Sent
from ..decide.factors import PASS, WHOLE, Factors, Splits
from ..halo.exchange import neighbours
from ..heuristics import COLUMNSORT_HANDS
from ..ir.attributes import NONE
from ..ir.operations import attributes
from ..ir.program import LocalValue, Region
from ..layout import Dims
from ..layouts.context import Context
from .batch import rule_ahead, split


def sort(ctx: Context, op: Op) -> Iterator[Candidate | Splits]:
    """By whole rows, or by columnsort where the pieces are long enough."""
    given = op.attr("dimension")  # counted from the end if negative; the last one if there is none
    d = (-1 if given is None else integer(given)) % max(len(op.operands[0].type.shape), 1)
    # XLA takes a dimension counted from the end as it is, and reads beyond the shape: the sort may then do nothing.
    attrs = None if given is not None and integer(given) == d else attributes("stablehlo.sort", d, _is_stable(op))
    yield split(ctx, op, _row_factors(op, d), "a sort needs its whole dimension", attrs)
    have = next((s.dims for s in map(ctx.state, op.operands) if s.dims is not None), None)
    if have is not None and have[d]:
        yield from _by_columns(ctx, op, d, have)


def _is_stable(op: Op) -> bool:
    return "is_stable" in op.attrs and flag(op.attrs["is_stable"])


def _by_columns(ctx: Context, op: Op, d: int, have: Dims) -> Iterator[Candidate]:
    """A columnsort of operands laid out as `have`; none if pieces are too short for it."""
    shape = op.operands[0].type.shape
    p = ctx.atoms.product(have[d])
    rows = shape[d] // p
    if p == 1 or shape[d] % p or rows % p or rows % 2 or rows < 2 * (p - 1) ** 2:
        return
    # Dealing changes the order of equal elements, so a stable sort sends their original places along. Not needed if the
    # program sorts an iota along anyway (argsort), or if equal elements are identical to the last bit.
    tied = _positions_operand(op, d)
    placed = _is_stable(op) and tied is None and not (len(op.operands) == 1 and _is_total(op.regions[0]))
    itemsize, place = sum(map(ctx.itemsize, op.operands)), 0.0
    if placed:
        place = item_bytes(_place_type(shape[d]))
    piece = ctx.elements(shape, have)
    count, places = len(op.operands), int(placed)
    dealt = Sent("all_to_all", have[d], piece * (2 * itemsize + place) * (p - 1) / p, 2 * count + places)
    settled = Sent("collective_permute", have[d], piece * (itemsize + place / 2), 2 * (count + places))
    work = 4 * ctx.itemsize(op.results[0]) * ctx.redundancy * piece

    def write() -> None:
        refs = [ctx.get(v, have) for v in op.operands]
        for r, ref in zip(op.results, _Columns(ctx, op, d, have[d], p, tied, placed).run(refs)):
            ctx.bind(r, have, ref)

    layouts = (have,) * len(op.operands)
    yield Candidate(layouts, layouts, write, sent=(dealt, settled), work=work)


def _place_type(size: int) -> str:
    """The narrowest integer type for `size` places that compilers compare fast."""
    return "ui16" if size <= 1 << 16 else "i32"


def _row_factors(op: Op, d: int) -> Factors:
    """The factors of a sort of whole rows."""
    shape = op.operands[0].type.shape
    every = tuple(range(len(shape)))
    kinds = tuple(WHOLE if i == d else PASS for i in every)
    count = len(op.operands)
    return Factors(shape, kinds, (every,) * count, (every,) * count)


def _positions_operand(op: Op, d: int) -> int | None:
    """The operand that is an iota along the sorted dimension, if there is one (as argsort has)."""
    for i, v in enumerate(op.operands):
        if v.op is not None and v.op.name == "stablehlo.iota" and integer(v.op.attrs["iota_dimension"]) == d:
            if v.type.dtype in ("i32", "i64", "ui32", "ui64"):
                return i
    return None


def _is_total(block: Block) -> bool:
    """Whether elements that the comparator of a single operand finds equal are identical to the last bit: it compares
    integers, or floats in total order."""
    test = block.terminator.operands[0].op
    if test is None or test.name != "stablehlo.compare" or set(test.operands) != set(block.args):
        return False
    whole_number = test.operands[0].type.dtype.startswith(("i", "ui"))
    return whole_number or "TOTALORDER" in str(test.attrs.get("compare_type", ""))


class _Columns:
    """Columnsort over the pieces along dimension `d`, split by `atoms` over `p` devices.

    Equal elements are ordered by operand `tied`, an iota; or, if `placed`, by the place that each has after the first
    local sort: pieces in the order of devices, and within a piece in the order of the stable sort. What arrives in the
    first all-to-all is in the order of these places, so only the second one sends them along. With neither, equal
    elements may come in any order.
    """

    def __init__(
        self, ctx: Context, op: Op, d: int, atoms: tuple[int, ...], p: int, tied: int | None, placed: bool
    ):  # fmt: skip
        self.ctx, self.op, self.d, self.atoms, self.p = ctx, op, d, atoms, p
        self.tied, self.placed, self.count = tied, placed, len(op.operands)
        rows = op.operands[0].type.shape[d] // p
        fits = lambda c: rows % (c * p) == 0 and rows >= 2 * c * p * p
        # Elements that are dealt at a time.
        self.hand = next((c for c in COLUMNSORT_HANDS if fits(c)), 1) if ctx.realiser.platform == "tpu" else 1

    def run(self, refs: list[LocalValue]) -> list[LocalValue]:
        refs = self.local(refs, self.tied)
        refs = [self.deal(x) for x in refs]
        if self.placed:
            refs.append(self.places(refs[0].shape))
        refs = self.local(refs, self.tied)
        return self.settle(self.merged([self.collect(x) for x in refs]))

    def merged(self, refs: list[LocalValue]) -> list[LocalValue]:
        """A local sort after an exchange."""
        return self.local(refs, self.count if self.placed else self.tied)

    def local(self, refs: list[LocalValue], tied: int | None) -> list[LocalValue]:
        """Every device sorts what it holds, equals by `refs[tied]` if that is given, else stably."""
        types = [(r.shape, r.dtype) for r in refs]
        # On TPUs a stable sort sorts one operand more: not needed where there are no equals, or their order is free.
        stable = self.ctx.realiser.platform != "tpu" or (tied is None and self.placed)
        attrs = attributes("stablehlo.sort", self.d, stable)
        body = _comparator(self.ctx, self.op.regions[0], [r.dtype for r in refs], tied)
        return self.ctx.region.op("stablehlo.sort", refs, types, attrs, regions=(body,), loc=self.ctx.loc)

    def places(self, shape: tuple[int, ...]) -> LocalValue:
        """The place of each element that was dealt to this device. With `c` elements dealt at a time, element
        i + (j + k p) c of the piece of device s becomes the (i + k c)-th of those that device j gets from s."""
        ctx, real, p, c = self.ctx, self.ctx.realiser, self.p, self.hand
        rows = shape[self.d]
        dtype = _place_type(rows * p)
        parts = self.shape_of(shape, p, rows // (p * c), c) if c > 1 else self.shape_of(shape, p, rows // p)

        def count(along: int, step: int) -> LocalValue:
            number = ctx.region.shared("stablehlo.iota", (), parts, dtype, attributes("stablehlo.iota", along))
            step_ = real.constant(ctx.region, parts, dtype, str(step))
            return ctx.region.shared("stablehlo.multiply", (number, step_), parts, dtype)

        me = real.coordinate(ctx.region, self.atoms)
        if c > 1:
            me = ctx.region.shared("stablehlo.multiply", (me, real.index(ctx.region, c)), (), me.dtype)
        if dtype != me.dtype:
            me = ctx.region.shared("stablehlo.convert", (me,), (), dtype)
        out = real.splat(ctx.region, me, parts)
        for term in (count(self.d, rows), count(self.d + 1, p * c), *([count(self.d + 2, 1)] if c > 1 else [])):
            out = ctx.emit("stablehlo.add", (out, term), parts, dtype)
        return real.reshape(ctx.region, out, shape, ctx.loc)

    def shape_of(self, shape: Sequence[int], *parts: int) -> tuple[int, ...]:
        """`shape` with its sorted dimension replaced by `parts`."""
        return (*shape[: self.d], *parts, *shape[self.d + 1 :])

    def shape(self, x: LocalValue, *parts: int) -> tuple[int, ...]:
        return self.shape_of(x.shape, *parts)

    def swap(self, x: LocalValue) -> LocalValue:
        order = list(range(len(x.shape)))
        order[self.d], order[self.d + 1] = order[self.d + 1], order[self.d]
        return self.ctx.realiser.transpose(self.ctx.region, x, order, self.ctx.loc)

    def exchange(self, x: LocalValue) -> LocalValue:
        """An all-to-all along dimension d: part i goes to device i, what arrives is in the order of the senders."""
        ctx = self.ctx
        bits = _bits(ctx, x)
        numbers = (self.d, self.d, self.p)
        args = (bits, x.shape, ctx.realiser.groups(self.atoms), numbers, self.op, "columnsort", ctx.loc)
        return _cast(ctx, ctx.realiser.collective(ctx.region, "all_to_all", self.atoms, *args), x.dtype)

    def deal(self, x: LocalValue) -> LocalValue:
        """Deals the elements of each column to all columns, `hand` at a time: an all-to-all."""
        ctx, real, rows, c = self.ctx, self.ctx.realiser, x.shape[self.d] // self.p, self.hand
        each = (rows // c, self.p, c) if c > 1 else (rows, self.p)
        parts = self.swap(real.reshape(ctx.region, x, self.shape(x, *each), ctx.loc))
        parts = real.reshape(ctx.region, parts, self.shape(x, self.p, rows), ctx.loc)
        return real.reshape(ctx.region, self.exchange(parts), x.shape, ctx.loc)

    def collect(self, x: LocalValue) -> LocalValue:
        """The way back: consecutive parts go to the devices, which sort what they get (ties being broken by place)."""
        ctx, real, rows = self.ctx, self.ctx.realiser, x.shape[self.d] // self.p
        parts = real.reshape(ctx.region, x, self.shape(x, self.p, rows), ctx.loc)
        return real.reshape(ctx.region, self.exchange(parts), x.shape, ctx.loc)

    def settle(self, refs: list[LocalValue]) -> list[LocalValue]:
        """The last step: elements are now less than half a piece out of place. Each device merges the upper half of the
        piece before its own with its own lower half, keeps the greater half and sends the smaller one back."""
        ctx, real, d = self.ctx, self.ctx.realiser, self.d
        half = refs[0].shape[d] // 2
        lower = [real.cut(ctx.region, x, d, 0, half, ctx.loc) for x in refs]
        upper = [real.cut(ctx.region, x, d, half, 2 * half, ctx.loc) for x in refs]
        joined = []
        for low, high in zip(lower, upper):
            before = self.send(high, 1)
            shape = self.shape(low, 2 * half)
            attrs = attributes("stablehlo.concatenate", d)
            joined.append(ctx.emit("stablehlo.concatenate", (before, low), shape, low.dtype, attrs))
        joined = self.merged(joined)[: self.count]
        first, last = self.is_at(0, lower[0].shape), self.is_at(self.p - 1, lower[0].shape)
        out = []
        for x, low, high in zip(joined, lower, upper):
            back = self.send(real.cut(ctx.region, x, d, 0, half, ctx.loc), -1)
            mine = real.cut(ctx.region, x, d, half, 2 * half, ctx.loc)
            low = ctx.emit("stablehlo.select", (first, low, mine), low.shape, low.dtype)
            high = ctx.emit("stablehlo.select", (last, high, back), high.shape, high.dtype)
            attrs = attributes("stablehlo.concatenate", d)
            out.append(ctx.emit("stablehlo.concatenate", (low, high), self.shape(low, 2 * half), low.dtype, attrs))
        return out

    def send(self, x: LocalValue, distance: int) -> LocalValue:
        bits = neighbours(self.ctx, _bits(self.ctx, x), self.atoms, distance, "columnsort")
        return _cast(self.ctx, bits, x.dtype)

    def is_at(self, coordinate: int, shape: tuple[int, ...]) -> LocalValue:
        ctx = self.ctx
        me = ctx.realiser.splat(ctx.region, ctx.realiser.coordinate(ctx.region, self.atoms), shape)
        it = ctx.realiser.splat(ctx.region, ctx.realiser.index(ctx.region, coordinate), shape)
        attrs = attributes("stablehlo.compare", "EQ")
        return ctx.region.shared("stablehlo.compare", (me, it), shape, "i1", attrs)


def _bits(ctx: Context, x: LocalValue) -> LocalValue:
    """16-bit and 8-bit floats as integers, to be sent: some compilers would convert them to wider floats on the way,
    which takes more bytes and loses NaN payloads."""
    return _cast(ctx, x, "ui16" if x.dtype in ("bf16", "f16") else "ui8" if x.dtype.startswith("f8") else x.dtype)


def _cast(ctx: Context, x: LocalValue, dtype: str) -> LocalValue:
    if x.dtype == dtype:
        return x
    return ctx.region.shared("stablehlo.bitcast_convert", (x,), x.shape, dtype, NONE, ctx.loc)


def _comparator(ctx: Context, block: Block, dtypes: list[str], tied: int | None) -> Region:
    """The comparator of a sort; with `tied`, equal elements are ordered by that operand. `dtypes` may be of one operand
    more (the places) than the program's comparator has."""
    body = Region("body", ctx.region, [((), t) for t in dtypes for _ in range(2)])
    known = len(block.args)
    (less,) = ctx.copy_ops(block, body, body.args[:known])
    if tied is None:
        body.op("stablehlo.return", (less,), ())
        return body
    swapped = [body.args[i ^ 1] for i in range(known)]
    (greater,) = ctx.copy_ops(block, body, swapped)
    (same,) = body.op("stablehlo.not", (greater,), [((), "i1")])
    sign = "UNSIGNED" if dtypes[tied].startswith("ui") else "SIGNED"
    attrs = attributes("stablehlo.compare", "LT", sign)
    (first,) = body.op("stablehlo.compare", body.args[2 * tied : 2 * tied + 2], [((), "i1")], attrs)
    (tie,) = body.op("stablehlo.and", (same, first), [((), "i1")])
    (out,) = body.op("stablehlo.or", (less, tie), [((), "i1")])
    body.op("stablehlo.return", (out,), ())
    return body


AHEAD = {"stablehlo.sort": rule_ahead}

CANDIDATES = {"stablehlo.sort": sort}
