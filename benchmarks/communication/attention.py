"""Attention in its parallel forms, decoding with caches, pipelines and recurrences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from .base import Array, Out, all_gather, all_reduce, all_to_all, constant, eight, program

F32 = 4
SEQUENCE = (None, "x", None, None)


def softmax_attention(q, k, v):
    """[b, s, h, k] of each; no mask."""
    scores = jnp.einsum("bshk,bthk->bhst", q, k) / 8.0
    return jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(scores, axis=-1), v)


@program(
    "context-parallel attention", eight, [Array((2, 1024, 4, 64), SEQUENCE)] * 3, Out(*SEQUENCE),
    2 * all_gather(2 * 1024 * 4 * 64 * F32), "gather (or ring) of k and v",
)  # fmt: skip
def context_parallel(q, k, v):
    return softmax_attention(q, k, v)


@program(
    "attention with heads moved in and out", eight, [Array((2, 1024, 8, 64), SEQUENCE)] * 3, Out(*SEQUENCE),
    4 * all_to_all(2 * 1024 * 8 * 64 * F32 // 8), "four all-to-alls",
)  # fmt: skip
def ulysses(q, k, v, at):
    q, k, v = (at(t, None, None, "x", None) for t in (q, k, v))
    return at(at(softmax_attention(q, k, v), None, None, "x", None), *SEQUENCE)


def decode(keys, values, query, key, value, position):
    """One token: writes its key and value at a traced position and attends to what stands up to there."""
    keys = lax.dynamic_update_slice(keys, key, (0, position, 0, 0))
    values = lax.dynamic_update_slice(values, value, (0, position, 0, 0))
    scores = jnp.einsum("bhk,bthk->bht", query, keys) / 8.0
    scores = jnp.where(jnp.arange(keys.shape[1]) <= position, scores, -1e30)
    return jnp.einsum("bht,bthk->bhk", jax.nn.softmax(scores, axis=-1), values), keys, values


def decode_arguments(cache, query, new):
    position = constant((), 2500, (), "int32")
    caches, news = [Array((4, 4096, 8, 64), cache)] * 2, [Array((4, 1, 8, 64), new)] * 2
    return [*caches, Array((4, 8, 64), query), *news, position]


HEADS = (None, None, "x", None)


@program(
    "decode, cache sharded by position", eight, decode_arguments(SEQUENCE, (), ()),
    (Out(), Out(*SEQUENCE), Out(*SEQUENCE)), all_reduce(4 * 8 * 64 * F32) + 2 * all_reduce(4 * 8 * F32),
    "masked local update; all-reduces of row maximum, row sum and output",
)  # fmt: skip
def decode_positions(keys, values, query, key, value, position):
    return decode(keys, values, query, key, value, position)


@program(
    "decode, cache sharded by head", eight, decode_arguments(HEADS, (None, "x", None), HEADS),
    (Out(None, "x", None), Out(*HEADS), Out(*HEADS)), 0, "nothing",
)  # fmt: skip
def decode_heads(keys, values, query, key, value, position):
    return decode(keys, values, query, key, value, position)


@program("rotary embedding", eight, [Array((2, 1024, 8, 64), SEQUENCE)], Out(*SEQUENCE), 0, "nothing")
def rotary(q):
    angle = jnp.arange(q.shape[1])[:, None] * (10000.0 ** (-jnp.arange(32) / 32.0))[None, :]
    cos, sin = jnp.cos(angle)[None, :, None, :], jnp.sin(angle)[None, :, None, :]
    a, b = jnp.split(q, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


@program(
    "pipeline by rolling", eight, [Array((8, 256, 256), ("x", None, None), 0.06), Array((16, 64, 256))], Out(*SEQUENCE),
    23 * 64 * 256 * F32, "one microbatch to the next stage a step",
)  # fmt: skip
def pipeline(weights, batches, at):
    def step(state, t):
        state = jnp.roll(state, 1, axis=0)
        new = lax.dynamic_index_in_dim(batches, jnp.minimum(t, 15), 0, keepdims=False)
        state = at(jnp.tanh(jnp.einsum("sbd,sde->sbe", state.at[0].set(new), weights)), "x", None, None)
        return state, state

    start = at(jnp.zeros((8, 64, 256), batches.dtype), "x", None, None)
    return lax.scan(step, start, jnp.arange(23))[1]


@program(
    "recurrent network", eight, [Array((1024, 1024), (None, "x"), 0.03), Array((16, 16, 1024), (None, None, "x"))],
    Out(None, "x"), 16 * all_gather(16 * 1024 * F32), "one all-gather of the state a step",
)  # fmt: skip
def recurrent(weights, inputs, at):
    start = at(jnp.zeros((16, 1024), inputs.dtype), None, "x")
    return lax.scan(lambda h, x: (jnp.tanh(at(h @ weights, None, "x") + x), None), start, inputs)[0]
