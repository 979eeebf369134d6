"""Types of high values in manual regions: over which axes their arrays vary.

Inside of a `shard_map` a type says over which axes a value differs between devices, and derivatives are added up by
that. High types are users' own, and most are made of shapes alone. `placed(kind, varying)` is such a type with what it
does not say itself: an instance of a subclass of its class, equal to none that varies over other axes.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from typing import Any

__all__ = ["placed"]

Axes = frozenset[Hashable]


def placed(kind: Any, varying: Sequence[Axes]) -> Any:
    """A high type whose values have arrays that vary over `varying`, one set for each; itself where it says so."""
    own = kind.lo_ty()
    if len(own) != len(varying) or all(t.vma.issuperset(v) for t, v in zip(own, varying)):
        return kind
    cls: Any = type(kind)
    made: Any = object.__new__(cls if issubclass(cls, _Placed) else _subclass(cls))
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(kind, name) and not name.startswith("__"):
                object.__setattr__(made, name, getattr(kind, name))
    made.__dict__.update(getattr(kind, "__dict__", {}))
    made.__dict__["_varying"] = tuple(t.vma.union(v) for t, v in zip(own, varying))
    return made


class _Placed:
    """What the subclass of a high type overrides."""

    _varying: tuple[Axes, ...] = ()

    def lo_ty(self) -> list[Any]:
        own: list[Any] = super().lo_ty()  # type: ignore[misc]
        return [t.update(vma=t.vma.union(v)) for t, v in zip(own, self._varying)] if self._varying else own

    def to_tangent_aval(self) -> Any:
        return self._with(super().to_tangent_aval())  # type: ignore[misc]

    def to_ct_aval(self) -> Any:
        return self._with(super().to_ct_aval())  # type: ignore[misc]

    def normalize(self) -> Any:
        plain = super().normalize()  # type: ignore[misc]
        return placed(plain, self._varying)

    def dec_rank(self, size: Any, spec: Any) -> Any:
        return placed(super().dec_rank(size, spec), self._varying)  # type: ignore[misc]

    def inc_rank(self, size: Any, spec: Any) -> Any:
        return placed(super().inc_rank(size, spec), self._varying)  # type: ignore[misc]

    def _with(self, derivative: Any) -> Any:
        """The type of derivatives, which vary over what any of the arrays does."""
        axes: Axes = Axes().union(*self._varying)
        if derivative.is_high:
            return placed(derivative, [axes] * len(derivative.lo_ty()))
        return derivative.update(vma=derivative.vma.union(axes))

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self) or other._varying != self._varying:
            return False
        return super().__eq__(other) is True

    def __hash__(self) -> int:
        return hash((super().__hash__(), self._varying))


@functools.lru_cache(maxsize=256)
def _subclass(cls: type) -> type:
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls.__name__, (_Placed, cls), names)
