"""Steps for operations that move, combine or reduce elements."""

from __future__ import annotations

from math import prod

from .growing import SIZES, Generator, Shape, Step, array, reducer, tensor

__all__ = ["STEPS"]

UNARY = [
    "abs", "cbrt", "ceil", "cosine", "exponential", "exponential_minus_one", "floor", "log", "log_plus_one", "logistic",
    "negate", "round_nearest_afz", "round_nearest_even", "rsqrt", "sign", "sine", "sqrt", "tan", "tanh",
]  # fmt: skip
BINARY = ["add", "atan2", "divide", "maximum", "minimum", "multiply", "power", "remainder", "subtract"]
INTEGER = ["and", "or", "xor", "shift_left", "shift_right_arithmetic", "shift_right_logical"]


def _nonscalar(shape: Shape) -> bool:
    return len(shape) > 0


def unary(g: Generator) -> None:
    v = g.pick()
    note = g.annotate(v[1], 0.08)
    g.emit(f"stablehlo.{g.rng.choice(UNARY)} {v[0]}{note} : {tensor(v[1])}", v[1])


def binary(g: Generator) -> None:
    v = g.pick()
    other = g.like(v[1])
    note = g.annotate(v[1], 0.08)
    g.emit(f"stablehlo.{g.rng.choice(BINARY)} {v[0]}, {other}{note} : {tensor(v[1])}", v[1])


def integers(g: Generator) -> None:
    (name, s), t = g.pick(), "i32"
    a = g.convert(name, s, "f32", t)
    kind = g.rng.choice([*INTEGER, "not", "popcnt", "count_leading_zeros"])
    operands = [a, g.convert(g.like(s), s, "f32", t)] if kind in INTEGER else [a]
    (out,) = g.op(f"stablehlo.{kind}", operands, [tensor(s, t)] * len(operands), [tensor(s, t)])
    g.convert(out, s, t)


def complexes(g: Generator) -> None:
    (name, s), t = g.pick(), tensor
    (c,) = g.op("stablehlo.complex", [name, g.like(s)], [t(s)] * 2, [t(s, "complex<f32>")])
    kind = g.rng.choice(["real", "imag", "abs"])
    (out,) = g.op(f"stablehlo.{kind}", [c], [t(s, "complex<f32>")], [t(s)])
    g.keep(out, s)


def precision(g: Generator) -> None:
    name, s = g.pick()
    attrs = "exponent_bits = 5 : i32, mantissa_bits = 3 : i32"
    (out,) = g.op("stablehlo.reduce_precision", [name], [tensor(s)], [tensor(s)], attrs)
    g.keep(out, s)
    (mask,) = g.op("stablehlo.is_finite", [out], [tensor(s)], [tensor(s, "i1")])
    g.convert(mask, s, "i1")


def select(g: Generator) -> None:
    v = g.pick()
    t, m = tensor(v[1]), tensor(v[1], "i1")
    mask = g.name()
    g.lines.append(f"{mask} = stablehlo.compare LT, {v[0]}, {g.like(v[1])} : ({t}, {t}) -> {m}")
    if g.rng.random() < 0.2:
        m = "tensor<i1>"
        (mask,) = g.op("stablehlo.constant", [], [], [m], f"value = dense<true> : {m}")
    g.emit(f"stablehlo.select {mask}, {v[0]}, {g.like(v[1])} : {m}, {t}", v[1])


def clamp(g: Generator) -> None:
    name, s = g.pick()
    low, high = (s if g.rng.random() < 0.5 else () for _ in range(2))
    (out,) = g.op(
        "stablehlo.clamp", [g.like(low), name, g.like(high)], [tensor(low), tensor(s), tensor(high)], [tensor(s)]
    )
    g.keep(out, s)


def bitcast(g: Generator) -> None:
    name, s = g.pick()
    if g.rng.random() < 0.5:
        (out,) = g.op("stablehlo.bitcast_convert", [name], [tensor(s)], [tensor(s, "i32")])
        g.convert(out, s, "i32")
    else:
        wide = (*s, 2)
        (out,) = g.op("stablehlo.bitcast_convert", [name], [tensor(s)], [tensor(wide, "i16")])
        g.convert(out, wide, "i16")


def reshape(g: Generator) -> None:
    v = g.pick()
    n = prod(v[1])
    dims: list[int] = []
    while n > 1 and len(dims) < 4:
        k = g.rng.choice([k for k in range(2, n + 1) if n % k == 0])
        dims.append(k)
        n //= k
    dims = dims + [n] if n > 1 or not dims else dims
    if g.rng.random() < 0.15:
        dims.append(1)
    g.rng.shuffle(dims)
    g.emit(f"stablehlo.reshape {v[0]} : ({tensor(v[1])}) -> {tensor(dims)}", dims)


def transpose(g: Generator) -> None:
    v = g.pick(lambda s: len(s) > 1)
    if v is None:
        return
    order = list(range(len(v[1])))
    g.rng.shuffle(order)
    out = [v[1][d] for d in order]
    g.emit(f"stablehlo.transpose {v[0]}, dims = {order} : ({tensor(v[1])}) -> {tensor(out)}", out)


def broadcast(g: Generator) -> None:
    v = g.pick(lambda s: len(s) < 4)
    if v is None:
        return
    at = g.rng.randrange(len(v[1]) + 1)
    dims = [d if d < at else d + 1 for d in range(len(v[1]))]
    out = [n if n > 1 or g.rng.random() < 0.5 else g.rng.choice(SIZES) for n in v[1]]
    out.insert(at, g.rng.choice(SIZES))
    g.emit(f"stablehlo.broadcast_in_dim {v[0]}, dims = {dims} : ({tensor(v[1])}) -> {tensor(out)}", out)


def reduce(g: Generator) -> None:
    v = g.pick(_nonscalar)
    if v is None:
        return
    s, count = v[1], g.rng.choice([1, 1, 2])
    dims = sorted(g.rng.sample(range(len(s)), g.rng.randint(1, len(s))))
    out = [n for d, n in enumerate(s) if d not in dims]
    inputs = [v[0], *(g.like(s) for _ in range(count - 1))]
    zeros = [g.like(()) for _ in range(count)]
    results = g.op(
        "stablehlo.reduce", inputs + zeros, [tensor(s)] * count + ["tensor<f32>"] * count, [tensor(out)] * count,
        f"dimensions = {array(dims)}", reducer(g.rng.choice(["add", "maximum", "multiply"]), count=count),
    )  # fmt: skip
    for name in results:
        g.keep(name, out)


def concatenate(g: Generator) -> None:
    v = g.pick(_nonscalar)
    if v is None:
        return
    d = g.rng.randrange(len(v[1]))
    names, types, size = [v[0]], [tensor(v[1])], v[1][d]
    for _ in range(g.rng.choice([1, 1, 2])):
        other = list(v[1])
        other[d] = g.rng.choice(SIZES)
        names.append(g.like(tuple(other)))
        types.append(tensor(other))
        size += other[d]
    out = [*v[1][:d], size, *v[1][d + 1 :]]
    g.emit(f"stablehlo.concatenate {', '.join(names)}, dim = {d} : ({', '.join(types)}) -> {tensor(out)}", out)


def roll(g: Generator) -> None:
    """Two slices of one value joined the other way round, as `roll` is lowered."""
    v = g.pick(lambda s: len(s) > 0 and s[0] > 1)
    if v is None:
        return
    s, k = v[1], g.rng.randrange(1, v[1][0])
    rest = "".join(f", 0:{n}" for n in s[1:])
    a, b = (s[0] - k, *s[1:]), (k, *s[1:])
    high = g.emit(f"stablehlo.slice {v[0]} [{k}:{s[0]}{rest}] : ({tensor(s)}) -> {tensor(a)}", a)
    low = g.emit(f"stablehlo.slice {v[0]} [0:{k}{rest}] : ({tensor(s)}) -> {tensor(b)}", b)
    g.emit(f"stablehlo.concatenate {high}, {low}, dim = 0 : ({tensor(a)}, {tensor(b)}) -> {tensor(s)}", s)


def cut(g: Generator) -> None:
    v = g.pick(_nonscalar)
    if v is None:
        return
    bounds = []
    for n in v[1]:
        low = g.rng.randrange(n) if g.rng.random() < 0.4 else 0
        bounds.append((low, g.rng.randint(low + 1, n) if g.rng.random() < 0.4 else n))
    out = [b - a for a, b in bounds]
    ranges = ", ".join(f"{a}:{b}" for a, b in bounds)
    g.emit(f"stablehlo.slice {v[0]} [{ranges}] : ({tensor(v[1])}) -> {tensor(out)}", out)


def pad(g: Generator) -> None:
    v = g.pick(_nonscalar)
    if v is None:
        return
    low = [g.rng.choice([0, 0, 1]) for _ in v[1]]
    high = [g.rng.choice([0, 0, 2]) for _ in v[1]]
    out = [n + a + b for n, a, b in zip(v[1], low, high)]
    zero = g.like(())
    g.emit(
        f"stablehlo.pad {v[0]}, {zero}, low = {low}, high = {high}, interior = {[0] * len(low)} : "
        f"({tensor(v[1])}, tensor<f32>) -> {tensor(out)}",
        out,
    )


def _indices(g: Generator, count: int) -> list[str]:
    names = []
    for _ in range(count):
        name = g.name()
        g.lines.append(f"{name} = stablehlo.constant dense<{g.rng.randrange(2)}> : tensor<i32>")
        names.append(name if g.rng.random() < 0.5 else g.index)
    return names


def dynamic_slice(g: Generator) -> None:
    v = g.pick(_nonscalar)
    if v is None:
        return
    out = [g.rng.randint(1, n) if g.rng.random() < 0.4 else n for n in v[1]]
    names = _indices(g, len(out))
    types = ", ".join([tensor(v[1])] + ["tensor<i32>"] * len(out))
    g.emit(f"stablehlo.dynamic_slice {v[0]}, {', '.join(names)}, sizes = {out} : ({types}) -> {tensor(out)}", out)


def dynamic_update(g: Generator) -> None:
    v = g.pick(_nonscalar)
    if v is None:
        return
    part = tuple(g.rng.randint(1, n) if g.rng.random() < 0.4 else n for n in v[1])
    update = g.like(part)
    names = _indices(g, len(part))
    types = ", ".join([tensor(v[1]), tensor(part)] + ["tensor<i32>"] * len(part))
    g.emit(f"stablehlo.dynamic_update_slice {v[0]}, {update}, {', '.join(names)} : ({types}) -> {tensor(v[1])}", v[1])


def reverse(g: Generator) -> None:
    v = g.pick(_nonscalar)
    if v is not None:
        g.emit(f"stablehlo.reverse {v[0]}, dims = [{g.rng.randrange(len(v[1]))}] : {tensor(v[1])}", v[1])


def sort(g: Generator) -> None:
    v = g.pick(_nonscalar)
    if v is None:
        return
    t = tensor(v[1])
    names = [v[0]] + ([g.like(v[1])] if g.rng.random() < 0.5 else [])
    args = ", ".join(f"%p{i}: tensor<f32>" for i in range(2 * len(names)))
    body = (
        f"{{ ^bb0({args}): %lt = stablehlo.compare LT, %p0, %p1 : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
        "stablehlo.return %lt : tensor<i1> }"
    )
    types, d = [t] * len(names), g.rng.randrange(len(v[1]))
    for name in g.op("stablehlo.sort", names, types, types, f"dimension = {d} : i64", body):
        g.keep(name, v[1])


def extended(g: Generator) -> None:
    """Operations of CHLO, through which the real pass propagates nothing."""
    name, s = g.pick()
    if s and s[-1] > 2 and g.rng.random() < 0.5:
        out = (*s[:-1], 2)
        values, _ = g.op("chlo.top_k", [name], [tensor(s)], [tensor(out), tensor(out, "i32")], "k = 2 : i64")
        g.keep(values, out)
    else:
        (out_name,) = g.op(f"chlo.{g.rng.choice(['erf', 'square', 'lgamma'])}", [name], [tensor(s)], [tensor(s)])
        g.keep(out_name, s)


STEPS: list[Step] = [
    unary, unary, binary, binary, integers, complexes, precision, select, clamp, bitcast, reshape, transpose, broadcast,
    reduce, concatenate, roll, cut, pad, dynamic_slice, dynamic_update, reverse, sort, extended,
]  # fmt: skip
