"""Operation sharding rules, and shardings seen through a rule (projections). `propagation.model` offers these names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from .interning import Interned
from .interning import set_field as _set

if TYPE_CHECKING:
    from .axes import AxisRef

__all__ = ["DimFactors", "FactorSharding", "FactorType", "OpRule", "Projection", "TensorFactors", "factor_symbol"]

# Per dimension of a tensor the indices of its factors, from major to minor.
DimFactors: TypeAlias = "tuple[tuple[int, ...], ...]"


class FactorType(IntEnum):
    """What sharding a factor of a rule means for the operation."""

    PASS_THROUGH = 0  # no communication
    REDUCTION = 1  # partial results, to be combined
    NEED_REPLICATION = 2  # the operation needs the whole dimension on each device
    PERMUTATION = 3  # elements move between neighbouring devices


class OpRule(Interned):
    """How an operation's dimensions correspond, einsum-like: factors and where each appears.

    sizes     size of each factor
    operands  per operand, per dimension, the factor indices from major to minor
    results   the same for results
    types     a `FactorType` per factor
    blocked   factors along which nothing may propagate
    custom    given by the user rather than derived
    elementwise  whether the operation is pointwise (the strategies treat it a little differently); not printed
    """

    __slots__ = ("_text", "blocked", "custom", "elementwise", "operands", "results", "sizes", "types")
    _fields = ("sizes", "operands", "results", "types", "blocked", "custom", "elementwise")
    _table: ClassVar[dict[Any, OpRule]]
    sizes: tuple[int, ...]
    operands: tuple[DimFactors, ...]
    results: tuple[DimFactors, ...]
    types: tuple[FactorType, ...]
    blocked: tuple[int, ...]
    custom: bool
    elementwise: bool
    _text: str | None

    def __new__(
        cls,
        sizes: Iterable[int],
        operands: tuple[DimFactors, ...],
        results: tuple[DimFactors, ...],
        types: Iterable[FactorType] | None = None,
        blocked: Iterable[int] = (),
        custom: bool = False,
        elementwise: bool = False,
    ) -> OpRule:
        sizes = tuple(sizes)
        types = (FactorType.PASS_THROUGH,) * len(sizes) if types is None else tuple(types)
        key = (sizes, operands, results, types, tuple(blocked), custom, elementwise)
        self = cls._table.get(key)
        if self is None:
            self = object.__new__(cls)
            for name, value in zip(cls._fields, key):
                _set(self, name, value)
            _set(self, "_text", None)
            self = cls._table.setdefault(key, self)
        return self

    @property
    def num_factors(self) -> int:
        """How many factors the rule has."""
        return len(self.sizes)

    def factors_of_type(self, kind: FactorType) -> tuple[int, ...]:
        """The numbers of the factors of a type."""
        return tuple(f for f, t in enumerate(self.types) if t == kind)

    def to_text(self) -> str:
        """`([i, k], [k, j])->([i, j]) {i=8, j=16, k=8} reduction={k}`, as Shardy prints a rule."""
        text = self._text
        if text is None:
            text = _rule_text(self)
            _set(self, "_text", text)
        return text

    def __str__(self) -> str:
        return self.to_text()


def factor_symbol(index: int) -> str:
    """The letter of factor `index`: i .. z, then z_1, z_2, ..."""
    return chr(ord("i") + index) if index < 18 else f"z_{index - 17}"


def _rule_text(rule: OpRule) -> str:
    def tensor(dims: DimFactors) -> str:
        return "[" + ", ".join(["".join([factor_symbol(f) for f in dim]) for dim in dims]) + "]"

    text = f"({', '.join(map(tensor, rule.operands))})->({', '.join(map(tensor, rule.results))})"
    if rule.sizes:
        text += " {" + ", ".join(f"{factor_symbol(f)}={s}" for f, s in enumerate(rule.sizes)) + "}"
    labels = (("reduction", 1), ("need_replication", 2), ("permutation", 3))
    lists = [(label, [f for f, t in enumerate(rule.types) if t == kind]) for label, kind in labels]
    lists.append(("blocked_propagation", sorted(rule.blocked)))
    for label, members in lists:
        if members:
            text += f" {label}={{{', '.join(map(factor_symbol, members))}}}"
    return text + (", custom" if rule.custom else "")


class FactorSharding(Interned):
    """The axes of one factor in one tensor. `overflow` are axes that did not fit a non-minor factor."""

    __slots__ = ("axes", "closed", "minor_most", "overflow")
    _fields = ("axes", "closed", "minor_most", "overflow")
    _table: ClassVar[dict[Any, FactorSharding]]
    axes: tuple[AxisRef, ...]
    closed: bool
    minor_most: bool
    overflow: tuple[AxisRef, ...]

    def __new__(
        cls,
        axes: tuple[AxisRef, ...] = (),
        closed: bool = False,
        minor_most: bool = True,
        overflow: tuple[AxisRef, ...] = (),
    ) -> FactorSharding:
        key = (axes, closed, minor_most, overflow)
        self = cls._table.get(key)
        if self is None:
            self = object.__new__(cls)
            for name, value in zip(cls._fields, key):
                _set(self, name, value)
            self = cls._table.setdefault(key, self)
        return self


class TensorFactors(Interned):
    """One tensor in factor space: per factor of the rule its `FactorSharding`, None where it has none."""

    __slots__ = ("factors", "replicated", "unreduced")
    _fields = ("factors", "replicated", "unreduced")
    _table: ClassVar[dict[Any, TensorFactors]]
    factors: tuple[FactorSharding | None, ...]
    replicated: tuple[AxisRef, ...]
    unreduced: tuple[AxisRef, ...]

    def __new__(
        cls,
        factors: tuple[FactorSharding | None, ...],
        replicated: tuple[AxisRef, ...] = (),
        unreduced: tuple[AxisRef, ...] = (),
    ) -> TensorFactors:
        key = (factors, replicated, unreduced)
        self = cls._table.get(key)
        if self is None:
            self = object.__new__(cls)
            for name, value in zip(cls._fields, key):
                _set(self, name, value)
            self = cls._table.setdefault(key, self)
        return self


class Projection(Interned):
    """The shardings around one operation, seen through its rule."""

    __slots__ = ("operands", "results")
    _fields = ("operands", "results")
    _table: ClassVar[dict[Any, Projection]]
    operands: tuple[TensorFactors, ...]
    results: tuple[TensorFactors, ...]

    def __new__(cls, operands: Sequence[TensorFactors], results: Sequence[TensorFactors]) -> Projection:
        key = (tuple(operands), tuple(results))
        self = cls._table.get(key)
        if self is None:
            self = object.__new__(cls)
            _set(self, "operands", key[0])
            _set(self, "results", key[1])
            self = cls._table.setdefault(key, self)
        return self
