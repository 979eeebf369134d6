"""Random bodies with random specs: shard_map against the same program on one device, and against Auto mode."""

from __future__ import annotations

import os

import numpy as np
import pytest

import meshrt
from meshrt.sharding import NamedSharding
from tests.meshrt.shard_map.bodies import Draw
from tests.meshrt.shard_map.libraries import ours

SEEDS = int(os.environ.get("MESHRT_SHARD_MAP_SEEDS", "9"))
MESHES = [{"x": 4, "y": 2}, {"x": 2, "y": 2, "z": 2}, {"x": 8}, {"x": 6}, {"x": 3, "y": 2}]


def loss_of(f):
    def loss(*xs):
        outs = f(*xs)
        return sum(
            (o * meshrt.numpy.cos(meshrt.numpy.arange(o.size, dtype=o.dtype).reshape(o.shape))).sum() for o in outs
        )

    return loss


def close(got, want):
    for g, w in zip(got, want, strict=True):
        w = np.asarray(w)
        np.testing.assert_allclose(g, w, rtol=2e-3, atol=2e-3 * max(1e-2, float(np.abs(w).max())))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_bodies(seed):
    sizes = MESHES[seed % len(MESHES)]
    program = Draw(seed, sizes).program()
    mesh = ours().mesh(tuple(sizes.values()), tuple(sizes))
    specs = {
        "in_specs": tuple(v.partition for v in program.arguments),
        "out_specs": [v.partition for v in program.results],
    }
    mapped = meshrt.shard_map(program.local, mesh=mesh, **specs)
    if seed % 4 == 3:
        mapped = meshrt.checkpoint(mapped)
    arrays = program.arrays
    numbers = (0, 1, 2)

    def both(f):
        run = lambda *xs: (f(*xs), meshrt.grad(loss_of(f), argnums=numbers)(*xs))
        return meshrt.jit(run)

    want, want_grad = both(program.whole)(*arrays)
    placed = [meshrt.device_put(a, NamedSharding(mesh, v.partition)) for a, v in zip(arrays, program.arguments)]
    got, grad = both(mapped)(*placed)
    close(got, want)
    close(grad, want_grad)
    close(both(program.whole)(*placed)[0], want)  # Auto mode
    if seed % 3 == 0:
        with meshrt.config.override(partitioner="xla"):
            got, grad = both(mapped)(*placed)
        close(got, want)
        close(grad, want_grad)
    if seed % 3 == 1:
        batch = [np.stack([a, a * 0.5]) for a in arrays]
        close(meshrt.jit(meshrt.vmap(mapped))(*batch), meshrt.jit(meshrt.vmap(program.whole))(*batch))
    if seed % 3 == 2:
        unchecked = meshrt.shard_map(program.local, mesh=mesh, check_vma=False, **specs)
        got, grad = both(unchecked)(*placed)
        close(got, want)
        close(grad, want_grad)
