"""Decodes with a Llama-style transformer: a cache of keys and values, split over batch and heads.

    python examples/llama_decode.py --tokens 32

Grouped-query attention, rotary positions, RMSNorm, SwiGLU; the prompt is read at once, then each turn of a loop on the
devices writes one place of the cache, which is donated and never copied. Weights are random: what is shown is the way.
(Touvron et al.: "Llama 2: Open Foundation and Fine-Tuned Chat Models", 2023; Su et al.: "RoFormer", 2021.)
Replace `meshrt` by `jax` in the imports and the script runs unchanged.
"""

import argparse
import functools

import numpy as np

import meshrt as jax
import meshrt.numpy as jnp
from meshrt import lax
from meshrt.sharding import AxisType, NamedSharding
from meshrt.sharding import PartitionSpec as P

LAYERS, WIDTH, HEADS, GROUPS, SIZE, HIDDEN, VOCAB = 4, 64, 8, 4, 16, 128, 96  # GROUPS: heads of keys and values
BATCH, PROMPT, LENGTH = 4, 12, 64
CACHE = P(None, "data", None, "model")  # [layers, batch, length, groups, size]
SPECS = {
    "embed": P("model"), "norms": P(), "last": P(), "query": P(None, None, "model"), "key": P(None, None, "model"),
    "value": P(None, None, "model"), "out": P(None, "model"), "gate": P(None, None, "model"),
    "up": P(None, None, "model"), "down": P(None, "model"),
}  # fmt: skip


def init(key):
    shapes = {
        "embed": (VOCAB, WIDTH), "query": (LAYERS, WIDTH, HEADS, SIZE), "key": (LAYERS, WIDTH, GROUPS, SIZE),
        "value": (LAYERS, WIDTH, GROUPS, SIZE), "out": (LAYERS, HEADS, SIZE, WIDTH), "gate": (LAYERS, WIDTH, HIDDEN),
        "up": (LAYERS, WIDTH, HIDDEN), "down": (LAYERS, HIDDEN, WIDTH),
    }  # fmt: skip
    keys = jax.random.split(key, len(shapes))
    params = {name: 0.15 * jax.random.normal(k, shape) for k, (name, shape) in zip(keys, shapes.items())}
    return params | {"norms": jnp.ones((LAYERS, 2, WIDTH)), "last": jnp.ones(WIDTH)}


def empty_cache():
    return {name: jnp.zeros((LAYERS, BATCH, LENGTH, GROUPS, SIZE)) for name in ("key", "value")}


def rms_norm(x, scale):
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * scale


def rotary(x, positions):
    """Turns each pair of x: f32[batch, time, heads, size] by an angle that grows with its position."""
    angles = positions[:, None] * 10_000.0 ** (-jnp.arange(0, SIZE, 2) / SIZE)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    even, odd = x[..., ::2], x[..., 1::2]
    return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


def attention(x, layer, cache, start):
    """x: f32[batch, time, width] at places `start` and on. Returns the mixed values and the cache with x's in it."""
    places = start + jnp.arange(x.shape[1])
    query = rotary(jnp.einsum("btw,whs->bths", x, layer["query"]), places)
    key = rotary(jnp.einsum("btw,wgs->btgs", x, layer["key"]), places)
    value = jnp.einsum("btw,wgs->btgs", x, layer["value"])
    new = {"key": key, "value": value}
    cache = {name: lax.dynamic_update_slice_in_dim(cache[name], new[name], start, axis=1) for name in cache}
    query = query.reshape(*query.shape[:2], GROUPS, HEADS // GROUPS, SIZE)
    scores = jnp.einsum("bqghs,bkgs->bghqk", query, cache["key"]) / SIZE**0.5
    seen = jnp.arange(LENGTH) <= places[:, None]
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    mixed = jnp.einsum("bghqk,bkgs->bqghs", weights, cache["value"])
    mixed = mixed.reshape(*x.shape[:2], HEADS, SIZE)
    return jnp.einsum("bths,hsw->btw", mixed, layer["out"]), cache


def forward(params, cache, tokens, start):
    """tokens: i32[batch, time] -> (f32[batch, vocabulary] for what follows them, the cache)."""

    def block(x, inputs):
        layer, cache = inputs
        mixed, cache = attention(rms_norm(x, layer["norms"][0]), layer, cache, start)
        x = x + mixed
        h = rms_norm(x, layer["norms"][1])
        return x + (jax.nn.silu(h @ layer["gate"]) * (h @ layer["up"])) @ layer["down"], cache

    layers = {name: value for name, value in params.items() if name not in ("embed", "last")}
    x, cache = lax.scan(block, params["embed"][tokens], (layers, cache))
    return rms_norm(x[:, -1], params["last"]) @ params["embed"].T, cache


@functools.partial(jax.jit, donate_argnames="cache")
def read(params, cache, prompt):
    scores, cache = forward(params, cache, prompt, 0)
    return scores.argmax(-1).astype(jnp.int32), cache


@functools.partial(jax.jit, donate_argnames="cache", static_argnames="count")
def decode(params, cache, token, start, count):
    """The most likely tokens that follow, i32[batch, count], and the mean of their log-probabilities."""

    def turn(carry, place):
        token, cache = carry
        scores, cache = forward(params, cache, token[:, None], place)
        following = scores.argmax(-1).astype(jnp.int32)
        return (following, cache), (token, jax.nn.log_softmax(scores).max(-1))

    (_, cache), (tokens, sure) = lax.scan(turn, (token, cache), start + jnp.arange(count))
    return tokens.T, sure.mean(), cache


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=32, choices=range(1, LENGTH - PROMPT + 1), metavar="N")
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    named = lambda spec: NamedSharding(mesh, spec)
    with jax.set_mesh(mesh):
        params = jax.jit(init, out_shardings={name: named(s) for name, s in SPECS.items()})(jax.random.key(0))
        cache = jax.jit(empty_cache, out_shardings=named(CACHE))()
        prompt = np.random.default_rng(0).integers(0, VOCAB, (BATCH, PROMPT)).astype(np.int32)
        token, cache = read(params, cache, jax.device_put(prompt, named(P("data"))))
        tokens, sure, cache = decode(params, cache, token, PROMPT, args.tokens)
        for row in np.asarray(tokens):
            print(*row)
        print(f"mean log-probability {float(sure):.4f}; the cache lies {cache['key'].sharding.spec}")


if __name__ == "__main__":
    main()
