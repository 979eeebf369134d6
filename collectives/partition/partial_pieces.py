"""Convolutions contracted over positions in pieces of which the last ones are padding, or partly so.

Padding is zero, but the window that is fetched for a piece may hold numbers there, which its own positions meet at
other outputs: products of zero and infinity, or of zero and what is not a number, would be added up that one device
never makes. So the positions that all pieces have and those that the last one lacks are contracted apart, and windows
are zero where there is only padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..emit import Ref
from .context import Context
from .reaches import Axis, Window, inputs_of_taps, taps_of_inputs

__all__ = ["Cut", "cut_of", "inexact", "parts_of"]


class _Part(NamedTuple):
    """Positions [start, stop) of all pieces meet what `window` says of the piece's window; on devices from coordinate
    `owners` on they are padding that would meet numbers (all devices: nowhere)."""

    start: int
    stop: int
    owners: int
    window: Window


class Cut(NamedTuple):
    """How the contraction over a spatial dimension is cut. `own` is the operand (0: input, 1: kernel) of which a device
    has a piece, along `atoms`; the other one is under a window."""

    own: int
    atoms: Sequence[int]
    devices: int
    parts: tuple[_Part, ...]


def inexact(dtype: str) -> bool:
    """Whether zero times a number of this type need not be zero: it may be infinite, or not a number."""
    return dtype.startswith(("f", "bf", "complex"))


def cut_of(axis: Axis, window: Window, own: int, atoms: Sequence[int], dtype: str) -> Cut | None:
    """The cut of a contraction over this axis; None if padding meets nothing but padding, or integers (`dtype` is that
    of the operand under the window), of which zero times any is zero."""
    size, others = (axis.taps, axis.size) if own else (axis.size, axis.taps)
    devices = len(window.starts)
    piece = -(-size // devices)
    full, left = divmod(size, piece)
    some = full + (left > 0)
    if some == full == devices or not inexact(dtype):
        return None

    def under(start: int, stop: int) -> Window | None:
        part = inputs_of_taps if own else taps_of_inputs
        return part(axis, window, piece, start, stop)

    def clash(part: Window | None, c: int) -> bool:
        first = 0 if part is None else window.starts[c] + part.starts[0]
        return part is not None and max(0, first) < min(others, first + part.length)

    def known(start: int, stop: int, owners: int) -> list[_Part]:
        part = under(start, stop)
        owners = owners if any(clash(part, c) for c in range(owners, devices)) else devices
        return [] if part is None else [_Part(start, stop, owners, part)]

    if left and clash(under(left, piece), full):
        parts = known(0, left, some) + known(left, piece, full)
    else:
        parts = known(0, piece, some)
        if all(part.owners == devices for part in parts):
            return None
    return Cut(own, atoms, devices, tuple(parts))


def parts_of(ctx: Context, cut: Cut, operands: Sequence[Ref], dims: Sequence[int]) -> list[tuple[list[Ref], Window]]:
    """The operands of the convolutions to add up, and the padding that each has; `dims` are the two operands'
    dimensions."""
    parts, other = [], 1 - cut.own
    for start, stop, owners, window in cut.parts:
        refs, first = list(operands), window.starts[0]
        refs[cut.own] = ctx.realiser.cut(ctx.region, refs[cut.own], dims[cut.own], start, stop, ctx.loc)
        ref = ctx.realiser.cut(ctx.region, refs[other], dims[other], first, first + window.length, ctx.loc)
        refs[other] = ref if owners == cut.devices else _where_owned(ctx, cut, owners, ref)
        parts.append((refs, window))
    return parts


def _where_owned(ctx: Context, cut: Cut, owners: int, ref: Ref) -> Ref:
    """`ref` on the first `owners` devices, zeros on the others."""
    attrs = "comparison_direction = #stablehlo<comparison_direction LT>"
    me, bound = ctx.realiser.coordinate(ctx.region, cut.atoms), ctx.realiser.index(ctx.region, owners)
    owned = ctx.region.entry("stablehlo.compare", (me, bound), (), "i1", attrs)
    owned = ctx.realiser.splat(ctx.region, owned, ref.shape)
    zeros = ctx.realiser.zero(ctx.region, ref.shape, ref.dtype)
    return ctx.emit("stablehlo.select", (owned, ref, zeros), ref.shape, ref.dtype)
