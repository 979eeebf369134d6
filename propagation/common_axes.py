"""The axes that every tensor of an operation is given, per factor, where their shardings disagree.

An operation can be computed locally only if each factor is split alike on all tensors that have it, no axis splits two
factors, and factors that need replication are whole. `common_axes` chooses such axes so that little has to move.

Algorithm: openxla/shardy, `transforms/export/explicit_reshards_util.cc`: shardings that agree already are kept; two
tensors alone take over the better sharding of the two; otherwise candidates compete by the number of elements that
would stay where they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .axes import (
    NOT_PREFIX,
    STRICT_PREFIX,
    Axes,
    add_or_merge,
    list_prefix,
    list_size,
    overlaps,
    prefix_without,
)
from .model import AxisRef, FactorType, Mesh, OpRule
from .projection import TensorState

__all__ = ["common_axes"]

# Which factors are kept sharded first: all-reducing partial results is cheaper than halo exchanges, and these are
# cheaper than gathering.
_PRECEDENCE = {
    FactorType.PASS_THROUGH: 3,
    FactorType.REDUCTION: 2,
    FactorType.PERMUTATION: 1,
    FactorType.NEED_REPLICATION: 0,
}


def common_axes(
    rule: OpRule, states: list[TensorState], counts: list[int], mesh: Mesh, faults: bool = False
) -> list[Axes]:
    """Axes per factor of `rule`.

    states   the operands and results in factor space
    counts   their numbers of elements
    faults   copies Shardy: a candidate that other factors left without axes may still win, and then unshards its factor
    """
    agreed = _agreed(rule, states)
    if agreed is not None:
        return agreed
    mappings = (*rule.operands, *rule.results)
    tensors = [t for t, mapping in enumerate(mappings) if mapping]
    is_compound = any(len(dim) > 1 for mapping in mappings for dim in mapping)
    replicated = rule.factors_of_type(FactorType.NEED_REPLICATION)
    if len(tensors) == 2 and not replicated and not is_compound:
        return _of_preferred(rule, [(states[t], counts[t]) for t in tensors])
    axes = _Contest(rule, states, counts, mesh, faults).run()
    return _moved_to_batch(rule, states, tensors, axes, replicated)


def _agreed(rule: OpRule, states: list[TensorState]) -> list[Axes] | None:
    """The axes per factor, if all tensors have the same ones, no axis is on two factors, and none is on a factor that
    needs replication; else None."""
    found: list[Axes | None] = [None] * rule.num_factors
    for state in states:
        for f, own in enumerate(state.axes):
            if own is None:
                continue
            if found[f] is None:
                found[f] = own
            elif found[f] != own:
                return None
    axes = [own or () for own in found]
    if any(axes[f] for f in rule.factors_of_type(FactorType.NEED_REPLICATION)):
        return None
    flat = [a for own in axes for a in own]
    if any(overlaps(a, b) for i, a in enumerate(flat) for b in flat[:i]):
        return None
    return axes


def _of_preferred(rule: OpRule, tensors: list[tuple[TensorState, int]]) -> list[Axes]:
    """For an operation of two tensors: the axes of the one that is better kept (no permutation factor split, then more
    elements, then split further); factors that only the other has keep their axes up to the first overlap."""
    permuted = rule.factors_of_type(FactorType.PERMUTATION)

    def worth(tensor: tuple[TensorState, int]) -> tuple[bool, int, int]:
        state, count = tensor
        return (not any(state.axes[f] for f in permuted), count, state.sharded_size())

    first, second = tensors
    if worth(second) > worth(first):
        first, second = second, first
    axes: list[Axes] = [own or () for own in first[0].axes]
    taken = [a for own in axes for a in own]
    for f, own in enumerate(second[0].axes):
        if own and first[0].axes[f] is None:
            axes[f] = _without(own, taken)
    return axes


def _without(axes: Axes, taken: Iterable[AxisRef]) -> Axes:
    """`axes` up to the first overlap with `taken`."""
    for i, axis in enumerate(axes):
        cut: AxisRef | None = axis
        for other in taken:
            cut = None if cut is None else prefix_without(cut, other)
        if cut is not axis:
            return axes[:i] if cut is None else (*axes[:i], cut)
    return axes


@dataclass(slots=True)
class _Candidate:
    """`axes` for `factor`: tensors of together `weight` elements are split so already, and into `size` times as many
    parts as with what the factor has been assigned so far."""

    factor: int
    axes: Axes
    weight: int
    size: int


class _Contest:
    """Repeatedly assigns the candidate that leaves the most elements where they are."""

    def __init__(self, rule: OpRule, states: list[TensorState], counts: list[int], mesh: Mesh, faults: bool):
        self.rule, self.states, self.counts, self.mesh = rule, states, counts, mesh
        self.faults = faults
        self.axes: list[Axes] = [()] * rule.num_factors
        self.before: list[set[int]] = [set() for _ in rule.sizes]
        for mapping in (*rule.operands, *rule.results):
            for dim in mapping:
                for major, minor in itertools.pairwise(dim):
                    self.before[minor].add(major)

    def run(self) -> list[Axes]:
        candidates = self._candidates()
        while candidates:
            ready = [c for c in candidates if not self.before[c.factor]]
            if not ready:
                break
            best = max(ready, key=self._worth)
            self.axes[best.factor] = best.axes
            candidates = [c for c in candidates if self._survives(c, best)]
            if list_size(best.axes) == self.rule.sizes[best.factor]:
                for pending in self.before:
                    pending.discard(best.factor)
        return self.axes

    def _candidates(self) -> list[_Candidate]:
        found: dict[tuple[int, Axes], _Candidate] = {}
        for state in self.states:
            for f, own in enumerate(state.axes):
                for n in range(len(own or ()), 0, -1):
                    axes = (own or ())[:n]
                    if (f, axes) not in found:
                        found[f, axes] = _Candidate(f, axes, self._weight(f, axes), list_size(axes))
        return list(found.values())

    def _weight(self, f: int, axes: Axes) -> int:
        return sum(
            count
            for state, count in zip(self.states, self.counts)
            if (own := state.axes[f]) is not None and list_prefix(axes, own) != NOT_PREFIX
        )

    def _worth(self, c: _Candidate) -> tuple[int, int, int, int, int, tuple[tuple[str, int, int], ...]]:
        axes = tuple((a.name, a.pre, a.size) for a in c.axes)
        return (c.weight, _PRECEDENCE[self.rule.types[c.factor]], c.size, c.factor, len(axes), axes)

    def _survives(self, c: _Candidate, best: _Candidate) -> bool:
        """Adapts a candidate to what was assigned; False if nothing is left of it."""
        if c.factor == best.factor:
            if list_prefix(best.axes, c.axes) != STRICT_PREFIX:
                return False
            c.size = list_size(c.axes) // list_size(best.axes)
            return True
        c.axes = _without(c.axes, best.axes)
        c.size = list_size(c.axes)
        if self.faults:
            return self.axes[c.factor] != c.axes
        return list_prefix(self.axes[c.factor], c.axes) == STRICT_PREFIX


def _moved_to_batch(
    rule: OpRule, states: list[TensorState], tensors: list[int], axes: list[Axes], replicated: Sequence[int]
) -> list[Axes]:
    """Factors that need replication lose their axes, which go to batching factors as far as they divide them."""
    axes = list(axes)

    def everywhere(f: int) -> bool:
        return all(states[t].axes[f] is not None for t in tensors)

    batching = [f for f, kind in enumerate(rule.types) if kind == FactorType.PASS_THROUGH and everywhere(f)]
    for f in replicated:
        free, axes[f] = axes[f], ()
        if not everywhere(f):
            continue
        for b in batching:
            while free and rule.sizes[b] % (list_size(axes[b]) * free[0].size) == 0:
                grown = list(axes[b])
                add_or_merge(grown, free[0])
                axes[b], free = tuple(grown), free[1:]
    return axes
