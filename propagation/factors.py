"""The two factor-propagation strategies: how axes spread from one tensor of an operation to the others.

`basic` extends a factor only where no tensor conflicts. `aggressive` (the default) first finds, per factor, the axes
that it could have, and then resolves conflicts tensor by tensor, the largest source tensor first. Both have the
signature

    strategy(rule, sizes, directions, operands, results, conservative, mesh, watch) -> list of changed tensors

where operands and results are lists of `TensorState`, updated in place, `sizes` the element count of each tensor in
factor space (operands then results), `directions` one `Direction` per factor, and `watch`, if not None, is called
with (factor, wanted axes, tensor, granted axes, reason) when a tensor gets less than it could have.

Algorithm: openxla/shardy, `transforms/propagation/{basic,aggressive}_factor_propagation.cc`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd
from typing import TypeAlias

from .axes import (
    NOT_PREFIX,
    STRICT_PREFIX,
    Axes,
    AxisRef,
    contains,
    is_prefix,
    is_strict_prefix,
    list_prefix,
    list_size,
    prefix_without,
)
from .model import Mesh, OpRule
from .projection import TensorState

__all__ = ["BACKWARD", "BOTH", "FORWARD", "NONE", "STRATEGIES", "aggressive", "basic"]

# Why a tensor takes less than it could have.
CLOSED = "the dimension is closed"
USED_ELSEWHERE = "another dimension of this tensor uses the axis"
LIMITED = "the result of the pointwise operation has no more axes there"

# Directions of propagation. Their numeric order is part of the algorithm (a union takes the larger).
NONE, FORWARD, BACKWARD, BOTH = 0, 1, 2, 3

# Called with a factor, the axes that it could have, the number of a tensor, the axes that this got, and why not more.
Watch: TypeAlias = Callable[[int, Axes, int, Axes, str], None]
States: TypeAlias = Sequence[TensorState]
Strategy: TypeAlias = Callable[
    [OpRule, Sequence[int], Sequence[int], States, States, bool, Mesh, Watch | None], list[int]
]


def aggressive(
    rule: OpRule, sizes: Sequence[int], directions: Sequence[int], operands: States, results: States,
    conservative: bool, mesh: Mesh, watch: Watch | None = None,
) -> list[int]:  # fmt: skip
    """Resolves conflicts. See the module's text for the parameters."""
    per = [major_axes(f, d, operands, results) for f, d in enumerate(directions)]
    if not any(per):
        return []
    order = _factor_order(rule, sizes, per, operands, results)
    changed = []
    count = len(operands)
    for i, state in enumerate(results):
        if _expand_tensor(rule, per, order, state, (), conservative, mesh, watch, count + i):
            changed.append(count + i)
    limits: States = results if rule.elementwise else ()
    for i, state in enumerate(operands):
        if _expand_tensor(rule, per, order, state, limits, conservative, mesh, watch, i):
            changed.append(i)
    changed.sort()
    return changed


def _factor_order(rule: OpRule, sizes: Sequence[int], per: list[Axes], operands: States, results: States) -> list[int]:
    """Factors in the order in which they may claim axes: from the largest source tensor down."""
    tensors = [*operands, *results]
    keys = []
    for f, axes in enumerate(per):
        if not axes:
            continue
        best_size, best_index = -1, -1
        for t, state in enumerate(tensors):
            own = state.axes[f]
            if own is None or sizes[t] <= best_size or list_prefix(axes, own) == NOT_PREFIX:
                continue
            best_size, best_index = sizes[t], t
        keys.append((-best_size, -list_size(axes) if rule.elementwise else 0, best_index, f))
    return [key[3] for key in sorted(keys)]


def _expand_tensor(
    rule: OpRule, per: list[Axes], order: list[int], state: TensorState, limits: States, conservative: bool,
    mesh: Mesh, watch: Watch | None, tensor: int,
) -> bool:  # fmt: skip
    """Gives one tensor what it can take of `per`, in `order`; True if it got anything."""
    grew = False
    for f in order:
        own = state.axes[f]
        if own is None:
            continue
        wanted = per[f]
        new = _truncate(wanted, lambda a, prev: _within(a, state, f, prev, rule.sizes[f]), conservative, mesh)
        if list_prefix(own, new) != STRICT_PREFIX:
            if watch is not None and list_prefix(own, wanted) == STRICT_PREFIX:
                watch(f, wanted, tensor, own, _why_not_within(state, f))
            continue
        inside = new
        new = _truncate(new, lambda a, _: _across(a, state, f), conservative, mesh)
        free = new
        if new:
            for result in limits:
                other = result.axes[f]
                if other is not None and list_prefix(other, new) == STRICT_PREFIX:
                    new = other
        if watch is not None and new != wanted:
            why = _why_not_within(state, f) if inside != wanted else USED_ELSEWHERE if free != inside else LIMITED
            watch(f, wanted, tensor, new, why)
        if new and list_prefix(own, new) == STRICT_PREFIX:
            state.axes[f] = new
            grew = True
    return grew


def _why_not_within(state: TensorState, f: int) -> str:
    if state.closed[f]:
        return CLOSED
    if state.overflow[f]:
        return "an axis on the dimension does not divide its factor"
    if not state.minor_most[f]:
        return "the axis does not divide the factor, which has another to its right"
    return "the axis is reserved as replicated or unreduced"


def basic(
    rule: OpRule, sizes: Sequence[int], directions: Sequence[int], operands: States, results: States,
    conservative: bool, mesh: Mesh, watch: Watch | None = None,
) -> list[int]:  # fmt: skip
    """Extends a factor only by what every tensor can take. See the module's text for the parameters."""
    tensors = [*operands, *results]
    changed = set()
    for f, direction in enumerate(directions):
        axes = major_axes(f, direction, operands, results)
        if not axes:
            continue
        size = rule.sizes[f]

        def allowed(axis: AxisRef, prev: int, f: int = f, size: int = size) -> AxisRef | None:
            left: AxisRef | None = axis
            for state in tensors:
                left = _across(left, state, f)
                if left is not None and state.axes[f] is not None:
                    left = _within(left, state, f, prev, size)
                if left is None:
                    return None
            return left

        new = _truncate(axes, allowed, conservative, mesh)
        if watch is not None and new != axes:
            watch(f, axes, -1, new, "a tensor of the operation cannot take the axis")
        for t, state in enumerate(tensors):
            own = state.axes[f]
            if own is not None and list_prefix(own, new) == STRICT_PREFIX:
                state.axes[f] = new
                changed.add(t)
    return sorted(changed)


def major_axes(f: int, direction: int, operands: States, results: States) -> Axes:
    """The axes that factor `f` could have everywhere, by what its tensors have now and the direction."""
    if direction == NONE:
        return ()
    first, second = (results, operands) if direction == BACKWARD else (operands, results)
    axes: Axes = ()
    expand = True
    for state in first:
        own = state.axes[f]
        if own is not None:
            axes, expand = _compatible(axes, own, expand)
    if direction != BOTH:
        expand = False
    for state in second:
        own = state.axes[f]
        if own is not None:
            axes, expand = _compatible(axes, own, expand)
    return axes


def _compatible(old: Axes, new: Axes, expand: bool) -> tuple[Axes, bool]:
    """The longest axes compatible with both; False once they diverge."""
    if old == new or not new:
        return old, expand
    out: list[AxisRef] = []
    common = min(len(old), len(new))
    for i in range(common):
        a, b = old[i], new[i]
        if a is b:
            out.append(a)
            continue
        if is_strict_prefix(b, a):
            if len(new) > i + 1:
                return (*out, b), False
            out.append(a)
        elif is_strict_prefix(a, b):
            if not expand or len(old) > i + 1:
                return (*out, a), False
            out.append(b)
        else:
            return tuple(out), False
    if len(old) > common:
        out.extend(old[common:])
    elif expand:
        out.extend(new[common:])
    return tuple(out), expand


def _truncate(axes: Axes, allowed: Callable[[AxisRef, int], AxisRef | None], conservative: bool, mesh: Mesh) -> Axes:
    """The longest prefix of `axes` that `allowed(axis, size before it)` grants; the last axis may be cut."""
    prev = 1
    for i, axis in enumerate(axes):
        new = allowed(axis, prev)
        if new is None or (conservative and not new.is_full(mesh)):
            return axes[:i]
        if new is not axis:
            return (*axes[:i], new)
        prev *= new.size
    return axes


def _across(axis: AxisRef | None, state: TensorState, f: int) -> AxisRef | None:
    """The major part of `axis` that no other factor of the tensor uses."""
    if axis is None:
        return None
    name = axis.name
    for g, own in enumerate(state.axes):
        if g == f or own is None:
            continue
        for other in state.overflow[g]:
            if other.name == name:
                axis = prefix_without(axis, other)
                if axis is None:
                    return None
        for other in own:
            if other.name == name:
                axis = prefix_without(axis, other)
                if axis is None:
                    return None
    return axis


def _within(axis: AxisRef, state: TensorState, f: int, prev: int, size: int) -> AxisRef | None:
    """The major part of `axis` that factor `f` of the tensor can take, `prev` being the size split before it."""
    name = axis.name
    for reserved in (state.replicated, state.unreduced):
        for other in reserved:
            if other.name == name:
                left = prefix_without(axis, other)
                if left is None:
                    return None
                axis = left
    own = state.axes[f] or ()
    for other in own:
        if contains(other, axis):
            return axis
    if not state.closed[f] and not state.overflow[f]:
        if state.minor_most[f]:
            return axis
        if size % prev == 0:
            common = gcd(size // prev, axis.size)
            if common == axis.size:
                return axis
            if common > 1:
                return AxisRef(name, axis.pre, common)
    if own and is_prefix(own[-1], axis):
        return own[-1]
    return None


STRATEGIES: dict[str, tuple[Strategy, ...]] = {
    "basic": (basic,),
    "aggressive": (aggressive,),
    "basic-then-aggressive": (basic, aggressive),
}
