"""How axes of all types split values while programs are traced, as far as somebody said it.

Types say what Explicit axes split. What Auto axes split stands beside them: of values that are there, of those that a
constraint places, and of arguments of a trace that asked for it (`meshrt.core.again`), which is told types with places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from meshrt.core.types import ShapedArray, TypeSharding

__all__ = ["Placed", "bare_types", "is_placed", "place_of", "register_placing", "with_place", "without_dim"]


class Placed(NamedTuple):
    """The type of an argument that is an array, with its place: a sharding over an AbstractMesh.

    Only types that a trace is begun with are; the variables of programs have `aval`.
    """

    aval: ShapedArray
    place: TypeSharding


def with_place(aval: Any, place: TypeSharding | None) -> Any:
    """The type with the place, if one is known."""
    return aval if place is None else Placed(aval, place)


def is_placed(aval: Any) -> bool:
    """Whether a type, of an array or of a reference, is told with a place."""
    return type(aval) is Placed or getattr(aval, "placed", None) is not None


def bare_types(avals: Iterable[Any]) -> tuple[Any, ...]:
    """The types without places."""
    return tuple([a.aval if type(a) is Placed else a for a in avals])


_placings: dict[type, Callable[[Any], TypeSharding | None]] = {}


def register_placing(kind: type, rule: Callable[[Any], TypeSharding | None]) -> None:
    """Sets what tells how axes of all types split a value, or what a reference holds, whose Python type is `kind`."""
    _placings[kind] = rule


def place_of(value: Any) -> TypeSharding | None:
    """How axes of all types split a value, or what a reference holds; None where that is not known."""
    known: TypeSharding | None = getattr(getattr(value, "aval", None), "placed", None)  # of an argument's type
    if known is not None:
        return known
    rule = _placings.get(type(value))
    if rule is not None:
        return rule(value)
    below = value.below() if hasattr(value, "below") else None
    return None if below is None else place_of(below)


def without_dim(place: TypeSharding | None, dim: int) -> TypeSharding | None:
    """How a member of a batch lies, which is mapped along `dim`. Where the batch is whole along it a member is placed
    as it is; of a batch that is split the members lie on some devices each, which no sharding of one says."""
    if place is None:
        return None
    entries = place.spec.partitions
    if dim < len(entries) and entries[dim] is not None:
        return None
    return place.update(spec=place.spec.update(partitions=entries[:dim] + entries[dim + 1 :]))
