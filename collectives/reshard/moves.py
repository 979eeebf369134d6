"""The moves of the reshard planner: what one collective can do to a layout.

`successors` lists the moves worth trying from a layout towards a target. Moves that are free and certainly right
(slicing at the place where the target wants it) are returned alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ..kinds import kind_of, kinds
from ..layout import Dims

__all__ = ["Move", "ReshardStep", "successors"]

Unreduced = tuple[int, ...]


class Move(NamedTuple):
    """Part of an all-to-all: `atoms` leave the minor end of `source` and are appended to `target`.

    `order` are the same atoms in the order in which they are appended.
    """

    source: int
    target: int
    atoms: tuple[int, ...]


class ReshardStep(NamedTuple):
    """One collective (or a local slice).

    kind       slice, all_gather, all_to_all, collective_permute, reduce_scatter, all_reduce, pieces
    atoms      the atoms over which devices talk (for a slice: over which the tensor is cut). Other atoms that the
               dimension has after a reduce-scatter are cut by before it
    dim        the dimension sliced, gathered or scattered; -1 if none. An all-reduce with one gathers a dimension that
               has an element on few of the devices: each adds what it has to zeros, and nobody sends padding
    moves      the moves of an all-to-all
    after      the layout it ends in
    unreduced  the atoms unreduced after it
    rounds     of exact pieces: how many permutes these are
    """

    kind: str
    atoms: tuple[int, ...]
    dim: int
    moves: tuple[Move, ...]
    after: Dims
    unreduced: Unreduced
    rounds: int = 0

    @property
    def reduces(self) -> bool:
        """Whether it adds up what is unreduced."""
        return self.kind in kinds() and kind_of(self.kind).reduces

    def rename(self, names: Callable[[int], tuple[int, ...]]) -> ReshardStep:
        """The same step with every atom replaced by several."""

        def expand(atoms: Iterable[int]) -> tuple[int, ...]:
            return tuple(x for a in atoms for x in names(a))

        return ReshardStep(
            self.kind,
            expand(self.atoms),
            self.dim,
            tuple(Move(m.source, m.target, expand(m.atoms)) for m in self.moves),
            tuple(expand(d) for d in self.after),
            expand(self.unreduced),
            self.rounds,
        )


def successors(
    shape: Sequence[int],
    dims: Dims,
    unreduced: Unreduced,
    target: Dims,
    sizes: Sequence[int],
    anywhere: bool = False,
) -> list[ReshardStep]:
    """Moves from (dims, unreduced) that may lead to `target`. Partial sums may be scattered `anywhere`, or over atoms
    only that the target is sharded over."""
    p = _Position(shape, dims, unreduced, target, sizes)
    direct = p.direct()
    if direct is not None:
        return [direct]
    reductions = p.reductions(anywhere) if unreduced else ()
    return [*reductions, *p.exchanges(), *p.permutes(), *p.slices(), *p.gathers()]


class _Position:
    __slots__ = ("common", "dims", "place", "shape", "sizes", "target", "unreduced", "used")

    def __init__(
        self, shape: Sequence[int], dims: Dims, unreduced: Unreduced, target: Dims, sizes: Sequence[int]
    ):  # fmt: skip
        self.shape, self.dims, self.unreduced, self.target, self.sizes = shape, dims, unreduced, target, sizes
        self.used = {a for d in dims for a in d} | set(unreduced)
        self.place = {a: d for d, atoms in enumerate(target) for a in atoms}  # where the target wants each atom
        self.common = []
        for s, t in zip(dims, target):
            n = 0
            while n < len(s) and n < len(t) and s[n] == t[n]:
                n += 1
            self.common.append(n)

    def even(self, d: int, atoms: Iterable[int]) -> bool:
        n = 1
        for a in atoms:
            n *= self.sizes[a]
        return self.shape[d] % n == 0

    def can_hold(self, d: int, old: tuple[int, ...], new: tuple[int, ...]) -> bool:
        """Whether dimension d may change from `old` to its extension `new` by adding atoms (or back).

        Pieces of a dimension that does not divide are not nested, so such a dimension changes as a whole.
        """
        return self.even(d, new) or (not old and new == self.target[d])

    def with_dim(self, d: int, atoms: Iterable[int]) -> Dims:
        return (*self.dims[:d], tuple(atoms), *self.dims[d + 1 :])

    def direct(self) -> ReshardStep | None:
        """Slicing, or reduce-scattering, exactly what the target wants next: never a mistake, if nothing is left that
        could be sliced before it is reduced."""
        found = next(self._direct_slices(), None)
        if found is not None or (self.unreduced and not self.used.issuperset(self.place)):
            return found
        return next(self._direct_scatters(), None)

    def _fitting(self) -> Iterator[int]:
        """The dimensions of which the target is sharded by more than they are."""
        for d, (s, t) in enumerate(zip(self.dims, self.target)):
            if self.common[d] == len(s) < len(t):
                yield d

    def _run(self, d: int, fits: Callable[[int], bool]) -> tuple[int, ...]:
        """The dimension with the target's next atoms that fit."""
        t, k = self.target[d], len(self.dims[d])
        while k < len(t) and fits(t[k]):
            k += 1
        return t[:k]

    def _direct_slices(self) -> Iterator[ReshardStep]:
        for d in self._fitting():
            s = self.dims[d]
            new = self._run(d, lambda a: a not in self.used)
            more = self._run(d, self._is_cut)
            if len(new) > len(s) and self.can_hold(d, s, new):
                if len(more) > len(new) and self.can_hold(d, s, more) and not self.can_hold(d, new, more):
                    continue  # pieces that are not nested: scattered as a whole
                yield ReshardStep("slice", new[len(s) :], d, (), self.with_dim(d, new), self.unreduced)

    def _is_cut(self, a: int) -> bool:
        return a in self.unreduced or a not in self.used

    def _direct_scatters(self) -> Iterator[ReshardStep]:
        """Each by itself, or with free atoms that the target wants beside them: devices cut by these first."""
        for d in self._fitting():
            s = self.dims[d]
            for fits in (self._is_cut, lambda a: a in self.unreduced):
                new = self._run(d, fits)
                atoms = tuple(a for a in new[len(s) :] if a in self.unreduced)
                if atoms and self.can_hold(d, s, new):
                    left = tuple(u for u in self.unreduced if u not in atoms)
                    yield ReshardStep("reduce_scatter", atoms, d, (), self.with_dim(d, new), left)

    def reductions(self, anywhere: bool) -> Iterator[ReshardStep]:
        yield from self._direct_scatters()
        inside = [u for u in self.unreduced if u in self.place]
        outside = tuple(u for u in self.unreduced if u not in self.place)
        for u in self.unreduced if anywhere else inside:
            for d in range(len(self.dims)):
                new = (*self.dims[d], u)
                if self.even(d, new):
                    left = tuple(v for v in self.unreduced if v != u)
                    yield ReshardStep("reduce_scatter", (u,), d, (), self.with_dim(d, new), left)
        if outside:
            yield ReshardStep("all_reduce", outside, -1, (), self.dims, tuple(inside))
        if inside:
            yield ReshardStep("all_reduce", self.unreduced, -1, (), self.dims, ())

    def _suffixes(self, d: int) -> Iterator[tuple[int, ...]]:
        s = self.dims[d]
        if not self.even(d, s):
            if s != self.target[d]:
                yield s
            return
        for k in range(self.common[d], len(s)):
            yield s[k:]

    def _moves_of(self, d: int, suffix: Iterable[int]) -> list[Move] | None:
        """Each atom of a suffix to the dimension where the target wants it; None if one has no such place. An atom that
        belongs to this very dimension, but further left, may travel along if the others go to one place."""
        groups: dict[int, list[int]] = {}
        along = []
        for a in suffix:
            e = self.place.get(a)
            if e is None:
                return None
            if e == d:
                along.append(a)
            else:
                groups.setdefault(e, []).append(a)
        if along:
            if len(groups) != 1:
                return None
            ((e, atoms),) = groups.items()
            return [Move(d, e, (*sorted(atoms, key=self.target[e].index), *along))]
        return [Move(d, e, tuple(sorted(atoms, key=self.target[e].index))) for e, atoms in groups.items()]

    def exchanges(self) -> Iterator[ReshardStep]:
        """All-to-alls: one source dimension with every suffix, then source dimensions fused."""
        longest: list[list[Move]] = []
        for d in range(len(self.dims)):
            options = [m for s in self._suffixes(d) if (m := self._moves_of(d, s)) is not None]
            for moves in options:
                step = self.exchange(moves)
                if step is not None:
                    yield step
                for move in moves if len(moves) > 1 else ():
                    if move.atoms == self.dims[d][-len(move.atoms) :]:
                        step = self.exchange([move])
                        if step is not None:
                            yield step
            if options:
                longest.append(options[0])
        if len(longest) > 1:
            for i, first in enumerate(longest):
                fused = list(first)
                for other in longest[i + 1 :]:
                    step = self.exchange(fused + other)
                    if step is not None:
                        yield step
                        fused += other

    def exchange(self, moves: list[Move]) -> ReshardStep | None:
        moves = sorted(moves, key=lambda m: (m.target, self.target[m.target].index(m.atoms[0])))
        losing = {m.source for m in moves}
        gaining = {m.target for m in moves}
        if losing & gaining:
            return None  # not uniform: would have to be a permute
        dims = [list(d) for d in self.dims]
        for d in losing:
            count = sum(len(m.atoms) for m in moves if m.source == d)
            if not self.even(d, self.dims[d]) and count != len(dims[d]):
                return None
            dims[d] = dims[d][: len(dims[d]) - count]
        for m in moves:
            dims[m.target] += m.atoms
        for e in gaining:
            if not self.can_hold(e, self.dims[e], tuple(dims[e])):
                return None
        atoms = tuple(a for m in moves for a in m.atoms)
        return ReshardStep("all_to_all", atoms, -1, tuple(moves), tuple(map(tuple, dims)), self.unreduced)

    def slices(self) -> Iterator[ReshardStep]:
        """Cutting by an atom that the target wants elsewhere, so that less has to move."""
        for a in self.place:
            if a in self.used:
                continue
            for d in range(len(self.dims)):
                new = (*self.dims[d], a)
                if self.even(d, new):
                    yield ReshardStep("slice", (a,), d, (), self.with_dim(d, new), self.unreduced)

    def gathers(self) -> Iterator[ReshardStep]:
        for d in range(len(self.dims)):
            for suffix in self._suffixes(d):
                rest = self.dims[d][: len(self.dims[d]) - len(suffix)]
                yield ReshardStep("all_gather", suffix, d, (), self.with_dim(d, rest), self.unreduced)
                if not rest and 2 * self.shape[d] < math.prod(self.sizes[a] for a in suffix):
                    yield ReshardStep("all_reduce", suffix, d, (), self.with_dim(d, ()), self.unreduced)

    def permutes(self) -> Iterator[ReshardStep]:
        """Layouts with the same piece shape that are closer to the target."""
        if not any(self.dims):
            return
        seen, old = {self.dims}, {a for d in self.dims for a in d}
        starts = [self._heads(False)]
        if any(k < len(d) and k < len(t) for k, d, t in zip(self.common, self.dims, self.target)):
            starts.append(self._heads(True))
        for prefer_moving in (True, False):
            for heads, room in starts:
                new = self._permuted(heads, room, prefer_moving)
                if new is not None and new not in seen:
                    seen.add(new)
                    atoms = tuple(sorted(old.union(*new)))
                    yield ReshardStep("collective_permute", atoms, -1, (), new, self.unreduced)

    def _heads(self, keep_common: bool) -> tuple[list[tuple[int, ...]], list[int]]:
        """Of every dimension the most of its target that its piece count allows, and how many pieces that leaves."""
        sizes = self.sizes
        taken: set[int] = set(self.unreduced)
        heads, rooms = [], []
        for d, t in enumerate(self.target):
            room = 1
            for a in self.dims[d]:
                room *= sizes[a]
            if keep_common and self.common[d] < len(self.dims[d]):
                t = t[: self.common[d]]
            k = 0
            for a in t:
                if room % sizes[a] or a in taken:
                    break
                room //= sizes[a]
                taken.add(a)
                k += 1
            heads.append(t[:k])
            rooms.append(room)
        return heads, rooms

    def _permuted(self, heads: list[tuple[int, ...]], rooms: list[int], prefer_moving: bool) -> Dims | None:
        """Dimensions that begin as `heads` say, filled with other atoms."""
        place = self.place
        taken = set(self.unreduced).union(*heads)
        unwanted = [a for d in self.dims for a in d if a not in place and a not in taken]
        wanted = [a for t in self.target for a in t if a not in taken]
        out = []
        for d, (head, room) in enumerate(zip(heads, rooms)):
            if room == 1:
                out.append(head)
                continue
            own = [a for a in self.dims[d] if a in unwanted]
            moving = [a for a in wanted if place[a] != d]
            rest = [a for a in unwanted if a not in own]
            pool = [*moving, *own, *rest] if prefer_moving else [*own, *moving, *rest]
            chosen = _fill(room, pool, self.sizes)
            if chosen is None:
                return None
            for a in chosen:
                (wanted if a in wanted else unwanted).remove(a)
            back = [a for a in chosen if a in place]
            out.append((*head, *[a for a in chosen if a not in place], *back))
        return tuple(out)


def _fill(room: int, pool: list[int], sizes: Sequence[int]) -> list[int] | None:
    """The first atoms of `pool`, in order, whose sizes multiply to `room`."""
    if room == 1:
        return []
    for i, a in enumerate(pool):
        if room % sizes[a] == 0:
            rest = _fill(room // sizes[a], pool[i + 1 :], sizes)
            if rest is not None:
                return [a, *rest]
    return None
