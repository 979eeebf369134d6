"""Contractions: dot, dot_general."""

from __future__ import annotations

from ..attributes import dot_dims
from ..graph import Op
from ..model import OpRule
from .builder import REDUCTION, RuleBuilder, signature
from .options import RuleOptions


@signature("dot_dimension_numbers")
def dot_general(op: Op, options: RuleOptions) -> OpRule:
    """Batching, then free dimensions of either side, then contracting ones."""
    lhs, rhs = (v.type.shape for v in op.operands)
    d = dot_dims(op.attrs["dot_dimension_numbers"])
    builder = RuleBuilder.of(op)
    out = 0
    for a, b in zip(d.lhs_batch, d.rhs_batch):
        builder.add([a, b], [out], lhs[a])
        out += 1
    for a in range(len(lhs)):
        if a not in d.lhs_batch and a not in d.lhs_contract:
            builder.add([a, None], [out], lhs[a])
            out += 1
    for b in range(len(rhs)):
        if b not in d.rhs_batch and b not in d.rhs_contract:
            builder.add([None, b], [out], rhs[b])
            out += 1
    for a, b in zip(d.lhs_contract, d.rhs_contract):
        builder.add([a, b], [None], lhs[a], REDUCTION)
    return builder.build()


def dot(op: Op, options: RuleOptions) -> OpRule:
    """Matrix and vector forms."""
    lhs, rhs = (v.type.shape for v in op.operands)
    builder = RuleBuilder.of(op)
    out = 0
    if len(lhs) == 2:
        builder.add([0, None], [out], lhs[0])
        out += 1
    if len(rhs) == 2:
        builder.add([None, 1], [out], rhs[1])
    builder.add([len(lhs) - 1, 0], [None], lhs[-1], REDUCTION)
    return builder.build()


RULES = {"stablehlo.dot": dot, "stablehlo.dot_general": dot_general}
