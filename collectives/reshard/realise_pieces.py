"""Turning an exchange of exact pieces into permutes: cut a box, send it, put it where it belongs.

Where several devices come to hold the same values, those have to be the same bits. Every device puts its boxes at other
places and one of them is its own, so compilers that fuse the puts into what reads the result make branches of them, and
contract `a * b + c` to one rounding in some branches and not in others: each device takes another way through equal
code. There boxes are put by one scatter, which no compiler fuses into its readers, and sent boxes and kept ones are cut
from one buffer.

TPUs write every put in a pass over the memory of its own, with the piece before and after it in memory at once. Where
the boxes fill the piece as a grid of few slots, each slot is selected there from the boxes that may lie in it, which is
one pass for all. A device without a part in a permute sends itself what it keeps, rather than hold a box for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from propagation.attributes import ScatterDims
from propagation.program import Func, Op

from ..heuristics import FILLED_BOXES, FILLED_SLOTS
from ..ir.attributes import NONE, Dense
from ..ir.operations import attributes
from ..ir.program import LocalValue, Region
from ..layout import Dims, local_shape
from .boxes import Put, boxes_between

if TYPE_CHECKING:
    from .moves import ReshardStep
    from .realise import Realiser

__all__ = ["send_pieces", "where"]


def send_pieces(
    realiser: Realiser,
    region: Region,
    x: LocalValue,
    global_shape: tuple[int, ...],
    before: Dims,
    step: ReshardStep,
    op: Op | Func | None,
    cause: str,
    loc: str,
) -> LocalValue:
    """Brings `x`, a piece of a tensor of `global_shape` in layout `before`, to the layout `step.after`."""
    found = boxes_between(tuple(global_shape), before, step.after, realiser.sizes)
    assert found is not None  # the planner has seen it
    after = local_shape(global_shape, step.after, realiser.sizes)
    me = realiser.coordinate(region, found.atoms)
    groups = realiser.atoms.groups(found.atoms)
    wide = tuple(n + m for n, m in zip(after, map(sum, zip(found.low, found.high))))
    copies = groups.shape[1] > math.prod(realiser.sizes[a] for d in step.after for a in d)
    rounds: Sequence[Put] = found.rounds
    kept: Sequence[Put] = found.own
    at_once = realiser.platform == "tpu" and not copies
    if at_once:
        rounds, kept = _kept_in_rounds(rounds, kept)
    if copies:
        x = region.shared("stablehlo.optimization_barrier", (x,), x.shape, x.dtype, NONE, loc)
    every = (*rounds, *kept)
    parts = [_cut(realiser, region, x, me, r, loc) for r in every]
    for i, round_ in enumerate(rounds):
        parts[i] = realiser.send(region, parts[i], _pairs(round_, groups), found.atoms, op, cause, loc)
    slots = _slots(wide, every) if at_once else None
    if slots is not None:
        return _fill(realiser, region, parts, me, wide, slots, loc)
    out = realiser.zero(region, wide, x.dtype)
    if copies:
        out = _scatter_all(realiser, region, out, parts, me, every, loc)
    else:
        own = kept[0] if kept else None
        for i, (part, round_) in enumerate(zip(parts, every)):
            out = _put(realiser, region, out, part, me, round_, own if i < len(rounds) else None, loc)
    for d, (low, n) in enumerate(zip(found.low, after)):
        out = realiser.cut(region, out, d, low, low + n, loc)
    return out


def _kept_in_rounds(rounds: Sequence[Put], kept: Sequence[Put]) -> tuple[list[Put], list[Put]]:
    """Rounds in which devices without a part send themselves what they keep, and what is kept besides."""
    rounds, left = list(rounds), []
    for own in kept:
        (keepers,) = np.nonzero(own.sender >= 0)
        idle = lambda r, d, box=own.box: r.box == box and r.sender[d] < 0 and d not in r.sender
        found = {int(d): next((i for i, r in enumerate(rounds) if idle(r, d)), None) for d in keepers}
        chosen = {d: i for d, i in found.items() if i is not None}
        if len(chosen) < len(found):
            left.append(own)
            continue
        for i in set(chosen.values()):
            here = np.array([chosen.get(d) == i for d in range(len(own.sender))])
            columns = zip(own[1:], rounds[i][1:])
            pick = [np.where(here if mine.ndim == 1 else here[:, None], mine, theirs) for mine, theirs in columns]
            rounds[i] = Put(own.box, *pick)
    return rounds, left


def _slots(wide: tuple[int, ...], every: Sequence[Put]) -> dict[tuple[int, ...], list[tuple[int, np.ndarray]]] | None:
    """{slot of the piece: [(number of a box that may lie in it, bool[devices] where it does)]}; None unless the boxes
    fill every device's piece as a grid of a few slots."""
    box = every[0].box
    if any(r.box != box for r in every) or any(n % m for n, m in zip(wide, box)):
        return None
    grid = [n // m for n, m in zip(wide, box)]
    if math.prod(grid) > FILLED_SLOTS:
        return None
    slots: dict[tuple[int, ...], list[tuple[int, np.ndarray]]] = {slot: [] for slot in np.ndindex(*grid)}
    for i, round_ in enumerate(every):
        has = round_.sender >= 0
        if (round_.put_at[has] % box).any():
            return None
        for slot, found in slots.items():
            here = has & (round_.put_at == np.multiply(slot, box)).all(axis=1)
            if here.any():
                found.append((i, here))
    filled = all(found and np.logical_or.reduce([h for _, h in found]).all() for found in slots.values())
    few = sum(map(len, slots.values())) <= FILLED_BOXES
    return slots if filled and few else None


def _fill(
    realiser: Realiser, region: Region, parts: list[LocalValue], me: LocalValue, wide: Any, slots: Any, loc: str
) -> LocalValue:
    """The piece whose slots hold, on each device, the boxes that `_slots` has found."""
    held: dict[tuple[int, ...], LocalValue] = {}
    for slot, found in slots.items():
        if len(found) == 2 and found[1][1][0]:  # of two choices one table serves the slot with either first
            found = found[::-1]
        (first, _), *others = found
        held[slot] = parts[first]
        for i, here in others:
            held[slot] = where(realiser, region, here, me, parts[i], held[slot], loc)
    for d in reversed(range(len(wide))):
        lines: dict[tuple[int, ...], list[LocalValue]] = {}
        for slot, ref in held.items():
            lines.setdefault(slot[:d], []).append(ref)
        attrs = attributes("stablehlo.concatenate", d)
        held = {}
        for slot, line in lines.items():
            shape = (*line[0].shape[:d], wide[d], *line[0].shape[d + 1 :])
            one = line[0].shape == shape
            held[slot] = (
                line[0] if one else region.shared("stablehlo.concatenate", line, shape, line[0].dtype, attrs, loc)
            )
    return held[()]


def _pairs(round_: Put, groups: np.ndarray) -> np.ndarray:
    """i64[n, 2] over all devices: `groups` are the devices that differ in the atoms involved, in their order."""
    (receivers,) = np.nonzero(round_.sender >= 0)
    senders = round_.sender[receivers]
    return np.stack([groups[:, senders].reshape(-1), groups[:, receivers].reshape(-1)], axis=1)


def _cut(realiser: Realiser, region: Region, x: LocalValue, me: LocalValue, round_: Put, loc: str) -> LocalValue:
    return _window(realiser, region, x, me, round_.cut_at, round_.box, loc)


def _window(
    realiser: Realiser, region: Region, x: LocalValue, me: LocalValue, at: np.ndarray, box: Any, loc: str
) -> LocalValue:
    if x.shape == box:
        return x
    starts = _starts(realiser, region, me, at)
    attrs = attributes("stablehlo.dynamic_slice", box)
    return region.shared("stablehlo.dynamic_slice", (x, *starts), box, x.dtype, attrs, loc)


def _put(
    realiser: Realiser,
    region: Region,
    out: LocalValue,
    part: LocalValue,
    me: LocalValue,
    round_: Put,
    later: Put | None,
    loc: str,
) -> LocalValue:
    """`out` with `part` in its place, on the devices that have one. The others write what is there, or whatever they
    have where `later` is put."""
    at, has = round_.put_at, round_.sender >= 0
    if not has.all() and later is not None and all(n <= m for n, m in zip(round_.box, later.box)):
        at = np.where(has[:, None], at, later.put_at)
        has = has | (later.sender >= 0)
    if not has.all():
        part = where(realiser, region, has, me, part, _window(realiser, region, out, me, at, round_.box, loc), loc)
    if out.shape == round_.box:
        return part
    starts = _starts(realiser, region, me, at)
    return region.shared("stablehlo.dynamic_update_slice", (out, part, *starts), out.shape, out.dtype, NONE, loc)


def where(
    realiser: Realiser, region: Region, chosen: np.ndarray, me: LocalValue, new: LocalValue, old: LocalValue, loc: str
) -> LocalValue:
    """`new` on the devices `chosen`, `old` on the others."""
    flag = realiser.table(region, chosen.astype(np.int64), me)
    attrs = attributes("stablehlo.compare", "NE")
    flag = region.entry("stablehlo.compare", (flag, realiser.index(region, 0)), (), "i1", attrs)
    return region.shared("stablehlo.select", (flag, new, old), new.shape, new.dtype, NONE, loc)


def _scatter_all(
    realiser: Realiser, region: Region, out: LocalValue, parts: list[LocalValue], me: LocalValue, rounds: Any, loc: str
) -> LocalValue:
    """All boxes in their places, by a scatter for each shape of boxes."""
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for i, round_ in enumerate(rounds):
        by_shape.setdefault(round_.box, []).append(i)
    for at in by_shape.values():
        chosen = [rounds[i] for i in at]
        out = _scatter(realiser, region, out, [parts[i] for i in at], me, chosen, len(by_shape) == 1, loc)
    return out


def _scatter(
    realiser: Realiser,
    region: Region,
    out: LocalValue,
    parts: list[LocalValue],
    me: LocalValue,
    rounds: Any,
    apart: bool,
    loc: str,
) -> LocalValue:
    """Boxes of one shape in their places; a device skips those that it neither gets nor keeps. Boxes that lie `apart`
    do not overlap."""
    shape, box, dtype = out.shape, parts[0].shape, parts[0].dtype
    if box == shape and (rounds[-1].sender >= 0).all():
        return parts[-1]
    rank = len(shape)
    outside = np.array(shape)
    corners = np.stack([np.where((r.sender < 0)[:, None], outside, r.put_at) for r in rounds], axis=1)
    places = _rows(realiser, region, corners, me)
    attrs = attributes("stablehlo.broadcast_in_dim", tuple(range(1, rank + 1)))
    rows = [region.shared("stablehlo.broadcast_in_dim", (p,), (1, *box), dtype, attrs, loc) for p in parts]
    attrs = attributes("stablehlo.concatenate", 0)
    stack = region.shared("stablehlo.concatenate", rows, (len(parts), *box), dtype, attrs, loc)
    body = Region("body", region, [((), dtype)] * 2)
    body.op("stablehlo.return", body.args[1:], [])
    numbers = ScatterDims(tuple(range(1, rank + 1)), (), (), (), tuple(range(rank)), 1)
    attrs = attributes("stablehlo.scatter", False, numbers, apart)
    return region.op("stablehlo.scatter", (out, places, stack), [(shape, dtype)], attrs, regions=[body], loc=loc)[0]


def _rows(realiser: Realiser, region: Region, values: np.ndarray, me: LocalValue) -> LocalValue:
    """This device's matrix of `values` (devices x n x m), i32[n, m]."""
    shape = values.shape[1:]
    attrs = attributes("stablehlo.constant", Dense.of(values, "i32"))
    table = region.entry("stablehlo.constant", (), values.shape, "i32", attrs)
    zero = realiser.index(region, 0)
    attrs = attributes("stablehlo.dynamic_slice", (1, *shape))
    rows = region.entry("stablehlo.dynamic_slice", (table, me, zero, zero), (1, *shape), "i32", attrs)
    return region.entry("stablehlo.reshape", (rows,), shape, "i32")


def _starts(realiser: Realiser, region: Region, me: LocalValue, at: np.ndarray) -> list[LocalValue]:
    return [realiser.table(region, column, me) for column in at.T]
