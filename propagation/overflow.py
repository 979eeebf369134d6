"""Reshapes whose axes do not divide the factors: the axes are spread over the factors of both sides anew."""

from __future__ import annotations

from math import gcd

from .axes import Axes, add_or_merge, merged
from .model import AxisRef, DimSharding, Mesh, OpRule, TensorSharding
from .projection import TensorState, project

__all__ = ["overflow_alike", "spread_reshape"]


def spread_reshape(rule: OpRule, states: list[TensorState], mesh: Mesh) -> list[TensorState]:
    """New states of a reshape's operand and result, in which both have the same axes on each factor.

    All axes of the side that is split further are spread over the factors of both sides, first axis first; each factor
    takes what divides it. What both sides then have in common stays.
    """
    source = 1 if states[1].sharded_size() > states[0].sharded_size() else 0
    axes: list[AxisRef] = []
    for own, over in zip(states[source].axes, states[source].overflow):
        axes += (*(own or ()), *over)
    mappings = (rule.operands[0], rule.results[0])
    spread = [project(rule, m, _sharding(rule, m, axes, mesh), closed_if_missing=True) for m in mappings]
    owned = [{f for dim in mapping for f in dim} for mapping in mappings]
    for f in range(rule.num_factors):
        # A factor behind an overflow is not in the projection; nothing can be put on it.
        own = [state.axes[f] or () for state, factors in zip(spread, owned) if f in factors]
        common = own[0] if len(own) < 2 else _common_prefix(*own)
        for state, factors in zip(spread, owned):
            if f in factors:
                state.axes[f], state.closed[f], state.overflow[f] = common, True, ()
    return spread


def overflow_alike(states: list[TensorState]) -> bool:
    """Whether both sides have the same axes on each factor, dividing it or not."""
    first, second = ([(*(own or ()), *over) for own, over in zip(s.axes, s.overflow)] for s in states)
    return first == second


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


def _sharding(rule: OpRule, mapping, axes: list[AxisRef], mesh: Mesh) -> TensorSharding:
    """Gives the axes to the factors of one tensor, in order; from the first one that no factor divides further, they
    all go behind the last factor."""
    factors = [f for dim in mapping for f in dim]
    taken: dict[int, list[AxisRef]] = {f: [] for f in factors}
    left = {f: rule.sizes[f] for f in factors}
    todo = list(reversed(axes))
    while todo and factors:
        axis = todo.pop()
        taker = next((f for f in factors if gcd(left[f], axis.size) > 1), None)
        if taker is None:
            for rest in (axis, *reversed(todo)):
                add_or_merge(taken[factors[-1]], rest)
            break
        common = gcd(left[taker], axis.size)
        left[taker] //= common
        add_or_merge(taken[taker], AxisRef(axis.name, axis.pre, common))
        if common != axis.size:
            todo.append(AxisRef(axis.name, axis.pre * common, axis.size // common))
    dims = [DimSharding(merged(a for f in dim for a in taken[f])) for dim in mapping]
    return TensorSharding(mesh, dims)
