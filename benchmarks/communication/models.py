"""Programs that people run: vision, language, recommendation, graphs, decoding, optimisers, simulation.

The fewest bytes are given where they follow from the program; elsewhere the better of the two partitioners is the
best known.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from .attention import softmax_attention
from .base import Array, Out, all_gather, all_reduce, constant, eight, integers, program, two_by_four
from .operators import convolve
from .training import CAPACITY, EXPERT_ARGS, EXPERTS, MOE_COST, MOE_WHY, TOKENS, forward_and_back, moe

F32 = 4
cube = (("data", 2), ("fsdp", 2), ("model", 2))

# --- Vision.

FEATURES = Array((4, 64, 64, 32), ("x", "y", None, None))


@program(
    "u-net block", two_by_four,
    [FEATURES, Array((3, 3, 32, 64), (), 0.06), Array((3, 3, 64, 64), (), 0.04), Array((3, 3, 96, 32), (), 0.04),
     Array((4, 64), ("x", None))],
    Out("x", "y", None, None),
)  # fmt: skip
def unet(x, down, middle, up, time):
    def norm(h, groups=8):
        split = h.reshape(*h.shape[:3], groups, -1)
        mean = jnp.mean(split, (1, 2, 4), keepdims=True)
        var = jnp.mean((split - mean) ** 2, (1, 2, 4), keepdims=True)
        return ((split - mean) * lax.rsqrt(var + 1e-5)).reshape(h.shape)

    small = convolve(jax.nn.silu(norm(x)), down, stride=2)
    small = convolve(jax.nn.silu(norm(small + time[:, None, None, :])), middle)
    large = jnp.repeat(jnp.repeat(small, 2, axis=1), 2, axis=2)
    return x + convolve(jax.nn.silu(jnp.concatenate([x, large], axis=-1)), up)


@program(
    "vision transformer patches", eight,
    [Array((16, 128, 128, 3), (None, "x", None, None)), Array((768, 256), (), 0.04), Array((256, 256), (), 0.06)],
    Out(None, "x", None), all_gather(16 * 64 * 256 * F32), "gather the keys",
)  # fmt: skip
def patches(x, embed, mix):
    b, h, w, c = x.shape
    tokens = x.reshape(b, h // 16, 16, w // 16, 16, c).transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, 256 * c) @ embed
    scores = jax.nn.softmax(jnp.einsum("bsd,btd->bst", tokens @ mix, tokens), axis=-1)
    return jnp.einsum("bst,btd->bsd", scores, tokens)


@program(
    "contrastive loss", eight, [Array((1024, 256), ("x", None)), Array((1024, 256), ("x", None))],
    (Out(), (Out("x", None), Out("x", None))),
)  # fmt: skip
def contrastive(images, texts):
    def loss(images, texts):
        unit = lambda v: v * lax.rsqrt(jnp.sum(v * v, -1, keepdims=True) + 1e-6)
        z = unit(images) @ unit(texts).T * 10.0
        rows = jax.nn.logsumexp(z, axis=1) + jax.nn.logsumexp(z, axis=0) - 2 * jnp.diagonal(z)
        return jnp.mean(rows)

    return jax.value_and_grad(loss, argnums=(0, 1))(images, texts)


@program("fourier convolution of a batch", eight, [Array((32, 256, 128), ("x", None, None)), Array((256, 128))],
         Out("x", None, None), 0, "nothing")  # fmt: skip
def fourier(x, kernel):
    spectrum = jnp.fft.rfft(x, axis=1) * jnp.fft.rfft(kernel, axis=0)
    return jnp.fft.irfft(spectrum, n=x.shape[1], axis=1)


# --- Mixtures of experts with other routings.


def top_two(x, gate):
    """Each token to its two best experts while there is room."""
    probability = jax.nn.softmax(x @ gate, axis=-1)
    weights, chosen = lax.top_k(probability, 2)
    weights = weights / jnp.sum(weights, -1, keepdims=True)
    dispatch = combine = 0.0
    used = jnp.zeros((x.shape[0], 1, EXPERTS), x.dtype)
    for i in range(2):
        wanted = jax.nn.one_hot(chosen[..., i], EXPERTS, dtype=x.dtype)
        place = (jnp.cumsum(wanted, axis=1) - 1 + used) * wanted
        used = used + jnp.sum(wanted, axis=1, keepdims=True)
        places = jax.nn.one_hot(place.astype(jnp.int32), CAPACITY, dtype=x.dtype)
        kept = (wanted * (place < CAPACITY))[..., None] * places
        dispatch, combine = dispatch + kept, combine + kept * weights[..., i, None, None]
    return dispatch, combine


def experts_choose(x, gate):
    """Each expert takes the tokens that want it most."""
    probability = jax.nn.softmax(x @ gate, axis=-1)
    weights, tokens = lax.top_k(probability.transpose(0, 2, 1), CAPACITY)
    dispatch = jax.nn.one_hot(tokens, TOKENS, dtype=x.dtype).transpose(0, 3, 1, 2)
    return dispatch, dispatch * weights[:, None]


@program("mixture of experts, two a token", eight, EXPERT_ARGS, Out("x", None, None), MOE_COST, MOE_WHY)
def moe_top_two(x, gate, up, down, at):
    return moe(x, gate, up, down, top_two, at)


@program("mixture of experts, experts choose", eight, EXPERT_ARGS, Out("x", None, None), MOE_COST, MOE_WHY)
def moe_choice(x, gate, up, down, at):
    return moe(x, gate, up, down, experts_choose, at)


# --- Long sequences.

HEADS = Array((2, 1024, 4, 64), (None, "x", None, None))
SEQUENCE = Out(None, "x", None, None)


@program("ring attention", eight, [HEADS] * 3, SEQUENCE, 2 * 7 * 2 * 128 * 4 * 64 * F32, "7 turns of keys and values")
def ring(q, k, v):
    n, block = 8, q.shape[1] // 8
    blocks = lambda t: t.reshape(t.shape[0], n, block, *t.shape[2:])
    q = blocks(q)

    def turn(carry, _):
        top, total, out, k, v = carry
        scores = jnp.einsum("bnshk,bnthk->bnhst", q, k) / 8.0
        new = jnp.maximum(top, jnp.max(scores, -1))
        weights, old = jnp.exp(scores - new[..., None]), jnp.exp(top - new)
        out = out * old[..., None] + jnp.einsum("bnhst,bnthk->bnhsk", weights, v)
        carry = new, total * old + jnp.sum(weights, -1), out, jnp.roll(k, 1, axis=1), jnp.roll(v, 1, axis=1)
        return carry, None

    shape = (q.shape[0], n, q.shape[3], block)
    start = jnp.full(shape, -1e30), jnp.zeros(shape), jnp.zeros((*shape, q.shape[4])), blocks(k), blocks(v)
    (_, total, out, _, _), _ = lax.scan(turn, start, None, length=n - 1)
    return (out / total[..., None]).transpose(0, 1, 3, 2, 4).reshape(q.shape[0], -1, *q.shape[3:])


@program("sliding-window attention", eight, [HEADS] * 3, SEQUENCE, 2 * 2 * 64 * 4 * 64 * F32,
         "a halo of 64 keys and values")  # fmt: skip
def window(q, k, v):
    b, s, h, d = q.shape
    size = 64
    blocks = lambda t: t.reshape(b, s // size, size, h, d)
    before = lambda t: jnp.concatenate([jnp.zeros_like(t[:, :1]), t[:, :-1]], axis=1)
    q, k, v = blocks(q), blocks(k), blocks(v)
    k, v = (jnp.concatenate([before(t), t], axis=2) for t in (k, v))
    place = jnp.arange(2 * size)[None, :] - size - jnp.arange(size)[:, None]
    scores = jnp.where((place <= 0) & (place > -size), jnp.einsum("bnshk,bnthk->bnhst", q, k) / 8.0, -1e30)
    return jnp.einsum("bnhst,bnthk->bnshk", jax.nn.softmax(scores, -1), v).reshape(b, s, h, d)


STATE = Array((2, 1024, 64, 8), (None, "x", None, None), 0.1)


@program("state-space scan over a sharded sequence", eight, [STATE] * 2, SEQUENCE, 5 * 2 * 64 * 8 * F32,
         "a scan of the shards' totals in 3 permutes, the last of the drive alone")  # fmt: skip
def selective_scan(decay, drive):
    join = lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1])
    return lax.associative_scan(join, (jax.nn.sigmoid(decay), drive), axis=1)[1]


@program(
    "state-space block over sharded channels", eight,
    [Array((4, 256, 256)), Array((256, 1024), (None, "x"), 0.06), Array((1024, 32), ("x", None), 0.03),
     Array((1024, 256), ("x", None), 0.03)],
    Out(), all_reduce(4 * 256 * 32 * F32) + all_reduce(4 * 256 * 256 * F32), "the parameters' and the output's sums",
)  # fmt: skip
def state_space(x, inwards, parameters, outwards):
    u = jax.nn.silu(x @ inwards)
    b, c = jnp.split(u @ parameters, 2, axis=-1)
    decay = jax.nn.sigmoid(u)

    def step(h, inputs):
        d, ut, bt, ct = inputs
        h = h * d[..., None] + ut[..., None] * bt[:, None, :]
        return h, jnp.sum(h * ct[:, None, :], -1)

    times = lambda t: jnp.moveaxis(t, 1, 0)
    start = jnp.zeros((x.shape[0], 1024, 16), x.dtype)
    _, y = lax.scan(step, start, (times(decay), times(u), times(b), times(c)))
    return jnp.moveaxis(y, 0, 1) @ outwards


@program("linear attention in chunks", eight, [HEADS] * 3, SEQUENCE)
def linear_attention(q, k, v):
    b, s, h, d = q.shape
    q, k, v = (t.reshape(b, 32, s // 32, h, d) for t in (jax.nn.elu(q) + 1, jax.nn.elu(k) + 1, v))
    state = jnp.einsum("bcthk,bcthv->bchkv", k, v)
    before = jnp.cumsum(state, axis=1) - state
    mask = jnp.tril(jnp.ones((s // 32, s // 32), q.dtype))
    inside = jnp.einsum("bcshk,bcthk,st,bcthv->bcshv", q, k, mask, v)
    return (jnp.einsum("bcshk,bchkv->bcshv", q, before) + inside).reshape(b, s, h, d)


# --- Decoding.

PAGES = Array((256, 16, 8, 64), (None, None, "x", None))


@program(
    "decode with a paged cache", eight,
    [PAGES, PAGES, Array((16, 8, 64), (None, "x", None)), integers((16, 16), 256), integers((16,), 256)],
    Out(None, "x", None), 0, "nothing",
)  # fmt: skip
def paged(keys, values, query, table, lengths):
    flat = lambda pages: pages[table].reshape(16, -1, 8, 64)
    scores = jnp.einsum("bhk,bthk->bht", query, flat(keys)) / 8.0
    scores = jnp.where(jnp.arange(256)[None, None, :] <= lengths[:, None, None], scores, -1e30)
    return jnp.einsum("bht,bthk->bhk", jax.nn.softmax(scores, -1), flat(values))


@program(
    "decode with grouped queries", two_by_four,
    [*[Array((8, 1024, 4, 64), ("x", None, "y", None))] * 2, Array((8, 16, 64), ("x", "y", None)),
     Array((16, 64, 512), ("y", None, None), 0.03), constant((), 900, (), "int32")],
    Out("x", None), all_reduce(4 * 512 * F32, 4), "the output projection's sum",
)  # fmt: skip
def grouped(keys, values, query, out, position):
    q = query.reshape(8, 4, 4, 64)
    scores = jnp.where(jnp.arange(1024) <= position, jnp.einsum("bgqk,btgk->bgqt", q, keys) / 8.0, -1e30)
    mixed = jnp.einsum("bgqt,btgk->bgqk", jax.nn.softmax(scores, -1), values)
    return jnp.einsum("bhk,hkd->bd", mixed.reshape(8, 16, 64), out)


@program(
    "beam search step", eight,
    [Array((64, 512)), Array((512, 32768), (None, "x"), 0.05), Array((64,)), Array((64, 128, 64), (None, None, "x"))],
    (Out(), Out(), Out(None, None, "x")),
)  # fmt: skip
def beam(h, head, scores, cache):
    logits = jax.nn.log_softmax(h @ head, axis=-1) + scores[:, None]
    best, tokens = lax.top_k(logits, 4)
    best, picked = lax.top_k(best.reshape(16, 16), 4)
    beams = (jnp.arange(16)[:, None] * 4 + picked // 4).reshape(-1)
    return best, jnp.take_along_axis(tokens.reshape(16, 16), picked, axis=1), cache[beams]


# --- Training.

DEEP = Array((4, 256, 1024), (None, "fsdp", "model"), 0.06), Array((4, 1024, 256), (None, "model", "fsdp"), 0.03)
DEEP_OUT = Out(*DEEP[0].spec), Out(*DEEP[1].spec)
TOKENS_3D = (("data", "fsdp"), None)


def mlp_layers(weights, x, remat):
    layer = lambda h, w: (h + jax.nn.gelu(h @ w[0]) @ w[1], None)
    return lax.scan(jax.checkpoint(layer) if remat else layer, x, weights)[0]


@program("three-way parallel layers", cube, [DEEP, Array((512, 256), TOKENS_3D), Array((512, 256), TOKENS_3D)],
         (Out(*TOKENS_3D), DEEP_OUT))  # fmt: skip
def three_way(weights, x, ct):
    value, (grads,) = forward_and_back(lambda w: mlp_layers(w, x, False), (weights,), ct)
    return value, grads


@program("three-way parallel layers, recomputed", cube,
         [DEEP, Array((512, 256), TOKENS_3D), Array((512, 256), TOKENS_3D)], (Out(*TOKENS_3D), DEEP_OUT))  # fmt: skip
def three_way_remat(weights, x, ct):
    value, (grads,) = forward_and_back(lambda w: mlp_layers(w, x, True), (weights,), ct)
    return value, grads


@program(
    "gradient accumulation", eight, [Array((512, 512), (), 0.05), Array((8, 256, 512), (None, "x", None))], Out(),
    all_reduce(512 * 512 * F32), "one all-reduce after the last microbatch",
)  # fmt: skip
def accumulate(w, batches):
    grad = jax.grad(lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2))
    return lax.scan(lambda total, x: (total + grad(w, x), None), jnp.zeros_like(w), batches)[0]


@program(
    "low-rank adapters", two_by_four,
    [Array((1024, 512), ("x", None)), Array((512, 2048), (None, "y"), 0.04), Array((512, 8), (), 0.04),
     Array((8, 2048), (None, "y"), 0.3), Array((1024, 2048), ("x", "y"))],
    (Out(), Out(None, "y")), all_reduce(512 * 8 * F32, 8) + all_reduce(8 * 512 * F32, 2), "the adapters' gradients",
)  # fmt: skip
def adapters(x, frozen, low, high, ct):
    _, back = jax.vjp(lambda low, high: x @ frozen + x @ low @ high, low, high)
    return back(ct)


@program("orthogonal update", eight, [Array((4, 512, 512), (None, "x", None), 0.04)], Out(None, "x", None),
         5 * 2 * all_gather(4 * 512 * 512 * F32), "per step a product's sum and a gathered factor")  # fmt: skip
def orthogonal(grads):
    x = grads / (jnp.sqrt(jnp.sum(grads * grads, (1, 2), keepdims=True)) + 1e-7)
    for _ in range(5):
        square = jnp.einsum("lij,lkj->lik", x, x)
        mixed = -4.775 * square + 2.0315 * jnp.einsum("lij,ljk->lik", square, square)
        x = 3.4445 * x + jnp.einsum("lij,ljk->lik", mixed, x)
    return x


# --- Tables, graphs, clusters, fields.


@program(
    "recommender", eight,
    [[Array((8192, 32), ("x", None))] * 3, integers((1024, 3), 8192, ("x", None)), Array((1024, 32), ("x", None))],
    Out("x"),
)  # fmt: skip
def recommender(tables, ids, dense):
    rows = [dense, *[table[ids[:, i]] for i, table in enumerate(tables)]]
    both = jnp.stack(rows, axis=1)
    return jnp.sum(jnp.einsum("bik,bjk->bij", both, both), (1, 2))


@program(
    "graph layer", eight,
    [Array((2048, 64), ("x", None)), integers((16384, 2), 2048, ("x", None)), Array((64, 64), (), 0.1)], Out("x", None),
    all_gather(2048 * 64 * F32) + 7 / 8 * 2048 * 64 * F32, "gather the nodes, reduce-scatter the messages",
)  # fmt: skip
def graph(nodes, edges, w):
    messages = jnp.maximum(nodes[edges[:, 0]] @ w, 0)
    return nodes + jnp.zeros_like(nodes).at[edges[:, 1]].add(messages)


@program(
    "k-means step", eight, [Array((8192, 32), ("x", None)), Array((64, 32))], Out(), all_reduce(64 * 33 * F32),
    "sums and counts of the clusters",
)  # fmt: skip
def k_means(points, centres):
    nearest = jnp.argmin(jnp.sum(centres**2, -1) - 2 * points @ centres.T, axis=1)
    member = jax.nn.one_hot(nearest, 64, dtype=points.dtype)
    return (member.T @ points) / jnp.maximum(jnp.sum(member, 0), 1)[:, None]


@program(
    "heat in three dimensions", cube, [Array((64, 64, 64), ("data", "fsdp", "model"))], Out("data", "fsdp", "model"),
    8 * 3 * 32 * 32 * F32, "one face to the only neighbour of each dimension",
)  # fmt: skip
def heat(u):
    def step(_, u):
        total = -6 * u
        for d in range(3):
            edge = [(0, 0)] * 3
            edge[d] = (1, 1)
            padded = jnp.pad(u, edge)
            total = total + lax.slice_in_dim(padded, 2, None, axis=d) + lax.slice_in_dim(padded, 0, -2, axis=d)
        return u + 0.1 * total

    return lax.fori_loop(0, 8, step, u)


@program(
    "attention block, heads and batch", two_by_four,
    [Array((8, 256, 8, 64), ("x", None, "y", None))] * 3 + [Array((8, 64, 512), ("y", None, None), 0.03)],
    Out("x", None, None), all_reduce(4 * 256 * 512 * F32, 4), "the output projection's sum",
)  # fmt: skip
def attention_block(q, k, v, out):
    return jnp.einsum("bshk,hkd->bsd", softmax_attention(q, k, v), out)


@program("two moves at once", cube, [Array((256, 256, 256), ("data", "fsdp", "model"))], Out("model", ("data", "fsdp")),
         2**24 * F32 / 8, "exact pieces: a device whose old and new blocks do not meet sends all it has")  # fmt: skip
def two_moves(x):
    return x
