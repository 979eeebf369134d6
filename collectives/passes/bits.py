"""What collectives only move travels as integers where a compiler would take wider numbers for it.

The compiler of CPUs has no arithmetic of bfloat16 and writes all of a program in f32, permutes and gathers included:
they would carry twice the bytes. Integers of the same bits stay as they are.

Contractions there want f32, too. What travels to one is f32 when it arrives, in the place where the contraction reads
it: bits would need room of their own beside it, so that goes as it is.
"""

from __future__ import annotations

from ..emit import FunctionItem, Item, Ref, Region
from .graph import walk

__all__ = ["as_bits"]

_MOVES = frozenset({"all_gather", "all_to_all", "collective_broadcast", "collective_permute"})
_WORDS = {"bf16": "ui16"}


# Where an element goes no further: what is made of it is of another size, or somewhere else.
_ENDS = frozenset(
    f"stablehlo.{name}"
    for name in ("all_reduce", "custom_call", "gather", "reduce", "reduce_scatter", "reduce_window", "scatter",
                 "select_and_scatter", "sort")
)  # fmt: skip
_CONTRACTIONS = frozenset(("stablehlo.convolution", "stablehlo.dot_general", "func.call"))


def as_bits(function: FunctionItem) -> int:
    """Lets the collectives of a finished function that only move carry integers; how many do."""
    regions = list(walk(function.region))
    moves = [i for region in regions for i in region.items if _is_move(i)]
    if not moves:
        return 0
    to_contractions = _on_the_way_to_contractions(regions)
    chosen = {id(i) for i in moves if not any(r in to_contractions for r in i.results)}
    for region in regions:
        _in_region(region, chosen)
    return len(chosen)


def _is_move(item: Item) -> bool:
    c = item.collective
    return c is not None and c.kind in _MOVES and any(r.dtype in _WORDS for r in item.operands)


def _on_the_way_to_contractions(regions: list[Region]) -> set[Ref]:
    """The values that contractions read, and those that these are made of element by element. (What a called function
    does with its operands is not looked at.)"""
    found: set[Ref] = set()
    grown = True
    while grown:  # again for what loops use in the next round, and what branches return
        before = len(found)
        for region in reversed(regions):
            for item in reversed(region.items):
                _follow(item, found)
        grown = len(found) > before and len(regions) > 1
    return found


def _follow(item: Item, found: set[Ref]) -> None:
    """Notes the operands of an item from which contractions are reached."""
    if item.name == "stablehlo.while":
        body = item.regions[1]
        for i, x in enumerate(item.operands):
            inside = [region.args[i] for region in item.regions]
            if item.results[i] in found or any(a in found for a in inside):
                found.update((x, body.items[-1].operands[i]))
    elif item.name in ("stablehlo.case", "stablehlo.if"):
        for region in item.regions:
            found.update(x for x, r in zip(region.items[-1].operands, item.results) if r in found)
    elif item.name in _CONTRACTIONS or (item.name not in _ENDS and any(r in found for r in item.results)):
        found.update(item.operands)


def _in_region(region: Region, chosen: set[int]) -> None:
    if not any(id(item) in chosen for item in region.items):
        return
    items: list[Item] = []
    for item in region.items:
        if id(item) in chosen:
            items += _carried_as_bits(item, region)
        else:
            items.append(item)
    region.items[:] = items


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
