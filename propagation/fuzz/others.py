"""Steps for what remains of StableHLO and CHLO: operations that move data between programs, have no rule, or have one
for each target."""

from __future__ import annotations

from .growing import SIZES, Generator, Step, array, reducer, tensor

__all__ = ["STEPS"]

TOKEN = "!stablehlo.token"
POINTWISE_TARGETS = [
    "CompactWyHelper", "InspectSharding", "LayoutConstraint", "MoveToDevice", "MoveToHost", "X64SplitHigh",
    "X64SplitLow", "_SPMDInternalOp_MultiPad", "_SPMDInternalOp_RotateRight", "_SPMDInternalOp_Wrap",
    "annotate_device_placement", "mhlo.erf", "xla.megascale.provide_metadata",
]  # fmt: skip
CHLO_UNARY = ["acosh", "asin", "atan", "bessel_i1e", "conj", "cosh", "digamma", "erf_inv", "erfc", "sinh"]


def tokens(g: Generator) -> None:
    """A chain of operations with effects, ordered by a token; what comes in joins the pool."""
    name, s = g.pick()
    (token,) = g.op("stablehlo.create_token", [], [], [TOKEN])
    kind = g.rng.randrange(4)
    if kind == 0:
        (token,) = g.op("stablehlo.outfeed", [name, token], [tensor(s), TOKEN], [TOKEN], 'outfeed_config = ""')
    elif kind == 1:
        value, token = g.op("stablehlo.infeed", [token], [TOKEN], [tensor(s), TOKEN], 'infeed_config = ""')
        g.keep(value, s)
    elif kind == 2:
        attrs = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 2>, is_host_transfer = true"
        (token,) = g.op("stablehlo.send", [name, token], [tensor(s), TOKEN], [TOKEN], attrs)
    else:
        attrs = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 3>, is_host_transfer = true"
        value, token = g.op("stablehlo.recv", [token], [TOKEN], [tensor(s), TOKEN], attrs)
        g.keep(value, s)
    g.op("stablehlo.after_all", [token], [TOKEN], [TOKEN])
    g.used.add("token")


def lookups(g: Generator) -> None:
    """Operations that only older frontends write."""
    v = g.pick(lambda s: len(s) == 2)
    if v is None:
        return
    (name, s), n = v, g.rng.choice(SIZES)
    if g.rng.random() < 0.5:
        (ids,) = g.op("stablehlo.iota", [], [], [tensor((n,), "i32")], "iota_dimension = 0 : i64")
        attrs, out = "dim = 0 : i64, batch_dims = 0 : i64", (n, s[1])
        types = [tensor(s), tensor((n,), "i32")]
        (result,) = g.op("stablehlo.torch_index_select", [name, ids], types, [tensor(out)], attrs)
    else:
        rhs, out = (s[1], n), (s[0], n)
        attrs = 'einsum_config = "ab,bc->ac"'
        (result,) = g.op("stablehlo.einsum", [name, g.like(rhs)], [tensor(s), tensor(rhs)], [tensor(out)], attrs)
    g.keep(result, out)


def branch(g: Generator) -> None:
    """`stablehlo.if`, which carries no data-flow edges."""
    name, s = g.pick()
    (condition,) = g.op("stablehlo.constant", [], [], ["tensor<i1>"], "value = dense<true> : tensor<i1>")
    bodies = []
    for _ in range(2):
        inner, scope = g.nested(g.rng.randint(0, 2), [])
        result = g.matching([(name, s), *scope], s)
        bodies.append("{\n" + "\n".join(inner) + f"\nstablehlo.return {result} : {tensor(s)} }}")
    g.keep(g.op("stablehlo.if", [condition], ["tensor<i1>"], [tensor(s)], "", ", ".join(bodies))[0], s)


def asynchronous(g: Generator) -> None:
    name, s = g.pick()
    t, future = tensor(s), f"!stablehlo.future<{tensor(s)}>"
    inner, out = g.name(), g.name()
    body = (
        f'{{ ^bb0({inner}: {t}):\n{out} = "stablehlo.collective_permute"({inner}) '
        f"{{source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}} : ({t}) -> {t}\nstablehlo.return {out} : {t} }}"
    )
    (started,) = g.op("stablehlo.async_start", [name], [t], [future], "", body)
    g.keep(g.op("stablehlo.async_done", [started], [future], [t])[0], s)
    g.used.add("asynchronous operation")


def composite(g: Generator) -> None:
    name, s = g.pick()
    t, function = tensor(s), g.symbol("decomposition")
    g.functions.append(
        f"func.func private @{function}(%x: {t}) -> {t} {{\n%y = stablehlo.negate %x : {t}\nreturn %y : {t} }}"
    )
    g.emit(f'stablehlo.composite "my.op" {name} {{decomposition = @{function}}} : ({t}) -> {t}', s)


def known_call(g: Generator) -> None:
    """Custom calls whose target has a rule."""
    name, s = g.pick()
    kind = g.rng.randrange(3)
    if kind == 0 or len(s) < 2:
        target = g.rng.choice(POINTWISE_TARGETS)
        g.emit(f"stablehlo.custom_call @{target}({name}) : ({tensor(s)}) -> {tensor(s)}", s)
    elif kind == 1:
        n = min(s[-2:])
        types = [tensor(s), tensor((*s[:-2], n))]
        names = g.op("stablehlo.custom_call", [name], [tensor(s)], types, 'call_target_name = "Qr"')
        g.keep(names[0], s)
    else:
        square = (*s[:-1], s[-1], s[-1])[-4:]
        types = [tensor(square), tensor(square[:-1])]
        operands = [g.like(square)]
        names = g.op("stablehlo.custom_call", operands, [tensor(square)], types, 'call_target_name = "Eigh"')
        g.keep(names[0], square)


def user_rule(g: Generator) -> None:
    """A custom call that brings a rule of its own: an operand and a result that share some dimensions."""
    name, s = g.pick()
    if not s:
        return
    letters = "ijklmnop"[: len(s)]
    reduced = g.rng.randrange(len(s)) if g.rng.random() < 0.4 else None
    out = tuple(n for d, n in enumerate(s) if d != reduced)
    kept = [c for d, c in enumerate(letters) if d != reduced]
    types = "" if reduced is None else f" reduction={{{letters[reduced]}}}"
    if reduced is None and g.rng.random() < 0.5:
        types = (
            f" {g.rng.choice(['need_replication', 'permutation', 'blocked_propagation'])}={{{g.rng.choice(letters)}}}"
        )
    sizes = ", ".join(f"{c}={n}" for c, n in zip(letters, s))
    rule = f"#sdy.op_sharding_rule<([{', '.join(letters)}])->([{', '.join(kept)}]) {{{sizes}}}{types}, custom>"
    g.emit(f"stablehlo.custom_call @mine({name}) {{sdy.sharding_rule = {rule}}} : ({tensor(s)}) -> {tensor(out)}", out)
    g.used.add("rule of the user")


def strided(g: Generator) -> None:
    """Slices with steps, pads inside, reductions and convolutions over windows that overlap."""
    v = g.pick(lambda s: len(s) > 0 and s[0] > 2)
    if v is None:
        return
    (name, s), rest = v, "".join(f", 0:{n}" for n in v[1][1:])
    kind = g.rng.randrange(4)
    if kind == 0:
        out = ((s[0] + 1) // 2, *s[1:])
        g.emit(f"stablehlo.slice {name} [0:{s[0]}:2{rest}] : ({tensor(s)}) -> {tensor(out)}", out)
    elif kind == 1:
        out, zeros = (2 * s[0] - 1, *s[1:]), [0] * len(s)
        g.emit(
            f"stablehlo.pad {name}, {g.like(())}, low = {zeros}, high = {zeros}, interior = {[1, *zeros[1:]]} : "
            f"({tensor(s)}, tensor<f32>) -> {tensor(out)}",
            out,
        )
    elif kind == 2:
        ones = [1] * (len(s) - 1)
        attrs = f"window_dimensions = {array([3, *ones])}, window_strides = {array([1] * len(s))}, "
        attrs += f"padding = dense<{[[1, 1]] + [[0, 0]] * len(ones)}> : tensor<{len(s)}x2xi64>"
        types = [tensor(s), "tensor<f32>"]
        g.keep(g.op("stablehlo.reduce_window", [name, g.like(())], types, [tensor(s)], attrs, reducer("add"))[0], s)
    else:
        _image_convolution(g)


def _image_convolution(g: Generator) -> None:
    v = g.pick(lambda s: len(s) == 4 and s[1] > 2 and s[2] > 1)
    if v is None:
        return
    (b, h, w, f), stride, o = v[1], g.rng.choice([1, 2]), g.rng.choice(SIZES)
    k = g.rng.choice([2, 3])
    out = (b, (h + 2 - k) // stride + 1, w + 1, o)
    attrs = (
        "dimension_numbers = #stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>, batch_group_count = 1 : i64, "
        f"feature_group_count = 1 : i64, window_strides = {array([stride, 1])}, "
        "padding = dense<[[1, 1], [1, 1]]> : tensor<2x2xi64>"
    )
    kernel = (k, 2, f, o)
    types = [tensor(v[1]), tensor(kernel)]
    g.keep(g.op("stablehlo.convolution", [v[0], g.like(kernel)], types, [tensor(out)], attrs)[0], out)


def replica(g: Generator) -> None:
    (device,) = g.op("stablehlo.replica_id", [], [], ["tensor<ui32>"])
    g.convert(device, (), "ui32")


def extended(g: Generator) -> None:
    name, s = g.pick()
    g.keep(g.op(f"chlo.{g.rng.choice(CHLO_UNARY)}", [name], [tensor(s)], [tensor(s)])[0], s)


STEPS: list[Step] = [
    tokens, lookups, branch, asynchronous, composite, known_call, user_rule, strided, replica, extended,
]  # fmt: skip
