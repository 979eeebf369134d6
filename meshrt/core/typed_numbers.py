"""Python's numbers that say which dtype they have as arrays: what functions that are not traced get in place of plain
ones where they are told that their arguments are arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.core.types import aval_of

__all__ = ["TYPED_NUMBERS", "as_typed", "plain_number"]


class _Typed:
    """A number with the `dtype` that it has in a program. It is weakly typed, and what is computed with it is plain."""

    __slots__ = ()

    @property
    def dtype(self) -> np.dtype:
        dtype: np.dtype = aval_of(self).dtype
        return dtype

    @property
    def aval(self) -> Any:
        return aval_of(self)

    @property
    def shape(self) -> tuple[()]:
        return ()

    @property
    def ndim(self) -> int:
        return 0

    @property
    def size(self) -> int:
        return 1

    def __repr__(self) -> str:
        return f"{type(self).__name__}({plain_number(self)}, dtype={self.dtype})"

    def __str__(self) -> str:
        return str(plain_number(self))


class TypedInt(_Typed, int):
    """A Python int."""

    __slots__ = ()


class TypedFloat(_Typed, float):
    """A Python float."""

    __slots__ = ()


class TypedComplex(_Typed, complex):
    """A Python complex number."""

    __slots__ = ()


_TYPED: dict[type, Any] = {int: TypedInt, float: TypedFloat, complex: TypedComplex}
_PLAIN: dict[type, type] = {typed: plain for plain, typed in _TYPED.items()}
TYPED_NUMBERS = tuple(_PLAIN)


def as_typed(value: Any) -> Any:
    """A Python number with its dtype, an array of NumPy in the dtype that it has here; other values as they are.

    >>> as_typed(2.0).dtype, as_typed(2.0) + 1
    (dtype('float32'), 3.0)
    """
    typed = _TYPED.get(type(value))
    if typed is not None:
        if typed is TypedInt:
            np.asarray(value, aval_of(value).dtype)  # OverflowError if it has no place there
        return typed(value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype != (dtype := aval_of(value).dtype):
        return np.asarray(value, dtype)
    return value


def plain_number(value: Any) -> Any:
    """Python's own number for a typed one; other values as they are."""
    plain = _PLAIN.get(type(value))
    return value if plain is None else plain(value)
