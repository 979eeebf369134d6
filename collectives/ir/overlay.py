"""A dictionary on top of another one: for what may be taken or dropped as a whole."""

from __future__ import annotations

from typing import Any, TypeVar

__all__ = ["Overlay"]

K = TypeVar("K")
V = TypeVar("V")


class Overlay(dict[K, V]):
    """What is set here stands before what `base` has, which stays as it is until `base.update(overlay)`.

    It is looked into by key only. Its length, and what it gives when it is walked over, are what was set here.

    >>> base = {"a": 1}
    >>> over = Overlay(base)
    >>> over["b"] = 2
    >>> over["a"], over["b"], base
    (1, 2, {'a': 1})
    """

    __slots__ = ("base",)

    def __init__(self, base: dict[K, V]):
        super().__init__()
        self.base = base

    def __missing__(self, key: K) -> V:
        return self.base[key]

    def __contains__(self, key: object) -> bool:
        return dict.__contains__(self, key) or key in self.base

    def get(self, key: Any, default: Any = None) -> Any:
        found = dict.get(self, key, _ABSENT)
        return self.base.get(key, default) if found is _ABSENT else found

    def setdefault(self, key: K, default: V) -> V:
        if key not in self:
            self[key] = default
        return self[key]


_ABSENT = object()
