"""One module for every operation of the StableHLO and CHLO dialects that `rule_cases` does not have."""

from __future__ import annotations

import inspect
import re

from jaxlib.mlir.dialects import _chlo_ops_gen, _stablehlo_ops_gen

from .rule_cases import _ints, _reducer, _t, single

UNARY = (
    "abs ceil cosine exponential exponential_minus_one log logistic round_nearest_even rsqrt sqrt tan floor cbrt sine"
)
BINARY = "divide minimum subtract multiply"
INTEGER = "shift_left shift_right_arithmetic shift_right_logical xor or and"
CHLO_UNARY = "acos acosh asin asinh atan atanh bessel_i1e conj cosh digamma erf_inv erfc lgamma sinh square tan erf"
CHLO_BINARY = "next_after polygamma zeta"
CHLO_BROADCAST = "add atan2 divide maximum minimum multiply next_after polygamma power remainder subtract zeta"
CHLO_BROADCAST_INTEGER = "and or xor shift_left shift_right_arithmetic shift_right_logical"

# Tuples and shapes that are not known, which propagation refuses; and quantization, whose types belong to a dialect
# that jaxlib does not have.
LEFT_OUT = {
    "stablehlo.dynamic_broadcast_in_dim",
    "stablehlo.dynamic_conv",
    "stablehlo.dynamic_gather",
    "stablehlo.dynamic_iota",
    "stablehlo.dynamic_pad",
    "stablehlo.dynamic_reshape",
    "stablehlo.get_tuple_element",
    "stablehlo.real_dynamic_slice",
    "stablehlo.set_dimension_size",
    "stablehlo.tuple",
    "stablehlo.uniform_dequantize",
    "stablehlo.uniform_quantize",
}


def registered() -> set[str]:
    """The operations of both dialects in the installed jaxlib."""
    text = inspect.getsource(_stablehlo_ops_gen) + inspect.getsource(_chlo_ops_gen)
    return set(re.findall(r'OPERATION_NAME = "([\w.\-]+)"', text))


def pointwise() -> list[str]:
    m, i, b = _t((8, 4)), _t((8, 4), "i32"), _t((8, 4), "i1")
    c = [single(f"stablehlo.{n}", [m], [m]) for n in UNARY.split()]
    c += [single(f"stablehlo.{n}", [m, m], [m]) for n in BINARY.split()]
    c += [single(f"stablehlo.{n}", [i, i], [i]) for n in INTEGER.split()]
    c.append(single("stablehlo.is_finite", [m], [b]))
    c.append(single("stablehlo.complex", [m, m], [_t((8, 4), "complex<f32>")]))
    c += [single(f"stablehlo.{n}", [_t((8, 4), "complex<f32>")], [m]) for n in ("real", "imag")]
    c.append(single("stablehlo.map", [m, m], [m], f"dimensions = {_ints([0, 1])}", _reducer()))
    return c


def shapes() -> list[str]:
    m = _t((8, 4))
    c = [single("stablehlo.iota", [], [m], "iota_dimension = 1 : i64")]
    c.append(single("stablehlo.broadcast", [m], [_t((2, 8, 4))], f"broadcast_sizes = {_ints([2])}"))
    c.append(single("stablehlo.get_dimension_size", [m], ["tensor<i32>"], "dimension = 0 : i64"))
    c.append(single("stablehlo.einsum", [m, _t((4, 3))], [_t((8, 3))], 'einsum_config = "ab,bc->ac"'))
    c.append(single("stablehlo.unary_einsum", [m], [_t((4, 8))], 'einsum_config = "ab->ba"'))
    attrs = "dim = 0 : i64, batch_dims = 0 : i64"
    c.append(single("stablehlo.torch_index_select", [m, _t((3,), "i32")], [_t((3, 4))], attrs))
    return c


def normalisations() -> list[str]:
    x, v = _t((2, 4, 6)), _t((4,))
    attrs = "epsilon = 0.1 : f32, feature_index = 1 : i64"
    return [
        single("stablehlo.batch_norm_training", [x, v, v], [x, v, v], attrs),
        single("stablehlo.batch_norm_grad", [x, v, v, v, x], [x, v, v], attrs),
    ]


def tokens() -> list[str]:
    m, token = _t((8, 4)), "!stablehlo.token"
    channel = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 2>"
    groups = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
    return [
        single("stablehlo.create_token", [], [token]),
        single("stablehlo.after_all", [token], [token]),
        single("stablehlo.infeed", [token], [m, token], 'infeed_config = ""'),
        single("stablehlo.outfeed", [m, token], [token], 'outfeed_config = ""'),
        single("stablehlo.send", [m, token], [token], f"{channel}, is_host_transfer = true"),
        single(
            "stablehlo.recv",
            [token],
            [m, token],
            "channel_handle = #stablehlo.channel_handle<handle = 1, type = 3>, is_host_transfer = true",
        ),
        single("stablehlo.partition_id", [], ["tensor<ui32>"]),
        single("stablehlo.replica_id", [], ["tensor<ui32>"]),
        single("stablehlo.cross-replica-sum", [m], [m], groups),
    ]


def structure() -> list[str]:
    m = _t((8, 4))
    branches = ", ".join(
        [
            "{ %c = stablehlo.constant dense<0.0> : tensor<8x4xf32>\n%n = stablehlo.negate %c : tensor<8x4xf32>\n"
            "stablehlo.return %n : tensor<8x4xf32> }"
        ]
        * 2
    )
    c = [
        single("stablehlo.if", ["tensor<i1>"], [m], "", branches),
        single("stablehlo.case", ["tensor<i32>"], [m], "", branches),
        single("stablehlo.optimization_barrier", [m, m], [m, m]),
        "func.func @main(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {\n"
        '  %0 = stablehlo.composite "my.op" %x {decomposition = @f} : (tensor<8x4xf32>) -> tensor<8x4xf32>\n'
        "  return %0 : tensor<8x4xf32> }\n"
        "func.func private @f(%x: tensor<8x4xf32>) -> tensor<8x4xf32> { return %x : tensor<8x4xf32> }",
    ]
    loop = (
        "{ ^bb0(%y: tensor<8x4xf32>): %c = stablehlo.constant dense<false> : tensor<i1>\n"
        "stablehlo.return %c : tensor<i1> }, { ^bb0(%y: tensor<8x4xf32>): stablehlo.return %y : tensor<8x4xf32> }"
    )
    c.append(single("stablehlo.while", [m], [m], "", loop))
    groups = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
    c.append(single("stablehlo.collective_reduce", [m], [m], groups, _reducer()))
    c.append(
        f"func.func @main(%a: {m}) -> {m} {{\n"
        f'  %f = "stablehlo.async_start"(%a) ({{ ^bb0(%x: {m}):\n'
        '    %s = "stablehlo.collective_permute"(%x) {source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}'
        f" : ({m}) -> {m}\n"
        f"    stablehlo.return %s : {m} }}) : ({m}) -> !stablehlo.future<{m}>\n"
        f'  %r = "stablehlo.async_done"(%f) : (!stablehlo.future<{m}>) -> {m}\n'
        f"  return %r : {m} }}"
    )
    return c


def chlo() -> list[str]:
    m, row, i = _t((8, 4)), _t((4,)), _t((8, 4), "i32")
    c = [single(f"chlo.{n}", [m], [m]) for n in CHLO_UNARY.split()]
    c.append(single("chlo._asin_acos_kernel", [_t((8, 4), "complex<f32>")], [_t((8, 4), "complex<f32>")]))
    c += [single(f"chlo.{n}", [m], [_t((8, 4), "i1")]) for n in ("is_inf", "is_neg_inf", "is_pos_inf")]
    c += [single(f"chlo.{n}", [m, m], [m]) for n in CHLO_BINARY.split()]
    c += [single(f"chlo.broadcast_{n}", [m, row], [m]) for n in CHLO_BROADCAST.split()]
    c += [single(f"chlo.broadcast_{n}", [i, i], [i]) for n in CHLO_BROADCAST_INTEGER.split()]
    less = "comparison_direction = #chlo<comparison_direction LT>"
    c.append(single("chlo.broadcast_compare", [m, m], [_t((8, 4), "i1")], less))
    c.append(single("chlo.broadcast_complex", [m, m], [_t((8, 4), "complex<f32>")]))
    c.append(single("chlo.broadcast_select", [_t((8, 4), "i1"), m, m], [m]))
    c.append(single("chlo.constant", [], [m], "value = dense<1.0> : tensor<8x4xf32>"))
    c.append(single("chlo.constant_like", [m], [m], "value = 1.0 : f32"))
    c.append(single("chlo.top_k", [m], [_t((8, 2)), _t((8, 2), "i32")], "k = 2 : i64"))
    c.append(single("chlo.mulhi", [i, i], [i]))
    row_body = (
        "{ ^bb0(%x: tensor<4xf32>, %y: tensor<4xf32>): %s = stablehlo.add %x, %y : tensor<4xf32>\n"
        "stablehlo.return %s, %s : tensor<4xf32>, tensor<4xf32> }"
    )
    segments = "operandSegmentSizes = array<i32: 1, 1>, resultSegmentSizes = array<i32: 1, 1>"
    c.append(single("chlo.scan", [m, row], [m, row], f"dimension = 0 : i64, {segments}, is_reverse = false", row_body))
    dims = (
        "lhs_batching_dimensions = [], rhs_batching_dimensions = [], lhs_contracting_dimensions = [1], "
        "rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]"
    )
    c.append(
        single(
            "chlo.ragged_dot",
            [m, _t((3, 4, 5)), _t((3,), "i64")],
            [_t((8, 5))],
            f"ragged_dot_dimension_numbers = #chlo.ragged_dot<{dims}>",
        )
    )
    return c


def all_cases() -> list[str]:
    """The cases whose operation the installed jaxlib has."""
    known = registered()
    cases = [c for family in (pointwise, shapes, normalisations, tokens, structure, chlo) for c in family()]
    return [c for c in cases if all(n in known for n in re.findall(r'"((?:stablehlo|chlo)\.[\w\-]+)"\(', c))]
