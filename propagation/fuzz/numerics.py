"""Steps for contractions, windows, gathers, linear algebra, random numbers, custom calls and collectives."""

from __future__ import annotations

from .growing import SIZES, Generator, Shape, Step, array, reducer, tensor

__all__ = ["STEPS"]

SCALAR = "tensor<f32>"
GROUPS = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"


def dot(g: Generator) -> None:
    v = g.pick(lambda s: 1 <= len(s) <= 3)
    if v is None:
        return
    rng, (a, s) = g.rng, v
    batch = len(s) == 3 and rng.random() < 0.5
    contract = rng.randrange(1 if batch else 0, len(s))
    free = [d for d in range(len(s)) if d != contract and not (batch and d == 0)]
    n = rng.choice(SIZES)
    rhs = ((s[0],) if batch else ()) + (s[contract], n)
    b = g.like(rhs)
    out = ((s[0],) if batch else ()) + tuple(s[d] for d in free) + (n,)
    if not batch and contract == len(s) - 1 and len(s) <= 2 and rng.random() < 0.2:
        g.keep(g.op("stablehlo.dot", [a, b], [tensor(s), tensor(rhs)], [tensor(out)])[0], out)
        return
    batching = "batching_dims = [0] x [0], " if batch else ""
    dims = f"{batching}contracting_dims = [{contract}] x [{1 if batch else 0}]"
    note = g.annotate(out, 0.05)
    g.emit(f"stablehlo.dot_general {a}, {b}, {dims}{note} : ({tensor(s)}, {tensor(rhs)}) -> {tensor(out)}", out)


def gather(g: Generator) -> None:
    v = g.pick(lambda s: len(s) > 1)
    if v is None:
        return
    s, n = v[1], g.rng.choice(SIZES)
    ids: Shape
    sizes = [1, *(m if g.rng.random() < 0.8 else 1 for m in s[1:])]
    batched = g.rng.random() < 0.3
    if batched:
        ids, sizes[1] = (s[0], n, 1), 1
        out = (s[0], n, *sizes[2:])
        dims = (
            f"offset_dims = {list(range(2, len(s)))}, collapsed_slice_dims = [1], operand_batching_dims = [0], "
            "start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2"
        )
    else:
        ids, out = (n, 1), (n, *sizes[1:])
        dims = (
            f"offset_dims = {list(range(1, len(s)))}, collapsed_slice_dims = [0], start_index_map = [0], "
            "index_vector_dim = 1"
        )
    (where,) = g.op("stablehlo.iota", [], [], [tensor(ids, "i32")], "iota_dimension = 0 : i64")
    attrs = f"dimension_numbers = #stablehlo.gather<{dims}>, slice_sizes = {array(sizes)}"
    g.keep(g.op("stablehlo.gather", [v[0], where], [tensor(s), tensor(ids, "i32")], [tensor(out)], attrs)[0], out)


def scatter(g: Generator) -> None:
    v = g.pick(lambda s: len(s) > 1)
    if v is None:
        return
    s, n, count = v[1], g.rng.choice(SIZES), g.rng.choice([1, 1, 2])
    ids: Shape
    if g.rng.random() < 0.3:
        ids, updates = (s[0], n, 1), (s[0], n, *s[2:])
        dims = (
            f"update_window_dims = {list(range(2, len(s)))}, inserted_window_dims = [1], input_batching_dims = [0], "
            "scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2"
        )
    else:
        ids, updates = (n, 1), (n, *s[1:])
        dims = (
            f"update_window_dims = {list(range(1, len(s)))}, inserted_window_dims = [0], "
            "scatter_dims_to_operand_dims = [0], index_vector_dim = 1"
        )
    (where,) = g.op("stablehlo.iota", [], [], [tensor(ids, "i32")], "iota_dimension = 0 : i64")
    inputs = [v[0], *(g.like(s) for _ in range(count - 1))]
    operands = [*inputs, where, *(g.like(updates) for _ in range(count))]
    types = [tensor(s)] * count + [tensor(ids, "i32")] + [tensor(updates)] * count
    region = reducer(g.rng.choice(["add", "maximum", "subtract"]), count=count)
    attrs = f"scatter_dimension_numbers = #stablehlo.scatter<{dims}>"
    for name in g.op("stablehlo.scatter", operands, types, [tensor(s)] * count, attrs, region):
        g.keep(name, s)


def convolution(g: Generator) -> None:
    v = g.pick(lambda s: len(s) == 3 and s[1] > 2)
    if v is None:
        return
    rng, (b, n, f) = g.rng, v[1]
    k = rng.randint(1, n)
    feature_groups = rng.choice([d for d in (1, 1, 2, f) if f % d == 0])
    batch_groups = rng.choice([d for d in (1, 2, b) if b % d == 0]) if feature_groups == 1 else 1
    o = rng.choice([m for m in SIZES if m % (feature_groups * batch_groups) == 0] or [feature_groups * batch_groups])
    kernel = (k, f // feature_groups, o)
    w, out = g.like(kernel), (b // batch_groups, n - k + 1, o)
    attrs = (
        "dimension_numbers = #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>, "
        f"batch_group_count = {batch_groups} : i64, feature_group_count = {feature_groups} : i64"
    )
    g.keep(g.op("stablehlo.convolution", [v[0], w], [tensor(v[1]), tensor(kernel)], [tensor(out)], attrs)[0], out)


def window(g: Generator) -> None:
    v = g.pick(lambda s: len(s) > 0)
    if v is None:
        return
    size = [2 if n % 2 == 0 and g.rng.random() < 0.5 else 1 for n in v[1]]
    out = [n // k for n, k in zip(v[1], size)]
    attrs = f"window_dimensions = {array(size)}, window_strides = {array(size)}"
    types = [tensor(v[1]), SCALAR]
    if g.rng.random() < 0.3:
        ge = (
            "{ ^bb0(%p: tensor<f32>, %q: tensor<f32>): %c = stablehlo.compare GE, %p, %q : (tensor<f32>, tensor<f32>) "
            "-> tensor<i1>\nstablehlo.return %c : tensor<i1> }"
        )
        operands = [v[0], g.like(tuple(out)), g.like(())]
        types.insert(1, tensor(out))
        names = g.op("stablehlo.select_and_scatter", operands, types, [tensor(v[1])], attrs, f"{ge}, {reducer()}")
        g.keep(names[0], v[1])
    else:
        names = g.op("stablehlo.reduce_window", [v[0], g.like(())], types, [tensor(out)], attrs, reducer("maximum"))
        g.keep(names[0], out)


def linear_algebra(g: Generator) -> None:
    n, batch = g.rng.choice([2, 4, 6]), g.rng.choice([(), (2,), (8,)])
    square = (*batch, n, n)
    a = g.like(square)
    kind = g.rng.randrange(4)
    if kind == 0:
        g.keep(g.op("stablehlo.cholesky", [a], [tensor(square)], [tensor(square)])[0], square)
    elif kind == 1:
        left, m = g.rng.random() < 0.5, g.rng.choice(SIZES)
        other = (*batch, n, m) if left else (*batch, m, n)
        transpose = g.rng.choice(["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])
        attrs = (
            f"left_side = {str(left).lower()}, lower = true, unit_diagonal = false, "
            f"transpose_a = #stablehlo<transpose {transpose}>"
        )
        types = [tensor(square), tensor(other)]
        g.keep(g.op("stablehlo.triangular_solve", [a, g.like(other)], types, [tensor(other)], attrs)[0], other)
    elif kind == 2:
        w = (*batch, n)
        attrs = 'call_target_name = "Eigh"'
        vectors, values = g.op("stablehlo.custom_call", [a], [tensor(square)], [tensor(square), tensor(w)], attrs)
        g.keep(vectors, square)
        g.keep(values, w)
    else:
        taus, attrs = (*batch, n), f'call_target_name = "{g.rng.choice(["Qr", "QrDecompositionBlock"])}"'
        q, t = g.op("stablehlo.custom_call", [a], [tensor(square)], [tensor(square), tensor(taus)], attrs)
        g.keep(q, square)
        attrs = 'call_target_name = "ProductOfElementaryHouseholderReflectors"'
        types = [tensor(square), tensor(taus)]
        g.keep(g.op("stablehlo.custom_call", [q, t], types, [tensor(square)], attrs)[0], square)


def fourier(g: Generator) -> None:
    v = g.pick(lambda s: len(s) > 0)
    if v is None:
        return
    s, half = v[1], (*v[1][:-1], v[1][-1] // 2 + 1)
    kind = "#stablehlo<fft_type {}>"
    length = f"fft_length = {array(s[-1:])}"
    c = "complex<f32>"
    (out,) = g.op(
        "stablehlo.fft", [v[0]], [tensor(s)], [tensor(half, c)], f"fft_type = {kind.format('RFFT')}, {length}"
    )
    if g.rng.random() < 0.5:
        length = f"fft_length = {array(half[-1:])}"
        attrs = f"fft_type = {kind.format('FFT')}, {length}"
        (out,) = g.op("stablehlo.fft", [out], [tensor(half, c)], [tensor(half, c)], attrs)
    g.keep(g.op("stablehlo.real", [out], [tensor(half, c)], [tensor(half)])[0], half)


def normalization(g: Generator) -> None:
    v = g.pick(lambda s: len(s) > 1)
    if v is None:
        return
    s, f = v[1], (v[1][1],)
    attrs = "epsilon = 0.1 : f32, feature_index = 1 : i64"
    kind = g.rng.choice(["inference", "inference", "training", "grad"])
    count = {"inference": 4, "training": 2, "grad": 3}[kind]
    operands, types = [v[0], *(g.like(f) for _ in range(count))], [tensor(s)] + [tensor(f)] * count
    if kind == "grad":
        operands.append(g.like(s))
        types.append(tensor(s))
    results = [tensor(s)] + ([] if kind == "inference" else [tensor(f)] * 2)
    names = g.op(f"stablehlo.batch_norm_{kind}", operands, types, results, attrs)
    g.keep(names[0], s)
    for name in names[1:]:
        g.keep(name, f)


def random_numbers(g: Generator) -> None:
    s = g.shape()
    if g.rng.random() < 0.3:
        (shape,) = g.op(
            "stablehlo.constant", [], [], [f"tensor<{len(s)}xi64>"], f"value = dense<{list(s)}> : tensor<{len(s)}xi64>"
        )
        attrs = "rng_distribution = #stablehlo<rng_distribution UNIFORM>"
        operands, types = [g.like(()), g.like(()), shape], [SCALAR, SCALAR, f"tensor<{len(s)}xi64>"]
        g.keep(g.op("stablehlo.rng", operands, types, [tensor(s)], attrs)[0], s)
        return
    state = tensor((2,), "ui64")
    (seed,) = g.op("stablehlo.constant", [], [], [state], f"value = dense<1> : {state}")
    attrs = "rng_algorithm = #stablehlo<rng_algorithm THREE_FRY>"
    _, bits = g.op("stablehlo.rng_bit_generator", [seed], [state], [state, tensor(s, "ui32")], attrs)
    g.convert(bits, s, "ui32")


def custom_call(g: Generator) -> None:
    v = g.pick()
    target = g.rng.choice(
        ["MoveToHost", "MoveToDevice", "unknown", "mhlo.erf", "LayoutConstraint", "CompactWyHelper", "Sharding"]
    )
    note = g.annotate(v[1], 0.1)
    g.emit(f"stablehlo.custom_call @{target}({v[0]}){note} : ({tensor(v[1])}) -> {tensor(v[1])}", v[1])


def top_k(g: Generator) -> None:
    v = g.pick(lambda s: len(s) > 0 and s[-1] > 2)
    if v is None:
        return
    s, out = v[1], (*v[1][:-1], 2)
    results = [tensor(out), tensor(out, "i32")]
    if g.rng.random() < 0.5:
        names = g.op("stablehlo.custom_call", [v[0]], [tensor(s)], results, 'call_target_name = "mhlo.topk"')
    else:
        zero = g.op("stablehlo.constant", [], [], ["tensor<i32>"], "value = dense<0> : tensor<i32>")[0]
        (ids,) = g.op("stablehlo.iota", [], [], [tensor(s, "i32")], f"iota_dimension = {len(s) - 1} : i64")
        target = g.rng.choice(["ApproxTopK", "PartialReduce"])
        config = f"mhlo.backend_config = {{reduction_dim = {len(s) - 1} : i64}}"
        attrs = f'call_target_name = "{target}", {config}'
        types = [tensor(s), tensor(s, "i32"), SCALAR, "tensor<i32>"]
        names = g.op("stablehlo.custom_call", [v[0], ids, g.like(()), zero], types, results, attrs)
    g.keep(names[0], out)


def collective(g: Generator) -> None:
    v = g.pick(lambda s: len(s) > 0)
    if v is None:
        return
    s, kind = v[1], g.rng.randrange(6)
    wide = (2 * s[0], *s[1:])
    if kind == 0:
        names, out = g.op("stablehlo.all_reduce", [v[0]], [tensor(s)], [tensor(s)], GROUPS, reducer()), s
    elif kind == 1:
        attrs = f"all_gather_dim = 0 : i64, {GROUPS}"
        names, out = g.op("stablehlo.all_gather", [v[0]], [tensor(s)], [tensor(wide)], attrs), wide
    elif kind == 2:
        attrs = f"scatter_dimension = 0 : i64, {GROUPS}"
        names = g.op("stablehlo.reduce_scatter", [g.like(wide)], [tensor(wide)], [tensor(s)], attrs, reducer())
        out = s
    elif kind == 3:
        names, out = g.op("stablehlo.collective_broadcast", [v[0]], [tensor(s)], [tensor(s)], GROUPS), s
    elif kind == 4:
        attrs = "source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>"
        names, out = g.op("stablehlo.collective_permute", [v[0]], [tensor(s)], [tensor(s)], attrs), s
    else:
        to = g.rng.randrange(len(s))
        sizes = list(wide)
        sizes[0] //= 2
        sizes[to] *= 2
        out = tuple(sizes)
        attrs = f"split_dimension = 0 : i64, concat_dimension = {to} : i64, split_count = 2 : i64, {GROUPS}"
        names = g.op("stablehlo.all_to_all", [g.like(wide)], [tensor(wide)], [tensor(out)], attrs)
    g.keep(names[0], out)


def without_rule(g: Generator) -> None:
    """Operations through which nothing propagates."""
    name, s = g.pick()
    kind = g.rng.randrange(3)
    if kind == 0 and s:
        body = "{ ^bb0(%p: tensor<f32>): %c = stablehlo.negate %p : tensor<f32>\nstablehlo.return %c : tensor<f32> }"
        attrs = f"dimensions = {array(range(len(s)))}"
        g.keep(g.op("stablehlo.map", [name], [tensor(s)], [tensor(s)], attrs, body)[0], s)
    elif kind == 1 and s:
        (size,) = g.op("stablehlo.get_dimension_size", [name], [tensor(s)], ["tensor<i32>"], "dimension = 0 : i64")
        g.convert(size, (), "i32")
    else:
        (device,) = g.op("stablehlo.partition_id", [], [], ["tensor<ui32>"])
        g.convert(device, (), "ui32")


STEPS: list[Step] = [
    dot, dot, dot, gather, scatter, convolution, window, linear_algebra, fourier, normalization, random_numbers,
    custom_call, top_k, collective, without_rule,
]  # fmt: skip
