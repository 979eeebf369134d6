"""More of what people train: biases looked up in a table, patches, recurrences, rendering, points, towers."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax

from .base import Array, Out, all_gather, all_reduce, eight, integers, program, two_by_four
from .training import forward_and_back

F32 = 4
QUERY = Array((4, 256, 8, 16), ("x", None, "y", None))


@program(
    "relative-position bias, gradient", two_by_four,
    [QUERY, QUERY, QUERY, Array((32, 8), (None, "y")), QUERY],
    (Out("x", None, "y", None), Out(None, "y")), all_reduce(32 * 2 * F32, 2),
    "each device adds up its batch's scores by bucket; the table's gradient is summed",
)  # fmt: skip
def relative_bias(q, k, v, table, ct):
    steps = jnp.arange(q.shape[1])
    distance = jnp.abs(steps[None] - steps[:, None])
    far = 8 + (jnp.log(jnp.maximum(distance, 1) / 8) / math.log(128 / 8) * 8).astype(jnp.int32)
    bucket = jnp.where(distance < 8, distance, jnp.minimum(far, 15)) + 16 * (steps[None] > steps[:, None])

    def attend(q, table):
        scores = jnp.einsum("bshk,bthk->bhst", q, k) / 4.0 + table[bucket].transpose(2, 0, 1)
        return jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(scores, axis=-1), v)

    return jax.vjp(attend, q, table)[1](ct)


@program(
    "patch embedding, gradient", eight,
    [Array((4, 256, 64, 3), (None, "x", None, None)), Array((16, 16, 3, 64), (), 0.04),
     Array((4, 16, 4, 64), (None, "x", None, None))],
    (Out(None, "x", None, None), Out()), all_reduce(16 * 16 * 3 * 64 * F32), "the kernel's gradient",
)  # fmt: skip
def patch_embedding(image, kernel, ct):
    dims = ("NHWC", "HWIO", "NHWC")
    embed = lambda w: lax.conv_general_dilated(image, w, (16, 16), "VALID", dimension_numbers=dims)
    value, (grad,) = forward_and_back(embed, (kernel,), ct)
    return value, grad


@program(
    "gated recurrence, gradient", eight,
    [Array((32, 64, 64), (None, "x", None)), Array((64, 512), (), 0.1), Array((128, 512), (), 0.1),
     Array((32, 64, 128), (None, "x", None))],
    (Out(), Out()), all_reduce((64 + 128) * 512 * F32), "the weights' gradients once, behind the loop",
)  # fmt: skip
def gated(inputs, wx, wh, ct):
    def run(wx, wh):
        def step(state, x):
            h, c = state
            i, f, g, o = jnp.split(x @ wx + h @ wh, 4, axis=-1)
            c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        start = jnp.zeros((inputs.shape[1], 128), inputs.dtype)
        return lax.scan(step, (start, start), inputs)[1]

    return jax.vjp(run, wx, wh)[1](ct)


RAYS = [Array((256, 128), (None, "x")), Array((256, 128, 3), (None, "x", None)), Array((256, 128), (None, "x"))]


@program("volume rendering, gradient", eight, [*RAYS, Array((256, 3))], (Out(), (Out(None, "x"), Out(None, "x", None))))
def rendering(density, colour, depth, ct):
    def render(density, colour):
        thickness = jax.nn.relu(density) * jnp.diff(depth, axis=1, append=depth[:, -1:] + 1.0)
        seen = jnp.exp(thickness - jnp.cumsum(thickness, axis=1))
        return jnp.einsum("rs,rsc->rc", seen * (1 - jnp.exp(-thickness)), colour)

    return forward_and_back(render, (density, colour), ct)


@program(
    "convolution over neighbouring points", eight,
    [Array((4, 256, 3), (None, "x", None)), Array((4, 256, 32), (None, "x", None)), Array((64, 32), (), 0.1)],
    Out(None, "x", None), all_gather(4 * 256 * (3 + 32) * F32), "gather the points and their features",
)  # fmt: skip
def neighbours(points, features, w):
    distance = jnp.sum((points[:, :, None] - points[:, None]) ** 2, axis=-1)
    _, near = lax.top_k(-distance, 8)
    own = features[:, :, None]
    others = jax.vmap(lambda f, i: f[i])(features, near)
    edges = jnp.concatenate([jnp.broadcast_to(own, others.shape), others - own], axis=-1)
    return jnp.max(jax.nn.relu(edges @ w), axis=2)


@program(
    "contrastive loss of two towers", (("x", 4), ("y", 2)),
    [integers((256, 64), 3, ("x", None), "float32"), Array((256, 64), ("x", None)), Array((64, 32), (None, "y"), 0.1),
     Array((64, 32), (None, "y"), 0.1)],
    (Out(), (Out(None, "y"), Out(None, "y"))),
)  # fmt: skip
def towers(texts, images, w, v):
    def loss(w, v):
        unit = lambda t: t / jnp.linalg.norm(t, axis=-1, keepdims=True)
        scores = unit(texts @ w) @ unit(images @ v).T * 10.0
        own = jnp.arange(scores.shape[0])[:, None]
        picked = lambda z: jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(z), own, axis=1))
        return -(picked(scores) + picked(scores.T)) / 2

    return jax.value_and_grad(loss, argnums=(0, 1))(w, v)
