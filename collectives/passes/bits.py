"""What collectives only move travels as integers where a compiler would take wider numbers for it.

The compiler of CPUs has no arithmetic of bfloat16 and writes all of a program in f32, permutes and gathers included:
they would carry twice the bytes. Integers of the same bits stay as they are.
"""

from __future__ import annotations

from ..emit import FunctionItem, Item, Ref, Region
from .graph import walk

__all__ = ["as_bits"]

_MOVES = frozenset({"all_gather", "all_to_all", "collective_broadcast", "collective_permute"})
_WORDS = {"bf16": "ui16"}


def as_bits(function: FunctionItem) -> int:
    """Lets the collectives of a finished function that only move carry integers; how many do."""
    return sum(_in_region(region) for region in walk(function.region))


def _in_region(region: Region) -> int:
    moves = [i for i in region.items if i.collective is not None and i.collective.kind in _MOVES]
    chosen = {id(i) for i in moves if any(r.dtype in _WORDS for r in i.operands)}
    if not chosen:
        return 0
    items: list[Item] = []
    for item in region.items:
        if id(item) in chosen:
            items += _carried_as_bits(item, region)
        else:
            items.append(item)
    region.items[:] = items
    return len(chosen)


def _carried_as_bits(item: Item, region: Region) -> list[Item]:
    """`item` with integers, and the conversions before and after it."""
    before, after = [], []
    for i, (x, out) in enumerate(zip(item.operands, item.results)):
        word = _WORDS.get(x.dtype)
        if word is None:
            continue
        before.append(_converted(x, Ref(x.shape, word), item.loc, region))
        item.operands[i] = before[-1].results[0]
        bits = Ref(out.shape, word)
        after.append(_converted(bits, out, item.loc, region))
        item.results[i] = bits
        bits.item, bits.number = item, i
    return [*before, item, *after]


def _converted(x: Ref, out: Ref, loc: str, region: Region) -> Item:
    item = Item("stablehlo.bitcast_convert", [x], [out], loc=loc)
    item.region = region
    return item
