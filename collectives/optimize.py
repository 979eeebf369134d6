"""Passes over the built per-device program: dead code and combining of small collectives."""

from __future__ import annotations

from .emit import Item, ModuleBuilder, Region
from .realise import Realiser

__all__ = ["optimize"]


def optimize(builder: ModuleBuilder, realiser: Realiser) -> None:
    """Runs all passes over every function."""
    for function in builder.functions:
        remove_dead(function.region, function.results)


def remove_dead(region: Region, results) -> None:
    """Removes items whose results nobody uses, except those with effects. Loops and branches stay whole."""
    live: set = set(results)

    def sweep(r: Region) -> None:
        for name in ("items", "prologue"):
            kept = []
            for item in reversed(getattr(r, name)):
                if not _needed(item, live):
                    continue
                for inner in item.regions:
                    sweep(inner)
                live.update(item.operands)
                kept.append(item)
            setattr(r, name, kept[::-1])

    sweep(region)


_ENDS = ("stablehlo.return", "func.return", "sdy.return")


def _needed(item: Item, live: set) -> bool:
    if item.effect or item.name in _ENDS or item.name == "func.call":
        return True
    return any(r in live for r in item.results) or any(_effects(r) for r in item.regions)


def _effects(region: Region) -> bool:
    """Whether a region may do more than compute its results; functions are not looked into."""
    return any(i.effect or i.name == "func.call" or any(map(_effects, i.regions)) for i in region.items)
