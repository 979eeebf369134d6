"""Reductions."""

from __future__ import annotations

from ..attributes import integers
from ..graph import Op
from ..model import OpRule
from .builder import REDUCTION, RuleBuilder, signature
from .options import RuleOptions


@signature("dimensions")
def reduce(op: Op, options: RuleOptions) -> OpRule:
    """Kept dimensions pass through; reduced ones give partial results. Initial values are scalars."""
    count = len(op.operands) // 2
    shape = op.operands[0].type.shape
    reduced = integers(op.attrs["dimensions"])
    builder = RuleBuilder.of(op)
    out = 0
    for dim, size in enumerate(shape):
        ins = [dim] * count + [None] * count
        if dim in reduced:
            builder.add(ins, [None] * count, size, REDUCTION)
        else:
            builder.add(ins, [out] * count, size)
            out += 1
    return builder.build()


RULES = {"stablehlo.reduce": reduce}
