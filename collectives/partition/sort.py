"""Sorting along a split dimension. Where no other dimension can take the split, Leighton's columnsort (IEEE Trans.
Computers C-34, 1985), whose columns are the pieces: two all-to-alls and an exchange of half pieces between neighbours.

Columnsort deals a column's elements to the others one by one. Dealing `c` of them at a time leaves up to `c p ** 2`
elements out of place after the way back, which must be no more than half a column: where arrays lie in tiles and
columns are long enough, whole rows of a tile are dealt, since a short last dimension is padded to a tile's row.
"""

from __future__ import annotations

from collections.abc import Sequence

from propagation.attributes import flag, integer
from propagation.program import Block, Op

from ..cost import item_bytes
from ..emit import Ref, Region
from ..layout import Dims
from .batch import by_rule
from .context import Context
from .factors import PASS, WHOLE, Factors, choose
from .intervals import neighbours

HANDS = (128, 64, 32, 16)  # a tile's row, and shares of it that a longer way through memory is still worth


def sort(ctx: Context, op: Op) -> None:
    """Along whole rows where another dimension can take the split, else by columnsort if the pieces are long enough."""
    given = op.attr("dimension")  # counted from the end if negative; the last one if there is none
    d = (-1 if given is None else integer(given)) % max(len(op.operands[0].type.shape), 1)
    have = next((s.dims for s in map(ctx.state, op.operands) if s.dims is not None), None)
    if have is None or not have[d] or not _columnsort(ctx, op, d, have):
        by_rule(ctx, op, "a sort needs its whole dimension")


def _columnsort(ctx: Context, op: Op, d: int, have: Dims) -> bool:
    """Columnsort with the pieces as columns; False if they are too short for it or if another way sends less."""
    shape = op.operands[0].type.shape
    p = ctx.atoms.product(have[d])
    rows = shape[d] // p
    if p == 1 or shape[d] % p or rows % p or rows % 2 or rows < 2 * (p - 1) ** 2:
        return False
    # Equal elements change their order on the way, so a stable sort takes their places along; a column of positions
    # that the program sorts along anyway serves as well, and equals that are the same to the last bit need none.
    tied = _positions_operand(op, d)
    stable = "is_stable" in op.attrs and flag(op.attrs["is_stable"])
    placed = stable and tied is None and not (len(op.operands) == 1 and _is_total(op.regions[0]))
    bits, place = sum(map(ctx.bits, op.operands)), 0.0
    if placed:
        place = item_bytes(_place_type(shape[d]))
    cost = ctx.elements(shape, have) * ((2 * bits + place) * (p - 1) / p + bits + place / 2)
    cost += sum(ctx.move_cost(v, have) for v in op.operands)
    cost += sum(ctx.later_cost(r, have) for r in op.results)
    cost += 4 * ctx.bits(op.results[0]) * ctx.redundancy * ctx.elements(shape, have)
    if choose_rows(ctx, op, d) <= cost:
        return False
    refs = [ctx.get(v, have) for v in op.operands]
    sorted_ = _Columns(ctx, op, d, have[d], p, tied, placed).run(refs)
    for r, ref in zip(op.results, sorted_):
        ctx.bind(r, have, ref)
    return True


def _place_type(size: int) -> str:
    """The narrowest integers that count `size` elements and compilers compare quickly."""
    return "ui16" if size <= 1 << 16 else "i32"


def choose_rows(ctx: Context, op: Op, d: int) -> float:
    """What the sort costs if every device sorts whole rows."""
    shape = op.operands[0].type.shape
    every = tuple(range(len(shape)))
    kinds = tuple(WHOLE if i == d else PASS for i in every)
    count = len(op.operands)
    byte = ctx.bits(op.results[0]) * ctx.redundancy
    return choose(ctx, Factors(shape, kinds, (every,) * count, (every,) * count), op.operands, op.results, byte).bytes


def _positions_operand(op: Op, d: int) -> int | None:
    """The operand that counts along the sorted dimension, if there is one (as argsort has)."""
    for i, v in enumerate(op.operands):
        if v.op is not None and v.op.name == "stablehlo.iota" and integer(v.op.attrs["iota_dimension"]) == d:
            if v.type.dtype in ("i32", "i64", "ui32", "ui64"):
                return i
    return None


def _is_total(block: Block) -> bool:
    """Whether elements that a comparator of one operand takes for equal are the same to the last bit: if it compares
    integers, or floats in their total order, as they are."""
    test = block.terminator.operands[0].op
    if test is None or test.name != "stablehlo.compare" or set(test.operands) != set(block.args):
        return False
    whole_number = test.operands[0].type.dtype.startswith(("i", "ui"))
    return whole_number or "TOTALORDER" in str(test.attrs.get("compare_type", ""))


class _Columns:
    """Columnsort over the pieces along dimension `d`, split by `atoms` over `p` devices.

    Equals are ordered by operand `tied`, which counts the elements, or if they are to be `placed` by the place that
    each has once the pieces are sorted: those of the first piece come first, and within a piece they keep their order.
    What arrives in the first exchange stands in the order of its places, so these start to travel in the second one.
    With neither, equals may come in any order.
    """

    def __init__(
        self, ctx: Context, op: Op, d: int, atoms: tuple[int, ...], p: int, tied: int | None, placed: bool
    ):  # fmt: skip
        self.ctx, self.op, self.d, self.atoms, self.p = ctx, op, d, atoms, p
        self.tied, self.placed, self.count = tied, placed, len(op.operands)
        rows = op.operands[0].type.shape[d] // p
        fits = lambda c: rows % (c * p) == 0 and rows >= 2 * c * p * p
        # Elements that are dealt at a time.
        self.hand = next((c for c in HANDS if fits(c)), 1) if ctx.realiser.platform == "tpu" else 1

    def run(self, refs: list[Ref]) -> list[Ref]:
        refs = self.local(refs, self.tied)
        refs = [self.deal(x) for x in refs]
        if self.placed:
            refs.append(self.places(refs[0].shape))
        refs = self.local(refs, self.tied)
        return self.settle(self.merged([self.collect(x) for x in refs]))

    def merged(self, refs: list[Ref]) -> list[Ref]:
        """Every device sorts what it has got from others."""
        return self.local(refs, self.count if self.placed else self.tied)

    def local(self, refs: list[Ref], tied: int | None) -> list[Ref]:
        """Every device sorts what it holds, equals by `refs[tied]` if that is given, else stably."""
        types = [(r.shape, r.dtype) for r in refs]
        # Where no equals are left, or any order of them will do, TPUs need not sort one operand more.
        stable = self.ctx.realiser.platform != "tpu" or (tied is None and self.placed)
        attrs = f"dimension = {self.d} : i64, is_stable = {str(stable).lower()}"
        body = _comparator(self.ctx, self.op.regions[0], [r.dtype for r in refs], tied)
        return self.ctx.region.op("stablehlo.sort", refs, types, attrs, regions=(body,), loc=self.ctx.loc)

    def places(self, shape: tuple[int, ...]) -> Ref:
        """The place of each element that was dealt to this device: number i + (j + k p) c of the piece of device s is
        the (i + k c)-th of those that device j has from s, where `c` are dealt at a time."""
        ctx, real, p, c = self.ctx, self.ctx.realiser, self.p, self.hand
        rows = shape[self.d]
        dtype = _place_type(rows * p)
        parts = self.shape_of(shape, p, rows // (p * c), c) if c > 1 else self.shape_of(shape, p, rows // p)

        def count(along: int, step: int) -> Ref:
            number = ctx.region.shared("stablehlo.iota", (), parts, dtype, f"iota_dimension = {along} : i64")
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

    def shape(self, x: Ref, *parts: int) -> tuple[int, ...]:
        return self.shape_of(x.shape, *parts)

    def swap(self, x: Ref) -> Ref:
        order = list(range(len(x.shape)))
        order[self.d], order[self.d + 1] = order[self.d + 1], order[self.d]
        return self.ctx.realiser.transpose(self.ctx.region, x, order, self.ctx.loc)

    def exchange(self, x: Ref) -> Ref:
        """Part i of dimension d to device i; what arrives stands in the order of the senders."""
        ctx = self.ctx
        attrs = (
            f"split_dimension = {self.d} : i64, concat_dimension = {self.d} : i64, split_count = {self.p} : i64, "
            f"{ctx.realiser.groups(self.atoms)}"
        )
        bits = _bits(ctx, x)
        args = (bits, x.shape, attrs, self.op, "columnsort", ctx.loc)
        return _cast(ctx, ctx.realiser.collective(ctx.region, "all_to_all", self.atoms, *args), x.dtype)

    def deal(self, x: Ref) -> Ref:
        """Elements in turn to the devices."""
        ctx, real, rows, c = self.ctx, self.ctx.realiser, x.shape[self.d] // self.p, self.hand
        each = (rows // c, self.p, c) if c > 1 else (rows, self.p)
        parts = self.swap(real.reshape(ctx.region, x, self.shape(x, *each), ctx.loc))
        parts = real.reshape(ctx.region, parts, self.shape(x, self.p, rows), ctx.loc)
        return real.reshape(ctx.region, self.exchange(parts), x.shape, ctx.loc)

    def collect(self, x: Ref) -> Ref:
        """The way back: stretches to the devices, which sort them whatever the order in which they come: equals are
        told apart or the same."""
        ctx, real, rows = self.ctx, self.ctx.realiser, x.shape[self.d] // self.p
        parts = real.reshape(ctx.region, x, self.shape(x, self.p, rows), ctx.loc)
        return real.reshape(ctx.region, self.exchange(parts), x.shape, ctx.loc)

    def settle(self, refs: list[Ref]) -> list[Ref]:
        """What is still out of place is less than half a piece away: each device sorts the upper half of the piece
        before its own together with its lower half, and gives the smaller half back."""
        ctx, real, d = self.ctx, self.ctx.realiser, self.d
        half = refs[0].shape[d] // 2
        lower = [real.cut(ctx.region, x, d, 0, half, ctx.loc) for x in refs]
        upper = [real.cut(ctx.region, x, d, half, 2 * half, ctx.loc) for x in refs]
        joined = []
        for low, high in zip(lower, upper):
            before = self.send(high, 1)
            shape = self.shape(low, 2 * half)
            joined.append(ctx.emit("stablehlo.concatenate", (before, low), shape, low.dtype, f"dimension = {d} : i64"))
        joined = self.merged(joined)[: self.count]
        first, last = self.is_at(0, lower[0].shape), self.is_at(self.p - 1, lower[0].shape)
        out = []
        for x, low, high in zip(joined, lower, upper):
            back = self.send(real.cut(ctx.region, x, d, 0, half, ctx.loc), -1)
            mine = real.cut(ctx.region, x, d, half, 2 * half, ctx.loc)
            low = ctx.emit("stablehlo.select", (first, low, mine), low.shape, low.dtype)
            high = ctx.emit("stablehlo.select", (last, high, back), high.shape, high.dtype)
            attrs = f"dimension = {d} : i64"
            out.append(ctx.emit("stablehlo.concatenate", (low, high), self.shape(low, 2 * half), low.dtype, attrs))
        return out

    def send(self, x: Ref, distance: int) -> Ref:
        bits = neighbours(self.ctx, _bits(self.ctx, x), self.atoms, distance, "columnsort")
        return _cast(self.ctx, bits, x.dtype)

    def is_at(self, coordinate: int, shape) -> Ref:
        ctx = self.ctx
        me = ctx.realiser.splat(ctx.region, ctx.realiser.coordinate(ctx.region, self.atoms), shape)
        it = ctx.realiser.splat(ctx.region, ctx.realiser.index(ctx.region, coordinate), shape)
        attrs = "comparison_direction = #stablehlo<comparison_direction EQ>"
        return ctx.region.shared("stablehlo.compare", (me, it), shape, "i1", attrs)


def _bits(ctx: Context, x: Ref) -> Ref:
    """Narrow floats as integers: compilers send them as wider floats where a machine has none of theirs, which takes
    more bytes and makes all NaNs one."""
    return _cast(ctx, x, "ui16" if x.dtype in ("bf16", "f16") else "ui8" if x.dtype.startswith("f8") else x.dtype)


def _cast(ctx: Context, x: Ref, dtype: str) -> Ref:
    return x if x.dtype == dtype else ctx.region.shared("stablehlo.bitcast_convert", (x,), x.shape, dtype, "", ctx.loc)


def _comparator(ctx: Context, block: Block, dtypes: list[str], tied: int | None) -> Region:
    """The comparator of a sort; with `tied`, equal elements are ordered by that operand. `dtypes` may have one more
    operand than the program's comparator knows."""
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
    attrs = (
        f"comparison_direction = #stablehlo<comparison_direction LT>, compare_type = #stablehlo<comparison_type {sign}>"
    )
    (first,) = body.op("stablehlo.compare", body.args[2 * tied : 2 * tied + 2], [((), "i1")], attrs)
    (tie,) = body.op("stablehlo.and", (same, first), [((), "i1")])
    (out,) = body.op("stablehlo.or", (less, tie), [((), "i1")])
    body.op("stablehlo.return", (out,), ())
    return body


PARTITION = {"stablehlo.sort": sort}
