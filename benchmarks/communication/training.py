"""Layers and steps of training: tensor, data and sequence parallelism, FSDP, mixtures of experts, normalisation."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from .base import (
    Array,
    Out,
    all_gather,
    all_reduce,
    all_to_all,
    eight,
    integers,
    program,
    reduce_scatter,
    two_by_four,
)  # fmt: skip

F32 = 4


def forward_and_back(function, arguments, cotangent):
    """The value and the gradients of all arguments."""
    value, back = jax.vjp(function, *arguments)
    return value, back(cotangent)


# --- Tensor-parallel MLP.

MLP = [Array((1024, 512)), Array((512, 2048), (None, "x"), 0.04), Array((2048, 512), ("x", None), 0.02)]
ACTIVATION = 1024 * 512 * F32


@program("mlp", eight, MLP, Out(), all_reduce(ACTIVATION), "one all-reduce of the output")
def mlp(x, up, down):
    return jnp.maximum(x @ up, 0) @ down


@program(
    "mlp gradient", eight, [*MLP, Array((1024, 512))], (Out(), (Out(), Out(None, "x"), Out("x", None))),
    2 * all_reduce(ACTIVATION), "all-reduces of the output and of dx; weight gradients are local",
)  # fmt: skip
def mlp_gradient(x, up, down, ct):
    return forward_and_back(lambda x, up, down: jax.nn.gelu(x @ up) @ down, (x, up, down), ct)


# --- FSDP.

FSDP = [Array((4, 512, 512), (None, "x", None), 0.05), Array((2048, 512), ("x", None)), Array((2048, 512), ("x", None))]
LAYER = 512 * 512 * F32
FSDP_COST = 4 * (2 * all_gather(LAYER) + reduce_scatter(LAYER))
FSDP_BOUND = 4 * (all_gather(LAYER) + reduce_scatter(LAYER))
FSDP_WHY = "per layer: weights gathered forward and backward, gradients reduce-scattered"


def stack(ws, x, ct, layer):
    run = lambda ws: jax.lax.scan(lambda h, w: (layer(h, w), None), x, ws)[0]
    value, (grad,) = forward_and_back(run, (ws,), ct)
    return value, grad


@program("fsdp scan", eight, FSDP, (Out("x", None), Out(None, "x", None)), FSDP_COST, FSDP_WHY, FSDP_BOUND)
def fsdp(ws, x, ct):
    return stack(ws, x, ct, lambda h, w: jnp.tanh(h @ w))


@program("fsdp scan, constrained", eight, FSDP, (Out("x", None), Out(None, "x", None)), FSDP_COST, FSDP_WHY, FSDP_BOUND)
def fsdp_constrained(ws, x, ct, at):
    return stack(ws, x, ct, lambda h, w: at(jnp.tanh(h @ w), "x", None))


# --- Embedding and loss over a sharded vocabulary.

ROWS = 8 * 256 * 256 * F32


@program(
    "embedding gradient", eight,
    [Array((8192, 256), ("x", None)), integers((8, 256), 8192), Array((8, 256, 256))], (Out(), Out("x", None)),
    all_reduce(ROWS), "masked local look-up, all-reduce of the rows; the gradient is a local scatter", all_gather(ROWS),
)  # fmt: skip
def embedding(table, ids, ct):
    value, (grad,) = forward_and_back(lambda t: t[ids], (table,), ct)
    return value, grad


XENT = [Array((1024, 256), (), 0.5), Array((256, 8192), (None, "x"), 0.1), integers((1024,), 8192)]
XENT_COST = all_reduce(1024 * 256 * F32) + 3 * all_reduce(1024 * F32)
XENT_WHY = "all-reduces of row maximum, row sum, label logit and dh"


def cross_entropy(h, w, labels, pick):
    def loss(h, w):
        z = h @ w
        return jnp.mean(jax.nn.logsumexp(z, axis=-1) - pick(z, labels))

    return jax.value_and_grad(loss, argnums=(0, 1))(h, w)


@program("cross-entropy, take", eight, XENT, (Out(), (Out(), Out(None, "x"))), XENT_COST, XENT_WHY)
def cross_entropy_take(h, w, labels):
    return cross_entropy(h, w, labels, lambda z, i: jnp.take_along_axis(z, i[:, None], axis=-1)[:, 0])


@program("cross-entropy, one-hot", eight, XENT, (Out(), (Out(), Out(None, "x"))), XENT_COST, XENT_WHY)
def cross_entropy_one_hot(h, w, labels):
    pick = lambda z, i: jnp.sum(z * jax.nn.one_hot(i, z.shape[-1], dtype=z.dtype), axis=-1)
    return cross_entropy(h, w, labels, pick)


# --- Mixture of experts.

GROUPS, TOKENS, EXPERTS, WIDTH, CAPACITY = 8, 512, 8, 256, 128
EXPERT_ARGS = [
    Array((GROUPS, TOKENS, WIDTH), ("x", None, None)), Array((WIDTH, EXPERTS), (), 0.1),
    Array((EXPERTS, WIDTH, WIDTH), ("x", None, None), 0.06), Array((EXPERTS, WIDTH, WIDTH), ("x", None, None), 0.06),
]  # fmt: skip
MOE_COST = 2 * all_to_all(EXPERTS * CAPACITY * WIDTH * F32)
MOE_BOUND = 2 * all_to_all(TOKENS * WIDTH * F32)
MOE_WHY = "two all-to-alls of the [experts, capacity, width] buffer"


def top_one(x, gate):
    """dispatch[g,t,e,c] and its weights, each token to its best expert while there is room."""
    probability = jax.nn.softmax(x @ gate, axis=-1)
    chosen = jax.nn.one_hot(jnp.argmax(probability, axis=-1), EXPERTS, dtype=x.dtype)
    place = (jnp.cumsum(chosen, axis=1) - 1) * chosen
    kept = chosen * (place < CAPACITY)
    dispatch = kept[..., None] * jax.nn.one_hot(place.astype(jnp.int32), CAPACITY, dtype=x.dtype)
    return dispatch, dispatch * jnp.sum(probability * chosen, -1)[..., None, None]


def moe(x, gate, up, down, route, at=lambda x, *spec: x):
    dispatch, combine = route(x, gate)
    sent = at(jnp.einsum("gtec,gtd->egcd", dispatch, x), "x", None, None, None)
    hidden = jnp.maximum(jnp.einsum("egcd,edf->egcf", sent, up), 0)
    done = at(jnp.einsum("egcf,efd->egcd", hidden, down), "x", None, None, None)
    return jnp.einsum("gtec,egcd->gtd", combine, done)


@program("mixture of experts", eight, EXPERT_ARGS, Out("x", None, None), MOE_COST, MOE_WHY, MOE_BOUND)
def moe_free(x, gate, up, down):
    return moe(x, gate, up, down, top_one)


@program("mixture of experts, constrained", eight, EXPERT_ARGS, Out("x", None, None), MOE_COST, MOE_WHY, MOE_BOUND)
def moe_constrained(x, gate, up, down, at):
    return moe(x, gate, up, down, top_one, at)


# --- Normalisation, clipping.

ROW_SHARDED = [Array((2048, 4096), (None, "x")), Array((4096,), ("x",)), Array((4096,), ("x",))]


@program(
    "layer norm over a sharded dimension", eight, [*ROW_SHARDED, Array((2048, 4096), (None, "x"))],
    (Out(None, "x"), (Out(None, "x"), Out("x"), Out("x"))), 4 * all_reduce(2048 * F32),
    "all-reduces of mean and variance sums and of the two backward sums",
)  # fmt: skip
def layer_norm(x, gamma, beta, ct):
    def norm(x, gamma, beta):
        centred = x - jnp.mean(x, -1, keepdims=True)
        return centred * jax.lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5) * gamma + beta

    return forward_and_back(norm, (x, gamma, beta), ct)


IMAGE = Array((64, 32, 32, 64), ("x", None, None, None))


@program(
    "batch norm over a sharded batch", eight, [IMAGE, Array((64,)), Array((64,)), IMAGE],
    (Out("x", None, None, None), (Out("x", None, None, None), Out(), Out())), 4 * all_reduce(64 * F32),
    "all-reduces of the channel sums",
)  # fmt: skip
def batch_norm(x, gamma, beta, ct):
    def norm(x, gamma, beta):
        centred = x - jnp.mean(x, (0, 1, 2))
        return centred * jax.lax.rsqrt(jnp.var(x, (0, 1, 2)) + 1e-5) * gamma + beta

    return forward_and_back(norm, (x, gamma, beta), ct)


@program(
    "clip by global norm", eight,
    [[Array((512, 512), ("x", None)), Array((512, 2048), (None, "x")), Array((2048,), ("x",))]],
    [Out("x", None), Out(None, "x"), Out("x")], all_reduce(F32), "one scalar",
)  # fmt: skip
def clip(grads):
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in grads))
    return [g * jnp.minimum(1.0, 1.0 / norm) for g in grads]


# --- Sequence and data parallelism.


@program(
    "sequence-parallel block", eight,
    [Array((1024, 512), ("x", None)), Array((512,)), Array((512, 2048), (None, "x"), 0.04),
     Array((2048, 512), ("x", None), 0.02)],
    Out("x", None), all_gather(ACTIVATION) + reduce_scatter(ACTIVATION),
    "all-gather of the normed activation, reduce-scatter of the output",
)  # fmt: skip
def sequence_parallel(x, scale, up, down, at):
    x = at(x, "x", None)
    h = (x - jnp.mean(x, -1, keepdims=True)) * jax.lax.rsqrt(jnp.var(x, -1, keepdims=True) + 1e-5) * scale
    h = at(jax.nn.gelu(h @ up), None, "x")
    return x + at(h @ down, "x", None)


@program(
    "data-parallel sgd", eight,
    [[Array((512, 512), (), 0.05)] * 3, Array((1024, 512), ("x", None)), Array((1024, 512), ("x", None))],
    ([Out()] * 3, Out()), all_reduce(3 * LAYER) + all_reduce(F32), "all-reduce of the gradients",
)  # fmt: skip
def data_parallel(weights, x, y):
    def loss(weights):
        h = x
        for w in weights[:-1]:
            h = jnp.maximum(h @ w, 0)
        return jnp.mean((h @ weights[-1] - y) ** 2)

    value, grads = jax.value_and_grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, grads)], value


# --- A transformer's training step, tensor parallel over y and data parallel over x.

LAYERS, BATCH, CONTEXT, MODEL, HEADS, HIDDEN, VOCABULARY = 4, 8, 128, 256, 8, 1024, 2048


def transformer_arrays(zero: bool = False) -> dict:
    make = lambda shape, spec, scale: Array(shape, spec, 0.0 if zero else scale)
    layer = lambda: {
        "g1": Array((MODEL,), (), 0.0), "g2": Array((MODEL,), (), 0.0),
        **{k: make((MODEL, HEADS, 32), (None, "y", None), 0.06) for k in "qkv"},
        "o": make((HEADS, 32, MODEL), ("y", None, None), 0.06),
        "up": make((MODEL, HIDDEN), (None, "y"), 0.06), "down": make((HIDDEN, MODEL), ("y", None), 0.03),
    }  # fmt: skip
    return {
        "embed": make((VOCABULARY, MODEL), ("y", None), 0.5), "head": make((MODEL, VOCABULARY), (None, "y"), 0.06),
        "layers": [layer() for _ in range(LAYERS)],
    }  # fmt: skip


def attention(h, layer):
    """Causal attention with [b, s, d] -> [b, s, d]."""
    q, k, v = (jnp.einsum("bsd,dhk->bhsk", h, layer[n]) for n in "qkv")
    steps = jnp.arange(h.shape[1])
    scores = jnp.einsum("bhsk,bhtk->bhst", q, k) / math.sqrt(q.shape[-1])
    scores = jnp.where(steps[:, None] >= steps[None, :], scores, -1e30)
    mixed = jnp.einsum("bhst,bhtk->bhsk", jax.nn.softmax(scores, axis=-1), v)
    return jnp.einsum("bhsk,hkd->bsd", mixed, layer["o"])


def transformer_loss(params, ids, labels):
    norm = lambda x, g: x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * (1 + g)
    x = params["embed"][ids]
    for layer in params["layers"]:
        x = x + attention(norm(x, layer["g1"]), layer)
        x = x + jax.nn.gelu(norm(x, layer["g2"]) @ layer["up"]) @ layer["down"]
    z = x @ params["head"]
    picked = jnp.take_along_axis(z, labels[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(z, axis=-1) - picked)


def adamw(params, m, v, grads):
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
    v = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, v, grads)
    move = lambda p, m, v: p - 1e-3 * (m / 0.1 / (jnp.sqrt(v / 0.05) + 1e-8) + 0.01 * p)
    return jax.tree.map(move, params, m, v), m, v


TRANSFORMER = transformer_arrays()
TRANSFORMER_OUT = jax.tree.map(lambda a: Out(*a.spec), TRANSFORMER, is_leaf=lambda a: isinstance(a, Array))
STREAM = BATCH // 2 * CONTEXT * MODEL * F32
SPLIT = LAYERS * (4 * MODEL**2 + 2 * MODEL * HIDDEN) + 2 * VOCABULARY * MODEL
LOCAL_GRADS = SPLIT // 4 * F32 + LAYERS * 2 * MODEL * F32
TOKEN_IDS = integers((BATCH, CONTEXT), VOCABULARY, ("x", None))


@program(
    "transformer step", two_by_four,
    [TRANSFORMER, transformer_arrays(True), transformer_arrays(True), TOKEN_IDS, TOKEN_IDS],
    (TRANSFORMER_OUT, TRANSFORMER_OUT, TRANSFORMER_OUT, Out()),
    (4 * LAYERS + 2) * all_reduce(STREAM, 4) + 3 * all_reduce(STREAM / MODEL, 4) + all_reduce(LOCAL_GRADS, 2),
    "2 + 2 activations a layer, one for the embedding, one for the head; the loss's scalars; gradients over data",
)  # fmt: skip
def transformer_step(params, m, v, ids, labels):
    loss, grads = jax.value_and_grad(transformer_loss)(params, ids, labels)
    return *adamw(params, m, v, grads), loss
