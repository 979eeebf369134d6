"""The order in which XLA's compiler for CPUs runs a region: what became ready first runs first.

That compiler orders by breadth, for operations that run beside each other, and not to hold little: what begins two
branches of a program runs before either goes on, and arrays made of constants are made at the start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from ..ir.program import LocalOp, LocalValue
from ..ir.walker import inputs

__all__ = ["ENDING", "by_breadth"]

ENDING = frozenset(["stablehlo.return", "func.return"])  # what ends a region, with its results


def by_breadth(
    region_items: Sequence[LocalOp],
    args: Sequence[LocalValue],
    readers: Mapping[LocalValue, Sequence[int]],
    is_run: Callable[[LocalOp], bool],
    together: Mapping[LocalOp, Sequence[LocalOp]] = MappingProxyType({}),
    turns: Callable[[LocalOp], int] = lambda item: 1,
    reads: Callable[[LocalOp], Sequence[LocalValue]] = inputs,
) -> list[LocalOp]:
    """The items of a region in that order.

    Args:
      region_items: the items of a region.
      args: its arguments, which are there first, in their order.
      readers: per value the positions of the items that read it.
      is_run: whether an item runs by itself; others become part of what reads them and wait for no turn.
      together: the items that each item runs with, once the operands of all are there.
      turns: how many operations of the compiler's, one after the other, an item is.
      reads: what each item needs.

    Returns:
      All items, each behind what it reads; what ends the region stays last.
    """
    items = [item for item in region_items if item.name not in ENDING]
    here, arguments = set(items), set(args)
    made = lambda value: value.item in here or value in arguments
    waits = {item: sum(map(made, dict.fromkeys(reads(item)))) for item in items}
    missing = {id(members): len(members) for members in together.values()}
    left: dict[LocalOp, int] = {}
    queue: deque[LocalOp | LocalValue] = deque(args)
    order: list[LocalOp] = []

    def begin(item: LocalOp) -> None:
        """Takes an item whose operands are there, and all that needs no turn and only waited for it."""
        stack = [item]
        while stack:
            item = stack.pop()
            order.append(item)
            for value in reversed(item.results):
                stack += reversed(told(value))

    def told(value: LocalValue) -> list[LocalOp]:
        """What needs no turn once a value is there; what does is put in the queue."""
        at_once = []
        for i in readers.get(value, ()):
            item = region_items[i]
            if item.name in ENDING:
                continue
            waits[item] -= 1
            if waits[item] == 0:
                at_once += ready(item)
        return at_once

    def ready(item: LocalOp) -> list[LocalOp]:
        """Puts an item in the queue whose operands are there; what needs no turn is returned."""
        if not is_run(item):
            return [item]
        members = together.get(item)
        if members is not None:
            missing[id(members)] -= 1
            if missing[id(members)]:
                return []
        queue.append(item)
        return []

    for item in [item for item in items if waits[item] == 0]:
        for other in ready(item):
            begin(other)
    while queue:
        following = queue.popleft()
        if isinstance(following, LocalValue):
            started = told(following)
        else:
            left[following] = left.get(following, turns(following)) - 1
            if left[following] > 0:
                queue.append(following)
                continue
            started = list(together.get(following, [following]))
        for item in started:
            begin(item)
    assert len(order) == len(items), "every item of a region runs once"
    return [*order, *(item for item in region_items if item.name in ENDING)]
