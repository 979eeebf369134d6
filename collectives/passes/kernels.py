"""Gradients of convolutions' kernels before those of what the kernels were laid over.

Both read the same cotangents, in layouts of their own. Compilers for machines whose arrays lie in tiles write a copy of
every operand of a convolution in the layout it reads, and order the two by the paths behind them: the gradient that is
still to be summed over devices comes last, and its copies are in memory beside the other's padded ones. Done first, its
copies are gone by then, and its sum travels while the other gradient is computed.
"""

from __future__ import annotations

from ..emit import FunctionItem, Item, Ref, Region
from .graph import inputs, walk
from .machine import Machine, ref_bytes

__all__ = ["kernels_first"]

_MOVED = {"stablehlo.reverse", "stablehlo.transpose", "stablehlo.reshape", "stablehlo.convert"}
# What puts a border around a device's piece.
_BORDERED = {"stablehlo.concatenate", "stablehlo.pad", "stablehlo.select", "stablehlo.slice"}


def kernels_first(function: FunctionItem, machine: Machine) -> int:
    """Lets convolutions wait for smaller ones of a common operand whose results are summed over devices; how many."""
    return sum(map(_wait_in, walk(function.region))) if machine.tiles else 0


def _wait_in(region: Region) -> int:
    by_operand: dict[Ref, list[Item]] = {}
    for item in region.items:
        if item.name == "stablehlo.convolution":
            for r in dict.fromkeys(map(_piece, item.operands)):
                by_operand.setdefault(r, []).append(item)
    if all(len(group) < 2 for group in by_operand.values()):
        return 0
    users: dict[Ref, list[Item]] = {}
    for item in region.items:
        for r in inputs(item):
            users.setdefault(r, []).append(item)
    waiting: set[Item] = set()
    for shared, group in by_operand.items():
        first = next((i for i in group if _summed(i, users)), None)
        for item in group:
            if first is None or item in waiting or _summed(item, users):
                continue
            smaller = ref_bytes(first.results[0]) < ref_bytes(item.results[0])
            if smaller and first not in waiting and _piece(item.operands[0]) is not _piece(item.operands[1]):
                if _wait(region, item, first, shared):
                    waiting.add(item)
    return len(waiting)


def _piece(r: Ref) -> Ref:
    """The piece that a convolution's operand is, with or without borders of other devices around it."""
    while r.item is not None and r.item.name in _BORDERED:
        r = max(r.item.operands, key=ref_bytes)
    return r


def _summed(item: Item, users: dict[Ref, list[Item]]) -> bool:
    """Whether all that becomes of an item's result, moved around perhaps, is a sum over devices."""
    while True:
        using = users.get(item.results[0], ())
        if len(using) != 1:
            return False
        (item,) = using
        c = item.collective
        if c is not None:
            return c.kind in ("all_reduce", "reduce_scatter")
        if item.name not in _MOVED:
            return False


def _wait(region: Region, item: Item, first: Item, shared: Ref) -> bool:
    """Puts `item` behind `first`; False if something between the two needs it."""
    items = region.items
    at, before = items.index(item), items.index(first)
    if at < before:
        if any(item.results[0] in inputs(other) for other in items[at + 1 : before + 1]):
            return False
        items.insert(before, items.pop(at))
        at = before
    other = next(k for k, r in enumerate(item.operands) if _piece(r) is not shared)
    tied = [item.operands[other], first.results[0]]
    held = [Ref(r.shape, r.dtype) for r in tied]
    barrier = Item("stablehlo.optimization_barrier", tied, held, loc=item.loc)
    barrier.region = region
    item.operands = [held[0] if k == other else r for k, r in enumerate(item.operands)]
    items.insert(at, barrier)
    return True
