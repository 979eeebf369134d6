"""The types of values as MLIR writes them."""

from __future__ import annotations

from typing import Any

__all__ = ["tensor_text"]

_TYPES: dict[tuple[Any, ...], str] = {}


def tensor_text(shape: tuple[int, ...], dtype: str) -> str:
    """`tensor<2x4xf32>`."""
    key = (shape, dtype)
    text = _TYPES.get(key)
    if text is None:
        if len(_TYPES) > 1 << 16:
            _TYPES.clear()
        text = _TYPES[key] = "tensor<" + "".join([f"{n}x" for n in shape]) + dtype + ">"
    return text
