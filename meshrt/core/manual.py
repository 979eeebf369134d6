"""What the type of a value says of the Manual axes around it, as one value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meshrt import errors

__all__ = ["NOWHERE", "ManualAxisType"]


class ManualAxisType:
    """How a value depends on the places of devices along the Manual axes of a region (`shard_map`).

    `varying`: devices have values of their own. `unreduced`: they have addends of one value. `reduced`: they have the
    same value, whose cotangent is unreduced. Each is a frozenset of axes; along all other axes it is one value.

    >>> ManualAxisType(varying={"x"}).varying
    frozenset({'x'})

    Raises:
      ArgumentValueError: an axis that is named as varying is unreduced or reduced too.
    """

    __slots__ = ("reduced", "unreduced", "varying")

    varying: frozenset[Any]
    unreduced: frozenset[Any]
    reduced: frozenset[Any]

    def __init__(self, *, varying: Iterable[Any] = (), unreduced: Iterable[Any] = (), reduced: Iterable[Any] = ()):
        for name, axes in (("varying", varying), ("unreduced", unreduced), ("reduced", reduced)):
            object.__setattr__(self, name, frozenset(axes))
        for name, axes in (("unreduced", self.unreduced), ("reduced", self.reduced)):
            if self.varying & axes:
                raise errors.ArgumentValueError(
                    f"varying and {name} cannot have common mesh axes. Got varying={set(self.varying)} and "
                    f"{name}={set(axes)}; name each axis once"
                )

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a ManualAxisType cannot be changed; {name} of another one: update({name}=...)")

    def update(self, **changes: Iterable[Any]) -> ManualAxisType:
        """The same with some of `varying`, `unreduced`, `reduced` replaced."""
        return ManualAxisType(**{k: changes.get(k, getattr(self, k)) for k in ("varying", "unreduced", "reduced")})

    def to_ct_mat(self) -> ManualAxisType:
        """That of cotangents: what is unreduced has reduced ones, and the other way round."""
        return self.update(unreduced=self.reduced, reduced=self.unreduced)

    def invarying(self, mesh: Any) -> frozenset[Any]:
        """The Manual axes of a mesh along which it is one value."""
        return frozenset(mesh.manual_axes) - self.vur

    @property
    def vur(self) -> frozenset[Any]:
        """All axes that it names."""
        return self.varying | self.unreduced | self.reduced

    @property
    def empty(self) -> bool:
        """Whether it is one value along all axes."""
        return not self.vur

    def _key(self) -> tuple[Any, ...]:
        return (self.varying, self.unreduced, self.reduced)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, ManualAxisType) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuilt, self._key())

    def __repr__(self) -> str:
        return f"ManualAxisType(varying={self.varying}, unreduced={self.unreduced}, reduced={self.reduced})"


def _rebuilt(varying: frozenset[Any], unreduced: frozenset[Any], reduced: frozenset[Any]) -> ManualAxisType:
    return ManualAxisType(varying=varying, unreduced=unreduced, reduced=reduced)


# Of values outside of all regions.
NOWHERE = ManualAxisType()
