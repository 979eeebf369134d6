"""Reshapes whose axes do not divide the factors: the axes are spread over the factors of both sides anew."""

from __future__ import annotations

from math import gcd

from .axes import Axes, add_or_merge
from .model import AxisRef, Mesh, OpRule
from .projection import TensorState, back_project, project

__all__ = ["overflow_alike", "spread_reshape"]


def spread_reshape(rule: OpRule, states: list[TensorState], mesh: Mesh) -> list[TensorState]:
    """New states of a reshape's operand and result, in which both have the same axes on each factor.

    All axes of the side that is split further are spread over the factors of both sides, first axis first; each factor
    takes what divides it. What both sides then have in common stays, and so does what is open.
    """
    source = 1 if states[1].sharded_size() > states[0].sharded_size() else 0
    axes: list[AxisRef] = []
    for own, over in zip(states[source].axes, states[source].overflow):
        axes += (*(own or ()), *over)
    mappings = (rule.operands[0], rule.results[0])
    # Written as shardings and read again, which drops what stands behind a factor that is not fully split.
    written = [back_project(rule, m, _spread(rule, m, s, axes), mesh) for m, s in zip(mappings, states)]
    spread = [project(rule, m, s) for m, s in zip(mappings, written)]
    for f in range(rule.num_factors):
        sides = [state for state in spread if state.axes[f] is not None]
        own = [state.axes[f] for state in sides]
        common = own[0] if len(own) == 1 else _common_prefix(*own) if own else ()
        for state in sides:
            state.axes[f], state.overflow[f] = common, ()
    for state, old in zip(spread, states):
        state.closed = old.closed
    return spread


def overflow_alike(states: list[TensorState]) -> bool:
    """Whether both sides have the same axes on each factor, dividing it or not. Parts of one axis that follow each
    other count for the factor of the first."""
    first, second = map(_joined, states)
    return first == second


def _joined(state: TensorState) -> list[tuple[int, list[AxisRef]]]:
    out: list[tuple[int, list[AxisRef]]] = []
    for f, (own, over) in enumerate(zip(state.axes, state.overflow)):
        for axis in (*(own or ()), *over):
            last = out[-1][1][-1] if out else None
            if last is not None and last.name == axis.name and last.end == axis.pre:
                add_or_merge(out[-1][1], axis)
            elif out and out[-1][0] == f:
                out[-1][1].append(axis)
            else:
                out.append((f, [axis]))
    return out


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


def _spread(rule: OpRule, mapping, state: TensorState, axes: list[AxisRef]) -> TensorState:
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
