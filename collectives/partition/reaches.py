"""What windows that move over a split dimension reach: which inputs and which taps a device needs for its outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from propagation.attributes import integers, pairs
from propagation.program import Op

from ..emit import Ref
from .context import Context

__all__ = [
    "Axis", "Window", "inputs_of_taps", "own_outputs", "own_part", "own_taps", "padding_of", "per_dim",
    "taps_of_inputs", "taps_of_own_inputs",
]  # fmt: skip


class Axis(NamedTuple):
    """A window moving over one dimension: its input and output sizes, taps and their spacing, step, spacing of the
    input (base dilation) and padding in front. A `turned` window meets inputs with its last tap first."""

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
        """Whether output t is made of input t and tap t alone: products of many matrices, written as a convolution.

        With step s, spacing d of taps and b of inputs, output t meets input j and tap k where j b = t s + k d - low.
        That has j = k = t as its solution if b = s + d and low = 0, and no other one within n positions if a multiple
        of b that is one of d takes n inputs or taps.
        """
        n = self.size
        if not n == self.out == self.taps or n < 2:
            return False
        if self.turned:  # tap k meets what tap n - 1 - k would meet
            far = self.base + self.spread >= n * math.gcd(self.base, self.spread)
            return far and self.step == self.base + self.spread and self.low == (n - 1) * self.spread
        far = max(self.base, self.spread) >= n * math.gcd(self.base, self.spread)
        return far and self.base == self.step + self.spread and self.low == 0


class Window(NamedTuple):
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


def _needed(first: int, jump: int, reach: int, base: int, p: int) -> Window | None:
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
    return Window(starts, count, low, reach - low - (count - 1) * base - 1, (count,) * p)


def own_outputs(axis: Axis, p: int) -> Window | None:
    """For outputs [c*m, (c+1)*m). Where devices' windows start differently between two inputs, some begin outputs
    earlier than they own, so that all windows have one form: of the ways to do so, the one with the fewest inputs."""
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
    for c in range(p):  # who owns fewer outputs needs less; nobody looks at the others
        missing = m - max(0, min(m, axis.out - c * m))
        last = (firsts[c] + reach - 1 - missing * axis.step) // axis.base
        counts[c] = 0 if missing == m else max(0, min(counts[c], last - found.starts[c] + 1))
    return found._replace(counts=tuple(counts))


def _aligned(firsts: Sequence[int], reach: int, step: int, base: int, rest: int) -> Window | None:
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
    return Window(tuple(starts), count, low, high, counts, skip)


def own_taps(axis: Axis, p: int) -> Window | None:
    """For taps [c*k, (c+1)*k) of the kernel and all outputs."""
    k = -(-axis.taps // p)
    reach = (axis.out - 1) * axis.step + (k - 1) * axis.spread + 1
    jump = k * axis.spread
    if axis.turned:
        return _needed((axis.taps - k) * axis.spread - axis.low, -jump, reach, axis.base, p)
    return _needed(-axis.low, jump, reach, axis.base, p)


def inputs_of_taps(axis: Axis, window: Window, piece: int, start: int, stop: int) -> Window | None:
    """Of the `window` of inputs under a piece of taps, that under its taps [start, stop); None if there is none."""
    low = window.low - (piece - stop if axis.turned else start) * axis.spread
    reach = (axis.out - 1) * axis.step + (stop - start - 1) * axis.spread + 1
    return _needed(-low, 0, reach, axis.base, 1)


def taps_of_own_inputs(axis: Axis, p: int) -> Window | None:
    """The taps of the kernel that meet inputs [c*s, (c+1)*s) in some output, and the padding that then goes around the
    device's own inputs; None if they start differently on different devices."""
    s = -(-axis.size // p)
    if s * axis.base % axis.spread:
        return None
    return _meeting(axis, s, s * axis.base // axis.spread, p)


def taps_of_inputs(axis: Axis, window: Window, piece: int, start: int, stop: int) -> Window | None:
    """Of the `window` of taps that meet a piece of inputs, those that meet inputs [start, stop) of it; None if there
    are none."""
    local = axis._replace(taps=window.length, low=window.low + start * axis.base)
    return _meeting(local, stop - start, 0, 1)


def _meeting(axis: Axis, s: int, jump: int, p: int) -> Window | None:
    """The taps that meet `s` inputs, which lie `jump` taps behind those of the device before; None if there are
    none."""
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


def own_part(ctx: Context, ref: Ref, d: int, atoms: Sequence[int], plan: Window) -> Ref:
    """The outputs that a device owns along dimension d, of those that it made."""
    if not plan.more:
        return ref
    first = ctx.realiser.table(ctx.region, np.array(plan.skip), ctx.realiser.coordinate(ctx.region, atoms))
    return ctx.realiser.window(ctx.region, ref, d, first, ref.shape[d] - plan.more, ctx.loc)
