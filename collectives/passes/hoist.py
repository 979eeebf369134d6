"""Loop-invariant code motion of collectives: an all-gather of a weight that every iteration would repeat is done once.

A collective is invariant if its operand is computed from values defined outside of the loop alone; it moves in front of
the loop, and the operations between those values and its operand with it. Its result is then live for as long as the
loop runs, so that it moves only where the estimated peak memory of the function stays within the budget. Nothing moves
out of branches, since a branch may not run.
"""

from __future__ import annotations

from ..ir.program import LocalOp, Region
from ..ir.walker import effects, inputs
from .memory import Budget

__all__ = ["hoist"]


def hoist(region: Region, budget: Budget) -> int:
    """Moves collectives out of the loops of a region, innermost first; how many."""
    moved = 0
    for item in list(region.items):
        for inner in item.regions:
            if inner.kind != "body":
                moved += hoist(inner, budget)
        if item.name == "stablehlo.while":
            moved += sum(_empty(region, item, inner, budget) for inner in item.regions if inner.trips != 0)
    return moved


def _empty(region: Region, item: LocalOp, loop: Region, budget: Budget) -> int:
    """Moves the invariant collectives of a loop: all together or, where that takes too much memory, one by one."""
    wanted = _invariant(loop)
    if not wanted:
        return 0
    if _move(region, item, loop, wanted, budget):
        return len(wanted)
    return sum(_move(region, item, loop, [c], budget) for c in wanted) if len(wanted) > 1 else 0


def _invariant(loop: Region) -> list[LocalOp]:
    """The collectives of a loop that send the same in every iteration."""
    # Most loops have none: collectives are looked at first, and what they need only as far as it is invariant.
    if not any(i.collective is not None for i in loop.items):
        return []
    varying = set(loop.args)
    for item in loop.items:
        if effects(item) or any(r in varying for r in inputs(item)):
            varying.update(item.results)
    return [i for i in loop.items if i.collective is not None and not any(r in varying for r in i.results)]


def _move(region: Region, item: LocalOp, loop: Region, collectives: list[LocalOp], budget: Budget) -> bool:
    """Puts collectives of a loop, and what they need of it, in front; undone if that takes more than is left."""
    before, inside, outside = budget.need(), loop.items, region.items
    own, wanted = set(inside), set(collectives)
    for i in reversed(inside):
        if i in wanted:
            wanted.update(r.item for r in inputs(i) if r.item in own)
    chosen = [i for i in inside if i in wanted]
    at = outside.index(item)
    loop.items = [i for i in inside if i not in wanted]
    region.items = [*outside[:at], *chosen, *outside[at:]]
    if not budget.take(max(0.0, budget.need() - before)):
        loop.items, region.items = inside, outside
        return False
    for i in chosen:
        i.region = region
        if i.collective is not None:
            i.collective = i.collective._replace(cause=f"{i.collective.cause}, moved out of a loop")
    return True
