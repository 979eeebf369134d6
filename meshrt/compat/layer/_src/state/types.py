"""`jax._src.state.types`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from meshrt.core.references import AbstractRef, RefEffect
from meshrt.core.types import ShapedArray

__all__ = ["AbstractRef", "get_ref_state_effects", "shaped_array_ref"]


def shaped_array_ref(shape: Sequence[int], dtype: Any, weak_type: bool = False) -> AbstractRef:
    """The type of references to arrays of a shape and dtype."""
    return AbstractRef(ShapedArray(tuple(shape), dtype, weak_type))


def get_ref_state_effects(avals: Sequence[Any], effects: Iterable[Any]) -> list[set[Any]]:
    """For each type of an argument, what a program does to it if it is a reference."""
    mine = [e for e in effects if isinstance(e, RefEffect)]
    return [
        {e for e in mine if e.input_index == i} if isinstance(a, AbstractRef) else set() for i, a in enumerate(avals)
    ]
