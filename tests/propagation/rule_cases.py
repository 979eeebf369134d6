"""Operations with many shapes, for comparing derived sharding rules with Shardy's."""

from __future__ import annotations

import itertools
import random


def _t(shape, dtype="f32") -> str:
    return f"tensor<{''.join(f'{n}x' for n in shape)}{dtype}>"


def single(op: str, ins: list[str], outs: list[str], attrs: str = "", regions: str = "") -> str:
    """A module whose @main is one operation."""
    args = ", ".join(f"%a{i}: {t}" for i, t in enumerate(ins))
    names = ", ".join(f"%a{i}" for i in range(len(ins)))
    results = ", ".join(f"%r#{i}" for i in range(len(outs))) if len(outs) > 1 else "%r"
    left = f"%r:{len(outs)}" if len(outs) > 1 else "%r"
    types = ", ".join(outs)
    attr_text = f" {{{attrs}}}" if attrs else ""
    region_text = f" ({regions})" if regions else ""
    return (
        f"func.func @main({args}) -> ({types}) {{\n"
        f'  {left} = "{op}"({names}){region_text}{attr_text} : ({", ".join(ins)}) -> ({types})\n'
        f"  return {results} : {types}\n}}"
    )


def _reducer(dtype: str = "f32", name: str = "add", count: int = 1) -> str:
    args = ", ".join(f"%p{i}: tensor<{dtype}>" for i in range(2 * count))
    lines = [f"%c{i} = stablehlo.{name} %p{i}, %p{count + i} : tensor<{dtype}>" for i in range(count)]
    names = ", ".join(f"%c{i}" for i in range(count))
    types = ", ".join([f"tensor<{dtype}>"] * count)
    return f"{{ ^bb0({args}): " + "\n".join(lines) + f"\n stablehlo.return {names} : {types} }}"


def _ints(values) -> str:
    values = list(values)
    return f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>"


def _factorizations(n: int, rng: random.Random) -> list[int]:
    dims, rest = [], n
    for p in (2, 2, 2, 3, 3, 5, 7):
        if rest % p == 0 and rng.random() < 0.6:
            dims.append(p)
            rest //= p
    dims.append(rest)
    rng.shuffle(dims)
    while len(dims) > 1 and rng.random() < 0.5:
        a = dims.pop()
        i = rng.randrange(len(dims))
        dims[i] *= a
    if rng.random() < 0.3:
        dims.insert(rng.randrange(len(dims) + 1), 1)
    return dims


def reshapes(count: int = 120, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    cases = []
    for _ in range(count):
        n = rng.choice([1, 4, 6, 12, 24, 36, 60, 64, 96, 120, 360, 16, 8])
        cases.append(single("stablehlo.reshape", [_t(_factorizations(n, rng))], [_t(_factorizations(n, rng))]))
    fixed = [([], [1]), ([1, 1], []), ([4, 0], [0, 4]), ([6, 35, 5], [14, 75]), ([2, 6], [3, 4]), ([8, 4], [4, 8])]
    return cases + [single("stablehlo.reshape", [_t(a)], [_t(b)]) for a, b in fixed]


def structural() -> list[str]:
    c = []
    for a, b in [((8, 4, 16), (2, 1, 8)), ((8, 4), (8, 4)), ((4,), (1,)), ((1, 4), (1, 2))]:
        scalars = ["tensor<i32>"] * len(a)
        c.append(single("stablehlo.dynamic_slice", [_t(a), *scalars], [_t(b)], f"slice_sizes = {_ints(b)}"))
        c.append(single("stablehlo.dynamic_update_slice", [_t(a), _t(b), *scalars], [_t(a)]))
        attrs = f"start_indices = {_ints([0] * len(a))}, limit_indices = {_ints(b)}, strides = {_ints([1] * len(a))}"
        c.append(single("stablehlo.slice", [_t(a)], [_t(b)], attrs))
        high = [x - y for x, y in zip(a, b)]
        zeros = _ints([0] * len(a))
        attrs = f"edge_padding_low = {zeros}, edge_padding_high = {_ints(high)}, interior_padding = {zeros}"
        c.append(single("stablehlo.pad", [_t(b), "tensor<f32>"], [_t(a)], attrs))
    c.append(
        "func.func @main(%x: tensor<8x4xf32>, %u: tensor<2x4xf32>) -> tensor<8x4xf32> {\n"
        "%c = stablehlo.constant dense<3> : tensor<i32>\n"
        "%0 = stablehlo.dynamic_update_slice %x, %u, %c, %c : "
        "(tensor<8x4xf32>, tensor<2x4xf32>, tensor<i32>, tensor<i32>) -> tensor<8x4xf32>\n"
        "return %0 : tensor<8x4xf32> }"
    )
    c.append(
        single("stablehlo.concatenate", [_t((8, 4)), _t((8, 4)), _t((2, 4))], [_t((18, 4))], "dimension = 0 : i64")
    )
    c.append(single("stablehlo.concatenate", [_t((8, 4))], [_t((8, 4))], "dimension = 1 : i64"))
    for pieces in (
        ("%s0", "%s1"),
        ("%s0", "%x"),
        ("%x", "%s0"),
        ("%s0", "%y"),
        ("%s0", "%s2"),
        ("%x", "%x"),
        ("%x", "%s2"),
    ):
        types = ", ".join(["tensor<8x4xf32>"] * 2)
        c.append(
            "func.func @main(%x: tensor<8x4xf32>, %y: tensor<8x4xf32>) -> tensor<16x4xf32> {\n"
            "%s0 = stablehlo.slice %x [0:8, 0:4] : (tensor<8x4xf32>) -> tensor<8x4xf32>\n"
            "%s1 = stablehlo.slice %y [0:8, 0:4] : (tensor<8x4xf32>) -> tensor<8x4xf32>\n"
            "%s2 = stablehlo.slice %s0 [0:8, 0:4] : (tensor<8x4xf32>) -> tensor<8x4xf32>\n"
            f"%0 = stablehlo.concatenate {', '.join(pieces)}, dim = 0 : ({types}) -> tensor<16x4xf32>\n"
            "return %0 : tensor<16x4xf32> }"
        )
    c.append(single("stablehlo.transpose", [_t((2, 3, 4))], [_t((4, 2, 3))], f"permutation = {_ints([2, 0, 1])}"))
    c.append(single("stablehlo.reverse", [_t((2, 3, 4))], [_t((2, 3, 4))], f"dimensions = {_ints([0, 2])}"))
    for a, b, dims in [((4,), (8, 4), [1]), ((1, 4), (8, 4), [0, 1]), ((), (3, 4), []), ((1, 1), (1, 4), [0, 1])]:
        c.append(single("stablehlo.broadcast_in_dim", [_t(a)], [_t(b)], f"broadcast_dimensions = {_ints(dims)}"))
    for a, ta, b, tb in [
        ((4, 2), "f32", (4,), "f64"),
        ((4,), "f32", (4,), "i32"),
        ((4,), "i64", (4, 2), "i32"),
        ((), "i32", (), "f32"),
    ]:
        c.append(single("stablehlo.bitcast_convert", [_t(a, ta)], [_t(b, tb)]))
    return c


def pointwise() -> list[str]:
    c = []
    for name in ("add", "maximum", "power", "atan2", "remainder"):
        c += [single(f"stablehlo.{name}", [_t(s)] * 2, [_t(s)]) for s in ((), (8,), (8, 1, 4))]
    for name in ("tanh", "negate", "cbrt", "log_plus_one", "round_nearest_afz", "sine", "tan", "sign", "floor"):
        c.append(single(f"stablehlo.{name}", [_t((8, 4))], [_t((8, 4))]))
    for name in ("not", "popcnt", "count_leading_zeros"):
        c.append(single(f"stablehlo.{name}", [_t((8, 4), "i32")], [_t((8, 4), "i32")]))
    c.append(single("stablehlo.select", [_t((8, 4), "i1"), _t((8, 4)), _t((8, 4))], [_t((8, 4))]))
    c.append(single("stablehlo.select", ["tensor<i1>", _t((8, 4)), _t((8, 4))], [_t((8, 4))]))
    c.append(single("stablehlo.clamp", ["tensor<f32>", _t((8, 4)), "tensor<f32>"], [_t((8, 4))]))
    c.append(single("stablehlo.clamp", [_t((8, 4)), _t((8, 4)), "tensor<f32>"], [_t((8, 4))]))
    c.append(single("stablehlo.convert", [_t((8, 4))], [_t((8, 4), "bf16")]))
    c.append(
        single(
            "stablehlo.reduce_precision", [_t((8, 4))], [_t((8, 4))], "exponent_bits = 5 : i32, mantissa_bits = 3 : i32"
        )
    )
    for name in ("erf", "square", "lgamma"):
        c.append(single(f"chlo.{name}", [_t((8, 4))], [_t((8, 4))]))
    return c


def contractions() -> list[str]:
    c = []
    for a, b, out, dims in [
        ((8, 16), (16, 4), (8, 4), "lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]"),
        (
            (2, 8, 16, 3),
            (3, 16, 2, 4),
            (2, 3, 8, 4),
            "lhs_batching_dimensions = [0, 3], rhs_batching_dimensions = [2, 0], lhs_contracting_dimensions = [2], "
            "rhs_contracting_dimensions = [1]",
        ),
        ((4,), (4,), (), "lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0]"),
        ((4,), (5,), (4, 5), ""),
        ((8, 1), (1, 4), (8, 4), "lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]"),
    ]:
        c.append(
            single(
                "stablehlo.dot_general", [_t(a), _t(b)], [_t(out)], f"dot_dimension_numbers = #stablehlo.dot<{dims}>"
            )
        )
    for a, b, out in [((8, 16), (16, 4), (8, 4)), ((16,), (16, 4), (4,)), ((8, 16), (16,), (8,)), ((4,), (4,), ())]:
        c.append(single("stablehlo.dot", [_t(a), _t(b)], [_t(out)]))
    return c


def reductions() -> list[str]:
    f = "tensor<f32>"
    c = [
        single("stablehlo.reduce", [_t((2, 4, 8)), f], [_t((4,))], f"dimensions = {_ints([0, 2])}", _reducer()),
        single(
            "stablehlo.reduce",
            [_t((2, 4)), _t((2, 4)), f, f],
            [_t((2,))] * 2,
            f"dimensions = {_ints([1])}",
            _reducer(count=2),
        ),
        single("stablehlo.reduce", [_t((2, 4)), f], [_t((2, 4))], f"dimensions = {_ints([])}", _reducer()),
        single("stablehlo.reduce", [_t((1, 4)), f], [_t((4,))], f"dimensions = {_ints([0])}", _reducer()),
    ]
    compare = (
        "{ ^bb0(%p: tensor<f32>, %q: tensor<f32>): %c = stablehlo.compare LT, %p, %q : (tensor<f32>, tensor<f32>) -> "
        "tensor<i1>\n stablehlo.return %c : tensor<i1> }"
    )
    for shape, dim in [((8, 4), 0), ((8, 4), 1), ((8,), 0), ((8, 1), 0), ((1, 8), 0)]:
        c.append(single("stablehlo.sort", [_t(shape)], [_t(shape)], f"dimension = {dim} : i64", compare))
    return c


def windows() -> list[str]:
    f, c = "tensor<f32>", []
    for shape, window, strides, pad, out in [
        ((8, 4), (1, 2), (1, 2), None, (8, 2)),
        ((8, 4), (3, 1), (1, 1), ((1, 1), (0, 0)), (8, 4)),
        ((8, 4), (1, 1), (1, 1), None, (8, 4)),
        ((8, 4), (1, 1), (2, 1), None, (4, 4)),
        ((8,), (8,), (1,), ((7, 0),), (8,)),
    ]:
        attrs = f"window_dimensions = {_ints(window)}, window_strides = {_ints(strides)}"
        if pad:
            attrs += f", padding = dense<{[list(p) for p in pad]}> : tensor<{len(pad)}x2xi64>"
        c.append(single("stablehlo.reduce_window", [_t(shape), f], [_t(out)], attrs, _reducer()))
    ge = (
        "{ ^bb0(%p: tensor<f32>, %q: tensor<f32>): %c = stablehlo.compare GE, %p, %q : (tensor<f32>, tensor<f32>) -> "
        "tensor<i1>\n stablehlo.return %c : tensor<i1> }"
    )
    add = _reducer()
    for shape, src in [((8, 4), (8, 2)), ((8, 4), (4, 2))]:
        window = [a // b for a, b in zip(shape, src)]
        attrs = f"window_dimensions = {_ints(window)}, window_strides = {_ints(window)}"
        c.append(single("stablehlo.select_and_scatter", [_t(shape), _t(src), f], [_t(shape)], attrs, f"{ge}, {add}"))
    dims = "#stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>"
    for lhs, rhs, out, groups in [
        ((4, 16, 16, 8), (3, 3, 8, 32), (4, 14, 14, 32), (1, 1)),
        ((4, 16, 16, 8), (3, 3, 4, 32), (4, 14, 14, 32), (1, 2)),
        ((4, 16, 16, 8), (3, 3, 1, 8), (4, 14, 14, 8), (1, 8)),
        ((4, 16, 16, 8), (1, 1, 8, 32), (4, 16, 16, 32), (1, 1)),
        ((4, 16, 16, 8), (14, 16, 8, 32), (4, 3, 1, 32), (1, 1)),
        ((4, 16, 15, 8), (8, 8, 8, 32), (4, 9, 8, 32), (1, 1)),
        ((4, 16, 16, 8), (3, 3, 8, 32), (2, 14, 14, 32), (2, 1)),
        ((8, 16, 16, 8), (3, 3, 8, 32), (1, 14, 14, 32), (8, 1)),
    ]:
        counts = f"batch_group_count = {groups[0]} : i64, feature_group_count = {groups[1]} : i64"
        attrs = f"dimension_numbers = {dims}, {counts}"
        c.append(single("stablehlo.convolution", [_t(lhs), _t(rhs)], [_t(out)], attrs))
    return c


def gathers() -> list[str]:
    c = []

    def gather(operand, indices, out, dims, sizes):
        attrs = f"dimension_numbers = #stablehlo.gather<{dims}>, slice_sizes = {_ints(sizes)}"
        c.append(single("stablehlo.gather", [_t(operand), _t(indices, "i32")], [_t(out)], attrs))

    gather(
        (100, 16),
        (4, 6, 1),
        (4, 6, 16),
        "offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2",
        (1, 16),
    )
    gather(
        (100, 16),
        (4, 6),
        (4, 6, 16),
        "offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2",
        (1, 16),
    )
    gather(
        (100, 16),
        (4, 6, 1),
        (4, 6, 1, 16),
        "offset_dims = [2, 3], start_index_map = [0], index_vector_dim = 2",
        (1, 16),
    )
    gather(
        (100, 16),
        (4, 6, 1),
        (4, 6, 3, 16),
        "offset_dims = [2, 3], start_index_map = [0], index_vector_dim = 2",
        (3, 16),
    )
    gather(
        (5, 100, 16),
        (5, 6, 1),
        (5, 6, 16),
        "offset_dims = [2], collapsed_slice_dims = [1], operand_batching_dims = [0], "
        "start_indices_batching_dims = [0], "
        "start_index_map = [1], index_vector_dim = 2",
        (1, 1, 16),
    )
    gather(
        (1, 16),
        (4, 1),
        (4, 16),
        "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1",
        (1, 16),
    )
    gather(
        (9, 7, 16),
        (2, 4, 6),
        (16, 4, 6),
        "offset_dims = [0], collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 0",
        (1, 1, 16),
    )

    return c


def scatters() -> list[str]:
    c = []

    def scatter(operand, indices, updates, dims, name="add", dtype="f32", count=1):
        attrs = f"scatter_dimension_numbers = #stablehlo.scatter<{dims}>"
        ins = [_t(operand, dtype)] * count + [_t(indices, "i32")] + [_t(updates, dtype)] * count
        c.append(single("stablehlo.scatter", ins, [_t(operand, dtype)] * count, attrs, _reducer(dtype, name, count)))

    rows = (
        "update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2"
    )
    for name, dtype in [
        ("add", "f32"),
        ("maximum", "f32"),
        ("subtract", "f32"),
        ("and", "i1"),
        ("and", "i32"),
        ("or", "i1"),
        ("multiply", "f32"),
        ("add", "i1"),
    ]:
        scatter((100, 16), (4, 6, 1), (4, 6, 16), rows, name, dtype)
    scatter((100, 16), (4, 6, 1), (4, 6, 16), rows, count=2)
    scatter(
        (100, 16),
        (4, 1),
        (4, 3, 16),
        "update_window_dims = [1, 2], scatter_dims_to_operand_dims = [0], index_vector_dim = 1",
    )
    scatter(
        (100, 16),
        (4, 1),
        (4, 1, 16),
        "update_window_dims = [1, 2], scatter_dims_to_operand_dims = [0], index_vector_dim = 1",
    )
    scatter(
        (5, 100, 16),
        (5, 6, 1),
        (5, 6, 16),
        "update_window_dims = [2], inserted_window_dims = [1], input_batching_dims = [0], "
        "scatter_indices_batching_dims = [0], "
        "scatter_dims_to_operand_dims = [1], index_vector_dim = 2",
    )
    scatter((100,), (1,), (), "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 0")
    overwrite = "{ ^bb0(%p: tensor<f32>, %q: tensor<f32>): stablehlo.return %q : tensor<f32> }"
    c.append(
        single(
            "stablehlo.scatter",
            [_t((100, 16)), _t((4, 6, 1), "i32"), _t((4, 6, 16))],
            [_t((100, 16))],
            f"scatter_dimension_numbers = #stablehlo.scatter<{rows}>",
            overwrite,
        )
    )
    return c


def numerics() -> list[str]:
    c = [single("stablehlo.cholesky", [_t((2, 4, 4))], [_t((2, 4, 4))])]
    for kind, a, b, n in [
        ("FFT", _t((2, 8, 8), "complex<f32>"), _t((2, 8, 8), "complex<f32>"), [8, 8]),
        ("RFFT", _t((2, 8)), _t((2, 5), "complex<f32>"), [8]),
        ("IRFFT", _t((2, 5), "complex<f32>"), _t((2, 8)), [8]),
        ("RFFT", _t((2, 8, 8)), _t((2, 8, 5), "complex<f32>"), [8, 8]),
    ]:
        c.append(single("stablehlo.fft", [a], [b], f"fft_type = #stablehlo<fft_type {kind}>, fft_length = {_ints(n)}"))
    for left, transpose in itertools.product(("true", "false"), ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")):
        b = (2, 4, 6) if left == "true" else (2, 6, 4)
        attrs = (
            f"left_side = {left}, lower = true, unit_diagonal = false, transpose_a = #stablehlo<transpose {transpose}>"
        )
        c.append(single("stablehlo.triangular_solve", [_t((2, 4, 4)), _t(b)], [_t(b)], attrs))
    norm = [_t((2, 4, 6))] + [_t((4,))] * 4
    c.append(
        single("stablehlo.batch_norm_inference", norm, [_t((2, 4, 6))], "epsilon = 0.1 : f32, feature_index = 1 : i64")
    )
    state, bits = _t((2,), "ui64"), _t((8, 4), "ui32")
    c.append(
        single(
            "stablehlo.rng_bit_generator", [state], [state, bits], "rng_algorithm = #stablehlo<rng_algorithm THREE_FRY>"
        )
    )
    f = "tensor<f32>"
    c.append(
        single(
            "stablehlo.rng",
            [f, f, "tensor<2xi64>"],
            [_t((8, 4))],
            "rng_distribution = #stablehlo<rng_distribution UNIFORM>",
        )
    )
    return c


def custom_calls() -> list[str]:
    c = []

    def call(target, ins, outs, attrs=""):
        c.append(single("stablehlo.custom_call", ins, outs, f'call_target_name = "{target}"{attrs}'))

    m = _t((3, 8, 4))
    for target in (
        "MoveToHost",
        "Sharding",
        "mhlo.erf",
        "foo",
        "tpu_custom_call",
        "X64Combine",
        "LayoutConstraint",
        "Cholesky",
        "CompactWyHelper",
        "InvertDiagBlocksLowerTriangular",
        "annotate_device_placement",
        "X64SplitLow",
    ):
        call(target, [m], [m])
    call("Eigh", [_t((3, 4, 4))], [_t((3, 4, 4)), _t((3, 4))])
    call("Qr", [m], [m, _t((3, 4))])
    call("QrDecompositionBlock", [m], [m, _t((3, 4))])
    call("ProductOfElementaryHouseholderReflectors", [m, _t((3, 4))], [m])
    call("mhlo.topk", [_t((3, 8))], [_t((3, 2)), _t((3, 2), "i32")])
    f, i = "tensor<f32>", "tensor<i32>"
    attrs = ", mhlo.backend_config = {reduction_dim = 1 : i64}"
    for target in ("ApproxTopK", "PartialReduce"):
        call(target, [_t((3, 8)), _t((3, 8), "i32"), f, i], [_t((3, 2)), _t((3, 2), "i32")], attrs)
    return c


def collectives() -> list[str]:
    c = []
    groups = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
    x, wide = _t((8, 4)), _t((16, 4))
    c.append(single("stablehlo.all_gather", [x], [wide], f"all_gather_dim = 0 : i64, {groups}"))
    c.append(single("stablehlo.all_reduce", [x], [x], groups, _reducer()))
    c.append(single("stablehlo.reduce_scatter", [wide], [x], f"scatter_dimension = 0 : i64, {groups}", _reducer()))
    c.append(single("stablehlo.collective_broadcast", [x], [x], groups))
    c.append(
        single("stablehlo.collective_permute", [x], [x], "source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>")
    )
    split = "split_dimension = {} : i64, concat_dimension = {} : i64, split_count = 2 : i64, " + groups
    c.append(single("stablehlo.all_to_all", [x], [_t((4, 8))], split.format(0, 1)))
    c.append(single("stablehlo.all_to_all", [x], [x], split.format(0, 0)))
    return c


def all_cases() -> list[str]:
    families = (
        pointwise,
        structural,
        contractions,
        reductions,
        windows,
        gathers,
        scatters,
        numerics,
        custom_calls,
        collectives,
        reshapes,
    )
    return [case for family in families for case in family()]
