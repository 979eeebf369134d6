"""Experts on different devices: each token goes to the device of its expert and comes back (two all_to_alls).

    python examples/by_hand/experts.py

Each device sorts its tokens into one box per expert, of so many places that none is left out. Boxes are exchanged, each
device applies its experts to what it got, and the boxes go back.
(Lepikhin et al.: "GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding", 2020.)
"""

import numpy as np
from compare import report

import meshrt as jax
import meshrt.numpy as jnp
from meshrt import P, lax

TOKENS, WIDTH, HIDDEN, EXPERTS, DEVICES = 512, 32, 64, 16, 8


def expert(up, down, x):
    return jax.nn.relu(x @ up) @ down


def route(x, gate):
    """(one-hot box and place of each token: f32[tokens, experts, places], its weight)."""
    weights = jax.nn.softmax(x @ gate)
    chosen = jax.nn.one_hot(weights.argmax(-1), weights.shape[-1])
    place = jnp.cumsum(chosen, axis=0) * chosen - 1
    return jax.nn.one_hot(place.astype(jnp.int32), x.shape[0]), (weights * chosen).sum(-1, keepdims=True)


def plain(x, gate, up, down):
    """x: f32[tokens, width], up: f32[experts, width, hidden], down: f32[experts, hidden, width]; on one device."""
    weights = jax.nn.softmax(x @ gate)
    best = weights.argmax(-1)
    return jax.vmap(expert)(up[best], down[best], x[:, None])[:, 0] * weights.max(-1, keepdims=True)


def exchanged(x, gate, up, down):
    """The same of this device's tokens, with this device's experts."""
    boxes, weight = route(x, gate)
    sent = jnp.einsum("tep,tw->epw", boxes, x)
    arrived = lax.all_to_all(sent, "expert", split_axis=0, concat_axis=1, tiled=True)
    done = jax.vmap(expert)(up, down, arrived)
    back = lax.all_to_all(done, "expert", split_axis=1, concat_axis=0, tiled=True)
    return jnp.einsum("tep,epw->tw", boxes, back) * weight


def automatic(mesh):
    """One program for all devices: the boxes of each group of tokens, with two layouts asked for."""
    lay = lambda x, *spec: lax.with_sharding_constraint(x, jax.NamedSharding(mesh, P(*spec)))

    def run(x, gate, up, down):
        groups = lay(x.reshape(DEVICES, -1, x.shape[-1]), "expert")
        boxes, weight = jax.vmap(route, (0, None))(groups, gate)
        sent = lay(jnp.einsum("gtep,gtw->gepw", boxes, groups), "expert")
        done = jax.vmap(jax.vmap(expert), (None, None, 0))(up, down, lay(sent, None, "expert"))
        back = lay(lay(done, None, "expert"), "expert")
        return (jnp.einsum("gtep,gepw->gtw", boxes, back) * weight).reshape(x.shape)

    return run


def programs(mesh):
    """(by hand, Auto mode): functions of x, gate, up and down."""
    split = P("expert")
    by_hand = jax.shard_map(exchanged, mesh=mesh, in_specs=(split, P(), split, split), out_specs=split)
    return by_hand, automatic(mesh)


def arguments(mesh):
    draw = np.random.default_rng(0)
    make = lambda *shape: (draw.normal(size=shape) / shape[-2] ** 0.5).astype(np.float32)
    split, put = P("expert"), lambda x, spec: jax.device_put(x, jax.NamedSharding(mesh, spec))
    x, gate = put(make(TOKENS, WIDTH) * TOKENS**0.5, split), put(make(WIDTH, EXPERTS), P())
    return x, gate, put(make(EXPERTS, WIDTH, HIDDEN), split), put(make(EXPERTS, HIDDEN, WIDTH), split)


def main():
    mesh = jax.make_mesh((DEVICES,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))
    by_hand, auto = programs(mesh)
    args = arguments(mesh)
    np.testing.assert_allclose(by_hand(*args), plain(*map(np.asarray, args)), rtol=1e-3, atol=1e-4)
    report(f"{TOKENS} tokens, {EXPERTS} experts", by_hand=(by_hand, args), automatic=(auto, args))


if __name__ == "__main__":
    main()
