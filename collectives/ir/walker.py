"""Dependences between the items of a region, and ways to put them in another order."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .program import LocalFunction, LocalOp, LocalValue, Region

__all__ = ["Scratch", "captured", "contract", "effects", "inputs", "replace", "walk"]


_REGIONS = operator.attrgetter("regions")


class Scratch(Region):
    """Where a pass writes new items before it puts them into `region`.

    Scalars that depend on nothing go to the start of the function as usual; nothing else of the region is reused, since
    earlier passes may have removed or moved it.
    """

    __slots__ = ()

    def __init__(self, region: Region):
        super().__init__("body", region)

    def lookup(self, key: Any, grown: bool = False) -> Any:
        return self.known.get(key)

    def take(self, region: Region) -> list[LocalOp]:
        """The items written, now items of `region`."""
        for item in self.items:
            item.region = region
            for inner in item.regions:
                inner.parent = region
        return self.items


def captured(item: LocalOp) -> list[LocalValue]:
    """The values that the regions of an item use from outside of them (each perhaps several times)."""
    out: list[LocalValue] = []
    for region in item.regions:
        inside: set[LocalValue] = set(region.args)
        for inner in region.items:
            out += [r for r in inputs(inner) if r not in inside]
            inside.update(inner.results)
    return out


def inputs(item: LocalOp) -> list[LocalValue]:
    """Everything an item needs: its operands and what its regions capture."""
    return [*item.operands, *captured(item)] if item.regions else item.operands


def effects(item: LocalOp) -> bool:
    """Whether an item may do more than compute its results. Functions are not looked into: a call may."""
    if item.effect or item.name == "func.call":
        return True
    return bool(item.regions) and any(effects(inner) for region in item.regions for inner in region.items)


def walk(region: Region) -> Iterator[Region]:
    """A region and all regions inside it that run as programs do (loops and branches, not bodies of reductions)."""
    yield region
    for item in filter(_REGIONS, region.items):
        for inner in item.regions:
            if inner.kind != "body":
                yield from walk(inner)


def replace(function: LocalFunction, new: dict[LocalValue, LocalValue]) -> None:
    """Lets all users of the keys use the values instead."""

    def visit(region: Region) -> None:
        for items in (region.prologue, region.items):
            for item in items:
                item.operands = [new.get(r, r) for r in item.operands]
                for inner in item.regions:
                    visit(inner)

    if new:
        visit(function.region)
        function.results = [new.get(r, r) for r in function.results]


def contract(
    items: Iterable[LocalOp], groups: dict[LocalOp, list[LocalOp]], make: Callable[[list[LocalOp]], list[LocalOp]]
) -> list[LocalOp]:
    """The items in an order in which each group is one: where its last member was ready, `make(group)` stands for all.

    `groups` maps every member to its group. No member may depend on another of its group, nor may groups depend on each
    other in a circle. Items keep their order otherwise, as far as they do not have to wait for a group.
    """
    out: list[LocalOp] = []
    held: set[LocalOp] = set()  # not written yet, though their turn was
    waiting: dict[LocalOp, list[LocalOp]] = {}  # held item -> those that wait for it
    missing: dict[LocalOp, int] = {}
    absent = {id(g): len(g) for g in groups.values()}
    last_effect: LocalOp | None = None

    def write(item: LocalOp) -> None:
        ready = [item]
        while ready:
            item = ready.pop(0)
            group = groups.get(item)
            if group is None:
                out.append(item)
                done = [item]
            else:
                held.add(item)
                absent[id(group)] -= 1
                if absent[id(group)]:
                    continue
                out.extend(make(group))
                done = group
            for d in done:
                held.discard(d)
                for w in waiting.pop(d, ()):
                    missing[w] -= 1
                    if not missing[w]:
                        ready.append(w)

    for item in items:
        if not held:
            (write if item in groups else out.append)(item)
            continue
        needs = [r.item for r in inputs(item) if r.item in held]
        if (item.effect or item.regions or item.name == "func.call") and effects(item):
            if last_effect in held:
                needs.append(last_effect)
            last_effect = item
        if needs:
            held.add(item)
            needed = set(needs)
            missing[item] = len(needed)
            for n in needed:
                waiting.setdefault(n, []).append(item)
        elif item in groups:
            write(item)
        else:  # nobody waits for what was never held
            out.append(item)
    if held:
        raise AssertionError(f"groups depend on each other: {len(held)} items were left")
    return out
