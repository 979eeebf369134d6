"""Dead code."""

from __future__ import annotations

from collections.abc import Callable

from propagation.ops import TERMINATORS

from ..ir.program import LocalFunction, LocalOp, LocalValue, Region
from ..ir.walker import effects

__all__ = ["remove_dead", "remove_dead_start"]


def remove_dead(function: LocalFunction) -> set[LocalValue]:
    """Removes items whose results nobody uses, except those with effects. Loops and branches stay whole.

    What stands at the start of the function stays, for passes that may still ask for it: see `remove_dead_start`, which
    takes what this returns, the values that are used.
    """
    live: set[LocalValue] = set(function.results)

    def sweep(region: Region) -> None:
        region.items = _sweep(region.items, live, sweep)

    sweep(function.region)
    return live


def remove_dead_start(function: LocalFunction, live: set[LocalValue]) -> None:
    """Removes from the start of a function what nobody uses."""
    function.region.prologue = _sweep(function.region.prologue, live, lambda region: None)


def _sweep(items: list[LocalOp], live: set[LocalValue], into: Callable[[Region], None]) -> list[LocalOp]:
    kept = []
    for item in reversed(items):
        if not live.isdisjoint(item.results) or _acts(item):
            if item.regions:
                for inner in item.regions:
                    into(inner)
            live.update(item.operands)
            kept.append(item)
    kept.reverse()
    return kept


def _acts(item: LocalOp) -> bool:
    """Whether an item is needed even if nobody uses its results."""
    if item.effect or item.name in TERMINATORS:
        return True
    return bool(item.regions or item.name == "func.call") and effects(item)
