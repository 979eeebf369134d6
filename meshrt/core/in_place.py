"""Primitives that no program has an equation of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshrt.core.primitive import Primitive

__all__ = ["InPlace"]


class InPlace(Primitive):
    """A call that is written in place: `bind` does what is called, so that no program has an equation of it."""

    __slots__ = ("_call",)

    def __init__(self, name: str, call: Callable[..., Any], multiple_results: bool = True):
        super().__init__(name, multiple_results=multiple_results)
        self._call = call

    def bind(self, *args: Any, **params: Any) -> Any:
        return self._call(*args, **params)
