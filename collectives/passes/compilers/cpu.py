"""bfloat16 travels as 16-bit integers through collectives that only move data, on CPUs.

The compiler of CPUs has no arithmetic of bfloat16 and rewrites a program in f32, all-gathers and permutes included:
these would carry twice the bytes. Integers stay as they are, so that operands are bitcast to ui16 before such a
collective and back after it.

Operands of contractions are left alone: the contraction reads them in f32, which is what arrives; the ui16 would take a
buffer of its own beside it.
"""

from __future__ import annotations

from propagation.ops import having

from ...ir.program import LocalFunction, LocalOp, LocalValue, Region
from ...ir.walker import walk

__all__ = ["as_bits"]

_WORDS = {"bf16": "ui16"}


# Where an element goes no further: what is made of it is of another size, or somewhere else.
_ENDS = having("reducing") | {f"stablehlo.{name}" for name in ("custom_call", "gather", "sort")}
_CONTRACTIONS = having("contraction") | {"func.call"}


def as_bits(function: LocalFunction) -> int:
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


def _is_move(item: LocalOp) -> bool:
    c = item.collective
    return c is not None and not c.facts.reduces and any(r.dtype in _WORDS for r in item.operands)


def _on_the_way_to_contractions(regions: list[Region]) -> set[LocalValue]:
    """The values that contractions read, and those from which these are computed element by element. (A called function
    counts as a contraction.)"""
    found: set[LocalValue] = set()
    grown = True
    while grown:  # again for what loops use in the next round, and what branches return
        before = len(found)
        for region in reversed(regions):
            for item in reversed(region.items):
                _follow(item, found)
        grown = len(found) > before and len(regions) > 1
    return found


def _follow(item: LocalOp, found: set[LocalValue]) -> None:
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
    items: list[LocalOp] = []
    for item in region.items:
        if id(item) in chosen:
            items += _carried_as_bits(item, region)
        else:
            items.append(item)
    region.items[:] = items


def _carried_as_bits(item: LocalOp, region: Region) -> list[LocalOp]:
    """`item` with integers, and the conversions before and after it."""
    before, after = [], []
    for i, (x, out) in enumerate(zip(item.operands, item.results)):
        word = _WORDS.get(x.dtype)
        if word is None:
            continue
        before.append(_converted(x, LocalValue(x.shape, word), item.loc, region))
        item.operands[i] = before[-1].results[0]
        bits = LocalValue(out.shape, word)
        after.append(_converted(bits, out, item.loc, region))
        item.results[i] = bits
        bits.item, bits.number = item, i
    return [*before, item, *after]


def _converted(x: LocalValue, out: LocalValue, loc: str, region: Region) -> LocalOp:
    item = LocalOp("stablehlo.bitcast_convert", [x], [out], loc=loc)
    item.region = region
    return item
