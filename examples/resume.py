"""Trains a small network, saves as it goes, and resumes where it was when it is killed.

    python examples/resume.py --directory /tmp/run
    meshrt launch --nproc 2 --max-restarts 2 examples/resume.py --directory /tmp/run --die-at 17

The second line kills one process in the middle; the launcher starts all anew, they go on from the last checkpoint, and
the parameters in the end are those of a run that nobody disturbed, to the last bit: what decides them (parameters,
moments, the position in the data) is in the checkpoint. It is written while the next steps run.
"""

import argparse
import hashlib
import os
import signal

import numpy as np

import meshrt
import meshrt.numpy as jnp
from meshrt.checkpoint import CheckpointManager
from meshrt.sharding import AxisType, NamedSharding
from meshrt.sharding import PartitionSpec as P

FEATURES, HIDDEN, BATCH, RATE, MOMENTUM = 16, 64, 32, 0.05, 0.9
SPECS = {"up": P("data", "model"), "down": P("model")}


class Stream:
    """Endless random batches. `get_state` and `set_state` are all that a checkpoint asks of a data iterator."""

    def __init__(self, seed):
        self.draw = np.random.default_rng(seed)

    def __next__(self):
        x = self.draw.standard_normal((BATCH, FEATURES), np.float32)
        return x, np.sin(x.sum(1, keepdims=True))

    def get_state(self):
        return self.draw.bit_generator.state

    def set_state(self, state):
        self.draw.bit_generator.state = state


def init(key):
    """Parameters and their moments."""
    up, down = meshrt.random.split(key)
    params = {
        "up": meshrt.random.normal(up, (FEATURES, HIDDEN)) / FEATURES**0.5,
        "down": meshrt.random.normal(down, (HIDDEN, 1)) / HIDDEN**0.5,
    }
    return {"params": params, "moments": meshrt.tree.map(jnp.zeros_like, params)}


def loss(params, x, y):
    h = jnp.tanh(x @ params["up"])
    return jnp.mean((h @ params["down"] - y) ** 2)


def step(state, x, y):
    value, grads = meshrt.value_and_grad(loss)(state["params"], x, y)
    moments = meshrt.tree.map(lambda m, g: MOMENTUM * m + g, state["moments"], grads)
    params = meshrt.tree.map(lambda p, m: p - RATE * m, state["params"], moments)
    return {"params": params, "moments": moments}, value


def main():
    """Trains from the last checkpoint on, or from the start."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", required=True, help="where checkpoints are, on a file system of all hosts")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--die-at", type=int, help="the step at which the last process is killed, once")
    args = parser.parse_args()

    if "MESHRT_COORDINATOR_ADDRESS" in os.environ:
        meshrt.distributed.initialize()
    else:
        meshrt.config.update("num_cpu_devices", 8)
    mesh = meshrt.make_mesh((meshrt.device_count() // 2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    shardings = {kind: {k: NamedSharding(mesh, s) for k, s in SPECS.items()} for kind in ("params", "moments")}
    rows = NamedSharding(mesh, P("data"))
    place = lambda batch: meshrt.make_array_from_callback(batch.shape, rows, lambda index: batch[index])
    run = meshrt.jit(step, donate_argnums=0, out_shardings=(shardings, None))

    data, done, value = Stream(seed=1), 0, float("nan")
    with CheckpointManager(args.directory, keep_last=2) as manager:
        if manager.latest() is None:
            state = meshrt.jit(init, out_shardings=shardings)(meshrt.random.key(0))
        else:
            like = meshrt.eval_shape(init, meshrt.random.key(0))
            saved = manager.restore(like={"state": like, "done": 0}, shardings={"state": shardings, "done": None},
                                    data_state=data)  # fmt: skip
            state, done = saved["state"], saved["done"]
            say(f"resumed after step {done}")
        while done < args.steps:
            state, value = run(state, *map(place, next(data)))
            done += 1
            if done % args.save_every == 0:
                manager.save(done, {"state": state, "done": done}, data_state=data, metadata={"loss": float(value)})
            if done == args.die_at and os.environ.get("MESHRT_GENERATION", "0") == "0":
                if meshrt.process_index() == meshrt.process_count() - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
    say(f"step {done}  loss {float(value):.6f}  parameters {digest(state['params'])}")


def digest(tree):
    """A short name of the values that this process holds."""
    held = hashlib.sha256()
    for leaf in meshrt.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            held.update(np.asarray(shard.data).tobytes())
    return held.hexdigest()[:12]


def say(text):
    if meshrt.process_index() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
