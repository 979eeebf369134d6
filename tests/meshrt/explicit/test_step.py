"""A training step of a transformer with Explicit axes, tensor and data parallel: loss, weights and types are JAX's."""

from __future__ import annotations

import jax
import numpy as np

import meshrt
from meshrt.sharding import AxisType, NamedSharding, P

VOCABULARY, WIDTH, HEADS, HIDDEN, BATCH, LENGTH, LAYERS = 64, 32, 4, 64, 8, 16, 2


def weights():
    rng = np.random.default_rng(0)
    draw = lambda *s: (rng.standard_normal(s) / np.sqrt(s[0])).astype(np.float32)
    columns, rows, whole = (None, "model"), ("model", None), (None,)
    tree = {"embed": (draw(VOCABULARY, WIDTH), (None, None)), "out": (draw(WIDTH, VOCABULARY), columns)}
    for i in range(LAYERS):
        tree[f"layer{i}"] = {
            **{n: (draw(WIDTH, WIDTH), columns) for n in "qkv"}, "o": (draw(WIDTH, WIDTH), rows),
            **{n: (np.ones(WIDTH, np.float32), whole) for n in ("scale", "scale2")},
            "up": (draw(WIDTH, HIDDEN), columns), "down": (draw(HIDDEN, WIDTH), rows),
        }  # fmt: skip
    tokens, targets = (rng.integers(0, VOCABULARY, (BATCH, LENGTH)).astype(np.int32) for _ in range(2))
    return tree, tokens, targets


def step(root, np_, spec):
    """The step for a library: its root module, its numpy, its PartitionSpec."""
    residual = spec("data", None, None)

    def normalised(x, scale):
        return x * root.lax.rsqrt(np_.mean(x * x, -1, keepdims=True) + 1e-6) * scale

    def layer(x, p):
        h = normalised(x, p["scale"])
        q, k, v = ((h @ p[n]).reshape(BATCH, LENGTH, HEADS, -1) for n in "qkv")
        scores = np_.einsum("bqhd,bkhd->bhqk", q, k) / np.float32(np.sqrt(WIDTH // HEADS))
        scores = np_.where(np_.tril(np_.ones((LENGTH, LENGTH), bool))[None, None], scores, -1e30)
        o = np_.einsum("bhqk,bkhd->bqhd", root.nn.softmax(scores, -1), v).reshape(BATCH, LENGTH, WIDTH)
        x = x + np_.dot(o, p["o"], out_sharding=residual)
        h = root.nn.gelu(normalised(x, p["scale2"]) @ p["up"])
        return x + np_.dot(h, p["down"], out_sharding=residual)

    def loss(params, tokens, targets):
        x = params["embed"].at[tokens].get(out_sharding=residual)
        for i in range(LAYERS):
            x = root.checkpoint(layer)(x, params[f"layer{i}"]) if i else layer(x, params[f"layer{i}"])
        logits = x @ params["out"]
        picked = (logits - root.nn.logsumexp(logits, -1, keepdims=True)) * root.nn.one_hot(targets, VOCABULARY)
        return -np_.mean(picked.sum(-1))

    def train(params, tokens, targets):
        value, grads = root.value_and_grad(loss)(params, tokens, targets)
        return value, root.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    return root.jit(train)


def run(root, np_, spec, sharding, types):
    mesh = root.make_mesh((4, 2), ("data", "model"), axis_types=(types.Explicit,) * 2)
    tree, tokens, targets = weights()
    with root.set_mesh(mesh):
        place = lambda leaf: root.device_put(leaf[0], sharding(mesh, spec(*leaf[1])))
        params = root.tree.map(place, tree, is_leaf=lambda x: isinstance(x, tuple))
        batch = [root.device_put(a, sharding(mesh, spec("data", None))) for a in (tokens, targets)]
        value, params = step(root, np_, spec)(params, *batch)
        return value, root.tree.leaves(params), [str(root.typeof(x)) for x in root.tree.leaves(params)]


def test_a_training_step_is_that_of_jax() -> None:
    ours = run(meshrt, meshrt.numpy, P, NamedSharding, AxisType)
    theirs = run(jax, jax.numpy, jax.P, jax.NamedSharding, jax.sharding.AxisType)
    assert ours[2] == theirs[2]
    np.testing.assert_allclose(np.asarray(ours[0]), np.asarray(theirs[0]), rtol=1e-5)
    for a, b in zip(ours[1], theirs[1]):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-3, atol=1e-5)
