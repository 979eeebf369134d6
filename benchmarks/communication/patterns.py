"""Patterns that everybody trains with and where layouts decide what is sent: each beside what an expert would send who
writes the communication by hand (`experts.py` has some of those programs)."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax

from .base import Array, Out, all_gather, all_reduce, all_to_all, eight, integers, program, reduce_scatter
from .training import forward_and_back

F32 = 4
data_by_model = (("data", 4), ("model", 2))
cube = (("data", 2), ("fsdp", 2), ("model", 2))

norm = lambda x: x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
descend = lambda params, grads: jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
outs_of = lambda tree: jax.tree.map(lambda a: Out(*a.spec), tree, is_leaf=lambda a: isinstance(a, Array))


def elements(tree) -> int:
    """Of all arrays of a tree."""
    return sum(math.prod(a.shape) for a in jax.tree.leaves(tree, is_leaf=lambda a: isinstance(a, Array)))


def cross_entropy(z, labels):
    return jnp.mean(jax.nn.logsumexp(z, -1) - jnp.take_along_axis(z, labels[..., None], -1)[..., 0])


# --- FSDP: parameters split over the devices that share the batch, activations without constraints.

WIDTH, HIDDEN, VOCABULARY, LAYERS, BATCH, STEPS = 64, 256, 512, 2, 64, 128


def blocks(over: str, beside: str | None = None) -> dict:
    """Parameters whose embedding dimension is split over `over`, and the other one over `beside`."""
    return {
        "embed": Array((VOCABULARY, WIDTH), (beside, over), 0.5),
        "layers": [
            {"up": Array((WIDTH, HIDDEN), (over, beside), 0.1), "gate": Array((WIDTH, HIDDEN), (over, beside), 0.1),
             "down": Array((HIDDEN, WIDTH), (beside, over), 0.06)}
            for _ in range(LAYERS)
        ],
    }  # fmt: skip


HEAD = Array((WIDTH, VOCABULARY), ("x", None), 0.1)
IDS = integers((BATCH, STEPS), VOCABULARY, ("x", None))


def gated_loss(params, ids, labels):
    x = params["embed"][ids]
    for layer in params["layers"]:
        h = norm(x)
        x = x + (jax.nn.silu(h @ layer["gate"]) * (h @ layer["up"])) @ layer["down"]
    head = params["head"] if "head" in params else params["embed"].T
    return cross_entropy(norm(x) @ head, labels)


def gated_step(params, ids, labels):
    loss, grads = jax.value_and_grad(gated_loss)(params, ids, labels)
    return descend(params, grads), loss


FREE = {**blocks("x"), "head": HEAD}


def fsdp_cost(params, n: int = 8, each: int = 1) -> float:
    """Weights gathered once and gradients scattered; `each` is by how much they are split otherwise."""
    size = elements(params) / each * F32
    return all_gather(size, n) + reduce_scatter(size, n)


@program("fsdp without constraints", eight, [FREE, IDS, IDS], (outs_of(FREE), Out()),
         fsdp_cost(FREE) + all_reduce(F32), "weights gathered once, gradients reduce-scattered")  # fmt: skip
def fsdp_free(params, ids, labels):
    return gated_step(params, ids, labels)


TIED = blocks("x")


@program("fsdp, tied embeddings", eight, [TIED, IDS, IDS], (outs_of(TIED), Out()),
         fsdp_cost(TIED) + all_reduce(F32), "weights gathered once, gradients reduce-scattered")  # fmt: skip
def fsdp_tied(params, ids, labels):
    return gated_step(params, ids, labels)


BOTH = blocks("data", "model")
BOTH_IDS = integers((BATCH, STEPS), VOCABULARY, ("data", None))
STREAM = BATCH // 4 * STEPS * WIDTH * F32


@program(
    "fsdp and tensor parallelism without constraints", data_by_model, [BOTH, BOTH_IDS, BOTH_IDS],
    (outs_of(BOTH), Out()),
    fsdp_cost(BOTH, 4, 2) + (2 * LAYERS + 2) * all_reduce(STREAM, 2) + 3 * all_reduce(STREAM / WIDTH, 2)
    + all_reduce(F32, 4),
    "as FSDP over data; over model 1 + 1 activations a layer, the look-up, the head, the loss's scalars",
)  # fmt: skip
def fsdp_tensor(params, ids, labels):
    return gated_step(params, ids, labels)


RANK = 8
ADAPTED = {
    "w": [Array((WIDTH, WIDTH), ("x", None), 0.1) for _ in range(LAYERS)],
    "out": Array((WIDTH, WIDTH), ("x", None), 0.1),
}
ADAPTERS = [
    {"a": Array((WIDTH, RANK), ("x", None), 0.1), "b": Array((RANK, WIDTH), (None, "x"), 0.1)} for _ in range(LAYERS)
]
ROWS = Array((BATCH, STEPS, WIDTH), ("x", None, None))


@program(
    "low-rank adapters over fsdp", eight, [ADAPTED, ADAPTERS, ROWS, ROWS], (outs_of(ADAPTERS), Out()),
    all_gather(elements(ADAPTED) * F32) + fsdp_cost(ADAPTERS) + all_reduce(F32),
    "frozen weights gathered once; adapters gathered, their gradients reduce-scattered",
)  # fmt: skip
def adapters(frozen, adapted, x, y):
    def loss(adapted):
        h = x
        for w, m in zip(frozen["w"], adapted):
            h = h + jnp.tanh(norm(h) @ w + (norm(h) @ m["a"]) @ m["b"])
        return jnp.mean((h @ frozen["out"] - y) ** 2)

    value, grads = jax.value_and_grad(loss)(adapted)
    return descend(adapted, grads), value


# --- Gradients accumulated over microbatches.

MICRO = 4
PAIR = [Array((WIDTH, HIDDEN), (), 0.1), Array((HIDDEN, WIDTH), (), 0.06)]
SPLIT_PAIR = [Array((WIDTH, HIDDEN), ("x", None), 0.1), Array((HIDDEN, WIDTH), (None, "x"), 0.06)]
TOKENS = Array((4096, WIDTH), ("x", None))
DEALT = 2 * all_to_all(4096 * WIDTH * F32 / 8, MICRO)  # every microbatch over all devices


def pair_loss(params, x, y):
    return jnp.mean((jnp.tanh(x @ params[0]) @ params[1] - y) ** 2)


def accumulated(params, x, y, start):
    """The sum of gradients over microbatches that a reshape cuts out of the batch."""
    cut = lambda t: t.reshape(MICRO, -1, *t.shape[1:])

    def turn(total, batch):
        return jax.tree.map(jnp.add, total, jax.grad(pair_loss)(params, *batch)), None

    return lax.scan(turn, start, (cut(x), cut(y)))[0]


@program("microbatches, accumulator whole", eight, [PAIR, TOKENS, TOKENS], outs_of(PAIR),
         DEALT + all_reduce(elements(PAIR) * F32), "rows dealt out, gradients summed behind the loop")  # fmt: skip
def microbatches_whole(params, x, y):
    return descend(params, accumulated(params, x, y, jax.tree.map(jnp.zeros_like, params)))


@program("microbatches, accumulator split", eight, [SPLIT_PAIR, TOKENS, TOKENS], outs_of(SPLIT_PAIR),
         DEALT + fsdp_cost(SPLIT_PAIR), "rows dealt out, weights gathered, gradients scattered behind the loop",
         )  # fmt: skip
def microbatches_split(params, x, y, at):
    zeros = [at(jnp.zeros_like(p), *spec) for p, spec in zip(params, (("x", None), (None, "x")))]
    return descend(params, accumulated(params, x, y, zeros))


# --- Recurrent layers under data parallelism.

GRU = [Array((WIDTH, 3 * WIDTH), (), 0.1), Array((WIDTH, 3 * WIDTH), (), 0.1)]
SEQUENCES = Array((16, BATCH, WIDTH), (None, "x", None))


@program(
    "recurrent layer, one kernel sliced into gates", eight, [GRU, SEQUENCES, SEQUENCES], outs_of(GRU),
    all_reduce(elements(GRU) * F32), "weight gradients all-reduced once, behind the loop",
)  # fmt: skip
def sliced_gates(params, xs, cts):
    def run(params):
        wx, wh = params

        def step(h, x):
            a, b = x @ wx, h @ wh
            r = jax.nn.sigmoid(a[:, :WIDTH] + b[:, :WIDTH])
            z = jax.nn.sigmoid(a[:, WIDTH : 2 * WIDTH] + b[:, WIDTH : 2 * WIDTH])
            n = jnp.tanh(a[:, 2 * WIDTH :] + r * b[:, 2 * WIDTH :])
            h = (1 - z) * n + z * h
            return h, h

        return lax.scan(step, jnp.zeros(xs.shape[1:]), xs)[1]

    return jax.vjp(run, params)[1](cts)[0]


@program(
    "recurrent layer, kernels sliced in every step", eight, [GRU, SEQUENCES, SEQUENCES], outs_of(GRU),
    all_reduce(elements(GRU) * F32), "weight gradients all-reduced once, behind the loop",
)  # fmt: skip
def sliced_kernels(params, xs, cts):
    def run(params):
        def step(h, x):
            (xr, xz, xn), (hr, hz, hn) = (jnp.split(w, 3, axis=1) for w in params)
            r, z = jax.nn.sigmoid(x @ xr + h @ hr), jax.nn.sigmoid(x @ xz + h @ hz)
            h = (1 - z) * jnp.tanh(x @ xn + r * (h @ hn)) + z * h
            return h, h

        return lax.scan(step, jnp.zeros(xs.shape[1:]), xs)[1]

    return jax.vjp(run, params)[1](cts)[0]


# --- Optimisers.

WHOLE, SPLIT = Array((256, 256), (), 0.1), Array((256, 256), ("x", None), 0.1)


@program("adam, parameters whole and the gradient split", eight, [WHOLE, WHOLE, Array((256, 256), (), 0.0), SPLIT],
         (Out(), Out(), Out()), all_gather(256 * 256 * F32), "the gradient gathered")  # fmt: skip
def adam_whole(p, m, v, g):
    m = 0.9 * m + 0.1 * g
    v = 0.95 * v * v + 0.05 * g * g
    return p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), m, v


@program("muon under fsdp", eight, [SPLIT, SPLIT, SPLIT], (Out("x", None), Out("x", None)),
         all_gather(256 * 256 * F32), "the momentum gathered, orthogonalised by every device, cut",
         )  # fmt: skip
def muon(p, m, g):
    m = 0.95 * m + g
    x = m / (jnp.linalg.norm(m) + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return p - 0.02 * x, m


# --- Sums of partial sums.

HALVES = [Array((512, 512), (None, "x")), Array((512, 64), ("x", None), 0.05)]


@program("residual and two partial sums", eight, [Array((512, 64), ("x", None)), *HALVES, *HALVES], Out("x", None),
         reduce_scatter(512 * 64 * F32), "both sums added before one reduce-scatter")  # fmt: skip
def residual_sums(r, a, w, b, v):
    return jnp.tanh((r + a @ w) + b @ v)


@program("parallel block on a split residual stream", eight,
         [Array((512, 64), ("x", None)), Array((64, 256), (None, "x"), 0.1), Array((256, 64), ("x", None), 0.06),
          Array((64, 512), (None, "x"), 0.1), Array((512, 64), ("x", None), 0.06)],
         Out("x", None), all_gather(512 * 64 * F32) + reduce_scatter(512 * 64 * F32),
         "the normed stream gathered, both branches' sums reduce-scattered as one")  # fmt: skip
def parallel_block(x, up, down, inwards, outwards):
    h = norm(x)
    return x + jax.nn.gelu(h @ up) @ down + jnp.tanh(h @ inwards) @ outwards


# --- Losses and attention.

TOWER = Array((256, 64), ("x", None))
LABELS = integers((256,), 256)


@program("contrastive loss and its transpose, shared labels", eight, [TOWER, TOWER],
         (Out(), (Out("x", None), Out("x", None))), 2 * all_gather(256 * 64 * F32) + all_reduce(F32),
         "both towers gathered; every device computes its rows of both score matrices")  # fmt: skip
def contrastive_labels(images, texts):
    def loss(images, texts):
        unit = lambda t: t / jnp.linalg.norm(t, axis=-1, keepdims=True)
        z = unit(images) @ unit(texts).T * 10.0
        labels = jnp.arange(z.shape[0])
        return (cross_entropy(z, labels) + cross_entropy(z.T, labels)) / 2

    return jax.value_and_grad(loss, argnums=(0, 1))(images, texts)


@program("fused q, k, v reshaped to (3, heads)", eight,
         [Array((4, 128, 64)), Array((64, 3 * 64), (None, "x"), 0.1), Array((64, 64), ("x", None), 0.1)], Out(),
         all_to_all(64 * 3 * 64 * F32 / 8) + all_reduce(4 * 128 * 64 * F32),
         "the weight's columns dealt out by heads; one all-reduce of the output")  # fmt: skip
def fused_qkv(x, wqkv, wo):
    b, s, _ = x.shape
    q, k, v = jnp.moveaxis((x @ wqkv).reshape(b, s, 3, 8, 8), 2, 0)
    scores = jax.nn.softmax(jnp.einsum("bshk,bthk->bhst", q, k), -1)
    return jnp.einsum("bhst,bthk->bshk", scores, v).reshape(b, s, 64) @ wo


# --- Blocks on several axes.

BLOCK = {
    **{k: Array((WIDTH, 4, 16), ("fsdp", "model", None), 0.1) for k in "qkv"},
    "o": Array((4, 16, WIDTH), ("model", None, "fsdp"), 0.1),
    "gate": Array((WIDTH, HIDDEN), ("fsdp", "model"), 0.1), "up": Array((WIDTH, HIDDEN), ("fsdp", "model"), 0.1),
    "down": Array((HIDDEN, WIDTH), ("model", "fsdp"), 0.06),
}  # fmt: skip
SPREAD = Array((16, STEPS, WIDTH), (("data", "fsdp"), None, None))
SPREAD_BYTES = 4 * STEPS * WIDTH * F32


@program(
    "llama block on data, fsdp and tensor axes", cube, [BLOCK, SPREAD, SPREAD], (outs_of(BLOCK), Out()),
    fsdp_cost(BLOCK, 2, 2) + all_reduce(elements(BLOCK) / 4 * F32, 2) + 3 * all_reduce(SPREAD_BYTES, 2)
    + all_reduce(F32, 4),
    "weights gathered over fsdp once, gradients scattered over it and summed over data; 2 + 1 activations over model",
)  # fmt: skip
def llama_block(params, x, y):
    def loss(p):
        h = norm(x)
        q, k, v = (jnp.einsum("bsd,dhk->bhsk", h, p[n]) for n in "qkv")
        steps = jnp.arange(STEPS)
        scores = jnp.where(steps[:, None] >= steps, jnp.einsum("bhsk,bhtk->bhst", q, k) / 4.0, -1e30)
        mixed = jnp.einsum("bhst,bhtk->bhsk", jax.nn.softmax(scores, -1), v)
        z = x + jnp.einsum("bhsk,hkd->bsd", mixed, p["o"])
        h = norm(z)
        z = z + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]
        return jnp.mean((z - y) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return descend(params, grads), value


@program("sequence parallelism from constraints, gradient", eight,
         [Array((256, 64), ("x", None)), Array((64, 256), (None, "x"), 0.1), Array((256, 64), ("x", None), 0.06),
          Array((256, 64), ("x", None))],
         (Out("x", None), (Out("x", None), Out(None, "x"), Out("x", None))),
         3 * all_gather(256 * 64 * F32) + 2 * reduce_scatter(256 * 64 * F32),
         "stream gathered, kept, and scattered in both passes; the cotangent gathered for both gradients")  # fmt: skip
def sequence_gradient(x, up, down, ct, at):
    def block(x, up, down):
        x = at(x, "x", None)
        return at(x + at(jax.nn.gelu(norm(x) @ up) @ down, "x", None), "x", None)

    return forward_and_back(block, (x, up, down), ct)


GRID = Array((4, 64, 64, 8), (None, "x", None, None))
MODES = Array((8, 8, 12, 12), (), 0.1)


@program("fourier neural operator, split in space", eight, [GRID, MODES], Out(None, "x", None, None),
         2 * all_to_all(4 * 64 * 12 * 8 * 8 / 8), "the kept columns' spectra exchanged and back")  # fmt: skip
def fourier_operator(x, w):
    spectrum = jnp.fft.rfft2(x, axes=(1, 2))[:, :12, :12]
    mixed = jnp.einsum("bxyi,ioxy->bxyo", spectrum, w)
    full = jnp.zeros((x.shape[0], 64, 33, 8), mixed.dtype).at[:, :12, :12].set(mixed)
    return jnp.fft.irfft2(full, axes=(1, 2))


# --- Reductions without a collective of their own.

LOGITS = Array((64, 4096), (None, "x"))
CHOSEN = "candidates exchanged by rows, the chosen places gathered"


@program("argmax over a split dimension", eight, [LOGITS], Out(), all_to_all(64 * (F32 + 4)) + all_gather(64 * 4),
         "candidates exchanged by rows, the chosen places gathered")  # fmt: skip
def argmax(z):
    return jnp.argmax(z, axis=-1)


@program("categorical sampling over a split dimension", eight, [LOGITS, LOGITS], Out(),
         all_to_all(64 * (F32 + 4)) + all_gather(64 * 4), CHOSEN)  # fmt: skip
def categorical(z, noise):
    return jnp.argmax(z + noise, axis=-1)


@program("reduction of three operands", eight, [LOGITS, LOGITS, integers((64, 4096), 9, (None, "x"))],
         (Out(), Out(), Out()), all_to_all(64 * 12) + all_gather(64 * 12),
         "pieces' results exchanged by rows, combined, gathered")  # fmt: skip
def three_operands(z, w, i):
    def join(a, b):
        pick = (a[0] > b[0]) | ((a[0] == b[0]) & (a[2] < b[2]))
        return tuple(jnp.where(pick, x, y) for x, y in zip(a, b))

    lowest = (jnp.float32(-jnp.inf), jnp.float32(0), jnp.int32(10))
    return lax.reduce((z, w, i), lowest, join, (1,))


# --- Borders that do not divide.


@program("reshape that splits where borders do not divide", eight, [Array((192, 40), ("x", None))], Out("x", None),
         None, "rows change hands between neighbours")  # fmt: skip
def reshape_uneven(x):
    return x.reshape(64, 3, 40).reshape(64, 120) * 2


@program("roll by a traced amount", eight, [Array((1024, 64), ("x", None)), integers((), 1024)], Out("x", None),
         2 * all_to_all(1024 * 64 * F32 / 8), "columns dealt out, rolled by each device, dealt back")  # fmt: skip
def traced_roll(x, by):
    return jnp.roll(x, by, axis=0)


@program("rotary embedding, head dimension split", eight, [Array((4, 128, 4, 64), (None, None, None, "x"))],
         Out(None, None, None, "x"), 4 * 128 * 4 * 8 * F32, "pieces swapped with the other half's")  # fmt: skip
def rotary(q):
    angle = jnp.arange(q.shape[1])[:, None] / 10000 ** (jnp.arange(32) / 32)
    cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    a, b = jnp.split(q, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


# --- Others.


@program("strided convolution split in space, gradient", eight,
         [Array((4, 64, 64, 8), (None, "x", None, None)), Array((3, 3, 8, 16), (), 0.1),
          Array((4, 32, 32, 16), (None, "x", None, None))],
         (Out(None, "x", None, None), Out()), 4 * 32 * 16 * F32 + all_reduce(3 * 3 * 8 * 16 * F32),
         "one halo row of the cotangent, the kernel's gradient all-reduced")  # fmt: skip
def strided_gradient(x, w, ct):
    convolve = lambda x, w: lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return jax.vjp(convolve, x, w)[1](ct)


@program("experts by sorting", eight,
         [Array((512, 64), ("x", None)), integers((512,), 8, ("x",)), Array((8, 64, 64), ("x", None, None), 0.1)],
         Out("x", None), 2 * all_gather(512 * 64 * F32))  # fmt: skip
def sorted_experts(x, chosen, w):
    order = jnp.argsort(chosen)
    rows = x[order].reshape(8, 64, 64)
    out = jnp.einsum("etd,edf->etf", rows, w).reshape(512, 64)
    return jnp.zeros_like(out).at[order].set(out)


ODE = [Array((16, 32), (), 0.2), Array((32, 16), (), 0.2)]


ORBITS = Array((64, 16), ("x", None))


@program("adjoint of an ordinary differential equation", eight, [ODE, ORBITS, ORBITS], outs_of(ODE),
         all_reduce(elements(ODE) * F32), "gradients all-reduced once, behind the loop")  # fmt: skip
def adjoint(params, y, ct):
    field = lambda p, y: jnp.tanh(y @ p[0]) @ p[1]

    def turn(state, _):
        y, a, grads = state
        dy, back = jax.vjp(field, params, y)
        dp, da = back(a)
        return (y - 0.01 * dy, a + 0.01 * da, jax.tree.map(lambda g, d: g + 0.01 * d, grads, dp)), None

    return lax.scan(turn, (y, ct, jax.tree.map(jnp.zeros_like, params)), None, length=50)[0][2]
