"""Operations that work element by element, and collectives that keep shapes."""

from __future__ import annotations

from .builder import NEED_REPLICATION, RuleBuilder, pointwise, signature

_POINTWISE = [
    "abs",
    "add",
    "and",
    "atan2",
    "cbrt",
    "ceil",
    "compare",
    "complex",
    "convert",
    "cosine",
    "count_leading_zeros",
    "divide",
    "exponential",
    "exponential_minus_one",
    "floor",
    "imag",
    "is_finite",
    "log",
    "log_plus_one",
    "logistic",
    "maximum",
    "minimum",
    "multiply",
    "negate",
    "not",
    "or",
    "popcnt",
    "power",
    "real",
    "reduce_precision",
    "remainder",
    "round_nearest_afz",
    "round_nearest_even",
    "rsqrt",
    "shift_left",
    "shift_right_arithmetic",
    "shift_right_logical",
    "sign",
    "sine",
    "sqrt",
    "subtract",
    "tan",
    "tanh",
    "xor",
]

_SHAPE_KEEPING = ["all_reduce", "collective_broadcast", "collective_permute", "cross-replica-sum"]

# CHLO operations that frontends emit; Shardy has no rules for them, see `elementwise_chlo`.
_CHLO_POINTWISE = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bessel_i1e",
    "conj",
    "cosh",
    "digamma",
    "erf",
    "erf_inv",
    "erfc",
    "is_inf",
    "is_neg_inf",
    "is_pos_inf",
    "lgamma",
    "next_after",
    "polygamma",
    "sinh",
    "square",
    "tan",
    "zeta",
    "broadcast_add",
    "broadcast_and",
    "broadcast_atan2",
    "broadcast_compare",
    "broadcast_complex",
    "broadcast_divide",
    "broadcast_maximum",
    "broadcast_minimum",
    "broadcast_multiply",
    "broadcast_next_after",
    "broadcast_or",
    "broadcast_polygamma",
    "broadcast_power",
    "broadcast_remainder",
    "broadcast_shift_left",
    "broadcast_shift_right_arithmetic",
    "broadcast_shift_right_logical",
    "broadcast_subtract",
    "broadcast_xor",
    "broadcast_zeta",
]
# Those that Shardy counts as elementwise too, when it duplicates constants and schedules operations.
CHLO_ELEMENTWISE = frozenset(f"chlo.{n}" for n in _CHLO_POINTWISE) - {"chlo.next_after", "chlo.polygamma", "chlo.zeta"}


def elementwise(op, options):
    return pointwise(op)


def shape_keeping(op, options):
    """Collectives over whole operands: pointwise in shape, but not in the strategies' sense."""
    return pointwise(op, elementwise=False)


def elementwise_chlo(op, options):
    """A rule only where asked for (`chlo=True`): Shardy lets nothing through these operations."""
    shape = op.results[0].type.shape
    if not options.chlo or any(v.type.shape not in ((), shape) for v in op.operands):
        return None
    return pointwise(op)


def clamp(op, options):
    return pointwise(op)


def select(op, options):
    return pointwise(op)


def bitcast_convert(op, options):
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
def all_gather(op, options):
    return _collective(op, {op_int(op, "all_gather_dim")})


@signature("scatter_dimension")
def reduce_scatter(op, options):
    return _collective(op, {op_int(op, "scatter_dimension")})


@signature("split_dimension", "concat_dimension")
def all_to_all(op, options):
    return _collective(op, {op_int(op, "split_dimension"), op_int(op, "concat_dimension")})


def op_int(op, name: str) -> int:
    from ..attributes import integer

    return integer(op.attrs[name])


def _collective(op, changed: set[int]):
    """Dimensions in `changed` are unrelated between operands and results."""
    builder = RuleBuilder.of(op)
    n_in, n_out = len(op.operands), len(op.results)
    ins, outs = op.operands[0].type.shape, op.results[0].type.shape
    for dim, size in enumerate(ins):
        if dim not in changed:
            builder.add([dim] * n_in, [dim] * n_out, size)
    for dim in sorted(changed):
        builder.add([dim] * n_in, [None] * n_out, ins[dim], NEED_REPLICATION)
        builder.add([None] * n_in, [dim] * n_out, outs[dim], NEED_REPLICATION)
    return builder.build()


RULES = {
    **{f"stablehlo.{name}": elementwise for name in _POINTWISE},
    **{f"stablehlo.{name}": shape_keeping for name in _SHAPE_KEEPING},
    **{f"chlo.{name}": elementwise_chlo for name in _CHLO_POINTWISE},
    "sdy.sharding_constraint": elementwise,
    "stablehlo.all_gather": all_gather,
    "stablehlo.all_to_all": all_to_all,
    "stablehlo.bitcast_convert": bitcast_convert,
    "stablehlo.clamp": clamp,
    "stablehlo.reduce_scatter": reduce_scatter,
    "stablehlo.select": select,
}
