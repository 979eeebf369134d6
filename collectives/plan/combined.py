"""Which all-reduces XLA's compiler for CPUs makes one of: they wait for each other, and so do their operands.

That compiler combines all-reduces of the same groups and type that do not depend on each other, whatever their sizes,
beginning with the last one.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..heuristics import COMBINED_TRIED
from ..ir.program import LocalOp, LocalValue
from ..ir.walker import inputs

__all__ = ["combined"]


def combined(items: Sequence[LocalOp]) -> dict[LocalOp, list[LocalOp]]:
    """The members, in their order, of the all-reduce that each all-reduce of several becomes part of.

    Args:
      items: of a region, in the order of the program.
    """
    groups: list[list[LocalOp]] = []
    after: list[int] = []  # per group those that depend on its members, as bits
    alike: dict[tuple, list[int]] = {}
    serves: dict[LocalValue, int] = {}  # the groups that depend on a value
    for item in reversed(items):
        mask = 0
        for value in item.results:
            mask |= serves.get(value, 0)
        if item.name == "stablehlo.all_reduce" and item.collective is not None:
            mine = alike.setdefault(_key(item), [])
            place = next((g for g in mine[-COMBINED_TRIED:] if not _reaches(mask, g, after)), None)
            if place is None:
                place = len(groups)
                groups.append([])
                after.append(0)
                mine.append(place)
            groups[place].append(item)
            after[place] |= mask
            mask |= 1 << place
        if mask:
            for value in inputs(item):
                serves[value] = serves.get(value, 0) | mask
    found = [members[::-1] for members in groups if len(members) > 1]
    return {item: members for members in found for item in members}


def _key(item: LocalOp) -> tuple:
    groups = item.attrs[item.communication.facts.groups_attribute]
    return groups, item.regions[0].items[0].name, item.results[0].dtype


def _reaches(mask: int, group: int, after: Sequence[int]) -> bool:
    """Whether `group` is one of those of `mask`, or depends on one of them."""
    seen = 0
    while todo := mask & ~seen:
        bit = todo & -todo
        seen |= bit
        place = bit.bit_length() - 1
        if place == group:
            return True
        mask |= after[place]
    return False
