"""What XLA's compilers compute before a loop, because nothing that it is made of changes in the loop.

What only spreads or rearranges is left where it is: it costs nothing there, and memory outside. Spreading goes behind
what is elementwise, so of a result that is the same along some dimensions only what differs is computed before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from propagation.ops import CONSTANTS, POINTWISE, REARRANGING

from ..ir.attributes import Integers
from ..ir.program import LocalOp, LocalValue, Region
from ..ir.walker import effects, inputs
from .breadth import ENDING

__all__ = ["computed_before"]

_SPREADING = frozenset(("stablehlo.broadcast_in_dim", "stablehlo.iota", "stablehlo.optimization_barrier"))
_LEFT = CONSTANTS | REARRANGING | _SPREADING


def computed_before(region: Region, items: Sequence[LocalOp]) -> dict[LocalOp, tuple[int, ...]]:
    """The items of a loop's region that run once, before it, and how many elements of each result are computed.

    Args:
      items: of the region, each behind what it reads.
    """
    if region.kind != "loop" or not items or items[-1].name not in ENDING:
        return {}
    returned = items[-1].operands
    changing: set[LocalValue] = set(region.args)
    if len(returned) == len(region.args):  # of the body, rather than the condition
        changing = {arg for arg, value in zip(region.args, returned) if arg is not value}
    found: dict[LocalOp, tuple[int, ...]] = {}
    along: dict[LocalValue, frozenset[int]] = {}  # of what doesn't change, the dimensions along which it does
    for item in items[:-1]:
        if item.collective is not None or effects(item) or not changing.isdisjoint(inputs(item)):
            changing.update(item.results)
            continue
        along.update((value, _along(item, value, along)) for value in item.results)
        if item.name not in _LEFT and any(along[value] for value in item.results):
            found[item] = tuple(math.prod(value.shape[d] for d in along[value]) for value in item.results)
    return found


def _along(item: LocalOp, value: LocalValue, known: dict[LocalValue, frozenset[int]]) -> frozenset[int]:
    """The dimensions along which a value has different elements, of those with more than one."""
    every = _spread_over(value)
    if item.name == "stablehlo.iota":
        return frozenset([item.number("iota_dimension")]) & every
    if item.name == "stablehlo.broadcast_in_dim":
        places = item.attribute("broadcast_dimensions")
        source = item.operands[0]
        if not isinstance(places, Integers):
            return every
        return frozenset(places.values[d] for d in known.get(source, _spread_over(source)))
    if item.name in POINTWISE and value.shape:
        different = {known.get(v, every) for v in item.operands if v.shape} - {frozenset()}
        return next(iter(different), frozenset()) if len(different) <= 1 else every
    return every


def _spread_over(value: LocalValue) -> frozenset[int]:
    """The dimensions of more than one element."""
    return frozenset(d for d, n in enumerate(value.shape) if n > 1)
