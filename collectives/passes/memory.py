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

__all__ = ["Budget", "boundary", "last_uses", "peak"]

_NO_BUFFER = {"stablehlo.constant", "stablehlo.iota", "stablehlo.broadcast_in_dim", "stablehlo.reshape",
              "stablehlo.replica_id", "stablehlo.optimization_barrier"}  # fmt: skip
_BUFFER = {"stablehlo.dot_general", "stablehlo.convolution", "stablehlo.reduce", "stablehlo.sort", "stablehlo.scatter",
           "stablehlo.gather", "stablehlo.concatenate", "stablehlo.dynamic_update_slice", "stablehlo.custom_call",
           "stablehlo.fft", "stablehlo.cholesky", "stablehlo.triangular_solve", "stablehlo.reduce_window",
           "stablehlo.select_and_scatter", "func.call"}  # fmt: skip


def boundary(function: FunctionItem) -> float:
    """Bytes of arguments and results; a donated argument gives its memory to a result."""
    arguments = sum(map(ref_bytes, function.region.args))
    results = sum(ref_bytes(r) for r in dict.fromkeys(function.results) if r.item is not None)
    given = sum(ref_bytes(a) for a, text in zip(function.region.args, function.arg_attrs) if text)
    return arguments + max(0.0, results - given)


FLOOR = float(1 << 20)  # bytes that nobody misses


class Budget:
    """How many bytes a pass may keep for longer than the program as built kept them: what a device has left, or where
    that is unknown a share of what the program is estimated to need. The estimate is made when somebody asks."""

    def __init__(self, function: FunctionItem, functions: dict[str, FunctionItem], machine: Machine, growth: float):
        self._function, self._functions, self._machine, self._growth = function, functions, machine, growth
        self._left: float | None = None

    def take(self, n: float) -> bool:
        """Whether `n` bytes were left; if so they are taken."""
        if self._left is None:
            need = need_of(self._function, self._functions)
            limit = self._machine.memory
            free = max(need * self._growth, FLOOR) if self._growth else 0.0
            self._left = free if limit is None else limit - need
        if n > self._left:
            return False
        self._left -= n
        return True


def need_of(function: FunctionItem, functions: dict[str, FunctionItem]) -> float:
    """Estimated bytes of a function: its boundary, and what lives in it at most."""
    return boundary(function) + peak(function.region, function.results, functions)


def last_uses(items: Sequence[Item], results: Sequence[Ref] = ()) -> tuple[dict[Ref, int], dict[Ref, int]]:
    """(position of the last use, number of users) of each value; what `results` names is used after all items."""
    last: dict[Ref, int] = {}
    users: dict[Ref, int] = {}
    for i, item in enumerate(items):
        for r in set(inputs(item)):
            last[r] = i
            users[r] = users.get(r, 0) + 1
    for r in results:
        last[r] = len(items)
        users[r] = users.get(r, 0) + 1
    return last, users


def buffer_bytes(item: Item, users: dict[Ref, int]) -> float:
    """Bytes that an item's results take, as far as they become buffers."""
    if item.name in _NO_BUFFER:
        return 0.0
    kept = item.collective is not None or item.regions or item.name in _BUFFER
    return sum(ref_bytes(r) for r in item.results if kept or users.get(r, 0) > 1)


def peak(region: Region, results: Sequence[Ref] = (), functions: dict[str, FunctionItem] | None = None) -> float:
    """The most bytes that live at once in a region, without its arguments and what it uses from outside.

    `functions` are those that calls may name; without them calls cost their results alone.
    """
    items = region.items
    last, users = last_uses(items, results)
    dying: list[float] = [0.0] * (len(items) + 2)
    live = most = 0.0
    for i, item in enumerate(items):
        size = buffer_bytes(item, users)
        live += size
        inner = max((_inside(r, functions) for r in item.regions), default=0.0)
        if functions is not None and item.name == "func.call":
            inner = _inside(functions[item.attrs.partition("@")[2]].region, functions)
        most = max(most, live + inner)
        if size:
            for r in item.results:
                if ref_bytes(r):
                    dying[last.get(r, i)] += ref_bytes(r) if _counted(item, r, users) else 0.0
        live -= dying[i]
    return most


def _counted(item: Item, r: Ref, users: dict[Ref, int]) -> bool:
    return bool(item.collective is not None or item.regions or item.name in _BUFFER or users.get(r, 0) > 1)


def _inside(region: Region, functions: dict[str, FunctionItem] | None) -> float:
    return 0.0 if region.kind == "body" else peak(region, (), functions)
