"""Halo arithmetic of windows (convolutions, pooling) over split dimensions: which inputs, or which taps of the kernel,
a device needs for its own outputs, inputs or taps.

All devices run one program, so that their windows must have one form: equal length, equal local padding. A window of 3
taps, padding 1, over 1024 elements on 8 devices: device c needs inputs [128 c - 1, 128 c + 129), which is
Window(starts=(-1, 127, ...), length=130, low=0, high=0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from propagation.attributes import integers, pairs
from propagation.program import Op

from ..ir.program import LocalValue
from ..layouts.context import Context

__all__ = [
    "Axis", "Window", "inputs_of_taps", "own_outputs", "own_part", "own_taps", "padding_of", "per_dim",
    "taps_of_inputs", "taps_of_own_inputs",
]  # fmt: skip


class Axis(NamedTuple):
    """A window moving over one dimension.

    size, out   sizes of input and output
    taps        size of the window; neighbouring taps are `spread` inputs apart (window dilation)
    step        stride of the window
    base        inputs are `base` positions apart (base dilation)
    low         padding in front
    turned      the window is reversed
    """

    size: int
    out: int
    taps: int
    spread: int
    step: int
    base: int
    low: int
    turned: bool = False

    @property
    def is_batch(self) -> bool:
        """Whether output t is made of input t and tap t alone: a batched matrix product, written as a convolution.

        With stride s, taps d apart and inputs b apart, output t adds input j times tap k where j b = t s + k d - low.
        If b = s + d and low = 0, j = k = t is a solution; it is the only one within n positions if the least common
        multiple of b and d is n inputs or taps away.
        """
        n = self.size
        if not n == self.out == self.taps or n < 2:
            return False
        if self.turned:  # tap k is multiplied with what tap n - 1 - k would be
            far = self.base + self.spread >= n * math.gcd(self.base, self.spread)
            return far and self.step == self.base + self.spread and self.low == (n - 1) * self.spread
        far = max(self.base, self.spread) >= n * math.gcd(self.base, self.spread)
        return far and self.base == self.step + self.spread and self.low == 0


class Window(NamedTuple):
    """What devices need of a dimension, by coordinate c along it.

    starts, length  positions [starts[c], starts[c] + length)
    low, high       local padding around them
    counts          only the first counts[c] of them matter
    skip            outputs that device c computes before its own, and does not keep (none if empty)
    """

    starts: tuple[int, ...]
    length: int
    low: int
    high: int
    counts: tuple[int, ...]
    skip: tuple[int, ...] = ()

    @property
    def more(self) -> int:
        """How many outputs a device computes beyond its own."""
        return max(self.skip, default=0)


def _needed(first: int, jump: int, reach: int, base: int, p: int) -> Window | None:
    """The inputs among positions [first + c * jump, first + c * jump + reach) of a base-dilated dimension, for each of
    p coordinates c. None if the distance from these positions to the first input differs between devices."""
    if base > 1 and jump % base:
        return None
    start = -(-first // base)
    low = start * base - first
    count = (first + reach - 1) // base - start + 1
    if count < 1:
        return None
    starts = tuple(start + c * (jump // base) for c in range(p))
    return Window(starts, count, low, reach - low - (count - 1) * base - 1, (count,) * p)


def own_outputs(axis: Axis, p: int) -> Window | None:
    """The inputs that each of p devices needs for its own outputs. With base dilation, windows may begin at different
    distances from an input; then some devices begin a few outputs earlier (`skip`), so that all have one form: of the
    ways to do so, the one with the fewest inputs."""
    m = -(-axis.out // p)
    reach = (m - 1) * axis.step + (axis.taps - 1) * axis.spread + 1
    firsts = [c * m * axis.step - axis.low for c in range(p)]
    if m * axis.step % axis.base == 0:
        found = _needed(-axis.low, m * axis.step, reach, axis.base, p)
    else:
        every = [_aligned(firsts, reach, axis.step, axis.base, rest) for rest in range(axis.step)]
        found = min(filter(None, every), key=lambda w: (w.length, w.low), default=None)
    if found is None:
        return None
    counts = list(found.counts)
    for c in range(p):  # the last devices own fewer outputs, and need fewer inputs
        missing = m - max(0, min(m, axis.out - c * m))
        last = (firsts[c] + reach - 1 - missing * axis.step) // axis.base
        counts[c] = 0 if missing == m else max(0, min(counts[c], last - found.starts[c] + 1))
    return found._replace(counts=tuple(counts))


def _aligned(firsts: Sequence[int], reach: int, step: int, base: int, rest: int) -> Window | None:
    """Windows of one form over `reach` positions from each of `firsts` on: each begins at an input whose distance from
    the device's first position is `rest` modulo the step, some of them at earlier outputs that the device skips."""
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
    return Window(tuple(starts), count, low, high, counts, skip)


def own_taps(axis: Axis, p: int) -> Window | None:
    """The inputs that each of p devices needs for its own taps of the kernel, split into p pieces, and all outputs."""
    k = -(-axis.taps // p)
    reach = (axis.out - 1) * axis.step + (k - 1) * axis.spread + 1
    jump = k * axis.spread
    if axis.turned:
        return _needed((axis.taps - k) * axis.spread - axis.low, -jump, reach, axis.base, p)
    return _needed(-axis.low, jump, reach, axis.base, p)


def inputs_of_taps(axis: Axis, window: Window, piece: int, start: int, stop: int) -> Window | None:
    """The part of such a `window` of inputs that taps [start, stop) of each `piece` of taps need; None if it is
    empty."""
    low = window.low - (piece - stop if axis.turned else start) * axis.spread
    reach = (axis.out - 1) * axis.step + (stop - start - 1) * axis.spread + 1
    return _needed(-low, 0, reach, axis.base, 1)


def taps_of_own_inputs(axis: Axis, p: int) -> Window | None:
    """The taps of the kernel that are multiplied with a device's own inputs, of p pieces, in some output; `low` and
    `high` then pad the inputs. None if windows would have different forms."""
    s = -(-axis.size // p)
    if s * axis.base % axis.spread:
        return None
    return _meeting(axis, s, s * axis.base // axis.spread, p)


def taps_of_inputs(axis: Axis, window: Window, piece: int, start: int, stop: int) -> Window | None:
    """The part of such a `window` of taps that is multiplied with inputs [start, stop) of each `piece` of inputs; None
    if it is empty."""
    local = axis._replace(taps=window.length, low=window.low + start * axis.base)
    return _meeting(local, stop - start, 0, 1)


def _meeting(axis: Axis, s: int, jump: int, p: int) -> Window | None:
    """The taps that are multiplied with `s` inputs in some output; the inputs of each device lie `jump` taps behind
    those of the device before. None if there are none."""
    first = -(-(axis.low - (axis.out - 1) * axis.step) // axis.spread)
    length = ((s - 1) * axis.base + axis.low) // axis.spread - first + 1
    if length < 1:
        return None
    low = axis.low - first * axis.spread
    span = (axis.out - 1) * axis.step + (length - 1) * axis.spread + 1
    starts = tuple(first + c * jump for c in range(p))
    if axis.turned:
        starts = tuple(axis.taps - start - length for start in starts)
    return Window(starts, length, low, span - low - (s - 1) * axis.base - 1, (length,) * p)


def per_dim(op: Op, name: str, rank: int, default: int = 1) -> tuple[int, ...]:
    return integers(op.attrs[name]) if name in op.attrs else (default,) * rank


def padding_of(op: Op, rank: int) -> tuple[tuple[int, int], ...]:
    return pairs(op.attrs["padding"]) if "padding" in op.attrs else ((0, 0),) * rank


def own_part(ctx: Context, ref: LocalValue, d: int, atoms: Sequence[int], plan: Window) -> LocalValue:
    """The outputs that a device owns along dimension d, of those that it computed."""
    if not plan.more:
        return ref
    first = ctx.realiser.table(ctx.region, np.array(plan.skip), ctx.realiser.coordinate(ctx.region, atoms))
    return ctx.realiser.window(ctx.region, ref, d, first, ref.shape[d] - plan.more, ctx.loc)
