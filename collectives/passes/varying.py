"""Device-variance analysis of a per-device program: along which atoms of the mesh a value is certainly not replicated.

Replicas of a value must hold the same bits. A pass that lets each device add up in an order of its own (a collective
matmul over a contracted dimension) is right only where no device holds a replica of another's result.
"""

from __future__ import annotations

from ..ir.program import LocalFunction, LocalOp, LocalValue, Region

__all__ = ["varying"]

Atoms = frozenset[int]
NONE: Atoms = frozenset()


def varying(function: LocalFunction) -> dict[LocalValue, Atoms]:
    """The atoms over which each value of a function certainly differs; values that are not named differ over none.

    Arguments differ over the atoms that they are sharded over, and so does what is computed from them, until a
    collective gives all devices of a group the same. The result of a permute may be a replica: it differs over none.
    """
    found: dict[LocalValue, Atoms] = {}
    for arg, dims in zip(function.region.args, function.layouts):
        found[arg] = frozenset(a for d in dims for a in d)
    _visit(function.region, found)
    return found


def _visit(region: Region, found: dict[LocalValue, Atoms]) -> list[Atoms]:
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


def _of(item: LocalOp, found: dict[LocalValue, Atoms]) -> Atoms:
    if item.name == "func.call":
        return NONE
    atoms = NONE.union(*[found[r] for r in item.operands if r in found])
    c = item.collective
    if c is None or not atoms:
        return atoms
    if c.atoms is None:
        return NONE
    if c.facts.uniform:
        return atoms - set(c.atoms)
    return atoms if c.facts.splits is not None else NONE  # without parts of their own devices may get copies


def _loop(item: LocalOp, found: dict[LocalValue, Atoms]) -> None:
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
