"""Arithmetic on axis references and axis lists.

Every axis reference is a canonical triple (name, pre, size); the full axis is (name, 1, full size). In this form one
set of rules covers full axes and sub-axes. `end` is pre * size.

Algorithm: the axis algebra of Shardy (openxla/shardy, `dialect/sdy/ir/dialect.cc`), restated on triples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .model import AxisRef

__all__ = [
    "Axes",
    "add_or_merge",
    "can_coexist",
    "common_prefix",
    "contains",
    "difference",
    "intersect",
    "is_prefix",
    "is_strict_prefix",
    "list_prefix",
    "list_size",
    "overlaps",
    "prefix_without",
    "suffix_without",
]

Axes = tuple[AxisRef, ...]

NOT_PREFIX, STRICT_PREFIX, EQUAL = 0, 1, 2


def contains(a: AxisRef, b: AxisRef) -> bool:
    """Whether `b` lies within `a`."""
    return a.name == b.name and a.pre <= b.pre and a.end >= b.end


def is_prefix(a: AxisRef, b: AxisRef) -> bool:
    """Whether `a` is the major part of `b` (or all of it)."""
    return a.name == b.name and a.pre == b.pre and a.end <= b.end


def is_strict_prefix(a: AxisRef, b: AxisRef) -> bool:
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


def intersect(a: AxisRef, b: AxisRef) -> AxisRef | None:
    """The part of the axis in both; None if they do not overlap."""
    if not overlaps(a, b):
        return None
    pre, end = max(a.pre, b.pre), min(a.end, b.end)
    return AxisRef(a.name, pre, end // pre)


def common_prefix(a: AxisRef, b: AxisRef) -> AxisRef | None:
    """The longer of the two if one is a prefix of the other, cut to the shorter; else None."""
    if is_prefix(a, b):
        return a
    return b if is_prefix(b, a) else None


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
