"""Rules that linear operations share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshrt.core.primitive import Primitive

__all__ = ["linear_jvp"]


def linear_jvp(get: Callable[[], Primitive]) -> Callable[..., Any]:
    """The jvp rule of a primitive that is linear in its only operand: the same operation on the tangent."""

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = get().bind(*primals, **params)
        return out, None if tangents[0] is None else get().bind(tangents[0], **params)

    return jvp
