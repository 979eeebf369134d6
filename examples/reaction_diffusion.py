"""Solves a partial differential equation on a plane split over all devices: spots that grow into a maze.

    python examples/reaction_diffusion.py --steps 2000

Two substances diffuse and react (Gray and Scott 1984; Pearson: "Complex Patterns in a Simple System", 1993). The plane
is a torus, split in both directions; the neighbours in each stencil are all that devices exchange.
Replace `meshrt` by `jax` in the imports and the script runs unchanged.
"""

import argparse
import functools

import numpy as np

import meshrt as jax
import meshrt.numpy as jnp
from meshrt import lax
from meshrt.sharding import AxisType, NamedSharding
from meshrt.sharding import PartitionSpec as P

SIZE, FEED, KILL, DIFFUSION = 128, 0.035, 0.060, (0.16, 0.08)


def laplacian(field):
    """The five-point stencil on a torus of f32[rows, columns]."""
    turned = [jnp.roll(field, shift, axis) for axis in (0, 1) for shift in (-1, 1)]
    return sum(turned) - 4 * field


def advance(state):
    """One explicit step of Euler's method of length one."""
    u, v = state
    reaction = u * v * v
    u = u + DIFFUSION[0] * laplacian(u) - reaction + FEED * (1 - u)
    v = v + DIFFUSION[1] * laplacian(v) + reaction - (FEED + KILL) * v
    return u, v


@functools.partial(jax.jit, static_argnames="steps", donate_argnames="state")
def run(state, steps):
    """The state after so many steps, and the mean of v after each of them."""
    return lax.scan(lambda s, _: ((s := advance(s)), s[1].mean()), state, length=steps)


def start():
    """u is one and v zero but for a few squares, with a little noise so that spots are not all alike."""
    rng = np.random.default_rng(0)
    u, v = np.ones((SIZE, SIZE), np.float32), np.zeros((SIZE, SIZE), np.float32)
    for row, column in rng.integers(0, SIZE - 12, (6, 2)):
        u[row : row + 12, column : column + 12], v[row : row + 12, column : column + 12] = 0.5, 0.25
    u += 0.02 * rng.random((SIZE, SIZE), np.float32)
    return u, v


def show(field, rows=16, columns=48):
    """The means of blocks as characters."""
    across, down = (np.arange(count) * SIZE // count for count in (columns, rows))
    blocks = np.add.reduceat(np.add.reduceat(field, down, axis=0), across, axis=1)
    shades = np.clip(blocks / blocks.max() * 4.99, 0, 4).astype(int)
    print("\n".join("".join(" .:*#"[s] for s in line) for line in shades))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    args = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    mesh = jax.make_mesh((4, 2), ("rows", "columns"), axis_types=(AxisType.Auto,) * 2)
    state = jax.device_put(start(), NamedSharding(mesh, P("rows", "columns")))
    for part in range(1, 5):
        state, means = run(state, args.steps // 4)
        u, v = state
        print(f"step {part * (args.steps // 4):5d}  mean of u {float(u.mean()):.5f}, of v {float(means[-1]):.5f}")
    show(np.asarray(v))
    print("still split as", v.sharding.spec)


if __name__ == "__main__":
    main()
