"""Fine-tunes a sharded classifier to pictures it has not seen by low-rank adapters: a fiftieth of its parameters move.

    python examples/lora.py --steps 60

A network learns scikit-learn's digits; then the digits are mirrored, the network's weights are frozen, split over
"model", and each matrix W gets a sum W + A B beside it, of rank four, which alone has gradients and moments.
(Hu et al.: "LoRA: Low-Rank Adaptation of Large Language Models", 2021.)
Replace `meshrt` by `jax` in the imports and the script runs unchanged.
"""

import argparse
import itertools

import numpy as np
from sklearn.datasets import load_digits  # pip install scikit-learn

import meshrt as jax
import meshrt.numpy as jnp
from meshrt import lax
from meshrt.sharding import AxisType, NamedSharding
from meshrt.sharding import PartitionSpec as P

BATCH, PIXELS, HIDDEN, CLASSES, LAYERS, RANK = 128, 64, 512, 10, 3, 4
RATE, BETA1, BETA2 = 2e-3, 0.9, 0.99
SPECS = [P(None, "model"), P("model", None), P(None, "model")]  # of the three matrices


def init(key):
    sizes = [PIXELS, HIDDEN, HIDDEN, CLASSES]
    keys = jax.random.split(key, LAYERS)
    return [jax.nn.initializers.he_normal()(k, shape) for k, shape in zip(keys, itertools.pairwise(sizes))]


def adapters(key, weights):
    """(A, B) for each matrix of [n, m]: f32[n, RANK], and f32[RANK, m] of zeros, so that nothing changes at first."""
    keys = jax.random.split(key, len(weights))
    return [
        (jax.random.normal(k, (w.shape[0], RANK)) / w.shape[0] ** 0.5, jnp.zeros((RANK, w.shape[1])))
        for k, w in zip(keys, weights)
    ]


def logits(weights, low, images):
    """images: f32[batch, 64] -> f32[batch, 10]. The products with A and B are taken in turn: W + A B is never made."""
    x = images
    for number, (w, (a, b)) in enumerate(zip(weights, low)):
        x = x @ w + (x @ a) @ b
        x = jax.nn.relu(x) if number < LAYERS - 1 else x
    return x


def loss_fn(weights, low, images, labels):
    chances = jax.nn.log_softmax(logits(weights, low, images))
    return -jnp.mean(jnp.take_along_axis(chances, labels[:, None], axis=-1))


def adam(params, grads, moments, count):
    mean = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, moments[0], grads)
    square = jax.tree.map(lambda s, g: BETA2 * s + (1 - BETA2) * g * g, moments[1], grads)
    change = lambda p, m, s: p - RATE * (m / (1 - BETA1**count)) / (jnp.sqrt(s / (1 - BETA2**count)) + 1e-8)
    return jax.tree.map(change, params, mean, square), (mean, square)


@jax.jit
def pretrain(weights, low, moments, count, images, labels):
    loss, grads = jax.value_and_grad(loss_fn, argnums=0)(weights, low, images, labels)
    weights, moments = adam(weights, grads, moments, count)
    return lax.with_sharding_constraint(weights, SPECS), moments, loss


@jax.jit
def tune(weights, low, moments, count, images, labels):
    loss, grads = jax.value_and_grad(loss_fn, argnums=1)(weights, low, images, labels)
    low, moments = adam(low, grads, moments, count)
    return low, moments, loss


@jax.jit
def accuracy(weights, low, images, labels):
    return jnp.mean(logits(weights, low, images).argmax(-1) == labels)


def data(mirrored):
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = digits.images[order, :, ::-1] if mirrored else digits.images[order]
    images = np.ascontiguousarray(images.reshape(-1, PIXELS) / 16, np.float32)
    labels = digits.target[order].astype(np.int32)
    return (images[:1536], labels[:1536]), (images[1536:1792], labels[1536:1792])


def batches(images, labels, steps):
    rng = np.random.default_rng(1)
    for number in range(1, steps + 1):
        rows = rng.integers(0, len(labels), BATCH)
        yield np.float32(number), images[rows], labels[rows]


def size(tree):
    return sum(x.size for x in jax.tree.leaves(tree))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="of fine-tuning; as many come before it")
    steps = parser.parse_args().steps
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    put = lambda tree, spec: jax.device_put(tree, NamedSharding(mesh, spec))
    zeros = lambda tree: (jax.tree.map(jnp.zeros_like, tree), jax.tree.map(jnp.zeros_like, tree))
    with jax.set_mesh(mesh):
        weights = [put(w, spec) for w, spec in zip(init(jax.random.key(0)), SPECS)]
        low = put(adapters(jax.random.key(1), weights), P())
        moments = zeros(weights)
        train, held_out = data(mirrored=False)
        for count, *batch in batches(*train, steps):
            weights, moments, loss = pretrain(weights, low, moments, count, *put(batch, P("data")))
            if count % 20 == 0:
                print(f"step {int(count):4d}  loss {float(loss):.3f}")
        print(f"digits: accuracy {float(accuracy(weights, low, *put(held_out, P('data')))):.3f}")
        train, held_out = data(mirrored=True)
        held_out, moments = put(held_out, P("data")), zeros(low)
        print(f"mirrored: accuracy {float(accuracy(weights, low, *held_out)):.3f} before")
        for count, *batch in batches(*train, steps):
            low, moments, loss = tune(weights, low, moments, count, *put(batch, P("data")))
            if count % 20 == 0:
                print(f"step {int(count):4d}  loss {float(loss):.3f}")
        share = f"{size(low)} of {size(weights)} parameters moved"
        print(f"mirrored: accuracy {float(accuracy(weights, low, *held_out)):.3f} after; {share}")


if __name__ == "__main__":
    main()
