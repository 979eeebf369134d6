"""From dimensions to factors and back: the shardings around an operation seen through its rule.

A dimension made of factors [i, j] (major to minor) and split by axes (a, b) gives its axes to i first, as far as they
divide i's size, and the rest to j. The forms here are plain lists, because the strategies update them; `project_rule`
gives the immutable `Projection` for other uses.

Algorithm: openxla/shardy, `transforms/propagation/sharding_projection.cc`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from .axes import Axes, add_or_merge, list_size
from .model import (
    AxisRef,
    DimFactors,
    DimSharding,
    FactorSharding,
    Mesh,
    OpRule,
    Projection,
    TensorFactors,
    TensorSharding,
)

__all__ = ["TensorState", "back_project", "project", "project_rule"]


class TensorState:
    """One tensor in factor space, indexed by factor. `axes[f]` is None where the tensor does not have factor f.

    `overflow[f]` holds axes that do not divide a non-minor factor; the factors behind it are then closed or absent.
    """

    __slots__ = ("axes", "closed", "minor_most", "overflow", "reduction", "replicated", "unreduced")
    axes: list[Axes | None]
    closed: list[bool]
    minor_most: list[bool]
    overflow: list[Axes]
    replicated: Axes
    unreduced: Axes
    reduction: str

    def __init__(self, count: int):
        self.axes = [None] * count
        self.closed = [False] * count
        self.minor_most = [False] * count
        self.overflow = [()] * count
        self.replicated = ()
        self.unreduced = ()
        self.reduction = "sum"

    def sharded_size(self) -> int:
        size = 1
        for axes, over in zip(self.axes, self.overflow):
            if axes:
                size *= list_size(axes)
            if over:
                size *= list_size(over)
        return size


def project(
    rule: OpRule, mapping: DimFactors, sharding: TensorSharding | None, closed_if_missing: bool = False
) -> TensorState:
    """The factor view of one tensor, whose dimensions map to factors by `mapping` (`rule.operands[i]`)."""
    state = TensorState(len(rule.sizes))
    if sharding is None:
        for factors in mapping:
            for f in factors:
                state.axes[f], state.closed[f] = (), closed_if_missing
            if factors:
                state.minor_most[factors[-1]] = True
        return state
    state.replicated, state.unreduced, state.reduction = sharding.replicated, sharding.unreduced, sharding.reduction
    for factors, dim in zip(mapping, sharding.dims):
        if len(factors) == 1:
            f = factors[0]
            state.axes[f], state.closed[f], state.minor_most[f] = dim.axes, not dim.is_open, True
        else:
            _project_dim(rule.sizes, factors, dim, state)
    return state


def _project_dim(sizes: tuple[int, ...], factors: tuple[int, ...], dim: DimSharding, state: TensorState) -> None:
    remaining = list(reversed(dim.axes))
    closed = not dim.is_open
    for position, f in enumerate(factors):
        taken: list[AxisRef] = []
        state.closed[f] = closed
        if position == len(factors) - 1:
            for axis in reversed(remaining):
                add_or_merge(taken, axis)
            state.axes[f], state.minor_most[f] = tuple(taken), True
            return
        rest = sizes[f]
        while remaining:
            axis = remaining[-1]
            common = gcd(rest, axis.size)
            if axis.size != 1 and common == 1:
                break
            remaining.pop()
            if axis.size > common:
                taken.append(AxisRef(axis.name, axis.pre, common))
                remaining.append(AxisRef(axis.name, axis.pre * common, axis.size // common))
            else:
                taken.append(axis)
            rest //= common
        state.axes[f] = tuple(taken)
        if rest > 1 and remaining:
            state.overflow[f] = tuple(reversed(remaining))
            following = factors[position + 1]
            state.axes[following], state.closed[following] = (), True
            state.minor_most[following] = position + 2 == len(factors)
            return


def back_project(rule: OpRule, mapping: DimFactors, state: TensorState, mesh: Mesh) -> TensorSharding:
    """The tensor sharding that `state` stands for. Factors behind one that is not fully split cannot be written
    (that would be a strided view) and are dropped."""
    dims = []
    sizes = rule.sizes
    for factors in mapping:
        if len(factors) == 1:
            f = factors[0]
            dims.append(DimSharding(state.axes[f] or (), not state.closed[f]))
            continue
        is_closed = False
        axes: list[AxisRef] = []
        for f in factors:
            own = state.axes[f]
            if own is None:
                break
            is_closed |= state.closed[f]
            for i, axis in enumerate(own):
                if i:
                    axes.append(axis)
                else:
                    add_or_merge(axes, axis)
            if state.overflow[f]:
                for axis in state.overflow[f]:
                    add_or_merge(axes, axis)
                break
            if list_size(own) < sizes[f]:
                break
        dims.append(DimSharding(axes, not is_closed))
    return TensorSharding(mesh, dims, state.replicated, state.unreduced, state.reduction)


def project_rule(
    rule: OpRule,
    operands: Sequence[TensorSharding | None],
    results: Sequence[TensorSharding | None],
    closed_if_missing: bool = False,
) -> Projection:
    """The `Projection` of an operation's operand and result shardings (None: not annotated)."""

    def view(mapping: DimFactors, sharding: TensorSharding | None) -> TensorFactors:
        s = project(rule, mapping, sharding, closed_if_missing)
        factors = tuple(
            None if axes is None else FactorSharding(axes, s.closed[f], s.minor_most[f], s.overflow[f])
            for f, axes in enumerate(s.axes)
        )
        return TensorFactors(factors, s.replicated, s.unreduced)

    return Projection(
        [view(m, s) for m, s in zip(rule.operands, operands)], [view(m, s) for m, s in zip(rule.results, results)]
    )
