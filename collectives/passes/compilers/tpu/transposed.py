"""transpose(all_reduce(x)) becomes all_reduce(transpose(x)).

The gradient of a weight is often the transpose of a contraction. Compilers choose the layout in which the contraction
writes its result such that the transpose takes no time, but an all-reduce between the two fixes that layout: the
optimizer's step would then be computed on the transposed layout and copied back (on TPUs these copies took an eighth of
a training step's time, and memory). CPUs have no fast contraction that writes its result transposed: there the order
stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ....ir.program import LocalFunction, LocalOp, LocalValue, Region
from ....ir.walker import walk

__all__ = ["transpose_first"]


def transpose_first(function: LocalFunction) -> int:
    """Lets every all-reduce whose one user is a transpose change places with it; how many did."""
    regions = list(walk(function.region))
    if not any(_is_sum(i) for r in regions for i in r.items):
        return 0
    users = Counter(function.results)
    users.update(_operands([function.region]))
    return sum(_transpose_in(r, users) for r in regions)


def _operands(regions: Iterable[Region]) -> Iterable[LocalValue]:
    for region in regions:
        for item in (*region.prologue, *region.items):
            yield from item.operands
            yield from _operands(item.regions)


def _is_sum(item: LocalOp) -> bool:
    c = item.collective
    return c is not None and c.facts.sums and len(item.operands) == 1


def _transpose_in(region: Region, users: Counter[LocalValue]) -> int:
    sums = {i.results[0]: i for i in region.items if _is_sum(i) and users[i.results[0]] == 1}
    after = {i.operands[0]: i for i in region.items if i.name == "stablehlo.transpose" and i.operands[0] in sums}
    if not after:
        return 0
    gone = set(after.values())
    items: list[LocalOp] = []
    for item in region.items:
        if item in gone:
            continue
        later = after.get(item.results[0]) if _is_sum(item) else None
        items += [item] if later is None else _swapped(item, later)
    region.items = items
    return len(after)


def _swapped(total: LocalOp, transposition: LocalOp) -> list[LocalOp]:
    """The transposition of the addends, and their sum under the name of the transposed sum."""
    (result,) = transposition.results
    addend = LocalValue(result.shape, result.dtype)
    first = LocalOp(
        transposition.name, total.operands, [addend], transposition.attrs, transposition.extra, loc=transposition.loc
    )
    then = LocalOp(total.name, [addend], [result], total.attrs, total.extra, total.regions, total.loc)
    then.collective = total.collective
    first.region = then.region = total.region
    return [first, then]
