"""ZeRO-1: data parallel training in which each device keeps the optimiser's state of its part of the parameters only.

    python examples/by_hand/zero1.py

Gradients are summed and scattered (half of an all-reduce), each device updates its part, and the new parameters are
gathered (the other half): as many bytes as plain data parallelism, an eighth of the optimiser's memory.
(Rajbhandari et al.: "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2019.)
"""

import numpy as np
from compare import report

import meshrt as jax
import meshrt.numpy as jnp
from meshrt import P, lax

WIDTH, LAYERS, BATCH, RATE, BETA1, BETA2 = 64, 4, 64, 1e-2, 0.9, 0.99


def loss(params, x, y):
    for w in params:
        x = jnp.tanh(x @ w)
    return ((x - y) ** 2).mean()


def adam(p, g, mean, square):
    mean, square = BETA1 * mean + (1 - BETA1) * g, BETA2 * square + (1 - BETA2) * g * g
    return p - RATE * mean / (jnp.sqrt(square) + 1e-8), mean, square


def plain(params, state, x, y):
    """A step on one device. Parameters: a list of f32[width, width]; state: (mean, square) of each."""
    grads = jax.grad(loss)(params, x, y)
    new = [adam(p, g, *s) for p, g, s in zip(params, grads, state)]
    return [p for p, _, _ in new], [(m, s) for _, m, s in new]


def zero(params, state, x, y):
    """The same of this device's samples, with this device's rows of the state."""
    mine = lax.pcast(params, "data", to="varying")  # so that gradients stay this device's own until they are scattered
    grads = jax.grad(loss)(mine, x, y)
    devices, me = lax.axis_size("data"), lax.axis_index("data")
    new_params, new_state = [], []
    for p, g, (mean, square) in zip(params, grads, state):
        g = lax.psum_scatter(g, "data", tiled=True) / devices
        part = lax.dynamic_slice_in_dim(p, me * g.shape[0], g.shape[0])
        part, mean, square = adam(part, g, mean, square)
        new_params.append(lax.all_gather_invariant(part, "data", tiled=True))
        new_state.append((mean, square))
    return new_params, new_state


def programs(mesh):
    """(by hand, Auto mode): functions of parameters, state, x and y."""
    by_hand = jax.shard_map(
        zero, mesh=mesh, in_specs=(P(), P("data"), P("data"), P("data")), out_specs=(P(), P("data"))
    )
    lay = lambda tree, spec: lax.with_sharding_constraint(tree, jax.NamedSharding(mesh, spec))

    def automatic(params, state, x, y):
        params, state = plain(params, state, x, y)
        return lay(params, P()), lay(state, P("data"))

    return by_hand, automatic


def arguments(mesh):
    draw = np.random.default_rng(0)
    make = lambda *shape: draw.normal(size=shape).astype(np.float32)
    params = [make(WIDTH, WIDTH) / WIDTH**0.5 for _ in range(LAYERS)]
    state = [(np.zeros_like(p), np.zeros_like(p)) for p in params]
    put = lambda tree, spec: jax.device_put(tree, jax.NamedSharding(mesh, spec))
    split = P("data")
    return put(params, P()), put(state, split), put(make(BATCH, WIDTH), split), put(make(BATCH, WIDTH), split)


def main():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    by_hand, automatic = programs(mesh)
    args = arguments(mesh)
    params, state = by_hand(*args)
    want, _ = plain(*jax.tree.map(np.asarray, args))
    for got, expected in zip(params, want):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-5)
    print("state per device:", sum(s.addressable_shards[0].data.nbytes for s in jax.tree.leaves(state)), "B of",
          sum(s.nbytes for s in jax.tree.leaves(state)), "B")  # fmt: skip
    report("a training step on 8 devices", by_hand=(by_hand, args), automatic=(automatic, args))


if __name__ == "__main__":
    main()
