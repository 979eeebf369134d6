"""Training-like programs on 8 virtual devices: results equal one device's, bytes never above XLA's partitioner."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from .jax_side import Case, check


def normal(*shape, seed=0, scale=1.0, dtype="float32"):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def integers(high, *shape, seed=0):
    return np.random.default_rng(seed).integers(0, high, shape).astype(np.int32)


@pytest.mark.smoke
def test_tensor_parallel_mlp_needs_two_all_reduces():
    def build(constrain):
        def f(x, a, b, ct):
            y, back = jax.vjp(lambda x, a, b: jax.nn.gelu(x @ a) @ b, x, a, b)
            return y, back(ct)

        return f

    args = (normal(8, 32), normal(32, 128, scale=0.2), normal(128, 32, scale=0.2), normal(8, 32))
    specs = (P(), P(None, "x"), P("x", None))
    case = Case({"x": 8}, build, args, (*specs, P()), (P(), specs))
    result, sent = check(case)
    # The output's and the gradient's: in one message, where there is room to pack them.
    assert {(entry.kind, entry.axes) for entry in result.plan} == {("all_reduce", "x")}
    assert sum(len(entry.members) or 1 for entry in result.plan) == 2
    assert sent == 2 * (2 * 7 / 8 * 8 * 32 * 4) == result.plan.bytes


def fsdp(constrain):
    def f(w, x, ct):
        def net(w, x):
            def body(h, wi):
                return constrain(jnp.tanh(h @ wi), "x", None), None

            return jax.lax.scan(body, x, w)[0]

        y, back = jax.vjp(lambda w: net(w, x), w)
        return y, back(ct)[0]

    return f


@pytest.mark.smoke
def test_fsdp_scan_gathers_weights_and_scatters_gradients_per_layer():
    args = (normal(4, 64, 64, scale=0.1), normal(512, 64), normal(512, 64))
    spec = P(None, "x", None)
    case = Case({"x": 8}, fsdp, args, (spec, P("x", None), P("x", None)), (P("x", None), spec))
    result, sent = check(case)
    weight = 7 / 8 * 64 * 64 * 4
    assert result.plan.counts == {"all_gather": 8, "reduce_scatter": 4}
    assert sent == 4 * 3 * weight
    assert all(e.times == 4 for e in result.plan)


def test_data_parallel_gradients_are_reduced_once():
    def build(constrain):
        def f(ws, x, y):
            def loss(ws):
                h = x
                for w in ws[:-1]:
                    h = jnp.maximum(h @ w, 0)
                return jnp.mean((h @ ws[-1] - y) ** 2)

            value, grads = jax.value_and_grad(loss)(ws)
            return [w - 0.1 * g for w, g in zip(ws, grads)], value

        return f

    ws = [normal(32, 32, seed=i, scale=0.2) for i in range(3)]
    args = (ws, normal(64, 32), normal(64, 32, seed=9))
    check(Case({"x": 8}, build, args, ([P()] * 3, P("x", None), P("x", None)), ([P()] * 3, P())))


def test_embedding_split_over_the_vocabulary():
    def build(constrain):
        def f(table, ids, ct):
            y, back = jax.vjp(lambda t: t[ids], table)
            return y, back(ct)[0]

        return f

    args = (normal(64, 16), integers(64, 4, 8), normal(4, 8, 16))
    _, sent = check(Case({"x": 8}, build, args, (P("x", None), P(), P()), (P(), P("x", None))))
    assert sent <= 2 * 7 / 8 * 4 * 8 * 16 * 4  # no more than an all-reduce of the rows


@pytest.mark.parametrize("one_hot", [False, True])
def test_cross_entropy_over_a_split_vocabulary(one_hot):
    def build(constrain):
        def loss(h, w, labels):
            z = h @ w
            top = jax.nn.logsumexp(z, axis=-1)
            if one_hot:
                mine = jnp.sum(z * jax.nn.one_hot(labels, z.shape[-1], dtype=z.dtype), axis=-1)
            else:
                mine = jnp.take_along_axis(z, labels[:, None], axis=-1)[:, 0]
            return jnp.mean(top - mine)

        return lambda *a: jax.value_and_grad(loss, argnums=(0, 1))(*a)

    args = (normal(64, 16), normal(16, 256, scale=0.3), integers(256, 64))
    specs = (P(), P(None, "x"), P())
    check(Case({"x": 8}, build, args, specs, (P(), (P(), P(None, "x")))))


def transformer(params, ids, labels):
    def norm(x, g):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * g

    def layer(x, p):
        h = norm(x, p["g1"])
        q, k, v = (jnp.einsum("bsd,dhk->bhsk", h, p[n]) for n in "qkv")
        s = jnp.einsum("bhsk,bhtk->bhst", q, k) / 4.0
        i = jnp.arange(ids.shape[1])
        s = jnp.where(i[:, None] >= i[None, :], s, -1e30)
        o = jnp.einsum("bhst,bhtk->bhsk", jax.nn.softmax(s, axis=-1), v)
        x = x + jnp.einsum("bhsk,hkd->bsd", o, p["o"])
        return x + jax.nn.gelu(norm(x, p["g2"]) @ p["w1"]) @ p["w2"], None

    x = params["emb"][ids]
    if isinstance(params["layers"], dict):
        x, _ = jax.lax.scan(layer, x, params["layers"])
    else:
        for p in params["layers"]:
            x, _ = layer(x, p)
    z = x @ params["emb"].T
    mine = jnp.take_along_axis(z, labels[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(z, axis=-1) - mine)


def transformer_params(layers: int, stacked: bool, specs: bool, fsdp: str | None):
    d, h, k, f, v = 32, 4, 8, 64, 64
    shapes = dict(g1=(d,), g2=(d,), q=(d, h, k), k=(d, h, k), v=(d, h, k), o=(h, k, d), w1=(d, f), w2=(f, d))
    split = dict(
        g1=(None,), g2=(None,), q=(fsdp, "m", None), k=(fsdp, "m", None), v=(fsdp, "m", None), o=("m", None, fsdp),
        w1=(fsdp, "m"), w2=("m", fsdp),
    )  # fmt: skip
    make = {
        n: P(*([None] if stacked else []), *split[n]) if specs
        else normal(*([layers] if stacked else []), *s, seed=i, scale=1.0 if n[0] == "g" else 0.2)
        for i, (n, s) in enumerate(shapes.items())
    }  # fmt: skip
    emb = P("m", fsdp) if specs else normal(v, d, seed=50, scale=0.3)
    return dict(emb=emb, layers=make if stacked else [dict(make) for _ in range(layers)])


def train_step(constrain):
    def f(params, moments, ids, labels):
        loss, grads = jax.value_and_grad(transformer)(params, ids, labels)
        moments = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments, grads)
        params = jax.tree.map(lambda p, m: p - 0.1 * m, params, moments)
        return params, moments, loss

    return f


@pytest.mark.sweep(2)
@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("split", [None, "d"])
def test_transformer_train_step(stacked, split):
    params = transformer_params(2, stacked, False, split)
    specs = transformer_params(2, stacked, True, split)
    moments = jax.tree.map(np.zeros_like, params)
    args = (params, moments, integers(64, 8, 16), integers(64, 8, 16, seed=1))
    ins = (specs, specs, P("d", None), P("d", None))
    case = Case({"d": 4, "m": 2}, train_step, args, ins, (specs, specs, P()))
    check(case, rtol=2e-4)


def test_gradient_accumulation_reduces_once_after_the_loop():
    def build(constrain):
        def f(w, xs):
            def body(acc, x):
                return acc + jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w), None

            return jax.lax.scan(body, jnp.zeros_like(w), xs)[0]

        return f

    args = (normal(16, 16, scale=0.2), normal(6, 32, 16))
    case = Case({"x": 8}, build, args, (P(), P(None, "x", None)), P())
    result, sent = check(case)
    assert sent == 2 * 7 / 8 * 16 * 16 * 4
    assert [e.times for e in result.plan] == [1]


def test_sequence_parallel_block():
    def build(constrain):
        def f(x, g, a, b):
            x = constrain(x, "x", None)
            h = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * g
            h = constrain(jax.nn.gelu(h @ a), None, "x")
            return x + constrain(h @ b, "x", None)

        return f

    args = (normal(64, 32), normal(32), normal(32, 128, scale=0.2), normal(128, 32, scale=0.2))
    case = Case({"x": 8}, build, args, (P("x", None), P(), P(None, "x"), P("x", None)), P("x", None))
    result, _ = check(case)
    assert result.plan.counts == {"all_gather": 1, "reduce_scatter": 1}


@pytest.mark.parametrize("constrained", [False, True])
def test_mixture_of_experts_moves_tokens_twice(constrained):
    def build(constrain):
        experts = (lambda v: constrain(v, "x", None, None, None)) if constrained else (lambda v: v)

        def f(x, wg, w1, w2):
            gates = jax.nn.softmax(x @ wg, axis=-1)
            m = jax.nn.one_hot(jnp.argmax(gates, axis=-1), 8, dtype=x.dtype)
            pos = (jnp.cumsum(m, axis=1) - 1) * m
            keep = m * (pos < 16)
            disp = keep[..., None] * jax.nn.one_hot(pos.astype(jnp.int32), 16, dtype=x.dtype)
            comb = disp * jnp.sum(gates * m, -1)[..., None, None]
            xe = experts(jnp.einsum("gtec,gtd->egcd", disp, x))
            h = jnp.maximum(jnp.einsum("egcd,edf->egcf", xe, w1), 0)
            return jnp.einsum("gtec,egcd->gtd", comb, experts(jnp.einsum("egcf,efd->egcd", h, w2)))

        return f

    args = (normal(8, 64, 32), normal(32, 8), normal(8, 32, 64, scale=0.2), normal(8, 64, 32, scale=0.2))
    case = Case({"x": 8}, build, args, (P("x"), P(), P("x"), P("x")), P("x"))
    result, _ = check(case)
    assert not constrained or result.plan.counts == {"all_to_all": 2}


def test_global_norm_is_one_scalar():
    def build(constrain):
        def f(grads):
            n = jnp.sqrt(sum(jnp.sum(g * g) for g in grads))
            return [g * jnp.minimum(1.0, 1.0 / n) for g in grads]

        return f

    args = ([normal(64, 32), normal(32, 64), normal(64)],)
    specs = [P("x", None), P(None, "x"), P("x")]
    _, sent = check(Case({"x": 8}, build, args, (specs,), specs))
    assert sent == 2 * 7 / 8 * 4


def layer_norm(x, g, b):
    mean = jnp.mean(x, -1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5) * g + b


def test_layer_norm_over_a_split_dimension():
    def build(constrain):
        def f(x, g, b, ct):
            y, back = jax.vjp(layer_norm, x, g, b)
            return y, back(ct)

        return f

    args = (normal(32, 64), normal(64), normal(64), normal(32, 64, seed=1))
    specs = (P(None, "x"), P("x"), P("x"))
    check(Case({"x": 8}, build, args, (*specs, P(None, "x")), (P(None, "x"), specs)))


def test_a_sum_that_is_written_twice_is_reduced_once():
    def build(constrain):
        return lambda x: (x - jnp.mean(x, -1, keepdims=True), jnp.var(x, -1, keepdims=True))

    result, _ = check(Case({"x": 8}, build, (normal(32, 64),), (P(None, "x"),), (P(None, "x"), P())))
    assert result.plan.counts == {"all_reduce": 2}


MOVES = {
    "concatenate": (lambda a, b: jnp.concatenate([a, b]), 2),
    "slice": (lambda a: a[20:52], 1),
    "slice_uneven": (lambda a: a[3:50] * 2, 1),
    "shift": (lambda a: jnp.concatenate([jnp.zeros((1, a.shape[1]), a.dtype), a[:-1]]), 1),
    "roll": (lambda a: jnp.roll(a, 3, axis=0), 1),
    "roll_far": (lambda a: jnp.roll(a, 29, axis=0), 1),
    "flip": (lambda a: jnp.flip(a, 0), 1),
    "stride": (lambda a: a[::2], 1),
    "pad": (lambda a: jnp.pad(a, ((5, 3), (0, 0)), constant_values=7.0), 1),
    "split": (lambda a: a[:32] * a[32:], 1),
    "sort": (lambda a: jnp.sort(a, axis=1), 1),
    "dynamic_slice": (lambda a: jax.lax.dynamic_slice(a, (jnp.int32(a[0, 0] * 9), 0), (16, 8)), 1),
    "update": (lambda a, b: jax.lax.dynamic_update_slice(a, b[:5] * 2, (jnp.int32(a[0, 0] * 20) + 20, 2)), 2),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_along_a_split_dimension(name):
    f, count = MOVES[name]
    args = tuple(np.abs(normal(64, 8, seed=i)) for i in range(count))
    for a in args:
        a[1::5, 1::3] = -0.0
    case = Case({"x": 8}, lambda constrain: f, args, (P("x", None),) * count)
    check(case, exact=True)


def test_what_moves_is_exactly_what_is_lacking():
    args = (normal(64, 8),)
    shift = MOVES["shift"][0]
    _, sent = check(Case({"x": 8}, lambda c: shift, args, (P("x", None),), P("x", None)))
    assert sent == 8 * 4  # one row


@pytest.mark.parametrize("name", ["reduce_max", "argmax", "mean", "prod", "any", "cumsum"])
def test_reductions_over_a_split_dimension(name):
    f = {
        "reduce_max": lambda x: jnp.max(x, axis=1),
        "argmax": lambda x: jnp.argmax(x, axis=1),
        "mean": lambda x: jnp.mean(x, axis=1),
        "prod": lambda x: jnp.prod(x, axis=1),
        "any": lambda x: jnp.any(x > 2, axis=1),
        "cumsum": lambda x: jnp.cumsum(x, axis=1),
    }[name]
    case = Case({"a": 4, "b": 2}, lambda c: f, (normal(6, 48),), (P(None, ("b", "a")),))
    check(case)


def test_decode_step_with_a_cache_split_over_positions():
    def build(constrain):
        def f(cache, q, new, pos):
            cache = jax.lax.dynamic_update_slice(cache, new, (0, pos, 0))
            s = jnp.einsum("bk,btk->bt", q, cache)
            s = jnp.where(jnp.arange(cache.shape[1]) <= pos, s, -1e30)
            return jnp.einsum("bt,btk->bk", jax.nn.softmax(s, axis=-1), cache), cache

        return f

    args = (normal(4, 64, 8), normal(4, 8), normal(4, 1, 8), np.int32(37))
    spec = P(None, "x", None)
    check(Case({"x": 8}, build, args, (spec, P(), P(), P()), (P(), spec)))


def test_shard_map_inside_is_copied_into_place():
    def build(constrain):
        def f(x, w):
            mesh = jax.sharding.get_abstract_mesh() if False else case_mesh
            local = functools.partial(jax.shard_map, mesh=mesh, in_specs=(P("x", None),), out_specs=P("x", None))(
                lambda x: x - jax.lax.pmean(x, "x") + jax.lax.axis_index("x")
            )
            return local(x * 2) @ w

        return f

    from .jax_side import jax_mesh

    case_mesh = jax_mesh({"x": 8})
    args = (normal(16, 8), normal(8, 8))
    check(Case({"x": 8}, build, args, (P("x", None), P()), P("x", None)))
