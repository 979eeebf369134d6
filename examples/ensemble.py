"""Trains sixteen networks at once, two on each device, and asks where they disagree.

    python examples/ensemble.py --steps 200

`vmap` turns the training step of one network into that of all; their parameters are split over "member", so that the
program sends nothing but what is needed to mix their answers.
(Lakshminarayanan et al.: "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles", 2017.)
Replace `meshrt` by `jax` in the imports and the script runs unchanged.
"""

import argparse

import numpy as np

import meshrt as jax
import meshrt.numpy as jnp
from meshrt.sharding import AxisType, NamedSharding
from meshrt.sharding import PartitionSpec as P

MEMBERS, POINTS, HIDDEN, RATE, MOMENTUM = 16, 128, 64, 0.005, 0.8


def init(key):
    """A network of one number to a mean and the logarithm of a variance."""
    first, second, third, shift = jax.random.split(key, 4)
    return {
        "in": {"w": 2 * jax.random.normal(first, (1, HIDDEN)), "b": jax.random.uniform(shift, (HIDDEN,), minval=-3)},
        "mid": {"w": jax.random.normal(second, (HIDDEN, HIDDEN)) / HIDDEN**0.5, "b": jnp.zeros(HIDDEN)},
        "out": {"w": 0.1 * jax.random.normal(third, (HIDDEN, 2)) / HIDDEN**0.5, "b": jnp.zeros(2)},
    }


def predict(params, x):
    """x: f32[points] -> (mean, log of the variance), each f32[points]."""
    h = jnp.tanh(x[:, None] @ params["in"]["w"] + params["in"]["b"])
    h = jnp.tanh(h @ params["mid"]["w"] + params["mid"]["b"])
    mean, spread = jnp.moveaxis(h @ params["out"]["w"] + params["out"]["b"], -1, 0)
    return mean, jnp.clip(spread, -6, 3)


def loss_fn(params, x, y):
    """Negative log-likelihood of a normal distribution, without its constant."""
    mean, spread = predict(params, x)
    return 0.5 * jnp.mean(jnp.square(y - mean) * jnp.exp(-spread) + spread)


def one_step(params, velocity, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
    scale = RATE * jnp.minimum(1.0, 1.0 / norm)
    velocity = jax.tree.map(lambda v, g: MOMENTUM * v - scale * g, velocity, grads)
    return jax.tree.map(jnp.add, params, velocity), velocity, loss


step = jax.jit(jax.vmap(one_step, in_axes=(0, 0, None, None)), donate_argnums=(0, 1))


@jax.jit
def mixed(params, x):
    """The mean of the mixture, what its members say of the noise, and how far apart their means are."""
    means, spreads = jax.vmap(predict, in_axes=(0, None))(params, x)
    return means.mean(0), jnp.sqrt(jnp.exp(spreads).mean(0)), means.std(0)


def data():
    """A sine with noise that grows to the right; between 0 and 1 there is none of it to learn from."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, POINTS)
    x[x > 0] = x[x > 0] / 2 + 1
    y = np.sin(2 * x) + 0.1 * np.exp(0.5 * x) * rng.normal(size=POINTS)
    return x.astype(np.float32), y.astype(np.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = jax.make_mesh((8,), ("member",), axis_types=(AxisType.Auto,))
    keys = jax.random.split(jax.random.key(0), MEMBERS)
    params = jax.jit(jax.vmap(init), out_shardings=NamedSharding(mesh, P("member")))(keys)
    velocity = jax.tree.map(jnp.zeros_like, params)
    x, y = jax.device_put(data(), NamedSharding(mesh, P()))
    for number in range(1, args.steps + 1):
        params, velocity, loss = step(params, velocity, x, y)
        if number % 50 == 0 or number == 1:
            losses = np.asarray(loss)
            print(f"step {number:3d}  losses {losses.min():6.2f} to {losses.max():6.2f}, mean {losses.mean():6.2f}")
    places = np.linspace(-2, 2, 9, dtype=np.float32)
    print("     x    mean   noise   apart")
    for row in zip(places, *map(np.asarray, mixed(params, places))):
        print("  ".join(f"{value:6.2f}" for value in row))


if __name__ == "__main__":
    main()
