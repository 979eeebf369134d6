"""Moving collectives out of loops: what each iteration would send anew, though it is always the same.

A collective whose operand is computed from values of outside of the loop alone goes in front of it, with those
computations. Its result then lives as long as the loop runs: that is only done within a bound of memory. Branches stay
as they are, since what runs in one may never run.
"""

from __future__ import annotations

from ..emit import Item, Region
from .graph import effects, inputs
from .machine import ref_bytes
from .memory import Budget

__all__ = ["hoist"]


def hoist(region: Region, budget: Budget) -> int:
    """Moves collectives out of the loops of a region, innermost first; how many."""
    moved, out = 0, []
    for item in region.items:
        for inner in item.regions:
            if inner.kind != "body":
                moved += hoist(inner, budget)
        if item.name == "stablehlo.while":
            for inner in item.regions:
                if inner.trips != 0:
                    chosen = _invariant(inner, budget)
                    for i in chosen:
                        i.region = region
                    moved += sum(i.collective is not None for i in chosen)
                    out += chosen
        out.append(item)
    region.items = out
    return moved


def _invariant(loop: Region, budget: Budget) -> list[Item]:
    """Takes out of a loop its invariant collectives and what they need, in order."""
    # Most loops have none: collectives are looked at first, and what they need only as far as it is invariant.
    if not any(i.collective is not None for i in loop.items):
        return []
    varying = set(loop.args)
    for item in loop.items:
        if effects(item) or any(r in varying for r in inputs(item)):
            varying.update(item.results)
    wanted: set[Item] = set()
    for item in loop.items:
        if item.collective is not None and not any(r in varying for r in item.results):
            if budget.take(sum(map(ref_bytes, item.results))):
                c = item.collective
                item.collective = c._replace(cause=f"{c.cause}, moved out of a loop")
                wanted.add(item)
    if not wanted:
        return []
    own = set(loop.items)
    for item in reversed(loop.items):
        if item in wanted:
            wanted.update(r.item for r in inputs(item) if r.item in own)
    chosen = [i for i in loop.items if i in wanted]
    loop.items = [i for i in loop.items if i not in wanted]
    return chosen
