"""What collectives share: the axes that they name, arguments as they take them, and mapped dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from meshrt import errors, tree_util
from meshrt.config import settings
from meshrt.core.axes import NamedAxis, axis_names, find_axes, manual_mesh
from meshrt.core.basic.shapes import broadcast_in_dim, reshape
from meshrt.core.basic.varying import cast_needed, vary
from meshrt.core.explicit import reduced_of, unreduced_of
from meshrt.core.jaxpr import Eqn
from meshrt.core.source import capture
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.types import aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.lowering.groups import IndexGroups
from meshrt.primitives.concatenate import concatenate
from meshrt.primitives.gather import gather
from meshrt.primitives.gather_scatter import GatherDimensionNumbers
from meshrt.primitives.slice import slice_in_dim
from meshrt.transforms.tools import hoist_consts

# Helpers of the family: `meshrt.lax` publishes what `__all__` of these modules lists, so nothing here.
__all__: list[str] = []

Names = tuple[Hashable, ...]

# Rows that are taken from so many places at most are slices put together; from more, they are gathered.
_MOST_SLICES = 8


class Call:
    """A call of a collective: its name, for messages, the axes that it names and, if given, the groups along them."""

    __slots__ = ("axes", "caller", "groups", "names")

    def __init__(self, caller: str, axis_name: Any, groups: Any = None):
        self.caller = caller
        self.names: Names = axis_names(axis_name)
        self.axes: tuple[NamedAxis, ...] = find_axes(self.names, caller)
        self.groups: IndexGroups | None = canonical_groups(caller, groups, self.full_size)

    @property
    def full_size(self) -> int:
        """How many values meet, without groups."""
        return math.prod(a.size for a in self.axes)

    @property
    def size(self) -> int:
        """How many values meet: in the first group, where there are groups."""
        return self.full_size if self.groups is None else len(self.groups[0])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of each named axis."""
        return tuple(a.size for a in self.axes)

    @property
    def is_checked(self) -> bool:
        """Whether a named axis is one over which types say what varies."""
        return any(a.is_checked for a in self.axes)

    @property
    def checked(self) -> Names:
        """The named axes over which types say what varies."""
        return tuple(a.name for a in self.axes if a.is_checked)

    @property
    def unchecked(self) -> Names:
        """The other ones: mapped dimensions, and Manual axes of regions that check nothing."""
        return tuple(a.name for a in self.axes if not a.is_checked)

    @property
    def mesh(self) -> Any:
        """The mesh of the region whose axes are named, as it is seen inside."""
        return manual_mesh()

    def state(self, x: Any) -> str:
        """What `x` is along the named axes: "varying", "unreduced" (a partial sum), "reduced" (copies of which each has
        a cotangent) or "invarying". ArgumentValueError where it is not the same along all over which types say it.
        """
        aval = aval_of(x)
        held = {"varying": aval.vma, "unreduced": unreduced_of(aval), "reduced": reduced_of(aval)}
        states = {next((s for s, axes in held.items() if name in axes), "invarying") for name in self.checked}
        if len(states) > 1:
            raise errors.ArgumentValueError(
                f"{self.caller} can only accept axis_name which is in one state, varying, unreduced, reduced or not, "
                f"but {aval.short()} is {' and '.join(sorted(states))} along {self.checked} at {capture()}; name the "
                "axes of one state only, or first make it vary along all with "
                "meshrt.lax.pcast(x, axis_name, to='varying')"
            )
        return states.pop() if states else "invarying"

    def is_partial(self, x: Any) -> bool:
        """Whether `x` is a partial sum along the named axes. ArgumentValueError where it is not in one state there."""
        partial = self.state(x) == "unreduced"
        if partial and (self.unchecked or self.groups is not None):
            raise errors.ArgumentValueError(
                f"{self.caller} takes no axis_index_groups and no mapped axes together with the axes of partial sums; "
                f"but {aval_of(x).short()} is unreduced over {self.checked} of {self.names}: use one call for these"
            )
        return partial

    def vary(self, x: Any) -> Any:
        """`x` as a value that varies over the named axes, where types say so.

        ArgumentValueError where it does not yet, and the setting `auto_pcast` is off.
        """
        kind = aval_of(x)
        if not settings.auto_pcast and not kind.vma.issuperset(self.checked):
            raise cast_needed(self.caller, [kind], self.checked)
        return vary(x, self.checked)

    def one_size(self) -> int:
        """`size`, for collectives that need groups of one size."""
        if self.groups is not None and len({len(g) for g in self.groups}) > 1:
            raise errors.ArgumentValueError(
                f"axis_index_groups of {self.caller} must all be the same size, but got {self.groups}"
            )
        return self.size


def canonical_groups(caller: str, groups: Any, size: int) -> IndexGroups | None:
    """`axis_index_groups` as tuples of ints; ArgumentValueError unless they hold each index once."""
    if groups is None:
        return None
    found = tuple(tuple(int(i) for i in group) for group in groups)
    if sorted(i for group in found for i in group) != list(range(size)):
        raise errors.ArgumentValueError(
            f"axis_index_groups must cover all indices exactly once, but those of {caller} are {found} for axes of "
            f"{size} places: give each index from 0 to {size - 1} to one group"
        )
    return found


def lower_as(ctx: LoweringContext, fun: Callable[..., Any], operands: Sequence[Any], eqn: Eqn) -> Any:
    """Writes the operations that compute `fun` in place of an equation with one result."""
    closed = hoist_consts(trace_to_jaxpr(lambda *xs: [fun(*xs)], [v.aval for v in eqn.invars], eqn.primitive.name))
    consts = [ctx.array(np.asarray(c)) for c in closed.consts]
    return ctx.jaxpr(closed.jaxpr, [*consts, *operands])[0]


def over_leaves(x: Any, apply: Callable[[Any], Any]) -> Any:
    """`apply` to each array of a pytree."""
    return tree_util.tree_map(apply, x)


# ---------------------------------------------------------------------------------------------------------------------
# Mapped dimensions


def without(names: Sequence[Hashable], name: Hashable) -> Names:
    return tuple(n for n in names if n != name)


def refuse_groups(caller: str, groups: IndexGroups | None, names: Sequence[Hashable]) -> None:
    """Raises where a mapped dimension is one of several axes that groups go across."""
    if groups is not None and len(names) > 1:
        raise errors.UnsupportedError(
            f"axis_index_groups of {caller} over {tuple(names)}, of which some are mapped by vmap, are not "
            "implemented; use them over one axis, or over Manual axes only"
        )


def taken(x: Any, rows: Sequence[int | None], dim: int) -> Any:
    """`x` at `rows` along `dim`; zeros for None. Neighbouring rows stay together: a rotation is two slices."""
    aval = aval_of(x)
    runs: list[list[int | None]] = []
    for row in rows:
        last = runs[-1][-1] if runs else None
        if runs and ((row is None and last is None) or (row is not None and last is not None and row == last + 1)):
            runs[-1].append(row)
        else:
            runs.append([row])
    if len(runs) > _MOST_SLICES:
        return _gathered(x, rows, dim)
    parts = []
    for run in runs:
        first = run[0]
        if first is None:
            shape = (*aval.shape[:dim], len(run), *aval.shape[dim + 1 :])
            parts.append(broadcast_in_dim(np.zeros((), aval.dtype)[()], shape, ()))
        else:
            parts.append(slice_in_dim(x, first, first + len(run), 1, dim))
    return parts[0] if len(parts) == 1 else concatenate(parts, dim)


def _gathered(x: Any, rows: Sequence[int | None], dim: int) -> Any:
    aval = aval_of(x)
    outside = aval.shape[dim]
    indices = np.array([[outside if r is None else r] for r in rows], np.int32)
    offset = tuple(i for i in range(aval.ndim) if i != dim)
    sizes = (*aval.shape[:dim], 1, *aval.shape[dim + 1 :])
    numbers = GatherDimensionNumbers(offset, (dim,), (dim,))
    return gather(x, indices, numbers, sizes, mode="fill", fill_value=0)


def spread_out(x: Any, dim: int | None, size: int) -> tuple[Any, int]:
    """`x` with a mapped dimension, broadcast if it has none."""
    if dim is not None:
        return x, dim
    aval = aval_of(x)
    return broadcast_in_dim(x, (size, *aval.shape), range(1, aval.ndim + 1)), 0


def split_dim(x: Any, dim: int, sizes: Sequence[int]) -> Any:
    """`x` with dimension `dim` written as several of `sizes`, major to minor."""
    shape = aval_of(x).shape
    return reshape(x, (*shape[:dim], *sizes, *shape[dim + 1 :]))


def merge_dims(x: Any, first: int, count: int) -> Any:
    """`x` with `count` dimensions from `first` on written as one."""
    shape = aval_of(x).shape
    return reshape(x, (*shape[:first], math.prod(shape[first : first + count]), *shape[first + count :]))
