"""The order in which XLA's compiler for CPUs runs a region: what became ready first runs first.

That compiler orders by breadth, for operations that run beside each other, and not to hold little: what begins two
branches of a program runs before either goes on, and arrays made of constants are made at the start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ..ir.program import LocalOp, LocalValue, Region
from ..ir.walker import inputs

__all__ = ["ENDING", "by_breadth"]

ENDING = frozenset(["stablehlo.return", "func.return"])  # what ends a region, with its results


def by_breadth(
    region: Region, readers: Mapping[LocalValue, Sequence[int]], is_run: Callable[[LocalOp], bool]
) -> list[LocalOp]:
    """The items of a region in that order.

    Args:
      region: whose items; its arguments are there first, in their order.
      readers: per value the positions of the items that read it.
      is_run: whether an item runs by itself; others become part of what reads them and wait for no turn.

    Returns:
      All items, each behind what it reads; what ends the region stays last.
    """
    items = [item for item in region.items if item.name not in ENDING]
    here, arguments = set(items), set(region.args)
    made = lambda value: value.item in here or value in arguments
    waits = {item: sum(map(made, dict.fromkeys(inputs(item)))) for item in items}
    queue: deque[LocalOp | LocalValue] = deque(region.args)
    order: list[LocalOp] = []

    def begin(item: LocalOp) -> None:
        """Takes an item whose operands are there, and all that needs no turn and only waited for it."""
        ready = [item]
        while ready:
            item = ready.pop()
            order.append(item)
            for value in reversed(item.results):
                ready += reversed(told(value))

    def told(value: LocalValue) -> list[LocalOp]:
        """What needs no turn once a value is there; what does is put in the queue."""
        at_once = []
        for i in readers.get(value, ()):
            item = region.items[i]
            if item.name in ENDING:
                continue
            waits[item] -= 1
            if waits[item] == 0:
                if is_run(item):
                    queue.append(item)
                else:
                    at_once.append(item)
        return at_once

    for item in [item for item in items if waits[item] == 0]:
        if is_run(item):
            queue.append(item)
        else:
            begin(item)
    while queue:
        following = queue.popleft()
        for item in [following] if isinstance(following, LocalOp) else told(following):
            begin(item)
    return [*order, *(item for item in region.items if item.name in ENDING)]
