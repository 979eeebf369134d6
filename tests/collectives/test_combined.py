"""All-reduces that the compiler for CPUs makes one of: none of them waits for another one, however they are joined."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from collectives.heuristics import COMBINED_TRIED
from collectives.plan import combined as module


@dataclass(eq=False)
class Node:
    """What is looked at of an item, and of its one result."""

    name: str = ""
    collective: bool | None = None
    operands: list[Any] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    regions: tuple[Any, ...] = ()
    dtype: str = "f32"


def item(operands: Sequence[Any], reduces: bool) -> Any:
    name = "stablehlo.all_reduce" if reduces else "stablehlo.add"
    return Node(name, reduces or None, list(operands), [Node()])


def naive(items: Sequence[Any]) -> list[list[Any]]:
    """The same by looking through the whole graph, in which the members of a group are one, for each of them."""
    groups: list[list[Any]] = []
    makers = {id(x.results[0]): x for x in items}

    def waits_for(late: Sequence[Any], early: Any) -> bool:
        """Whether any of `late` needs `early`."""
        todo, seen = list(late), set()
        while todo:
            x = todo.pop()
            if x is early:
                return True
            if id(x) not in seen:
                seen.add(id(x))
                todo += [makers[id(v)] for v in x.operands if id(v) in makers]
                todo += next((g for g in groups if any(y is x for y in g)), [])
        return False

    for x in reversed(items):
        if x.collective:
            free = [g for g in groups[-COMBINED_TRIED:] if not waits_for(g, x)]
            if free:
                free[0].append(x)
            else:
                groups.append([x])
    return [g[::-1] for g in groups if len(g) > 1]


@pytest.mark.parametrize("seed", range(40))
def test_groups_are_those_of_the_whole_graph(seed, monkeypatch):
    monkeypatch.setattr(module, "_key", lambda item: 0)
    draw = random.Random(seed)
    items: list[Any] = []
    for _ in range(draw.randrange(5, 60)):
        before = [x.results[0] for x in items[-draw.choice((4, 20)) :]]
        operands = draw.sample(before, min(len(before), draw.randrange(3)))
        items.append(item(operands, draw.random() < 0.6))
    found = module.combined(items)
    assert {id(x): list(map(id, g)) for x, g in found.items()} == {
        id(x): list(map(id, g)) for g in naive(items) for x in g
    }


def test_a_chain_is_not_looked_through_for_each_of_its_items(monkeypatch):
    monkeypatch.setattr(module, "_key", lambda item: 0)
    masks: list[int] = []
    closed = module._closed

    def noted(mask: int, after: Sequence[int], grown: int) -> int:
        masks.append(mask & grown)
        return closed(mask, after, grown)

    monkeypatch.setattr(module, "_closed", noted)
    items: list[Any] = [item([], True)]
    for _ in range(200):
        items.append(item(items[-1].results, True))
    assert not module.combined(items) and len(masks) == 201 and not any(masks)
