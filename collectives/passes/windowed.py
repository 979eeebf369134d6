"""Collective matmul: contractions pipelined with the collective that feeds or drains them.

An all-gather whose result only contractions use becomes a ring of permutes: while a piece travels on, the contraction
works on the piece that is here, and puts its part of the result in place (or adds it up, where the gathered dimension
is contracted). A reduce-scatter of a contraction becomes the same ring the other way round: a sum travels, and each
device adds its part of the piece at hand. Bytes are the same; what the network does hides behind arithmetic, and the
gathered or unreduced tensor never exists whole (Wang et al., ASPLOS 2023). The order of summation changes, and where a
gathered dimension is contracted, each device has an order of its own: copies of one value would come to differ in their
last bits, so that is only done where no device holds the result of another (`varying`).

It pays where computing a piece takes about as long as sending one, which `_gain` asks the topology. Pieces under way
and sums take memory in place of the tensor that never exists; where that is more, and more than is left (`_grows`),
the collective stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..cost import item_bytes, seconds
from ..heuristics import RING_DEVICES, RING_RENAMED, RING_TIME_SHARE
from ..ir.attributes import Integers
from ..ir.operations import communication
from ..ir.program import Collective, LocalFunction, LocalOp, LocalValue, Region
from ..ir.walker import Scratch, captured, contract, effects, inputs, walk
from ..kinds import kind_of
from ..machine import Machine, dot_dimensions, flops, ref_bytes
from ..reshard.realise import APART, Realiser
from .memory import Budget, Room
from .packing import dimension_of, one_reducer
from .varying import varying

__all__ = ["pipeline"]

DOT = "stablehlo.dot_general"
_RENAMING = {"stablehlo.transpose", "stablehlo.reshape", "stablehlo.broadcast_in_dim"}
_WIDE = {"bf16": "f32", "f16": "f32"}  # in which type pieces of a contraction are added up


@dataclass(slots=True)
class _Ring:
    """A collective and the contractions to be pipelined with it.

    dim    the dimension that it gathers, or in which the contraction's result is scattered
    chain  what renames dimensions between a contraction and its reduce-scatter, with the scattered dimension after each
    """

    collective: LocalOp
    dots: list[LocalOp]
    dim: int
    chain: tuple[tuple[LocalOp, int], ...] = ()

    @property
    def atoms(self) -> tuple[int, ...]:
        """The atoms along which the pieces go around."""
        atoms = self.collective.communication.atoms
        assert atoms is not None, "rings are over groups of the mesh: see `_fits`"
        return atoms

    @property
    def size(self) -> int:
        """Devices of the ring."""
        return self.collective.communication.groups[1]

    @property
    def gathers(self) -> bool:
        """Whether it is an all-gather, before its contractions; else a reduce-scatter, after one."""
        return self.collective.communication.facts.gathers

    @property
    def last(self) -> list[LocalOp]:
        """The items in whose place the pipeline is written."""
        return self.dots if self.gathers else [self.collective]


def pipeline(function: LocalFunction, realiser: Realiser, machine: Machine, budget: Budget, always: bool) -> int:
    """Pipelines contractions of a function, where it pays and memory allows or (`always`) wherever it can be done.

    How many collectives became pipelines.
    """
    room: Room | None = None
    differs: dict[LocalValue, frozenset[int]] | None = None
    worth: Callable[[_Ring], bool] = lambda ring: always or _gain(ring, machine) < RING_TIME_SHARE
    done = 0
    for r in list(walk(function.region)):
        if r.lookup(APART):
            continue  # rings are of permutes, which would wait for devices that do not run this
        found = _rings(r, function.results)
        if found and differs is None:
            differs = varying(function)
        found = [ring for ring in found if _own_order(ring, differs) and worth(ring)]
        if found and not always:
            room = budget.room() if room is None else room
            found = [ring for ring in found if _grows(ring) <= min(map(room.at, ring.last))]
        rings = _apart(r, found)
        if rings:
            of = {item: ring.last for ring in rings for item in ring.last}
            by = {id(ring.last[0]): ring for ring in rings}
            r.items = contract(r.items, of, partial(_write_group, r, realiser, by))
            gone = {i for ring in rings for i in (ring.collective, *ring.dots)}
            r.items = [i for i in r.items if i not in gone]
            done += len(rings)
    return done


# -- finding ----------------------------------------------------------------------------------------------------


def _rings(region: Region, results: list[LocalValue]) -> list[_Ring]:
    """Candidates of a region, in order."""
    fitting = [i for i in region.items if _fits(i)]
    gathers = {i.results[0]: i for i in fitting if i.communication.facts.gathers}
    scatters = [i for i in fitting if i.communication.facts.scatters and one_reducer(i) == "stablehlo.add"]
    if not gathers and not scatters:
        return []
    users: dict[LocalValue, list[LocalOp] | None] = {r: [] for r in gathers}
    for item in scatters:
        users.update((r, []) for r in _renamed(item))
    for r in results:
        users[r] = None
    for item in region.items:
        for r in item.operands:
            found = users.get(r)
            if found is not None:
                found.append(item)
        for r in captured(item) if item.regions else ():
            users[r] = None
    rings = []
    for r, item in gathers.items():
        dots = users[r]
        dim = dimension_of(item)
        if dots and all(d.name == DOT and d.operands.count(r) == 1 and not _batched(d, r, dim) for d in dots):
            rings.append(_Ring(item, dots, dim))
    return rings + [ring for item in scatters if (ring := _scatter_ring(item, users)) is not None]


def _renamed(item: LocalOp) -> list[LocalValue]:
    """The operand of a reduce-scatter, and what it is before its dimensions are renamed, back to a contraction."""
    out = [item.operands[0]]
    while len(out) < RING_RENAMED and out[-1].item is not None and out[-1].item.name in _RENAMING:
        out.append(out[-1].item.operands[0])
    return out


def _scatter_ring(item: LocalOp, users: dict[LocalValue, list[LocalOp] | None]) -> _Ring | None:
    """The contraction in front of a reduce-scatter, if the reduce-scatter alone uses it."""
    dim, user = dimension_of(item), item
    chain: list[tuple[LocalOp, int]] = []
    for r in _renamed(item):
        if r.item is None or r.item.region is not item.region or users.get(r) != [user]:
            return None
        if r.item.name == DOT:
            return _Ring(item, [r.item], dim, tuple(reversed(chain)))
        chain.append((r.item, dim))
        before = _dim_before(r.item, dim)
        if before is None:
            return None
        dim, user = before, r.item
    return None


def _dim_before(item: LocalOp, dim: int) -> int | None:
    """What dimension `dim` of an item's result is in its operand, if the item only renames dimensions."""
    if len(item.operands) != 1 or len(item.results) != 1:
        return None
    (x,), (out,) = item.operands, item.results
    if item.name == "stablehlo.transpose":
        return _places(item)[dim]
    wide, narrow = ([(d, n) for d, n in enumerate(r.shape) if n > 1] for r in (out, x))
    if [n for _, n in wide] != [n for _, n in narrow]:
        return None  # it repeats elements, or regroups dimensions
    if item.name == "stablehlo.broadcast_in_dim":
        places = _places(item)
        return places.index(dim) if dim in places and places == sorted(places) else None
    return next(d for d, (place, _) in zip([d for d, _ in narrow], wide) if place == dim)


def _places(item: LocalOp) -> list[int]:
    """The permutation of a transpose; where a broadcast puts its operand's dimensions."""
    found = item.attribute("permutation") or item.attribute("broadcast_dimensions")
    return list(found.values) if isinstance(found, Integers) else []


def _fits(item: LocalOp) -> bool:
    c = item.collective
    return c is not None and c.atoms is not None and not c.members and 1 < c.groups[1] <= RING_DEVICES


def _batched(dot: LocalOp, r: LocalValue, dim: int) -> bool:
    side = dot.operands.index(r)
    return dim in dot_dimensions(dot)[side]


def _own_order(ring: _Ring, differs: dict[LocalValue, frozenset[int]] | None) -> bool:
    """Whether each device may add up in an order of its own, if the pipeline does that."""
    gathered = ring.collective.results[0]
    for dot in ring.dots if ring.gathers else ():
        side = dot.operands.index(gathered)
        if _result_dim(dot, side, ring.dim) is None:
            other = (differs or {}).get(dot.operands[1 - side], frozenset())
            if not other.issuperset(ring.atoms):
                return False
    return True


def _apart(region: Region, rings: list[_Ring]) -> list[_Ring]:
    """Those that can all be written: no item is in two, contractions of one do not depend on each other, and between
    the contractions of one there is nothing of another."""
    place = {item: i for i, item in enumerate(region.items)}
    spans = sorted((min(place[d] for d in r.last), max(place[d] for d in r.last), i) for i, r in enumerate(rings))
    out: list[_Ring] = []
    used: set[LocalOp] = set()
    end = -1
    for low, high, i in spans:
        ring = rings[i]
        mine = {ring.collective, *ring.dots}
        if low > end and not mine & used and _independent(region.items[low : high + 1], ring):
            out.append(ring)
            used |= mine
            end = high
    return out


def _independent(items: list[LocalOp], ring: _Ring) -> bool:
    if len(ring.last) == 1:
        return True
    after: set[LocalValue] = set()
    delayed = False  # an item with effects: those behind it keep behind it
    for item in items:
        acts = bool(item.effect or item.regions or item.name == "func.call") and effects(item)
        depends = any(r in after for r in inputs(item)) or (acts and delayed)
        delayed |= acts and depends
        if item in ring.dots:
            if depends:
                return False
            after.update(item.results)
        elif depends:
            after.update(item.results)
    return True


# -- deciding ---------------------------------------------------------------------------------------------------


def _gain(ring: _Ring, machine: Machine) -> float:
    """Predicted time of the pipeline, over that of the collective followed (or preceded) by its contractions."""
    c, n = ring.collective.communication, ring.size
    step = seconds("collective_permute", 2, c.bytes / (n - 1), machine.link(c.atoms))
    whole = sum(machine.compute(d) for d in ring.dots)
    part = sum(_part_seconds(d, ring, machine) for d in ring.dots)
    now = machine.collective(c) + whole
    # Without a network that works by itself nothing overlaps.
    each = max(step, part) if machine.overlaps else step + part
    return (part + (n - 1) * each) / now


def _grows(ring: _Ring) -> float:
    """Bytes that live in a step of the pipeline beyond those of the collective and its contractions."""
    n = ring.size
    if not ring.gathers:
        # The sum that arrives, the part that is added to it and the one that leaves, for the unreduced tensor.
        piece = ref_bytes(ring.collective.results[0])
        return 3 * piece - n * piece
    (gathered,) = ring.collective.results
    grown = 2 * ref_bytes(gathered) / n - ref_bytes(gathered)
    for dot in ring.dots:
        free = _result_dim(dot, dot.operands.index(gathered), ring.dim) is not None
        grown += ref_bytes(dot.results[0]) / n if free else _summed_bytes(dot)
    return grown


def _summed_bytes(dot: LocalOp) -> float:
    """Bytes of a part of a contraction while it is added up, and what the sum takes beyond the result."""
    (out,) = dot.results
    wide = math.prod(out.shape) * item_bytes(_WIDE.get(out.dtype, out.dtype))
    return 2 * wide - ref_bytes(out)


def _part_seconds(dot: LocalOp, ring: _Ring, machine: Machine) -> float:
    """Time of one piece of a contraction, with putting its result in place."""
    n = ring.size
    split = ring.collective.results[0] if ring.gathers else None
    moved = sum(ref_bytes(r) / (n if r is split else 1) for r in dot.operands) + ref_bytes(dot.results[0]) / n
    # Compilers let a contraction write its piece in place. What is added up is read and written once more.
    out = ref_bytes(dot.results[0])
    if split is None:
        added = out / n
    else:
        added = 0.0 if _result_dim(dot, dot.operands.index(split), ring.dim) is not None else out
    return max(flops(dot) / n / machine.topology.flops, moved / machine.topology.memory_bandwidth) + machine.copy(added)


# -- writing ----------------------------------------------------------------------------------------------------


def _write_group(region: Region, realiser: Realiser, rings: dict[int, _Ring], group: list[LocalOp]) -> list[LocalOp]:
    """The pipeline in whose place the items `group` stood; `rings` by the identity of their first one."""
    ring, scratch = rings[id(group[0])], Scratch(region)
    if ring.gathers:
        _write_gather(scratch, realiser, ring)
    else:
        _write_scatter(scratch, realiser, ring)
    return scratch.take(region)


def _send(scratch: Region, realiser: Realiser, x: LocalValue, ring: _Ring, step: int) -> LocalValue:
    """`x` from the neighbour `step` further in the ring."""
    item, c = ring.collective, ring.collective.communication
    groups = realiser.atoms.groups(ring.atoms)
    n = groups.shape[1]
    pairs = np.array([(g[(i + step) % n], g[i]) for g in groups for i in range(n)], np.int64)
    lists = realiser.builder.dense(("ring", ring.atoms, step), lambda: pairs)
    attrs = communication(kind_of("collective_permute"), lists)
    (out,) = scratch.op("stablehlo.collective_permute", (x,), [(x.shape, x.dtype)], attrs, loc=item.loc)
    sent = math.prod(x.shape) * item_bytes(x.dtype)
    cause = f"{c.cause}, pipelined with a contraction"
    out.maker.collective = Collective("collective_permute", ring.atoms, c.groups, sent, c.op, cause)
    return out


def _start(scratch: Region, realiser: Realiser, ring: _Ring, shift: int, piece: int) -> LocalValue:
    """Where the piece of the member `shift` further in the ring starts (i32 scalar)."""
    n = ring.size
    at = realiser.coordinate(scratch, ring.atoms)
    if shift:
        at = scratch.entry("stablehlo.add", (at, realiser.index(scratch, shift)), (), "i32")
        at = scratch.entry("stablehlo.remainder", (at, realiser.index(scratch, n)), (), "i32")
    return scratch.entry("stablehlo.multiply", (at, realiser.index(scratch, piece)), (), "i32")


def _dot(scratch: Region, dot: LocalOp, operands: list[LocalValue], shape: tuple[int, ...], dtype: str) -> LocalValue:
    return scratch.op(DOT, operands, [(shape, dtype)], dot.attrs, dot.extra, loc=dot.loc)[0]


def _put(
    scratch: Region, realiser: Realiser, out: LocalValue, part: LocalValue, dim: int, start: LocalValue, loc: str
) -> LocalValue:
    zero = realiser.index(scratch, 0)
    starts = [start if d == dim else zero for d in range(len(out.shape))]
    types = [(out.shape, out.dtype)]
    return scratch.op("stablehlo.dynamic_update_slice", (out, part, *starts), types, loc=loc)[0]


def _sum(scratch: Region, a: LocalValue | None, b: LocalValue, loc: str) -> LocalValue:
    return b if a is None else scratch.op("stablehlo.add", (a, b), [(b.shape, b.dtype)], loc=loc)[0]


def _result_dim(dot: LocalOp, side: int, dim: int) -> int | None:
    """The dimension of the result that a free dimension of an operand becomes; None for a contracted one."""
    batch, contracting = dot_dimensions(dot)[side], dot_dimensions(dot)[side + 2]
    if dim in contracting:
        return None
    place = sum(1 for d in range(dim) if d not in batch and d not in contracting)
    left = len(dot.operands[0].shape) - len(contracting) if side else len(batch)
    return left + place


def _write_gather(scratch: Region, realiser: Realiser, ring: _Ring) -> None:
    x = ring.collective.operands[0]
    gathered = ring.collective.results[0]
    n, piece = ring.size, x.shape[ring.dim]
    totals: list[LocalValue | None] = [None] * len(ring.dots)
    for step in range(n):
        start = _start(scratch, realiser, ring, step, piece)
        coming = _send(scratch, realiser, x, ring, 1) if step < n - 1 else x
        for k, dot in enumerate(ring.dots):
            totals[k] = _gather_step(scratch, realiser, dot, gathered, x, ring.dim, start, totals[k])
        x = coming
    for dot, total in zip(ring.dots, totals):
        assert total is not None, "a ring has two devices at least"
        (result,) = dot.results
        name = "stablehlo.reshape" if total.dtype == result.dtype else "stablehlo.convert"
        scratch.add(LocalOp(name, (total,), [result], loc=dot.loc))


def _gather_step(
    scratch: Region,
    realiser: Realiser,
    dot: LocalOp,
    gathered: LocalValue,
    x: LocalValue,
    dim: int,
    start: LocalValue,
    total: LocalValue | None,
) -> LocalValue:
    """One piece of a contraction, added to or put into what there is of its result."""
    side = dot.operands.index(gathered)
    out = dot.results[0]
    at = _result_dim(dot, side, dim)
    operands = list(dot.operands)
    operands[side] = x
    if at is not None:
        shape = (*out.shape[:at], x.shape[dim], *out.shape[at + 1 :])
        part = _dot(scratch, dot, operands, shape, out.dtype)
        total = realiser.zero(scratch, out.shape, out.dtype) if total is None else total
        return _put(scratch, realiser, total, part, at, start, dot.loc)
    lhs, rhs = dot_dimensions(dot)[2:]
    mine, other = (lhs, rhs) if side == 0 else (rhs, lhs)
    across = other[mine.index(dim)]
    operands[1 - side] = realiser.window(scratch, operands[1 - side], across, start, x.shape[dim], dot.loc)
    part = _dot(scratch, dot, operands, out.shape, _WIDE.get(out.dtype, out.dtype))
    return _sum(scratch, total, part, dot.loc)


def _write_scatter(scratch: Region, realiser: Realiser, ring: _Ring) -> None:
    (dot,) = ring.dots
    item, n = ring.collective, ring.size
    (out,) = item.results
    whole = dot.results[0].shape
    piece = whole[ring.dim] // n
    shape = (*whole[: ring.dim], piece, *whole[ring.dim + 1 :])
    cut = [(side, d) for side in (0, 1) for d in range(len(dot.operands[side].shape))
           if _source_of(dot, side, d) == ring.dim]  # fmt: skip
    total: LocalValue | None = None
    for step in range(n):
        # The sum that arrives here belongs to the member that it still has to pass n - 1 - step others to reach.
        start = _start(scratch, realiser, ring, n - 1 - step, piece)
        operands = list(dot.operands)
        for side, d in cut:
            operands[side] = realiser.window(scratch, operands[side], d, start, piece, dot.loc)
        coming = None if total is None else _send(scratch, realiser, total, ring, -1)
        total = _sum(scratch, coming, _dot(scratch, dot, operands, shape, out.dtype), item.loc)
    assert total is not None, "a ring has two devices at least"
    for renaming, dim in ring.chain:
        if renaming.name == "stablehlo.transpose":
            total = realiser.transpose(scratch, total, _places(renaming), item.loc)
        else:
            whole = renaming.results[0].shape
            total = realiser.reshape(scratch, total, (*whole[:dim], piece, *whole[dim + 1 :]), item.loc)
    scratch.add(LocalOp("stablehlo.reshape", (total,), [out], loc=item.loc))


def _source_of(dot: LocalOp, side: int, dim: int) -> int | None:
    """The dimension of the result that a dimension of an operand is; None for a contracted one."""
    batch = dot_dimensions(dot)[side]
    return batch.index(dim) if dim in batch else _result_dim(dot, side, dim)
