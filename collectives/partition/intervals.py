"""Interval moves: shifting positions along a split dimension by sending exactly the pieces that a device lacks.

A result along a dimension is described as runs: positions [to, to + length) of the result come from positions
[start, start + length) of an operand. Every device's part of every run is cut at the borders of the operand's pieces,
and the cut parts travel in rounds of collective permutes; in a round each device sends and receives at most once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from propagation.program import Value

from ..emit import Ref
from ..layout import Dims
from .context import Context

__all__ = ["Run", "assemble", "bordered", "fold", "neighbours", "windows"]


class Run(NamedTuple):
    """Position to + k of the result, for k < length, is position start + k * stride of operand `operand`."""

    operand: int
    start: int
    to: int
    length: int
    stride: int = 1


class _Part(NamedTuple):
    """`length` elements, `stride` apart, that device `source` holds from `start` and device `target` wants at `to`
    (coordinates along the split dimension, local positions)."""

    source: int
    target: int
    start: int
    to: int
    length: int
    stride: int = 1


class _Round(NamedTuple):
    """Parts that travel at once. A distance of zero is a local copy."""

    operand: int
    parts: list[_Part]
    local: bool


def assemble(
    ctx: Context, dim: int, atoms: Sequence[int], refs: Sequence[Ref], sizes: Sequence[int], size: int,
    runs: Sequence[Run], fill: Ref | None,
) -> Ref:  # fmt: skip
    """This device's piece of a result of `size` along `dim`, split by `atoms` like the operands `refs` (of global
    `sizes`). Positions that no run covers hold the scalar `fill`."""
    p = ctx.atoms.product(atoms)
    piece = -(-size // p)
    rounds = []
    for operand, length in enumerate(sizes):
        parts = _parts([r for r in runs if r.operand == operand], p, -(-length // p), piece, length)
        rounds += _rounds(operand, parts, p)
    covered = _covers_all(rounds, [max(0, min(piece, size - c * piece)) for c in range(p)])
    shape = (*refs[0].shape[:dim], piece, *refs[0].shape[dim + 1 :])
    out = None
    if not covered:
        fill = ctx.realiser.zero(ctx.region, (), refs[0].dtype) if fill is None else fill
        out = ctx.realiser.splat(ctx.region, fill, shape)
    for r in rounds:
        out = _apply(ctx, dim, atoms, refs[r.operand], r, shape, out, p)
    return out


def windows(
    ctx: Context, dim: int, atoms: Sequence[int], ref: Ref, size: int, starts: Sequence[int], length: int, fill: Ref
) -> Ref:
    """Overlapping windows of a tensor of `size` along `dim`: device coordinate c gets positions
    [starts[c], starts[c] + length), with the scalar `fill` where they lie outside of the tensor."""
    p, have = ctx.atoms.product(atoms), ref.shape[dim]
    parts = _window_parts(starts, length, size, have)
    shape = (*ref.shape[:dim], length, *ref.shape[dim + 1 :])
    rounds = _rounds(0, parts, p)
    out = None if _covers_all(rounds, [length] * p) else ctx.realiser.splat(ctx.region, fill, shape)
    for r in rounds:
        out = _apply(ctx, dim, atoms, ref, r, shape, out, p)
    return out


def bordered(
    ctx: Context, value: Value, dims: Dims, needs: dict[int, tuple[Sequence[int], int]], fill: Ref, number
) -> Ref:
    """`value` laid out as `dims` with, along each dimension d of `needs` = {d: (starts, length)}, the window that each
    device needs, as `windows` makes it. `number` is the value of `fill` if that is known: a padding of the program with
    the same number is then not made first, but part of the window."""
    view, left = ctx.view(value, dims), dict(needs)
    if view is not None and view.dim in needs and view.covers and number is not None and view.fill == number:
        starts, length = left.pop(view.dim)
        starts = [s + view.start for s in starts]
        ref = windows(ctx, view.dim, dims[view.dim], view.base, view.size, starts, length, fill)
        ref = ref if view.local is None else view.local(ref)
    else:
        ref = ctx.get(value, dims)
    for d, (starts, length) in left.items():
        ref = windows(ctx, d, dims[d], ref, value.type.shape[d], starts, length, fill)
    return ref


def fold(ctx: Context, dim: int, atoms: Sequence[int], ref: Ref, size: int, starts: Sequence[int]) -> Ref:
    """The sum of overlapping windows: the piece of a tensor of `size` along `dim` to whose positions
    [starts[c], starts[c] + length) device coordinate c contributes its `ref`. The transpose of `windows`."""
    p = ctx.atoms.product(atoms)
    have = -(-size // p)
    parts = [
        _Part(part.target, part.source, part.to, part.start, part.length)
        for part in _window_parts(starts, ref.shape[dim], size, have)
    ]
    shape = (*ref.shape[:dim], have, *ref.shape[dim + 1 :])
    zero = ctx.realiser.zero(ctx.region, shape, ref.dtype)
    total = None
    for r in _rounds(0, parts, p):
        mine = _apply(ctx, dim, atoms, ref, r, shape, zero, p)
        total = mine if total is None else ctx.emit("stablehlo.add", (total, mine), shape, ref.dtype)
    return zero if total is None else total


def neighbours(ctx: Context, x: Ref, atoms: Sequence[int], distance: int, cause: str) -> Ref:
    """`x` of the device `distance` places before this one along `atoms`; zeros where there is none."""
    groups = ctx.atoms.groups(atoms)
    if distance > 0:
        pairs = np.stack([groups[:, :-distance], groups[:, distance:]], axis=2)
    else:
        pairs = np.stack([groups[:, -distance:], groups[:, :distance]], axis=2)
    return ctx.realiser.send(ctx.region, x, pairs.reshape(-1, 2), atoms, ctx.op, cause, ctx.loc)


def _window_parts(starts: Sequence[int], length: int, size: int, have: int) -> list[_Part]:
    """Windows cut at the borders of the pieces (of `have` positions) that hold them."""
    parts = []
    for c, first in enumerate(starts):
        at, stop = max(first, 0), min(first + length, size)
        while at < stop:
            source = at // have
            n = min(stop, (source + 1) * have) - at
            parts.append(_Part(source, c, at - source * have, at - first, n))
            at += n
    return parts


def _parts(runs: Sequence[Run], p: int, have: int, want: int, length: int) -> list[_Part]:
    """Cuts runs at the borders of the target's and the source's pieces (of `want` and `have` positions)."""
    out = []
    for run in runs:
        at, stop = run.to, run.to + run.length
        while at < stop:
            target, start = at // want, (at - run.to) * run.stride + run.start
            source = start // have
            held = -(-(min((source + 1) * have, length) - start) // run.stride)
            n = min(stop - at, (target + 1) * want - at, held)
            out.append(_Part(source, target, start - source * have, at - target * want, n, run.stride))
            at += n
    return out


def _rounds(operand: int, parts: list[_Part], p: int) -> list[_Round]:
    """Local copies first, then rounds in which everyone sends and receives at most once. Parts of equal distance fit
    together; rounds of equal length that do not meet are joined."""
    local: list[list[_Part]] = []
    by_distance: dict[tuple, list[list[_Part]]] = {}
    for part in parts:
        lists = local if part.source == part.target else by_distance.setdefault(part.target - part.source, [])
        for members in lists:
            if all(m.source != part.source and m.target != part.target for m in members):
                members.append(part)
                break
        else:
            lists.append([part])
    remote: list[list[_Part]] = []
    for lists in by_distance.values():
        for members in lists:
            longest = max(m.length for m in members)
            for other in remote:
                sources = {m.source for m in other} & {m.source for m in members}
                targets = {m.target for m in other} & {m.target for m in members}
                if not sources and not targets and max(m.length for m in other) == longest:
                    other += members
                    break
            else:
                remote.append(list(members))
    return [_Round(operand, m, True) for m in local] + [_Round(operand, m, False) for m in remote]


def _covers_all(rounds: list[_Round], counts: Sequence[int]) -> bool:
    """Whether the first round alone writes every position that counts (then no fill is needed below it)."""
    first = next(iter(rounds), None)
    if first is None:
        return False
    lengths = {part.target: part.length for part in first.parts}
    return all(lengths.get(c, 0) >= n for c, n in enumerate(counts))


def _apply(ctx: Context, dim: int, atoms, ref: Ref, r: _Round, shape, out: Ref | None, p: int) -> Ref:
    """Writes the parts of one round over `out`."""
    have, want = ref.shape[dim], shape[dim]
    length = max(part.length for part in r.parts)
    stride = r.parts[0].stride
    span = (length - 1) * stride + 1
    if stride > 1:  # a window that starts late may run over the end of the piece; nobody looks at what it finds there
        ref = ctx.realiser.pad(ctx.region, ref, dim, 0, max(0, max(q.start for q in r.parts) + span - have))
        have = ref.shape[dim]
    start, to = np.zeros(p, np.int64), np.full(p, want, np.int64)
    shift, stop = np.zeros(p, np.int64), np.full(p, want, np.int64)
    for part in r.parts:
        first = min(part.start, have - span)  # the window that is sent must lie inside the piece
        start[part.source] = first
        shift[part.target] = part.to - (part.start - first)
        to[part.target], stop[part.target] = part.to, part.to + part.length
    payload = _window(ctx, ref, dim, atoms, start, span)
    if stride > 1:
        payload = ctx.realiser.cut(ctx.region, payload, dim, 0, span, ctx.loc, stride)
    if not r.local:
        pairs = _pairs(ctx, atoms, r.parts, p)
        payload = ctx.realiser.send(ctx.region, payload, pairs, atoms, ctx.op, "interval move", ctx.loc)
    everywhere = bool((to == 0).all() and (stop == want).all())
    if length != want or shift.any():
        before = max(0, int(shift.max()))
        after = max(0, want - length - int(shift.min()))
        padded = ctx.realiser.pad(ctx.region, payload, dim, before, after)
        payload = _window(ctx, padded, dim, atoms, before - shift, want)
    if out is None or everywhere:
        return payload
    where = ctx.region.shared("stablehlo.iota", (), shape, "i32", f"iota_dimension = {dim} : i64")
    mask = _compare(ctx, where, _table(ctx, atoms, to), "GE")
    upper = _compare(ctx, where, _table(ctx, atoms, stop), "LT")
    mask = ctx.region.shared("stablehlo.and", (mask, upper), shape, "i1")
    return ctx.region.shared("stablehlo.select", (mask, payload, out), shape, payload.dtype, loc=ctx.loc)


def _compare(ctx: Context, where: Ref, bound: Ref, direction: str) -> Ref:
    other = ctx.realiser.splat(ctx.region, bound, where.shape)
    attrs = f"comparison_direction = #stablehlo<comparison_direction {direction}>"
    return ctx.region.shared("stablehlo.compare", (where, other), where.shape, "i1", attrs)


def _window(ctx: Context, ref: Ref, dim: int, atoms, starts: np.ndarray, length: int) -> Ref:
    if length == ref.shape[dim]:
        return ref
    if (starts == starts[0]).all():
        return ctx.realiser.cut(ctx.region, ref, dim, int(starts[0]), int(starts[0]) + length, ctx.loc)
    return ctx.realiser.window(ctx.region, ref, dim, _table(ctx, atoms, starts), length, ctx.loc)


def _table(ctx: Context, atoms, values: np.ndarray) -> Ref:
    """The entry of `values` at this device's coordinate (i32 scalar)."""
    if (values == values[0]).all():
        return ctx.realiser.index(ctx.region, int(values[0]))
    step = np.diff(values)
    if (step == step[0]).all():  # linear in the coordinate
        at = ctx.realiser.offset(ctx.region, atoms, int(step[0]))
        first = ctx.realiser.index(ctx.region, int(values[0]))
        return ctx.region.entry("stablehlo.add", (at, first), (), "i32") if values[0] else at
    n = len(values)
    attrs = f"value = dense<{values.tolist()}> : tensor<{n}xi32>"
    table = ctx.region.entry("stablehlo.constant", (), (n,), "i32", attrs)
    at = ctx.realiser.coordinate(ctx.region, atoms)
    one = ctx.region.entry("stablehlo.dynamic_slice", (table, at), (1,), "i32", "slice_sizes = array<i64: 1>")
    return ctx.region.entry("stablehlo.reshape", (one,), (), "i32")


def _pairs(ctx: Context, atoms, parts: list[_Part], p: int) -> np.ndarray:
    """Device pairs of parts given by coordinates along `atoms`, in every group of devices along them."""
    groups = ctx.atoms.groups(atoms)
    pairs = [np.stack([groups[:, part.source], groups[:, part.target]], axis=1) for part in parts]
    return np.concatenate(pairs)
