"""Combining small collectives whose time is mostly latency: one message in place of several.

This is what XLA's combiners (all-reduce, all-gather, reduce-scatter) do on accelerators. The members of a group are of
one kind, over the same devices, of one element type and reduction, and independent of each other: they have the same
depth, the number of such collectives on the longest path of dependences that leads to them. Groups are bounded, so that
the first member does not wait long for the last.

TPUs reduce several buffers in one operation without copying them, and the compiler of GPUs combines all-reduces so by
itself. All else is packed: operands are reshaped to tables, concatenated, sent as one, and sliced apart (`packing`).
TPUs keep arrays in tiles, where such a reshape moves every element, by unrolled code (a megabyte of it for two matrices
of 512 KiB): only little is packed there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection
from typing import Any

from ..heuristics import (
    COMBINED_GROWTH_SHARE,
    COMBINED_LATENCIES,
    MESSAGE_BYTES,
    PACKED_ALWAYS_BYTES,
    PACKED_BYTES,
    PACKED_NEED_SHARE,
    PACKING_LATENCY_SHARE,
    SMALL_LATENCIES,
)
from ..ir.program import LocalFunction, LocalOp, Region
from ..ir.walker import contract, effects, inputs, walk
from ..machine import Machine, ref_bytes
from ..reshard.realise import Realiser
from .memory import Lives, Room, boundary
from .packing import abreast, groups_of, one_reducer, pack

__all__ = ["combine"]


def combine(function: LocalFunction, functions: dict[str, LocalFunction], realiser: Realiser, machine: Machine) -> int:
    """Combines collectives in the regions of a function; how many fewer there are."""
    memory = _Memory(function, functions)
    return sum(_combine_in(r, memory, realiser, machine) for r in list(walk(function.region)))


class _Memory:
    """What the function as it now is is estimated to need. Estimates are made when they are asked for, and where it is
    enough to know between which bounds they lie, those follow from what they were before the function changed."""

    def __init__(self, function: LocalFunction, functions: dict[str, LocalFunction]):
        self.function = function
        self._lives = Lives(functions)
        self._peaks: dict[Region, float] = {}
        self._bounds: dict[Region, tuple[float, float]] = {}
        self._functions = functions
        self._room: Room | None = None

    @functools.cached_property
    def fixed(self) -> float:
        """Bytes of the function's arguments and results, which combining leaves as they are."""
        return boundary(self.function)

    @property
    def negligible(self) -> float:
        """Bytes by which its peak may grow."""
        return COMBINED_GROWTH_SHARE * self.fixed

    def room_at(self, item: LocalOp) -> float:
        """Bytes that are free while an item runs, if the peak may grow by what is negligible. That is asked of members
        of groups alone, which nobody has changed, and estimated once: what was packed before lives elsewhere."""
        if self._room is None:
            self._room = Room(self.function, self._functions, self.negligible)
        return self._room.at(item)

    def peak(self, region: Region) -> float:
        """The most bytes that live at once in a region."""
        found = self._peaks.get(region)
        if found is None:
            found = self._peaks[region] = self.peak_as(region, region.items)
            self._bounds[region] = found, found
        return found

    def peak_as(self, region: Region, items: list[LocalOp]) -> float:
        """The same if `items` were the region's."""
        results = self.function.results if region is self.function.region else ()
        before, region.items = region.items, items
        most = self._lives.crest(region, results)[0]
        region.items = before
        return most

    def bounds(self, region: Region) -> tuple[float, float]:
        """Two numbers between which the peak lies; it itself, twice, if nothing else is known."""
        if region not in self._bounds:
            self.peak(region)
        return self._bounds[region]

    def most_growth(self, items: list[LocalOp], order: list[LocalOp]) -> float:
        """Bytes by which a peak can grow at most if items of a region run in another order."""
        return self._lives.most_growth(items, order)

    def changed(self, region: Region, growth: float, members: Collection[LocalOp], new: list[LocalOp]) -> None:
        """Forgets what was estimated of the function before some `members` of a region became `new` items, in an order
        in which its peak can have grown by `growth`. What waited made or used no more than that, and whatever else
        lived at once still does, but for what the members take and give."""
        before = self._bounds.get(region)
        self._peaks.clear()
        self._bounds.clear()
        self._lives.forget_regions()
        if before is not None and math.isfinite(growth):
            taken = sum(ref_bytes(r) for item in members for r in item.operands)
            given = sum(ref_bytes(r) for item in members for r in item.results)
            made = sum(ref_bytes(r) for item in new for r in item.results)
            self._bounds[region] = before[0] - growth - taken - given, before[1] + growth + taken + made


def _combine_in(region: Region, memory: _Memory, realiser: Realiser, machine: Machine) -> int:
    classes: dict[tuple[Any, ...], list[LocalOp]] = {}
    for item in region.items:
        if item.collective is not None and _small(item, machine):
            c = item.collective
            key = (c.kind, c.atoms, groups_of(item), one_reducer(item), item.results[0].dtype)
            classes.setdefault(key, []).append(item)
    saved = 0
    for members in classes.values():
        if len(members) > 1:
            wanted = set(members)
            places = [i for i, item in enumerate(region.items) if item in wanted]
            between = slice(places[0], places[-1] + 1)
            groups = _groups(region.items[between], wanted, machine)
            if not machine.chosen:
                groups = _roomy(_fitting(groups, memory), memory)
            if groups:
                of = {item: g for g in groups for item in g}
                as_one = contract(region.items[between], of, list)  # members side by side
                growth = _growth(region, between, as_one, machine, memory)
                if growth is not None:
                    written = _join(region, between, as_one, of, realiser, machine)
                    memory.changed(region, growth, of, written)
                    saved += sum(len(g) - 1 for g in groups)
    return saved


def _join(
    region: Region, between: slice, as_one: list[LocalOp], of: dict[LocalOp, list[LocalOp]], realiser: Realiser,
    machine: Machine,
) -> list[LocalOp]:  # fmt: skip
    """Makes one collective of each group, where its members stand in `as_one`; what was written for them."""
    join = abreast if _no_copies(next(iter(of)), machine) else pack
    written: list[LocalOp] = []
    out: list[LocalOp] = []
    for item in as_one:
        group = of.get(item)
        if group is None:
            out.append(item)
        elif item is group[0]:
            new = join(region, realiser, group)
            written += new
            out += new
    region.items[between] = out
    return written


def _fitting(groups: list[list[LocalOp]], memory: _Memory) -> list[list[LocalOp]]:
    """The groups, or parts of them, whose packed operands and results are negligible beside what the program needs: at
    the peak of its memory there is no room for packed copies."""
    largest = max(map(_message, groups), default=0.0)
    fixed, region = memory.fixed, memory.function.region
    if largest <= max(PACKED_ALWAYS_BYTES, PACKED_NEED_SHARE * fixed):  # whatever lives between
        return groups
    within = lambda peak: max(PACKED_ALWAYS_BYTES, PACKED_NEED_SHARE * (fixed + peak))
    least, most = memory.bounds(region)
    parts = [_parts(g, within(least)) for g in groups]
    if least < most and parts != [_parts(g, within(most)) for g in groups]:
        parts = [_parts(g, within(memory.peak(region))) for g in groups]
    return [part for found in parts for part in found if len(part) > 1]


def _roomy(groups: list[list[LocalOp]], memory: _Memory) -> list[list[LocalOp]]:
    """The groups, or parts of them, whose packed copies of what is sent and received fit beside what lives while their
    members run: the peak may grow by what is negligible, and by the bytes that the messages saved are worth."""
    out: list[list[LocalOp]] = []
    for group in groups:
        sizes = [sum(map(ref_bytes, (*item.operands, *item.results))) for item in group]
        if sum(sizes) - MESSAGE_BYTES * (len(group) - 1) <= memory.negligible:
            out.append(group)
            continue
        part: list[LocalOp] = []
        copies, room = 0.0, math.inf
        for item, size in zip(group, sizes):
            free = memory.room_at(item)
            if part and copies + size - MESSAGE_BYTES * len(part) > min(room, free):
                out.append(part)
                part, copies, room = [], 0.0, math.inf
            part.append(item)
            copies, room = copies + size, min(room, free)
        out.append(part)
    return [part for part in out if len(part) > 1]


def _parts(group: list[LocalOp], bound: float) -> list[list[LocalOp]]:
    """A group as several whose messages are within a bound, members in their order."""
    out: list[list[LocalOp]] = []
    leaves = arrives = 0.0
    for item in group:
        size, made = ref_bytes(item.operands[0]), ref_bytes(item.results[0])
        leaves, arrives = leaves + size, arrives + made
        if out and max(leaves, arrives) <= bound:
            out[-1].append(item)
        else:
            out.append([item])
            leaves, arrives = size, made
    return out


def _message(group: list[LocalOp]) -> float:
    """Bytes of the larger of what is sent side by side and what arrives."""
    return max(sum(ref_bytes(i.operands[0]) for i in group), sum(ref_bytes(i.results[0]) for i in group))


def _growth(
    region: Region, between: slice, as_one: list[LocalOp], machine: Machine, memory: _Memory
) -> float | None:  # fmt: skip
    """Bytes by which the peak memory of the region grows at most if the members of each group wait for each other, and
    what depends on them for all of them, so that the items run `as_one`; None if that is too much.

    Without a topology the members themselves are negligible; what waits for them may not be.
    """
    items = region.items
    bound = memory.most_growth(items[between], as_one)
    if not machine.chosen and bound <= PACKED_ALWAYS_BYTES:
        return bound
    least = 0.0 if machine.chosen else PACKED_ALWAYS_BYTES
    if bound <= max(least, COMBINED_GROWTH_SHARE * memory.bounds(region)[0]):
        return bound
    most = memory.peak(region)
    allowed = max(least, COMBINED_GROWTH_SHARE * most)
    if bound <= allowed:
        return bound
    grown = memory.peak_as(region, [*items[: between.start], *as_one, *items[between.stop :]]) - most
    return bound if grown <= allowed else None


def _no_copies(item: LocalOp, machine: Machine) -> bool:
    """Whether the machine takes several such collectives as one operation on buffers that stay where they are.

    All-reduces of TPUs do; of all-gathers TPUs make two again, and all-to-alls need equal shapes. Virtual CPU devices
    meet once for each buffer. The compiler of GPUs aborts at such an all-reduce in a loop (its
    while-loop-all-reduce-code-motion takes the size of an array from a tuple), and combines all-reduces itself.
    """
    return machine.chosen and machine.topology.compiler in item.communication.facts.abreast


def _small(item: LocalOp, machine: Machine) -> bool:
    """Whether latency takes most of a collective's time, and far more than copying its data would."""
    c = item.communication
    if c.atoms is None or len(item.operands) != 1 or c.groups[1] < 2:
        return False
    if machine.topology.compiler in c.facts.merged_by:
        return False  # without copies
    latency = machine.collective(c, 0.0)
    if machine.collective(c) > SMALL_LATENCIES * latency:
        return False
    if _no_copies(item, machine):
        return latency > 0
    sizes = ref_bytes(item.operands[0]), ref_bytes(item.results[0])
    if max(sizes) > PACKED_BYTES and (not machine.chosen or machine.tiles):
        return False
    return machine.copy(sum(sizes)) <= PACKING_LATENCY_SHARE * latency


def _groups(items: list[LocalOp], wanted: set[LocalOp], machine: Machine) -> list[list[LocalOp]]:
    """Members that may become one: of the same depth, no more than COMBINED_LATENCIES latencies' worth of bytes. What
    has effects depends on what had some before it, too."""
    depth: dict[LocalOp, int] = {}
    levels: dict[int, list[list[LocalOp]]] = {}
    weights: dict[int, float] = {}
    after_effects = 0
    for item in items:
        acts = bool(item.effect or item.regions or item.name == "func.call") and effects(item)
        deep = after_effects if acts else 0
        for r in inputs(item):
            d = None if r.item is None else depth.get(r.item)
            if d is not None and d > deep:
                deep = d
        if item in wanted:
            c = item.communication
            latency = machine.collective(c, 0.0)
            weight = machine.collective(c) - latency
            found = levels.setdefault(deep, [])
            if not found or weights[deep] + weight > COMBINED_LATENCIES * latency:
                found.append([])
                weights[deep] = 0.0
            found[-1].append(item)
            weights[deep] += weight
            deep += 1
        if deep:
            depth[item] = deep
        if acts:
            after_effects = deep
    return [g for groups in levels.values() for g in groups if len(g) > 1]
