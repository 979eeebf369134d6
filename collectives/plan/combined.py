"""Which all-reduces XLA's compiler for CPUs makes one of: they wait for each other, and so do their operands.

That compiler combines all-reduces of the same groups and type that do not depend on each other, whatever their sizes,
beginning with the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    grown = 0  # the groups that more depend on than when they began
    alike: dict[tuple[Any, ...], list[int]] = {}
    serves: dict[LocalValue, int] = {}  # the groups that depend on a value
    for item in reversed(items):
        mask = 0
        for value in item.results:
            mask |= serves.get(value, 0)
        if item.name == "stablehlo.all_reduce" and item.collective is not None:
            mine = alike.setdefault(_key(item), [])
            reached = _closed(mask, after, grown)
            place = next((g for g in mine[-COMBINED_TRIED:] if not reached >> g & 1), None)
            if place is None:
                place = len(groups)
                groups.append([])
                after.append(mask)
                mine.append(place)
            elif mask & ~after[place]:
                after[place] |= mask
                grown |= 1 << place
            groups[place].append(item)
            mask |= 1 << place
        if mask:
            for value in inputs(item):
                serves[value] = serves.get(value, 0) | mask
    found = [members[::-1] for members in groups if len(members) > 1]
    return {item: members for members in found for item in members}


def _key(item: LocalOp) -> tuple[Any, ...]:
    groups = item.attrs[item.communication.facts.groups_attribute]
    return groups, item.regions[0].items[0].name, item.results[0].dtype


def _closed(mask: int, after: Sequence[int], grown: int) -> int:
    """The groups of `mask` and all that depend on them. What depended on a group when it began is in each mask that the
    group is in, so that only those that have `grown` are looked at."""
    seen = 0
    while todo := mask & grown & ~seen:
        bit = todo & -todo
        seen |= bit
        mask |= after[bit.bit_length() - 1]
    return mask
