"""The reshard planner: the cheapest way from one layout to another, by collectives or by exact pieces.

One function (`Planner.plan`) decides for programs and for whoever asks `plan_reshard`. Mesh axes that source and target
only use together are searched as one atom first (`search.py`); if that plan misses its bound, the finer atoms are
searched too. What the collectives send too much is weighed against what messages of exact pieces cost (`boxes.py`).

The move set follows the array redistribution calculus of Rink et al. 2021 (arXiv:2112.01075), extended by
permutes onto free axes, fused all-to-alls and partial sums.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from ..heuristics import (
    ESTIMATED_STEP_SHARE,
    EXACT_ROUNDS,
    FINE_ATOMS,
    REMEMBERED_PLANS,
    SCATTER_ELSEWHERE_SHARE,
    STEP_BYTES,
)
from ..layout import Atoms, Dims
from ..topology import Topology
from .boxes import boxes_between, fewest_between
from .moves import ReshardStep
from .search import ReshardPlan, Rival, even, lacking_bytes, piece_bytes, search, step_bytes

__all__ = ["Planner", "ReshardPlan", "runs_of", "step_cost"]


@functools.lru_cache(maxsize=64)
def _tables(
    sizes: tuple[int, ...], step_bytes: float, memory: float | None, permutes: bool
) -> tuple[dict[tuple[Any, ...], ReshardPlan], dict[tuple[Any, ...], ReshardPlan | None]]:
    """What planners of equal atoms have found, also for programs before: plans, and those of abstract problems."""
    return {}, {}


class Planner:
    """Plans reshards over one mesh and remembers them, together with all planners over atoms of the same sizes.

    `step_bytes` is what a step costs besides its bytes, in bytes: see `step_cost`; `message` is the part of it that
    counts where whole plans are compared with what else may be done. `memory` are the bytes that a
    device's piece may have on the way; None: those of the larger end's. Without `permutes` (which all devices of a
    program take part in) plans are of collectives that groups of devices do by themselves.
    """

    __slots__ = ("_abstract", "_plans", "atoms", "memory", "message", "permutes", "step_bytes")

    def __init__(
        self, atoms: Atoms, step_bytes: float = STEP_BYTES, memory: float | None = None, permutes: bool = True
    ):  # fmt: skip
        self.atoms = atoms
        self.permutes = permutes
        self.step_bytes, self.message = step_bytes, max(min(STEP_BYTES, step_bytes), ESTIMATED_STEP_SHARE * step_bytes)
        self.memory = memory
        self._plans, self._abstract = _tables(atoms.sizes, step_bytes, memory, permutes)

    def plan(
        self, shape: tuple[int, ...], itemsize: float, source: Dims, target: Dims, unreduced: tuple[int, ...] = ()
    ) -> ReshardPlan:
        """The cheapest plan for a tensor of global `shape` whose elements take `itemsize` bytes.

        `unreduced` are the atoms over which the source is a partial sum; the target is reduced.
        """
        key = (shape, itemsize, source, target, unreduced)
        found = self._plans.get(key)
        if found is None:
            if len(self._plans) >= REMEMBERED_PLANS:
                self._plans.clear()
                self._abstract.clear()
            found = self._plans[key] = self._search(shape, itemsize, source, target, unreduced)
        return found

    def cost(
        self, shape: tuple[int, ...], itemsize: float, source: Dims, target: Dims, unreduced: tuple[int, ...] = ()
    ) -> float:
        """Bytes of `plan`, each of its collectives counting as `message` more."""
        if source == target and not unreduced:
            return 0.0
        found = self.plan(shape, itemsize, source, target, unreduced)
        return found.bytes + self.message * found.messages

    def _search(
        self, shape: tuple[int, ...], itemsize: float, source: Dims, target: Dims, unreduced: tuple[int, ...]
    ) -> ReshardPlan:
        """The cheapest sequence of collectives, or exact pieces where those cost less or it needs too much memory."""
        sizes = self.atoms.sizes
        runs = runs_of([*source, *target, unreduced])
        exact = functools.cache(lambda: self._exact(shape, itemsize, source, target, unreduced))
        rival = Rival(
            lambda: self._exact_price(shape, itemsize, source, target, unreduced),
            lambda: math.inf if (found := exact()) is None or _long(found) else self.price(found),
        )
        plan = self._abstract_plan(shape, itemsize, source, target, unreduced, runs, sizes, rival)
        fine = len({a for lists in (*source, *target, unreduced) for a in lists})
        if (plan is None or plan.bytes > plan.bound) and any(len(r) > 1 for r in runs) and fine <= FINE_ATOMS:
            singles = [(a,) for r in runs for a in r]
            finer = self._abstract_plan(shape, itemsize, source, target, unreduced, singles, sizes, rival)
            if finer is not None and (plan is None or finer.bytes < plan.bytes):
                plan = finer
        wanted = {a for d in target for a in d}
        if plan is not None and plan.bytes > plan.bound and any(a not in wanted for a in unreduced):
            most = SCATTER_ELSEWHERE_SHARE * self.price(plan)
            worth = Rival(lambda: most, lambda: most)
            other = self._abstract_plan(shape, itemsize, source, target, unreduced, runs, sizes, worth, most)
            plan = plan if other is None or self.price(other) >= most else other
        if plan is not None and (plan.exact or exact() is None):
            return plan
        held = max(piece_bytes(shape, itemsize, dims, sizes) for dims in (source, target))
        limit = held if self.memory is None else self.memory
        options = [p for p in (plan, exact()) if p is not None]  # a tie goes to the first
        return min(options, key=lambda p: (p.peak > limit, _long(p), self.price(p)))

    def price(self, plan: ReshardPlan) -> float:
        """Bytes of a plan and of what its collectives cost besides."""
        return plan.bytes + self.step_bytes * plan.messages

    def _exact(
        self, shape: tuple[int, ...], itemsize: float, source: Dims, target: Dims, unreduced: tuple[int, ...]
    ) -> ReshardPlan | None:
        """Exact pieces, once what is unreduced is summed; None where there are none within the limits. Sums of evenly
        divided tensors are better scattered."""
        if not self.permutes or (unreduced and even(shape, source, target, self.atoms.sizes)):
            return None
        found = boxes_between(shape, source, target, self.atoms.sizes)
        if found is None:
            return None
        steps, sent = [], 0.0
        if unreduced:
            steps.append(ReshardStep("all_reduce", unreduced, -1, (), source, ()))
            sent = step_bytes(steps[0], shape, itemsize, source, self.atoms.sizes)
        steps.append(ReshardStep("pieces", tuple(sorted(found.atoms)), -1, (), target, (), len(found.rounds)))
        ends = [piece_bytes(shape, itemsize, dims, self.atoms.sizes) for dims in (source, target)]
        sent += found.elements * itemsize
        bound = 0.0 if unreduced else lacking_bytes(shape, itemsize, source, target, self.atoms.sizes)
        messages = len(steps) - 1 + len(found.rounds)
        return ReshardPlan(source, target, unreduced, tuple(steps), sent, bound, sent <= bound, max(ends), messages)

    def _exact_price(
        self, shape: tuple[int, ...], itemsize: float, source: Dims, target: Dims, unreduced: tuple[int, ...]
    ) -> float:
        """What exact pieces cost at least, found quickly."""
        if not even(shape, source, target, self.atoms.sizes):
            return 0.0
        found = None if unreduced or not self.permutes else fewest_between(shape, source, target, self.atoms.sizes)
        return math.inf if found is None else found[1] * itemsize + self.step_bytes * found[0]

    def _abstract_plan(
        self,
        shape: tuple[int, ...],
        itemsize: float,
        source: Dims,
        target: Dims,
        unreduced: tuple[int, ...],
        runs: Sequence[tuple[int, ...]],
        sizes: Sequence[int],
        rival: Rival | None,
        most: float = 0.0,
    ) -> ReshardPlan | None:
        """Searches with each run of atoms as one, on small integer names, so that equal problems meet in a cache. What
        the rival costs does not depend on the names either. With `most`, which is what it costs, sums may be scattered
        over axes that the target does not have."""
        name = {run[0]: i for i, run in enumerate(runs)}
        products = tuple(math.prod(sizes[a] for a in run) for run in runs)

        def rename(dims: Dims) -> Dims:
            return tuple(tuple(name[a] for a in d if a in name) for d in dims)

        src, dst, (pending,) = rename(source), rename(target), rename((unreduced,))
        key = (shape, itemsize, src, dst, pending, products, most)
        try:
            found = self._abstract[key]
        except KeyError:
            found = self._abstract[key] = search(
                shape, itemsize, src, dst, pending, products,
                self.step_bytes, self.memory, rival, self.permutes, most > 0,
            )  # fmt: skip
        if found is None:
            return None
        steps = tuple(s.rename(lambda i: runs[i]) for s in found.steps)
        return found._replace(source=source, target=target, unreduced=unreduced, steps=steps)


def _long(plan: ReshardPlan) -> bool:
    """Whether a plan takes so many permutes that only a bound on memory is a reason for them."""
    return any(s.rounds > EXACT_ROUNDS for s in plan.steps)


def step_cost(topology: Topology | None) -> float:
    """What a step costs besides its bytes, in bytes: those that a device could send meanwhile. Without a topology bytes
    decide alone."""
    return STEP_BYTES if topology is None else max(STEP_BYTES, topology.default.latency * topology.default.bandwidth)


def runs_of(lists: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Atoms that stand together, in order, in every list they stand in."""
    following: dict[int, set[int | tuple[None, int]]] = {}
    preceding: dict[int, set[int | tuple[None, int]]] = {}
    for i, atoms in enumerate(lists):
        for k, a in enumerate(atoms):
            after = atoms[k + 1] if k + 1 < len(atoms) else (None, i)
            before = atoms[k - 1] if k else (None, i)
            following.setdefault(a, set()).add(after)
            preceding.setdefault(a, set()).add(before)
    runs, seen = [], set()
    for a in following:
        if a in seen:
            continue
        head = a
        while len(preceding[head]) == 1:
            (p,) = preceding[head]
            if isinstance(p, tuple) or len(following[p]) != 1 or p == a:
                break
            head = p
        run = [head]
        while len(following[run[-1]]) == 1:
            (n,) = following[run[-1]]
            if isinstance(n, tuple) or len(preceding[n]) != 1 or n == head:
                break
            run.append(n)
        seen.update(run)
        runs.append(tuple(run))
    return runs
