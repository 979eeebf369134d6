"""Causal attention over a sequence that is split over a ring of devices: keys and values go round, queries stay.

    python examples/by_hand/ring_attention.py

No device ever holds the keys of the whole sequence, or scores of more than its own rows by one part of the columns.
The softmax is kept as (largest score so far, sum, weighted values); parts are merged as they arrive.
(Liu, Zaharia, Abbeel: "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023.)
"""

import numpy as np
from compare import report

import meshrt as jax
import meshrt.numpy as jnp
from meshrt import P, lax

BATCH, TIME, HEADS, WIDTH = 2, 512, 4, 32


def attention(q, k, v):
    """q, k, v: f32[batch, time, heads, width], whole."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)


def ring(q, k, v):
    """The same, of this device's part of the sequence."""
    devices, me, length = lax.axis_size("ring"), lax.axis_index("ring"), q.shape[1]
    rows = me * length + jnp.arange(length)
    onward = [(i, (i + 1) % devices) for i in range(devices)]

    def attend(state, k, v, source):
        best, total, out = state
        columns = source * length + jnp.arange(length)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        scores = jnp.where(rows[:, None] >= columns, scores, -1e30)
        top = jnp.maximum(best, scores.max(-1))
        weights, decay = jnp.exp(scores - top[..., None]), jnp.exp(best - top)
        out = out * decay[..., None] + jnp.einsum("bhqk,bkhd->bhqd", weights, v)
        return top, total * decay + weights.sum(-1), out

    def step(carry, i):
        state, k, v = carry
        k, v = lax.ppermute((k, v), "ring", onward)
        return (attend(state, k, v, (me - i) % devices), k, v), None

    shape = (q.shape[0], q.shape[2], length)
    empty = (jnp.full(shape, -1e30), jnp.zeros(shape), jnp.zeros((*shape, q.shape[3])))
    state = attend(lax.pcast(empty, "ring", to="varying"), k, v, me)
    (state, _, _), _ = lax.scan(step, (state, k, v), jnp.arange(1, devices))
    _, total, out = state
    return jnp.moveaxis(out / total[..., None], 1, 2)


def programs(mesh):
    """(by hand, Auto mode): functions of q, k, v."""
    split = P(None, "ring")
    by_hand = jax.shard_map(ring, mesh=mesh, in_specs=split, out_specs=split)
    return by_hand, lambda q, k, v: lax.with_sharding_constraint(attention(q, k, v), jax.NamedSharding(mesh, split))


def arguments(mesh):
    draw = np.random.default_rng(0)
    values = [draw.normal(size=(BATCH, TIME, HEADS, WIDTH)).astype(np.float32) for _ in range(3)]
    return jax.device_put(values, jax.NamedSharding(mesh, P(None, "ring")))


def main():
    mesh = jax.make_mesh((8,), ("ring",), axis_types=(jax.sharding.AxisType.Auto,))
    by_hand, automatic = programs(mesh)
    args = arguments(mesh)
    np.testing.assert_allclose(by_hand(*args), attention(*map(np.asarray, args)), rtol=1e-3, atol=1e-5)
    report("attention over 8 devices", by_hand=(by_hand, args), automatic=(automatic, args))


if __name__ == "__main__":
    main()
