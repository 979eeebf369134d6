"""Building operation sharding rules factor by factor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..model import FactorType, OpRule

__all__ = ["NEED_REPLICATION", "PASS_THROUGH", "PERMUTATION", "REDUCTION", "RuleBuilder", "pointwise", "signature"]

PASS_THROUGH = FactorType.PASS_THROUGH
REDUCTION = FactorType.REDUCTION
NEED_REPLICATION = FactorType.NEED_REPLICATION
PERMUTATION = FactorType.PERMUTATION


class RuleBuilder:
    """Collects factors over tensors given by their shapes; `build` makes the `OpRule`.

    A factor is placed by one dimension (or None) per operand and per result. A factor of size 1 joins no dimension
    that already has a factor, and a dimension left without factors gets one of its own, of size 1.
    """

    __slots__ = ("blocked", "operands", "results", "shapes", "sizes", "types")

    def __init__(self, operand_shapes: Sequence[Sequence[int]], result_shapes: Sequence[Sequence[int]]):
        self.shapes = (tuple(operand_shapes), tuple(result_shapes))
        self.sizes: list[int] = []
        self.types: list[FactorType] = []
        self.blocked: list[int] = []
        self.operands = [[[] for _ in s] for s in operand_shapes]
        self.results = [[[] for _ in s] for s in result_shapes]

    @classmethod
    def of(cls, op) -> RuleBuilder:
        return cls([v.type.shape for v in op.operands], [v.type.shape for v in op.results])

    def add(
        self,
        operand_dims: Sequence[int | None],
        result_dims: Sequence[int | None],
        size: int,
        kind: FactorType = PASS_THROUGH,
        blocked: bool = False,
    ) -> RuleBuilder:
        """A factor of `size` at dimension `operand_dims[i]` of operand i and `result_dims[i]` of result i."""
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

    def add_everywhere(self, dim: int, size: int, kind=PASS_THROUGH, blocked=False) -> RuleBuilder:
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

    def add_matching(self, in_shape, out_shape, mismatch: Callable[[int], None]) -> RuleBuilder:
        """A factor in every tensor for dimensions equal in both shapes; `mismatch(dim)` adds those for the others."""
        for dim, (n_in, n_out) in enumerate(zip(in_shape, out_shape)):
            if n_in == n_out:
                self.add_everywhere(dim, n_in)
            else:
                mismatch(dim)
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


def _frozen(tensors) -> tuple:
    return tuple([tuple([tuple(dim) for dim in tensor]) for tensor in tensors])


def pointwise(op, shape=None, elementwise: bool = True) -> OpRule:
    """Every dimension passes through all tensors of `op` that are not scalars."""
    return RuleBuilder.of(op).add_pointwise(op.results[0].type.shape if shape is None else shape).build(elementwise)


def signature(*names: str | None):
    """Marks a rule function with the attributes on which its rule depends, apart from operand and result types; the
    registry reuses a rule for operations of equal signature. `signature(None)`: it depends on more; never reuse."""

    def mark(function):
        function.signature = None if names == (None,) else names
        return function

    return mark
