"""Questions about the types of mesh axes, for `jax._src.mesh`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["all_axis_types_match", "any_axis_types_match"]


def all_axis_types_match(axis_types: Sequence[Any], ty: Any) -> bool:
    """Whether there are axes, all of a type."""
    return bool(axis_types) and all(t == ty for t in axis_types)


def any_axis_types_match(axis_types: Sequence[Any], ty: Any) -> bool:
    """Whether one of the axes is of a type."""
    return any(t == ty for t in axis_types)
