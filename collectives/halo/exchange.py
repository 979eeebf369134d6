"""Interval moves: halo exchange, shifts, slices, pads and concatenations along a split dimension, by collective
permutes of exactly the elements that a device does not hold yet.

A result along a dimension is described as runs: positions [to, to + length) of the result come from positions [start,
start + length) of an operand. Every device's part of every run is cut where it crosses from one operand piece to the
next, and these parts travel in rounds of collective permutes; in a round each device sends and receives at most once.

x[1:] padded by a zero, f32[1024] over 8 devices, is one run: 127 elements of each piece are a local copy, 1 element
comes from the next device. Where all devices put what they receive at the same local positions, as here, the result is
a concatenation of what arrives; else parts are laid over each other under masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from propagation.program import Value

from ..heuristics import HALO_MESSAGES
from ..ir.attributes import Dense, splat_literal
from ..ir.operations import attributes
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.context import Context
from ..layouts.state import Run
from ..machine import ref_bytes
from .parts import Part, Round, in_whole

__all__ = ["assemble", "border_parts", "bordered", "fold", "joined_windows", "neighbours", "traffic", "windows"]


def assemble(
    ctx: Context, dim: int, atoms: Sequence[int], refs: Sequence[LocalValue], sizes: Sequence[int], size: int,
    runs: Sequence[Run], fill: LocalValue | None,
) -> LocalValue:  # fmt: skip
    """This device's piece of a result of global `size` along `dim`, put together from operands `refs` of global `sizes`
    along it, all of them split by `atoms`. Positions that no run covers hold the scalar `fill`."""
    p = ctx.atoms.product(atoms)
    piece = -(-size // p)
    rounds, refs = [], list(refs)
    for operand, length in enumerate(sizes):
        parts = _parts([r for r in runs if r.operand == operand], p, -(-length // p), piece, length)
        refs[operand], found = _brought(ctx, dim, atoms, refs[operand], operand, parts, p)
        rounds += found
    counts = [max(0, min(piece, size - c * piece)) for c in range(p)]
    shape = (*refs[0].shape[:dim], piece, *refs[0].shape[dim + 1 :])
    # Along the innermost dimension masks are fused into the loop that uses the result; concatenations are not.
    return _lay(ctx, dim, atoms, refs, rounds, shape, fill, counts, join=dim != len(shape) - 1)


def windows(
    ctx: Context, dim: int, atoms: Sequence[int], ref: LocalValue, size: int, starts: Sequence[int], length: int,
    fill: LocalValue, counts: Sequence[int] = (),
) -> LocalValue:  # fmt: skip
    """Halo exchange: overlapping windows of a tensor of global `size` along `dim`. Device coordinate c gets positions
    [starts[c], starts[c] + length), with the scalar `fill` where they lie outside of the tensor; only the first
    counts[c] of them matter, if given."""
    p, have = ctx.atoms.product(atoms), ref.shape[dim]
    counts = counts or [length] * p
    parts = _window_parts(starts, counts, size, have)
    shape = (*ref.shape[:dim], length, *ref.shape[dim + 1 :])
    ref, rounds = _brought(ctx, dim, atoms, ref, 0, parts, p)
    return _lay(ctx, dim, atoms, [ref], rounds, shape, fill, counts)


def joined_windows(
    ctx: Context, dim: int, atoms: Sequence[int], joined: tuple[Sequence[LocalValue], Sequence[int], Sequence[Run]],
    starts: Sequence[int], length: int, fill: LocalValue,
) -> LocalValue:  # fmt: skip
    """`windows` of the concatenation that `assemble` would make of `joined` = (tensors, their sizes, runs of stride 1),
    without making it."""
    refs, sizes, runs = joined
    p = ctx.atoms.product(atoms)
    rounds, refs = [], list(refs)
    for operand, ref in enumerate(refs):
        parts = []
        for run in (r for r in runs if r.operand == operand):
            end = min(sizes[operand], run.start + run.length)
            shift = run.start - run.to
            lows = [max(s + shift, run.start) for s in starts]
            counts = [max(0, min(s + shift + length, end) - low) for s, low in zip(starts, lows)]
            for part in _window_parts(lows, counts, sizes[operand], ref.shape[dim]):
                at = lows[part.target] - shift - starts[part.target]
                parts.append(part._replace(to=part.to + at))
        refs[operand], found = _brought(ctx, dim, atoms, ref, operand, parts, p)
        rounds += found
    shape = (*refs[0].shape[:dim], length, *refs[0].shape[dim + 1 :])
    return _lay(ctx, dim, atoms, refs, rounds, shape, fill, [length] * p)


def bordered(
    ctx: Context, value: Value, dims: Dims, needs: Mapping[int, tuple[Sequence[int], int, Sequence[int]]],
    fill: LocalValue, number: float | int | bool | None,
) -> LocalValue:  # fmt: skip
    """`value` laid out as `dims` with its halos: along each dimension d of `needs` = {d: (starts, length, counts)} the
    window that each device needs, as `windows` makes it. `number` is the number that `fill` is, if known: if `value` is
    a lazy pad with the same number, its base is used and the padding becomes part of the window."""
    view, left = ctx.view(value, dims), dict(needs)
    if view is not None and view.dim in needs and view.covers and number is not None and view.fill == number:
        starts, length, counts = left.pop(view.dim)
        starts = [s + view.start for s in starts]
        ref = windows(ctx, view.dim, dims[view.dim], view.base, view.size, starts, length, fill, counts)
        ref = ref if view.local is None else view.local(ref)
    else:
        ref = ctx.get(value, dims)
    for d, (starts, length, counts) in left.items():
        ref = windows(ctx, d, dims[d], ref, value.type.shape[d], starts, length, fill, counts)
    return ref


def lacking(starts: Sequence[int], counts: Sequence[int], size: int) -> int:
    """The size of the largest halo: of the windows [starts[c], starts[c] + counts[c]) of device coordinates c, along a
    split dimension of `size`, the most positions that a device does not hold."""
    have = -(-size // len(starts))
    most = 0
    for c, first in enumerate(starts):
        low, high = max(first, 0), min(first + counts[c], size)
        kept = min(high, (c + 1) * have) - max(low, c * have)
        most = max(most, high - low - max(0, kept))
    return most


def border_parts(starts: Sequence[int], counts: Sequence[int], size: int) -> set[tuple[int, ...]]:
    """The messages that make windows [starts[c], starts[c] + counts[c]) of a split dimension of `size`: which device
    sends to which, from where, how much."""
    parts = _window_parts(starts, counts, size, -(-size // len(starts)))
    return {(p.source, p.target, p.start, p.length) for p in parts if p.source != p.target}


def traffic(starts: Sequence[int], counts: Sequence[int], size: int, have: int) -> np.ndarray:
    """The positions that each device sends (i64[devices along the dimension]) for the windows [starts[c], starts[c] +
    counts[c]) of a dimension of `size` in pieces of `have`: in a round all send as many as its longest part has."""
    sent = np.zeros(len(starts), np.int64)
    for r in _rounds(0, _window_parts(starts, counts, size, have), len(starts)):
        if not r.local:
            sent[[part.source for part in r.parts]] += max(part.length for part in r.parts)
    return sent


def fold(
    ctx: Context, dim: int, atoms: Sequence[int], ref: LocalValue, size: int, starts: Sequence[int],
    counts: Sequence[int],
) -> LocalValue:  # fmt: skip
    """The transpose of `windows`, for gradients: device coordinate c adds its `ref` to positions [starts[c], starts[c]
    + counts[c]) of a tensor of `size` along `dim`; the result is this device's piece of the sum."""
    p = ctx.atoms.product(atoms)
    have = -(-size // p)
    parts = [
        Part(part.target, part.source, part.to, part.start, part.length)
        for part in _window_parts(starts, counts, size, have)
    ]
    shape = (*ref.shape[:dim], have, *ref.shape[dim + 1 :])
    zero = ctx.realiser.zero(ctx.region, shape, ref.dtype)
    total = None
    for r in _rounds(0, parts, p):
        exact = len({part.length for part in r.parts}) == 1 and (not r.local or len(r.parts) == p)
        if exact:  # devices that receive nothing in a round hold zeros
            mine = _payload(ctx, dim, atoms, ref, r, 0, have, p)
        else:
            mine = _apply(ctx, dim, atoms, ref, r, shape, zero, p)
        total = mine if total is None else ctx.emit("stablehlo.add", (total, mine), shape, ref.dtype)
    return zero if total is None else total


def neighbours(ctx: Context, x: LocalValue, atoms: Sequence[int], distance: int, cause: str) -> LocalValue:
    """`x` of the device `distance` coordinates before this one along `atoms`; zeros where there is none."""
    groups = ctx.atoms.groups(atoms)
    if distance > 0:
        pairs = np.stack([groups[:, :-distance], groups[:, distance:]], axis=2)
    else:
        pairs = np.stack([groups[:, -distance:], groups[:, :distance]], axis=2)
    return ctx.realiser.send(ctx.region, x, pairs.reshape(-1, 2), atoms, ctx.op, cause, ctx.loc)


def _window_parts(starts: Sequence[int], counts: Sequence[int], size: int, have: int) -> list[Part]:
    """The windows, cut into parts at the borders of the pieces (of `have` positions) that hold them."""
    parts = []
    for c, (first, count) in enumerate(zip(starts, counts)):
        at, stop = max(first, 0), min(first + count, size)
        while at < stop:
            source = at // have
            n = min(stop, (source + 1) * have) - at
            parts.append(Part(source, c, at - source * have, at - first, n))
            at += n
    return parts


def _parts(runs: Sequence[Run], p: int, have: int, want: int, length: int) -> list[Part]:
    """Runs, cut into parts at the borders of the pieces of source and target (of `have` and `want` positions)."""
    out = []
    for run in runs:
        at, stop = run.to, run.to + run.length
        while at < stop:
            target, start = at // want, (at - run.to) * run.stride + run.start
            source = start // have
            held = -(-(min((source + 1) * have, length) - start) // run.stride)
            n = min(stop - at, (target + 1) * want - at, held)
            out.append(Part(source, target, start - source * have, at - target * want, n, run.stride))
            at += n
    return out


def _brought(
    ctx: Context, dim: int, atoms: Sequence[int], ref: LocalValue, operand: int, parts: list[Part], p: int
) -> tuple[LocalValue, list[Round]]:  # fmt: skip
    """What the parts are taken from, and in which rounds: the piece `ref` of the operand, or all of them where one
    all-gather takes less than so many permutes of small parts. Then no round sends anything."""
    rounds = _rounds(operand, parts, p)
    remote = [r for r in rounds if not r.local]
    if len(remote) <= HALO_MESSAGES or not ref.shape[dim]:
        return ref, rounds
    sent = np.zeros(p, np.int64)
    for r in remote:
        sent[[part.source for part in r.parts]] += max(part.length for part in r.parts)
    piece, have, message = ref_bytes(ref), ref.shape[dim], ctx.written_message
    if piece * int(sent.max()) / have + message * len(remote) <= piece * (p - 1) + message:
        return ref, rounds
    shape, groups = (*ref.shape[:dim], p * have, *ref.shape[dim + 1 :]), ctx.realiser.groups(atoms)
    whole = ctx.realiser.collective(
        ctx.region, "all_gather", atoms, ref, shape, groups, (dim,), ctx.op, "interval moves in one message", ctx.loc
    )
    return whole, _rounds(operand, in_whole(parts, have), p)


def _rounds(operand: int, parts: list[Part], p: int) -> list[Round]:
    """Parts grouped into rounds: local copies first, then permutes, in which every device sends and receives at most
    once. Parts between devices of equal distance share a round, and rounds of equal length over disjoint devices are
    merged."""
    local: list[list[Part]] = []
    by_distance: dict[int, list[list[Part]]] = {}
    for part in parts:
        lists = local if part.source == part.target else by_distance.setdefault(part.target - part.source, [])
        for members in lists:
            if all(m.source != part.source and m.target != part.target for m in members):
                members.append(part)
                break
        else:
            lists.append([part])
    remote: list[list[Part]] = []
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
    return [Round(operand, m, True) for m in local] + [Round(operand, m, False) for m in remote]


def _lay(
    ctx: Context, dim: int, atoms: Sequence[int], refs: Sequence[LocalValue], rounds: list[Round],
    shape: tuple[int, ...], fill: LocalValue | None, counts: Sequence[int], join: bool = True,
) -> LocalValue:  # fmt: skip
    """Runs all rounds and puts their parts in place, with `fill` (zero if None) elsewhere; of the positions of device
    coordinate c only the first counts[c] matter. By a concatenation, if `join` allows it and all devices put the parts
    of a round at the same positions; else by masks."""
    p = len(counts)
    fill = ctx.realiser.zero(ctx.region, (), refs[0].dtype) if fill is None else fill
    stretches = _stretches(rounds, counts, shape[dim]) if join else None
    if stretches is None:
        out = None if _covers_all(rounds, counts) else ctx.realiser.splat(ctx.region, fill, shape)
        for r in rounds:
            out = _apply(ctx, dim, atoms, refs[r.operand], r, shape, out, p)
        assert out is not None  # with no rounds nothing is covered
        return out
    if not rounds:
        return ctx.realiser.splat(ctx.region, fill, shape)
    joined = []
    for at, length, members in stretches:
        piece = (*shape[:dim], length, *shape[dim + 1 :])
        if members:
            reach = [c for c in range(p) if counts[c] > at]
            joined.append(_stretch(ctx, dim, atoms, refs, members, at, piece, fill, set(reach), p))
        else:
            joined.append(ctx.realiser.splat(ctx.region, fill, piece))
    if len(joined) == 1:
        return joined[0]
    attrs = attributes("stablehlo.concatenate", dim)
    return ctx.region.shared("stablehlo.concatenate", joined, shape, joined[0].dtype, attrs, ctx.loc)


def _stretches(rounds: list[Round], counts: Sequence[int], want: int) -> list[tuple[int, int, list[Round]]] | None:
    """The operands of the concatenation that makes a result of `want` positions, as (start, length, rounds) of
    consecutive stretches, each filled by whole parts or by none. None if devices put parts of a round at different
    positions."""
    found: dict[tuple[int, int], list[Round]] = {}
    for r in rounds:
        length = max(part.length for part in r.parts)
        to = r.parts[0].to
        for part in r.parts:
            short = part.length < length and part.to + part.length < counts[part.target]
            if part.to != to or short:
                return None
        found.setdefault((to, length), []).append(r)
    out: list[tuple[int, int, list[Round]]] = []
    at = 0
    for (to, length), members in sorted(found.items(), key=lambda item: item[0]):
        if to < at or to + length > want:
            return None
        if to > at:
            out.append((at, to - at, []))
        out.append((to, length, members))
        at = to + length
    if at < want:
        out.append((at, want - at, []))
    return out


def _stretch(
    ctx: Context, dim: int, atoms: Sequence[int], refs: Sequence[LocalValue], rounds: list[Round], at: int,
    shape: tuple[int, ...], fill: LocalValue, reach: set[int], p: int,
) -> LocalValue:  # fmt: skip
    """One operand of that concatenation, from position `at` on. Only the device coordinates `reach` need it; each gets
    at most one part of it."""
    targets = [{part.target for part in r.parts} for r in rounds]
    payloads = [_payload(ctx, dim, atoms, refs[r.operand], r, at, shape[dim], p) for r in rounds]
    # Where every device gets some part, selects over the first round's payload leave nothing of it elsewhere. Devices
    # that receive nothing in a permute hold zeros, which may serve as the fill.
    base = 0 if reach <= set().union(*targets) else None
    if base is None and _is_zero(fill):
        base = next((i for i, r in enumerate(rounds) if not r.local), None)
    out = ctx.realiser.splat(ctx.region, fill, shape) if base is None else payloads[base]
    for i, payload in enumerate(payloads):
        if i != base:
            mine = ctx.realiser.splat(ctx.region, _member(ctx, atoms, targets[i], p), shape)
            out = ctx.region.shared("stablehlo.select", (mine, payload, out), shape, payload.dtype, loc=ctx.loc)
    return out


def _is_zero(scalar: LocalValue) -> bool:
    """Whether a scalar is known to be zero, which devices hold that receive nothing in a permute."""
    if scalar.item is None or scalar.item.name != "stablehlo.constant":
        return False
    literal = splat_literal(scalar.item.attribute("value"))
    return literal is not None and (literal == "false" or not set(literal) - set("0.e+x"))


def _member(ctx: Context, atoms: Sequence[int], coordinates: set[int], p: int) -> LocalValue:
    """Whether this device's coordinate is one of `coordinates` (i1 scalar)."""
    flags = np.array([c in coordinates for c in range(p)], np.int64)
    if flags.all():
        return ctx.realiser.constant(ctx.region, (), "i1", "true")
    changes = np.flatnonzero(np.diff(flags)) + 1
    if len(changes) == 1:  # all from a coordinate on, or all before one
        where, bound = ctx.realiser.coordinate(ctx.region, atoms), int(changes[0])
        direction = "LT" if flags[0] else "GE"
    else:
        where, bound, direction = _table(ctx, atoms, flags), 0, "NE"
    attrs = attributes("stablehlo.compare", direction)
    return ctx.region.entry("stablehlo.compare", (where, ctx.realiser.index(ctx.region, bound)), (), "i1", attrs)


def _covers_all(rounds: list[Round], counts: Sequence[int]) -> bool:
    """Whether the first round alone writes every position that matters, so that no fill is needed below it."""
    first = next(iter(rounds), None)
    if first is None:
        return False
    lengths = {part.target: part.length for part in first.parts}
    return all(lengths.get(c, 0) >= n for c, n in enumerate(counts))


def _payload(
    ctx: Context, dim: int, atoms: Sequence[int], ref: LocalValue, r: Round, at: int, want: int, p: int,
    masked: bool = False,
) -> LocalValue:  # fmt: skip
    """What each device gets in a round, padded with zeros to the `want` positions of its result from `at` on. Devices
    that receive nothing hold zeros, unless the round is local. If the caller masks the result (`masked`), anything may
    stand in place of the padding."""
    have = ref.shape[dim]
    length = max(part.length for part in r.parts)
    stride = r.parts[0].stride
    span = (length - 1) * stride + 1
    if stride > 1:  # a strided window may run over the end of the piece; what it reads there is not used
        ref = ctx.realiser.pad(ctx.region, ref, dim, 0, max(0, max(q.start for q in r.parts) + span - have))
        have = ref.shape[dim]
    start, shift = {}, {}
    for part in r.parts:
        first = min(part.start, have - span)  # the window that is sent must lie inside the piece
        start[part.source] = first
        shift[part.target] = part.to - at - (part.start - first)
    payload = _window(ctx, ref, dim, atoms, _completed(start, p), span)
    if stride > 1:
        payload = ctx.realiser.cut(ctx.region, payload, dim, 0, span, ctx.loc, stride)
    if not r.local:
        pairs = _pairs(ctx, atoms, r.parts, p)
        payload = ctx.realiser.send(ctx.region, payload, pairs, atoms, ctx.op, "interval move", ctx.loc)
    if length == want and not any(shift.values()):
        return payload
    if masked and ctx.realiser.platform != "tpu" and not any(n % length for n in (want, *shift.values())):
        # Repeated, it lies at every position where the mask may look. Repeating is fused into readers; a pad is not.
        return ctx.realiser.repeat(ctx.region, payload, dim, want // length, ctx.loc)
    before = max(0, *shift.values())
    after = max(0, want - length - min(shift.values()))
    padded = ctx.realiser.pad(ctx.region, payload, dim, before, after)
    return _window(ctx, padded, dim, atoms, before - _completed(shift, p), want)


def _completed(values: dict[int, int], p: int) -> np.ndarray:
    """i64[p] with the given {coordinate: value}; other entries do not matter, and are chosen so that all are equal or
    linear in the coordinate if possible, which saves a table in the program."""
    at = np.array(sorted(values))
    known = np.array([values[c] for c in at.tolist()], np.int64)
    if (known == known[0]).all():
        return np.full(p, known[0])
    step, rest = divmod(int(known[1] - known[0]), int(at[1] - at[0]))
    line: np.ndarray = known[0] + step * (np.arange(p) - at[0])
    if not rest and (line[at] == known).all():
        return line
    out = np.zeros(p, np.int64)
    out[at] = known
    return out


def _apply(
    ctx: Context, dim: int, atoms: Sequence[int], ref: LocalValue, r: Round, shape: tuple[int, ...],
    out: LocalValue | None, p: int,
) -> LocalValue:  # fmt: skip
    """Writes the parts of one round over `out`."""
    want = shape[dim]
    to, stop = np.full(p, want, np.int64), np.full(p, want, np.int64)
    for part in r.parts:
        to[part.target], stop[part.target] = part.to, part.to + part.length
    masked = out is not None and not bool((to == 0).all() and (stop == want).all())
    payload = _payload(ctx, dim, atoms, ref, r, 0, want, p, masked)
    if out is None or not masked:
        return payload
    where = ctx.region.shared("stablehlo.iota", (), shape, "i32", attributes("stablehlo.iota", dim))
    mask = _compare(ctx, where, _table(ctx, atoms, to), "GE")
    upper = _compare(ctx, where, _table(ctx, atoms, stop), "LT")
    mask = ctx.region.shared("stablehlo.and", (mask, upper), shape, "i1")
    return ctx.region.shared("stablehlo.select", (mask, payload, out), shape, payload.dtype, loc=ctx.loc)


def _compare(ctx: Context, where: LocalValue, bound: LocalValue, direction: str) -> LocalValue:
    other = ctx.realiser.splat(ctx.region, bound, where.shape)
    attrs = attributes("stablehlo.compare", direction)
    return ctx.region.shared("stablehlo.compare", (where, other), where.shape, "i1", attrs)


def _window(
    ctx: Context, ref: LocalValue, dim: int, atoms: Sequence[int], starts: np.ndarray, length: int
) -> LocalValue:
    if length == ref.shape[dim]:
        return ref
    if (starts == starts[0]).all():
        return ctx.realiser.cut(ctx.region, ref, dim, int(starts[0]), int(starts[0]) + length, ctx.loc)
    return ctx.realiser.window(ctx.region, ref, dim, _table(ctx, atoms, starts), length, ctx.loc)


def _table(ctx: Context, atoms: Sequence[int], values: np.ndarray) -> LocalValue:
    """The entry of `values` at this device's coordinate (i32 scalar)."""
    if (values == values[0]).all():
        return ctx.realiser.index(ctx.region, int(values[0]))
    step = np.diff(values)
    if (step == step[0]).all():  # linear in the coordinate
        at = ctx.realiser.offset(ctx.region, atoms, int(step[0]))
        first = ctx.realiser.index(ctx.region, int(values[0]))
        return ctx.region.entry("stablehlo.add", (at, first), (), "i32") if values[0] else at
    n = len(values)
    attrs = attributes("stablehlo.constant", Dense.of(values, "i32"))
    table = ctx.region.entry("stablehlo.constant", (), (n,), "i32", attrs)
    at = ctx.realiser.coordinate(ctx.region, atoms)
    attrs = attributes("stablehlo.dynamic_slice", (1,))
    one = ctx.region.entry("stablehlo.dynamic_slice", (table, at), (1,), "i32", attrs)
    return ctx.region.entry("stablehlo.reshape", (one,), (), "i32")


def _pairs(ctx: Context, atoms: Sequence[int], parts: list[Part], p: int) -> np.ndarray:
    """(source, target) device numbers of parts, whose devices are coordinates along `atoms`, in every group along
    these."""
    groups = ctx.atoms.groups(atoms)
    pairs = [np.stack([groups[:, part.source], groups[:, part.target]], axis=1) for part in parts]
    return np.concatenate(pairs)
