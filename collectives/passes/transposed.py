"""Sums of what is transposed in place of transpositions of sums.

Compilers let a contraction write its result transposed, and let what follows read it as it lies. An all-reduce between
the two keeps its operand as it is: then all that is computed from the sum, as an optimizer's step, is computed
transposed and brought back by copies (on TPUs these took an eighth of a training step's time, and memory). CPUs have no
fast contraction that writes its result transposed: there the sums stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..emit import FunctionItem, Item, Ref, Region
from .graph import walk

__all__ = ["transpose_first"]


def transpose_first(function: FunctionItem) -> int:
    """Lets every all-reduce that only a transposition uses change places with it; how many did."""
    regions = list(walk(function.region))
    if not any(_is_sum(i) for r in regions for i in r.items):
        return 0
    users = Counter(function.results)
    users.update(_operands([function.region]))
    return sum(_transpose_in(r, users) for r in regions)


def _operands(regions: Iterable[Region]) -> Iterable[Ref]:
    for region in regions:
        for item in (*region.prologue, *region.items):
            yield from item.operands
            yield from _operands(item.regions)


def _is_sum(item: Item) -> bool:
    c = item.collective
    return c is not None and c.kind == "all_reduce" and len(item.operands) == 1


def _transpose_in(region: Region, users: Counter[Ref]) -> int:
    sums = {i.results[0]: i for i in region.items if _is_sum(i) and users[i.results[0]] == 1}
    after = {i.operands[0]: i for i in region.items if i.name == "stablehlo.transpose" and i.operands[0] in sums}
    if not after:
        return 0
    gone = set(after.values())
    items: list[Item] = []
    for item in region.items:
        if item in gone:
            continue
        later = after.get(item.results[0]) if _is_sum(item) else None
        items += [item] if later is None else _swapped(item, later)
    region.items = items
    return len(after)


def _swapped(total: Item, transposition: Item) -> list[Item]:
    """The transposition of the addends, and their sum under the name of the transposed sum."""
    (result,) = transposition.results
    addend = Ref(result.shape, result.dtype)
    first = Item(
        transposition.name, total.operands, [addend], transposition.attrs, transposition.extra, loc=transposition.loc
    )
    then = Item(total.name, [addend], [result], total.attrs, total.extra, total.regions, total.loc)
    then.collective = total.collective
    first.region = then.region = total.region
    return [first, then]
