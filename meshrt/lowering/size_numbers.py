"""Symbolic sizes as numbers, for rules that ask which dimensions are equal, and which are made of which."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from meshrt.core.dimensions.expression import MAX, MIN, DimExpr, term_value
from meshrt.core.dimensions.terms import Factor, Term
from meshrt.core.types import ShapedArray

__all__ = ["numbered"]

# What the axes of meshes divide, as a rule.
_COMMON = 2**6 * 3**2 * 5 * 7


class _Numbers:
    """Every variable is a prime times what the axes of meshes divide: equal numbers come of equal expressions, as a
    rule.

    So is a minimum or maximum, which would be the number of one of its operands, and whatever would be less than 1: an
    operation as in `mod(m, 4)` or a sum as in `b - a`, which rules would take for a dimension without elements.
    """

    def __init__(self, names: Iterable[str]):
        self._fresh = (_COMMON * n for n in itertools.count(11) if all(n % d for d in range(2, math.isqrt(n) + 1)))
        self.known = {name: next(self._fresh) for name in names}
        self._others: dict[Factor | DimExpr, int] = {}

    def of(self, dim: DimExpr) -> int:
        total = sum(k * math.prod([self._factor(f, dim) ** n for f, n in term.factors]) for term, k in dim.terms)
        return self._at_least_1(dim, total)

    def _factor(self, factor: Factor, dim: DimExpr) -> int:
        is_extreme = factor.name in (MIN, MAX) and not factor.is_variable
        number = 0 if is_extreme else int(term_value(Term({factor: 1}), self.known, dim.scope))
        return self._at_least_1(factor, number)

    def _at_least_1(self, what: Factor | DimExpr, number: int) -> int:
        if number >= 1:
            return number
        if what not in self._others:
            self._others[what] = next(self._fresh)
        return self._others[what]


def numbered(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values (types, parameters of operations, sizes) with a number in place of each symbolic size; themselves
    where there are none."""
    names = sorted({name for dim in _sizes_in(values) for name in dim.variables()})
    if not names:
        return values
    replaced: tuple[Any, ...] = _replaced(values, _Numbers(names))
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


def _replaced(value: Any, numbers: _Numbers) -> Any:
    if isinstance(value, DimExpr):
        return numbers.of(value)
    if not any(True for _ in _sizes_in(value)):
        return value
    parts = [_replaced(part, numbers) for part in _parts(value)]
    if isinstance(value, ShapedArray):
        return value.update(shape=tuple(parts))
    if isinstance(value, Mapping):
        return dict(zip(value, parts))
    if isinstance(value, tuple | list):
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    fields = [f.name for f in dataclasses.fields(value) if f.init]
    return dataclasses.replace(value, **dict(zip(fields, parts)))
