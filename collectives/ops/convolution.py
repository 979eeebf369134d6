"""Convolutions: batch and feature dimensions are split like those of a matrix product, spatial ones by halo exchange.

A 3 x 3 convolution of f32[32, 256, 256, 8] split along height over 8 devices: each device holds 32 rows, fetches one
row from either neighbour (two permutes), and computes its own 32 rows of the output. A kernel as large as the image, as
in the gradient of a kernel, is contracted over the split dimension instead and leaves a partial sum; of one operand
each device then fetches the window that its piece of the other one is multiplied with."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from propagation.attributes import ConvDims, conv_dims, integer
from propagation.graph import Use
from propagation.program import Op

from ..decide.factors import PASS, REDUCE, Choice, Factors, Splits, note_gathered
from ..halo.exchange import border_parts, bordered, lacking
from ..halo.reach import Axis, Window, own_outputs, own_part, own_taps, padding_of, per_dim, taps_of_own_inputs
from ..heuristics import SHARED_HALO_SHARE
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context
from .contraction_cuts import Cut, cut_of, kept, parts_of
from .local_convolution import Local, convolve

_POOLING = ("stablehlo.reduce_window", "stablehlo.select_and_scatter")
_WHY = "a window moves over this dimension"
_Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # of input, kernel and output


@functools.lru_cache(maxsize=1024)
def _conv_factors(
    d: ConvDims, lhs: tuple[int, ...], rhs: tuple[int, ...], out: tuple[int, ...], batch_groups: int,
    feature_groups: int, spatial: tuple[str, ...],
) -> Factors:  # fmt: skip
    """The factors of a convolution: batch and output features pass through, input features are contracted; with groups
    the group dimension passes through, in whole groups per device. `spatial` says per spatial dimension what is split
    together with the input: "out" (outputs, by halo exchange), "kernel" (contracted), "batch" (both: output t is made
    of input t and tap t alone), or "" if it is whole."""
    sizes: list[int] = []
    kinds: list[int] = []

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
        elif mode == "batch":
            left[i] = right[k] = result[o] = factor(out[o], PASS)
    return Factors(tuple(sizes), tuple(kinds), (tuple(left), tuple(right)), (tuple(result),), even)


def convolution(ctx: Context, op: Op) -> Iterator[Splits]:
    """The ways to split a convolution, for each way to see its spatial dimensions. A split contraction (input features,
    or a kernel as large as the input) leaves a partial sum."""
    shapes = op.operands[0].type.shape, op.operands[1].type.shape, op.results[0].type.shape
    d, axes = _axes_of(op)
    padding = padding_of(op, len(axes))
    modes = itertools.product(*map(_modes, axes))
    found = [_splits(ctx, op, d, axes, padding, shapes, spatial) for spatial in modes]
    whole = ("",) * len(axes)  # needs no windows
    ways = [splits for splits in found if splits is not None]
    return iter(ways or filter(None, [_splits(ctx, op, d, axes, padding, shapes, whole)]))


def _axes_of(op: Op) -> tuple[ConvDims, tuple[Axis, ...]]:
    """The dimensions of a convolution, and its spatial ones as windows see them."""
    (left, right), out = (v.type.shape for v in op.operands), op.results[0].type.shape
    d = conv_dims(op.attrs["dimension_numbers"])
    rank = len(d.input_spatial)
    spread, step, base = (per_dim(op, n, rank) for n in ("rhs_dilation", "window_strides", "lhs_dilation"))
    lows = [low for low, _ in padding_of(op, rank)]
    around = zip(d.input_spatial, d.output_spatial, d.kernel_spatial, spread, step, base, lows, _reversals(op, rank))
    return d, tuple([Axis(left[i], out[o], right[k], *rest) for i, o, k, *rest in around])


def _modes(axis: Axis) -> tuple[str, ...]:
    """The modes of `_conv_factors` to try for a spatial dimension: "out" for a small window, "kernel" for one as large
    as the input. Small is judged by the number of taps and by their reach, which may disagree (windows that do not
    overlap may have more taps than there are windows): then both are tried."""
    if axis.is_batch:
        return ("batch",)
    few = axis.out >= axis.taps, axis.out * axis.step >= axis.taps * axis.spread
    return tuple(dict.fromkeys("out" if f else "kernel" for f in few))


def _reversals(op: Op, rank: int) -> tuple[bool, ...]:
    """Per spatial dimension, whether its kernel is reversed."""
    return tuple(map(bool, per_dim(op, "window_reversal", rank, 0)))


class _Plan(NamedTuple):
    """How a convolution is split: the choice among its factors, and by spatial dimension the `windows` of the input and
    the `taps` of the kernel that devices fetch."""

    factors: Factors
    choice: Choice
    spatial: tuple[str, ...]
    windows: dict[int, Window]
    taps: dict[int, Window]


def _groups(op: Op) -> dict[str, int]:
    return {k: integer(op.attrs[k]) for k in ("batch_group_count", "feature_group_count")}


def _splits(
    ctx: Context, op: Op, d: ConvDims, axes: tuple[Axis, ...], padding: Sequence[tuple[int, int]], shapes: _Shapes,
    spatial: tuple[str, ...],
) -> Splits | None:  # fmt: skip
    """The ways to split a convolution whose spatial dimensions have the modes `spatial`; None if in the cheapest one
    devices would need windows of different forms (lengths or paddings), as one program for all cannot have."""
    factors = _conv_factors(d, *shapes, *_groups(op).values(), spatial)
    per_element = 2 * ctx.byte_per_flop
    for i, k, o in zip(d.input_spatial, d.kernel_spatial, d.output_spatial):
        taken = {f[i] for f, i in ((factors.operands[0], i), (factors.operands[1], k), (factors.results[0], o))}
        per_element *= shapes[1][k] * shapes[2][o] / max(1, *[factors.sizes[f] for f in taken if f >= 0], 1)
    borders = _HaloPrice(op, d, axes, spatial, shapes)

    def planned(choice: Choice) -> _Plan | None:
        found = borders.windows(ctx, choice.operands)
        windows, taps = ({j: w for j, w in which.items() if w is not None} for which in found)
        if (len(windows), len(taps)) != tuple(map(len, found)):
            return None
        return _Plan(factors, choice, spatial, windows, taps)

    def write(choice: Choice) -> None:
        plan = planned(choice)
        assert plan is not None, "the cheapest way has windows of one form"
        _convolve(ctx, op, d, axes, padding, plan)

    splits = Splits(factors, op.operands, op.results, per_element, write, borders if any(spatial) else None)
    return None if planned(splits.best(ctx)[0]) is None else splits


def _convolve(
    ctx: Context, op: Op, d: ConvDims, axes: Sequence[Axis], padding: Sequence[tuple[int, int]], plan: _Plan
) -> None:  # fmt: skip
    lhs, rhs = op.operands
    result = op.results[0]
    factors, choice, _, plans, kernel = plan
    layout, groups = choice.operands[0], _groups(op)
    note_gathered(ctx, factors, (lhs, rhs), choice.operands, _WHY)
    zeros = [ctx.realiser.zero(ctx.region, (), v.type.dtype) for v in (lhs, rhs)]
    needs = {d.input_spatial[j]: (plan.starts, plan.length, plan.counts) for j, plan in plans.items()}
    taps = {d.kernel_spatial[j]: (plan.starts, plan.length, plan.counts) for j, plan in kernel.items()}
    operands = [
        bordered(ctx, lhs, layout, needs, zeros[0], 0),
        bordered(ctx, rhs, choice.operands[1], taps, zeros[1], 0),
    ]
    under = [d.input_spatial[j] for j in kernel]
    fixed = [k for k, mode in zip(d.kernel_spatial, plan.spatial) if mode == "kernel" and k not in taps]
    contracted = ((d.input_feature, *under), (d.kernel_input_feature, *fixed))
    operands = [
        ctx.masked(ref, v.type.shape, dims, which)
        for ref, v, dims, which in zip(operands, (lhs, rhs), choice.operands, contracted)
    ]
    around = {**plans, **kernel}
    paired = [layout[i] and mode == "batch" for mode, i in zip(plan.spatial, d.input_spatial)]
    lengths = [operands[0].shape[i] for i in d.input_spatial]
    local = Local(
        d,
        [a.step for a in axes],
        [a.base for a in axes],
        [a.spread for a in axes],
        [
            (around[j].low, around[j].high) if j in around else _paired_padding(axis, n) if pairs else pad
            for j, (axis, pad, pairs, n) in enumerate(zip(axes, padding, paired, lengths))
        ],
        {k: -(-n // ctx.atoms.product(choice.results[0][d.output_feature])) for k, n in groups.items()},
        not any(axis.turned for axis in axes),
    )
    out = choice.results[0]
    made = {d.output_spatial[j]: w for j, w in plans.items() if w.more}
    shape = [n + made[i].more if i in made else n for i, n in enumerate(ctx.piece_shape(result, out))]
    cuts: dict[int, Cut | None] = {}
    for own, found in ((1, plans), (0, kernel)):
        for j in [j for j in found if plan.spatial[j] == "kernel"]:
            atoms = layout[d.input_spatial[j]]
            cuts[j] = cut_of(axes[j], found[j], own, atoms, op.results[0].type.dtype)
    ref = _added(ctx, op, local, operands, tuple(shape), {j: cut for j, cut in cuts.items() if cut is not None})
    for i, w in made.items():
        ref = own_part(ctx, ref, i, out[i], w)
    ctx.bind_partial(result, choice.results[0], {choice.pending: ref})


def _added(
    ctx: Context, op: Op, local: Local, operands: Sequence[LocalValue], shape: tuple[int, ...],
    cuts: dict[int, Cut],
) -> LocalValue:  # fmt: skip
    """The convolution of the pieces; along the spatial dimensions `cuts` it is a sum of convolutions of parts."""
    if not cuts:
        return convolve(ctx, op, local, operands, shape)
    (j, cut), *others = cuts.items()
    total: LocalValue | None = None
    for refs, part in parts_of(ctx, cut, operands, (local.dims.input_spatial[j], local.dims.kernel_spatial[j])):
        around = part.window.low, part.window.high
        padding = [around if i == j else pad for i, pad in enumerate(local.padding)]
        ref = _added(ctx, op, local._replace(padding=padding), refs, shape, dict(others))
        ref = kept(ctx, cut, part, ref, local.dims.output_spatial[j])
        total = ref if total is None else ctx.emit("stablehlo.add", (total, ref), shape, ref.dtype)
    assert total is not None  # a cut has parts
    return total


def _paired_padding(axis: Axis, n: int) -> tuple[int, int]:
    """The local padding of a spatial dimension that is a batch dimension, of which a device has `n` positions."""
    around = (n - 1) * axis.spread if axis.turned else 0
    return around, around


def _left_to_fetch(use: Use, at: int, window: Window) -> float:
    """The share of a window's border along dimension `at` of a value that is to be fetched for it alone: nothing if the
    `use` of the value fetches the same."""
    if use.op.name in _POOLING:
        return SHARED_HALO_SHARE
    if use.op.name != "stablehlo.convolution" or use.number:
        return 1.0
    d, axes = _axes_of(use.op)
    if at not in d.input_spatial or "out" not in _modes(axes[d.input_spatial.index(at)]):
        return 1.0
    axis = axes[d.input_spatial.index(at)]
    other = own_outputs(axis, len(window.starts))
    theirs = set() if other is None else border_parts(other.starts, other.counts, axis.size)
    return 0.0 if border_parts(window.starts, window.counts, axis.size) <= theirs else 1.0


class _HaloPrice(NamedTuple):
    """Prices the halos that devices need along split spatial dimensions (a `Border` of `choose`)."""

    op: Op
    dims: ConvDims
    axes: tuple[Axis, ...]
    spatial: tuple[str, ...]
    shapes: _Shapes

    def windows(
        self, ctx: Context, layouts: Sequence[Dims]
    ) -> tuple[dict[int, Window | None], dict[int, Window | None]]:
        """({spatial dimension: window of the input}, {spatial dimension: window of the kernel}) to fetch. A contraction
        over a split dimension needs one of the two: preferably of an operand that other windows slide over too, because
        one halo then serves both; of as many bytes, one with which it need not be cut (`contraction_cuts`)."""
        plans: dict[int, Window | None] = {}
        kernel: dict[int, Window | None] = {}
        d = self.dims
        for j, (mode, i, k, axis) in enumerate(zip(self.spatial, d.input_spatial, d.kernel_spatial, self.axes)):
            if mode not in ("out", "kernel") or not layouts[0][i]:
                continue
            p = ctx.atoms.product(layouts[0][i])
            if mode == "out":
                plans[j] = own_outputs(axis, p)
                continue
            options = (own_taps(axis, p), taps_of_own_inputs(axis, p))
            costs = [self._cost(ctx, axis, own, plan, layouts, at) for own, plan, at in zip((1, 0), options, (i, k))]
            if costs[1] < costs[0]:
                kernel[j] = options[1]
            else:
                plans[j] = options[0]
        return plans, kernel

    def _cost(
        self, ctx: Context, axis: Axis, own: int, plan: Window | None, layouts: Sequence[Dims], at: int
    ) -> tuple[int, float, bool]:
        """(0, 1 to be avoided or 2 impossible; bytes; cut) of a contraction over a split dimension, where devices have
        pieces of operand `own` and fetch a window along dimension `at` of the other operand."""
        if plan is None:
            return 2, 0.0, True
        v, dims, shape = self.op.operands[1 - own], layouts[1 - own], self.shapes[1 - own]
        cut = cut_of(axis, plan, own, dims[at], self.op.results[0].type.dtype)
        rows = lacking(plan.starts, plan.counts, shape[at])
        size = rows * ctx.elements(shape, dims) / -(-shape[at] // len(plan.starts)) * ctx.itemsize(v)
        share = min((_left_to_fetch(use, at, plan) for use in v.uses if use.op is not self.op), default=1.0)
        if cut is None:
            return 0, size * share, False
        copies = ctx.topology.compiler == "tpu"  # of every operand of each part, in its own layout
        return (2 if not cut.parts else int(copies)), size * share, True

    def __call__(self, ctx: Context, layouts: Sequence[Dims]) -> float:
        """Bytes of halos that the busiest device receives. Dimensions without a possible window count as 0: the plan is
        rejected later."""
        total = 0.0
        places = (self.dims.input_spatial, self.dims.kernel_spatial)
        for found, v, dims, at, shape in zip(
            self.windows(ctx, layouts), self.op.operands, layouts, places, self.shapes
        ):
            for j, plan in found.items():
                size = shape[at[j]]
                if plan is not None:
                    row = ctx.itemsize(v) * ctx.elements(shape, dims) / -(-size // len(plan.starts))
                    rows = lacking(plan.starts, plan.counts, size)
                    total += row * rows + (ctx.message if rows else 0.0)
        return total


CANDIDATES = {"stablehlo.convolution": convolution}
