"""Trains a mixture of experts: each token is sent to two of sixteen experts, which live on different devices.

    python examples/mixture_of_experts.py --steps 60

The router has as many places in each expert's box as an even load needs and a quarter more; tokens beyond that keep
their residual only. Two constraints say where tokens and boxes live, and the exchange between them follows.
(Lepikhin et al.: "GShard: Scaling Giant Models with Conditional Computation and Automatic Sharding", 2020.)
Replace `meshrt` by `jax` in the imports and the script runs unchanged.
"""

import argparse

import numpy as np

import meshrt as jax
import meshrt.numpy as jnp
from meshrt import lax
from meshrt.sharding import AxisType, NamedSharding
from meshrt.sharding import PartitionSpec as P

GROUPS, TOKENS, WIDTH, HIDDEN, EXPERTS = 8, 64, 32, 64, 16  # tokens per group
PLACES = int(1.25 * 2 * TOKENS / EXPERTS)
RATE, BALANCE = 3e-3, 0.01
SPECS = {"gate": P(), "up": P("device"), "down": P("device")}


def init(key):
    gate, up, down = jax.random.split(key, 3)
    draw = jax.nn.initializers.lecun_normal(batch_axis=0)
    return {
        "gate": 0.1 * jax.random.normal(gate, (WIDTH, EXPERTS)),
        "up": draw(up, (EXPERTS, WIDTH, HIDDEN)),
        "down": draw(down, (EXPERTS, HIDDEN, WIDTH)),
    }


def route(x, gate):
    """For tokens x: f32[tokens, width], where each goes and with what weight: f32[tokens, experts, places].

    Also the loss that is 1 where all experts have the same load.
    """
    chances = jax.nn.softmax(x @ gate)
    weights, chosen = lax.top_k(chances, 2)
    weights = weights / weights.sum(-1, keepdims=True)
    picked = jax.nn.one_hot(chosen, EXPERTS)  # [tokens, 2, experts]
    in_turn = picked.swapaxes(0, 1).reshape(-1, EXPERTS)  # all first choices come before the second ones
    place = (jnp.cumsum(in_turn, axis=0) - 1).reshape(2, -1, EXPERTS).swapaxes(0, 1)
    place = jnp.where(picked > 0, place, PLACES).astype(jnp.int32)  # one_hot of a place too far is zeros
    boxes = jnp.einsum("tc,tce,tcep->tep", weights, picked, jax.nn.one_hot(place, PLACES))
    balance = EXPERTS * jnp.sum(picked[:, 0].mean(0) * chances.mean(0))
    return boxes, balance


def layer(params, x):
    """x: f32[groups, tokens, width] -> the same, and the balance of the load."""
    boxes, balance = jax.vmap(route, (0, None))(x, params["gate"])
    sent = jnp.einsum("gtep,gtw->egpw", (boxes > 0).astype(x.dtype), x)
    sent = lax.with_sharding_constraint(sent, P("device"))  # from each group's device to each expert's
    hidden = jax.nn.relu(jnp.einsum("egpw,ewh->egph", sent, params["up"]))
    done = jnp.einsum("egph,ehw->egpw", hidden, params["down"])
    done = lax.with_sharding_constraint(done, P(None, "device"))  # and back
    return x + jnp.einsum("gtep,egpw->gtw", boxes, done), balance.mean()


def loss_fn(params, x, y):
    predicted, balance = layer(params, x)
    error = jnp.mean(jnp.square(predicted - y))
    return error + BALANCE * balance, (error, balance)


@jax.jit
def step(params, square, x, y):
    """One step of RMSProp (Hinton 2012)."""
    grads, (error, balance) = jax.grad(loss_fn, has_aux=True)(params, x, y)
    square = jax.tree.map(lambda s, g: 0.9 * s + 0.1 * g * g, square, grads)
    params = jax.tree.map(lambda p, g, s: p - RATE * g / (jnp.sqrt(s) + 1e-6), params, grads, square)
    return params, square, error, balance


def batches(seed=0):
    """Tokens of eight clusters; what is to be learnt turns and scales each cluster in its own way."""
    rng = np.random.default_rng(seed)
    centres = 2 * rng.normal(size=(8, WIDTH))
    turns = rng.normal(size=(8, WIDTH, WIDTH)) / WIDTH**0.5
    while True:
        cluster = rng.integers(0, 8, (GROUPS, TOKENS))
        x = centres[cluster] + rng.normal(size=(GROUPS, TOKENS, WIDTH))
        y = x + np.einsum("gtw,gtwv->gtv", x, turns[cluster])
        yield x.astype(np.float32), y.astype(np.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = jax.make_mesh((8,), ("device",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(mesh):
        specs = {name: NamedSharding(mesh, spec) for name, spec in SPECS.items()}
        params = jax.jit(init, out_shardings=specs)(jax.random.key(0))
        square = jax.tree.map(jnp.zeros_like, params)
        for number, batch in zip(range(1, args.steps + 1), batches()):
            x, y = jax.device_put(batch, NamedSharding(mesh, P("device")))
            params, square, error, balance = step(params, square, x, y)
            if number % 10 == 0 or number in (1, args.steps):
                print(f"step {number:3d}  error {float(error):.4f}  balance {float(balance):.4f}")
        print("experts lie", params["up"].sharding.spec)


if __name__ == "__main__":
    main()
