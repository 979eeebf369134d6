"""The search for the cheapest sequence of collectives between two layouts.

States are (layout, unreduced atoms), moves are the collectives of `moves.py`. A* (Hart, Nilsson and Raphael 1968) finds
the cheapest sequence with the bytes that the busiest device lacks as its lower bound. Slices send nothing; ways that
cost the same are followed newest first, so that a way along which nothing is lost is walked straight to its end.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ..cost import sent_bytes
from ..heuristics import EQUAL_COST_BYTES, SEARCH_STATES, SEARCH_WEIGHTS, STEP_BYTES
from ..layout import Dims, count_of, local_shape
from .boxes import tiles_of
from .moves import ReshardStep, successors
from .tiles import lacking

__all__ = [
    "ReshardPlan",
    "even",
    "lacking_bytes",
    "operand_bytes",
    "piece_bytes",
    "search",
    "step_bytes",
]

_State: TypeAlias = tuple[Dims, tuple[int, ...]]  # a layout, and the atoms that are unreduced in it


class ReshardPlan(NamedTuple):
    """A way from `source` to `target`.

    steps    the collectives, each with the layout it ends in
    bytes    sent by the busiest device
    bound    bytes that the busiest device must receive in any plan; of sums that do not divide 0 (`tiles` tells those)
    exact    whether the search proved the plan cheapest among its moves
    peak     bytes of the largest piece that a device holds on the way, of the two ends or of a step
    messages how many collectives that is: a slice is none, exact pieces are a permute for each of their rounds
    """

    source: Dims
    target: Dims
    unreduced: tuple[int, ...]
    steps: tuple[ReshardStep, ...]
    bytes: float
    bound: float
    exact: bool
    peak: float = 0.0
    messages: int = 0

    @property
    def ratio(self) -> float:
        """Sent bytes over the lower bound (1 if that is 0)."""
        return self.bytes / self.bound if self.bound else 1.0


class Rival(NamedTuple):
    """What another way costs: at least, which is quick to find, and exactly."""

    least: Callable[[], float]
    cost: Callable[[], float]


def search(
    shape: tuple[int, ...],
    itemsize: float,
    source: Dims,
    target: Dims,
    unreduced: tuple[int, ...],
    sizes: Sequence[int],
    step_cost: float = STEP_BYTES,
    memory: float | None = None,
    rival: Rival | None = None,
    permutes: bool = True,
    anywhere: bool = False,
) -> ReshardPlan | None:
    """The cheapest plan from (source, unreduced) to (target, nothing) by layouts whose pieces have no more bytes than
    `memory`, or than the larger end's. A step costs its bytes and `step_cost`. None if no way costs less than
    the `rival`, who is asked once a way is known to take more than one step with what must be sent.

    Without `permutes` it is found among the other moves; `anywhere` allows some more (`moves.successors`). Where no
    such way is found (dimensions that do not divide) all is gathered.
    """
    piece = PieceSizes(shape, itemsize, sizes)
    larger = max(piece(source).bytes, piece(target).bytes)
    if not unreduced and not (piece(source).even and piece(target).even):
        bound = lacking_bytes(shape, itemsize, source, target, sizes)
    else:
        bound = lower_bound(piece, source, target, unreduced)
    for weight in SEARCH_WEIGHTS:
        limit = larger if memory is None else memory
        found = _Search(piece, target, step_cost, limit, weight, permutes, anywhere)
        found.run((source, unreduced), bound, rival)
        if found.beaten:
            return None
        if found.steps is not None:
            return _plan(piece, source, target, unreduced, found.steps, bound, weight == 1)
        if not found.cut_short:
            break
    return _plan(piece, source, target, unreduced, _gather_all(shape, source, target, unreduced, sizes), bound, False)


class Piece(NamedTuple):
    """A device's piece under a layout: its shape, how many pieces each dimension is cut into, bytes, and whether every
    dimension divides."""

    shape: tuple[int, ...]
    counts: tuple[int, ...]
    bytes: float
    even: bool


class PieceSizes:
    """The pieces of one tensor under layouts, each found once. `itemsize` is the bytes of an element."""

    __slots__ = ("_known", "itemsize", "shape", "sizes")

    def __init__(self, shape: Sequence[int], itemsize: float, sizes: Sequence[int]):
        self.shape, self.itemsize, self.sizes = shape, itemsize, sizes
        self._known: dict[Dims, Piece] = {}

    def __call__(self, dims: Dims) -> Piece:
        found = self._known.get(dims)
        if found is None:
            counts = [count_of(atoms, self.sizes) for atoms in dims]
            local = tuple([-(-n // k) for n, k in zip(self.shape, counts)])
            even = not [n for n, k in zip(self.shape, counts) if n % k]
            found = self._known[dims] = Piece(local, tuple(counts), math.prod(local) * self.itemsize, even)
        return found

    def product(self, atoms: Iterable[int]) -> int:
        """How many devices differ in `atoms`."""
        return count_of(atoms, self.sizes)


class _Search:
    """One search. Afterwards `steps` has the way that was found; if there is none, the rival may have `beaten` all, or
    it was `cut_short` after `SEARCH_STATES` states. A bound of more than its `weight` leads to a way sooner, not to the
    cheapest. Without `permutes` there are no collective permutes; for `anywhere` see `moves.successors`."""

    def __init__(
        self,
        piece: PieceSizes,
        target: Dims,
        step_cost: float,
        limit: float,
        weight: float,
        permutes: bool,
        anywhere: bool,
    ):
        self.piece, self.target = piece, target
        self.step_cost, self.limit, self.weight = step_cost, limit, weight
        self.permutes, self.anywhere = permutes, anywhere
        self.steps: list[ReshardStep] | None = None
        self.beaten = self.cut_short = False
        self._left: dict[_State, float] = {}

    def run(self, start: _State, bound: float, rival: Rival | None) -> None:
        """Looks for a way from `start`, which takes `bound` bytes at least."""
        goal, piece = (self.target, ()), self.piece
        best = {start: (0.0, 0)}  # what it costs to get to a state, and the slices on the way, which are free
        came: dict[_State, tuple[_State, ReshardStep]] = {}
        queue = [(bound, 0, best[start], start)]
        count, most = 0, None if self.weight == 1 else math.inf
        while queue:
            least, _, before, state = heapq.heappop(queue)
            if before != best[state]:
                continue  # a cheaper way there has been found since
            if rival is not None and most is None and least > bound + self.step_cost + EQUAL_COST_BYTES:
                most = rival.least()
            if rival is not None and most is not None and least >= most - EQUAL_COST_BYTES:
                most = rival.cost()
                if least >= most - EQUAL_COST_BYTES:
                    self.beaten = True
                    return
            if state == goal:
                self.steps = _steps_to(goal, start, came)
                return
            if count >= SEARCH_STATES:
                self.cut_short = True
                return
            for step in successors(piece.shape, state[0], state[1], self.target, piece.sizes, self.anywhere):
                if piece(step.after).bytes > self.limit or (step.kind == "collective_permute" and not self.permutes):
                    continue
                new, cost = (step.after, step.unreduced), self._cost(before, state[0], step)
                known = best.get(new)
                if known is not None and (
                    cost[0] >= known[0] + EQUAL_COST_BYTES
                    or (cost[0] > known[0] - EQUAL_COST_BYTES and cost[1] >= known[1])
                ):
                    continue
                best[new], came[new] = cost, (state, step)
                if new == goal and cost[0] <= least + EQUAL_COST_BYTES:
                    self.steps = _steps_to(goal, start, came)
                    return
                count += 1
                heapq.heappush(queue, (cost[0] + self._rest(new), -count, cost, new))

    def _cost(self, before: tuple[float, int], dims: Dims, step: ReshardStep) -> tuple[float, int]:
        if step.kind == "slice":
            return before[0], before[1] + 1
        return before[0] + _sent(step, self.piece, dims) + self.step_cost, before[1]

    def _rest(self, state: _State) -> float:
        """What the way from a state costs at least: what must be sent takes a step."""
        found = self._left.get(state)
        if found is None:
            least = lower_bound(self.piece, state[0], self.target, state[1])
            found = self._left[state] = self.weight * (least + self.step_cost if least else 0.0)
        return found


def _steps_to(state: _State, start: _State, came: Mapping[_State, tuple[_State, ReshardStep]]) -> list[ReshardStep]:
    steps = []
    while state != start:
        state, step = came[state]
        steps.append(step)
    return steps[::-1]


def lacking_bytes(shape: tuple[int, ...], itemsize: float, source: Dims, target: Dims, sizes: Sequence[int]) -> float:
    """Bytes that the busiest device lacks of its piece of `target`, counted device by device."""
    return lacking(*tiles_of(shape, source, target, sizes)) * itemsize


def piece_bytes(shape: tuple[int, ...], itemsize: float, dims: Dims, sizes: Sequence[int]) -> float:
    """Bytes of one device's piece."""
    return math.prod(local_shape(shape, dims, sizes)) * itemsize


def step_bytes(step: ReshardStep, shape: tuple[int, ...], itemsize: float, before: Dims, sizes: Sequence[int]) -> float:
    """Bytes the busiest device sends in `step`, taken from layout `before`. Padding counts."""
    return _sent(step, PieceSizes(shape, itemsize, sizes), before)


def operand_bytes(
    step: ReshardStep, shape: tuple[int, ...], itemsize: float, before: Dims, sizes: Sequence[int]
) -> float:
    """Bytes per device that the collective of `step`, taken from layout `before`, is given. Padding counts: dimensions
    that it splits are as many pieces as there will be."""
    return _given(step, PieceSizes(shape, itemsize, sizes), before)


def _sent(step: ReshardStep, piece: PieceSizes, before: Dims) -> float:
    if step.kind == "slice":
        return 0.0
    return sent_bytes(step.kind, piece.product(step.atoms), _given(step, piece, before))


def _given(step: ReshardStep, piece: PieceSizes, before: Dims) -> float:
    if step.kind == "reduce_scatter":
        return piece(step.after).bytes * piece.product(step.atoms)
    if not step.moves:
        return piece(step.after if step.kind == "all_reduce" else before).bytes
    operand, after = list(piece(before).shape), piece(step.after).shape
    for e in {m.target for m in step.moves}:
        operand[e] = after[e]
    for m in step.moves:
        operand[m.target] *= piece.product(m.atoms)
    return math.prod(operand) * piece.itemsize


def lower_bound(piece: PieceSizes, source: Dims, target: Dims, unreduced: tuple[int, ...]) -> float:
    """Bytes the busiest device must receive, whatever the plan; 0 where dimensions do not divide."""
    old, new = piece(source), piece(target)
    if not (old.even and new.even):
        return 0.0
    if unreduced:
        wanted = {a for d in target for a in d}
        inside = piece.product(a for a in unreduced if a in wanted)
        outside = piece.product(a for a in unreduced if a not in wanted)
        holders = math.prod(n for a, n in enumerate(piece.sizes) if a not in wanted)
        return max(new.bytes, new.bytes * (inside * outside + holders - 2) / holders)
    overlap = 1
    for n, s, t, p, q in zip(piece.shape, source, target, old.counts, new.counts):
        if s != t and s[: len(t)] != t[: len(s)]:
            return new.bytes
        overlap *= n // max(p, q)
    return max(0.0, new.bytes - overlap * piece.itemsize)


def even(shape: tuple[int, ...], source: Dims, target: Dims, sizes: Sequence[int]) -> bool:
    """Whether every dimension divides into its pieces in both layouts."""
    return all(n % math.prod(sizes[a] for a in d) == 0 for dims in (source, target) for n, d in zip(shape, dims))


def _plan(
    piece: PieceSizes,
    source: Dims,
    target: Dims,
    unreduced: tuple[int, ...],
    steps: Sequence[ReshardStep],
    bound: float,
    exact: bool,
) -> ReshardPlan:
    before, total = source, 0.0
    for step in steps:
        total += _sent(step, piece, before)
        before = step.after
    peak = max(piece(dims).bytes for dims in (source, *[s.after for s in steps]))
    messages = sum([step.kind != "slice" for step in steps])
    return ReshardPlan(source, target, unreduced, tuple(steps), total, bound, exact, peak, messages)


def _gather_all(
    shape: tuple[int, ...], source: Dims, target: Dims, unreduced: tuple[int, ...], sizes: Sequence[int]
) -> list[ReshardStep]:
    """The way that always exists: reduce, gather what differs, slice."""
    steps, dims = [], list(source)
    if unreduced:
        steps.append(ReshardStep("all_reduce", unreduced, -1, (), source, ()))
    for d, (s, t) in enumerate(zip(source, target)):
        keep = 0
        while keep < min(len(s), len(t)) and s[keep] == t[keep]:
            keep += 1
        p = math.prod(sizes[a] for a in s)
        q = math.prod(sizes[a] for a in t)
        if shape[d] % p or shape[d] % q:
            keep = 0 if s != t else keep
        if s[keep:]:
            dims[d] = s[:keep]
            steps.append(ReshardStep("all_gather", s[keep:], d, (), tuple(dims), ()))
    for d, t in enumerate(target):
        if t != dims[d]:
            steps.append(ReshardStep("slice", t[len(dims[d]) :], d, (), (*dims[:d], t, *dims[d + 1 :]), ()))
            dims[d] = t
    return steps
