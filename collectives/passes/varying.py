"""Over which atoms values certainly differ between devices.

Devices that hold copies of one value must hold the same bits. A pass that lets each device add up in an order of its
own therefore has to know that no copies are made: that the value is another one on each of the devices.
"""

from __future__ import annotations

from ..emit import FunctionItem, Item, Ref, Region

__all__ = ["varying"]

Atoms = frozenset[int]
NONE: Atoms = frozenset()


def varying(function: FunctionItem) -> dict[Ref, Atoms]:
    """The atoms over which each value of a function certainly differs; values that are not named differ over none.

    Arguments differ over the atoms that they are laid out over, and so does what is computed from them, until a
    collective makes it the same. What permutes bring is not told from copies.
    """
    found: dict[Ref, Atoms] = {}
    for arg, dims in zip(function.region.args, function.layouts):
        found[arg] = frozenset(a for d in dims for a in d)
    _visit(function.region, found)
    return found


def _visit(region: Region, found: dict[Ref, Atoms]) -> list[Atoms]:
    """Notes what a region's items differ over; what it returns does."""
    for item in region.items:
        if item.name == "stablehlo.while":
            _loop(item, found)
        elif item.name in ("stablehlo.case", "stablehlo.if"):
            branches = [_visit(r, found) for r in item.regions]
            for r, sets in zip(item.results, zip(*branches)):
                found[r] = frozenset.intersection(*sets)
        elif item.results:
            atoms = _of(item, found)
            if atoms:
                found.update((r, atoms) for r in item.results)
    return [found.get(r, NONE) for r in region.items[-1].operands] if region.items else []


def _of(item: Item, found: dict[Ref, Atoms]) -> Atoms:
    if item.name == "func.call":
        return NONE
    atoms = NONE.union(*[found[r] for r in item.operands if r in found])
    c = item.collective
    if c is None or not atoms:
        return atoms
    if c.atoms is None or c.kind == "collective_permute":
        return NONE
    return atoms - set(c.atoms) if c.kind in ("all_gather", "all_reduce") else atoms


def _loop(item: Item, found: dict[Ref, Atoms]) -> None:
    """What a loop carries differs over what it differs over at the start and after every round."""
    body = item.regions[1]
    carried = [found.get(r, NONE) for r in item.operands]
    while True:
        for region in item.regions:
            found.update(zip(region.args, carried))
        after = [a & b for a, b in zip(carried, _visit(body, found))]
        if after == carried:
            break
        carried = after
    _visit(item.regions[0], found)
    found.update(zip(item.results, carried))
