"""The operators and NumPy methods that arrays and tracers share.

The class is empty here because its methods are NumPy functions, which stand above the core:
`meshrt.numpy.methods` defines them and attaches them with `attach`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["ArrayOperators", "attach"]


class ArrayOperators:
    """Base of `meshrt.Array` and of every tracer."""

    __slots__ = ()
    # Makes `ndarray + array` run our reflected operator. NumPy's own functions convert arrays and refuse tracers.
    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]  # `==` is elementwise, so arrays are not hashable


def attach(methods: dict[str, Callable[..., Any] | property]) -> None:
    """Defines `methods` on ArrayOperators."""
    for name, method in methods.items():
        setattr(ArrayOperators, name, method)
