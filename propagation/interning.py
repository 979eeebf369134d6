"""Immutable values that exist once each, so that equality is identity and hashing is free."""

from __future__ import annotations

from typing import Any, ClassVar, Self


class Interned:
    """Base of values that exist once. A subclass lists its fields in `_fields`, and its `__new__` looks in the table of
    the class before it makes an object.

    That table is a plain dict, because `dict.setdefault` is atomic: two threads can never get two
    objects for one value. The number of distinct shardings a process meets is small.
    """

    __slots__ = ()
    _fields: ClassVar[tuple[str, ...]] = ()
    _table: ClassVar[dict[Any, Any]] = {}

    def __init_subclass__(cls) -> None:
        cls._table = {}

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable; make a new one instead of setting {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, f) for f in self._fields)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{f}={getattr(self, f)!r}' for f in self._fields)})"


set_field = object.__setattr__
