"""`jax._src.frozen_dict`: dicts that do not change, and have a hash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["FrozenDict"]


class FrozenDict(Mapping[Any, Any]):
    """A mapping with the items of another, which stay as they are."""

    def __init__(self, d: Mapping[Any, Any]):
        self._items = dict(d)

    def __getitem__(self, key: Any) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrozenDict) and self._items == other._items

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return f"FrozenDict({self._items!r})"
