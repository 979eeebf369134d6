"""The training script that pages of docs/ speak of: a network of two matrices on random data."""

import argparse
import os

import meshrt
import meshrt.numpy as jnp
from meshrt.sharding import AxisType, NamedSharding
from meshrt.sharding import PartitionSpec as P


def loss(params, tokens):
    for layer in params.values():
        tokens = jnp.tanh(tokens @ layer["w1"]) @ layer["w2"]
    return jnp.mean(tokens**2)


@meshrt.jit
def step(state, tokens):
    value, grads = meshrt.value_and_grad(loss)(state["params"], tokens)
    return {"params": meshrt.tree.map(lambda p, g: p - 0.1 * g, state["params"], grads)}, value


def example_arguments(mesh):
    put = lambda shape, *spec: meshrt.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))
    layers = {"0": {"w1": put((64, 256)), "w2": put((256, 64))}}
    return {"params": layers}, put((512, 64), "data")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    arguments, _ = parser.parse_known_args()
    if "MESHRT_COORDINATOR_ADDRESS" in os.environ:
        meshrt.distributed.initialize()
    mesh = meshrt.make_mesh((meshrt.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    full = lambda s: jnp.full(s.shape, 0.1, s.dtype, device=s.sharding)
    state, tokens = meshrt.tree.map(full, example_arguments(mesh))
    for _ in range(min(arguments.steps, 3)):
        state, value = step(state, tokens)
    print(f"{mesh.size} devices, loss {float(value):.4f}")


if __name__ == "__main__":
    main()
