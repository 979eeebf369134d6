"""Learns to draw digits: a diffusion model on scikit-learn's 8x8 pictures.

    python examples/diffusion.py --steps 400

The network is told how noisy a picture is and guesses the noise; drawing starts from noise and takes the guess away
little by little. Batches are split over "data", the network's hidden features over "model".
(Ho et al.: "Denoising Diffusion Probabilistic Models", 2020; the schedule is that of Nichol and Dhariwal, 2021.)
Replace `meshrt` by `jax` in the imports and the script runs unchanged.
"""

import argparse
import functools

import numpy as np
from sklearn.datasets import load_digits  # pip install scikit-learn

import meshrt as jax
import meshrt.numpy as jnp
from meshrt import lax
from meshrt.sharding import AxisType, NamedSharding
from meshrt.sharding import PartitionSpec as P

LEVELS, BATCH, PIXELS, HIDDEN, BLOCKS, RATE = 100, 256, 64, 256, 3, 1e-3
SPECS = {"in": P(), "level": P(), "up": P(None, None, "model"), "down": P(None, "model"), "out": P()}
# How much of the picture's variance is left at each level.
_STEPS = np.cos((np.arange(LEVELS + 1) / LEVELS + 0.008) / 1.008 * np.pi / 2) ** 2
KEPT = np.clip(_STEPS[1:] / _STEPS[0], 1e-4, 1.0).astype(np.float32)


def init(key):
    shapes = {
        "in": (PIXELS, HIDDEN), "level": (LEVELS, HIDDEN), "up": (BLOCKS, HIDDEN, 2 * HIDDEN),
        "down": (BLOCKS, 2 * HIDDEN, HIDDEN), "out": (HIDDEN, PIXELS),
    }  # fmt: skip
    keys = jax.random.split(key, len(shapes))
    return {name: jax.random.normal(k, shape) / shape[-2] ** 0.5 for k, (name, shape) in zip(keys, shapes.items())}


def guess(params, noisy, level):
    """The noise in noisy: f32[batch, pixels] of level: i32[batch], by residual blocks."""
    x = noisy @ params["in"] + params["level"][level]

    def block(x, layer):
        up, down = layer
        centred = x - x.mean(-1, keepdims=True)
        h = centred * lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5) + params["level"][level]
        return x + jax.nn.silu(h @ up) @ down, None

    x, _ = lax.scan(block, x, (params["up"], params["down"]))
    return x @ params["out"] / 4


def loss_fn(params, images, key):
    level_key, noise_key = jax.random.split(key)
    level = jax.random.randint(level_key, (len(images),), 0, LEVELS)
    noise = jax.random.normal(noise_key, images.shape)
    kept = jnp.asarray(KEPT)[level, None]
    return jnp.mean(jnp.square(guess(params, jnp.sqrt(kept) * images + jnp.sqrt(1 - kept) * noise, level) - noise))


@functools.partial(jax.jit, donate_argnums=(0, 1))
def step(params, moments, count, images, key):
    """A step of Adam; the key is of this step."""
    loss, grads = jax.value_and_grad(loss_fn)(params, images, key)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], grads)
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, moments[1], grads)
    change = lambda p, m, s: p - RATE * (m / (1 - 0.9**count)) / (jnp.sqrt(s / (1 - 0.99**count)) + 1e-8)
    return jax.tree.map(change, params, mean, square), (mean, square), loss


@functools.partial(jax.jit, static_argnames="count")
def draw(params, key, count):
    """Pictures f32[count, pixels], from the last level to the first."""
    before = np.concatenate([np.ones(1, np.float32), KEPT[:-1]])

    def cleaner(x, level):
        kept, kept_before = jnp.asarray(KEPT)[level], jnp.asarray(before)[level]
        noise = guess(params, x, jnp.full(count, level))
        clean = jnp.clip((x - jnp.sqrt(1 - kept) * noise) / jnp.sqrt(kept), -1, 1)
        share = kept / kept_before
        mean = (jnp.sqrt(kept_before) * (1 - share) * clean + jnp.sqrt(share) * (1 - kept_before) * x) / (1 - kept)
        fresh = jax.random.normal(jax.random.fold_in(key, level), x.shape)
        return mean + jnp.sqrt((1 - kept_before) * (1 - share) / (1 - kept)) * fresh, None

    start = jax.random.normal(jax.random.fold_in(key, LEVELS), (count, PIXELS))
    return lax.scan(cleaner, start, jnp.arange(LEVELS)[::-1])[0]


def show(pictures):
    """Lines of text: dark pixels as dense characters."""
    shades = np.clip((pictures.reshape(-1, 8, 8) + 1) * 2.5, 0, 4).astype(int)
    for row in shades.transpose(1, 0, 2):
        print("   ".join("".join(" .:*#"[s] * 2 for s in line) for line in row))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    images = (load_digits().data / 8 - 1).astype(np.float32)
    rng, key = np.random.default_rng(0), jax.random.key(0)
    params = jax.jit(init, out_shardings={name: NamedSharding(mesh, s) for name, s in SPECS.items()})(key)
    moments = (jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))
    losses = []
    for number in range(1, args.steps + 1):
        batch = jax.device_put(images[rng.integers(0, len(images), BATCH)], NamedSharding(mesh, P("data")))
        params, moments, loss = step(params, moments, np.float32(number), batch, jax.random.fold_in(key, number))
        losses.append(loss)
        if number % 50 == 0:
            print(f"step {number:4d}  loss {np.mean(jax.device_get(losses)):.4f}")
            losses = []
    pictures = np.asarray(draw(params, jax.random.key(1), 6))
    for name, pixels in (("drawn", pictures), ("data", images)):
        print(f"{name:5}  mean {pixels.mean():.3f}, spread {pixels.std():.3f}")
    show(pictures)


if __name__ == "__main__":
    main()
