"""The order of operands of a variadic all-reduce (one of several buffers).

Compilers of TPUs number a program's instructions depth first from its results, and where two arguments could as well be
copied to the chip ahead of time they take the one with the lower number. Buffers listed in the order in which the
results need them leave that order as it is without the all-reduce; listed otherwise, it is turned around.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....ir.program import LocalFunction, LocalOp, LocalValue, Region
from ....ir.walker import inputs, walk
from ....machine import Machine

__all__ = ["list_as_needed"]


def list_as_needed(function: LocalFunction, machine: Machine) -> int:
    """Lists the buffers of every all-reduce as the results need them; how many all-reduces changed."""
    if not machine.tiles:
        return 0
    changed = 0
    for region in walk(function.region):
        several = [i for i in region.items if i.collective is not None and len(i.results) > 1]
        if several:
            needed = _needed(function.results if region is function.region else region.items[-1].operands, region)
            changed += sum(_list(item, needed) for item in several if item.communication.facts.sums)
    return changed


def _needed(results: Sequence[LocalValue], region: Region) -> dict[LocalValue, int]:
    """The place of each value of a region in a walk from its results, depth first."""
    place: dict[LocalValue, int] = {}
    done: set[LocalOp] = set()
    todo = list(reversed(results))
    while todo:
        r = todo.pop()
        if r in place:
            continue
        place[r] = len(place)
        item = r.item
        if item is not None and item.region is region and item not in done:
            done.add(item)
            todo += reversed(inputs(item))
    return place


def _list(item: LocalOp, needed: dict[LocalValue, int]) -> bool:
    last = len(needed)
    pairs = sorted(zip(item.operands, item.results), key=lambda pair: needed.get(pair[1], last))
    if [r for _, r in pairs] == list(item.results):
        return False
    item.operands, item.results = [x for x, _ in pairs], [r for _, r in pairs]
    for i, r in enumerate(item.results):
        r.number = i
    return True
