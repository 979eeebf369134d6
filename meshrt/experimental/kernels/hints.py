"""What kernels tell compilers of values, without changing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt import errors
from meshrt.core.primitive import Primitive
from meshrt.core.types import aval_of

__all__ = ["max_contiguous", "multiple_of"]


def _hint(name: str) -> Primitive:
    """A primitive that gives its operand; its parameter `values` says what is promised of each dimension."""
    made = Primitive(
        name, lambda x, *, values: x, lower=lambda ctx, eqn, x: x,
        jvp=lambda primals, tangents, *, values: (made.bind(*primals, values=values), tangents[0]),
        batch=lambda size, args, dims, params: (args[0], dims[0]), cheap=True, finite=True,
        absent={"transpose": "tangents pass by it"},
    )  # fmt: skip
    return made


multiple_of_p = _hint("multiple_of")
max_contiguous_p = _hint("max_contiguous")


def _bind(primitive: Primitive, x: Any, values: int | Sequence[int]) -> Any:
    promised = (values,) if isinstance(values, int) else tuple(values)
    if len(promised) not in (1, max(1, aval_of(x).ndim)):
        raise errors.ArgumentValueError(
            f"{primitive.name}: {len(promised)} values for an array of shape {aval_of(x).shape}; give one per dimension"
        )
    return primitive.bind(x, values=promised)


def multiple_of(x: Any, values: int | Sequence[int]) -> Any:
    """`x`, which the program promises to be a multiple of `values`: some compilers make use of it."""
    return _bind(multiple_of_p, x, values)


def max_contiguous(x: Any, values: int | Sequence[int]) -> Any:
    """`x`, whose first `values` elements the program promises to be consecutive numbers: for loads on GPUs."""
    return _bind(max_contiguous_p, x, values)
