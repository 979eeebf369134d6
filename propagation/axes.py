"""Axis references, and arithmetic on them and on lists of them.

Every axis reference is a canonical triple (name, pre, size); the full axis is (name, 1, full size). In this form one
set of rules covers full axes and sub-axes. `end` is pre * size.

Algorithm: the axis algebra of Shardy (openxla/shardy, `dialect/sdy/ir/dialect.cc`), restated on triples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from .interning import Interned
from .interning import set_field as _set
from .sdy_text import axis_text

if TYPE_CHECKING:
    from .model import Mesh

__all__ = [
    "Axes",
    "AxisRef",
    "add_or_merge",
    "can_coexist",
    "contains",
    "difference",
    "is_prefix",
    "is_strict_prefix",
    "list_prefix",
    "list_size",
    "overlaps",
    "prefix_without",
    "suffix_without",
]


class AxisRef(Interned):
    """The part of mesh axis `name` of size `size` that has parts of product `pre` to its left.

    The full axis has `pre=1` and `size` equal to the axis size. Get full axes with `Mesh.axis`.
    """

    __slots__ = ("end", "name", "pre", "size")
    _fields = ("name", "pre", "size")
    _table: ClassVar[dict[tuple[str, int, int], AxisRef]]
    name: str
    pre: int
    size: int
    end: int  # pre * size: the `pre` of the next sub-axis to the right

    def __new__(cls, name: str, pre: int, size: int) -> AxisRef:
        key = (name, pre, size)
        self = cls._table.get(key)
        if self is None:
            self = object.__new__(cls)
            _set(self, "name", name)
            _set(self, "pre", pre)
            _set(self, "size", size)
            _set(self, "end", pre * size)
            self = cls._table.setdefault(key, self)
        return self

    def is_full(self, mesh: Mesh) -> bool:
        """Whether this is the whole axis of `mesh` rather than a sub-axis."""
        return self.pre == 1 and self.size == mesh.axis_size(self.name)

    def to_text(self, mesh: Mesh) -> str:
        """As it stands in a sharding over `mesh`: `"data"`, or a sub-axis `"data":(2)2`. Raises `UnknownAxisError`."""
        return axis_text(self.name) if self.is_full(mesh) else axis_text(self.name, self.pre, self.size)


Axes = tuple[AxisRef, ...]

NOT_PREFIX, STRICT_PREFIX, EQUAL = 0, 1, 2


def contains(a: AxisRef, b: AxisRef) -> bool:
    """Whether `b` lies within `a`."""
    return a.name == b.name and a.pre <= b.pre and a.end >= b.end


def is_prefix(a: AxisRef, b: AxisRef) -> bool:
    """Whether `a` is the major part of `b` (or all of it)."""
    return a.name == b.name and a.pre == b.pre and a.end <= b.end


def is_strict_prefix(a: AxisRef, b: AxisRef) -> bool:
    """Whether `a` is the major part of `b`, and not all of it."""
    return a is not b and is_prefix(a, b)


def overlaps(a: AxisRef, b: AxisRef) -> bool:
    """Whether the two share a part of an axis; an axis of size one overlaps itself."""
    return a is b or (a.name == b.name and a.pre < b.end and b.pre < a.end)


def can_coexist(a: AxisRef, b: AxisRef) -> bool:
    """Whether one reshape of the axis yields both parts (or pieces of which both are made)."""
    if a.name != b.name:
        return True
    low, high = sorted((a.pre, b.pre))
    low_end, high_end = sorted((a.end, b.end))
    if low_end > high:
        return low_end % high == 0 and high % low == 0 and high_end % low_end == 0
    return high % low_end == 0


def prefix_without(a: AxisRef, b: AxisRef) -> AxisRef | None:
    """The largest major part of `a` that does not overlap `b`; None if there is none."""
    if a.name != b.name:
        return a
    if not can_coexist(a, b):
        return None
    if not overlaps(a, b):
        return a
    if a.pre >= b.pre:
        return None
    return AxisRef(a.name, a.pre, b.pre // a.pre)


def suffix_without(a: AxisRef, b: AxisRef) -> AxisRef | None:
    """The largest minor part of `a` that does not overlap `b`; None if there is none."""
    if a.name != b.name:
        return a
    if not can_coexist(a, b):
        return None
    if not overlaps(a, b):
        return a
    if a.end <= b.end:
        return None
    return AxisRef(a.name, b.end, a.end // b.end)


def list_prefix(first: Sequence[AxisRef], second: Sequence[AxisRef]) -> int:
    """`EQUAL`, `STRICT_PREFIX` or `NOT_PREFIX`: how `first` relates to `second`. `["a":(1)2]` is a strict prefix of
    `["a"]`."""
    if first == second:
        return EQUAL
    n = len(first)
    if not n:
        return STRICT_PREFIX
    if n > len(second) or first[: n - 1] != second[: n - 1]:
        return NOT_PREFIX
    return STRICT_PREFIX if is_prefix(first[-1], second[n - 1]) else NOT_PREFIX


def add_or_merge(axes: list[AxisRef], axis: AxisRef) -> None:
    """Appends `axis` to `axes`, joining it with the last element if the two are adjacent parts of one axis."""
    if axes:
        last = axes[-1]
        if last.name == axis.name and last.end == axis.pre:
            axes[-1] = AxisRef(axis.name, last.pre, last.size * axis.size)
            return
    axes.append(axis)


def merged(axes: Iterable[AxisRef]) -> Axes:
    """`axes` with adjacent parts of one axis joined."""
    out: list[AxisRef] = []
    for axis in axes:
        add_or_merge(out, axis)
    return tuple(out)


def list_size(axes: Iterable[AxisRef]) -> int:
    """The product of the sizes."""
    size = 1
    for axis in axes:
        size *= axis.size
    return size


def difference(axes: Sequence[AxisRef], removed: Sequence[AxisRef]) -> Axes:
    """The parts of `axes` that overlap nothing in `removed`, in the order of `axes`."""
    out: list[AxisRef] = []
    for axis in axes:
        rest: AxisRef | None = axis
        while rest is not None:
            cut = min((b for b in removed if overlaps(rest, b)), key=lambda b: b.pre, default=None)
            if cut is None:
                out.append(rest)
                break
            before = prefix_without(rest, cut)
            if before is not None:
                out.append(before)
            rest = suffix_without(rest, cut)
    return tuple(out)
