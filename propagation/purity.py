"""Dead code: which operations can be removed when nothing uses their results, by MLIR's side effects."""

from __future__ import annotations

import functools

from .graph import Op
from .ops import IMPURE, TERMINATORS

__all__ = ["is_removable"]

_KNOWN_DIALECTS = ("stablehlo.", "chlo.", "sdy.")


def is_removable(op: Op) -> bool:
    """Whether `op` and all that it contains is free of side effects."""
    if op.name == "stablehlo.custom_call":
        effect = op.attrs.get("has_side_effect")
        return effect is None or "true" not in str(effect)
    return _is_pure(op.name) and all(_is_pure_inside(inner) for block in op.regions for inner in block.ops)


@functools.cache
def _is_pure(name: str) -> bool:
    return name not in IMPURE and name.startswith(_KNOWN_DIALECTS)


def _is_pure_inside(op: Op) -> bool:
    return op.name in TERMINATORS or is_removable(op)
