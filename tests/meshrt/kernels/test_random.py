"""Random kernels: grids, block maps, element types; the loop, the simulator and NumPy agree."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt.experimental import pallas as pl
from meshrt.experimental.pallas import tpu as pltpu

DTYPES = ("float32", "bfloat16", "int32", "int8", "uint8", "bool")


def drawn(seed):
    """(shape, block shape, order of the grid's dimensions, dtypes of two operands)."""
    random = np.random.RandomState(seed)
    rank = random.randint(1, 4)
    shape = tuple(random.randint(1, 9, rank).tolist())
    block = tuple(None if random.rand() < 0.25 else int(random.randint(1, n + 2)) for n in shape)
    order = tuple(random.permutation(rank).tolist())
    return shape, block, order, [np.dtype(jnp.dtype(random.choice(DTYPES))) for _ in range(2)], random


def array(random, shape, dtype):
    return (random.randint(-3, 4, shape) if dtype != np.bool_ else random.rand(*shape) < 0.5).astype(dtype)


def by_numpy(x, y, block, order, reverse):
    """Over the grid, block by block, with a carried count of steps."""
    sizes = [1 if b is None else b for b in block]
    counts = [-(-n // b) for n, b in zip(x.shape, sizes)]
    out = np.zeros(x.shape, np.float32)
    for number, point in enumerate(itertools.product(*[range(counts[d]) for d in order])):
        at = dict(zip(order, point))
        index = [counts[d] - 1 - at[d] if reverse else at[d] for d in range(x.ndim)]
        place = tuple(slice(i * b, (i + 1) * b) for i, b in zip(index, sizes))
        out[place] = np.where(x[place].astype(np.float32) > 0, x[place], -y[place].astype(np.float32)) * 2 + number
    return out


@pytest.mark.parametrize("seed", range(14))
def test_random_kernels(seed):
    shape, block, order, kinds, random = drawn(seed)
    x, y = [array(random, shape, kind) for kind in kinds]
    reverse = bool(random.rand() < 0.5)
    counts = [-(-n // (b or 1)) for n, b in zip(shape, block)]
    grid = tuple(counts[d] for d in order)

    def index_map(*indices):
        at = dict(zip(order, indices))
        return tuple(counts[d] - 1 - at[d] if reverse else at[d] for d in range(len(shape)))

    def kernel(x_ref, y_ref, o_ref, steps):
        first = sum(pl.program_id(d) for d in range(len(grid))) == 0
        steps[0] = jnp.where(first, 0, steps[0] + 1)
        chosen = jnp.where(x_ref[...].astype(np.float32) > 0, x_ref[...], -y_ref[...].astype(np.float32))
        o_ref[...] = chosen * 2 + steps[0]

    spec = pl.BlockSpec(block, index_map)
    options = {
        "grid": grid, "in_specs": [spec, spec], "out_specs": spec,
        "scratch_shapes": [pltpu.SMEM((1,), np.int32)],
    }  # fmt: skip
    out = meshrt.ShapeDtypeStruct(shape, np.float32)
    expected = by_numpy(x, y, block, order, reverse)
    modes = [True, pltpu.InterpretParams(detect_races=True), pltpu.InterpretParams(dma_execution_mode="eager")]
    for mode in modes if seed < 6 else modes[:2]:
        found = meshrt.jit(pl.pallas_call(kernel, out, interpret=mode, **options))(x, y)
        np.testing.assert_array_equal(found, expected)
