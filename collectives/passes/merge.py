"""Common-subexpression elimination of collectives.

While a program is built, every reshard of a value is written once, and so is every operation that repeats another. Only
collectives that `hoist` moved out of two loops can be equal afterwards. They are found by value numbering: operations
get one number if they have the same name, attributes and numbers of operands, and collectives of one number become one.
"""

from __future__ import annotations

from typing import Any

from ..ir.program import LocalFunction, LocalOp, LocalValue, Region
from ..ir.walker import replace
from .packing import one_reducer

__all__ = ["merge"]


def merge(function: LocalFunction) -> int:
    """Merges equal collectives of a function's own region; how many fewer there are."""
    region = function.region
    if not _any_alike(region):
        return 0
    numbers: dict[LocalValue, object] = {}
    known: dict[tuple[Any, ...], int] = {}
    found: dict[int, LocalOp] = {}
    new: dict[LocalValue, LocalValue] = {}
    for items in (region.prologue, region.items):
        for item in items:
            key = _key(item, numbers)
            if key is None:
                continue
            number = known.setdefault(key, len(known))
            if item.collective is not None:
                first = found.setdefault(number, item)
                if first is not item:
                    new.update(zip(item.results, first.results))
            numbers.update((r, (number, i)) for i, r in enumerate(item.results))
    if new:
        region.items = [i for i in region.items if not (i.results and i.results[0] in new)]
        replace(function, new)
    return len(new)


def _any_alike(region: Region) -> bool:
    """Whether two collectives look the same but for their operands' names."""
    seen: set[tuple[Any, ...]] = set()
    for item in region.items:
        if item.collective is not None:
            key = (item.name, item.attrs, item.extra, item.results[0].shape, item.results[0].dtype, one_reducer(item))
            if key in seen:
                return True
            seen.add(key)
    return False


def _key(item: LocalOp, numbers: dict[LocalValue, object]) -> tuple[Any, ...] | None:
    """What an item computes, equal for items that compute the same; None if it cannot be told."""
    if item.effect or item.name == "func.call" or (item.regions and item.collective is None):
        return None
    reducer = one_reducer(item) if item.collective is not None else ""
    types = tuple((r.shape, r.dtype, r.type_text) for r in item.results)
    return (item.name, tuple([numbers.get(r, r) for r in item.operands]), item.attrs, item.extra, types, reducer)
