"""A stencil on a grid that is split over a 4x2 mesh: each device sends its edges to its four neighbours in every step.

    python examples/by_hand/halo.py

The grid is periodic. Per step a device sends two rows and two columns, whatever the size of its block.
"""

import numpy as np
from compare import report

import meshrt as jax
import meshrt.numpy as jnp
from meshrt import P, lax

ROWS, COLUMNS, STEPS = 256, 128, 10


def plain(grid):
    """f32[rows, columns] after STEPS steps of heat conduction."""

    def step(u, _):
        around = jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1)
        return u + 0.1 * (around - 4 * u), None

    return lax.scan(step, grid, None, length=STEPS)[0]


def halo(block):
    """The same of one device's block."""

    def padded(u, axis, dim):
        """`u` with the nearest row (column) of both neighbours along a mesh axis."""
        n = lax.axis_size(axis)
        first, last = lax.slice_in_dim(u, 0, 1, axis=dim), lax.slice_in_dim(u, u.shape[dim] - 1, u.shape[dim], axis=dim)
        before = lax.ppermute(last, axis, [(i, (i + 1) % n) for i in range(n)])
        after = lax.ppermute(first, axis, [(i, (i - 1) % n) for i in range(n)])
        return jnp.concatenate([before, u, after], dim)

    def step(u, _):
        rows, columns = padded(u, "rows", 0), padded(u, "columns", 1)
        around = rows[:-2] + rows[2:] + columns[:, :-2] + columns[:, 2:]
        return u + 0.1 * (around - 4 * u), None

    return lax.scan(step, block, None, length=STEPS)[0]


def programs(mesh):
    """(by hand, Auto mode): functions of the grid."""
    split = P("rows", "columns")
    by_hand = jax.shard_map(halo, mesh=mesh, in_specs=split, out_specs=split)
    return by_hand, lambda grid: lax.with_sharding_constraint(plain(grid), jax.NamedSharding(mesh, split))


def arguments(mesh):
    grid = np.random.default_rng(0).normal(size=(ROWS, COLUMNS)).astype(np.float32)
    return (jax.device_put(grid, jax.NamedSharding(mesh, P("rows", "columns"))),)


def main():
    mesh = jax.make_mesh((4, 2), ("rows", "columns"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    by_hand, automatic = programs(mesh)
    args = arguments(mesh)
    np.testing.assert_allclose(by_hand(*args), plain(*map(np.asarray, args)), rtol=1e-4, atol=1e-5)
    report(f"{STEPS} steps of a stencil", by_hand=(by_hand, args), automatic=(automatic, args))


if __name__ == "__main__":
    main()
