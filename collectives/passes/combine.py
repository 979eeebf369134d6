"""Combining small collectives: one message in place of several where latency takes the time.

Members of a group are of one kind, over the same devices, of one element type and reduction, and independent of each
other: each has the same number of such collectives before it, along any chain of dependences, as the others. Groups are
bounded, so that a first member does not wait long for a last.

TPUs reduce several buffers in one operation, which needs no copies, and so does what the compiler of GPUs makes of
several all-reduces by itself. Everything else is laid side by side, which changes shapes. TPUs keep arrays in tiles:
there another shape moves every element, through code of which each element is a part (two matrices of 512 KiB made a
megabyte of it), so that only little is.
"""

from __future__ import annotations

from ..emit import FunctionItem, Item, Region
from ..realise import Realiser
from .graph import contract, inputs, walk
from .machine import Machine, ref_bytes
from .memory import Lives, boundary
from .packing import abreast, groups_text, one_reducer, pack

__all__ = ["combine"]

SHARE = 0.5  # of the latency saved that laying data side by side may cost
GROWTH = 0.01  # the share of a region's estimated memory by which it may grow
MOST = 16.0  # latencies' worth of bytes in one message
# The largest member laid side by side where no topology was chosen: on eight virtual CPU devices, where a rendezvous
# takes 20 to 100 us, copies of this size cost much less than that, while combining 128 KiB made programs slower. It is
# also the largest that TPUs lay out anew.
SMALL = 1 << 15
TINY = 1 << 12  # bytes that are laid side by side whatever else a program needs
SPARE = 1 / 4096  # the share of what it needs that may be


def combine(function: FunctionItem, functions: dict[str, FunctionItem], realiser: Realiser, machine: Machine) -> int:
    """Combines collectives in the regions of a function; how many fewer there are."""
    memory = _Memory(function, functions)
    return sum(_combine_in(r, memory, realiser, machine) for r in list(walk(function.region)))


class _Memory:
    """What the function as it is now is estimated to need; the estimates are made when they are asked for."""

    def __init__(self, function: FunctionItem, functions: dict[str, FunctionItem]):
        self.function = function
        self._lives = Lives(functions)
        self._peaks: dict[Region, float] = {}

    def peak(self, region: Region) -> float:
        """The most bytes that live at once in a region."""
        found = self._peaks.get(region)
        if found is None:
            found = self._peaks[region] = self.peak_as(region, region.items)
        return found

    def peak_as(self, region: Region, items: list[Item]) -> float:
        """The same if `items` were the region's."""
        results = self.function.results if region is self.function.region else ()
        before, region.items = region.items, items
        most = self._lives.crest(region, results)[0]
        region.items = before
        return most

    def need(self) -> float:
        """Bytes that the function needs."""
        return boundary(self.function) + self.peak(self.function.region)

    def changed(self) -> None:
        """Forgets what was estimated of the function before it changed."""
        self._peaks.clear()
        self._lives.forget_regions()


def _combine_in(region: Region, memory: _Memory, realiser: Realiser, machine: Machine) -> int:
    classes: dict[tuple, list[Item]] = {}
    for item in region.items:
        if item.collective is not None and _small(item, machine):
            c = item.collective
            key = (c.kind, c.atoms, groups_text(item), one_reducer(item), item.results[0].dtype)
            classes.setdefault(key, []).append(item)
    saved = 0
    for members in classes.values():
        if len(members) > 1:
            wanted = set(members)
            places = [i for i, item in enumerate(region.items) if item in wanted]
            between = slice(places[0], places[-1] + 1)
            groups = _groups(region.items[between], wanted, machine)
            if not machine.chosen:
                groups = _fitting(groups, memory)
            if groups and _affordable(region, between, groups, machine, memory):
                of = {item: g for g in groups for item in g}
                join = abreast if _no_copies(groups[0][0], machine) else pack
                region.items[between] = contract(
                    region.items[between], of, lambda g, join=join: join(region, realiser, g)
                )
                memory.changed()
                saved += sum(len(g) - 1 for g in groups)
    return saved


def _fitting(groups: list[list[Item]], memory: _Memory) -> list[list[Item]]:
    """The groups whose messages, as they leave and as they arrive, nobody misses the memory of: where compilers put
    what lives at a program's crest, nothing is spare."""
    largest = max(map(_message, groups), default=0.0)
    if largest <= max(TINY, SPARE * boundary(memory.function)):  # whatever lives between
        return groups
    bound = max(TINY, SPARE * memory.need())
    return [part for g in groups for part in _parts(g, bound) if len(part) > 1]


def _parts(group: list[Item], bound: float) -> list[list[Item]]:
    """A group as several whose messages are within a bound, members in their order."""
    out: list[list[Item]] = []
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


def _message(group: list[Item]) -> float:
    """Bytes of the larger of what is sent side by side and what arrives."""
    return max(sum(ref_bytes(i.operands[0]) for i in group), sum(ref_bytes(i.results[0]) for i in group))


def _affordable(region: Region, between: slice, groups: list[list[Item]], machine: Machine, memory: _Memory) -> bool:
    """Whether waiting for each other makes members and what hangs on them live no longer than memory allows.

    Without a topology members are so small that nobody misses them; what hangs on them may be larger.
    """
    items = region.items
    of = {item: g for g in groups for item in g}
    most = memory.peak(region)
    as_one = [*items[: between.start], *contract(items[between], of, list), *items[between.stop :]]
    grown = memory.peak_as(region, as_one) - most
    return grown <= (GROWTH * most if machine.chosen else max(GROWTH * most, TINY))


def _no_copies(item: Item, machine: Machine) -> bool:
    """Whether the machine takes several such collectives as one operation on buffers that stay where they are.

    All-reduces of TPUs do; of all-gathers TPUs make two again, and all-to-alls need equal shapes. Virtual CPU devices
    meet once for each buffer. The compiler of GPUs aborts at such an all-reduce in a loop (its
    while-loop-all-reduce-code-motion takes the size of an array from a tuple), and combines all-reduces itself.
    """
    return item.collective.kind == "all_reduce" and machine.chosen and machine.tiles


def _small(item: Item, machine: Machine) -> bool:
    """Whether latency takes most of a collective's time, and far more than copying its data would."""
    c = item.collective
    if c.atoms is None or len(item.operands) != 1 or c.groups[1] < 2:
        return False
    if c.kind == "all_reduce" and machine.topology.compiler == "cuda":
        return False  # that compiler's combiner needs no copies
    latency = machine.collective(c, 0.0)
    if machine.collective(c) > 2 * latency:
        return False
    if _no_copies(item, machine):
        return latency > 0
    sizes = ref_bytes(item.operands[0]), ref_bytes(item.results[0])
    if max(sizes) > SMALL and (not machine.chosen or machine.tiles):
        return False
    return machine.copy(sum(sizes)) <= SHARE * latency


def _groups(items: list[Item], wanted: set[Item], machine: Machine) -> list[list[Item]]:
    """Members that may become one: of the same depth, no more than MOST latencies' worth of bytes."""
    depth: dict[Item, int] = {}
    levels: dict[int, list[list[Item]]] = {}
    weights: dict[int, float] = {}
    for item in items:
        deep = 0
        for r in inputs(item):
            d = depth.get(r.item)
            if d is not None and d > deep:
                deep = d
        if item in wanted:
            c = item.collective
            latency = machine.collective(c, 0.0)
            weight = machine.collective(c) - latency
            found = levels.setdefault(deep, [])
            if not found or weights[deep] + weight > MOST * latency:
                found.append([])
                weights[deep] = 0.0
            found[-1].append(item)
            weights[deep] += weight
            deep += 1
        if deep:
            depth[item] = deep
    return [g for groups in levels.values() for g in groups if len(g) > 1]
