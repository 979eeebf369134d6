"""Building operation sharding rules factor by factor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ..graph import Op
from ..model import FactorType, OpRule
from .options import RuleOptions

__all__ = [
    "NEED_REPLICATION",
    "PASS_THROUGH",
    "PERMUTATION",
    "REDUCTION",
    "Dims",
    "RuleBuilder",
    "RuleFunction",
    "pointwise",
    "signature",
]

# For each of some tensors, the dimension that a factor has there.
Dims = Sequence[int | None]
RuleFunction = Callable[[Op, RuleOptions], OpRule | None]
_Marked = TypeVar("_Marked", bound=RuleFunction)
_Tensors = list[list[list[int]]]  # of each tensor, for each dimension, its factors

PASS_THROUGH = FactorType.PASS_THROUGH
REDUCTION = FactorType.REDUCTION
NEED_REPLICATION = FactorType.NEED_REPLICATION
PERMUTATION = FactorType.PERMUTATION


class RuleBuilder:
    """Collects factors over tensors given by their shapes; `build` makes the `OpRule`.

    A factor is placed by one dimension (or None) per operand and per result. A factor of size 1 joins no dimension
    that already has a factor, and a dimension left without factors gets one of its own, of size 1. So does a dimension
    of unknown size (-1, `tensor<?x8xf32>`): it takes part in no factor, and nothing propagates to or from it.
    """

    __slots__ = ("blocked", "is_static", "operands", "results", "shapes", "sizes", "types")

    def __init__(self, operand_shapes: Sequence[Sequence[int]], result_shapes: Sequence[Sequence[int]]):
        self.shapes = (tuple(operand_shapes), tuple(result_shapes))
        self.sizes: list[int] = []
        self.types: list[FactorType] = []
        self.blocked: list[int] = []
        self.is_static = not any(n < 0 for shapes in self.shapes for shape in shapes for n in shape)
        self.operands: _Tensors = [[[] for _ in s] for s in operand_shapes]
        self.results: _Tensors = [[[] for _ in s] for s in result_shapes]

    @classmethod
    def of(cls, op: Op) -> RuleBuilder:
        return cls([v.type.shape for v in op.operands], [v.type.shape for v in op.results])

    def add(
        self,
        operand_dims: Dims,
        result_dims: Dims,
        size: int,
        kind: FactorType = PASS_THROUGH,
        blocked: bool = False,
    ) -> RuleBuilder:
        """A factor of `size` at dimension `operand_dims[i]` of operand i and `result_dims[i]` of result i."""
        if not self.is_static:
            if size < 0:
                return self
            operand_dims, result_dims = (self._known(i, dims) for i, dims in enumerate((operand_dims, result_dims)))
        factor = len(self.sizes)
        self.sizes.append(size)
        self.types.append(kind)
        if blocked:
            self.blocked.append(factor)
        for tensors, dims in ((self.operands, operand_dims), (self.results, result_dims)):
            for tensor, dim in zip(tensors, dims):
                if dim is not None and (size > 1 or not tensor[dim]):
                    tensor[dim].append(factor)
        return self

    def _known(self, side: int, dims: Dims) -> list[int | None]:
        """`dims` without those of unknown size."""
        return [None if d is None or shape[d] < 0 else d for shape, d in zip(self.shapes[side], dims)]

    def add_everywhere(
        self, dim: int, size: int, kind: FactorType = PASS_THROUGH, blocked: bool = False
    ) -> RuleBuilder:
        """A factor at dimension `dim` of every tensor that is not a scalar."""
        return self.add(
            [dim if shape else None for shape in self.shapes[0]],
            [dim if shape else None for shape in self.shapes[1]],
            size,
            kind,
            blocked,
        )

    def add_pointwise(self, shape: Sequence[int], kind: Callable[[int], FactorType] | None = None) -> RuleBuilder:
        """One factor per dimension of `shape`, in every tensor that is not a scalar."""
        for dim, size in enumerate(shape):
            self.add_everywhere(dim, size, kind(dim) if kind else PASS_THROUGH)
        return self

    def build(self, elementwise: bool = False, custom: bool = False) -> OpRule:
        for tensors in (self.operands, self.results):
            for tensor in tensors:
                for dim in tensor:
                    if not dim:
                        dim.append(len(self.sizes))
                        self.sizes.append(1)
                        self.types.append(PASS_THROUGH)
        return OpRule(
            self.sizes, _frozen(self.operands), _frozen(self.results), self.types, self.blocked, custom, elementwise
        )


def _frozen(tensors: _Tensors) -> tuple[tuple[tuple[int, ...], ...], ...]:
    return tuple([tuple([tuple(dim) for dim in tensor]) for tensor in tensors])


def pointwise(op: Op, shape: Sequence[int] | None = None, elementwise: bool = True) -> OpRule:
    """Every dimension passes through all tensors of `op` that are not scalars."""
    return RuleBuilder.of(op).add_pointwise(op.results[0].type.shape if shape is None else shape).build(elementwise)


def signature(*names: str | None) -> Callable[[_Marked], _Marked]:
    """Marks a rule function with the attributes on which its rule depends, apart from operand and result types; the
    registry reuses a rule for operations of equal signature. `signature(None)`: it depends on more; never reuse."""

    def mark(function: _Marked) -> _Marked:
        vars(function)["signature"] = None if names == (None,) else names
        return function

    return mark
