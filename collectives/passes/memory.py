"""How much memory a program needs, by what lives at once.

An estimate: compilers fuse, reorder and recompute. What never becomes a buffer (constants, broadcasts, reshapes) does
not count, and neither does an elementwise result with a single user, which compilers fuse into it. It tells apart two
programs of the same items, and finds programs that are far too large; the compiler has the last word.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..emit import FunctionItem, Item, Ref, Region
from .graph import inputs
from .machine import Machine, ref_bytes

__all__ = ["Budget", "Room", "boundary", "crest", "largest_collective", "last_uses", "need_of", "peak"]

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


def largest_collective(functions: Iterable[FunctionItem]) -> tuple[float, Item | None]:
    """The collective with the most bytes of operands and results: whatever a compiler fuses, these are in memory."""
    found: tuple[float, Item | None] = 0.0, None

    def visit(region: Region) -> None:
        nonlocal found
        for item in (*region.prologue, *region.items):
            if item.collective is not None:
                size = sum(map(ref_bytes, item.results))
                if item.collective.kind in ("all_gather", "reduce_scatter"):  # others may work in place
                    size += sum(map(ref_bytes, item.operands))
                if size > found[0]:
                    found = size, item
            for inner in item.regions:
                visit(inner)

    for function in functions:
        visit(function.region)
    return found


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


def last_uses(items: Sequence[Item]) -> tuple[dict[Ref, int], dict[Ref, int]]:
    """(position of the last use, number of users) of each value."""
    last: dict[Ref, int] = {}
    users: dict[Ref, int] = {}
    for i, item in enumerate(items):
        for r in set(inputs(item)):
            last[r] = i
            users[r] = users.get(r, 0) + 1
    return last, users


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
    most, at = 0.0, 0
    for i, (live, inner) in enumerate(_lives(region, results, functions)):
        if live + inner > most:
            most, at = live + inner, i
    return most, at


def _lives(region: Region, results: Sequence[Ref], functions) -> list[tuple[float, float]]:
    """Per item of a region: bytes of the region's values that live while it runs, and those that live within it."""
    items = region.items
    last, users = last_uses(items)
    for item in reversed(items):
        if item.name in _SAME_BUFFER:
            end = max((last.get(r, 0) for r in item.results), default=0)
            last.update((r, max(last[r], end)) for r in item.operands)
    returned = set(results)
    dying: list[float] = [0.0] * (len(items) + 1)
    live = 0.0
    out = []
    for i, item in enumerate(items):
        for r, n in _buffers(item, users):
            if r not in returned:
                live += n
                dying[last.get(r, i)] += n
        inner = max((_inside(r, functions) for r in item.regions), default=0.0)
        if functions is not None and item.name == "func.call":
            inner = _inside(functions[item.attrs.partition("@")[2]].region, functions)
        out.append((live, inner))
        live -= dying[i]
    return out


class Room:
    """How many bytes more may live while an item runs, before the estimated peak grows by more than `extra`."""

    def __init__(self, function: FunctionItem, functions: dict[str, FunctionItem], extra: float):
        self._live: dict[Item, float] = {}
        self._functions = functions
        self._most = 0.0
        self._visit(function.region, function.results, 0.0)
        self._most += extra

    def _visit(self, region: Region, results: Sequence[Ref], outer: float) -> None:
        for item, (live, inner) in zip(region.items, _lives(region, results, self._functions)):
            self._live[item] = outer + live
            self._most = max(self._most, outer + live + inner)
            for r in item.regions:
                if r.kind != "body":
                    self._visit(r, (), outer + live)

    def at(self, item: Item) -> float:
        """Bytes that are free while an item runs."""
        return self._most - self._live[item]


def _buffers(item: Item, users: dict[Ref, int]) -> list[tuple[Ref, float]]:
    """An item's results that become buffers, with their bytes."""
    if item.name in _NO_BUFFER:
        return []
    kept = item.collective is not None or item.regions or item.name in _BUFFER
    return [(r, ref_bytes(r)) for r in item.results if kept or users.get(r, 0) > 1]


def _inside(region: Region, functions: dict[str, FunctionItem] | None) -> float:
    return 0.0 if region.kind == "body" else peak(region, (), functions)
