"""Programs that JAX lowers, under several annotations: the modules of the differential tests."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def S(*axes) -> NamedSharding:
    return NamedSharding(mesh, P(*axes))


def low(function, *args, specs=None) -> str:
    shardings = jax.tree.map(lambda s: s, specs)
    traced = jax.jit(function, in_shardings=shardings).trace(*args)
    return traced.lower(lowering_platforms=("cpu",)).as_text()


# Sizes: of a model and its hidden layer, of a batch and its sequences; how many heads and words there are.
D, F, B, T, H, V = 64, 128, 8, 16, 4, 96


def sh(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def ish(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def programs(quick: bool):
    """Yields (name, module text); `quick` leaves out most combinations of annotations."""
    yield from mlps(quick)
    yield from language_models(quick)
    yield from mixtures_of_experts()
    yield from convolutions()
    yield from rearrangements(quick)
    yield from shard_maps()
    yield from loops_and_branches()
    yield from calls()
    yield from others()


def mlps(quick: bool):
    """Two layers."""

    def mlp(p, x):
        return jnp.mean((jax.nn.gelu(x @ p["w1"] + p["b1"]) @ p["w2"]) ** 2)

    pm = {"w1": sh(D, F), "b1": sh(F), "w2": sh(F, D)}
    for name, sp in [
        ("tp", {"w1": S(None, "model"), "b1": S("model"), "w2": S("model", None)}),
        ("fsdp", {"w1": S("data", None), "b1": S(), "w2": S("data", None)}),
        ("2d", {"w1": S("data", "model"), "b1": S("model"), "w2": S("model", "data")}),
    ]:
        for xs in (S("data"),) if quick else (S("data"), S(("data", "model")), None):
            yield f"mlp-{name}-{xs and xs.spec}", low(jax.value_and_grad(mlp), pm, sh(B * 8, D), specs=(sp, xs))


def language_models(quick: bool):
    """Transformers of two layers written out, and of three in a scan."""

    def rms(x, g):
        return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * g

    def block(p, x):
        h = rms(x, p["g1"])
        q, k, v = [(h @ p[n]).reshape(*x.shape[:2], H, D // H) for n in "qkv"]
        s = jnp.einsum("bthd,bshd->bhts", q, k) / 8
        s = jnp.where(jnp.tril(jnp.ones((T, T), bool)), s, -1e9)
        a = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(s), v).reshape(x.shape)
        x = x + a @ p["o"]
        h = rms(x, p["g2"])
        return x + jax.nn.gelu(h @ p["w1"]) @ p["w2"]

    pb = dict(g1=sh(D), g2=sh(D), q=sh(D, D), k=sh(D, D), v=sh(D, D), o=sh(D, D), w1=sh(D, F), w2=sh(F, D))

    def lm(p, tok, lab, scan):
        x = p["e"][tok]
        if scan:
            x, _ = lax.scan(lambda x, w: (block(w, x), None), x, p["l"])
        else:
            for w in p["l"]:
                x = block(w, x)
        lo = x @ p["e"].T
        lp = jax.nn.log_softmax(lo)
        return -jnp.mean(jnp.take_along_axis(lp, lab[..., None], -1))

    bs = dict(
        g1=S(),
        g2=S(),
        q=S("data", "model"),
        k=S("data", "model"),
        v=S("data", "model"),
        o=S("model", "data"),
        w1=S("data", "model"),
        w2=S("model", "data"),
    )
    bn = dict.fromkeys(bs)
    bt = dict(bn, w1=S(None, "model"), q=S(None, "model"))
    for nm, b in [("fsdp-tp", bs), ("few", bt), ("none", bn)]:
        for xs in (S("data"),) if quick else (S("data"), S(("data", "model"), None), S("data", "model")):
            for es in (S("model", "data"),) if quick else (S("model", "data"), None):
                p = dict(e=sh(V, D), l=[pb] * 2)
                sp = dict(e=es, l=[b] * 2)

                def step(p, t, l):
                    loss, g = jax.value_and_grad(lm)(p, t, l, False)
                    return loss, jax.tree.map(lambda a, b: a - 0.1 * b, p, g)

                yield f"lm-{nm}-{xs.spec}-{es and es.spec}", low(step, p, ish(B, T), ish(B, T), specs=(sp, xs, xs))
                ps = dict(e=sh(V, D), l={k: sh(3, *v.shape) for k, v in pb.items()})
                sps = dict(e=es, l={k: (None if v is None else S(None, *v.spec)) for k, v in b.items()})

                def step2(p, t, l):
                    loss, g = jax.value_and_grad(lm)(p, t, l, True)
                    return loss, jax.tree.map(lambda a, b: a - 0.1 * b, p, g)

                yield (
                    f"lmscan-{nm}-{xs.spec}-{es and es.spec}",
                    low(step2, ps, ish(B, T), ish(B, T), specs=(sps, xs, xs)),
                )


def mixtures_of_experts():
    """Tokens that are sent to two of eight experts."""

    def moe(p, x):
        g = jax.nn.softmax(x @ p["r"])
        top, idx = lax.top_k(g, 2)
        oh = jax.nn.one_hot(idx, 8)
        comb = jnp.einsum("btk,btke->bte", top, oh)
        h = jnp.einsum("btd,bte,edf->ebtf", x, comb, p["w1"])
        h = jax.nn.relu(h)
        return jnp.sum(jnp.einsum("ebtf,efd->btd", h, p["w2"]) ** 2)

    for nm, w in (("ep", S("model")), ("ep2", S("data", "model")), ("tp", S(None, None, "model"))):
        yield (
            "moe-" + nm,
            low(
                jax.grad(moe),
                dict(r=sh(D, 8), w1=sh(8, D, F), w2=sh(8, F, D)),
                sh(B, T, D),
                specs=(dict(r=None, w1=w, w2=None), S("data")),
            ),
        )


def convolutions():
    """Two layers and a classifier."""

    def conv(p, x, y):
        for w in p["c"]:
            x = jax.nn.relu(lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
            x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = x.reshape(x.shape[0], -1) @ p["d"]
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(x) * jax.nn.one_hot(y, 10), -1))

    pc = dict(c=[sh(3, 3, 4, 16), sh(3, 3, 16, 32)], d=sh(4 * 4 * 32, 10))
    for nm, sp, xs in (
        ("dp", dict(c=[None, None], d=None), S("data")),
        ("tp", dict(c=[S(None, None, None, "model"), None], d=S("model")), S("data")),
        ("sp", dict(c=[None, None], d=None), S("data", "model")),
    ):
        yield "conv-" + nm, low(jax.value_and_grad(conv), pc, sh(8, 16, 16, 4), ish(8), specs=(sp, xs, S("data")))


def rearrangements(quick: bool):
    """Sorting, scans, reshapes, slices and pads."""

    def misc(x, y):
        a = jnp.sort(x, -1)
        b = jnp.cumsum(y, 0)
        c = x.reshape(4, 4, 64).transpose(1, 0, 2).reshape(16, -1)
        d = jnp.concatenate([x, y], 0)[3:20]
        e = jnp.pad(x, ((1, 1), (0, 0)))
        f = lax.dynamic_slice(x, (jnp.int32(2), jnp.int32(0)), (4, 64))
        g = lax.dynamic_update_slice(y, f, (1, 0))
        h = jnp.flip(x, 0) + jnp.roll(y, 1, 0)
        return a, b, c @ c.T if c.shape[1] == 64 else c, d, e, g, h, jnp.argmax(x, 1), x.reshape(2, 8, 8, 8).sum((0, 2))

    for xs in (S("data"), S(None, "model"), S("data", "model"), S(("model", "data"))):
        for ys in (None,) if quick else (None, S("model"), S(None, "data")):
            yield f"misc-{xs.spec}-{ys and ys.spec}", low(misc, sh(16, 64), sh(16, 64), specs=(xs, ys))


def shard_maps():
    """Manual regions over all axes, and over one of two."""

    def smf(x, w):
        def body(x, w):
            return lax.psum(x @ w, "model")

        y = jax.shard_map(body, mesh=mesh, in_specs=(P("data", "model"), P("model", None)), out_specs=P("data", None))(
            x, w
        )
        return jnp.tanh(y) * 2 + x[:, :32]

    yield "shard_map", low(jax.grad(lambda x, w: smf(x, w).sum()), sh(16, 64), sh(64, 32), specs=(S("data"), None))

    def smp(x, w):
        def body(x, w):
            return jnp.tanh(x @ w)

        return jax.shard_map(
            body, mesh=mesh, in_specs=(P("data", None), P()), out_specs=P("data", None), axis_names={"data"}
        )(x, w)

    for ws in (None, S(None, "model"), S("model")):
        yield (
            f"shard_map-part-{ws and ws.spec}",
            low(lambda x, w: smp(smp(x, w), w), sh(16, 64), sh(64, 64), specs=(S("data"), ws)),
        )


def loops_and_branches():
    """A loop and a branch with constraints inside."""

    def wl(x, w):
        def body(c):
            i, x = c
            x = jnp.tanh(x @ w)
            x = lax.with_sharding_constraint(x, S("data", "model"))
            return i + 1, x

        i, y = lax.while_loop(lambda c: c[0] < 3, body, (0, x))
        z = lax.cond(i > 2, lambda y: y * 2, lambda y: jnp.sin(y) @ w, y)
        return lax.with_sharding_constraint(z, S(None, "model")).sum(0)

    for xs in (None, S("data"), S("model")):
        yield f"while-{xs and xs.spec}", low(wl, sh(16, 64), sh(64, 64), specs=(xs, None))


def calls():
    """A jitted function that is called several times."""

    @jax.jit
    def inner(x, w):
        return jnp.tanh(x @ w)

    def callf(x, w, v):
        return inner(inner(x, w), v) + inner(x, v)

    for ws in (None, S(None, "model"), S("model", "data")):
        yield f"calls-{ws and ws.spec}", low(callf, sh(16, 64), sh(64, 64), sh(64, 64), specs=(S("data"), ws, None))


def others():
    """Random numbers and linear algebra."""

    def rnd(k, x):
        return x * jax.random.bernoulli(k, 0.9, x.shape) + jax.random.normal(k, x.shape)

    yield (
        "rng",
        low(rnd, jax.ShapeDtypeStruct((), jax.random.key(0).dtype), sh(16, 64), specs=(None, S("data", "model"))),
    )

    def la(a, b):
        c = jnp.linalg.cholesky(a)
        s = jax.scipy.linalg.solve_triangular(c, b, lower=True)
        f = jnp.fft.rfft(b)
        q, r = jnp.linalg.qr(a)
        return s, f, q @ r, jnp.linalg.eigh(a)[1]

    yield "linalg", low(la, sh(4, 16, 16), sh(4, 16, 16), specs=(S("data"), S("model", "data")))
