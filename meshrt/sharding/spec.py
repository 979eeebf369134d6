"""PartitionSpec: which mesh axes each dimension of a value is split over."""

from __future__ import annotations

import enum
import threading
from collections.abc import Hashable, Iterator
from typing import Any

from meshrt import errors
from meshrt.sharding.set_once import SetOnce, put

__all__ = ["UNCONSTRAINED", "Infer", "P", "PartitionSpec", "UnreducedKind"]


class _Unconstrained:
    """Leaves a dimension to propagation; the only value of its type."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNCONSTRAINED"

    def __reduce__(self) -> str:
        return "UNCONSTRAINED"


UNCONSTRAINED = _Unconstrained()


class UnreducedKind(enum.Enum):
    """How the parts that devices hold over unreduced axes combine to the value: `sum`, `max` or `min`.

    >>> meshrt.P(unreduced={"x"}).unreduced_kind
    sum
    """

    sum = "sum"
    max = "max"
    min = "min"

    def __repr__(self) -> str:
        return self.name


class _Infer:
    """Stands for the in_specs of a `shard_map` that are read from the types of its arguments; the only value of its
    type.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "meshrt.sharding.Infer"

    def __reduce__(self) -> str:
        return "Infer"


Infer = _Infer()


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


def _axis_set(axes: Any, what: str, entries: tuple[Any, ...], spec_axes: list[Hashable]) -> frozenset[Hashable]:
    if not isinstance(axes, (set, frozenset)):
        raise errors.ShardingTypeError(
            f"the {what} argument of PartitionSpec must be a `frozenset` or `set` of axis names. Got {axes!r} of type "
            f"{type(axes).__name__}; write {what}={{'x'}}"
        )
    if None in axes or UNCONSTRAINED in axes:
        raise errors.ShardingError(f"{what} cannot contain None: it names mesh axes. Got {set(axes)}")
    both = sorted(map(str, axes & set(spec_axes)))
    if both:
        raise errors.DuplicateAxisError(
            f"partitions cannot overlap with {what} axes passed to PartitionSpec, but {', '.join(both)} stand both in "
            f"the partitions {entries} and in {what}={set(axes)}; use each once"
        )
    return frozenset(axes)


def _checked_kind(kind: Any, unreduced: frozenset[Hashable]) -> UnreducedKind | None:
    """The kind of a spec: that of `unreduced` axes is `sum` where nothing is said, and without any there is none."""
    if kind is not None and not isinstance(kind, UnreducedKind):
        raise errors.ShardingTypeError(
            "the unreduced_kind argument of PartitionSpec must be a meshrt.sharding.UnreducedKind (sum, max or min). "
            f"Got {kind!r} of type {type(kind).__name__}"
        )
    if kind is not None and not unreduced:
        raise errors.ShardingError(
            f"unreduced_kind={kind!r} says how values over unreduced axes combine, but unreduced is empty; name the "
            "axes in unreduced={...} or leave unreduced_kind out"
        )
    return UnreducedKind.sum if kind is None and unreduced else kind


def axes_of(entry: Any) -> tuple[Hashable, ...]:
    """The axes of one entry, major first."""
    if entry is None or entry is UNCONSTRAINED:
        return ()
    return entry if isinstance(entry, tuple) else (entry,)


_NONE: frozenset[Hashable] = frozenset()


class PartitionSpec(SetOnce):
    """One entry per dimension: None (not split), an axis name, a tuple of names (major first) or `P.UNCONSTRAINED`.

    Missing trailing entries mean None. Interned, so equality is identity; not a tuple, but with a length, and without
    unreduced or reduced axes also to iterate over and to index (with such axes that is a ShardingError).

    Args:
      partitions: the entries.
      unreduced: axes over which each device holds only a part of the value, which combine as `unreduced_kind` says.
      reduced: axes over which the value is replicated and its cotangent is unreduced.
      unreduced_kind: an UnreducedKind; `sum` if there are unreduced axes and nothing is said.

    Raises:
      ShardingTypeError: an argument of the wrong type. DuplicateAxisError: unreduced, reduced and partitions overlap.
      ShardingError: None among axes, or a kind without unreduced axes.

    >>> spec = meshrt.P("data", ("model", "expert"), None)
    >>> spec.axes, spec[1], len(spec)
    (('data', 'model', 'expert'), ('model', 'expert'), 3)
    """

    __slots__ = ("axes", "partitions", "reduced", "unreduced", "unreduced_kind")

    UNCONSTRAINED = UNCONSTRAINED
    _interned: dict[tuple[Any, ...], PartitionSpec] = {}
    _lock = threading.Lock()

    partitions: tuple[Any, ...]
    unreduced: frozenset[Hashable]
    reduced: frozenset[Hashable]
    unreduced_kind: UnreducedKind | None
    # Every axis that the partitions name, in order, duplicates kept.
    axes: tuple[Hashable, ...]

    def __init_subclass__(cls, **_: Any) -> None:
        raise TypeError("Subclassing `meshrt.sharding.PartitionSpec` is prohibited.")

    def __new__(
        cls, *partitions: Any, unreduced: Any = _NONE, reduced: Any = _NONE, unreduced_kind: Any = None
    ) -> PartitionSpec:
        if unreduced is _NONE and reduced is _NONE and unreduced_kind is None:
            try:
                return cls._interned[partitions]
            except (KeyError, TypeError):
                pass
        entries = tuple(_canonical(p) for p in partitions)
        axes = [a for e in entries for a in axes_of(e)]
        unreduced = _axis_set(unreduced, "unreduced", entries, axes)
        reduced = _axis_set(reduced, "reduced", entries, axes)
        if unreduced & reduced:
            raise errors.DuplicateAxisError(
                "`unreduced` and `reduced` argument to PartitionSpec cannot overlap. Got unreduced: "
                f"{set(unreduced)} and reduced: {set(reduced)}; keep each axis in one of them"
            )
        kind = _checked_kind(unreduced_kind, unreduced)
        key = (entries, unreduced, reduced, kind) if unreduced or reduced else entries
        with cls._lock:
            found = cls._interned.get(key)
            if found is None:
                found = object.__new__(cls)
                put(
                    found,
                    partitions=entries,
                    unreduced=unreduced,
                    reduced=reduced,
                    unreduced_kind=kind,
                    axes=tuple(axes),
                )
                cls._interned[key] = found
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.partitions, self.unreduced, self.reduced, self.unreduced_kind))

    def update(
        self, partitions: Any = None, unreduced: Any = None, reduced: Any = None, unreduced_kind: Any = None
    ) -> PartitionSpec:
        """A spec with what is given replaced. Without unreduced axes their kind goes too. What is raised is what
        PartitionSpec raises."""
        unreduced = self.unreduced if unreduced is None else unreduced
        if unreduced_kind is None and unreduced:
            unreduced_kind = self.unreduced_kind
        return PartitionSpec(
            *(self.partitions if partitions is None else partitions),
            unreduced=unreduced,
            reduced=self.reduced if reduced is None else reduced,
            unreduced_kind=unreduced_kind,
        )

    def to_lo(self) -> list[PartitionSpec]:
        """The specs of the arrays that a value with this one consists of: itself."""
        return [self]

    def to_tangent_spec(self) -> PartitionSpec:
        """The spec of a tangent of a value with this one: the same."""
        return self

    def to_ct_spec(self) -> PartitionSpec:
        """The spec of a cotangent: what was unreduced is reduced, and the other way round."""
        return PartitionSpec(*self.partitions, unreduced=self.reduced, reduced=self.unreduced)

    def _sequence(self, what: str) -> tuple[Any, ...]:
        if self.unreduced or self.reduced:
            raise errors.ShardingError(
                f"{what} is dangerous when PartitionSpec has non-empty unreduced/reduced set, which it would drop: "
                f"{self!r}. Please use spec.partitions."
            )
        return self.partitions

    def __len__(self) -> int:
        return len(self.partitions)

    def __bool__(self) -> bool:
        return bool(self.partitions or self.unreduced or self.reduced)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._sequence("Using *pspec"))

    def __getitem__(self, index: Any) -> Any:
        return self._sequence("Using pspec[...]")[index]

    def __contains__(self, entry: Any) -> bool:
        return entry in self.partitions

    def index(self, entry: Any) -> int:
        """First dimension whose entry this is; ValueError if there is none."""
        return self.partitions.index(_canonical(entry))

    def count(self, entry: Any) -> int:
        """How many dimensions have this entry."""
        return self.partitions.count(_canonical(entry))

    def __add__(self, other: Any) -> PartitionSpec:
        if isinstance(other, tuple) and self._is_plain("__add__", other):
            return PartitionSpec(*self.partitions, *other)
        if not isinstance(other, PartitionSpec):
            raise errors.ShardingTypeError(
                f"a PartitionSpec can only be added to a PartitionSpec or a tuple, not to a {type(other).__name__} "
                "(`__add__` of PartitionSpec); wrap it in P(...)"
            )
        kinds = {s.unreduced_kind for s in (self, other)} - {None}
        if len(kinds) > 1:
            raise errors.ShardingError(f"{self!r} + {other!r} would mix two kinds of unreduced axes; reduce one before")
        return PartitionSpec(
            *self.partitions, *other.partitions, unreduced=self.unreduced | other.unreduced,
            reduced=self.reduced | other.reduced, unreduced_kind=next(iter(kinds), None),
        )  # fmt: skip

    def __radd__(self, other: Any) -> PartitionSpec:
        if isinstance(other, tuple) and self._is_plain("__radd__", other):
            return PartitionSpec(*other, *self.partitions)
        raise errors.ShardingTypeError(
            f"a {type(other).__name__} cannot be added to a PartitionSpec (`__radd__` of PartitionSpec); wrap it in "
            "P(...)"
        )

    def _is_plain(self, what: str, other: tuple[Any, ...]) -> bool:
        for name in ("unreduced", "reduced"):
            if getattr(self, name):
                raise errors.ShardingTypeError(
                    f"the other operand {other} cannot be a tuple when {self!r} has {name} axes in `{what}` of "
                    "PartitionSpec; wrap it in P(...)"
                )
        return True

    def fitted(self, ndim: int) -> PartitionSpec:
        """The same without entries of None beyond `ndim` dimensions: those that say how a result's type is split
        need not know its rank, as where a function is mapped that was given the type of an operand."""
        kept = self.partitions
        while len(kept) > ndim and kept[-1] is None:
            kept = kept[:-1]
        return self if kept is self.partitions else self.update(partitions=kept)

    def padded(self, ndim: int) -> tuple[Any, ...]:
        """The entries for a value of `ndim` dimensions. RankMismatchError if there are more entries."""
        if len(self.partitions) > ndim:
            fix = "For scalars the PartitionSpec should be P()" if not ndim else "Remove entries"
            raise errors.RankMismatchError(
                f"PartitionSpec {self!r} is only valid for values of rank at least {len(self.partitions)}, but was "
                f"applied to a value of rank {ndim}. {fix}, or split other dimensions."
            )
        return self.partitions + (None,) * (ndim - len(self.partitions))

    def __repr__(self) -> str:
        parts = [repr(p) for p in self.partitions]
        for name in ("unreduced", "reduced"):
            axes = getattr(self, name)
            if axes:
                parts.append(f"{name}={{{', '.join(sorted(map(repr, axes)))}}}")
        if self.unreduced_kind not in (None, UnreducedKind.sum):
            parts.append(f"unreduced_kind={self.unreduced_kind!r}")
        trailing = "," if len(parts) == 1 and len(self.partitions) == 1 else ""
        return f"P({', '.join(parts)}{trailing})"


def _rebuild(
    partitions: Any, unreduced: frozenset[Hashable], reduced: frozenset[Hashable], kind: UnreducedKind | None
) -> PartitionSpec:
    return PartitionSpec(*partitions, unreduced=unreduced, reduced=reduced, unreduced_kind=kind)


P = PartitionSpec
