"""PartitionSpec: which mesh axes each dimension of a value is split over."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from typing import Any

from meshrt import errors

__all__ = ["UNCONSTRAINED", "P", "PartitionSpec"]


class _Unconstrained:
    """Leaves a dimension to propagation; the only value of its type."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNCONSTRAINED"

    def __reduce__(self) -> str:
        return "UNCONSTRAINED"


UNCONSTRAINED = _Unconstrained()


def _canonical(entry: Any) -> Any:
    """None, UNCONSTRAINED, an axis name, or a tuple of at least two axis names."""
    if entry is None or entry is UNCONSTRAINED or isinstance(entry, str):
        return entry
    if isinstance(entry, (tuple, list)):
        for axis in entry:
            if axis is None or axis is UNCONSTRAINED or isinstance(axis, (tuple, list, set, frozenset)):
                raise errors.ShardingTypeError(
                    f"an entry of a PartitionSpec is an axis name or a flat tuple of axis names. Got {entry!r}"
                )
        return None if not entry else entry[0] if len(entry) == 1 else tuple(entry)
    try:
        hash(entry)
    except TypeError:
        raise errors.ShardingTypeError(
            f"an entry of a PartitionSpec is None, an axis name or a tuple of axis names. Got {entry!r}"
        ) from None
    return entry


def _axis_set(axes: Any, what: str, spec_axes: list[Hashable]) -> frozenset[Hashable]:
    if not isinstance(axes, (set, frozenset)):
        raise errors.ShardingTypeError(f"`{what}` of a PartitionSpec must be a set of axis names. Got {axes!r}")
    if None in axes:
        raise errors.ShardingError(f"`{what}` of a PartitionSpec cannot contain None. Got {set(axes)}")
    both = sorted(map(str, axes & set(spec_axes)))
    if both:
        raise errors.DuplicateAxisError(
            f"axes {', '.join(both)} stand both in the partitions and in `{what}` of a PartitionSpec; use each once"
        )
    return frozenset(axes)


def axes_of(entry: Any) -> tuple[Hashable, ...]:
    """The axes of one entry, major first."""
    if entry is None or entry is UNCONSTRAINED:
        return ()
    return entry if isinstance(entry, tuple) else (entry,)


class PartitionSpec:
    """One entry per dimension: None (not split), an axis name, a tuple of names (major first) or `P.UNCONSTRAINED`.

    Missing trailing entries mean None. Interned, so equality is identity; not a tuple.

    Args:
      partitions: the entries.
      unreduced: axes over which each device holds only a partial sum.
      reduced: axes over which the value is replicated and its cotangent is unreduced.
    """

    __slots__ = ("axes", "partitions", "reduced", "unreduced")

    UNCONSTRAINED = UNCONSTRAINED
    _interned: dict[tuple[Any, ...], PartitionSpec] = {}
    _lock = threading.Lock()

    partitions: tuple[Any, ...]
    unreduced: frozenset[Hashable]
    reduced: frozenset[Hashable]
    # Every axis that the partitions name, in order, duplicates kept.
    axes: tuple[Hashable, ...]

    def __init_subclass__(cls, **_: Any) -> None:
        raise TypeError("Subclassing `meshrt.sharding.PartitionSpec` is prohibited.")

    def __new__(cls, *partitions: Any, unreduced: Any = frozenset(), reduced: Any = frozenset()) -> PartitionSpec:
        if not unreduced and not reduced:
            try:
                return cls._interned[partitions]
            except (KeyError, TypeError):
                pass
        entries = tuple(_canonical(p) for p in partitions)
        axes = [a for e in entries for a in axes_of(e)]
        unreduced = _axis_set(unreduced, "unreduced", axes)
        reduced = _axis_set(reduced, "reduced", axes + list(unreduced))
        key = (entries, unreduced, reduced) if unreduced or reduced else entries
        with cls._lock:
            found = cls._interned.get(key)
            if found is None:
                found = object.__new__(cls)
                found.partitions, found.unreduced, found.reduced, found.axes = (
                    entries,
                    unreduced,
                    reduced,
                    tuple(axes),
                )
                cls._interned[key] = found
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.partitions, self.unreduced, self.reduced))

    def update(self, **changes: Any) -> PartitionSpec:
        """A spec with `partitions`, `unreduced` or `reduced` replaced."""
        unknown = set(changes) - {"partitions", "unreduced", "reduced"}
        if unknown:
            raise errors.ShardingTypeError(f"PartitionSpec.update takes partitions, unreduced, reduced. Got {unknown}")
        return _rebuild(
            changes.get("partitions", self.partitions),
            changes.get("unreduced", self.unreduced),
            changes.get("reduced", self.reduced),
        )

    def _sequence(self, what: str) -> tuple[Any, ...]:
        if self.unreduced or self.reduced:
            raise errors.ShardingError(
                f"{what} is dangerous when a PartitionSpec has a non-empty unreduced or reduced set, which it would "
                f"drop: {self!r}. Use spec.partitions."
            )
        return self.partitions

    def __len__(self) -> int:
        return len(self.partitions)

    def __bool__(self) -> bool:
        return bool(self.partitions or self.unreduced or self.reduced)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._sequence("iteration"))

    def __getitem__(self, index: Any) -> Any:
        return self._sequence("indexing")[index]

    def __contains__(self, entry: Any) -> bool:
        return entry in self.partitions

    def index(self, entry: Any) -> int:
        """First dimension whose entry this is; ValueError if there is none."""
        return self._sequence("index").index(_canonical(entry))

    def count(self, entry: Any) -> int:
        """How many dimensions have this entry."""
        return self._sequence("count").count(_canonical(entry))

    def __add__(self, other: Any) -> PartitionSpec:
        if not isinstance(other, PartitionSpec):
            raise errors.ShardingTypeError(
                f"a PartitionSpec can only be added to a PartitionSpec, not to a {type(other).__name__} "
                "(__add__); wrap it in P(...)"
            )
        return PartitionSpec(
            *self.partitions, *other.partitions,
            unreduced=self.unreduced | other.unreduced, reduced=self.reduced | other.reduced,
        )  # fmt: skip

    def __radd__(self, other: Any) -> PartitionSpec:
        raise errors.ShardingTypeError(
            f"a {type(other).__name__} cannot be added to a PartitionSpec (__radd__); wrap it in P(...)"
        )

    def padded(self, ndim: int) -> tuple[Any, ...]:
        """The entries for a value of `ndim` dimensions. RankMismatchError if there are more entries."""
        if len(self.partitions) > ndim:
            raise errors.RankMismatchError(
                f"PartitionSpec {self!r} is only valid for values of rank at least {len(self.partitions)}, but was "
                f"applied to a value of rank {ndim}. Remove entries, or split other dimensions."
            )
        return self.partitions + (None,) * (ndim - len(self.partitions))

    def __repr__(self) -> str:
        parts = [repr(p) for p in self.partitions]
        for name in ("unreduced", "reduced"):
            axes = getattr(self, name)
            if axes:
                parts.append(f"{name}={{{', '.join(sorted(map(repr, axes)))}}}")
        trailing = "," if len(parts) == 1 and len(self.partitions) == 1 else ""
        return f"P({', '.join(parts)}{trailing})"


def _rebuild(partitions: Any, unreduced: frozenset[Hashable], reduced: frozenset[Hashable]) -> PartitionSpec:
    return PartitionSpec(*partitions, unreduced=unreduced, reduced=reduced)


P = PartitionSpec
