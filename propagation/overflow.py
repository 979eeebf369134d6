"""Reshapes whose axes do not divide the factors: the axes are spread over the factors of both sides anew."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from .axes import Axes, add_or_merge
from .model import AxisRef, DimFactors, Mesh, OpRule
from .projection import TensorState, back_project, project

__all__ = ["overflow_alike", "spread_reshape"]


def spread_reshape(rule: OpRule, states: list[TensorState], mesh: Mesh) -> list[TensorState]:
    """New states of a reshape's operand and result, in which both have the same axes on each factor.

    All axes of the side that is split further are spread over the factors of both sides, first axis first; each factor
    takes what divides it. What both sides then have in common stays, and so does what is open.
    """
    source = 1 if states[1].sharded_size() > states[0].sharded_size() else 0
    axes: list[AxisRef] = []
    for along, over in zip(states[source].axes, states[source].overflow):
        axes += (*(along or ()), *over)
    mappings = (rule.operands[0], rule.results[0])
    # Written as shardings and read again, which drops what stands behind a factor that is not fully split.
    written = [back_project(rule, m, _spread(rule, m, s, axes), mesh) for m, s in zip(mappings, states)]
    spread = [project(rule, m, s) for m, s in zip(mappings, written)]
    for f in range(rule.num_factors):
        common: Axes | None = None
        for state in spread:
            own = state.axes[f]
            if own is not None:
                common = own if common is None else _common_prefix(common, own)
        for state in spread:
            if state.axes[f] is not None:
                state.axes[f], state.overflow[f] = common, ()
    for state, old in zip(spread, states):
        state.closed = old.closed
    return spread


def overflow_alike(rule: OpRule, states: list[TensorState], shapes: list[tuple[int, ...]]) -> bool:
    """Whether operand and result of a reshape, of `shapes`, give each device the same run of elements in row-major
    order, whether or not the axes divide the factors."""
    mappings = (rule.operands[0], rule.results[0])
    first, second = (_placed(m, state, shape) for m, state, shape in zip(mappings, states, shapes))
    return first == second


@dataclass(slots=True)
class _Placed:
    """An axis that splits what the `start` parts before it leave; `factor` counts along the dimensions."""

    start: int
    axis: AxisRef
    dim: int
    factor: int
    overflows: bool

    def continues_with(self, other: _Placed) -> bool:
        """Whether the two are parts of one axis without a gap. Across dimensions, what overflows is not continued, and
        it only continues the factor right before it."""
        if self.axis.name != other.axis.name or self.axis.end != other.axis.pre:
            return False
        if self.start * self.axis.size != other.start:
            return False
        apart = self.overflows or (other.overflows and other.factor != self.factor + 1)
        return self.dim == other.dim or not apart


def _placed(mapping: DimFactors, state: TensorState, shape: tuple[int, ...]) -> list[tuple[int, AxisRef]]:
    """The axes of one side, each with the number of parts that its place in the row-major order has before it."""
    out: list[_Placed] = []
    before, number = 1, 0
    for dim, (factors, size) in enumerate(zip(mapping, shape)):
        start = before
        for f in factors:
            own = state.axes[f] or ()
            for i, axis in enumerate((*own, *state.overflow[f])):
                new = _Placed(start, axis, dim, number, i >= len(own))
                if out and out[-1].continues_with(new):
                    last = out[-1]
                    new.start, new.axis = last.start, AxisRef(axis.name, last.axis.pre, last.axis.size * axis.size)
                    out.pop()
                out.append(new)
                start *= axis.size
            number += 1
        before *= size
    return [(p.start, p.axis) for p in out]


def _common_prefix(a: Axes, b: Axes) -> Axes:
    out = []
    for x, y in zip(a, b):
        if x is y:
            out.append(x)
            continue
        if x.name == y.name and x.pre == y.pre:
            out.append(min(x, y, key=lambda axis: axis.size))
        break
    return tuple(out)


def _spread(rule: OpRule, mapping: DimFactors, state: TensorState, axes: list[AxisRef]) -> TensorState:
    """The state of one tensor in which the factors that `state` has take the axes in order; from the first one that no
    factor divides further, they all overflow from the last factor."""
    taken: dict[int, list[AxisRef]] = {f: [] for dim in mapping for f in dim if state.axes[f] is not None}
    left = {f: rule.sizes[f] for f in taken}
    overflow: dict[int, Axes] = {}
    todo = list(reversed(axes))
    while todo and taken:
        axis = todo.pop()
        taker = next((f for f in taken if gcd(left[f], axis.size) > 1), None)
        if taker is None:
            last = next(reversed(taken))
            rest = (axis, *reversed(todo))
            if any(dim[-1:] == (last,) for dim in mapping):
                for axis in rest:
                    add_or_merge(taken[last], axis)
            else:
                overflow[last] = rest
            break
        common = gcd(left[taker], axis.size)
        left[taker] //= common
        add_or_merge(taken[taker], AxisRef(axis.name, axis.pre, common))
        if common != axis.size:
            todo.append(AxisRef(axis.name, axis.pre * common, axis.size // common))
    out = TensorState(rule.num_factors)
    for f, own in taken.items():
        out.axes[f], out.overflow[f] = tuple(own), overflow.get(f, ())
    return out
