"""What each StableHLO operation computes, said by `meshrt.lax`: a table, by its name. Those of CHLO stand in files as
composites of the same names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from meshrt import lax
from meshrt.core.types import aval_of
from meshrt.export.raising_attributes import NotRaised, array_of, enum, flag, number, numbers, pairs, type_of
from meshrt.export.raising_sorts import keys_of
from meshrt.primitives import functions, scatter

__all__ = ["OPERATIONS", "is_known"]

Rule = Callable[..., Any]
OPERATIONS: dict[str, Rule] = {}


def _rule(name: str) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        OPERATIONS[f"stablehlo.{name}"] = rule
        return rule

    return add


# ---------------------------------------------------------------------------------------------------------------------
# Element by element

_ELEMENTWISE = {
    "abs": lax.abs, "add": lax.add, "and": lax.bitwise_and, "atan2": lax.atan2, "cbrt": lax.cbrt, "ceil": lax.ceil,
    "clamp": lax.clamp, "complex": lax.complex, "cosine": lax.cos, "count_leading_zeros": lax.clz, "divide": lax.div,
    "exponential": lax.exp, "exponential_minus_one": lax.expm1, "floor": lax.floor, "imag": lax.imag,
    "is_finite": lax.is_finite, "log": lax.log, "log_plus_one": lax.log1p, "logistic": lax.logistic,
    "maximum": lax.max, "minimum": lax.min, "multiply": lax.mul, "negate": lax.neg, "not": lax.bitwise_not,
    "or": lax.bitwise_or, "popcnt": lax.population_count, "power": lax.pow, "real": lax.real, "remainder": lax.rem,
    "round_nearest_afz": lambda x: functions.round(x, functions.RoundingMethod.AWAY_FROM_ZERO),
    "round_nearest_even": lambda x: functions.round(x, functions.RoundingMethod.TO_NEAREST_EVEN), "rsqrt": lax.rsqrt,
    "select": lax.select, "shift_left": lax.shift_left, "shift_right_arithmetic": lax.shift_right_arithmetic,
    "shift_right_logical": lax.shift_right_logical, "sign": lax.sign, "sine": lax.sin, "sqrt": lax.sqrt,
    "subtract": lax.sub, "tan": lax.tan, "tanh": lax.tanh, "xor": lax.bitwise_xor,
}  # fmt: skip
_OF_BOOLEANS: dict[str, Callable[..., Any]] = {
    "add": lax.bitwise_or, "multiply": lax.bitwise_and, "maximum": lax.bitwise_or, "minimum": lax.bitwise_and,
}  # fmt: skip
_CHLO = {
    "acos": lax.acos, "acosh": lax.acosh, "asin": lax.asin, "asinh": lax.asinh, "atan": lax.atan, "atanh": lax.atanh,
    "bessel_i1e": lax.bessel_i1e, "conj": lax.conj, "cosh": lax.cosh, "digamma": lax.digamma, "erf": lax.erf,
    "erf_inv": lax.erf_inv, "erfc": lax.erfc, "lgamma": lax.lgamma, "next_after": lax.nextafter, "sinh": lax.sinh,
    "square": lax.square, "zeta": lax.zeta,
}  # fmt: skip


def _elementwise(name: str, fun: Rule) -> Rule:
    def rule(op: Any, *operands: Any) -> Any:
        if "result_accuracy" in op.attributes and "DEFAULT" not in str(op.attributes["result_accuracy"]):
            raise NotRaised(f"{op.name} of a given accuracy")
        if name in _OF_BOOLEANS and aval_of(operands[0]).dtype == bool:
            return _OF_BOOLEANS[name](*operands)
        return fun(*operands)

    return rule


OPERATIONS.update({f"stablehlo.{name}": _elementwise(name, fun) for name, fun in _ELEMENTWISE.items()})
OPERATIONS.update({f"chlo.{name}": _elementwise("", fun) for name, fun in _CHLO.items()})
_COMPARED: dict[str, Callable[..., Any]] = {
    "EQ": lax.eq, "NE": lax.ne, "LT": lax.lt, "LE": lax.le, "GT": lax.gt, "GE": lax.ge,
}  # fmt: skip


@_rule("compare")
def _compare(op: Any, x: Any, y: Any) -> Any:
    if enum(op, "compare_type") == "TOTALORDER":
        raise NotRaised("a comparison in total order")
    return _COMPARED[enum(op, "comparison_direction")](x, y)


@_rule("convert")
def _convert(op: Any, x: Any) -> Any:
    return lax.convert_element_type(x, type_of(op.results[0]).dtype)


@_rule("bitcast_convert")
def _bitcast(op: Any, x: Any) -> Any:
    return lax.bitcast_convert_type(x, type_of(op.results[0]).dtype)


@_rule("reduce_precision")
def _reduce_precision(op: Any, x: Any) -> Any:
    return lax.reduce_precision(x, number(op, "exponent_bits"), number(op, "mantissa_bits"))


@_rule("optimization_barrier")
def _barrier(op: Any, *operands: Any) -> Any:
    found = lax.optimization_barrier(operands)
    return found[0] if len(operands) == 1 else found


# ---------------------------------------------------------------------------------------------------------------------
# Shapes


@_rule("constant")
def _constant(op: Any) -> Any:
    kind = type_of(op.results[0])
    value = array_of(op, "value", kind)
    return value if value.shape == kind.shape else lax.broadcast_in_dim(value, kind.shape, ())


@_rule("iota")
def _iota(op: Any) -> Any:
    kind = type_of(op.results[0])
    return lax.broadcasted_iota(kind.dtype, kind.shape, number(op, "iota_dimension"))


@_rule("broadcast_in_dim")
def _broadcast(op: Any, x: Any) -> Any:
    return lax.broadcast_in_dim(x, type_of(op.results[0]).shape, numbers(op, "broadcast_dimensions", 0, 0))


@_rule("reshape")
def _reshape(op: Any, x: Any) -> Any:
    return lax.reshape(x, type_of(op.results[0]).shape)


@_rule("transpose")
def _transpose(op: Any, x: Any) -> Any:
    return lax.transpose(x, numbers(op, "permutation", 0, 0))


@_rule("reverse")
def _reverse(op: Any, x: Any) -> Any:
    return lax.rev(x, numbers(op, "dimensions", 0, 0))


@_rule("slice")
def _slice(op: Any, x: Any) -> Any:
    return lax.slice(x, *(numbers(op, name, 0, 0) for name in ("start_indices", "limit_indices", "strides")))


@_rule("pad")
def _pad(op: Any, x: Any, value: Any) -> Any:
    names = "edge_padding_low", "edge_padding_high", "interior_padding"
    low, high, between = (numbers(op, name, 0, 0) for name in names)
    return lax.pad(x, value, list(zip(low, high, between)))


@_rule("concatenate")
def _concatenate(op: Any, *operands: Any) -> Any:
    return lax.concatenate(operands, number(op, "dimension"))


# ---------------------------------------------------------------------------------------------------------------------
# Indices


@_rule("dynamic_slice")
def _dynamic_slice(op: Any, x: Any, *starts: Any) -> Any:
    sizes = numbers(op, "slice_sizes", 0, 0)
    return lax.dynamic_slice(x, starts, sizes, allow_negative_indices=False)


@_rule("dynamic_update_slice")
def _dynamic_update_slice(op: Any, x: Any, update: Any, *starts: Any) -> Any:
    return lax.dynamic_update_slice(x, update, starts, allow_negative_indices=False)


@_rule("gather")
def _gather(op: Any, x: Any, indices: Any) -> Any:
    n = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    batch = n.start_indices_batching_dims
    names = lax.GatherDimensionNumbers(
        tuple(n.offset_dims), tuple(n.collapsed_slice_dims), tuple(n.start_index_map), tuple(n.operand_batching_dims),
        tuple(batch),
    )  # fmt: skip
    indices = _vectors_last(indices, n.index_vector_dim)
    return lax.gather(x, indices, names, numbers(op, "slice_sizes", 0, 0), mode="clip",
                      indices_are_sorted=flag(op, "indices_are_sorted"))  # fmt: skip


def _vectors_last(indices: Any, dim: int) -> Any:
    """Indices with their vectors in the last dimension."""
    ndim = aval_of(indices).ndim
    if dim == ndim:
        return lax.expand_dims(indices, (ndim,))
    if dim != ndim - 1:
        raise NotRaised("vectors of indices that do not lie in the last dimension")
    return indices


_SCATTERS = {
    "stablehlo.add": lax.scatter_add, "stablehlo.maximum": lax.scatter_max, "stablehlo.minimum": lax.scatter_min,
    "stablehlo.multiply": lax.scatter_mul, "stablehlo.subtract": lax.scatter_sub, "stablehlo.and": scatter.scatter_and,
    "stablehlo.or": scatter.scatter_or, "stablehlo.xor": scatter.scatter_xor,
}  # fmt: skip


@_rule("scatter")
def _scatter(op: Any, *operands: Any) -> Any:
    if len(operands) != 3:
        raise NotRaised("a scatter of several arrays")
    x, indices, updates = operands
    n = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    names = lax.ScatterDimensionNumbers(
        tuple(n.update_window_dims), tuple(n.inserted_window_dims), tuple(n.scattered_dims_to_operand_dims),
        tuple(n.input_batching_dims), tuple(n.scatter_indices_batching_dims),
    )  # fmt: skip
    return _scatter_of(op)(
        x, _vectors_last(indices, n.index_vector_dim), updates, names, mode="drop",
        indices_are_sorted=flag(op, "indices_are_sorted"), unique_indices=flag(op, "unique_indices"),
    )  # fmt: skip


def _scatter_of(op: Any) -> Any:
    """How updates are combined with what is there."""
    block = op.regions[0].blocks[0]
    old, new = block.arguments
    body = [inner.operation for inner in block.operations]
    if len(body) == 1 and body[0].operands[0] == new:
        return lax.scatter
    if len(body) == 2 and body[0].name in _SCATTERS and body[1].operands[0] == body[0].results[0]:
        if list(body[0].operands) == [old, new] and old.type.element_type != ir.IntegerType.get_signless(1, op.context):
            return _SCATTERS[body[0].name]
    raise NotRaised("a scatter with a computation of its own")


@_rule("sort")
def _sort(op: Any, *operands: Any) -> Any:
    keys = keys_of(op)
    found = lax.sort(operands, number(op, "dimension"), is_stable=flag(op, "is_stable"), num_keys=keys)
    return found[0] if len(operands) == 1 else found


def _top_k(op: Any, x: Any) -> Any:
    return lax.top_k(x, type_of(op.results[0]).shape[-1])


OPERATIONS["chlo.top_k"] = _top_k
# Those that stand as composites: how many operands and results they have.
_COMPOSITES = {f"chlo.{name}": (1 + (name in ("next_after", "zeta")), 1) for name in _CHLO} | {"chlo.top_k": (1, 2)}


def is_known(name: str, op: Any) -> bool:
    """Whether a composite is the operation of this name. Nobody verifies what it is given and its attributes; one with
    others than that operation has, such as a `top_k` of the smallest, is what its decomposition says."""
    if _COMPOSITES.get(name) != (len(op.operands), len(op.results)):
        return False
    said: Any = ir.DictAttr(op.attributes["composite_attributes"]) if "composite_attributes" in op.attributes else {}
    if name != "chlo.top_k":
        return not len(said)
    k = said["k"] if len(said) == 1 and "k" in said else None
    return isinstance(k, ir.IntegerAttr) and type_of(op.results[0]).shape[-1:] == (k.value,)


# ---------------------------------------------------------------------------------------------------------------------
# Products and others


def _precision(op: Any) -> Any:
    if "precision_config" not in op.attributes:
        return None
    words = [str(a).rpartition(" ")[2].rstrip(">") for a in ir.ArrayAttr(op.attributes["precision_config"])]
    return tuple(lax.Precision[w] for w in words)


@_rule("dot_general")
def _dot_general(op: Any, x: Any, y: Any) -> Any:
    if "algorithm" in op.attributes:
        raise NotRaised("a product by a given algorithm")
    n = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    contracted = tuple(n.lhs_contracting_dimensions), tuple(n.rhs_contracting_dimensions)
    batch = tuple(n.lhs_batching_dimensions), tuple(n.rhs_batching_dimensions)
    kind = type_of(op.results[0]).dtype
    return lax.dot_general(x, y, (contracted, batch), precision=_precision(op), preferred_element_type=kind)


@_rule("convolution")
def _convolution(op: Any, x: Any, y: Any) -> Any:
    n = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    rank = len(n.input_spatial_dimensions)
    if "window_reversal" in op.attributes and any(ir.DenseBoolArrayAttr(op.attributes["window_reversal"])):
        raise NotRaised("a convolution with a reversed window")
    names = lax.ConvDimensionNumbers(
        (n.input_batch_dimension, n.input_feature_dimension, *n.input_spatial_dimensions),
        (n.kernel_output_feature_dimension, n.kernel_input_feature_dimension, *n.kernel_spatial_dimensions),
        (n.output_batch_dimension, n.output_feature_dimension, *n.output_spatial_dimensions),
    )
    strides, left, right = (numbers(op, k, rank, 1) for k in ("window_strides", "lhs_dilation", "rhs_dilation"))
    return lax.conv_general_dilated(
        x, y, strides, pairs(op, "padding", rank), left, right, names, number(op, "feature_group_count"),
        number(op, "batch_group_count"), _precision(op), type_of(op.results[0]).dtype,
    )  # fmt: skip


@_rule("fft")
def _fft(op: Any, x: Any) -> Any:
    return lax.fft(x, enum(op, "fft_type").lower(), numbers(op, "fft_length", 0, 0))


@_rule("triangular_solve")
def _triangular_solve(op: Any, a: Any, b: Any) -> Any:
    how = enum(op, "transpose_a")
    return lax.linalg.triangular_solve(
        a, b, left_side=flag(op, "left_side"), lower=flag(op, "lower"), unit_diagonal=flag(op, "unit_diagonal"),
        transpose_a=how in ("TRANSPOSE", "ADJOINT"), conjugate_a=how == "ADJOINT",
    )  # fmt: skip


@_rule("rng_bit_generator")
def _bits(op: Any, state: Any) -> Any:
    kind = type_of(op.results[1])
    name = {"DEFAULT": "RNG_DEFAULT", "THREE_FRY": "RNG_THREE_FRY", "PHILOX": "RNG_PHILOX"}[enum(op, "rng_algorithm")]
    return lax.rng_bit_generator(state, kind.shape, kind.dtype, lax.RandomAlgorithm[name])
