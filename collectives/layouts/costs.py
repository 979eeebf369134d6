"""What having a value in another layout would cost: what rules decide by.

Bytes that the busiest device sends. What a collective takes besides counts as the bytes that could be sent meanwhile
(`Costs.message`), and so does work that several devices repeat.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Iterable

from propagation.model import TensorSharding
from propagation.program import Program, Value

from ..heuristics import (
    MESSAGE_BYTES,
    RECOMPUTED_SENT_SHARE,
    RECOMPUTED_STEPS,
    RESHARD_LATER_SHARE,
    RESHARD_SHARED_SHARE,
)
from ..layout import Atoms, Dims
from ..options import Options
from ..reshard import Planner
from ..topology import Topology
from .known import Known
from .state import Source, State

__all__ = ["Costs"]


class Costs(Known):
    """Estimates, from what is known. Nothing is written for them, and no state changes."""

    def __init__(
        self, program: Program, sharding: Callable[[Value], TensorSharding | None], atoms: Atoms, topology: Topology,
        options: Options,
    ):  # fmt: skip
        super().__init__(program, sharding, atoms, options)
        self.topology = topology
        self.planner = Planner(atoms)
        self.estimates: dict[tuple[Value, Dims, int], float] = {}  # of the look-ahead

    @abc.abstractmethod
    def extra_cost(self, value: Value, dims: Dims) -> float:
        """Bytes that the users of `value` would send if it was in `dims`: the look-ahead's estimate."""

    def set_wants(self, wants: dict[Value, Dims]) -> None:
        """Replaces what propagation decided for some values."""
        self.wants.update(wants)
        self.forget_estimates()

    def forget_estimates(self) -> None:
        """Drops the estimates of the look-ahead."""
        self.estimates.clear()

    @property
    def message(self) -> float:
        """Bytes that one collective counts as besides those that it sends, where it is estimated."""
        return self.planner.message

    @property
    def written_message(self) -> float:
        """The same for collectives that were written, or would be at once."""
        return max(MESSAGE_BYTES, self.planner.step_bytes)

    @functools.cached_property
    def byte_per_flop(self) -> float:
        """Bytes that can be sent while one arithmetic operation runs."""
        return self.topology.default.bandwidth / self.topology.flops

    @functools.cached_property
    def redundancy(self) -> float:
        """Bytes that can be sent while one byte of memory is read or written."""
        return self.topology.default.bandwidth / self.topology.memory_bandwidth

    # -- of operands ------------------------------------------------------------------------------------------

    def cost(self, value: Value, dims: Dims) -> float:
        """What asking for `value` in `dims` would send: bytes, and `message` for each collective."""
        state = self.env[value]
        move = self.move_bytes(state, dims)
        return move if state.recipe is None or not move else self._recomputed_cost(state, dims, move)

    def bytes_sent(self, value: Value, dims: Dims) -> float:
        """The bytes alone of what `cost` counts, if `value` is moved."""
        state, plan = self.env[value], self.planner.plan
        sent = [math.inf]
        for have, parts in self.sources(state, self.region):
            meeting = dims if len(parts) == 1 else self.meeting(state, have, parts, dims)[1]
            plans = [plan(state.shape, state.itemsize, have, meeting, pending) for pending in parts]
            sent.append(sum(p.bytes for p in plans) + plan(state.shape, state.itemsize, meeting, dims).bytes)
        return min(self.cost(value, dims), *sent)

    def move_bytes(self, state: State, dims: Dims) -> float:
        """Bytes that resharding the nearest version of `state` to `dims` would send."""
        if state.make is not None or dims in state.versions:
            return 0.0
        found = self.sources(state, self.region)
        if state.versions and self.elements(state.shape, dims) <= self.elements(state.shape, state.layout):
            # Only for layouts no larger: else all devices would repeat work on a version that was split before.
            found += self.siblings.more(found, state.shape, self.region)
        return min((self.source_cost(state, s, dims) for s in found), default=0.0)

    def move_cost(self, value: Value, dims: Dims) -> float:
        """`cost` for comparing choices: per iteration of the loops between, and discounted if later users may share
        it."""
        cost = self.cost(value, dims)
        if not cost:
            return cost
        state = self.env[value]
        promised = self.promised(value) if len(value.uses) > 1 else None
        if promised is not None:
            cost = min(cost, self.planner.cost(state.shape, state.itemsize, promised, dims))
        if state.home is not self.region.origin:
            return cost / self.runs_since(state)
        awaited = state.uses > len(value.uses) or value.uses[-1].op is not self.op  # uses are in program order
        return cost * RESHARD_SHARED_SHARE if state.uses > 1 and awaited else cost

    def source_cost(self, state: State, source: Source, dims: Dims) -> float:
        """Bytes that bringing one source of a value to `dims` sends."""
        have, parts = source
        if len(parts) == 1:
            ((pending, ref),) = parts.items()
            if not pending and ref is not None:
                if self.siblings.sibling(ref, state.shape, have, dims, self.region) is not None:
                    return 0.0
            return self.planner.cost(state.shape, state.itemsize, have, dims, pending)
        return self.meeting(state, have, parts, dims)[0]

    def meeting(
        self, state: State, have: Dims, parts: Iterable[tuple[int, ...]], dims: Dims
    ) -> tuple[float, Dims]:  # fmt: skip
        """(bytes, layout) of the cheapest way to reduce the parts of an unreduced value, which are pending over atoms
        `parts`, in one layout, add them up there, and bring the sum to `dims`."""

        def cost(before: Dims, after: Dims, pending: tuple[int, ...] = ()) -> float:
            return self.planner.cost(state.shape, state.itemsize, before, after, pending)

        layouts = [dims, have]
        for pending in parts:
            plan = self.planner.plan(state.shape, state.itemsize, have, dims, pending)
            layouts += [step.after for step in plan.steps]
        return min(
            ((sum(cost(have, x, p) for p in parts) + cost(x, dims), x) for x in dict.fromkeys(layouts)),
            key=lambda found: found[0],
        )

    # -- of results -------------------------------------------------------------------------------------------

    def later_cost(self, value: Value, dims: Dims, pending: tuple[int, ...] = ()) -> float:
        """Bytes of bringing a result from `dims`, unreduced over the atoms `pending`, to where its users want it, as
        the look-ahead estimates it; discounted, because users may be content with `dims`."""
        if not value.uses:
            return 0.0
        if value in self.divided and self.elements(value.type.shape, dims) > self.elements(
            value.type.shape, self.want(value)
        ):
            return math.inf  # memory is short
        end = self.ends.get(value) if len(value.uses) == 1 else None
        shape, itemsize = value.type.shape, self.itemsize(value)
        if end is not None:
            want, soft = end
            return (1.0 if pending else soft) * self.planner.cost(shape, itemsize, dims, want, pending)
        if pending:
            cost = lambda layout: self.planner.cost(shape, itemsize, dims, layout, pending)
            return min(cost(x) + RESHARD_LATER_SHARE * self.extra_cost(value, x) for x in {self.want(value), dims})
        return RESHARD_LATER_SHARE * self.extra_cost(value, dims)

    # -- of recomputing, see `recompute` ----------------------------------------------------------------------

    def _recomputed_cost(self, state: State, dims: Dims, move: float) -> float:
        """Bytes of having `state` in `dims`: `move`, or those of recomputing it, the time of its work included, if
        less."""
        work = 2 * state.itemsize * self.elements(state.shape, dims) * self.redundancy
        again = work + self._recomputing(state, dims, RECOMPUTED_SENT_SHARE * move - work, RECOMPUTED_STEPS)
        return min(move, again)

    def is_recomputed(self, state: State, dims: Dims, move: float) -> bool:
        """Whether to recompute `state` in `dims` rather than send `move` bytes."""
        limit = RECOMPUTED_SENT_SHARE * move
        return self._recomputing(state, dims, limit, RECOMPUTED_STEPS) < limit

    def _recomputing(self, state: State, dims: Dims, limit: float, depth: int) -> float:
        """Bytes of bringing the sources of `state` to the layouts that recomputing it in `dims` needs, their own
        recomputation considered; infinite if not less than `limit`."""
        total, recipe = 0.0, state.recipe
        if not depth or limit <= 0 or recipe is None:
            return math.inf
        layouts = recipe.operands(dims)
        if layouts is None:
            return math.inf
        for source, wanted in zip(recipe.sources, layouts):
            move = self.move_bytes(source, wanted)
            if move and source.recipe is not None:
                move = min(move, self._recomputing(source, wanted, RECOMPUTED_SENT_SHARE * move, depth - 1))
            total += move
            if total >= limit:
                return math.inf
        return total
