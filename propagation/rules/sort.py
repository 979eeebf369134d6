"""Sorting and selection of the largest."""

from __future__ import annotations

from ..attributes import integer
from ..graph import Op
from ..model import OpRule
from .builder import NEED_REPLICATION, PASS_THROUGH, RuleBuilder, signature
from .options import RuleOptions


@signature("dimension")
def sort(op: Op, options: RuleOptions) -> OpRule:
    """The sorted dimension must be whole. It blocks propagation if no other dimension could be sharded instead."""
    shape = op.operands[0].type.shape
    dimension = op.attr("dimension")
    sorted_dim = -1 if dimension is None else integer(dimension)
    if not options.faults:  # Shardy takes a dimension counted from the end for none
        sorted_dim %= max(len(shape), 1)
    alone = all(n == 1 for dim, n in enumerate(shape) if dim != sorted_dim)
    builder = RuleBuilder.of(op)
    for dim, size in enumerate(shape):
        is_sorted = dim == sorted_dim
        builder.add_everywhere(dim, size, NEED_REPLICATION if is_sorted else PASS_THROUGH, is_sorted and alone)
    return builder.build()


def top_k(op: Op, options: RuleOptions) -> OpRule | None:
    """Like `sort` with a shorter last dimension. Shardy knows it as the custom call `mhlo.topk` only."""
    if not options.chlo:
        return None
    builder = RuleBuilder.of(op)
    shape = op.operands[0].type.shape
    for dim, size in enumerate(shape):
        last = dim == len(shape) - 1
        builder.add_everywhere(dim, size, NEED_REPLICATION if last else PASS_THROUGH, last)
    return builder.build()


RULES = {"chlo.top_k": top_k, "stablehlo.sort": sort}
