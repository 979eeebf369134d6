"""Dead code."""

from __future__ import annotations

from ..emit import FunctionItem, Item, Region
from .graph import effects

__all__ = ["remove_dead"]

_ENDS = ("stablehlo.return", "func.return", "sdy.return")


def remove_dead(function: FunctionItem, prologue: bool = True) -> None:
    """Removes items whose results nobody uses, except those with effects. Loops and branches stay whole.

    Without `prologue` what stands at the start of the function stays, for passes that may still ask for it.
    """
    live: set = set(function.results)

    def sweep(region: Region) -> None:
        for name in ("items", "prologue") if prologue else ("items",):
            kept = []
            for item in reversed(getattr(region, name)):
                if not _needed(item, live):
                    continue
                for inner in item.regions:
                    sweep(inner)
                live.update(item.operands)
                kept.append(item)
            setattr(region, name, kept[::-1])

    sweep(function.region)


def _needed(item: Item, live: set) -> bool:
    if item.name in _ENDS or any(r in live for r in item.results):
        return True
    return (item.effect or item.regions or item.name == "func.call") and effects(item)
