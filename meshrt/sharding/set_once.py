"""Interned values whose public attributes are set once.

Meshes, specs and shardings are shared by everything that is equal to them: who changed one would change all, and the
caches that are keyed by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from meshrt import errors

__all__ = ["SetOnce", "put", "putters"]
_set = object.__setattr__


def put(new: SetOnce, **values: Any) -> None:
    """Sets the attributes of a new value: nothing is asked, so it takes a fraction of the time of assignments."""
    for name, value in values.items():
        _set(new, name, value)


def putters(cls: type[Any], *slots: str) -> tuple[Callable[[Any, Any], None], ...]:
    """What sets each of these slots of a value of `cls` or of a class derived from it: called one after the other they
    take a third of the time of `put`."""
    return tuple(getattr(cls, name).__set__ for name in slots)


class SetOnce:
    """Refuses to set a public attribute that is set, and to delete one. Its copies are itself."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and hasattr(self, name):
            raise self._refusal("assign to", name)
        _set(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise self._refusal("delete", name)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def _refusal(self, what: str, name: str) -> errors.ImmutableError:
        return errors.ImmutableError(
            f"cannot {what} {name!r} of {self!r}: all that is equal to it is the same object. Make another one"
            f"{', as with .update(...)' if hasattr(self, 'update') else ''}"
        )
