"""Combining small collectives: one message in place of several where latency takes the time.

Members of a group are of one kind, over the same devices, of one element type and reduction, and independent of each
other: each has the same number of such collectives before it, along any chain of dependences, as the others. Groups are
bounded, so that a first member does not wait long for a last.
"""

from __future__ import annotations

from ..emit import Item, Region
from ..realise import Realiser
from .graph import contract, inputs, walk
from .machine import Machine, ref_bytes
from .packing import groups_text, one_reducer, pack

__all__ = ["combine"]

SHARE = 0.5  # of the latency saved that laying data side by side may cost
MOST = 16.0  # latencies' worth of bytes in one message
# The largest member where no topology was chosen: on eight virtual CPU devices, where a rendezvous takes 20 to 100 us,
# copies of this size cost much less than that, while combining 128 KiB made programs slower.
SMALL = 1 << 15


def combine(region: Region, realiser: Realiser, machine: Machine) -> int:
    """Combines collectives in a region and those inside; how many fewer there are."""
    return sum(_combine_in(r, realiser, machine) for r in list(walk(region)))


def _combine_in(region: Region, realiser: Realiser, machine: Machine) -> int:
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
            if groups:
                of = {item: g for g in groups for item in g}
                region.items[between] = contract(region.items[between], of, lambda g: pack(region, realiser, g))
                saved += sum(len(g) - 1 for g in groups)
    return saved


def _small(item: Item, machine: Machine) -> bool:
    """Whether latency takes most of a collective's time, and far more than copying its data would."""
    c = item.collective
    if c.atoms is None or len(item.operands) != 1 or c.groups[1] < 2:
        return False
    latency = machine.collective(c, 0.0)
    sizes = ref_bytes(item.operands[0]), ref_bytes(item.results[0])
    if not machine.chosen and max(sizes) > SMALL:
        return False
    copied = sum(sizes)
    return machine.collective(c) <= 2 * latency and machine.copy(copied) <= SHARE * latency


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
