"""Modules of one operation whose attributes are drawn: every attribute that a sharding rule looks at, or must not look
at, in all its values. For comparing derived rules with those of the real `sdy-populate-op-sharding-rules`.

`operation(seed)` is one such module. Shapes are small, have dimensions of size 1 and dimensions without common divisor,
and stand in any order where the operation numbers its dimensions (convolutions, contractions, lookups).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from .collective_operations import all_gather, all_reduce, all_to_all, collective, custom_call, reduce_scatter
from .drawing import (
    KINDS,
    PRECISIONS,
    SCALAR,
    SIZES,
    Draw,
    bools,
    combiner,
    comparator,
    pads,
    sum_body,
    windowed,
    with_size,
    word,
)
from .growing import array as ints
from .growing import tensor

__all__ = ["DRAWS", "annotated", "operation"]


def convolution(d: Draw) -> None:
    rng, rank = d.rng, d.rng.choice([0, 1, 1, 1, 2, 2, 3])
    feature_groups = rng.choice([1, 1, 1, 2, 4])
    batch_groups = rng.choice([1, 1, 2, 4]) if feature_groups == 1 else 1
    batch, features = batch_groups * rng.choice([1, 2, 3, 4]), rng.choice([1, 2, 3, 8])
    outs = feature_groups * batch_groups * rng.choice([1, 1, 2, 3, 8])
    sizes = [rng.choice([1, 3, 4, 8, 9, 16, 32]) for _ in range(rank)]
    kernel = [rng.choice([1, 2, 3, 4, 7, 8, 16]) for _ in range(rank)]
    strides = [rng.choice([1, 1, 2, 3, 4]) for _ in range(rank)]
    base = [rng.choice([1, 1, 1, 2, 3]) for _ in range(rank)]
    holes = [rng.choice([1, 1, 1, 2, 3]) for _ in range(rank)]
    padding = [[rng.choice([0, 0, 1, 2, 5, -1]) for _ in range(2)] for _ in range(rank)]
    for i in range(rank):  # at least one window
        lacking = (kernel[i] - 1) * holes[i] + 1 - ((sizes[i] - 1) * base[i] + 1 + sum(padding[i]))
        padding[i][1] += max(lacking, 0)
    windows = [windowed(*sizes_of) for sizes_of in zip(sizes, kernel, strides, padding, base, holes)]
    sides = {
        "lhs": {"b": batch, "f": features * feature_groups, **{str(i): n for i, n in enumerate(sizes)}},
        "rhs": {"i": features, "o": outs, **{str(i): n for i, n in enumerate(kernel)}},
        "out": {"b": batch // batch_groups, "f": outs, **{str(i): n for i, n in enumerate(windows)}},
    }
    orders = {side: rng.sample(sorted(dims), len(dims)) for side, dims in sides.items()}
    types = [tensor(sides[side][k] for k in orders[side]) for side in sides]
    numbers = [f"[{', '.join(order)}]" for order in orders.values()]
    attrs = [
        f"dimension_numbers = #stablehlo.conv<{numbers[0]}x{numbers[1]}->{numbers[2]}>",
        f"batch_group_count = {batch_groups} : i64, feature_group_count = {feature_groups} : i64",
        f"padding = {pads(padding)}" if rank else "",
    ]
    if rank and (d.maybe(0.8) or strides != [1] * rank):
        attrs.append(f"window_strides = {ints(strides)}")
    if rank and (d.maybe() or base != [1] * rank):
        attrs.append(f"lhs_dilation = {ints(base)}")
    if rank and (d.maybe() or holes != [1] * rank):
        attrs.append(f"rhs_dilation = {ints(holes)}")
    if rank and d.maybe():
        attrs.append(f"window_reversal = {bools(d.maybe() for _ in range(rank))}")
    if d.maybe(0.2):
        attrs.append(precision(d))
    d.op("stablehlo.convolution", types[:2], types[2:], ", ".join(filter(None, attrs)))


def precision(d: Draw) -> str:
    chosen = ", ".join(f"#stablehlo<precision {d.rng.choice(PRECISIONS)}>" for _ in range(2))
    return f"precision_config = [{chosen}]"


def reduce_window(d: Draw) -> None:
    rng, shape = d.rng, d.shape(1, 4)
    rank, dtypes = len(shape), [rng.choice(["f32", "i32"]) for _ in range(rng.choice([1, 1, 2, 3]))]
    window = [rng.choice([1, 1, 2, 3]) for _ in shape]
    strides = [rng.choice([1, 1, 2]) for _ in shape]
    base = [rng.choice([1, 1, 1, 2]) for _ in shape]
    holes = [rng.choice([1, 1, 1, 2]) for _ in shape]
    padding = [[rng.choice([0, 0, 0, 1, -1]) for _ in range(2)] for _ in shape]
    for i, n in enumerate(shape):
        padding[i][1] += max((window[i] - 1) * holes[i] + 1 - ((n - 1) * base[i] + 1 + sum(padding[i])), 0)
    out = [windowed(*sizes_of) for sizes_of in zip(shape, window, strides, padding, base, holes)]
    attrs = [f"window_dimensions = {ints(window)}"]
    for name, values in (("window_strides", strides), ("base_dilations", base), ("window_dilations", holes)):
        if d.maybe() or values != [1] * rank:
            attrs.append(f"{name} = {ints(values)}")
    if d.maybe() or any(map(any, padding)):
        attrs.append(f"padding = {pads(padding)}")
    ins = [tensor(shape, t) for t in dtypes] + [tensor((), t) for t in dtypes]
    d.op("stablehlo.reduce_window", ins, [tensor(out, t) for t in dtypes], ", ".join(attrs), sum_body(dtypes))


def select_and_scatter(d: Draw) -> None:
    rng, shape = d.rng, d.shape(1, 4)
    window = [rng.choice([1, 1, 2, 3]) for _ in shape]
    strides = [rng.choice([1, 1, 2]) for _ in shape]
    padding = [[rng.choice([0, 0, 0, 1]) for _ in range(2)] for _ in shape]
    for i, n in enumerate(shape):
        padding[i][1] += max(window[i] - n - sum(padding[i]), 0)
    source = [windowed(*sizes_of) for sizes_of in zip(shape, window, strides, padding)]
    attrs = [f"window_dimensions = {ints(window)}, window_strides = {ints(strides)}"]
    if d.maybe() or any(map(any, padding)):
        attrs.append(f"padding = {pads(padding)}")
    bodies = f"{comparator(['f32'], rng.choice(['GE', 'LE']))}, {sum_body()}"
    ins = [tensor(shape), tensor(source), SCALAR]
    d.op("stablehlo.select_and_scatter", ins, [tensor(shape)], ", ".join(attrs), bodies)


def dot_general(d: Draw) -> None:
    rng = d.rng
    batch, contracting = d.shape(0, 2), d.shape(0, 2)
    left, right = d.shape(0, 2), d.shape(0, 2)
    sides: list[list[tuple[str, int, int]]] = []
    for free in (left, right):
        dims = [("b", i, n) for i, n in enumerate(batch)] + [("c", i, n) for i, n in enumerate(contracting)]
        dims += [("f", i, n) for i, n in enumerate(free)]
        kept = [("f", i, n) for i, n in enumerate(free)]
        rng.shuffle(dims)
        positions = iter(sorted(i for i, x in enumerate(dims) if x[0] == "f"))
        placed = {next(positions): x for x in kept}
        others = iter(x for x in dims if x[0] != "f")  # free dimensions stay in order among these
        sides.append([placed[i] if i in placed else next(others) for i in range(len(dims))])
    pairs = rng.sample(range(len(batch)), len(batch)), rng.sample(range(len(contracting)), len(contracting))
    numbers = []
    for name, kind, order in (("batching", "b", pairs[0]), ("contracting", "c", pairs[1])):
        for which, side in zip(("lhs", "rhs"), sides):
            if order:
                numbers.append(f"{which}_{name}_dimensions = {[[x[:2] for x in side].index((kind, i)) for i in order]}")
    attrs = f"dot_dimension_numbers = #stablehlo.dot<{', '.join(numbers)}>"
    if d.maybe(0.3):
        attrs += f", {precision(d)}"
    out = tensor([*(batch[i] for i in pairs[0]), *left, *right])
    d.op("stablehlo.dot_general", [tensor(x[2] for x in side) for side in sides], [out], attrs)


def dot(d: Draw) -> None:
    m, k, n = (d.rng.choice(SIZES) for _ in range(3))
    left, right = d.rng.choice([(m, k), (k,)]), d.rng.choice([(k, n), (k,)])
    attrs = precision(d) if d.maybe(0.3) else ""
    d.op("stablehlo.dot", [tensor(left), tensor(right)], [tensor((*left[:-1], *right[1:]))], attrs)


def _lookup(d: Draw) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], dict[str, object]]:
    """A gather or scatter: (operand, indices, slices, slice sizes, dimension numbers by the names of a gather)."""
    rng, operand = d.rng, d.shape(1, 4)
    kinds = [rng.choice(["whole", "whole", "part", "one", "collapsed", "collapsed", "batching"]) for _ in operand]
    batching = [i for i, k in enumerate(kinds) if k == "batching"]
    collapsed = [i for i, k in enumerate(kinds) if k == "collapsed"]
    sizes = tuple(
        n if k == "whole" else rng.randint(1, n) if k == "part" else 1 for n, k in zip(operand, kinds, strict=True)
    )
    others = list(d.shape(0, 2))
    indices = [operand[i] for i in batching] + others
    order = rng.sample(range(len(indices)), len(indices))
    batch_shape = [indices[i] for i in order]
    indices_batching = [order.index(i) for i in range(len(batching))]
    free = [i for i in range(len(operand)) if i not in batching]
    mapped = [i for i in free if kinds[i] != "whole" or d.maybe(0.2)]
    rng.shuffle(mapped)
    vector = rng.randint(0, len(batch_shape))
    implicit = len(mapped) == 1 and d.maybe(0.3)
    if implicit:
        vector = len(batch_shape)
    shape = list(batch_shape) if implicit else [*batch_shape[:vector], len(mapped), *batch_shape[vector:]]
    indices_batching = [i if implicit or i < vector else i + 1 for i in indices_batching]
    window = [sizes[i] for i in free if i not in collapsed]
    rank = len(batch_shape) + len(window)
    offset = sorted(rng.sample(range(rank), len(window)))
    windows, batches = iter(window), iter(batch_shape)
    slices = tuple(next(windows) if i in offset else next(batches) for i in range(rank))
    numbers: dict[str, object] = {
        "offset_dims": offset,
        "collapsed_slice_dims": collapsed,
        "operand_batching_dims": batching,
        "start_indices_batching_dims": indices_batching,
        "start_index_map": mapped,
        "index_vector_dim": vector,
    }
    return operand, tuple(shape), slices, sizes, numbers


def _numbers(numbers: dict[str, object], names: dict[str, str] | None = None) -> str:
    said = [(k if names is None else names[k], v) for k, v in numbers.items() if v != []]
    return ", ".join(f"{k} = {v}" for k, v in said)


def gather(d: Draw) -> None:
    operand, indices, slices, sizes, numbers = _lookup(d)
    attrs = f"dimension_numbers = #stablehlo.gather<{_numbers(numbers)}>, slice_sizes = {ints(sizes)}"
    if d.maybe(0.3):
        attrs += f", indices_are_sorted = {word(d.maybe())}"
    d.op("stablehlo.gather", [tensor(operand), tensor(indices, "i32")], [tensor(slices)], attrs)


_SCATTER_NAMES = {
    "offset_dims": "update_window_dims",
    "collapsed_slice_dims": "inserted_window_dims",
    "operand_batching_dims": "input_batching_dims",
    "start_indices_batching_dims": "scatter_indices_batching_dims",
    "start_index_map": "scatter_dims_to_operand_dims",
    "index_vector_dim": "index_vector_dim",
}


def scatter(d: Draw) -> None:
    operand, indices, updates, _, numbers = _lookup(d)
    dtypes = [d.rng.choice(["f32", "f32", "i32", "i1"]) for _ in range(d.rng.choice([1, 1, 1, 2, 3]))]
    attrs = f"scatter_dimension_numbers = #stablehlo.scatter<{_numbers(numbers, _SCATTER_NAMES)}>"
    if d.maybe(0.3):
        attrs += f", indices_are_sorted = {word(d.maybe())}, unique_indices = {word(d.maybe())}"
    common = set(KINDS["f32"]).intersection(*[KINDS[t] for t in dtypes])
    kinds = ["add"] if d.maybe(0.3) else sorted(common)
    ins = [*[tensor(operand, t) for t in dtypes], tensor(indices, "i32"), *[tensor(updates, t) for t in dtypes]]
    body = combiner(d, dtypes, KINDS[dtypes[0]] if len(dtypes) == 1 and kinds != ["add"] else kinds)
    d.op("stablehlo.scatter", ins, [tensor(operand, t) for t in dtypes], attrs, body)


def sort(d: Draw) -> None:
    shape = d.shape(1, 4)
    dtypes = [d.rng.choice(["f32", "i32"]) for _ in range(d.rng.choice([1, 2, 3]))]
    attrs = []
    if d.maybe(0.8):
        attrs.append(f"dimension = {d.rng.randrange(-len(shape), len(shape))} : i64")
    if d.maybe():
        attrs.append(f"is_stable = {word(d.maybe())}")
    types = [tensor(shape, t) for t in dtypes]
    d.op("stablehlo.sort", types, types, ", ".join(attrs), comparator(dtypes, d.rng.choice(["LT", "GT"])))


def fft(d: Draw) -> None:
    rng, kind = d.rng, d.rng.choice(["FFT", "IFFT", "RFFT", "IRFFT"])
    count = rng.randint(1, 3)
    length = [rng.choice([1, 2, 4, 6, 8]) for _ in range(count)]
    shape = (*d.shape(0, 2), *length)
    half = (*shape[:-1], shape[-1] // 2 + 1)
    complex_type = "complex<f32>"
    ins, outs = {
        "FFT": (tensor(shape, complex_type), tensor(shape, complex_type)),
        "IFFT": (tensor(shape, complex_type), tensor(shape, complex_type)),
        "RFFT": (tensor(shape), tensor(half, complex_type)),
        "IRFFT": (tensor(half, complex_type), tensor(shape)),
    }[kind]
    d.op("stablehlo.fft", [ins], [outs], f"fft_type = #stablehlo<fft_type {kind}>, fft_length = {ints(length)}")


def concatenate(d: Draw) -> None:
    """Of arguments, of slices of them, and of one value and its slices."""
    rng, shape = d.rng, list(d.shape(1, 4))
    dim = rng.randrange(len(shape))
    whole, names, sizes = tensor(shape), [], []
    shared = d.argument(whole)
    for _ in range(rng.choice([1, 2, 2, 3])):
        name, size = shared if d.maybe() else d.argument(whole), shape[dim]
        if d.maybe():
            start = rng.randrange(size)
            starts = [start if i == dim else 0 for i in range(len(shape))]
            limits = [*shape[:dim], rng.randint(start + 1, size), *shape[dim + 1 :]]
            size = limits[dim] - start
            attrs = f"start_indices = {ints(starts)}, limit_indices = {ints(limits)}"
            attrs += f", strides = {ints(1 for _ in shape)}"
            (name,) = d.emit("stablehlo.slice", [name], [whole], [with_size(shape, dim, size)], attrs)
        names.append(name)
        sizes.append(size)
    types = [with_size(shape, dim, n) for n in sizes]
    d.emit("stablehlo.concatenate", names, types, [with_size(shape, dim, sum(sizes))], f"dimension = {dim} : i64")


def static_slice(d: Draw) -> None:
    shape = d.shape(0, 4)
    starts = [d.rng.choice([0, 0, d.rng.randrange(n)]) for n in shape]
    limits = [d.rng.choice([n, n, d.rng.randint(a, n)]) for a, n in zip(starts, shape)]
    strides = [d.rng.choice([1, 1, 2, 3]) for _ in shape]
    out = [-(-(b - a) // s) for a, b, s in zip(starts, limits, strides)]
    attrs = f"start_indices = {ints(starts)}, limit_indices = {ints(limits)}, strides = {ints(strides)}"
    d.op("stablehlo.slice", [tensor(shape)], [tensor(out)], attrs)


def pad(d: Draw) -> None:
    shape = d.shape(0, 4)
    low, high = ([d.rng.choice([0, 0, 1, 3, -1]) for _ in shape] for _ in range(2))
    interior = [d.rng.choice([0, 0, 0, 1, 2]) for _ in shape]
    for i, n in enumerate(shape):
        high[i] += max(0, -(n + low[i] + high[i] + (n - 1) * interior[i]))
    out = [n + a + b + max(n - 1, 0) * c for n, a, b, c in zip(shape, low, high, interior)]
    attrs = f"edge_padding_low = {ints(low)}, edge_padding_high = {ints(high)}, interior_padding = {ints(interior)}"
    d.op("stablehlo.pad", [tensor(shape), SCALAR], [tensor(out)], attrs)


def _smaller(d: Draw, shape: Sequence[int]) -> list[int]:
    return [d.rng.choice([n, n, 1, d.rng.randint(1, n)]) for n in shape]


def dynamic_slice(d: Draw) -> None:
    shape = d.shape(1, 4)  # that of a scalar is printed as what MLIR does not parse
    out, index = _smaller(d, shape), d.rng.choice(["tensor<i32>", "tensor<ui8>", "tensor<i64>"])
    attrs = f"slice_sizes = {ints(out)}"
    d.op("stablehlo.dynamic_slice", [tensor(shape), *[index] * len(shape)], [tensor(out)], attrs)


def dynamic_update_slice(d: Draw) -> None:
    """With starts that are known, that are not, and some of each."""
    shape = d.shape(0, 4)
    update, share = _smaller(d, shape), d.rng.choice([0.0, 0.5, 1.0])
    names = [d.argument(tensor(shape)), d.argument(tensor(update))]
    for _ in shape:
        known = d.maybe(share)
        name = "sdy.constant" if d.maybe(0.2) else "stablehlo.constant"
        found = d.emit(name, [], [], ["tensor<i32>"], "value = dense<1> : tensor<i32>") if known else None
        names.append(found[0] if found else d.argument("tensor<i32>"))
    types = [tensor(shape), tensor(update), *["tensor<i32>"] * len(shape)]
    d.emit("stablehlo.dynamic_update_slice", names, types, [tensor(shape)])


def transpose(d: Draw) -> None:
    shape = d.shape(0, 5)
    order = d.rng.sample(range(len(shape)), len(shape))
    out = tensor(shape[i] for i in order)
    d.op("stablehlo.transpose", [tensor(shape)], [out], f"permutation = {ints(order)}")


def reverse(d: Draw) -> None:
    shape = d.shape(0, 4)
    dims = d.rng.sample(range(len(shape)), d.rng.randint(0, len(shape)))
    d.op("stablehlo.reverse", [tensor(shape)], [tensor(shape)], f"dimensions = {ints(dims)}")


def broadcast_in_dim(d: Draw) -> None:
    out = d.shape(0, 5)
    dims = d.rng.sample(range(len(out)), d.rng.randint(0, len(out)))
    ins = [d.rng.choice([out[i], out[i], 1]) for i in dims]
    d.op("stablehlo.broadcast_in_dim", [tensor(ins)], [tensor(out)], f"broadcast_dimensions = {ints(dims)}")


def reshape(d: Draw) -> None:
    size = d.rng.choice([1, 4, 6, 8, 12, 16, 24, 36, 60, 64, 96, 120, 210, 360])
    d.op("stablehlo.reshape", [tensor(_factored(d, size))], [tensor(_factored(d, size))])


def _factored(d: Draw, size: int) -> list[int]:
    dims = []
    for p in (2, 2, 2, 3, 3, 5, 7):
        if size % p == 0 and d.maybe(0.6):
            dims.append(p)
            size //= p
    dims.append(size)
    d.rng.shuffle(dims)
    while len(dims) > 1 and d.maybe():
        a = dims.pop()
        dims[d.rng.randrange(len(dims))] *= a
    if d.maybe(0.3):
        dims.insert(d.rng.randrange(len(dims) + 1), 1)
    return dims


def bitcast_convert(d: Draw) -> None:
    shape = d.shape(0, 3)
    wide, narrow = d.rng.choice([("f32", "i32"), ("f32", "bf16"), ("i64", "i16"), ("f64", "f64"), ("i32", "i8")])
    ratio = {"f32": 4, "i32": 4, "bf16": 2, "i64": 8, "i16": 2, "f64": 8, "i8": 1}
    parts = ratio[wide] // ratio[narrow]
    types = [tensor(shape, wide), tensor((*shape, parts) if parts > 1 else shape, narrow)]
    if d.maybe():
        types.reverse()
    d.op("stablehlo.bitcast_convert", types[:1], types[1:])


def reduce(d: Draw) -> None:
    shape = d.shape(0, 4)
    dtypes = [d.rng.choice(["f32", "i32"]) for _ in range(d.rng.choice([1, 1, 2, 3]))]
    dims = sorted(d.rng.sample(range(len(shape)), d.rng.randint(0, len(shape))))
    out = [n for i, n in enumerate(shape) if i not in dims]
    ins = [*[tensor(shape, t) for t in dtypes], *[tensor((), t) for t in dtypes]]
    kinds = d.rng.choice([["add"], ["maximum"], ["add", "maximum"]])
    body = combiner(d, dtypes, kinds)
    d.op("stablehlo.reduce", ins, [tensor(out, t) for t in dtypes], f"dimensions = {ints(dims)}", body)


def cholesky(d: Draw) -> None:
    n = d.rng.choice(SIZES)
    shape = (*d.shape(0, 2), n, n)
    d.op("stablehlo.cholesky", [tensor(shape)], [tensor(shape)], f"lower = {word(d.maybe())}")


def triangular_solve(d: Draw) -> None:
    batch, n, m, left = d.shape(0, 2), d.rng.choice(SIZES), d.rng.choice(SIZES), d.maybe()
    b = tensor((*batch, n, m) if left else (*batch, m, n))
    transpose_a = d.rng.choice(["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])
    attrs = (
        f"left_side = {word(left)}, lower = {word(d.maybe())}, unit_diagonal = {word(d.maybe())}, "
        f"transpose_a = #stablehlo<transpose {transpose_a}>"
    )
    d.op("stablehlo.triangular_solve", [tensor((*batch, n, n)), b], [b], attrs)


def batch_norm_inference(d: Draw) -> None:
    shape = d.shape(1, 4)
    feature = d.rng.randrange(len(shape))
    ins = [tensor(shape), *[tensor((shape[feature],))] * 4]
    attrs = f"epsilon = 0.1 : f32, feature_index = {feature} : i64"
    d.op("stablehlo.batch_norm_inference", ins, [tensor(shape)], attrs)


def rng_bit_generator(d: Draw) -> None:
    algorithm, words = d.rng.choice([("THREE_FRY", 2), ("PHILOX", 3), ("PHILOX", 2), ("DEFAULT", 2)])
    state, bits = tensor((words,), "ui64"), tensor(d.shape(0, 4), d.rng.choice(["ui32", "ui8", "ui64"]))
    attrs = f"rng_algorithm = #stablehlo<rng_algorithm {algorithm}>"
    d.op("stablehlo.rng_bit_generator", [state], [state, bits], attrs)


def iota(d: Draw) -> None:
    shape = d.shape(1, 4)
    d.op("stablehlo.iota", [], [tensor(shape, "i32")], f"iota_dimension = {d.rng.randrange(len(shape))} : i64")


def elementwise(d: Draw) -> None:
    """Pointwise operations that have attributes, or operands that may be scalars."""
    shape, kind = d.shape(0, 4), d.rng.randrange(4)
    t = tensor(shape)
    if kind == 0:
        predicate = tensor(shape if d.maybe() else (), "i1")
        d.op("stablehlo.select", [predicate, t, t], [t])
    elif kind == 1:
        d.op("stablehlo.clamp", [t if d.maybe() else SCALAR, t, t if d.maybe() else SCALAR], [t])
    elif kind == 2:
        direction = d.rng.choice(["EQ", "NE", "GE", "GT", "LE", "LT"])
        attrs = f"comparison_direction = #stablehlo<comparison_direction {direction}>"
        if d.maybe():
            attrs += ", compare_type = #stablehlo<comparison_type FLOAT>"
        d.op("stablehlo.compare", [t, t], [tensor(shape, "i1")], attrs)
    else:
        bits = f"exponent_bits = {d.rng.choice([1, 8])} : i32, mantissa_bits = {d.rng.choice([0, 10])} : i32"
        d.op("stablehlo.reduce_precision", [t], [t], bits)


DRAWS: list[Callable[[Draw], None]] = [
    all_gather, all_reduce, all_to_all, batch_norm_inference, bitcast_convert, broadcast_in_dim, cholesky, collective,
    concatenate, convolution, custom_call, dot, dot_general, dynamic_slice, dynamic_update_slice, elementwise, fft,
    gather, iota, pad, reduce, reduce_scatter, reduce_window, reshape, reverse, rng_bit_generator, scatter,
    select_and_scatter, sort, static_slice, transpose, triangular_solve,
]  # fmt: skip


AXES = {"a": 2, "b": 4, "c": 3}


def annotated(seed: int, draw: Callable[[Draw], None] | None = None) -> str:
    """The same over a mesh, with shardings at most of the arguments: axes in any dimensions, open and closed."""
    d = Draw(seed)
    (d.rng.choice(DRAWS) if draw is None else draw)(d)
    for i, text in enumerate(d.args):
        rank = len(re.findall(r"\d+x", text))
        if rank and d.maybe(0.7):
            d.args[i] = f"{text} {{sdy.sharding = #sdy.sharding<@mesh, [{', '.join(_dims(d, rank))}]>}}"
    sizes = ", ".join(f'"{name}"={size}' for name, size in AXES.items())
    return f"sdy.mesh @mesh = <[{sizes}]>\n{d.module()}"


def _dims(d: Draw, rank: int) -> list[str]:
    places: list[list[str]] = [[] for _ in range(rank)]
    for name in d.rng.sample(sorted(AXES), len(AXES)):
        if d.maybe(0.6):
            d.rng.choice(places).append(f'"{name}"')
    return ["{" + ", ".join([*axes, *["?"] * d.maybe(0.7)]) + "}" for axes in places]


def operation(seed: int, draw: Callable[[Draw], None] | None = None) -> str:
    """The module of a seed, of one of `DRAWS` or of `draw`; equal seeds give equal modules."""
    d = Draw(seed)
    (d.rng.choice(DRAWS) if draw is None else draw)(d)
    return d.module()
