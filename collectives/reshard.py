"""The reshard planner: the cheapest sequence of collectives from one layout to another.

States are (layout, unreduced atoms). Moves are the collectives below; A* finds the cheapest sequence with the bytes
that the busiest device lacks as its lower bound. Mesh axes that source and target only use together are searched as
one atom first; if that plan misses its bound, the finer atoms are searched too.

The move set follows the array redistribution calculus of Rink et al. 2021 (arXiv:2112.01075), extended by
permutes onto free axes, fused all-to-alls and partial sums.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

from .cost import sent_bytes
from .layout import Atoms, Dims, local_shape
from .moves import Step, successors
from .pieces import pieces_between
from .topology import Topology

__all__ = [
    "Planner",
    "ReshardPlan",
    "Step",
    "even",
    "operand_bytes",
    "piece_bytes",
    "runs_of",
    "step_bytes",
    "step_cost",
]

# What a step, or a message of exact pieces, costs besides its bytes where no topology was chosen: it only decides
# between plans of about equal bytes.
STEP_BYTES = 16.0
NODE_LIMIT = 3000


class ReshardPlan(NamedTuple):
    """A way from `source` to `target`.

    steps    the collectives, each with the layout it ends in
    bytes    sent by the busiest device
    bound    bytes that the busiest device must receive in any plan; 0 where sizes do not divide (`tiles` tells those)
    exact    whether the search proved the plan cheapest among its moves
    peak     bytes of the largest piece that a device holds on the way, of the two ends or of a step
    """

    source: Dims
    target: Dims
    unreduced: tuple[int, ...]
    steps: tuple[Step, ...]
    bytes: float
    bound: float
    exact: bool
    peak: float = 0.0

    @property
    def ratio(self) -> float:
        """Sent bytes over the lower bound (1 if that is 0)."""
        return self.bytes / self.bound if self.bound else 1.0


class Planner:
    """Plans reshards over one mesh and remembers them.

    `step_bytes` is what a step costs besides its bytes, in bytes: see `step_cost`. `memory` are the bytes that a
    device's piece may have on the way; None: those of the larger end's.
    """

    __slots__ = ("_abstract", "_plans", "atoms", "memory", "step_bytes")

    def __init__(self, atoms: Atoms, step_bytes: float = STEP_BYTES, memory: float | None = None):
        self.atoms = atoms
        self.step_bytes = step_bytes
        self.memory = memory
        self._plans: dict[tuple, ReshardPlan] = {}
        self._abstract: dict[tuple, ReshardPlan] = {}

    def plan(
        self, shape: tuple[int, ...], bits: float, source: Dims, target: Dims, unreduced: tuple[int, ...] = ()
    ) -> ReshardPlan:
        """The cheapest plan for a tensor of global `shape` whose elements take `bits` bytes.

        `unreduced` are the atoms over which the source is a partial sum; the target is reduced.
        """
        key = (shape, bits, source, target, unreduced)
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = self._search(shape, bits, source, target, unreduced)
        return found

    def cost(self, shape, bits, source: Dims, target: Dims, unreduced=()) -> float:
        """Bytes of `plan`."""
        if source == target and not unreduced:
            return 0.0
        return self.plan(shape, bits, source, target, unreduced).bytes

    def _search(self, shape, bits, source, target, unreduced) -> ReshardPlan:
        sizes = self.atoms.sizes
        runs = runs_of([*source, *target, unreduced])
        plan = self._abstract_plan(shape, bits, source, target, unreduced, runs, sizes)
        fine = len({a for lists in (*source, *target, unreduced) for a in lists})
        if plan.bytes > plan.bound and any(len(r) > 1 for r in runs) and fine <= 7:
            singles = [(a,) for r in runs for a in r]
            finer = self._abstract_plan(shape, bits, source, target, unreduced, singles, sizes)
            if finer.bytes < plan.bytes:
                plan = finer
        return plan if unreduced else self._by_pieces(shape, bits, plan)

    def _by_pieces(self, shape, bits: float, plan: ReshardPlan) -> ReshardPlan:
        """Exact pieces instead of `plan`, where they save more than their messages cost."""
        if plan.bytes - plan.bound <= self.step_bytes or not even(shape, plan.source, plan.target, self.atoms.sizes):
            return plan
        pieces = pieces_between(plan.source, plan.target, self.atoms.sizes)
        if pieces is None or any(n % k for n, k in zip(shape, pieces.units)):
            return plan
        if (len(pieces.rounds) - len(plan.steps)) * self.step_bytes >= plan.bytes - plan.bound:
            return plan
        step = Step("pieces", pieces.atoms, -1, (), plan.target, ())
        ends = [piece_bytes(shape, bits, dims, self.atoms.sizes) for dims in (plan.source, plan.target)]
        return plan._replace(steps=(step,), bytes=plan.bound, peak=max(ends))

    def _abstract_plan(self, shape, bits, source, target, unreduced, runs, sizes) -> ReshardPlan:
        """Searches with each run of atoms as one, on small integer names, so that equal problems meet in a cache."""
        name = {run[0]: i for i, run in enumerate(runs)}
        products = tuple(math.prod(sizes[a] for a in run) for run in runs)

        def rename(dims):
            return tuple(tuple(name[a] for a in d if a in name) for d in dims)

        src, dst, (pending,) = rename(source), rename(target), rename((unreduced,))
        key = (shape, bits, src, dst, pending, products)
        found = self._abstract.get(key)
        if found is None:
            found = search(shape, bits, src, dst, pending, products, self.step_bytes, self.memory)
            self._abstract[key] = found
        steps = tuple(s.rename(lambda i: runs[i]) for s in found.steps)
        return found._replace(source=source, target=target, unreduced=unreduced, steps=steps)


def step_cost(topology: Topology | None) -> float:
    """What a step costs besides its bytes, in bytes: those that a device could send meanwhile. Without a topology bytes
    decide alone."""
    return STEP_BYTES if topology is None else max(STEP_BYTES, topology.default.latency * topology.default.bandwidth)


def runs_of(lists: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Atoms that stand together, in order, in every list they stand in."""
    following: dict[int, set] = {}
    preceding: dict[int, set] = {}
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


def search(
    shape: tuple[int, ...],
    bits: float,
    source: Dims,
    target: Dims,
    unreduced: tuple[int, ...],
    sizes: Sequence[int],
    step_cost: float = STEP_BYTES,
    memory: float | None = None,
) -> ReshardPlan:
    """A* from (source, unreduced) to (target, nothing), by layouts whose pieces have no more bytes than `memory`, or
    than the larger end's. A step costs its bytes and `step_cost`.

    Where no such way is found (dimensions that do not divide, or a search that grew too large) all is gathered.
    """
    start, goal = (source, unreduced), (target, ())
    larger = max(piece_bytes(shape, bits, dims, sizes) for dims in (source, target))
    limit = larger if memory is None else memory
    bound = lower_bound(shape, bits, source, target, unreduced, sizes)
    if start == goal:
        return ReshardPlan(source, target, unreduced, (), 0.0, bound, True, larger)
    best = {start: 0.0}
    came: dict[tuple, tuple] = {}
    queue = [(bound, 0, 0, start)]
    pieces: dict[Dims, float] = {}
    left: dict[tuple, float] = {}
    count = 0
    while queue and count < NODE_LIMIT:
        _, _, _, state = heapq.heappop(queue)
        if state == goal:
            return _rebuild(shape, bits, source, target, unreduced, came, bound, sizes, True)
        cost = best[state]
        for step in successors(shape, state[0], state[1], target, sizes):
            new = (step.after, step.unreduced)
            piece = pieces.get(step.after)
            if piece is None:
                piece = pieces[step.after] = piece_bytes(shape, bits, step.after, sizes)
            if piece > limit:
                continue
            if step.kind == "slice":
                g = cost + 0.01
            else:
                g = cost + step_bytes(step, shape, bits, state[0], sizes) + step_cost
            if g < best.get(new, math.inf) - 1e-9:
                best[new] = g
                came[new] = (state, step)
                count += 1
                h = left.get(new)
                if h is None:
                    h = lower_bound(shape, bits, step.after, target, step.unreduced, sizes)
                    left[new] = h = h + step_cost if h else h  # bytes take a step at least
                heapq.heappush(queue, (g + h, -count, count, new))
    return _gather_all(shape, bits, source, target, unreduced, bound, sizes)


def piece_bytes(shape, bits: float, dims: Dims, sizes: Sequence[int]) -> float:
    """Bytes of one device's piece."""
    return math.prod(local_shape(shape, dims, sizes)) * bits


def step_bytes(step: Step, shape, bits: float, before: Dims, sizes: Sequence[int]) -> float:
    """Bytes the busiest device sends in `step`, taken from layout `before`. Padding counts."""
    if step.kind == "slice":
        return 0.0
    n = math.prod(sizes[a] for a in step.atoms)
    return sent_bytes(step.kind, n, operand_bytes(step, shape, bits, before, sizes))


def operand_bytes(step: Step, shape, bits: float, before: Dims, sizes: Sequence[int]) -> float:
    """Bytes per device that the collective of `step`, taken from layout `before`, is given."""
    local = piece_bytes(shape, bits, before, sizes)
    if step.kind == "reduce_scatter":
        return piece_bytes(shape, bits, step.after, sizes) * math.prod(sizes[a] for a in step.atoms)
    return max(local, piece_bytes(shape, bits, step.after, sizes)) if step.kind == "all_to_all" else local


def lower_bound(shape, bits: float, source: Dims, target: Dims, unreduced, sizes) -> float:
    """Bytes the busiest device must receive, whatever the plan."""
    piece = piece_bytes(shape, bits, target, sizes)
    if not even(shape, source, target, sizes):
        return 0.0
    if unreduced:
        wanted = {a for d in target for a in d}
        inside = math.prod(sizes[a] for a in unreduced if a in wanted)
        outside = math.prod(sizes[a] for a in unreduced if a not in wanted)
        n = inside * outside
        return inside * piece * (n + outside - 2) / n
    overlap = 1
    for size, s, t in zip(shape, source, target):
        if any(a != b for a, b in zip(s, t)):
            return piece
        overlap *= size // max(math.prod(sizes[a] for a in s), math.prod(sizes[a] for a in t))
    return max(0.0, piece - overlap * bits)


def even(shape, source: Dims, target: Dims, sizes) -> bool:
    """Whether every dimension divides into its pieces in both layouts."""
    return all(n % math.prod(sizes[a] for a in d) == 0 for dims in (source, target) for n, d in zip(shape, dims))


def _rebuild(shape, bits, source, target, unreduced, came, bound, sizes, exact) -> ReshardPlan:
    steps, state, total = [], (target, ()), 0.0
    while state != (source, unreduced):
        state, step = came[state]
        steps.append(step)
        total += step_bytes(step, shape, bits, state[0], sizes)
    steps.reverse()
    peak = _peak(shape, bits, source, steps, sizes)
    return ReshardPlan(source, target, unreduced, tuple(steps), total, bound, exact, peak)


def _peak(shape, bits: float, source: Dims, steps: Sequence[Step], sizes) -> float:
    return max(piece_bytes(shape, bits, dims, sizes) for dims in (source, *[s.after for s in steps]))


def _gather_all(shape, bits, source, target, unreduced, bound, sizes) -> ReshardPlan:
    """The plan that always exists: reduce, gather what differs, slice."""
    steps, dims, total = [], list(source), 0.0

    def add(step):
        nonlocal total
        total += step_bytes(step, shape, bits, tuple(dims), sizes)
        steps.append(step)

    if unreduced:
        add(Step("all_reduce", unreduced, -1, (), source, ()))
    for d, (s, t) in enumerate(zip(source, target)):
        keep = 0
        while keep < min(len(s), len(t)) and s[keep] == t[keep]:
            keep += 1
        p = math.prod(sizes[a] for a in s)
        q = math.prod(sizes[a] for a in t)
        if shape[d] % p or shape[d] % q:
            keep = 0 if s != t else keep
        if s[keep:]:
            after = (*dims[:d], s[:keep], *dims[d + 1 :])
            add(Step("all_gather", s[keep:], d, (), after, ()))
            dims[d] = s[:keep]
    for d, t in enumerate(target):
        if t != dims[d]:
            after = (*dims[:d], t, *dims[d + 1 :])
            add(Step("slice", t[len(dims[d]) :], d, (), after, ()))
            dims[d] = t
    peak = _peak(shape, bits, source, steps, sizes)
    return ReshardPlan(source, target, unreduced, tuple(steps), total, bound, False, peak)
