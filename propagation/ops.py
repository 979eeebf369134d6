"""What an operation is: one row per StableHLO, CHLO, sdy and func operation, with its traits.

Every fact about an operation by itself (is it pointwise, does it communicate, may it be removed) stands here once, for
propagation, the partitioner, the passes and the tools. Hot paths look names up in sets made once, at import:

>>> "stablehlo.add" in POINTWISE, "stablehlo.dot_general" in POINTWISE
(True, False)
>>> sorted(having("contraction", "windowed"))
['stablehlo.convolution', 'stablehlo.dynamic_conv']

What an algorithm chooses to do with an operation (look through it, prefer it, give up at it) is no fact about the
operation: such sets stand beside the algorithm, built from these where they can be.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

__all__ = [
    "ANNOTATIONS", "COMMUNICATING", "CONSTANTS", "CONTROL", "DATA_FLOW", "IMPURE", "OPS", "PLAIN",
    "POINTWISE", "REARRANGING", "REDUCTIONS", "SHARDING_ATTRIBUTE", "TERMINATORS", "OpTraits",
    "Reduction", "Trait", "having",
]  # fmt: skip

Trait = Literal[
    # What the values of the results are.
    "pointwise",  # an element of a result depends on the elements of the operands at its own position (or on scalars)
    "rearranging",  # every element of the result is an element of the first operand: data moves, nothing is computed
    "permuting",  # rearranging in which every element stays, once: reshape, transpose, reverse
    "joining",  # every element of the result is an element of one of the operands: concatenate, pad, select, ...
    "identity",  # each result is the operand of its number
    "constant",  # from attributes alone: no operands, the same on every device
    "linear",  # f(a + b) = f(a) + f(b) for the tensors among the operands taken together; pad with what it pads with
    "multilinear",  # linear in each operand while the others stay: products, contractions
    "contraction",  # sums of products over contracted dimensions
    "windowed",  # a window moves over some dimensions, so that neighbours need each other's borders (halos)
    "reducing",  # combines elements with the function in its region: a reduction, a scatter, a reducing collective
    "library",  # compiled to a library call or a kernel of its own with whole operands, not fused with its neighbours
    "free",  # takes no time in a compiled program: a constant, another name for a buffer, a part of every fusion
    "dynamic",  # the shape of the result depends on the values of operands
    # How it stands in a program.
    "collective",  # communicates within groups of devices (`collectives.kinds` has the details)
    "message",  # sends to or receives from outside of the program
    "token",  # makes tokens, which order messages, from nothing or other tokens
    "device_id",  # the number of the device that asks
    "nondeterministic",  # equal operands need not give equal results: random numbers, messages, foreign calls
    "control",  # its regions run in its place: loops, branches, manual and named computations
    "data_flow",  # values that flow through it are one value seen from several places: control, barriers
    "terminator",  # ends a region
    "annotation",  # changes no values and says something about shardings
    "impure",  # stays although nothing uses its results; MLIR calls it not pure, or it has no trait that says so
]
_TRAITS = frozenset(get_args(Trait))


class OpTraits(NamedTuple):
    """A row of the table.

    name                with its dialect: `stablehlo.add`
    traits              what holds for it, whatever its attributes
    plain               the operation that it stands for once implicit broadcasts are written out (`chlo.broadcast_add`)
                        or sizes known (`stablehlo.dynamic_pad`), or whose older form it is (`stablehlo.dot`)
    sharding_attribute  where it keeps the sharding of its result, if that is not `sdy.sharding`
    """

    name: str
    traits: frozenset[Trait]
    plain: str | None = None
    sharding_attribute: str | None = None


def _op(name: str, *traits: Trait, plain: str | None = None, sharding_attribute: str | None = None) -> OpTraits:
    return OpTraits(name, frozenset(traits), plain, sharding_attribute)


_STABLEHLO = (
    _op("stablehlo.abs", "pointwise"),
    _op("stablehlo.add", "pointwise", "linear"),
    _op("stablehlo.after_all", "token"),
    _op("stablehlo.all_gather", "collective", "linear", "impure"),
    _op("stablehlo.all_reduce", "collective", "reducing", "impure"),
    _op("stablehlo.all_to_all", "collective", "linear", "impure"),
    _op("stablehlo.and", "pointwise"),
    _op("stablehlo.async_done", "impure"),
    _op("stablehlo.async_start"),
    _op("stablehlo.atan2", "pointwise"),
    _op("stablehlo.batch_norm_grad"),
    _op("stablehlo.batch_norm_inference"),
    _op("stablehlo.batch_norm_training"),
    _op("stablehlo.bitcast_convert", "free"),
    _op("stablehlo.broadcast", "rearranging", "linear", "free", plain="stablehlo.broadcast_in_dim"),
    _op("stablehlo.broadcast_in_dim", "rearranging", "linear", "free"),
    _op("stablehlo.case", "control", "data_flow"),
    _op("stablehlo.cbrt", "pointwise"),
    _op("stablehlo.ceil", "pointwise"),
    _op("stablehlo.cholesky", "library"),
    _op("stablehlo.clamp", "pointwise"),
    _op("stablehlo.collective_broadcast", "collective", "linear", "impure"),
    _op("stablehlo.collective_permute", "collective", "linear", "impure"),
    _op("stablehlo.collective_reduce", "collective", "reducing", "impure"),  # since jaxlib 0.12
    _op("stablehlo.compare", "pointwise"),
    _op("stablehlo.complex", "pointwise", "linear"),
    _op("stablehlo.composite", "impure"),
    _op("stablehlo.concatenate", "joining", "linear"),
    _op("stablehlo.constant", "constant", "free"),
    _op("stablehlo.convert", "pointwise", "linear"),
    _op("stablehlo.convolution", "contraction", "windowed", "multilinear", "library"),
    _op("stablehlo.cosine", "pointwise"),
    _op("stablehlo.count_leading_zeros", "pointwise"),
    _op("stablehlo.create_token", "token", "impure"),
    _op("stablehlo.cross-replica-sum", "collective", "linear", "impure", plain="stablehlo.all_reduce"),
    _op("stablehlo.custom_call", "nondeterministic"),
    _op("stablehlo.divide", "pointwise"),
    _op("stablehlo.dot", "contraction", "multilinear", "library", plain="stablehlo.dot_general"),
    _op("stablehlo.dot_general", "contraction", "multilinear", "library"),
    _op("stablehlo.dynamic_broadcast_in_dim", "rearranging", "linear", "dynamic", plain="stablehlo.broadcast_in_dim"),
    _op("stablehlo.dynamic_conv", "contraction", "windowed", "multilinear", "library", "dynamic",
        plain="stablehlo.convolution"),
    _op("stablehlo.dynamic_gather", "rearranging", "linear", "dynamic", plain="stablehlo.gather"),
    _op("stablehlo.dynamic_iota", "dynamic", plain="stablehlo.iota"),
    _op("stablehlo.dynamic_pad", "joining", "linear", "dynamic", plain="stablehlo.pad"),
    _op("stablehlo.dynamic_reshape", "rearranging", "permuting", "linear", "dynamic", plain="stablehlo.reshape"),
    _op("stablehlo.dynamic_slice", "rearranging", "linear"),
    _op("stablehlo.dynamic_update_slice", "joining", "linear"),
    _op("stablehlo.einsum", "contraction", "multilinear", "library", plain="stablehlo.dot_general"),
    _op("stablehlo.exponential", "pointwise"),
    _op("stablehlo.exponential_minus_one", "pointwise"),
    _op("stablehlo.fft", "linear", "library"),
    _op("stablehlo.floor", "pointwise"),
    _op("stablehlo.gather", "rearranging", "linear"),
    _op("stablehlo.get_dimension_size"),
    _op("stablehlo.get_tuple_element", "free"),
    _op("stablehlo.if", "control", "data_flow"),
    _op("stablehlo.imag", "pointwise", "linear"),
    _op("stablehlo.infeed", "message", "nondeterministic", "impure"),
    _op("stablehlo.iota", "constant", "free"),
    _op("stablehlo.is_finite", "pointwise"),
    _op("stablehlo.log", "pointwise"),
    _op("stablehlo.log_plus_one", "pointwise"),
    _op("stablehlo.logistic", "pointwise"),
    _op("stablehlo.map"),  # pointwise as far as the function in its region is
    _op("stablehlo.maximum", "pointwise"),
    _op("stablehlo.minimum", "pointwise"),
    _op("stablehlo.multiply", "pointwise", "multilinear"),
    _op("stablehlo.negate", "pointwise", "linear"),
    _op("stablehlo.not", "pointwise"),
    _op("stablehlo.optimization_barrier", "identity", "data_flow", "linear", "free"),
    _op("stablehlo.or", "pointwise"),
    _op("stablehlo.outfeed", "message", "impure"),
    _op("stablehlo.pad", "joining", "linear"),
    _op("stablehlo.partition_id", "device_id"),
    _op("stablehlo.popcnt", "pointwise"),
    _op("stablehlo.power", "pointwise"),
    _op("stablehlo.real", "pointwise", "linear"),
    _op("stablehlo.real_dynamic_slice", "rearranging", "linear", "dynamic", plain="stablehlo.slice"),
    _op("stablehlo.recv", "message", "nondeterministic", "impure"),
    _op("stablehlo.reduce", "reducing"),
    _op("stablehlo.reduce_precision", "pointwise"),
    _op("stablehlo.reduce_scatter", "collective", "reducing", "impure"),
    _op("stablehlo.reduce_window", "reducing", "windowed"),
    _op("stablehlo.remainder", "pointwise"),
    _op("stablehlo.replica_id", "device_id", "free"),
    _op("stablehlo.reshape", "rearranging", "permuting", "linear", "free"),
    _op("stablehlo.return", "terminator", "free", "impure"),
    _op("stablehlo.reverse", "rearranging", "permuting", "linear"),
    _op("stablehlo.rng", "nondeterministic", "impure"),
    _op("stablehlo.rng_bit_generator"),
    _op("stablehlo.round_nearest_afz", "pointwise"),
    _op("stablehlo.round_nearest_even", "pointwise"),
    _op("stablehlo.rsqrt", "pointwise"),
    _op("stablehlo.scatter", "reducing"),
    _op("stablehlo.select", "pointwise", "joining"),
    _op("stablehlo.select_and_scatter", "reducing", "windowed"),
    _op("stablehlo.send", "message", "impure"),
    _op("stablehlo.set_dimension_size", "dynamic"),
    _op("stablehlo.shift_left", "pointwise"),
    _op("stablehlo.shift_right_arithmetic", "pointwise"),
    _op("stablehlo.shift_right_logical", "pointwise"),
    _op("stablehlo.sign", "pointwise"),
    _op("stablehlo.sine", "pointwise"),
    _op("stablehlo.slice", "rearranging", "linear"),
    _op("stablehlo.sort", "library"),
    _op("stablehlo.sqrt", "pointwise"),
    _op("stablehlo.subtract", "pointwise", "linear"),
    _op("stablehlo.tan", "pointwise"),
    _op("stablehlo.tanh", "pointwise"),
    _op("stablehlo.torch_index_select", "rearranging", "linear", plain="stablehlo.gather"),
    _op("stablehlo.transpose", "rearranging", "permuting", "linear"),
    _op("stablehlo.triangular_solve", "library"),
    _op("stablehlo.tuple", "free"),
    _op("stablehlo.unary_einsum", "linear", plain="stablehlo.dot_general"),
    _op("stablehlo.uniform_dequantize"),
    _op("stablehlo.uniform_quantize"),
    _op("stablehlo.while", "control", "data_flow"),
    _op("stablehlo.xor", "pointwise"),
)  # fmt: skip

_CHLO = (
    _op("chlo._asin_acos_kernel", "pointwise"),
    _op("chlo.acos", "pointwise"),
    _op("chlo.acosh", "pointwise"),
    _op("chlo.asin", "pointwise"),
    _op("chlo.asinh", "pointwise"),
    _op("chlo.atan", "pointwise"),
    _op("chlo.atanh", "pointwise"),
    _op("chlo.bessel_i1e", "pointwise"),
    _op("chlo.broadcast_add", plain="stablehlo.add"),
    _op("chlo.broadcast_and", plain="stablehlo.and"),
    _op("chlo.broadcast_atan2", plain="stablehlo.atan2"),
    _op("chlo.broadcast_compare", plain="stablehlo.compare"),
    _op("chlo.broadcast_complex", plain="stablehlo.complex"),
    _op("chlo.broadcast_divide", plain="stablehlo.divide"),
    _op("chlo.broadcast_maximum", plain="stablehlo.maximum"),
    _op("chlo.broadcast_minimum", plain="stablehlo.minimum"),
    _op("chlo.broadcast_multiply", plain="stablehlo.multiply"),
    _op("chlo.broadcast_next_after", plain="chlo.next_after"),
    _op("chlo.broadcast_or", plain="stablehlo.or"),
    _op("chlo.broadcast_polygamma", plain="chlo.polygamma"),
    _op("chlo.broadcast_power", plain="stablehlo.power"),
    _op("chlo.broadcast_remainder", plain="stablehlo.remainder"),
    _op("chlo.broadcast_select", plain="stablehlo.select"),
    _op("chlo.broadcast_shift_left", plain="stablehlo.shift_left"),
    _op("chlo.broadcast_shift_right_arithmetic", plain="stablehlo.shift_right_arithmetic"),
    _op("chlo.broadcast_shift_right_logical", plain="stablehlo.shift_right_logical"),
    _op("chlo.broadcast_subtract", plain="stablehlo.subtract"),
    _op("chlo.broadcast_xor", plain="stablehlo.xor"),
    _op("chlo.broadcast_zeta", plain="chlo.zeta"),
    _op("chlo.conj", "pointwise"),
    _op("chlo.constant", "constant", "free", plain="stablehlo.constant"),
    _op("chlo.constant_like", "free", plain="stablehlo.constant"),
    _op("chlo.cosh", "pointwise"),
    _op("chlo.digamma", "pointwise"),
    _op("chlo.erf", "pointwise"),
    _op("chlo.erf_inv", "pointwise"),
    _op("chlo.erfc", "pointwise"),
    _op("chlo.is_inf", "pointwise"),
    _op("chlo.is_neg_inf", "pointwise"),
    _op("chlo.is_pos_inf", "pointwise"),
    _op("chlo.lgamma", "pointwise"),
    _op("chlo.mulhi", "pointwise"),
    _op("chlo.next_after", "pointwise"),
    _op("chlo.polygamma", "pointwise"),
    _op("chlo.ragged_dot", "contraction", "multilinear", "library"),
    _op("chlo.scan"),
    _op("chlo.sinh", "pointwise"),
    _op("chlo.square", "pointwise"),
    _op("chlo.tan", "pointwise"),
    _op("chlo.top_k", "library"),
    _op("chlo.zeta", "pointwise"),
)

_SDY = (
    _op("sdy.all_gather", "identity", "impure", sharding_attribute="out_sharding"),
    _op("sdy.all_reduce", "identity", "impure", sharding_attribute="out_sharding"),
    _op("sdy.all_slice", "identity", "impure", sharding_attribute="out_sharding"),
    _op("sdy.all_to_all", "identity", "impure", sharding_attribute="out_sharding"),
    _op("sdy.collective_permute", "identity", "impure", sharding_attribute="out_sharding"),
    _op("sdy.constant", "constant", "free", plain="stablehlo.constant"),
    _op("sdy.data_flow_edge", "identity", "annotation", "impure", sharding_attribute="sharding"),
    _op("sdy.func_data_flow_edge", "identity", "annotation", "impure"),
    _op("sdy.manual_computation", "control", "data_flow"),
    _op("sdy.mesh"),
    _op("sdy.named_computation", "control", "data_flow"),
    _op("sdy.propagation_barrier", "identity", "annotation"),
    _op("sdy.reduce_scatter", "identity", "impure", sharding_attribute="out_sharding"),
    _op("sdy.replicated_to_unreduced", "identity", "impure", sharding_attribute="out_sharding"),
    _op("sdy.reshard", "identity", "annotation", sharding_attribute="sharding"),
    _op("sdy.return", "terminator", "free", "impure"),
    _op("sdy.sharded_to_unreduced", "identity", "impure", sharding_attribute="out_sharding"),
    _op("sdy.sharding_constraint", "identity", "annotation", "impure", sharding_attribute="sharding"),
    _op("sdy.sharding_group", "annotation", "impure"),
)

_FUNC = (
    _op("func.call", "impure"),
    _op("func.func"),
    _op("func.return", "terminator", "free", "impure"),
)

# The table.
OPS: dict[str, OpTraits] = {row.name: row for row in (*_STABLEHLO, *_CHLO, *_SDY, *_FUNC)}


def having(*traits: Trait) -> frozenset[str]:
    """The names of the operations that have all these traits. For use at import; it walks the table."""
    unknown = set(traits) - _TRAITS
    if unknown:
        raise ValueError(f"no trait of operations is called {', '.join(sorted(unknown))}; there are {sorted(_TRAITS)}")
    return frozenset([row.name for row in OPS.values() if row.traits.issuperset(traits)])


POINTWISE = having("pointwise")
REARRANGING = having("rearranging")
CONSTANTS = having("constant")
COMMUNICATING = having("collective")
CONTROL = having("control")
DATA_FLOW = having("data_flow")
TERMINATORS = having("terminator")
ANNOTATIONS = having("annotation")
IMPURE = having("impure")
PLAIN: dict[str, str] = {row.name: row.plain for row in OPS.values() if row.plain}
SHARDING_ATTRIBUTE: dict[str, str] = {
    row.name: row.sharding_attribute for row in OPS.values() if row.sharding_attribute
}


class Reduction(NamedTuple):
    """An associative and commutative operation with which partial results are combined.

    kind         its short name, as HLO and NumPy have it: `add`, `mul`, `max`, ...
    op           the operation that combines two values: `stablehlo.add`
    of_booleans  the kind that means the same for truth values
    sdy          its number in the attribute `reduction_op` of `sdy.all_reduce`; None if it has none
    """

    kind: str
    op: str
    of_booleans: str
    sdy: int | None = None


# By the name of the operation.
REDUCTIONS: dict[str, Reduction] = {
    row.op: row
    for row in (
        Reduction("add", "stablehlo.add", "or", 0),
        Reduction("mul", "stablehlo.multiply", "and"),
        Reduction("max", "stablehlo.maximum", "or", 1),
        Reduction("min", "stablehlo.minimum", "and", 2),
        Reduction("and", "stablehlo.and", "and"),
        Reduction("or", "stablehlo.or", "or"),
        Reduction("xor", "stablehlo.xor", "xor"),
    )
}
