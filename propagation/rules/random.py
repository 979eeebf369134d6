"""Random bits."""

from __future__ import annotations

from ..graph import Op
from ..model import OpRule
from .builder import NEED_REPLICATION, RuleBuilder
from .options import RuleOptions


def rng_bit_generator(op: Op, options: RuleOptions) -> OpRule:
    """The state is whole on every device; the output may be split freely."""
    builder = RuleBuilder.of(op)
    for dim, size in enumerate(op.operands[0].type.shape):
        builder.add([dim], [dim, None], size, NEED_REPLICATION, True)
    for dim, size in enumerate(op.results[1].type.shape):
        builder.add([None], [None, dim], size)
    return builder.build()


RULES = {"stablehlo.rng_bit_generator": rng_bit_generator}
