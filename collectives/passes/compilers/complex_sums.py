"""A barrier before the addends of complex sums over devices.

XLA's simplifier makes a product of the sum of one constant over all devices, and has no product for complex numbers: it
ends the process. Such a constant may appear only while it simplifies what the addend is computed from (a gradient
begins with ones), so every addend is kept from it.
"""

from __future__ import annotations

from ...ir.program import LocalFunction, LocalOp, LocalValue, Region
from ...ir.walker import walk

__all__ = ["guard_complex_sums"]

_SUMS = ("stablehlo.all_reduce", "stablehlo.reduce_scatter")


def guard_complex_sums(function: LocalFunction) -> int:
    """Puts the addends of complex all-reduces and reduce-scatters behind barriers; returns how many there are."""
    return sum([_guard(region) for region in walk(function.region)])


def _guard(region: Region) -> int:
    count, items = 0, []
    for item in region.items:
        if item.name in _SUMS and any(x.dtype.startswith("complex") for x in item.operands):
            items.append(_barrier(item))
            count += 1
        items.append(item)
    if count:
        region.items = items
    return count


def _barrier(item: LocalOp) -> LocalOp:
    """The barrier, whose results take the places of the operands."""
    kept = [LocalValue(x.shape, x.dtype) for x in item.operands]
    barrier = LocalOp("stablehlo.optimization_barrier", item.operands, kept, loc=item.loc)
    barrier.region = item.region
    item.operands = list(kept)
    return barrier
