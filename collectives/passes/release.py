"""Dropping gathered values where memory does not allow to keep them.

A value gathered once is kept for all its users, which may be far apart: a weight that the forward and the backward pass
need. Where the program would not fit, the users after the moment of the greatest need get a gather of their own, behind
a barrier that keeps it from moving up to the first. That costs its bytes again, which the plan tells.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..emit import FunctionItem, Item, Ref, Region
from .graph import inputs
from .machine import Machine, ref_bytes
from .memory import boundary, crest

__all__ = ["release"]

ROUNDS = 64


def release(function: FunctionItem, functions: dict[str, FunctionItem], machine: Machine) -> int:
    """Gathers values of a function's own region again, largest first, until it fits; how many."""
    if machine.memory is None:
        return 0
    fixed = boundary(function)
    for done in range(ROUNDS):
        most, at = crest(function.region, function.results, functions)
        if fixed + most <= machine.memory or not _split_one(function, at):
            return done
    return ROUNDS


def _split_one(function: FunctionItem, at: int) -> bool:
    """Splits the gather that frees most at position `at`; False if none does."""
    items = function.region.items
    kept = set(function.results)
    best: Item | None = None
    freed = 0.0
    busy = set(inputs(items[at]))
    later = {r for item in items[at + 1 :] for r in inputs(item)}
    for item in items[:at]:
        c = item.collective
        if c is not None and c.kind == "all_gather" and len(item.results) == 1:
            (r,) = item.results
            gain = ref_bytes(r) - ref_bytes(item.operands[0])
            if r in later and r not in busy and r not in kept and gain > freed:
                best, freed = item, gain
    if best is None:
        return False
    (old,) = best.results
    first = next(i for i in range(at + 1, len(items)) if old in inputs(items[i]))
    again = _again(function.region, best, items[:first])
    new = again[-1].results[0]
    _use_instead(items[first:], {old: new})
    items[first:first] = again
    return True


def _again(region: Region, gather: Item, before: Sequence[Item]) -> list[Item]:
    """The gather once more, after the last value of `before`."""
    (x,) = gather.operands
    c = gather.collective
    anchor = next(r for item in reversed(before) for r in item.results if r.type_text is None)
    held = [Ref(r.shape, r.dtype) for r in (x, anchor)]
    barrier = Item("stablehlo.optimization_barrier", (x, anchor), held, loc=gather.loc)
    copy = Item(gather.name, held[:1], [Ref(r.shape, r.dtype) for r in gather.results], gather.attrs, loc=gather.loc)
    copy.collective = c._replace(cause=f"{c.cause}, gathered again to save memory")
    barrier.region = copy.region = region
    return [barrier, copy]


def _use_instead(items: Sequence[Item], new: dict[Ref, Ref]) -> None:
    for item in items:
        item.operands = [new.get(r, r) for r in item.operands]
        for inner in item.regions:
            _use_instead(inner.items, new)
