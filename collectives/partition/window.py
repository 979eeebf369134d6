"""Convolutions and windows. Batch and feature dimensions pass; along a dimension that a window moves over, each device
fetches the border it lacks (a halo) and works on its own outputs; running totals add those of the devices before."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from propagation.attributes import ConvDims, conv_dims, integer, integers, pairs
from propagation.program import Op

from ..emit import Ref
from ..layout import Dims
from . import monoid, trade
from .batch import apply
from .constant import scalar_constant
from .context import Context
from .factors import PASS, REDUCE, WHOLE, Choice, Factors, choose, gathered
from .intervals import bordered, lacking, neighbours
from .reduce import identity_literal, is_identity, reduction_kind
from .trade import padding_text

_WHY = "a window moves over this dimension"


class _Axis(NamedTuple):
    """A window moving over one dimension: its input and output sizes, taps and their spacing, step, spacing of the
    input (base dilation) and padding in front."""

    size: int
    out: int
    taps: int
    spread: int
    step: int
    base: int
    low: int


class _Window(NamedTuple):
    """What a device needs of a dimension: `length` positions from starts[coordinate], padded locally by (low, high).
    The first counts[coordinate] of them matter; of the outputs, one more than a device owns for each that somebody
    skips, skip[coordinate] come before its own (none if empty)."""

    starts: tuple[int, ...]
    length: int
    low: int
    high: int
    counts: tuple[int, ...]
    skip: tuple[int, ...] = ()

    @property
    def more(self) -> int:
        """How many outputs a device makes beyond its own."""
        return max(self.skip, default=0)


def _needed(first: int, jump: int, reach: int, base: int, p: int) -> _Window | None:
    """The inputs under positions [first + c*jump, ... + reach) of a base-dilated dimension, for p coordinates c.

    None if the devices' windows start differently between two inputs.
    """
    if base > 1 and jump % base:
        return None
    start = -(-first // base)
    low = start * base - first
    count = (first + reach - 1) // base - start + 1
    if count < 1:
        return None
    starts = tuple(start + c * (jump // base) for c in range(p))
    return _Window(starts, count, low, reach - low - (count - 1) * base - 1, (count,) * p)


def _own_outputs(axis: _Axis, p: int) -> _Window | None:
    """For outputs [c*m, (c+1)*m). Where devices' windows start differently between two inputs, some begin outputs
    earlier than they own, so that all windows have one form: of the ways to do so, the one with the fewest inputs."""
    m = -(-axis.out // p)
    reach = (m - 1) * axis.step + (axis.taps - 1) * axis.spread + 1
    if m * axis.step % axis.base == 0:
        return _needed(-axis.low, m * axis.step, reach, axis.base, p)
    firsts = [c * m * axis.step - axis.low for c in range(p)]
    found = [_aligned(firsts, reach, axis.step, axis.base, rest) for rest in range(axis.step)]
    return min(filter(None, found), key=lambda w: (w.length, w.low), default=None)


def _aligned(firsts: Sequence[int], reach: int, step: int, base: int, rest: int) -> _Window | None:
    """Windows of equal form over `reach` positions from each of `firsts` on. Each begins at an input that lies as many
    positions behind the device's first one as `rest` says, modulo the step; where that is less than for others, with
    outputs in front that the device skips."""
    starts, leads = [], []
    for first in firsts:
        start = -(-first // base)
        lead = start * base - first
        earlier = next((k for k in range(step) if (lead - k * base - rest) % step == 0), None)
        if earlier is None:
            return None
        starts.append(start - earlier)
        leads.append(lead - earlier * base)
    low = max(leads)
    skip = tuple([(low - lead) // step for lead in leads])
    counts = tuple([max(0, (first + reach - 1) // base - start + 1) for first, start in zip(firsts, starts)])
    count = max(counts)
    if count < 1:
        return None
    high = reach + max(skip) * step - low - (count - 1) * base - 1
    return _Window(tuple(starts), count, low, high, counts, skip)


def _own(ctx: Context, ref: Ref, d: int, atoms: Sequence[int], plan: _Window) -> Ref:
    """The outputs that a device owns along dimension d, of those that it made."""
    if not plan.more:
        return ref
    first = ctx.realiser.table(ctx.region, np.array(plan.skip), ctx.realiser.coordinate(ctx.region, atoms))
    return ctx.realiser.window(ctx.region, ref, d, first, ref.shape[d] - plan.more, ctx.loc)


def _own_taps(axis: _Axis, p: int) -> _Window | None:
    """For taps [c*k, (c+1)*k) of the kernel and all outputs."""
    k = -(-axis.taps // p)
    reach = (axis.out - 1) * axis.step + (k - 1) * axis.spread + 1
    return _needed(-axis.low, k * axis.spread, reach, axis.base, p)


def _taps_of_own_inputs(axis: _Axis, p: int) -> _Window | None:
    """The taps of the kernel that meet inputs [c*s, (c+1)*s) in some output, and the padding that then goes around the
    device's own inputs; None if they start differently on different devices."""
    s = -(-axis.size // p)
    jump = s * axis.base
    if jump % axis.spread:
        return None
    first = -(-(axis.low - (axis.out - 1) * axis.step) // axis.spread)
    length = ((s - 1) * axis.base + axis.low) // axis.spread - first + 1
    if length < 1:
        return None
    low = axis.low - first * axis.spread
    span = (axis.out - 1) * axis.step + (length - 1) * axis.spread + 1
    starts = tuple(first + c * (jump // axis.spread) for c in range(p))
    return _Window(starts, length, low, span - low - (s - 1) * axis.base - 1, (length,) * p)


def _per_dim(op: Op, name: str, rank: int, default: int = 1) -> tuple[int, ...]:
    return integers(op.attrs[name]) if name in op.attrs else (default,) * rank


def _padding(op: Op, rank: int) -> tuple[tuple[int, int], ...]:
    return pairs(op.attrs["padding"]) if "padding" in op.attrs else ((0, 0),) * rank


# -- reduce_window --------------------------------------------------------------------------------------------


def reduce_window(ctx: Context, op: Op) -> None:
    """Every dimension may stay split: trivial windows pass, others fetch borders, running totals are put together."""
    count = len(op.results)
    shape, out = op.operands[0].type.shape, op.results[0].type.shape
    rank = len(shape)
    taps = integers(op.attrs["window_dimensions"])
    names = ("window_dilations", "window_strides", "base_dilations")
    spread, step, base = (_per_dim(op, n, rank) for n in names)
    padding = _padding(op, rank)
    axes = [_Axis(*a[:-1], a[-1][0]) for a in zip(shape, out, taps, spread, step, base, padding)]
    every = tuple(range(rank))
    factors = Factors(out, (PASS,) * rank, (every,) * count + ((),) * count, (every,) * count)
    byte = 2 * ctx.bits(op.results[0]) * ctx.redundancy
    halo = _Halo(tuple(axes), tuple(padding), shape, count * ctx.bits(op.operands[0]))
    choice = choose(ctx, factors, op.operands, op.results, byte, halo)
    dims = choice.operands[0]
    moving = [d for d in every if dims[d] and not _trivial(axes[d], padding[d])]
    running = [d for d in moving if _is_running(axes[d], padding[d])]
    kind = reduction_kind(op.regions[0]) if count == 1 else None
    plans = {d: _own_outputs(axes[d], ctx.atoms.product(dims[d])) for d in moving if d not in running}
    fill = None if kind is None else identity_literal(kind, op.results[0].type.dtype)
    neutral = kind is not None and is_identity(kind, op.results[0].type.dtype, scalar_constant(op.operands[count]))
    if kind is None and count == 1 and monoid.is_neutral(op.regions[0], scalar_constant(op.operands[1])):
        neutral = bool(running)
    unknown = running and (len(moving) > 1 or not neutral or (kind is not None and fill is None))
    if None in plans.values() or len(running) > 1 or unknown:
        kinds = tuple(PASS if _trivial(a, p) else WHOLE for a, p in zip(axes, padding))
        apply(ctx, op, factors._replace(kinds=kinds), _WHY)
        return
    inits = [ctx.get(v, ()) for v in op.operands[count:]]
    needs = {d: (plan.starts, plan.length, plan.counts) for d, plan in plans.items()}
    # Compilers count a window's initial value once; borders hold it too, so they get what changes nothing.
    around = None if fill is None else ctx.realiser.constant(ctx.region, (), op.results[0].type.dtype, fill)
    refs = [
        bordered(ctx, v, dims, needs, around or init, scalar_constant(w) if neutral or around is None else None)
        for v, w, init in zip(op.operands, op.operands[count:], inits)
    ] + inits
    new_padding = [(plans[d].low, plans[d].high) if d in plans else pad for d, pad in enumerate(padding)]
    shapes = [ctx.piece_shape(r, dims) for r in op.results]
    if running:
        result = _running_total(ctx, op, refs, running[0], dims, axes[running[0]], new_padding, kind, around)
        ctx.bind(op.results[0], dims, result)
        return
    text = ", ".join(filter(None, (ctx.attr_text(op, skip=("padding",)), padding_text(new_padding))))
    shapes = [[n + plans[d].more if d in plans else n for d, n in enumerate(shape)] for shape in shapes]
    for r, ref in zip(op.results, ctx.local_copy(op, refs, shapes, attrs=text)):
        for d, plan in plans.items():
            ref = _own(ctx, ref, d, dims[d], plan)
        ctx.bind(r, dims, ref)


class _Halo(NamedTuple):
    """The bytes that windows over a tensor of `shape`, of `size` bytes per element, lack on each device."""

    axes: tuple[_Axis, ...]
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
            plan = None if _is_running(axis, pad) else _own_outputs(axis, p)
            total += row * (p.bit_length() if plan is None else lacking(plan.starts, plan.counts, axis.size))
        return total


def _trivial(axis: _Axis, padding) -> bool:
    return axis.taps == axis.step == axis.base == 1 and tuple(padding) == (0, 0)


def _is_running(axis: _Axis, padding) -> bool:
    """Whether the window is a running total from one end (a cumulative sum, maximum, ...)."""
    n = axis.size
    whole = axis.taps == axis.out == n and axis.step == axis.base == axis.spread == 1
    return whole and tuple(padding) in ((n - 1, 0), (0, n - 1))


def _running_total(
    ctx: Context, op: Op, refs, d: int, dims, axis: _Axis, padding, kind: str | None, neutral: Ref | None
) -> Ref:  # fmt: skip
    """Totals within the piece, combined with those of all devices before (or behind) this one: by a reduction's
    operation or, if it has no name, by its function. Without a `neutral` the initial value is one."""
    x, init = refs
    forward = padding[d][0] > 0
    piece, dtype = x.shape[d], x.dtype
    neutral = init if neutral is None else neutral

    def combine(a: Ref, b: Ref) -> Ref:
        a, b = (a, b) if forward else (b, a)
        return monoid.combine(ctx, op.regions[0], a, b) if kind is None else ctx.combine(kind, a, b)

    inside = ctx.realiser.inside(ctx.region, x.shape, d, dims[d], axis.size)
    if inside is not None:
        x = ctx.emit("stablehlo.select", (inside, x, ctx.realiser.splat(ctx.region, neutral, x.shape)), x.shape, dtype)
    taps = list(integers(op.attrs["window_dimensions"]))
    taps[d] = piece
    padding[d] = (piece - 1, 0) if forward else (0, piece - 1)
    dims_text = f"window_dimensions = array<i64: {', '.join(map(str, taps))}>"
    own = (ctx.attr_text(op, skip=("padding", "window_dimensions")), dims_text, padding_text(padding))
    text = ", ".join(filter(None, own))
    mine = ctx.local_copy(op, [x, init], [ctx.piece_shape(op.results[0], dims)], attrs=text)[0]
    last = piece - 1 if forward else 0
    total = ctx.realiser.cut(ctx.region, mine, d, last, last + 1, ctx.loc)
    offset = _before(ctx, total, dims[d], forward, combine, neutral)
    kept = ", ".join(str(i) for i in range(len(total.shape)))
    offset = ctx.emit(
        "stablehlo.broadcast_in_dim", (offset,), mine.shape, dtype, f"broadcast_dimensions = array<i64: {kept}>"
    )
    return combine(offset, mine)


def _before(ctx: Context, total: Ref, atoms, forward: bool, combine: Callable[[Ref, Ref], Ref], neutral: Ref) -> Ref:
    """The combination of `total` over all devices before (behind) this one, in as many steps as their count has bits:
    in each, devices exchange what twice as many of them have together (Kogge and Stone's scheme)."""
    n, shape, dtype = ctx.atoms.product(atoms), total.shape, total.dtype
    me = ctx.realiser.splat(ctx.region, ctx.realiser.coordinate(ctx.region, atoms), shape)
    other = ctx.realiser.splat(ctx.region, neutral, shape)
    before, distance = None, 1
    while distance < n:
        got = neighbours(ctx, total, atoms, distance if forward else -distance, "totals of the pieces")
        edge = ctx.realiser.splat(
            ctx.region, ctx.realiser.index(ctx.region, distance if forward else n - distance), shape
        )
        direction = f"comparison_direction = #stablehlo<comparison_direction {'GE' if forward else 'LT'}>"
        inside = ctx.region.shared("stablehlo.compare", (me, edge), shape, "i1", direction)
        got = ctx.emit("stablehlo.select", (inside, got, other), shape, dtype)
        before = got if before is None else combine(got, before)
        distance *= 2
        if distance < n:
            total = combine(got, total)
    return before


# -- convolution ----------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _conv_factors(d, lhs, rhs, out, batch_groups: int, feature_groups: int, spatial) -> Factors:
    """Batch and output features pass, input features are contracted; with groups, the group dimension passes as a
    whole number of groups per device. `spatial` says per spatial dimension what is split with the input: "out",
    "kernel" (contracted) or nothing."""
    sizes, kinds = [], []

    def factor(n: int, kind: int) -> int:
        sizes.append(n)
        kinds.append(kind)
        return len(sizes) - 1

    left, right, result = [-1] * len(lhs), [-1] * len(rhs), [-1] * len(out)
    if batch_groups > 1:
        f = factor(batch_groups, PASS)
        left[d.input_batch] = right[d.kernel_output_feature] = result[d.output_feature] = f
        left[d.input_feature] = right[d.kernel_input_feature] = factor(lhs[d.input_feature], REDUCE)
    elif feature_groups > 1:
        left[d.input_batch] = result[d.output_batch] = factor(lhs[d.input_batch], PASS)
        f = factor(feature_groups, PASS)
        left[d.input_feature] = right[d.kernel_output_feature] = result[d.output_feature] = f
    else:
        left[d.input_batch] = result[d.output_batch] = factor(lhs[d.input_batch], PASS)
        left[d.input_feature] = right[d.kernel_input_feature] = factor(lhs[d.input_feature], REDUCE)
        right[d.kernel_output_feature] = result[d.output_feature] = factor(out[d.output_feature], PASS)
    groups, grouped = batch_groups * feature_groups, d.input_batch if batch_groups > 1 else d.input_feature
    single = groups == lhs[grouped] == rhs[d.kernel_output_feature]  # groups of one may be divided unevenly
    even = frozenset({left[grouped]}) if groups > 1 and not single else frozenset()
    for mode, i, k, o in zip(spatial, d.input_spatial, d.kernel_spatial, d.output_spatial):
        if mode == "out":
            left[i] = result[o] = factor(out[o], PASS)
        elif mode == "kernel":
            left[i] = right[k] = factor(rhs[k], REDUCE)
    return Factors(tuple(sizes), tuple(kinds), (tuple(left), tuple(right)), (tuple(result),), even)


def convolution(ctx: Context, op: Op) -> None:
    """A split contraction (input features, or a kernel as large as the input) leaves a partial sum."""
    lhs, rhs = op.operands
    shapes = lhs.type.shape, rhs.type.shape, op.results[0].type.shape
    d = conv_dims(op.attrs["dimension_numbers"])
    rank = len(d.input_spatial)
    names = ("rhs_dilation", "window_strides", "lhs_dilation")
    spread, step, base = (_per_dim(op, n, rank) for n in names)
    padding = _padding(op, rank)
    axes = [
        _Axis(shapes[0][i], shapes[2][o], shapes[1][k], *rest)
        for i, o, k, *rest in zip(
            d.input_spatial, d.output_spatial, d.kernel_spatial, spread, step, base, (low for low, _ in padding)
        )
    ]
    plan = None
    for spatial in itertools.product(*[_modes(op, a) for a in axes]):
        found = _plan(ctx, op, d, tuple(axes), shapes, spatial)
        if found is not None and (plan is None or found.choice.bytes < plan.choice.bytes - 1e-6):
            plan = found
    if plan is None:
        plan = _plan(ctx, op, d, tuple(axes), shapes, ("",) * rank)
    _convolve(ctx, op, d, axes, padding, plan)


def _modes(op: Op, axis: _Axis) -> tuple[str, ...]:
    """What a dimension's input may be split with: outputs if windows are small, the kernel if it is as large as the
    input. By the number of elements and by how far they reach this may not be the same: windows that do not overlap
    may have more taps than there are windows, and the gradient of their kernel more outputs than taps."""
    kernel = "" if _is_reversed(op) else "kernel"
    few = axis.out >= axis.taps, axis.out * axis.step >= axis.taps * axis.spread
    return tuple(dict.fromkeys("out" if f else kernel for f in few))


def _is_reversed(op: Op) -> bool:
    return "window_reversal" in op.attrs and "true" in str(op.attrs["window_reversal"])


class _Plan(NamedTuple):
    """How a convolution is split: the choice among its factors, and the windows of input and kernel to fetch."""

    factors: Factors
    choice: Choice
    windows: dict[int, _Window]
    taps: dict[int, _Window]


def _groups(op: Op) -> dict[str, int]:
    return {k: integer(op.attrs[k]) for k in ("batch_group_count", "feature_group_count")}


def _plan(ctx: Context, op: Op, d: ConvDims, axes: tuple[_Axis, ...], shapes, spatial: tuple[str, ...]) -> _Plan | None:
    """The cheapest way to split a convolution whose spatial dimensions are split as `spatial` says; None if devices
    would need windows of different forms."""
    factors = _conv_factors(d, *shapes, *_groups(op).values(), spatial)
    per_element = 2 * ctx.byte_per_flop
    for i, k, o in zip(d.input_spatial, d.kernel_spatial, d.output_spatial):
        taken = {f[i] for f, i in ((factors.operands[0], i), (factors.operands[1], k), (factors.results[0], o))}
        per_element *= shapes[1][k] * shapes[2][o] / max(1, *[factors.sizes[f] for f in taken if f >= 0], 1)
    borders = _Borders(op, d, axes, spatial, shapes)
    choice = choose(ctx, factors, op.operands, op.results, per_element, borders if any(spatial) else None)
    windows, taps = borders.windows(ctx, choice.operands)
    if None in windows.values() or None in taps.values():
        return None
    return _Plan(factors, choice, windows, taps)


def _convolve(ctx: Context, op: Op, d: ConvDims, axes: Sequence[_Axis], padding, plan: _Plan) -> None:
    lhs, rhs = op.operands
    result = op.results[0]
    factors, choice, plans, kernel = plan
    layout, groups = choice.operands[0], _groups(op)
    gathered(ctx, factors, (lhs, rhs), choice.operands, _WHY)
    zeros = [ctx.realiser.zero(ctx.region, (), v.type.dtype) for v in (lhs, rhs)]
    needs = {d.input_spatial[j]: (plan.starts, plan.length, plan.counts) for j, plan in plans.items()}
    taps = {d.kernel_spatial[j]: (plan.starts, plan.length, plan.counts) for j, plan in kernel.items()}
    operands = [
        bordered(ctx, lhs, layout, needs, zeros[0], 0),
        bordered(ctx, rhs, choice.operands[1], taps, zeros[1], 0),
    ]
    own = [d.input_spatial[j] for j in kernel]
    fixed = [k for k in d.kernel_spatial if k not in taps]
    contracted = ((d.input_feature, *own), (d.kernel_input_feature, *fixed))
    operands = [
        ctx.masked(ref, v.type.shape, dims, which)
        for ref, v, dims, which in zip(operands, (lhs, rhs), choice.operands, contracted)
    ]
    around = {**plans, **kernel}
    local = trade.Local(
        d,
        [a.step for a in axes],
        [a.base for a in axes],
        [a.spread for a in axes],
        [(around[j].low, around[j].high) if j in around else pad for j, pad in enumerate(padding)],
        {k: -(-n // ctx.atoms.product(choice.results[0][d.output_feature])) for k, n in groups.items()},
        not _is_reversed(op),
    )
    out = choice.results[0]
    made = {d.output_spatial[j]: w for j, w in plans.items() if w.more}
    shape = [n + made[i].more if i in made else n for i, n in enumerate(ctx.piece_shape(result, out))]
    ref = trade.convolve(ctx, op, local, operands, tuple(shape))
    for i, w in made.items():
        ref = _own(ctx, ref, i, out[i], w)
    ctx.bind_partial(result, choice.results[0], {choice.pending: ref})


class _Borders(NamedTuple):
    """What a convolution's device needs of split spatial dimensions."""

    op: Op
    dims: ConvDims
    axes: tuple[_Axis, ...]
    spatial: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    def windows(self, ctx: Context, layouts: Sequence[Dims]) -> tuple[dict, dict]:
        """({dimension: window of the input}, {dimension: window of the kernel}) that are fetched. A contraction over
        positions needs one of the two; an operand under other windows too is preferred, because one border serves
        both."""
        plans: dict[int, _Window | None] = {}
        kernel: dict[int, _Window | None] = {}
        d = self.dims
        for j, (mode, i, k, axis) in enumerate(zip(self.spatial, d.input_spatial, d.kernel_spatial, self.axes)):
            if not mode or not layouts[0][i]:
                continue
            p = ctx.atoms.product(layouts[0][i])
            if mode == "out":
                plans[j] = _own_outputs(axis, p)
                continue
            options = (_own_taps(axis, p), _taps_of_own_inputs(axis, p))
            costs = []
            for plan, v, dims, at, shape in zip(options, self.op.operands, layouts, (i, k), self.shapes):
                piece = -(-shape[at] // p)
                rows = float("inf") if plan is None else max(0, plan.length - piece)
                shared = any(u.op is not self.op and u.op.name in PARTITION for u in v.uses)
                costs.append(rows * ctx.elements(shape, dims) / piece * ctx.bits(v) * (0.5 if shared else 1.0))
            if costs[1] < costs[0]:
                kernel[j] = options[1]
            else:
                plans[j] = options[0]
        return plans, kernel

    def __call__(self, ctx: Context, layouts: Sequence[Dims]) -> float:
        """Bytes that a device lacks of its windows; 0 where that is not known, and the dimension cannot stay split."""
        total = 0.0
        places = (self.dims.input_spatial, self.dims.kernel_spatial)
        for found, v, dims, at, shape in zip(
            self.windows(ctx, layouts), self.op.operands, layouts, places, self.shapes
        ):
            for j, plan in found.items():
                size = shape[at[j]]
                if plan is not None:
                    row = ctx.bits(v) * ctx.elements(shape, dims) / -(-size // len(plan.starts))
                    total += row * lacking(plan.starts, plan.counts, size)
        return total


PARTITION = {
    "stablehlo.convolution": convolution,
    "stablehlo.reduce_window": reduce_window,
}
