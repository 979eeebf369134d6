"""Layers and losses as public libraries write them, each under the parallelism that it is mostly run with."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from .base import Array, Out, all_gather, all_reduce, all_to_all, eight, integers, program, reduce_scatter, two_by_four

F32 = 4
LSTM = [Array((64, 128), (), 0.1)] * 2


@program("two recurrent layers, gradient", eight, [LSTM, Array((64, 16, 32), ("x", None, None))], [Out()] * 2,
         all_reduce(2 * 64 * 128 * F32), "gradients all-reduced once, behind the loops")  # fmt: skip
def two_lstm_layers(kernels, xs):
    def layer(kernel, xs):
        def step(state, x):
            h, c = state
            i, f, g, o = jnp.split(jnp.concatenate([x, h], -1) @ kernel, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((64, 32))
        return lax.scan(step, (zeros, zeros), xs.swapaxes(0, 1))[1].swapaxes(0, 1)

    return jax.grad(lambda kernels: jnp.mean(layer(kernels[1], layer(kernels[0], xs)) ** 2))(kernels)


@program("convolution in groups, stride 2, gradient", two_by_four,
         [Array((3, 3, 4, 32), (), 0.1), Array((4, 32, 32, 16), ("x", "y", None, None)),
          Array((4, 16, 16, 32), ("x", "y", None, None))],
         (Out("x", "y", None, None), (Out(), Out("x", "y", None, None))),
         2 * 32 * 16 * F32 + 2 * 16 * 32 * F32 + all_reduce(3 * 3 * 4 * 32 * F32),
         "a row of the image, a row of the cotangent, the kernel's gradient")  # fmt: skip
def grouped_convolution(w, x, ct):
    def convolve(w, x):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=numbers, feature_group_count=4)

    y, back = jax.vjp(convolve, w, x)
    return y, back(ct)


SEQUENCE = Array((2, 256, 4, 16), (None, "x", None, None))


@program("attention with linear biases, gradient", eight, [SEQUENCE] * 3, (Out(None, "x", None, None),) * 3,
         2 * all_gather(2 * 256 * 64 * F32) + 2 * reduce_scatter(2 * 256 * 64 * F32),
         "keys and values gathered, their gradients scattered")  # fmt: skip
def linear_biases(q, k, v):
    def loss(q, k, v):
        at = jnp.arange(256)
        scores = jnp.einsum("bshd,bthd->bhst", q, k) / 4 - 0.1 * jnp.abs(at[:, None] - at)
        return jnp.sum(jnp.einsum("bhst,bthd->bshd", jax.nn.softmax(scores, -1), v) ** 2)

    return jax.grad(loss, (0, 1, 2))(q, k, v)


@program("attention to the block before", eight, [Array((2, 512, 4, 16), (None, "x", None, None))] * 3,
         Out(None, "x", None, None), 2 * 2 * 32 * 64 * F32, "32 rows of keys and of values")  # fmt: skip
def block_before(q, k, v):
    q, k, v = (t.reshape(2, 16, 32, 4, 16) for t in (q, k, v))
    with_before = lambda t: jnp.concatenate([jnp.pad(t[:, :-1], [(0, 0), (1, 0), *[(0, 0)] * 3]), t], 2)
    scores = jnp.einsum("bnshd,bnthd->bnhst", q, with_before(k)) / 4
    mixed = jnp.einsum("bnhst,bnthd->bnshd", jax.nn.softmax(scores, -1), with_before(v))
    return mixed.reshape(2, 512, 4, 16)


@program("soft mixture of experts", eight,
         [Array((256, 64), ("x", None)), Array((64, 8, 4), (), 0.2), Array((8, 64, 64), ("x", None, None), 0.1)],
         Out("x", None), reduce_scatter(32 * 64 * F32) + all_gather(32 * 64 * F32) + 2 * 3.5 * 64,
         "slots scattered to experts, their results gathered, and the slots' softmax")  # fmt: skip
def soft_experts(x, phi, w):
    z = jnp.einsum("td,des->tes", x, phi)
    dispatch, combine = jax.nn.softmax(z, 0), jax.nn.softmax(z.reshape(256, 32), -1).reshape(z.shape)
    slots = jnp.einsum("esd,edf->esf", jnp.einsum("td,tes->esd", x, dispatch), w)
    return jnp.einsum("esf,tes->tf", slots, combine)


@program("bags of embeddings", two_by_four, [Array((4096, 64), ("y", None)), integers((128, 8), 4096, ("x", None))],
         Out("x", None), all_reduce(64 * 64 * F32, 4),
         "bags summed where their rows are, then over devices")  # fmt: skip
def embedding_bags(table, ids):
    return table[ids].mean(1)


@program("sigmoid contrastive loss, gradient", eight, [Array((256, 64), ("x", None))] * 2, (Out("x", None),) * 2,
         all_gather(256 * 64 * F32) + reduce_scatter(256 * 64 * F32),
         "one tower gathered, its gradient scattered")  # fmt: skip
def sigmoid_loss(a, b):
    def loss(a, b):
        signs = 2 * jnp.eye(256) - 1
        return -jnp.mean(jnp.sum(jax.nn.log_sigmoid(signs * (a @ b.T * 10.0 - 5.0)), -1))

    return jax.grad(loss, (0, 1))(a, b)


@program("poisson's equation by transforms", eight, [Array((256, 256), ("x", None))], Out("x", None),
         2 * all_to_all(256 * 136 * 8 / 8),
         "129 columns of the spectrum, in pieces of 17, exchanged and back")  # fmt: skip
def poisson(f):
    squares = jnp.fft.fftfreq(256)[:, None] ** 2 + jnp.fft.rfftfreq(256)[None] ** 2
    return jnp.fft.irfft2(jnp.fft.rfft2(f) / jnp.where(squares == 0, 1, squares))
