"""The backward pass of a convolution: the gradient of the kernel is computed before that of the input.

Both convolutions read the same cotangent, each in a layout of its own. On machines whose arrays lie in tiles, compilers
write a copy of every operand of a convolution in the layout that it reads, and schedule the two by their critical
paths: the gradient of the kernel, which is all-reduced over the batch's devices afterwards, would come last, and its
copies would be in memory beside the padded ones of the other. Computed first, its copies are free by then, and the
all-reduce overlaps with the gradient of the input.
"""

from __future__ import annotations

from propagation.ops import having

from ....ir.program import LocalFunction, LocalOp, LocalValue, Region
from ....ir.walker import inputs, walk
from ....machine import Machine, ref_bytes

__all__ = ["kernels_first"]

_MOVED = having("permuting") | {"stablehlo.convert"}
# What puts a halo or padding around a device's piece.
_BORDERED = {"stablehlo.concatenate", "stablehlo.pad", "stablehlo.select", "stablehlo.slice"}


def kernels_first(function: LocalFunction, machine: Machine) -> int:
    """Lets a convolution wait for another one that shares an operand with it, has a smaller result, and is reduced over
    devices; how many wait."""
    return sum(map(_wait_in, walk(function.region))) if machine.tiles else 0


def _wait_in(region: Region) -> int:
    by_operand: dict[LocalValue, list[LocalOp]] = {}
    for item in region.items:
        if item.name == "stablehlo.convolution":
            for r in dict.fromkeys(map(_piece, item.operands)):
                by_operand.setdefault(r, []).append(item)
    if all(len(group) < 2 for group in by_operand.values()):
        return 0
    users: dict[LocalValue, list[LocalOp]] = {}
    for item in region.items:
        for r in inputs(item):
            users.setdefault(r, []).append(item)
    waiting: set[LocalOp] = set()
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


def _piece(r: LocalValue) -> LocalValue:
    """The piece of a device that a convolution's operand is made of, without the halo around it."""
    while r.item is not None and r.item.name in _BORDERED:
        r = max(r.item.operands, key=ref_bytes)
    return r


def _summed(item: LocalOp, users: dict[LocalValue, list[LocalOp]]) -> bool:
    """Whether the one use of an item's result, perhaps transposed or converted first, is a reduction over devices."""
    while True:
        using = users.get(item.results[0], ())
        if len(using) != 1:
            return False
        (item,) = using
        c = item.collective
        if c is not None:
            return c.facts.reduces
        if item.name not in _MOVED:
            return False


def _wait(region: Region, item: LocalOp, first: LocalOp, shared: LocalValue) -> bool:
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
    held = [LocalValue(r.shape, r.dtype) for r in tied]
    barrier = LocalOp("stablehlo.optimization_barrier", tied, held, loc=item.loc)
    barrier.region = region
    item.operands = [held[0] if k == other else r for k, r in enumerate(item.operands)]
    items.insert(at, barrier)
    return True
