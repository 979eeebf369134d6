"""Trains a byte-level transformer language model on the standard library's own source files.

    python examples/train_lm.py --steps 50                       # one process, 8 CPU devices
    meshrt launch --nproc 2 examples/train_lm.py --steps 50      # two processes, 4 devices each
    meshrt inspect examples/train_lm.py:step --mesh data=8,model=4

Parameters are sharded over both mesh axes by the annotations in SPECS, batches over "data"; everything else is decided
for us. Replace `meshrt` by `jax` in the imports and the script runs unchanged.
"""

import argparse
import functools
import os
import time
from pathlib import Path

import numpy as np

import meshrt as jax
import meshrt.numpy as jnp
from meshrt.sharding import AxisType, NamedSharding
from meshrt.sharding import PartitionSpec as P

LAYERS, WIDTH, HEADS, HIDDEN, CONTEXT, BATCH, VOCAB = 4, 128, 4, 512, 128, 16, 256
PEAK_RATE, WARMUP, BETA1, BETA2, DECAY, CLIP = 1e-3, 20, 0.9, 0.95, 0.1, 1.0
SPECS = {  # "data" is also the axis of fully sharded data parallelism, "model" that of tensor parallelism
    "embed": P("model", "data"), "position": P(None, "data"), "norms": P(),
    "qkv": P(None, "data", None, "model", None), "out": P(None, "model", None, "data"),
    "up": P(None, "data", "model"), "down": P(None, "model", "data"),
}  # fmt: skip


def init(key):
    """Parameters, the two moments of AdamW, and the number of steps taken."""
    shapes = {
        "embed": (VOCAB, WIDTH), "position": (CONTEXT, WIDTH), "qkv": (LAYERS, WIDTH, 3, HEADS, WIDTH // HEADS),
        "out": (LAYERS, HEADS, WIDTH // HEADS, WIDTH), "up": (LAYERS, WIDTH, HIDDEN), "down": (LAYERS, HIDDEN, WIDTH),
    }  # fmt: skip
    keys = dict(zip(shapes, jax.random.split(key, len(shapes))))
    params = {name: 0.02 * jax.random.normal(keys[name], shape) for name, shape in shapes.items()}
    params["norms"] = jnp.ones((LAYERS, 2, WIDTH))
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {"params": params, "mean": zeros, "square": zeros, "count": jnp.zeros((), jnp.int32)}


def rms_norm(x, scale):
    x32 = x.astype(jnp.float32)
    return (x32 * jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def block(x, layer):
    """x: [batch, time, width] -> the same after attention and MLP; the scan carries it through the layers."""
    h = rms_norm(x, layer["norms"][0])
    q, k, v = jnp.moveaxis(jnp.einsum("btd,dchk->btchk", h, layer["qkv"].astype(x.dtype)), 2, 0)
    scores = jnp.einsum("bqhk,bthk->bhqt", q, k).astype(jnp.float32) / q.shape[-1] ** 0.5
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e30), axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bhqt,bthk->bqhk", weights, v)
    x = x + jnp.einsum("bqhk,hkd->bqd", mixed, layer["out"].astype(x.dtype))
    h = jax.nn.gelu(rms_norm(x, layer["norms"][1]) @ layer["up"].astype(x.dtype))
    return x + h @ layer["down"].astype(x.dtype), None


def loss_fn(params, tokens, dtype):
    """Mean cross-entropy, in nats per byte, of each token of [batch, time + 1] given those before it."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    embed = params["embed"].astype(dtype)
    x = embed[inputs] + params["position"].astype(dtype)
    x = jax.lax.with_sharding_constraint(x, P("data", None, None))
    x, _ = jax.lax.scan(block, x, {name: params[name] for name in ("norms", "qkv", "out", "up", "down")})
    logits = jnp.einsum("btd,vd->btv", x, embed).astype(jnp.float32)
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits, axis=-1), targets[..., None], axis=-1)
    return -jnp.mean(picked)


@functools.partial(jax.jit, donate_argnums=0, static_argnames="dtype")
def step(state, tokens, dtype="float32"):
    """One step of AdamW with warm-up and gradient clipping. Returns the new state and the loss before it."""
    loss, grads = jax.value_and_grad(loss_fn)(state["params"], tokens, dtype)
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
    grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, CLIP / (norm + 1e-6)), grads)
    count = state["count"] + 1
    mean = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, state["mean"], grads)
    square = jax.tree.map(lambda s, g: BETA2 * s + (1 - BETA2) * g * g, state["square"], grads)
    rate = PEAK_RATE * jnp.minimum(1.0, count / WARMUP)

    def update(p, m, s):
        m, s = m / (1 - BETA1**count), s / (1 - BETA2**count)
        return p - rate * (m / (jnp.sqrt(s) + 1e-8) + DECAY * p)

    params = jax.tree.map(update, state["params"], mean, square)
    constrain = lambda tree: jax.tree.map(jax.lax.with_sharding_constraint, tree, SPECS)
    return {"params": constrain(params), "mean": constrain(mean), "square": constrain(square), "count": count}, loss


def shardings(mesh):
    """Shardings of what `init` returns."""
    specs = {name: NamedSharding(mesh, spec) for name, spec in SPECS.items()}
    return {"params": specs, "mean": specs, "square": specs, "count": NamedSharding(mesh, P())}


def example_arguments(mesh):
    """Arguments of `step` as shapes and shardings: `meshrt inspect` asks for them, with a mesh that has no devices."""
    like = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
    state = jax.tree.map(like, jax.eval_shape(lambda: init(jax.random.key(0))), shardings(mesh))
    tokens = jax.ShapeDtypeStruct((BATCH, CONTEXT + 1), jnp.int32, sharding=NamedSharding(mesh, P("data")))
    return state, tokens


def batches(mesh, seed=0):
    """Random windows of the text as [BATCH, CONTEXT + 1]; every process reads only the rows of its own devices."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    text = np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8)
    sharding, rows = NamedSharding(mesh, P("data")), BATCH // jax.process_count()
    mine = slice(rows * jax.process_index(), rows * (jax.process_index() + 1))
    rng = np.random.default_rng(seed)
    while True:
        starts = rng.integers(0, len(text) - CONTEXT - 1, BATCH)[mine]
        local = text[starts[:, None] + np.arange(CONTEXT + 1)].astype(np.int32)
        yield jax.make_array_from_process_local_data(sharding, local, (BATCH, CONTEXT + 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--devices", type=int, choices=(1, 2, 4, 8, 16, 32), default=8, help="CPU devices")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="type of activations")
    args = parser.parse_args()
    if "MESHRT_COORDINATOR_ADDRESS" in os.environ or "JAX_COORDINATOR_ADDRESS" in os.environ:
        jax.distributed.initialize()
    else:
        jax.config.update("jax_num_cpu_devices", args.devices)
    model = 2 if jax.device_count() % 2 == 0 else 1
    data = jax.device_count() // model
    if BATCH % data or WIDTH % data:
        parser.error(f"a mesh of data={data}, model={model}: BATCH = {BATCH} and WIDTH = {WIDTH} must divide by {data}")
    mesh = jax.make_mesh((data, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        state = jax.jit(init, out_shardings=shardings(mesh))(jax.random.key(0))
        start = time.perf_counter()
        for number, tokens in zip(range(1, args.steps + 1), batches(mesh)):
            state, loss = step(state, tokens, dtype=args.dtype)
            if jax.process_index() == 0 and (number % 10 == 0 or number in (1, args.steps)):
                rate = number * BATCH * CONTEXT / (time.perf_counter() - start)
                print(f"step {number:4d}  loss {float(loss):.5f}  {rate:8.0f} tokens/s", flush=True)


if __name__ == "__main__":
    main()
