"""Peak memory of a per-device program, by liveness of its values.

An estimate: compilers fuse, reorder and recompute. Values that never become a buffer (constants, broadcasts, reshapes)
do not count, and neither do elementwise results with one user, into which compilers fuse them. It serves to compare two
orders of the same operations and to find programs that are far too large; the compiler has the last word.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from propagation.ops import having

from ..heuristics import MEMORY_GROWTH_BYTES
from ..ir.program import LocalFunction, LocalOp, LocalValue, Region
from ..ir.walker import inputs
from ..machine import Machine, ref_bytes

__all__ = ["Budget", "Lives", "Room", "Span", "boundary", "crest", "need_of", "peak"]

_NO_BUFFER = having("free") - {"stablehlo.bitcast_convert"}  # which may change the size of elements
_SAME_BUFFER = {"stablehlo.reshape", "stablehlo.optimization_barrier"}
# Operations that are not fused with the one operation that uses their result.
_BUFFER = having("library") | having("reducing")
_BUFFER |= {f"stablehlo.{name}" for name in ("concatenate", "custom_call", "dynamic_update_slice", "gather")}
_BUFFER |= {"func.call"}


def boundary(function: LocalFunction) -> float:
    """Bytes of arguments and results; a donated argument gives its memory to a result."""
    arguments = sum(map(ref_bytes, function.region.args))
    results = sum(ref_bytes(r) for r in dict.fromkeys(function.results) if r.item is not None)
    given = sum(map(ref_bytes, function.donated))
    return arguments + max(0.0, results - given)


class Budget:
    """How many bytes a pass may keep for longer than the program as built kept them: what a device has left, or where
    that is unknown a share of what the program is estimated to need. The estimate is made when somebody asks."""

    def __init__(self, function: LocalFunction, functions: dict[str, LocalFunction], machine: Machine, growth: float):
        self._function, self._functions, self._machine, self._growth = function, functions, machine, growth
        self._left: float | None = None

    @property
    def left(self) -> float:
        """Bytes that nobody has taken yet; none if the program does not fit as it is."""
        if self._left is None:
            need = need_of(self._function, self._functions)
            limit = self._machine.memory
            free = max(need * self._growth, MEMORY_GROWTH_BYTES) if self._growth else 0.0
            self._left = free if limit is None else max(0.0, limit - need)
        return self._left

    def need(self) -> float:
        """Estimated bytes of the function as it is now."""
        return need_of(self._function, self._functions)

    def room(self) -> Room:
        """Where in the function as it is now how many bytes more may live at once."""
        return Room(self._function, self._functions, self.left)

    def take(self, n: float) -> bool:
        """Whether `n` bytes were left; if so they are taken."""
        if n > self.left:
            return False
        self._left = self.left - n
        return True


def need_of(function: LocalFunction, functions: dict[str, LocalFunction]) -> float:
    """Estimated bytes of a function: its boundary, and what lives in it at most."""
    return boundary(function) + peak(function.region, function.results, functions)


def peak(
    region: Region, results: Sequence[LocalValue] = (), functions: dict[str, LocalFunction] | None = None
) -> float:
    """The most bytes that live at once in a region: see `crest`."""
    return crest(region, results, functions)[0]


def crest(
    region: Region, results: Sequence[LocalValue] = (), functions: dict[str, LocalFunction] | None = None
) -> tuple[float, int]:
    """The most bytes that live at once in a region, and at which of its items.

    The region's arguments, what it uses from outside and what `results` names do not count: they are the boundary.
    `functions` are those that calls may name; without them calls cost their results alone.
    """
    return Lives(functions).crest(region, results)


class Span(NamedTuple):
    """A value that becomes a buffer: from the item that makes it to the last one that reads it, by their numbers."""

    value: LocalValue
    bytes: float
    first: int
    last: int


# What an item uses, whether its results become buffers even if one item alone uses them, those that may become one with
# their bytes, and what lives within it.
_Facts: TypeAlias = tuple[Sequence[LocalValue], bool, list[tuple[LocalValue, float]], float]


class Lives:
    """Estimates of what lives in regions. What is found about items is kept, so that asking again after a region got
    another order is quick; items and functions must stay as they are, or be forgotten."""

    def __init__(self, functions: dict[str, LocalFunction] | None):
        self._functions = functions
        self._facts: dict[LocalOp, _Facts] = {}
        self._running: list[LocalOp] = []  # of these, the items that run others
        self._insides: dict[Region, float] = {}

    def crest(self, region: Region, results: Sequence[LocalValue]) -> tuple[float, int]:
        """See `crest`."""
        bytes_at = list(itertools.starmap(operator.add, self.of(region, results)))
        most = max(bytes_at, default=0.0)
        return (most, bytes_at.index(most)) if most > 0.0 else (0.0, 0)

    def forget_regions(self) -> None:
        """Drops what is known of items that run others: regions have changed."""
        self._insides.clear()
        for item in self._running:
            self._facts.pop(item, None)
        self._running.clear()

    def most_growth(self, items: Sequence[LocalOp], order: Sequence[LocalOp]) -> float:
        """Bytes by which the peak of a region can grow at most if its `items` run in another `order`: all that those
        read and make which wait for one that came after them. What else lives while an item runs lived at once before,
        too. Infinite if one of those that wait runs others, of which it isn't known beside what."""
        place = {item: i for i, item in enumerate(items)}
        touched: set[LocalValue] = set()
        latest = -1
        for item in order:
            if place[item] > latest:
                latest = place[item]
                continue
            if _runs_others(item):
                return math.inf
            touched.update(inputs(item))
            touched.update(item.results)
        todo = list(touched)
        while todo:  # of what shares a buffer, the value that made it
            maker = todo.pop().item
            if maker is not None and maker.name in _SAME_BUFFER:
                more = [r for r in maker.operands if r not in touched]
                touched.update(more)
                todo += more
        return sum([ref_bytes(r) for r in touched if r.item is not None and r.item.name not in _NO_BUFFER])

    def of(self, region: Region, results: Sequence[LocalValue]) -> list[tuple[float, float]]:
        """Per item of a region: bytes of the region's values that live while it runs, and those that live within it."""
        facts = self._facts_of(region)
        last, shared = _last_uses(region.items, facts)
        returned = set(results)
        change: list[float] = [0.0] * (len(facts) + 1)
        for i, (_, kept, made, _) in enumerate(facts):
            if not made:
                continue
            for r, n in made:
                if (kept or r in shared) and r not in returned:
                    change[i] += n
                    change[last.get(r, i) + 1] -= n
        return list(zip(itertools.accumulate(change), [inner for *_, inner in facts]))

    def spans(self, region: Region, results: Sequence[LocalValue]) -> tuple[list[Span], list[float]]:
        """The values of a region that become buffers, each with when it lives; per item the bytes that live within it.

        `results` and what comes from outside belong to the boundary and are left out.
        """
        facts = self._facts_of(region)
        last, shared = _last_uses(region.items, facts)
        returned = set(results)
        spans = [
            Span(r, n, i, last.get(r, i))
            for i, (_, kept, made, _) in enumerate(facts)
            for r, n in made
            if (kept or r in shared) and r not in returned
        ]
        return spans, [inner for *_, inner in facts]

    def _facts_of(self, region: Region) -> list[_Facts]:
        known = self._facts.get
        return [known(item) or self._look(item) for item in region.items]

    def _look(self, item: LocalOp) -> _Facts:
        """The facts of an item, which are kept."""
        used, name, inner = item.operands, item.name, 0.0
        if item.regions or len(used) > 2 or (len(used) == 2 and used[0] is used[1]):
            used = list(set(inputs(item)))
        kept = item.collective is not None or name in _BUFFER
        made = [] if name in _NO_BUFFER else [(r, ref_bytes(r)) for r in item.results]
        if item.regions or name == "func.call":
            kept = True
            if item.regions:
                inner = max([self._inside(r) for r in item.regions])
            elif self._functions is not None:
                inner = self._inside(self._functions[item.callee].region)
            if _runs_others(item):
                self._running.append(item)
        found = self._facts[item] = used, kept, made, inner
        return found

    def _inside(self, region: Region) -> float:
        if region.kind == "body":
            return 0.0
        found = self._insides.get(region)
        if found is None:
            found = self._insides[region] = self.crest(region, ())[0]
        return found


def _runs_others(item: LocalOp) -> bool:
    """Whether items run within an item: of a loop, a branch, a function."""
    return item.name == "func.call" or (bool(item.regions) and any(r.kind != "body" for r in item.regions))


def _last_uses(
    items: Sequence[LocalOp], facts: Sequence[_Facts]
) -> tuple[dict[LocalValue, int], set[LocalValue]]:  # fmt: skip
    """By value the last item that reads it, or what shares its buffer; and the values that several items use."""
    last: dict[LocalValue, int] = {}
    shared: set[LocalValue] = set()
    for i, fact in enumerate(facts):
        for r in fact[0]:
            if r in last:
                shared.add(r)
            last[r] = i
    for item in reversed([item for item in items if item.name in _SAME_BUFFER]):
        end = max([last.get(r, 0) for r in item.results], default=0)
        for r in item.operands:
            last[r] = max(last[r], end)
    return last, shared


class Room:
    """How many bytes more may live while an item runs, before the estimated peak grows by more than `extra`."""

    def __init__(self, function: LocalFunction, functions: dict[str, LocalFunction], extra: float):
        self._live: dict[LocalOp, float] = {}
        self._lives = Lives(functions)
        self._most = 0.0
        self._visit(function.region, function.results, 0.0)
        self._most += extra

    def _visit(self, region: Region, results: Sequence[LocalValue], outer: float) -> None:
        for item, (live, inner) in zip(region.items, self._lives.of(region, results)):
            self._live[item] = outer + live
            self._most = max(self._most, outer + live + inner)
            for r in item.regions:
                if r.kind != "body":
                    self._visit(r, (), outer + live)

    def at(self, item: LocalOp) -> float:
        """Bytes that are free while an item runs."""
        return self._most - self._live[item]
