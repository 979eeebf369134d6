"""Symbolic sizes as numbers, for rules that ask which dimensions are equal, and which are made of which."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from meshrt.core.dimensions.expression import DimExpr
from meshrt.core.types import ShapedArray

__all__ = ["numbered"]

# Every variable is a prime times what the axes of meshes divide: equal numbers come of equal expressions, as a rule.
_COMMON = 2**6 * 3**2 * 5 * 7
_PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89)


def numbered(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values (types, parameters of operations, sizes) with a number in place of each symbolic size; themselves
    where there are none."""
    names = sorted({name for dim in _sizes_in(values) for name in dim.variables()})
    if not names:
        return values
    known = {name: _COMMON * _PRIMES[i % len(_PRIMES)] * (1 + i // len(_PRIMES)) for i, name in enumerate(names)}
    replaced: tuple[Any, ...] = _replaced(values, known)
    return replaced


def _parts(value: Any) -> tuple[Any, ...]:
    if isinstance(value, ShapedArray):
        return value.shape
    if isinstance(value, tuple | list):
        return tuple(value)
    if isinstance(value, Mapping):
        return tuple(value.values())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(getattr(value, f.name) for f in dataclasses.fields(value) if f.init)
    return ()


def _sizes_in(value: Any) -> Iterator[DimExpr]:
    if isinstance(value, DimExpr):
        yield value
    for part in _parts(value):
        yield from _sizes_in(part)


def _replaced(value: Any, known: Mapping[str, int]) -> Any:
    if isinstance(value, DimExpr):
        return int(value.evaluate(known))
    if not any(True for _ in _sizes_in(value)):
        return value
    parts = [_replaced(part, known) for part in _parts(value)]
    if isinstance(value, ShapedArray):
        return value.update(shape=tuple(parts))
    if isinstance(value, Mapping):
        return dict(zip(value, parts))
    if isinstance(value, tuple | list):
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    fields = [f.name for f in dataclasses.fields(value) if f.init]
    return dataclasses.replace(value, **dict(zip(fields, parts)))
