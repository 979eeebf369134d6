"""Rows and places within them for the members of each group of a tree.

Only neighbours in one group are laid out together, so the time is linear in the program, and what is folded costs
nothing: the page adds up the sizes of what is unfolded. Members go below what they read; those that read nothing stand
right above their first reader, since constants at the top would make edges as long as the program. Edges against the
order of the program, which groups by source line have, are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshrt.inspect.page.folding import Tree

__all__ = ["Layout", "laid_out"]

# Boxes of a row. Chosen: a row of more is wider than a screen.
WIDEST = 9
SWEEPS = 4  # over the rows, down and up in turn; more change little


@dataclass(frozen=True, slots=True)
class Layout:
    """For each operation and group: its row in its group, and its place in the row."""

    rows: tuple[int, ...]
    places: tuple[int, ...]


def laid_out(tree: Tree, edges: Iterable[tuple[int, int]]) -> Layout:
    """The layout of a tree over a program whose `edges` are (operation that makes a value, operation that reads it)."""
    inner = _lifted(tree, edges)
    rows, places = [0] * len(tree.parents), [0] * len(tree.parents)
    for group, members in tree.members().items():
        for row, nodes in enumerate(_ordered(members, inner.get(group, {}))):
            for place, node in enumerate(nodes):
                rows[node], places[node] = row, place
    return Layout(tuple(rows), tuple(places))


def _lifted(tree: Tree, edges: Iterable[tuple[int, int]]) -> dict[int | None, dict[tuple[int, int], int]]:
    """The edges between members of each group, with how many of the program's each stands for."""
    parents = tree.parents
    ancestors: dict[int, list[int]] = {}

    def path(node: int) -> list[int]:
        """A node and the groups around it, the outermost first."""
        if node not in ancestors:
            parent = parents[node]
            ancestors[node] = [node] if parent is None else [*path(parent), node]
        return ancestors[node]

    found: dict[int | None, dict[tuple[int, int], int]] = {}
    for maker, reader in edges:
        group: int | None = None
        for a, b in zip(path(maker), path(reader)):
            if a != b:
                between = found.setdefault(group, {})
                between[a, b] = between.get((a, b), 0) + 1
                break
            group = a
    return found


def _ordered(members: Sequence[int], edges: dict[tuple[int, int], int]) -> list[list[int]]:
    """Members in rows, each row from left to right."""
    rank = {node: i for i, node in enumerate(members)}
    above: dict[int, list[int]] = {node: [] for node in members}
    below: dict[int, list[int]] = {node: [] for node in members}
    for a, b in edges:
        if rank[a] < rank[b]:
            above[b].append(a)
            below[a].append(b)
    level: dict[int, int] = {}
    for node in members:
        level[node] = max((level[a] + 1 for a in above[node]), default=0)
    for node in reversed(members):
        if not above[node] and below[node]:
            level[node] = max(min(level[b] for b in below[node]) - 1, 0)
    rows: list[list[int]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for node in members:
        rows[level[node]].append(node)
    _sweep(rows, above, below)
    return [row[i : i + WIDEST] for row in rows for i in range(0, len(row), WIDEST)]


def _sweep(rows: list[list[int]], above: dict[int, list[int]], below: dict[int, list[int]]) -> None:
    """Orders each row by where the neighbours of its nodes stand, so that fewer edges cross."""
    at: dict[int, float] = {}
    for row in rows:
        _note(row, at)
    for turn in range(SWEEPS):
        near = below if turn % 2 else above
        for row in reversed(rows) if turn % 2 else rows:
            mean = {n: sum(at[m] for m in near[n]) / len(near[n]) if near[n] else at[n] for n in row}
            row.sort(key=mean.__getitem__)
            _note(row, at)


def _note(row: Sequence[int], at: dict[int, float]) -> None:
    """Where each node of a row stands, from its middle."""
    middle = (len(row) - 1) / 2
    for i, node in enumerate(row):
        at[node] = i - middle
