"""The search for a layout: single decisions first, then those that pay together, then a beam over what one more change
makes of the best.

The space is decisions x axes of the mesh (`layouts`), its judge the pipeline itself (`judge`). Layouts that fit into
memory come before those that do not; among those that fit the faster one is better, among the others the smaller one.
Same layouts of all arguments are judged once. (Alpa, arXiv 2201.12023, and TOAST, arXiv 2508.15010, search such spaces
with models of their costs.)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

from meshrt.autoshard.figures import Figures
from meshrt.autoshard.judges import Judges
from meshrt.autoshard.layouts import Argument, Decision, Layout, argument_axes
from meshrt.inspect.annotations import ArgumentAxes

__all__ = ["Candidate", "Found", "Space", "search"]

# Layouts that each round goes on from. Chosen; measured over a 4x4 mesh on v5e: on blocks of GPT, Llama, experts and
# DLRM 1, 2, 4 and 8 find the same times, with 45, 60, 100 and 129 layouts judged for GPT.
BEAM = 2
# Layouts of a round that are judged thoroughly, those that look best at first. Chosen.
THOROUGH = 3 * BEAM
# Decisions from which sets of decisions are grown that go together. Chosen: the batch, which pays most and touches few
# arguments, is one, and features and hidden features shut each other out.
TOGETHER = 3
# Share of the time in which single decisions are looked at: with what is known then, they are put together. Chosen.
SINGLES = 0.4
# How much faster a layout has to be for the search to prefer it to one with fewer changes: predictions differ by more.
# Chosen, not measured.
WORTH = 0.002


@dataclass(frozen=True, slots=True)
class Space:
    """What is searched: the program's arguments and decisions, the mesh, bytes that a device may hold (None: any)."""

    arguments: tuple[Argument, ...]
    decisions: tuple[Decision, ...]
    mesh: Mapping[str, int]
    memory: float | None

    def axes(self, layout: Layout) -> tuple[ArgumentAxes, ...]:
        return tuple(argument_axes(layout, self.decisions, self.arguments, self.mesh))

    def fits(self, figures: Figures) -> bool:
        return figures.why is None and (self.memory is None or figures.peak <= self.memory)

    def rank(self, figures: Figures) -> tuple[int, float, float]:
        """The smaller, the better."""
        if figures.why is not None:
            return 2, 0.0, 0.0
        return (0, figures.seconds, figures.peak) if self.fits(figures) else (1, figures.peak, figures.seconds)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout, the axes of each argument that follow from it, and its figures."""

    layout: Layout
    axes: tuple[ArgumentAxes, ...]
    figures: Figures


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found: the best candidate, all that were judged (the best first), seconds that it took, and whether
    it ended by itself rather than at the end of its time."""

    best: Candidate
    judged: tuple[Candidate, ...]
    seconds: float
    is_complete: bool


# Told after each judgement: candidates judged, the best so far.
Progress = Callable[[int, Candidate], None]


def search(space: Space, judges: Judges, budget: float, progress: Progress | None = None) -> Found:
    """The best layout that is found within `budget` seconds."""
    begun = time.monotonic()
    desk = _Desk(space, judges, begun + budget, progress)
    beam = desk.best(desk.judge([Layout()]))
    singles = desk.looked_at(_singles(space), begun + SINGLES * budget)
    beam = desk.best([*beam, *desk.judge(_combined(space, desk), singles)])
    best = beam[0]
    while desk.has_time:
        fresh = desk.judge([change for c in beam for change in _changes(space, c.layout)])
        beam = desk.best([*beam, *fresh])
        if not _is_better(space, beam[0], best):
            break
        best = beam[0]
    judged = tuple(sorted(desk.judged.values(), key=lambda c: space.rank(c.figures)))
    return Found(best, judged, time.monotonic() - begun, desk.has_time)


def _is_better(space: Space, one: Candidate, other: Candidate) -> bool:
    new, old = space.rank(one.figures), space.rank(other.figures)
    return new[0] < old[0] or (new[0] == old[0] and new[1] < old[1] * (1 - WORTH))


def _groups(space: Space) -> list[tuple[str, ...]]:
    """Each axis, and all of them."""
    axes = tuple(a for a, n in space.mesh.items() if n > 1)
    return [(a,) for a in axes] + ([axes] if len(axes) > 1 else [])


def _over(numbers: Iterable[int], axes: Sequence[str], layout: Layout | None = None) -> Layout:
    """`layout` (of nothing, where there is none) with these decisions over the axes."""
    made = Layout() if layout is None else layout
    for number in numbers:
        for axis in axes:
            made = made.toggled(number, axis)
    return made


def _stored(layout: Layout, axes: Sequence[str]) -> Layout:
    for axis in axes:
        layout = layout.storing(axis)
    return layout


def _singles(space: Space) -> list[Layout]:
    """One decision over one axis, or over all of them."""
    return [_over([number], axes) for number in range(len(space.decisions)) for axes in _groups(space)]


def _combined(space: Space, desk: _Desk) -> list[Layout]:
    """What the single decisions that pay make together: those that pay most, with arguments stored over the same axes
    (fully sharded data parallelism); several at once over some axes (the heads, the hidden features and the vocabulary
    of tensor parallelism; the experts), alone and beside the one that pays most over the other axes (the batch), with
    arguments stored over all axes too. A step at a time these are many steps away, the first of which need not pay."""
    groups = _groups(space)
    every = groups[-1] if groups else ()
    paying = {axes: _paying(space, desk, axes) for axes in groups}
    found = [_stored(_over([number], axes), axes) for axes in groups for number in paying[axes][:BEAM]]
    for axes in groups:
        others = tuple(a for a in every if a not in axes) or every
        first = paying.get(others, paying[others[:1]])[:1]
        rest = [n for n in paying[axes] if n not in first]
        for together in dict.fromkeys([*_disjoint(space, rest), *((n,) for n in rest[:BEAM])]):
            beside = _over(together, axes, _over(first, others))
            found += [_over(together, axes), beside, _stored(beside, every)]
    return found


def _paying(space: Space, desk: _Desk, axes: Sequence[str]) -> list[int]:
    """The decisions that make the program faster over these axes, the one that does most first."""
    seconds = lambda layout: desk.seconds(space.axes(layout))
    times = {number: seconds(_over([number], axes)) for number in range(len(space.decisions))}
    paying = [number for number, time in times.items() if time < seconds(Layout()) * (1 - WORTH)]
    return sorted(paying, key=lambda number: times[number])


def _disjoint(space: Space, numbers: Sequence[int]) -> list[tuple[int, ...]]:
    """Decisions that no two of ask for an axis of the same argument: for each of the first few of `numbers` it and as
    many of the others, in their order, as go with it."""
    touched = [{d.argument for d in decision.dims} for decision in space.decisions]
    found: dict[tuple[int, ...], None] = {}
    for start in numbers[:TOGETHER]:
        taken, chosen = set(touched[start]), [start]
        for number in numbers:
            if not taken & touched[number]:
                taken |= touched[number]
                chosen.append(number)
        found[tuple(sorted(chosen))] = None
    return list(found)


def _changes(space: Space, layout: Layout) -> list[Layout]:
    """What one change makes of a layout: an axis more or less somewhere, or moved from one decision to another."""
    axes = [a for a, n in space.mesh.items() if n > 1]
    found = [layout.storing(axis) for axis in axes]
    for number in range(len(space.decisions)):
        found += [layout.toggled(number, axis) for axis in axes]
    for number, have in layout.axes:
        for axis in have:
            without = layout.toggled(number, axis)
            found += [without.toggled(other, axis) for other in range(len(space.decisions)) if other != number]
    return found


class _Desk:
    """What was judged so far, by the axes of all arguments."""

    def __init__(self, space: Space, judges: Judges, until: float, progress: Progress | None):
        self.space, self.judges, self.until, self.progress = space, judges, until, progress
        self.seen: set[tuple[ArgumentAxes, ...]] = set()
        self.judged: dict[tuple[ArgumentAxes, ...], Candidate] = {}
        self.best_yet: Candidate | None = None  # for the progress that is shown

    @property
    def has_time(self) -> bool:
        return time.monotonic() < self.until

    def seconds(self, axes: tuple[ArgumentAxes, ...]) -> float:
        """Of a layout that was looked at; infinite for one that cannot be made, or was not reached."""
        made = self.judged.get(axes)
        return math.inf if made is None or made.figures.why is not None else made.figures.seconds

    def looked_at(self, layouts: Sequence[Layout], until: float) -> list[Candidate]:
        """The candidates of layouts that were not looked at before, as they look at first; no more of them than there
        is time for."""
        return self._asked(self._fresh(layouts), True, min(until, self.until))

    def judge(self, layouts: Sequence[Layout], looked: Sequence[Candidate] = ()) -> list[Candidate]:
        """The candidates of layouts that were not looked at before, as far as time allows: all at a first look, and
        those that look best thoroughly, which alone are given; among them those of `looked`, which were looked at.
        Where time ends before, the first look counts."""
        todo = self._fresh(layouts)
        if not looked and len(todo) <= THOROUGH:
            return self._asked(todo, False)
        promising = sorted([*looked, *self._asked(todo, True)], key=lambda c: self.space.rank(c.figures))[:THOROUGH]
        self._asked({c.axes: c.layout for c in promising}, False)
        return [self.judged[c.axes] for c in promising]

    def _fresh(self, layouts: Sequence[Layout]) -> dict[tuple[ArgumentAxes, ...], Layout]:
        """Those that no axes were seen of."""
        todo: dict[tuple[ArgumentAxes, ...], Layout] = {}
        for layout in layouts:
            axes = self.space.axes(layout)
            if axes not in self.seen:
                todo.setdefault(axes, layout)
        self.seen.update(todo)
        return todo

    def _asked(
        self, todo: Mapping[tuple[ArgumentAxes, ...], Layout], is_first: bool, until: float = math.inf
    ) -> list[Candidate]:
        until = min(until, self.until)
        waiting = list(todo.items())[::-1]
        asked: dict[Future[Figures], tuple[tuple[ArgumentAxes, ...], Layout]] = {}
        found = []
        while waiting or asked:
            ahead = 2 * self.judges.count
            while waiting and len(asked) < ahead and (time.monotonic() < until or not self.judged):
                axes, layout = waiting.pop()
                asked[self.judges.ask(self.space.mesh, axes, is_first)] = axes, layout
            if not asked:
                break
            for done in wait(asked, return_when=FIRST_COMPLETED).done:
                axes, layout = asked.pop(done)
                made = self.judged[axes] = Candidate(layout, axes, done.result())
                found.append(made)
                if self.progress is not None:
                    self.best_yet = min(self.best_yet or made, made, key=lambda c: self.space.rank(c.figures))
                    self.progress(len(self.judged), self.best_yet)
        self.seen.difference_update(axes for axes, _ in waiting)
        return found

    def best(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The best few of candidates."""
        return sorted(candidates, key=lambda c: self.space.rank(c.figures))[:BEAM]
