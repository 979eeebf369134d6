"""Ordering for overlap: collectives start as early as they can, and what needs them comes as late as it can.

Machines with a network of their own compute while messages travel. A list scheduler goes through the items by the
longest chain of work that hangs on each, on two resources: one that computes, one that sends. Its order is taken where
a simulation of both orders says that it is faster and the estimate of memory stays within its bound; if it needs too
much memory, fewer messages may be ahead of their users.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from ..emit import FunctionItem, Item, Ref, Region
from .graph import effects, inputs, walk
from .machine import Machine, ref_bytes
from .memory import Budget, peak

__all__ = ["order", "simulate"]

WORTH = 0.999  # the share of the predicted time as it was that another order may take


def order(function: FunctionItem, functions: dict[str, FunctionItem], machine: Machine, budget: Budget) -> int:
    """Orders the regions of a function; how many changed. Without overlap on the machine nothing does.

    A region may need as many bytes more as the budget has; regions do not add up, since one runs at a time.
    """
    if not machine.overlaps:
        return 0
    changed = 0
    for region in list(walk(function.region)):
        if any(i.collective is not None for i in region.items):
            results = function.results if region is function.region else ()
            changed += _order_region(region, results, functions, machine, budget.left)
    return changed


def _order_region(region: Region, results: Sequence[Ref], functions, machine: Machine, extra: float) -> int:
    before = region.items
    body = before[:-1] if before and not before[-1].results else before  # a terminator stays at the end
    end = before[len(body) :]
    times = {i: _times(i, machine, functions)[0] for i in body}
    needs = _needs(body)
    now = simulate(before, machine, functions)[0]
    most = peak(region, results, functions) + extra
    largest = max(_received(i) for i in body)
    for ahead in sorted({math.inf, 4 * largest + extra, 2 * largest}, reverse=True):
        region.items = _schedule(body, needs, times, ahead) + end
        if simulate(region.items, machine, functions)[0] > WORTH * now:
            break  # one that is ahead by less would not be faster
        if peak(region, results, functions) <= most:
            return 1
    region.items = before
    return 0


def _received(item: Item) -> float:
    """Bytes of a collective's results."""
    return 0.0 if item.collective is None else sum(map(ref_bytes, item.results))


def simulate(items: Sequence[Item], machine: Machine, functions: dict[str, FunctionItem]) -> tuple[float, float]:
    """(seconds, of which computing) that items take in their order where collectives run beside computing.

    Loops count their trips, those of unknown length as one; of branches, one after the other, all count.
    """
    clock = network = computing = 0.0
    arrives: dict[Item, float] = {}
    for item in items:
        if arrives:
            clock = max([clock, *[arrives[r.item] for r in inputs(item) if r.item in arrives]])
        seconds, working = _times(item, machine, functions)
        if item.collective is not None and machine.overlaps:
            network = arrives[item] = max(clock, network) + seconds
        else:
            clock += seconds
            computing += working
    return max(clock, network), computing


def _times(item: Item, machine: Machine, functions: dict[str, FunctionItem]) -> tuple[float, float]:
    """(seconds, of which computing) of one item."""
    if item.collective is not None:
        return machine.collective(item.collective), 0.0
    inner = [(r, r.trips or 1) for r in item.regions if r.kind != "body"]
    if item.name == "func.call":
        inner = [(functions[item.attrs.partition("@")[2]].region, 1)]
    if not inner:
        alone = machine.compute(item)
        return alone, alone
    found = [(trips, simulate(r.items, machine, functions)) for r, trips in inner]
    return sum(n * both[0] for n, both in found), sum(n * both[1] for n, both in found)


def _needs(items: Sequence[Item]) -> dict[Item, list[Item]]:
    """What each item waits for: the producers of its inputs, and among items with effects the one before."""
    own = set(items)
    out: dict[Item, list[Item]] = {}
    last: Item | None = None
    for item in items:
        needs = {r.item for r in inputs(item) if r.item in own}
        if (item.effect or item.regions or item.name == "func.call") and effects(item):
            if last is not None:
                needs.add(last)
            last = item
        out[item] = [n for n in needs if n is not None]
    return out


def _schedule(
    items: Sequence[Item], needs: dict[Item, list[Item]], times: dict[Item, float], ahead: float
) -> list[Item]:
    """An order in which messages start when they are ready, as long as what was received and is still to be used is no
    more than `ahead` bytes; what computes goes by the work that hangs on it."""
    users: dict[Item, list[Item]] = {item: [] for item in items}
    for item in items:
        for n in needs[item]:
            users[n].append(item)
    longest: dict[Item, float] = {}
    for item in reversed(items):
        longest[item] = times[item] + max((longest[u] for u in users[item]), default=0.0)
    desk = _Desk({item: i for i, item in enumerate(items)}, needs, longest, ahead)
    missing = {item: len(needs[item]) for item in items}
    unused = {item: len(users[item]) for item in items}
    for item in items:
        if not missing[item]:
            desk.wake(item)
    out: list[Item] = []
    while (item := desk.next(times)) is not None:
        out.append(item)
        for n in needs[item]:
            unused[n] -= 1
            if not unused[n]:
                desk.held -= _received(n)
        for u in users[item]:
            missing[u] -= 1
            if not missing[u]:
                desk.wake(u)
    return out


class _Desk:
    """What can be written next: messages, items to compute now, and items that wait for messages under way."""

    def __init__(self, place: dict[Item, int], needs, longest: dict[Item, float], ahead: float):
        self.place, self.needs, self.longest, self.ahead = place, needs, longest, ahead
        self.messages: list[tuple[int, Item]] = []
        self.ready: list[tuple[float, int, Item]] = []
        self.waiting: list[tuple[float, int, Item]] = []
        self.arrives: dict[Item, float] = {}
        self.clock = self.network = 0.0
        self.held = 0.0  # bytes that messages brought and that are still to be used

    def wake(self, item: Item) -> None:
        """An item all of whose inputs are written."""
        place = self.place[item]
        if item.collective is not None:
            heapq.heappush(self.messages, (place, item))
            return
        when = self._inputs_at(item)
        if when > self.clock:
            heapq.heappush(self.waiting, (when, place, item))
        else:
            heapq.heappush(self.ready, (-self.longest[item], place, item))

    def _inputs_at(self, item: Item) -> float:
        return max((self.arrives.get(n, 0.0) for n in self.needs[item]), default=0.0)

    def next(self, times: dict[Item, float]) -> Item | None:
        """The next item, taken off the desk; None when it is empty."""
        while self.messages or self.ready or self.waiting:
            while self.waiting and self.waiting[0][0] <= self.clock:
                _, place, item = heapq.heappop(self.waiting)
                heapq.heappush(self.ready, (-self.longest[item], place, item))
            if self.messages:
                item = self.messages[0][1]
                if self.held + _received(item) <= self.ahead or not (self.ready or self.waiting):
                    heapq.heappop(self.messages)
                    self.held += _received(item)
                    start = max(self.clock, self.network, self._inputs_at(item))
                    self.network = self.arrives[item] = start + times[item]
                    return item
            if self.ready:
                item = heapq.heappop(self.ready)[2]
                self.clock += times[item]
                return item
            self.clock = max(self.clock, self.waiting[0][0])
        return None
