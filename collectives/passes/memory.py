"""How much memory a program needs, by what lives at once.

An estimate: compilers fuse, reorder and recompute. What never becomes a buffer (constants, broadcasts, reshapes) does
not count, and neither does an elementwise result with a single user, which compilers fuse into it. It tells apart two
programs of the same items, and finds programs that are far too large; the compiler has the last word.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..emit import FunctionItem, Item, Ref, Region
from .graph import inputs
from .machine import Machine, ref_bytes

__all__ = ["Budget", "Lives", "Room", "boundary", "crest", "need_of", "peak"]

_NO_BUFFER = {"stablehlo.constant", "stablehlo.iota", "stablehlo.broadcast_in_dim", "stablehlo.reshape",
              "stablehlo.replica_id", "stablehlo.optimization_barrier"}  # fmt: skip
_SAME_BUFFER = {"stablehlo.reshape", "stablehlo.optimization_barrier"}
_BUFFER = {"stablehlo.dot_general", "stablehlo.convolution", "stablehlo.reduce", "stablehlo.sort", "stablehlo.scatter",
           "stablehlo.gather", "stablehlo.concatenate", "stablehlo.dynamic_update_slice", "stablehlo.custom_call",
           "stablehlo.fft", "stablehlo.cholesky", "stablehlo.triangular_solve", "stablehlo.reduce_window",
           "stablehlo.select_and_scatter", "func.call"}  # fmt: skip
FLOOR = float(1 << 20)  # bytes that nobody misses


def boundary(function: FunctionItem) -> float:
    """Bytes of arguments and results; a donated argument gives its memory to a result."""
    arguments = sum(map(ref_bytes, function.region.args))
    results = sum(ref_bytes(r) for r in dict.fromkeys(function.results) if r.item is not None)
    given = sum(ref_bytes(a) for a, text in zip(function.region.args, function.arg_attrs) if text)
    return arguments + max(0.0, results - given)


class Budget:
    """How many bytes a pass may keep for longer than the program as built kept them: what a device has left, or where
    that is unknown a share of what the program is estimated to need. The estimate is made when somebody asks."""

    def __init__(self, function: FunctionItem, functions: dict[str, FunctionItem], machine: Machine, growth: float):
        self._function, self._functions, self._machine, self._growth = function, functions, machine, growth
        self._left: float | None = None

    @property
    def left(self) -> float:
        """Bytes that nobody has taken yet; none if the program does not fit as it is."""
        if self._left is None:
            need = need_of(self._function, self._functions)
            limit = self._machine.memory
            free = max(need * self._growth, FLOOR) if self._growth else 0.0
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


def need_of(function: FunctionItem, functions: dict[str, FunctionItem]) -> float:
    """Estimated bytes of a function: its boundary, and what lives in it at most."""
    return boundary(function) + peak(function.region, function.results, functions)


def peak(region: Region, results: Sequence[Ref] = (), functions: dict[str, FunctionItem] | None = None) -> float:
    """The most bytes that live at once in a region: see `crest`."""
    return crest(region, results, functions)[0]


def crest(
    region: Region, results: Sequence[Ref] = (), functions: dict[str, FunctionItem] | None = None
) -> tuple[float, int]:
    """The most bytes that live at once in a region, and at which of its items.

    The region's arguments, what it uses from outside and what `results` names do not count: they are the boundary.
    `functions` are those that calls may name; without them calls cost their results alone.
    """
    return Lives(functions).crest(region, results)


class Lives:
    """Estimates of what lives in regions. What is found about items is kept, so that asking again after a region got
    another order is quick; items and functions must stay as they are, or be forgotten."""

    def __init__(self, functions: dict[str, FunctionItem] | None):
        self._functions = functions
        self._facts: dict[Item, tuple[Sequence[Ref], bool, list[tuple[Ref, float]], float]] = {}
        self._insides: dict[Region, float] = {}

    def crest(self, region: Region, results: Sequence[Ref]) -> tuple[float, int]:
        """See `crest`."""
        most, at = 0.0, 0
        for i, (live, inner) in enumerate(self.of(region, results)):
            if live + inner > most:
                most, at = live + inner, i
        return most, at

    def forget_regions(self) -> None:
        """Drops what is known of items that run others: regions have changed."""
        self._insides.clear()
        runs_others = lambda item: item.name == "func.call" or any(r.kind != "body" for r in item.regions)
        self._facts = {item: facts for item, facts in self._facts.items() if not runs_others(item)}

    def of(self, region: Region, results: Sequence[Ref]) -> list[tuple[float, float]]:
        """Per item of a region: bytes of the region's values that live while it runs, and those that live within it."""
        items = region.items
        facts = [self._facts.get(item) or self._look(item) for item in items]
        last: dict[Ref, int] = {}
        shared: set[Ref] = set()  # what several items use
        for i, (used, _, _, _) in enumerate(facts):
            for r in used:
                if r in last:
                    shared.add(r)
                last[r] = i
        for item in reversed(items):
            if item.name in _SAME_BUFFER:
                end = max((last.get(r, 0) for r in item.results), default=0)
                last.update((r, max(last[r], end)) for r in item.operands)
        returned = set(results)
        dying: list[float] = [0.0] * (len(items) + 1)
        live = 0.0
        out = []
        for i, (_, kept, made, inner) in enumerate(facts):
            for r, n in made:
                if (kept or r in shared) and r not in returned:
                    live += n
                    dying[last.get(r, i)] += n
            out.append((live, inner))
            live -= dying[i]
        return out

    def _look(self, item: Item) -> tuple[Sequence[Ref], bool, list[tuple[Ref, float]], float]:
        """What an item uses, whether its results become buffers even if one item alone uses them, those that may become
        one with their bytes, and what lives within it."""
        used = item.operands
        if len(used) > 1 or item.regions:
            used = list(set(inputs(item)))
        kept = item.collective is not None or bool(item.regions) or item.name in _BUFFER
        made = [] if item.name in _NO_BUFFER else [(r, ref_bytes(r)) for r in item.results]
        inner = max((self._inside(r) for r in item.regions), default=0.0)
        if self._functions is not None and item.name == "func.call":
            inner = self._inside(self._functions[item.attrs.partition("@")[2]].region)
        found = self._facts[item] = used, kept, made, inner
        return found

    def _inside(self, region: Region) -> float:
        if region.kind == "body":
            return 0.0
        found = self._insides.get(region)
        if found is None:
            found = self._insides[region] = self.crest(region, ())[0]
        return found


class Room:
    """How many bytes more may live while an item runs, before the estimated peak grows by more than `extra`."""

    def __init__(self, function: FunctionItem, functions: dict[str, FunctionItem], extra: float):
        self._live: dict[Item, float] = {}
        self._lives = Lives(functions)
        self._most = 0.0
        self._visit(function.region, function.results, 0.0)
        self._most += extra

    def _visit(self, region: Region, results: Sequence[Ref], outer: float) -> None:
        for item, (live, inner) in zip(region.items, self._lives.of(region, results)):
            self._live[item] = outer + live
            self._most = max(self._most, outer + live + inner)
            for r in item.regions:
                if r.kind != "body":
                    self._visit(r, (), outer + live)

    def at(self, item: Item) -> float:
        """Bytes that are free while an item runs."""
        return self._most - self._live[item]
