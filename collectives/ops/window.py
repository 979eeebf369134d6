"""reduce_window (pooling, cumulative sums): by halo exchange along split dimensions that the window moves over;
cumulative reductions by a local one and an exclusive scan of the pieces' totals over devices.

A max-pool of 3 with stride 1 over f32[1024@x] on 8 devices fetches one element from either neighbour (two permutes). A
cumsum, which is a window of 1024 taps, is a local cumsum of 128 elements and 3 permutes of one total each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from propagation.attributes import integers
from propagation.program import Op

from ..analysis import monoids
from ..analysis.constants import scalar_constant
from ..analysis.reducers import identity_literal, is_identity, reduction_kind
from ..decide.factors import PASS, WHOLE, Choice, Factors, Splits, note_gathered
from ..halo.exchange import bordered, lacking, neighbours
from ..halo.reach import Axis, Window, own_outputs, own_part, padding_of, per_dim
from ..ir.attributes import Attribute, Integers, Pairs
from ..ir.operations import attributes
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context

_WHY = "a window moves over this dimension"


class _Windows:
    """The windows of an operation, and how it reduces what is in them.

    axes      the windows by dimension
    padding   the same for the padding
    kind      the reduction, None for an unknown one, with its neutral element `fill`
    neutral   whether the initial value is neutral
    starts    the same for a reduction that is no known one
    """

    def __init__(self, op: Op):
        count, shape, out = len(op.results), op.operands[0].type.shape, op.results[0].type.shape
        rank, dtype = len(shape), op.results[0].type.dtype
        names = ("window_dilations", "window_strides", "base_dilations")
        spread, step, base = (per_dim(op, n, rank) for n in names)
        self.padding = padding_of(op, rank)
        lows = [low for low, _ in self.padding]
        taps = integers(op.attrs["window_dimensions"])
        self.axes = [Axis(*row) for row in zip(shape, out, taps, spread, step, base, lows)]
        self.kind = kind = reduction_kind(op.regions[0]) if count == 1 else None
        self.fill = None if kind is None else identity_literal(kind, dtype)
        initial = scalar_constant(op.operands[count])
        self.neutral = kind is not None and is_identity(kind, dtype, initial)
        self.starts = kind is None and count == 1 and monoids.is_neutral(op.regions[0], initial)

    @property
    def may_run(self) -> bool:
        """Whether running totals may be split. How often an initial value counts depends on the compiler: harmless if
        neutral, or for idempotent reductions."""
        known = self.fill is not None and (self.neutral or self.kind in ("max", "min", "and", "or"))
        return self.starts or known

    def split_along(self, dims: Dims) -> list[int]:
        """The split dimensions that windows move over."""
        return [d for d, atoms in enumerate(dims) if atoms and not _trivial(self.axes[d], self.padding[d])]

    def running(self, dims: Dims) -> list[int]:
        """Those of them that running totals are taken along."""
        return [d for d in self.split_along(dims) if _is_running(self.axes[d], self.padding[d])]

    def plans(self, ctx: Context, dims: Dims) -> dict[int, Window | None]:
        """For the others the windows of input to fetch; None where devices would need windows of different forms."""
        running = self.running(dims)
        moving = [d for d in self.split_along(dims) if d not in running]
        return {d: own_outputs(self.axes[d], ctx.atoms.product(dims[d])) for d in moving}


def reduce_window(ctx: Context, op: Op) -> Iterator[Splits]:
    """Every dimension may stay split: trivial windows pass through, others fetch halos, running totals are scanned.
    Dimensions that cannot stay split are blocked, and all else is weighed anew: those where devices would need windows
    of different forms, and running totals beside other windows or without a known neutral element."""
    count, shape, out = len(op.results), op.operands[0].type.shape, op.results[0].type.shape
    w, every = _Windows(op), tuple(range(len(shape)))
    byte = 2 * ctx.itemsize(op.results[0]) * ctx.redundancy
    halo = _HaloPrice(tuple(w.axes), tuple(w.padding), shape, count * ctx.itemsize(op.operands[0]))
    blocked: set[int] = set()
    while True:
        kinds = tuple(WHOLE if d in blocked else PASS for d in every)
        factors = Factors(out, kinds, (every,) * count + ((),) * count, (every,) * count)
        write = functools.partial(_write, ctx, op, w, factors)
        splits = Splits(factors, op.operands, op.results, byte, write, halo)
        choice, _ = splits.best(ctx)
        dims = choice.operands[0]
        lost = {d for d, plan in w.plans(ctx, dims).items() if plan is None}
        if len(w.split_along(dims)) > 1 or not w.may_run:
            lost.update(w.running(dims))
        if not lost:
            yield splits
            return
        blocked |= lost


def _write(ctx: Context, op: Op, w: _Windows, factors: Factors, choice: Choice) -> None:
    count, dims, kind = len(op.results), choice.operands[0], w.kind
    running = w.running(dims)
    plans = {d: plan for d, plan in w.plans(ctx, dims).items() if plan is not None}
    neutral = w.neutral or (w.starts and bool(running))
    note_gathered(ctx, factors, op.operands[:count], choice.operands, _WHY)
    inits = [ctx.get(v, ()) for v in op.operands[count:]]
    needs = {d: (plan.starts, plan.length, plan.counts) for d, plan in plans.items()}
    # Compilers count the initial value once per window; halos beyond the tensor hold the neutral element instead.
    around = None if w.fill is None else ctx.realiser.constant(ctx.region, (), op.results[0].type.dtype, w.fill)
    refs = [
        bordered(ctx, v, dims, needs, around or init, scalar_constant(first) if neutral or around is None else None)
        for v, first, init in zip(op.operands, op.operands[count:], inits)
    ] + inits
    new_padding = [(plans[d].low, plans[d].high) if d in plans else pad for d, pad in enumerate(w.padding)]
    shapes = [ctx.piece_shape(r, dims) for r in op.results]
    if running:
        given = None
        if not neutral and around is not None:
            given = refs.pop()  # it counts once, not on every device
            refs.append(around)
        total = _running_total(ctx, op, refs, running[0], dims, w.axes[running[0]], new_padding, kind, around)
        if given is not None and kind is not None:
            total = ctx.combine(kind, ctx.realiser.splat(ctx.region, given, total.shape), total)
        ctx.bind(op.results[0], dims, total)
        return
    attrs = ctx.attributes_of(op).without("padding").also({"padding": Pairs(tuple(new_padding))})
    shapes = [tuple([n + plans[d].more if d in plans else n for d, n in enumerate(shape)]) for shape in shapes]
    for r, ref in zip(op.results, ctx.local_copy(op, refs, shapes, attrs)):
        for d, plan in plans.items():
            ref = own_part(ctx, ref, d, dims[d], plan)
        ctx.bind(r, dims, ref)


class _HaloPrice(NamedTuple):
    """Prices the halos of windows over a tensor of `shape` with `size` bytes per element (a `Border` of `choose`)."""

    axes: tuple[Axis, ...]
    padding: tuple[tuple[int, int], ...]
    shape: tuple[int, ...]
    size: float

    def __call__(self, ctx: Context, operands: Sequence[Dims]) -> float:
        total, dims = 0.0, operands[0]
        for d, (axis, pad) in enumerate(zip(self.axes, self.padding)):
            if not dims[d] or not axis.size or _trivial(axis, pad):
                continue
            p = ctx.atoms.product(dims[d])
            row = self.size * ctx.elements(self.shape, dims) / -(-axis.size // p)
            plan = None if _is_running(axis, pad) else own_outputs(axis, p)
            if plan is None:
                total += (row + ctx.message) * p.bit_length()
                continue
            rows = lacking(plan.starts, plan.counts, axis.size)
            total += row * rows + (ctx.message if rows else 0.0)
        return total


def _trivial(axis: Axis, padding: tuple[int, int]) -> bool:
    return axis.taps == axis.step == axis.base == 1 and tuple(padding) == (0, 0)


def _is_running(axis: Axis, padding: tuple[int, int]) -> bool:
    """Whether the window is a running total from one end (a cumulative sum, maximum, ...): it has a tap per element."""
    n = axis.size
    whole = axis.taps == axis.out == n and axis.step == axis.base == axis.spread == 1
    return whole and tuple(padding) in ((n - 1, 0), (0, n - 1))


def _running_total(
    ctx: Context, op: Op, refs: Sequence[LocalValue], d: int, dims: Dims, axis: Axis,
    padding: list[tuple[int, int]], kind: str | None, neutral: LocalValue | None,
) -> LocalValue:  # fmt: skip
    """The running total within the piece, combined with the totals of all devices before (or behind) this one: by the
    reduction `kind`, or by the body if it is no known one. If `neutral` is None, the initial value is neutral."""
    x, init = refs
    forward = padding[d][0] > 0
    piece, dtype = x.shape[d], x.dtype
    neutral = init if neutral is None else neutral

    def combine(a: LocalValue, b: LocalValue) -> LocalValue:
        a, b = (a, b) if forward else (b, a)
        return monoids.combine(ctx, op.regions[0], a, b) if kind is None else ctx.combine(kind, a, b)

    inside = ctx.realiser.inside(ctx.region, x.shape, d, dims[d], axis.size)
    if inside is not None:
        x = ctx.emit("stablehlo.select", (inside, x, ctx.realiser.splat(ctx.region, neutral, x.shape)), x.shape, dtype)
    taps = list(integers(op.attrs["window_dimensions"]))
    taps[d] = piece
    padding[d] = (piece - 1, 0) if forward else (0, piece - 1)
    own: dict[str, Attribute] = {"window_dimensions": Integers(tuple(taps)), "padding": Pairs(tuple(padding))}
    attrs = ctx.attributes_of(op).without(*own).also(own)
    mine = ctx.local_copy(op, [x, init], [ctx.piece_shape(op.results[0], dims)], attrs)[0]
    last = piece - 1 if forward else 0
    total = ctx.realiser.cut(ctx.region, mine, d, last, last + 1, ctx.loc)
    offset = _before(ctx, total, dims[d], forward, combine, neutral)
    kept = attributes("stablehlo.broadcast_in_dim", tuple(range(len(total.shape))))
    offset = ctx.emit("stablehlo.broadcast_in_dim", (offset,), mine.shape, dtype, kept)
    return combine(offset, mine)


def _before(
    ctx: Context,
    total: LocalValue,
    atoms: Sequence[int],
    forward: bool,
    combine: Callable[[LocalValue, LocalValue], LocalValue],
    neutral: LocalValue,
) -> LocalValue:
    """The exclusive scan of `total` over the devices before (behind) this one, in log2(devices) rounds of permutes over
    distances 1, 2, 4, ... (Kogge and Stone, 1973)."""
    n, shape, dtype = ctx.atoms.product(atoms), total.shape, total.dtype
    me = ctx.realiser.splat(ctx.region, ctx.realiser.coordinate(ctx.region, atoms), shape)
    other = ctx.realiser.splat(ctx.region, neutral, shape)
    before: LocalValue | None = None
    distance = 1
    while distance < n:
        got = neighbours(ctx, total, atoms, distance if forward else -distance, "totals of the pieces")
        edge = ctx.realiser.splat(
            ctx.region, ctx.realiser.index(ctx.region, distance if forward else n - distance), shape
        )
        direction = attributes("stablehlo.compare", "GE" if forward else "LT")
        inside = ctx.region.shared("stablehlo.compare", (me, edge), shape, "i1", direction)
        got = ctx.emit("stablehlo.select", (inside, got, other), shape, dtype)
        before = got if before is None else combine(got, before)
        distance *= 2
        if distance < n:
            total = combine(got, total)
    assert before is not None  # the dimension is split over several devices
    return before


CANDIDATES = {"stablehlo.reduce_window": reduce_window}
