"""Operations that work element by element, and collectives that keep shapes."""

from __future__ import annotations

from ..attributes import integer
from ..graph import Op
from ..model import OpRule
from ..ops import CONSTANTS, PLAIN, POINTWISE
from .builder import NEED_REPLICATION, RuleBuilder, pointwise, signature
from .options import RuleOptions

_SHAPE_KEEPING = ["all_reduce", "collective_broadcast", "collective_permute", "cross-replica-sum"]

# CHLO operations that frontends emit; Shardy has no rules for them, see `elementwise_chlo`.
_CHLO = [name for name in (*POINTWISE, *PLAIN) if name.startswith("chlo.") and PLAIN.get(name) not in CONSTANTS]


def elementwise(op: Op, options: RuleOptions) -> OpRule:
    """One factor per dimension, in every tensor that is not a scalar."""
    return pointwise(op)


def shape_keeping(op: Op, options: RuleOptions) -> OpRule:
    """Collectives over whole operands: pointwise in shape, but not in the strategies' sense."""
    return pointwise(op, elementwise=False)


def elementwise_chlo(op: Op, options: RuleOptions) -> OpRule | None:
    """A rule only where asked for (`chlo=True`): Shardy lets nothing through these operations."""
    shape = op.results[0].type.shape
    if not options.chlo or any(v.type.shape not in ((), shape) for v in op.operands):
        return None
    return pointwise(op)


def bitcast_convert(op: Op, options: RuleOptions) -> OpRule:
    """The minor-most dimension that one side has in addition holds the parts of an element."""
    a, b = op.operands[0].type.shape, op.results[0].type.shape
    builder = RuleBuilder.of(op)
    common = min(a, b, key=len)
    for dim, n in enumerate(common):
        builder.add([dim], [dim], n)
    if len(a) < len(b):
        builder.add([None], [len(b) - 1], b[-1], NEED_REPLICATION)
    elif len(b) < len(a):
        builder.add([len(a) - 1], [None], a[-1], NEED_REPLICATION)
    return builder.build(elementwise=len(a) == len(b))


@signature("all_gather_dim")
def all_gather(op: Op, options: RuleOptions) -> OpRule:
    """The gathered dimension has one factor in the operands and another in the results."""
    return _collective(op, [integer(op.attrs["all_gather_dim"])])


@signature("scatter_dimension")
def reduce_scatter(op: Op, options: RuleOptions) -> OpRule:
    """The scattered dimension has one factor in the operands and another in the results."""
    return _collective(op, [integer(op.attrs["scatter_dimension"])])


@signature("split_dimension", "concat_dimension")
def all_to_all(op: Op, options: RuleOptions) -> OpRule:
    """The split and the concatenated dimension have factors of their own in operands and results, the split one's
    first: tensor<4x6> split along 1 by 2 and concatenated along 0 has `([k, i])->([l, j]) {i=6, j=3, k=4, l=8}`."""
    return _collective(op, [integer(op.attrs["split_dimension"]), integer(op.attrs["concat_dimension"])])


def _collective(op: Op, changed: list[int]) -> OpRule:
    """Dimensions in `changed` are unrelated between operands and results."""
    builder = RuleBuilder.of(op)
    n_in, n_out = len(op.operands), len(op.results)
    ins, outs = op.operands[0].type.shape, op.results[0].type.shape
    for dim, size in enumerate(ins):
        if dim not in changed:
            builder.add([dim] * n_in, [dim] * n_out, size)
    for dim in dict.fromkeys(changed):
        builder.add([dim] * n_in, [None] * n_out, ins[dim], NEED_REPLICATION)
        builder.add([None] * n_in, [dim] * n_out, outs[dim], NEED_REPLICATION)
    return builder.build()


RULES = {
    **{name: elementwise for name in POINTWISE if name.startswith("stablehlo.")},
    **{f"stablehlo.{name}": shape_keeping for name in _SHAPE_KEEPING},
    **dict.fromkeys(_CHLO, elementwise_chlo),
    "sdy.sharding_constraint": elementwise,
    "stablehlo.all_gather": all_gather,
    "stablehlo.all_to_all": all_to_all,
    "stablehlo.bitcast_convert": bitcast_convert,
    "stablehlo.reduce_scatter": reduce_scatter,
}
