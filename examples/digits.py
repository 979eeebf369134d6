"""Trains a convolutional network on scikit-learn's handwritten digits, each batch split over all devices.

    python examples/digits.py --epochs 6

Nothing but the batch has an annotation: propagation splits activations with it and adds gradients up over the devices.
Replace `meshrt` by `jax` in the imports and the script runs unchanged.
"""

import argparse

import numpy as np
from sklearn.datasets import load_digits  # pip install scikit-learn

import meshrt as jax
import meshrt.numpy as jnp
from meshrt import lax
from meshrt.sharding import AxisType, NamedSharding
from meshrt.sharding import PartitionSpec as P

BATCH, CLASSES, CHANNELS, HIDDEN = 128, 10, (16, 32), 64
RATE, MOMENTUM = 0.03, 0.9
LAYOUT = ("NHWC", "HWIO", "NHWC")


def init(key):
    """Kernels by the variance of He et al. 2015, biases of zeros."""
    keys, first, second = jax.random.split(key, 4), *CHANNELS
    draw = jax.nn.initializers.he_normal()
    return {
        "conv1": {"kernel": draw(keys[0], (3, 3, 1, first)), "bias": jnp.zeros(first)},
        "conv2": {"kernel": draw(keys[1], (3, 3, first, second)), "bias": jnp.zeros(second)},
        "hidden": {"kernel": draw(keys[2], (2 * 2 * second, HIDDEN)), "bias": jnp.zeros(HIDDEN)},
        "out": {"kernel": draw(keys[3], (HIDDEN, CLASSES)), "bias": jnp.zeros(CLASSES)},
    }


def conv(x, layer):
    """A 3x3 convolution, ReLU, and the largest of each 2x2 pixels: [n, h, w, c] -> [n, h/2, w/2, d]."""
    x = lax.conv_general_dilated(x, layer["kernel"], (1, 1), "SAME", dimension_numbers=LAYOUT) + layer["bias"]
    return lax.reduce_window(jax.nn.relu(x), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def logits(params, images):
    """images: f32[batch, 8, 8, 1] -> f32[batch, 10]."""
    x = conv(conv(images, params["conv1"]), params["conv2"])
    x = x.reshape(len(x), -1)
    x = jax.nn.relu(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return x @ params["out"]["kernel"] + params["out"]["bias"]


def loss_fn(params, images, labels):
    """Mean cross-entropy in nats."""
    wanted = jax.nn.one_hot(labels, CLASSES)
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits(params, images)) * wanted, axis=-1))


@jax.jit
def step(params, velocity, images, labels):
    """One step of gradient descent with momentum."""
    loss, grads = jax.value_and_grad(loss_fn)(params, images, labels)
    velocity = jax.tree.map(lambda v, g: MOMENTUM * v - RATE * g, velocity, grads)
    return jax.tree.map(jnp.add, params, velocity), velocity, loss


@jax.jit
def accuracy(params, images, labels):
    return jnp.mean(logits(params, images).argmax(-1) == labels)


def data():
    """(images f32[n, 8, 8, 1] between 0 and 1, labels i32[n]) for training and for testing."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order, :, :, None] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int32)
    return (images[:1536], labels[:1536]), (images[1536:1792], labels[1536:1792])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = jax.make_mesh((8,), ("batch",), axis_types=(AxisType.Auto,))
    split = lambda arrays: jax.device_put(arrays, NamedSharding(mesh, P("batch")))
    params = jax.device_put(init(jax.random.key(0)), NamedSharding(mesh, P()))
    velocity = jax.tree.map(jnp.zeros_like, params)
    (images, labels), held_out = data()
    held_out, rng = split(held_out), np.random.default_rng(1)
    for epoch in range(1, args.epochs + 1):
        losses = []
        for rows in rng.permutation(len(labels)).reshape(-1, BATCH):
            params, velocity, loss = step(params, velocity, *split((images[rows], labels[rows])))
            losses.append(loss)
        loss = float(np.mean(jax.device_get(losses)))
        right = float(accuracy(params, *held_out))
        print(f"epoch {epoch:2d}  loss {loss:.3f}  accuracy on held-out digits {right:.3f}")


if __name__ == "__main__":
    main()
