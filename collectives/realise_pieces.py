"""Turning an exchange of exact pieces into permutes: cut a box, send it, put it where it belongs.

Where several devices come to hold the same values, those have to be the same bits. Every device puts its boxes at other
places and one of them is its own, so compilers that fuse the puts into what reads the result make branches of them, and
contract `a * b + c` to one rounding in some branches and not in others: each device takes another way through equal
code. There boxes are put by one scatter, which no compiler fuses into its readers, and sent boxes and kept ones are cut
from one buffer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .emit import Region
from .layout import Dims
from .pieces import Round, pieces_between

if TYPE_CHECKING:
    from .emit import Ref
    from .moves import Step
    from .realise import Realiser

__all__ = ["send_pieces"]


def send_pieces(realiser: Realiser, region: Region, x: Ref, after, before: Dims, step: Step, op, cause, loc) -> Ref:
    """Brings `x`, a piece of layout `before`, to the layout `step.after`, whose pieces have shape `after`."""
    pieces = pieces_between(before, step.after, realiser.sizes)
    assert pieces is not None  # the planner has seen it
    box = tuple(n // g for n, g in zip(after, pieces.grid))
    me = realiser.coordinate(region, pieces.atoms)
    groups = realiser.atoms.groups(pieces.atoms)
    if groups.shape[1] > math.prod(realiser.sizes[a] for d in step.after for a in d):
        x = region.shared("stablehlo.optimization_barrier", (x,), x.shape, x.dtype, "", loc)
        parts = [_cut(realiser, region, x, me, r, box, loc) for r in (*pieces.rounds, *pieces.own)]
        for i, round_ in enumerate(pieces.rounds):
            parts[i] = realiser.send(region, parts[i], _pairs(round_, groups), pieces.atoms, op, cause, loc)
        return _scatter(realiser, region, parts, after, me, (*pieces.rounds, *pieces.own), loc)
    out = realiser.zero(region, after, x.dtype)
    for round_ in pieces.rounds:
        part = _cut(realiser, region, x, me, round_, box, loc)
        part = realiser.send(region, part, _pairs(round_, groups), pieces.atoms, op, cause, loc)
        # Whoever receives nothing gets zeros, and puts them where a box of its own will lie in the end: who has none
        # receives every time.
        put_at = round_.put_at
        if pieces.own:
            put_at = np.where((round_.sender < 0)[:, None], pieces.own[0].put_at, put_at)
        out = _put(realiser, region, out, part, me, put_at, box, loc)
    for kept in pieces.own:
        part = _cut(realiser, region, x, me, kept, box, loc)
        new = _put(realiser, region, out, part, me, kept.put_at, box, loc)
        out = _where(realiser, region, kept.sender >= 0, me, new, out, loc)
    return out


def _where(realiser: Realiser, region: Region, chosen: np.ndarray, me: Ref, new: Ref, old: Ref, loc) -> Ref:
    """`new` on the devices `chosen`, `old` on the others."""
    if chosen.all():
        return new
    flag = _table(realiser, region, chosen.astype(np.int64), me)
    attrs = "comparison_direction = #stablehlo<comparison_direction NE>"
    flag = region.entry("stablehlo.compare", (flag, realiser.index(region, 0)), (), "i1", attrs)
    return region.shared("stablehlo.select", (flag, new, old), new.shape, new.dtype, "", loc)


def _pairs(round_: Round, groups: np.ndarray) -> np.ndarray:
    """i64[n, 2] over all devices: `groups` are the devices that differ in the atoms involved, in their order."""
    (receivers,) = np.nonzero(round_.sender >= 0)
    senders = round_.sender[receivers]
    return np.stack([groups[:, senders].reshape(-1), groups[:, receivers].reshape(-1)], axis=1)


def _cut(realiser: Realiser, region: Region, x: Ref, me: Ref, round_: Round, box, loc) -> Ref:
    if x.shape == box:
        return x
    starts = _starts(realiser, region, me, round_.cut_at, box)
    attrs = f"slice_sizes = array<i64: {', '.join(map(str, box))}>"
    return region.shared("stablehlo.dynamic_slice", (x, *starts), box, x.dtype, attrs, loc)


def _put(realiser: Realiser, region: Region, out: Ref, part: Ref, me: Ref, at: np.ndarray, box, loc) -> Ref:
    if out.shape == box:
        return part
    starts = _starts(realiser, region, me, at, box)
    return region.shared("stablehlo.dynamic_update_slice", (out, part, *starts), out.shape, out.dtype, "", loc)


def _scatter(realiser: Realiser, region: Region, parts: list[Ref], shape, me: Ref, rounds, loc) -> Ref:
    """All boxes in their places; a device skips those that it neither gets nor keeps."""
    box, dtype = parts[0].shape, parts[0].dtype
    if len(parts) == 1:
        return parts[0]
    rank = len(shape)
    outside = np.array(shape)
    corners = np.stack([np.where((r.sender < 0)[:, None], outside, r.put_at * box) for r in rounds], axis=1)
    places = _rows(realiser, region, corners, me)
    attrs = "broadcast_dimensions = array<i64" + (": " if rank else "") + f"{', '.join(map(str, range(1, rank + 1)))}>"
    rows = [region.shared("stablehlo.broadcast_in_dim", (p,), (1, *box), dtype, attrs, loc) for p in parts]
    stack = region.shared("stablehlo.concatenate", rows, (len(parts), *box), dtype, "dimension = 0 : i64", loc)
    body = Region("body", region, [((), dtype)] * 2)
    body.op("stablehlo.return", body.args[1:], [])
    dims = ", ".join(map(str, range(rank)))
    window = ", ".join(map(str, range(1, rank + 1)))
    numbers = f"update_window_dims = [{window}], scatter_dims_to_operand_dims = [{dims}], index_vector_dim = 1"
    attrs = (
        f"indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<{numbers}>, unique_indices = true"
    )
    operands = (realiser.zero(region, shape, dtype), places, stack)
    return region.op("stablehlo.scatter", operands, [(shape, dtype)], attrs, regions=[body], loc=loc)[0]


def _rows(realiser: Realiser, region: Region, values: np.ndarray, me: Ref) -> Ref:
    """This device's matrix of `values` (devices x n x m), i32[n, m]."""
    shape = values.shape[1:]
    attrs = f"value = dense<{values.tolist()}> : tensor<{'x'.join(map(str, values.shape))}xi32>"
    table = region.entry("stablehlo.constant", (), values.shape, "i32", attrs)
    zero = realiser.index(region, 0)
    attrs = f"slice_sizes = array<i64: 1, {', '.join(map(str, shape))}>"
    rows = region.entry("stablehlo.dynamic_slice", (table, me, zero, zero), (1, *shape), "i32", attrs)
    return region.entry("stablehlo.reshape", (rows,), shape, "i32")


def _starts(realiser: Realiser, region: Region, me: Ref, at: np.ndarray, box) -> list[Ref]:
    return [_table(realiser, region, column * n, me) for column, n in zip(at.T, box)]


def _table(realiser: Realiser, region: Region, values: np.ndarray, me: Ref) -> Ref:
    """The entry of `values` for this device, an i32 scalar."""
    if (values == values[0]).all():
        return realiser.index(region, int(values[0]))
    attrs = f"value = dense<{values.tolist()}> : tensor<{len(values)}xi32>"
    table = region.entry("stablehlo.constant", (), values.shape, "i32", attrs)
    entry = region.entry("stablehlo.dynamic_slice", (table, me), (1,), "i32", "slice_sizes = array<i64: 1>")
    return region.entry("stablehlo.reshape", (entry,), (), "i32")
