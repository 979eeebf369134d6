"""Convolutions whose contracted spatial dimension is split: keeping 0 * inf out of the sums.

The gradient of a kernel contracts over image positions. Split along them, each device contracts its piece of one
operand with a window of the other one, all windows being equally long. Some products then exist that one device alone
would not compute: padding at the end of the last piece times numbers of the window, or inputs times zeros beyond the
ends of a kernel. They should add zero, but zero times infinity or NaN is NaN.

So the positions of a piece are cut into a few parts, each of positions that are multiplied in the same outputs; the
parts are convolved one by one, and of each result a device keeps the outputs in which one device alone has these
products, with zeros elsewhere. Inputs f32[30] over 4 devices are pieces of 8, the last with 2 positions of padding: a
part [0, 6), and a part [6, 8) that the last device masks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..halo.reach import Axis, Window, inputs_of_taps, taps_of_inputs
from ..heuristics import CONTRACTION_PARTS
from ..ir.attributes import Dense
from ..ir.operations import attributes
from ..ir.program import LocalValue
from ..layouts.context import Context

__all__ = ["Cut", "cut_of", "kept", "parts_of"]


class _Part(NamedTuple):
    """Positions [start, stop) of every piece, which are convolved with the part `window` of the piece's window. `wrong`
    (bool[devices, outputs]) are the outputs with products that one device alone does not have; None if there are
    none."""

    start: int
    stop: int
    window: Window
    wrong: np.ndarray | None


class Cut(NamedTuple):
    """How the contraction over a spatial dimension is cut. `own` is the operand (0: input, 1: kernel) that is split
    into pieces, along `atoms`; of the other one each device fetches a window."""

    own: int
    atoms: Sequence[int]
    parts: tuple[_Part, ...]


def cut_of(axis: Axis, window: Window, own: int, atoms: Sequence[int], dtype: str) -> Cut | None:
    """The cut of a contraction over this axis; one without parts if it would have too many. None if no cut is needed:
    if all products are those of one device, or if products with zero are zero in `dtype` (integers)."""
    if not dtype.startswith(("f", "bf", "complex")):
        return None
    parts = _parts(axis, window, own)
    return None if len(parts) == 1 and parts[0].wrong is None else Cut(own, atoms, parts)


@functools.lru_cache(maxsize=256)
def _parts(axis: Axis, window: Window, own: int) -> tuple[_Part, ...]:
    piece = -(-(axis.taps if own else axis.size) // len(window.starts))
    under = inputs_of_taps if own else taps_of_inputs
    runs: list[tuple[int, np.ndarray, np.ndarray]] = []
    for i in range(piece):
        right, wrong = _met(axis, window, own, piece, i)
        if runs:
            start, before, never = runs[-1]
            if not ((before | right) & (never | wrong)).any():
                runs[-1] = start, before | right, never | wrong
                continue
        if len(runs) == CONTRACTION_PARTS:
            return ()
        runs.append((i, right, wrong))
    stops = [start for start, _, _ in runs[1:]] + [piece]
    parts = []
    for (start, _, wrong), stop in zip(runs, stops):
        part = under(axis, window, piece, start, stop)
        if part is not None:
            parts.append(_Part(start, stop, part, wrong if wrong.any() else None))
    return tuple(parts)


def _met(axis: Axis, window: Window, own: int, piece: int, i: int) -> tuple[np.ndarray, np.ndarray]:
    """(right, wrong), both bool[devices, outputs]: the outputs in which position i of a piece is multiplied with what
    one device alone multiplies it with, and those in which it is multiplied with something else."""
    size, others = (axis.taps, axis.size) if own else (axis.size, axis.taps)
    t = np.arange(axis.out) * axis.step
    if own:
        far = (piece - 1 - i if axis.turned else i) * axis.spread + t - window.low
        other, rest = np.divmod(far, axis.base)
    else:
        other, rest = np.divmod(window.low + i * axis.base - t, axis.spread)
    lands = (rest == 0) & (other >= 0) & (other < window.length)
    if axis.turned and not own:
        other = window.length - 1 - other
    there = np.array(window.starts)[:, None] + other
    number = lands & (there >= 0) & (there < others)
    mine = (np.arange(len(window.starts)) * piece + i < size)[:, None]
    # A device alone pads inputs with zeros too, but never a kernel.
    right = mine & (lands if own else number)
    return right, lands & np.where(mine, ~right, number)


def parts_of(
    ctx: Context, cut: Cut, operands: Sequence[LocalValue], dims: Sequence[int]
) -> list[tuple[list[LocalValue], _Part]]:
    """The operands of each part's convolution, with the part; `dims` are the contracted dimensions of the operands."""
    parts, other = [], 1 - cut.own
    for part in cut.parts:
        refs, first = list(operands), part.window.starts[0]
        refs[cut.own] = ctx.realiser.cut(ctx.region, refs[cut.own], dims[cut.own], part.start, part.stop, ctx.loc)
        stop = first + part.window.length
        refs[other] = ctx.realiser.cut(ctx.region, refs[other], dims[other], first, stop, ctx.loc)
        parts.append((refs, part))
    return parts


def kept(ctx: Context, cut: Cut, part: _Part, ref: LocalValue, dim: int) -> LocalValue:
    """A part's result with zeros along `dim` in the outputs that are wrong on this device."""
    if part.wrong is None:
        return ref
    rows, n = part.wrong.shape
    attrs = attributes("stablehlo.constant", Dense.of(part.wrong, "i1"))
    table = ctx.region.entry("stablehlo.constant", (), (rows, n), "i1", attrs)
    me, zero = ctx.realiser.coordinate(ctx.region, cut.atoms), ctx.realiser.index(ctx.region, 0)
    row = ctx.region.entry(
        "stablehlo.dynamic_slice", (table, me, zero), (1, n), "i1", attributes("stablehlo.dynamic_slice", (1, n))
    )
    row = ctx.region.entry("stablehlo.reshape", (row,), (n,), "i1")
    attrs = attributes("stablehlo.broadcast_in_dim", (dim,))
    wrong = ctx.emit("stablehlo.broadcast_in_dim", (row,), ref.shape, "i1", attrs)
    zeros = ctx.realiser.zero(ctx.region, ref.shape, ref.dtype)
    return ctx.emit("stablehlo.select", (wrong, zeros, ref), ref.shape, ref.dtype)
