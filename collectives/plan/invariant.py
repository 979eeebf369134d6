"""What XLA's compilers compute before a loop, because nothing that it is made of changes in the loop.

What only spreads or rearranges is left where it is: it costs nothing there, and memory outside. So is what is the same
along all dimensions but one, as a comparison of one coordinate: only a line of it is computed before.
"""

from __future__ import annotations

from collections.abc import Sequence

from propagation.ops import CONSTANTS, POINTWISE, REARRANGING

from ..ir.attributes import Integers
from ..ir.program import LocalOp, LocalValue, Region
from ..ir.walker import effects, inputs
from .breadth import ENDING

__all__ = ["computed_before"]

_SPREADING = frozenset(("stablehlo.broadcast_in_dim", "stablehlo.iota", "stablehlo.optimization_barrier"))
_LEFT = CONSTANTS | REARRANGING | _SPREADING


def computed_before(region: Region, items: Sequence[LocalOp]) -> set[LocalOp]:
    """The items of a loop's region that run once, before it.

    Args:
      items: of the region, each behind what it reads.
    """
    if region.kind != "loop" or not items or items[-1].name not in ENDING:
        return set()
    returned = items[-1].operands
    changing: set[LocalValue] = set(region.args)
    if len(returned) == len(region.args):  # of the body, rather than the condition
        changing = {arg for arg, value in zip(region.args, returned) if arg is not value}
    found: set[LocalOp] = set()
    along: dict[LocalValue, frozenset[int]] = {}  # of what doesn't change, the dimensions along which it does
    for item in items[:-1]:
        if item.collective is not None or effects(item) or not changing.isdisjoint(inputs(item)):
            changing.update(item.results)
            continue
        for value in item.results:
            along[value] = _along(item, value, along)
            if item.name not in _LEFT and len(along[value]) > 1:
                found.add(item)
    return found


def _along(item: LocalOp, value: LocalValue, known: dict[LocalValue, frozenset[int]]) -> frozenset[int]:
    """The dimensions along which a value has different elements, of those with more than one."""
    every = frozenset(d for d, n in enumerate(value.shape) if n > 1)
    if item.name == "stablehlo.iota":
        return frozenset([item.number("iota_dimension")]) & every
    if item.name == "stablehlo.broadcast_in_dim":
        places = item.attribute("broadcast_dimensions")
        if not item.operands[0].shape:
            return frozenset()
        return frozenset(places.values) & every if isinstance(places, Integers) else every
    if item.name in POINTWISE and value.shape:
        different = {known.get(v, every) for v in item.operands if v.shape} - {frozenset()}
        return next(iter(different), frozenset()) if len(different) <= 1 else every
    return every
