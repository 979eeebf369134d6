"""Latency-hiding scheduling: collectives start as early as they can, and their users run as late as they can.

Machines with a network of their own compute while messages travel (XLA has a scheduler of that name for them). This one
is a list scheduler over two resources, one that computes and one that sends; operations that are ready are taken by the
length of the critical path from them to the end. Its order is taken where a simulation says that it is faster than the
order as it was and the estimated peak memory stays within the budget; where it needs too much, fewer bytes may have
been received ahead of their use.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from ..heuristics import ORDER_TIME_SHARE
from ..ir.program import LocalFunction, LocalOp, LocalValue, Region
from ..ir.walker import effects, inputs, walk
from ..machine import Machine, ref_bytes
from .memory import Budget, peak

__all__ = ["order", "simulate"]


def order(function: LocalFunction, functions: dict[str, LocalFunction], machine: Machine, budget: Budget) -> int:
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


def _order_region(
    region: Region, results: Sequence[LocalValue], functions: dict[str, LocalFunction], machine: Machine, extra: float
) -> int:
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
        if simulate(region.items, machine, functions)[0] > ORDER_TIME_SHARE * now:
            break  # one that is ahead by less would not be faster
        if peak(region, results, functions) <= most:
            return 1
    region.items = before
    return 0


def _received(item: LocalOp) -> float:
    """Bytes of a collective's results."""
    return 0.0 if item.collective is None else sum(map(ref_bytes, item.results))


def simulate(items: Sequence[LocalOp], machine: Machine, functions: dict[str, LocalFunction]) -> tuple[float, float]:
    """(seconds, of which computing) that items take in their order where collectives run beside computing.

    Loops count their trips, those of unknown length as one; of branches, one after the other, all count.
    """
    clock = network = computing = 0.0
    arrives: dict[LocalOp, float] = {}
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


def _times(item: LocalOp, machine: Machine, functions: dict[str, LocalFunction]) -> tuple[float, float]:
    """(seconds, of which computing) of one item."""
    if item.collective is not None:
        return machine.collective(item.collective), 0.0
    inner = [(r, r.trips or 1) for r in item.regions if r.kind != "body"]
    if item.name == "func.call":
        inner = [(functions[item.callee].region, 1)]
    if not inner:
        alone = machine.compute(item)
        return alone, alone
    found = [(trips, simulate(r.items, machine, functions)) for r, trips in inner]
    return sum(n * both[0] for n, both in found), sum(n * both[1] for n, both in found)


def _needs(items: Sequence[LocalOp]) -> dict[LocalOp, list[LocalOp]]:
    """What each item waits for: the producers of its inputs, and among items with effects the one before."""
    own = set(items)
    out: dict[LocalOp, list[LocalOp]] = {}
    last: LocalOp | None = None
    for item in items:
        needs = {r.item for r in inputs(item) if r.item in own}
        if (item.effect or item.regions or item.name == "func.call") and effects(item):
            if last is not None:
                needs.add(last)
            last = item
        out[item] = [n for n in needs if n is not None]
    return out


def _schedule(
    items: Sequence[LocalOp], needs: dict[LocalOp, list[LocalOp]], times: dict[LocalOp, float], ahead: float
) -> list[LocalOp]:
    """A list schedule: messages start when their operands are ready, as long as no more than `ahead` bytes have been
    received and not been used yet; operations that compute go by the critical path from them to the end."""
    users: dict[LocalOp, list[LocalOp]] = {item: [] for item in items}
    for item in items:
        for n in needs[item]:
            users[n].append(item)
    longest: dict[LocalOp, float] = {}
    for item in reversed(items):
        longest[item] = times[item] + max((longest[u] for u in users[item]), default=0.0)
    desk = _Desk({item: i for i, item in enumerate(items)}, needs, longest, ahead)
    missing = {item: len(needs[item]) for item in items}
    unused = {item: len(users[item]) for item in items}
    for item in items:
        if not missing[item]:
            desk.wake(item)
    out: list[LocalOp] = []
    while (chosen := desk.next(times)) is not None:
        out.append(chosen)
        for n in needs[chosen]:
            unused[n] -= 1
            if not unused[n]:
                desk.held -= _received(n)
        for u in users[chosen]:
            missing[u] -= 1
            if not missing[u]:
                desk.wake(u)
    return out


class _Desk:
    """The ready lists of the scheduler.

    messages  collectives all of whose operands are scheduled, by their place in the program
    ready     operations whose operands have been computed or received, the longest critical path first
    waiting   operations of whose operands some are on their way, by the time when they arrive
    arrives   when the results of scheduled collectives arrive
    """

    def __init__(
        self, place: dict[LocalOp, int], needs: dict[LocalOp, list[LocalOp]], longest: dict[LocalOp, float],
        ahead: float,
    ):  # fmt: skip
        self.place, self.needs, self.longest, self.ahead = place, needs, longest, ahead
        self.messages: list[tuple[int, LocalOp]] = []
        self.ready: list[tuple[float, int, LocalOp]] = []
        self.waiting: list[tuple[float, int, LocalOp]] = []
        self.arrives: dict[LocalOp, float] = {}
        self.clock = self.network = 0.0
        self.held = 0.0  # bytes that messages brought and that are still to be used

    def wake(self, item: LocalOp) -> None:
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

    def _inputs_at(self, item: LocalOp) -> float:
        return max((self.arrives.get(n, 0.0) for n in self.needs[item]), default=0.0)

    def next(self, times: dict[LocalOp, float]) -> LocalOp | None:
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
