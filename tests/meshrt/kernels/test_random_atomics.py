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
    at = rng.integers(COLUMNS, size=(STEPS, WIDTH)).astype(np.int32)

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


BOTH = pytest.mark.parametrize("interpret", [True, pltpu.InterpretParams()], ids=["loop", "simulator"])


def changed_by(kernel, interpret, held, *inputs):
    """`held` after a kernel that takes the inputs and a reference to it."""
    there = pl.BlockSpec(memory_space=pl.ANY)
    f = pl.pallas_call(
        lambda *refs: kernel(*refs[:-2], refs[-1]), meshrt.ShapeDtypeStruct(held.shape, held.dtype),
        in_specs=[*[pl.BlockSpec()] * len(inputs), there], out_specs=there,
        input_output_aliases={len(inputs): 0}, interpret=interpret,
    )  # fmt: skip
    return f(*inputs, held)


@BOTH
@pytest.mark.parametrize("kind", COMBINED)
def test_all_updates_of_an_element_that_indices_name_several_times_take_part(kind, interpret):
    def kernel(x_ref, at_ref, mask_ref, held_ref):
        getattr(triton, f"atomic_{kind}")(held_ref, (at_ref[...],), x_ref[...], mask=mask_ref[...])

    x, at = np.int32([5, 1, 7, 2, 9]), np.int32([1, 1, 2, 2, 1])
    mask, held = np.array([True, True, True, True, False]), np.int32([0, 3, 3])
    wanted = held.copy()
    for value, i in zip(x[mask], at[mask]):
        wanted[i] = COMBINED[kind](wanted[i], value)
    np.testing.assert_array_equal(changed_by(kernel, interpret, held, x, at, mask), wanted)


@BOTH
def test_a_counter_gives_each_who_asks_a_number_of_its_own(interpret):
    def kernel(count_ref):
        count_ref[1, :] = triton.atomic_add(count_ref, (0, jnp.zeros(4, "int32")), 1)

    found = changed_by(kernel, interpret, np.zeros((2, 4), np.int32))
    np.testing.assert_array_equal(found, [[4, 0, 0, 0], [0, 1, 2, 3]])


@BOTH
def test_a_store_under_a_mask_keeps_what_a_masked_index_names_too(interpret):
    def kernel(x_ref, held_ref):
        i = jnp.arange(8)
        triton.store(held_ref.at[jnp.minimum(i, 4)], x_ref[...], mask=i < 5)

    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(changed_by(kernel, interpret, np.zeros(5, np.float32), x), x[:5])


@BOTH
@pytest.mark.parametrize(
    ("narrow", "wanted"),
    [
        (lambda r: r.at[1:3], [0, 1, 1, 0, 0]),
        (lambda r: r.at[pl.ds(2, 4)], [0, 1, 1, 0, 0]),  # two of them beyond the end, and masked
        (lambda r: r.reshape(2, 2).at[:, 0], [0, 1, 1, 0, 0]),
    ],
)
def test_views_of_what_indices_name_several_times(narrow, wanted, interpret):
    def kernel(at_ref, held_ref):
        view = narrow(held_ref.at[at_ref[...]])
        triton.atomic_add(view, (slice(None),), 1, mask=jnp.arange(view.shape[0]) < 2)

    found = changed_by(kernel, interpret, np.zeros(5, np.int32), np.int32([1, 1, 2, 1]))
    np.testing.assert_array_equal(found, wanted)


def test_derivatives_of_updates_by_indices_given_twice():
    def f(x, at):
        def kernel(x_ref, at_ref, held_ref):
            triton.atomic_add(held_ref, (at_ref[...],), x_ref[...] * x_ref[...])

        return (changed_by(kernel, True, jnp.zeros(3), x, at) * jnp.arange(3.0)).sum()

    x, at = np.float32([5, 1, 7, 2]), np.int32([1, 1, 2, 9])
    np.testing.assert_array_equal(meshrt.grad(f)(x, at), [10, 2, 28, 0])
    mapped = meshrt.vmap(f, in_axes=(0, None))(np.stack([x, 2 * x]), at)
    np.testing.assert_array_equal(mapped, [124, 496])


@pytest.mark.parametrize(("dtype", "value"), [(np.uint32, 1 << 31), (np.float32, 1 << 40), (np.float16, 3)])
def test_numbers_of_pythons_become_elements(dtype, value):
    def kernel(_, held_ref):
        triton.atomic_add(held_ref, (1,), value)

    held = np.zeros(3, dtype)
    out = meshrt.ShapeDtypeStruct(held.shape, held.dtype)
    found = pl.pallas_call(kernel, out, input_output_aliases={0: 0}, interpret=True)(held)
    np.testing.assert_array_equal(found, np.array([0, value, 0], dtype))


# Indices into an array of 5 times 7 from an array of six: a program's, and NumPy's for each of the six.
NAMED = {
    "rows": (lambda at: (at,), lambda i: np.s_[i]),
    "columns": (lambda at: (slice(None), at), lambda i: np.s_[:, i]),
    "with a slice": (lambda at: (at, pl.ds(2, 3)), lambda i: np.s_[i, 2:5]),
    "with steps": (lambda at: (at, pl.ds(0, 3, 2)), lambda i: np.s_[i, 0:5:2]),
    "elements": (lambda at: (at, 6 - at), lambda i: np.s_[i, 6 - i]),
}
SHAPES = {"rows": (6, 7), "columns": (5, 6), "with a slice": (6, 3), "with steps": (6, 3), "elements": (6,)}


def one_by_one(kind, named, held, x, at, mask):
    """`held` after each index's own update by NumPy."""
    held, along = held.copy(), 1 if named == "columns" else 0
    for k, i in enumerate(at):
        here = NAMED[named][1](i)
        if -held.shape[along] <= i < held.shape[along]:
            update, taken = np.take(x, k, along), np.take(np.broadcast_to(mask, x.shape), k, along)
            held[here] = np.where(taken, COMBINED[kind](held[here], update), held[here])
    return held


@pytest.mark.parametrize("named", NAMED)
@pytest.mark.parametrize("kind", [k for k in COMBINED if k != "xchg"])
def test_updates_whose_findings_nobody_asks_for_are_one_scatter(kind, named):
    """Where the order does not matter: no loop over indices, and the same as one update after another."""
    rng = np.random.default_rng([len(kind), len(named)])
    at = rng.integers(0 if named == "elements" else -3, 5, 6).astype(np.int32)
    at[5] = 4 if named == "elements" else 9  # nothing
    for dtype in [np.int32, np.uint32] + [np.float32] * (kind in ("add", "max", "min")):
        held = rng.integers(0, 99, (5, 7)).astype(dtype)
        shape = SHAPES[named]
        x = rng.integers(0, 99, shape).astype(dtype)
        for mask in (None, rng.random(shape) < 0.6):
            masks = () if mask is None else (mask,)

            def kernel(x_ref, at_ref, *refs):
                given = {"mask": refs[0][...]} if masks else {}
                getattr(triton, f"atomic_{kind}")(refs[-1], NAMED[named][0](at_ref[...]), x_ref[...], **given)

            run = meshrt.jit(lambda *args: changed_by(kernel, True, args[0], *args[1:]))
            text = run.lower(held, x, at, *masks).as_text()
            assert "stablehlo.while" not in text and text.count('"stablehlo.scatter"') == 1
            found = run(held, x, at, *masks)
            np.testing.assert_array_equal(found, one_by_one(kind, named, held, x, at, True if mask is None else mask))


@pytest.mark.parametrize("kind", ["add", "max"])
def test_derivatives_of_masked_updates_are_those_of_the_loop_over_indices(kind):
    """One scatter has the derivative of one update after another, which is taken where what was found is used."""
    x, at, mask = np.float32([5, 1, 7, 2]), np.int32([1, 1, 2, 9]), np.array([True, False, True, True])
    held = np.float32([0, 3, -np.inf])

    def f(used, held, x):
        def kernel(x_ref, at_ref, mask_ref, held_ref, found_ref):
            found = getattr(triton, f"atomic_{kind}")(held_ref, (at_ref[...],), x_ref[...], mask=mask_ref[...])
            found_ref[...] = found if used else jnp.zeros(4)

        there, whole = pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec()
        out = [meshrt.ShapeDtypeStruct((n,), np.float32) for n in (3, 4)]
        call = pl.pallas_call(
            lambda x, at, mask, _, held, found: kernel(x, at, mask, held, found), out,
            in_specs=[whole, whole, whole, there], out_specs=[there, whole], input_output_aliases={3: 0},
            interpret=True,
        )  # fmt: skip
        return (call(x, at, mask, held)[0] * jnp.arange(1.0, 4.0)).sum()

    wanted = {"add": ([1, 2, 3], [2, 0, 3, 0]), "max": ([1, 0, 0], [2, 0, 3, 0])}[kind]
    for used in (False, True):
        for got, want in zip(meshrt.grad(lambda *a: f(used, *a), (0, 1))(held, x), wanted):
            np.testing.assert_array_equal(got, want)


@BOTH
def test_views_as_other_elements_of_what_indices_name_several_times(interpret):
    def kernel(at_ref, held_ref):
        view = held_ref.at[at_ref[...]].bitcast(np.int32)
        triton.atomic_add(view, (slice(None),), 1, mask=jnp.arange(4) < 3)
        meshrt.ref.addupdate(view, ..., jnp.full(4, 10))

    held = np.arange(5, dtype=np.float32)
    wanted = held.copy()
    wanted.view(np.int32)[[1, 2]] += [32, 11]
    found = np.asarray(changed_by(kernel, interpret, held, np.int32([1, 1, 2, 1])))
    np.testing.assert_array_equal(found.view(np.int32), wanted.view(np.int32))
