"""Convolutions contracted over positions of which some meet, on some devices, what one device does not make them meet:
padding of the last pieces that meets numbers of the window, and inputs that meet zeros beyond the ends of a kernel.

Products of zero and infinity, or of zero and what is not a number, would be added up there. So positions are contracted
together that are met in the same outputs, and of what they make, devices keep the outputs in which they are met.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..emit import Ref
from .context import Context
from .reaches import Axis, Window, inputs_of_taps, taps_of_inputs

__all__ = ["Cut", "cut_of", "kept", "parts_of"]

_MOST = 4  # contractions instead of one


class _Part(NamedTuple):
    """Positions [start, stop) of all pieces meet what `window` says of the piece's window, but not in the outputs
    `wrong` (bool[devices, outputs]; None if in all)."""

    start: int
    stop: int
    window: Window
    wrong: np.ndarray | None


class Cut(NamedTuple):
    """How the contraction over a spatial dimension is cut. `own` is the operand (0: input, 1: kernel) of which a device
    has a piece, along `atoms`; the other one is under a window."""

    own: int
    atoms: Sequence[int]
    parts: tuple[_Part, ...]


def cut_of(axis: Axis, window: Window, own: int, atoms: Sequence[int], dtype: str) -> Cut | None:
    """The cut of a contraction over this axis, without parts if it had too many; None if all is met as on one device,
    or if products of `dtype` with zero are zero."""
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
        if len(runs) == _MOST:
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
    """In which outputs position i of a piece is multiplied as on one device, and in which ones not as there (bool[
    devices, outputs])."""
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
    # One device pads inputs with zeros too, but never a kernel.
    right = mine & (lands if own else number)
    return right, lands & np.where(mine, ~right, number)


def parts_of(ctx: Context, cut: Cut, operands: Sequence[Ref], dims: Sequence[int]) -> list[tuple[list[Ref], _Part]]:
    """The operands of the convolutions to add up, and what each is; `dims` are the two operands' dimensions."""
    parts, other = [], 1 - cut.own
    for part in cut.parts:
        refs, first = list(operands), part.window.starts[0]
        refs[cut.own] = ctx.realiser.cut(ctx.region, refs[cut.own], dims[cut.own], part.start, part.stop, ctx.loc)
        stop = first + part.window.length
        refs[other] = ctx.realiser.cut(ctx.region, refs[other], dims[other], first, stop, ctx.loc)
        parts.append((refs, part))
    return parts


def kept(ctx: Context, cut: Cut, part: _Part, ref: Ref, dim: int) -> Ref:
    """What this device keeps of a part's result: zeros along `dim` where it is wrong."""
    if part.wrong is None:
        return ref
    rows, n = part.wrong.shape
    text = ", ".join("[" + ", ".join("true" if w else "false" for w in row) + "]" for row in part.wrong)
    attrs = f"value = dense<[{text}]> : tensor<{rows}x{n}xi1>"
    table = ctx.region.entry("stablehlo.constant", (), (rows, n), "i1", attrs)
    me, zero = ctx.realiser.coordinate(ctx.region, cut.atoms), ctx.realiser.index(ctx.region, 0)
    row = ctx.region.entry(
        "stablehlo.dynamic_slice", (table, me, zero), (1, n), "i1", f"slice_sizes = array<i64: 1, {n}>"
    )
    row = ctx.region.entry("stablehlo.reshape", (row,), (n,), "i1")
    attrs = f"broadcast_dimensions = array<i64: {dim}>"
    wrong = ctx.emit("stablehlo.broadcast_in_dim", (row,), ref.shape, "i1", attrs)
    zeros = ctx.realiser.zero(ctx.region, ref.shape, ref.dtype)
    return ctx.emit("stablehlo.select", (wrong, zeros, ref), ref.shape, ref.dtype)
