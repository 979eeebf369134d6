"""Programs over control flow, written once for meshrt and for JAX: `jx` is either package, `jnp` its numpy.

Each takes two float32 arrays, `w` [4, 3, 3] and `x` [3], and returns a pytree of floating results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

W = np.random.default_rng(0).normal(size=(4, 3, 3)).astype(np.float32) * 0.6
X = np.random.default_rng(1).normal(size=(3,)).astype(np.float32)

PROGRAMS: dict[str, Callable[[Any, Any], Callable[..., Any]]] = {}
FORWARD_ONLY = {"while_loop", "fori_dynamic"}


def program(make):
    PROGRAMS[make.__name__] = make
    return make


@program
def scan_layers(jx, jnp):
    def layer(h, w):
        h = jnp.tanh(h @ w + h)
        return h, jnp.sum(h * h)

    return lambda w, x: jx.lax.scan(layer, x, w)


@program
def scan_reverse_unrolled(jx, jnp):
    def layer(h, w):
        h = jnp.sin(h @ w)
        return h, h * w[0]

    return lambda w, x: jx.lax.scan(layer, x, w, reverse=True, unroll=3)


@program
def scan_fully_unrolled(jx, jnp):
    return lambda w, x: jx.lax.scan(lambda h, w: (jnp.cos(h @ w), h), x, w, unroll=True)


@program
def scan_constants(jx, jnp):
    def f(w, x):
        mask = jnp.tril(w[0])

        def step(carry, s):
            scaled = jnp.exp(mask) * jnp.sin(x)  # the same in every step
            h = jnp.tanh(carry["h"] @ scaled + s)
            return {"h": h, "n": carry["n"] + 1, "x": carry["x"]}, (h, carry["n"] * jnp.sum(h))

        carry = {"h": x, "n": jnp.int32(0), "x": x}
        out, ys = jx.lax.scan(step, carry, w[:, 0])
        return out["h"], out["x"], ys

    return f


@program
def scan_without_inputs(jx, jnp):
    def step(carry, _):
        h, i = carry
        return (h * 0.5 + jnp.sin(h) * i, i + 1.0), None

    return lambda w, x: jx.lax.scan(step, (x @ w[0], 0.0), None, length=5)


@program
def scan_nested(jx, jnp):
    def outer(h, w):
        inner = lambda c, row: (jnp.tanh(c * row + jnp.sum(h)), c)
        c, ys = jx.lax.scan(inner, h, w)
        return h + c, jnp.sum(ys, 0)

    return lambda w, x: jx.lax.scan(outer, x, w)


@program
def scan_of_jit_and_cond(jx, jnp):
    half = jx.jit(lambda h: jnp.sin(h) * 0.5)

    def step(carry, w):
        h, i = carry
        h = jx.lax.cond(i % 2 == 0, lambda h: half(h @ w), lambda h: jnp.cos(h) * w[1], h)
        return (h, i + 1), half(h)

    def f(w, x):
        (h, _), ys = jx.lax.scan(step, (x, 0), w)
        return h, ys

    return f


@program
def scan_one_step(jx, jnp):
    return lambda w, x: jx.lax.scan(lambda h, w: (jnp.sin(h @ w), h), x, w[:1])


@program
def scan_zero_steps(jx, jnp):
    return lambda w, x: (jx.lax.scan(lambda h, w: (jnp.sin(h @ w), None), x, w[:0])[0], jnp.sin(w))


@program
def cond_true(jx, jnp):
    def f(w, x):
        return jx.lax.cond(jnp.sum(x) > -100.0, lambda x: (x @ w[0], 1.0), lambda x: (jnp.exp(x) * w[1, 0], x[0]), x)

    return f


@program
def switch_three(jx, jnp):
    branches = [lambda w, x: jnp.sin(x @ w[0]), lambda w, x: jnp.tanh(x) * x * w[1, 1], lambda w, x: x]
    return lambda w, x: [jx.lax.switch(i, branches, w, x) for i in (jnp.int32(-3), jnp.int32(1), jnp.int32(2))]


@program
def fori_static(jx, jnp):
    return lambda w, x: jx.lax.fori_loop(1, 5, lambda i, h: jnp.sin(h @ w[0]) + i, x)


@program
def fori_dynamic(jx, jnp):
    def f(w, x):
        n = jnp.sum(x > -100.0)
        return jx.lax.fori_loop(0, n, lambda i, h: jnp.sin(h @ w[i]), x)

    return f


@program
def while_loop(jx, jnp):
    def f(w, x):
        body = lambda c: (c[0] + 1, jnp.tanh(c[1] @ w[0]) + c[1])
        return jx.lax.while_loop(lambda c: jnp.sum(c[0]) < 4, body, (jnp.int32(0), x))[1]

    return f


@program
def map_rows(jx, jnp):
    return lambda w, x: jx.lax.map(lambda m: jnp.sin(x @ m), w)


@program
def map_in_batches(jx, jnp):
    return lambda w, x: jx.lax.map(lambda m: jnp.sin(x @ m), w, batch_size=3)


@program
def associative_scan(jx, jnp):
    def combine(a, b):
        return {"m": b["m"] @ a["m"], "v": jnp.squeeze(b["m"] @ a["v"][..., None], -1) + b["v"]}

    def f(w, x):
        elems = {"m": jnp.concatenate([w, jnp.sin(w[:1])]), "v": jnp.broadcast_to(x, (5, 3))}
        products = jx.lax.associative_scan(jnp.multiply, w[0], reverse=True, axis=1)
        return jx.lax.associative_scan(combine, elems), products

    return f


def _custom(jx, jnp):
    @jx.custom_jvp
    def f(x, y):
        return {"out": jnp.sin(x) * y}

    @f.defjvp
    def _(primals, tangents):
        (x, y), (tx, ty) = primals, tangents
        return f(x, y), {"out": jnp.cos(x) * tx * y + jnp.sin(x) * ty}

    @jx.custom_vjp
    def g(x, pair):
        return jnp.sin(x) * pair[0], jnp.sum(x * x)

    def forward(x, pair):
        return g(x, pair), (jnp.cos(x), x, pair)

    def backward(saved, cts):
        cos, x, pair = saved
        a, b = cts
        return a * cos * pair[0] + 2.0 * b * x, (a * jnp.sin(x), None)

    g.defvjp(forward, backward)
    return f, g


@program
def custom_jvp_in_loop(jx, jnp):
    f, _ = _custom(jx, jnp)

    def step(h, w):
        h = jx.jit(f)(h, w[0])["out"]
        return h, f(h, h)["out"]

    return lambda w, x: jx.lax.scan(step, x, w)


@program
def custom_vjp_in_loop(jx, jnp):
    _, g = _custom(jx, jnp)

    def step(h, w):
        a, b = g(h @ w, (w[0], w))
        return a + b, jx.lax.cond(True, lambda: g(a, (h, 1.0))[0], lambda: h)

    return lambda w, x: jx.lax.scan(step, x, w)


@program
def checkpointed_layers(jx, jnp):
    def layer(h, w):
        y = jnp.tanh(h @ w)
        return jnp.sin(y @ w) + h, jnp.sum(y)

    return lambda w, x: jx.lax.scan(jx.checkpoint(layer, prevent_cse=False), x, w)


@program
def checkpointed_twice(jx, jnp):
    f, _ = _custom(jx, jnp)

    @jx.checkpoint
    def block(h, w):
        inner = jx.checkpoint(lambda h: jnp.exp(jnp.sin(h @ w)), policy=jx.checkpoint_policies.dots_saveable)
        return inner(inner(h)) * f(h, w[0])["out"]

    return lambda w, x: block(block(x, w[0]), w[1])
