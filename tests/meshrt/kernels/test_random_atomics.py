"""Atomic updates drawn at random: the loop of CPUs and the simulator give what NumPy gives, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshrt
from tests.meshrt.kernels.programs import OURS

pl, pltpu, triton, jnp = OURS.pl, OURS.pltpu, OURS.triton, OURS.np

COMBINED: dict[str, Any] = {
    "add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "xchg": lambda x, y: y,
}  # fmt: skip
STEPS, ROWS, COLUMNS, WIDTH = 4, 3, 7, 4

# What step `i` updates of an array of ROWS times COLUMNS: an index for kernels, and its row and columns.
PLACES = {
    "slice": lambda lib, i, at: ((i % ROWS, lib.ds(i % ROWS, WIDTH)), i % ROWS, i % ROWS + jnp.arange(WIDTH)),
    "beyond": lambda lib, i, at: ((1, lib.ds(2 * i, WIDTH)), 1, 2 * i + jnp.arange(WIDTH)),
    "indices": lambda lib, i, at: ((i % ROWS, at[i]), i % ROWS, at[i]),
}


def expected(kind, place, x, at, held):
    held, found = held.copy(), np.zeros_like(x)
    for i in range(STEPS):
        _, row, columns = PLACES[place](meshrt, i, at)
        for j, column in enumerate(np.asarray(columns)):
            if (i + j) % 2 == 0 and column < COLUMNS:
                found[i, j] = held[row, column]
                held[row, column] = COMBINED[kind](held[row, column], x[i, j])
    return held, found


@pytest.mark.parametrize("interpret", [True, pltpu.InterpretParams()], ids=["loop", "simulator"])
@pytest.mark.parametrize("seed", range(8))
def test_atomic_updates_are_those_of_numpy(seed, interpret):
    rng = np.random.default_rng(seed)
    kind, place = list(COMBINED)[seed % len(COMBINED)], str(rng.choice(list(PLACES)))
    dtype = [np.int32, np.uint32, np.float32][0 if kind in ("and", "or", "xor") else rng.integers(3)]
    x, held = (rng.integers(0, 50, shape).astype(dtype) for shape in ((STEPS, WIDTH), (ROWS, COLUMNS)))
    at = np.stack([rng.permutation(COLUMNS)[:WIDTH] for _ in range(STEPS)]).astype(np.int32)

    def kernel(x_ref, at_ref, _, held_ref, found_ref):
        i = pl.program_id(0)
        index, _, columns = PLACES[place](pl, i, at_ref)
        mask = ((i + jnp.arange(WIDTH)) % 2 == 0) & (columns < COLUMNS)
        found = getattr(triton, f"atomic_{kind}")(held_ref, index, x_ref[i], mask=mask)
        found_ref[i, :] = jnp.where(mask, found, 0).astype(dtype)

    there, whole = pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec()
    out = [meshrt.ShapeDtypeStruct(a.shape, a.dtype) for a in (held, x)]
    f = pl.pallas_call(
        kernel, out, grid=(STEPS,), in_specs=[whole, whole, there], out_specs=[there, whole],
        input_output_aliases={2: 0}, interpret=interpret,
    )  # fmt: skip
    for ours, wanted in zip(f(x, at, held), expected(kind, place, x, at, held)):
        np.testing.assert_array_equal(ours, wanted)


@pytest.mark.parametrize("kind", ["add", "max", "min"])
def test_all_updates_of_an_element_that_indices_name_several_times_take_part(kind):
    def kernel(x_ref, at_ref, mask_ref, _, held_ref):
        getattr(triton, f"atomic_{kind}")(held_ref, (at_ref[...],), x_ref[...], mask=mask_ref[...])

    x, at = np.float32([5, 1, -7, 2, 9]), np.int32([1, 1, 2, 2, 1])
    mask, held = np.array([True, True, True, True, False]), np.float32([0, 0.5, 0.5])
    wanted = held.copy()
    getattr(np, {"add": "add", "max": "maximum", "min": "minimum"}[kind]).at(wanted, at[mask], x[mask])
    out = meshrt.ShapeDtypeStruct(held.shape, held.dtype)
    f = pl.pallas_call(kernel, out, input_output_aliases={3: 0}, interpret=True)
    np.testing.assert_array_equal(f(x, at, mask, held), wanted)


@pytest.mark.parametrize(("dtype", "value"), [(np.uint32, 1 << 31), (np.float32, 1 << 40), (np.float16, 3)])
def test_numbers_of_pythons_become_elements(dtype, value):
    def kernel(_, held_ref):
        triton.atomic_add(held_ref, (1,), value)

    held = np.zeros(3, dtype)
    out = meshrt.ShapeDtypeStruct(held.shape, held.dtype)
    found = pl.pallas_call(kernel, out, input_output_aliases={0: 0}, interpret=True)(held)
    np.testing.assert_array_equal(found, np.array([0, value, 0], dtype))
