"""Kernels give what JAX's interpreter gives, under jit, vmap, jvp and grad; errors are of the same classes."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import meshrt
from meshrt import errors
from meshrt.experimental import checkify
from tests.meshrt.kernels.programs import (
    JAX,
    OURS,
    PROGRAMS,
    SMOOTH,
    add_one,
    call,
    masked,
    matmul,
    normal,
    prefetched_rows,
    words,
)


def leaves(tree):
    return [np.asarray(x) for x in jax.tree.leaves(meshrt.tree.map(np.asarray, tree))]


def same(ours, theirs):
    ours, theirs = leaves(ours), leaves(theirs)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


def both(program):
    (f, args), (g, _) = program(OURS), program(JAX)
    return f, g, args


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_values_are_those_of_jax(program):
    f, g, args = both(program)
    expected = g(*args)
    same(f(*args), expected)
    same(meshrt.jit(f)(*args), expected)


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.__name__ != "dynamic_grid"], ids=lambda p: p.__name__)
def test_vmap_is_that_of_jax(program):
    f, g, args = both(program)
    stacked = jax.tree.map(lambda x: np.stack([x, x + 1 if x.dtype != np.int32 else x]), args)
    same(meshrt.vmap(f)(*stacked), jax.vmap(g)(*stacked))


@pytest.mark.parametrize("program", SMOOTH, ids=lambda p: p.__name__)
def test_derivatives(program):
    f, _, args = both(program)
    directions = [normal(*x.shape, seed=7) for x in args]
    _, moved = meshrt.jvp(f, tuple(args), tuple(directions))
    ahead, behind = [f(*[x + h * d for x, d in zip(args, directions)]) for h in (0.1, -0.1)]
    np.testing.assert_allclose(moved, (ahead - behind) / 0.2, rtol=1e-3, atol=1e-4)
    weights = normal(*f(*args).shape, seed=8)
    slope = sum((d * c).sum() for d, c in zip(directions, meshrt.vjp(f, *args)[1](weights)))
    np.testing.assert_allclose(slope, (weights * moved).sum(), rtol=1e-4)


def test_accumulators_in_scratch_and_their_gradient():
    f, (x, y) = matmul(OURS)
    np.testing.assert_allclose(f(x, y), x @ y, rtol=1e-5, atol=1e-6)
    dx, dy = meshrt.grad(lambda x, y: f(x, y).sum(), (0, 1))(x, y)
    np.testing.assert_allclose(dx, np.ones((8, 12)) @ y.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dy, x.T @ np.ones((8, 12)), rtol=1e-4, atol=1e-5)


def test_vmap_over_scalars_that_index_maps_read():
    f, g, (rows, x) = both(prefetched_rows)
    several = np.stack([rows, rows[::-1]])
    same(meshrt.vmap(f, (0, None))(several, x), jax.vmap(g, (0, None))(several, x))


def test_kernels_are_part_of_a_jitted_program():
    f, (x,) = add_one(OURS)
    text = meshrt.jit(lambda x: f(x) * 2).lower(x).as_text()
    assert "while" in text and "custom_call" not in text


def test_references_that_a_kernel_captured():
    ref = meshrt.new_ref(np.zeros(4, np.float32))

    def kernel(x_ref, o_ref):
        ref[...] += x_ref[...]
        o_ref[...] = ref[...]

    x = np.arange(4, dtype=np.float32)
    out = meshrt.jit(call(OURS, kernel, (4,), grid=(3,)))(x)
    np.testing.assert_array_equal(out, 3 * x)
    np.testing.assert_array_equal(ref[...], 3 * x)


@pytest.mark.parametrize(
    ("returned", "error", "said"),
    [
        (lambda x, o, n: (o, x, n), ValueError, r"scan: the body returns .* at carry\[0\], where"),
        (lambda x, o, n: (x, o, o), ValueError, r"at carry\[2\], where it was given an array"),
        (lambda x, o, n: (x, o), TypeError, "carry input and carry output must have the same pytree structure"),
    ],
)  # fmt: skip
def test_loops_of_kernels_return_the_references_that_they_carry(returned, error, said):
    def kernel(x_ref, o_ref):
        meshrt.lax.scan(lambda carry, _: (returned(*carry), None), (x_ref, o_ref, 0), None, 2)

    with pytest.raises(error, match=said):
        meshrt.eval_shape(call(OURS, kernel, (4,)), np.zeros(4, np.float32))


def _copy(x_ref, o_ref):
    o_ref[...] = x_ref[...]


def test_masked_stores_leave_the_rest():
    f, (x, y) = masked(OURS)
    same(f(x, y), 2 * x)


@pytest.mark.parametrize("interpret", [True, OURS.pltpu.InterpretParams(out_of_bounds_reads="raise")], ids=str)
def test_masks_leave_out_what_views_of_views_show_beyond_the_end(interpret):
    pl, triton = OURS.pl, OURS.triton

    def kernel(x_ref, o_ref):
        start = 8 * pl.program_id(0)
        mask = start + meshrt.numpy.arange(8) < 13
        shown = triton.load(x_ref.at[1].at[pl.ds(start, 8)], mask=mask, other=0.0)
        triton.store(o_ref.at[pl.ds(0, 1)].at[0, pl.ds(start, 8)], 2 * shown, mask=mask)

    x = normal(2, 13)
    out = meshrt.ShapeDtypeStruct((1, 13), np.float32)
    same(pl.pallas_call(kernel, out, grid=2, interpret=interpret)(x), 2 * x[1:])


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda x: x[OURS.pl.ds(0, 8)], "Out of bound slice: start=0, size=8, stride=1, dim=5"),
        (lambda x: x.at[OURS.pl.ds(1, 8)][...], "Out of bound slice: start=1, size=8"),
        (lambda x: x.at[OURS.pl.ds(0, 8)].at[0][...], "Out of bound slice"),
        (lambda x: OURS.triton.load(x.at[OURS.pl.ds(0, 8)]), "Out of bound slice"),
        (lambda x: OURS.triton.store(x.at[OURS.pl.ds(0, 8)], np.zeros(8, np.float32)), "Out of bound slice"),
        (lambda x: OURS.triton.load(x, eviction_policy="evict"), "unsupported eviction_policy: 'evict'"),
        (lambda x: OURS.triton.load(x, cache_modifier=".wb"), "unsupported cache_modifier: '.wb'"),
        (lambda x: OURS.triton.atomic_add(x, (0,), np.int32(1)), "Ref dtype: float32. Value dtype: int32"),
        (lambda x: OURS.triton.atomic_add(x, (OURS.pl.ds(0, 8),), np.ones(8, np.float32)), "Out of bound slice"),
    ],
)  # fmt: skip
def test_what_loads_stores_and_atomic_updates_refuse(read, said):
    def kernel(x_ref, o_ref):
        read(x_ref)

    with pytest.raises(errors.ArgumentValueError, match=said):
        meshrt.eval_shape(call(OURS, kernel, (5,)), np.zeros(5, np.float32))


def test_rotations_and_packing():
    f, (x,) = words(OURS)
    rolled, halves, second, twice = f(x)
    same(rolled, np.stack([np.roll(row, 3 + i) for i, row in enumerate(x)]))
    same(halves, np.swapaxes(x.view(np.int16).reshape(4, 8, 2), 1, 2).reshape(8, 8))
    same(second, x + 1)
    same(twice, np.tile(x, (2, 1)))


def test_copies_to_the_next_chip():
    mesh, spec = meshrt.make_mesh((4,), ("x",)), meshrt.P("x")

    def kernel(x_ref, o_ref, sent, arrived):
        me = meshrt.lax.axis_index("x")
        copy = OURS.pltpu.async_remote_copy(x_ref, o_ref, sent, arrived, {"x": (me + 1) % 4})
        copy.wait()

    anywhere = OURS.pl.BlockSpec(memory_space=OURS.pl.ANY)
    f = call(
        OURS, kernel, (2,), in_specs=[anywhere], out_specs=anywhere, scratch_shapes=[OURS.pltpu.SemaphoreType.DMA] * 2
    )
    x = np.arange(8, dtype=np.float32)
    placed = meshrt.device_put(x, meshrt.NamedSharding(mesh, spec))
    out = meshrt.jit(meshrt.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec))(placed)
    np.testing.assert_array_equal(out, np.roll(x, 2))


def test_some_chips_alone_cannot_communicate_in_a_loop():
    mesh, spec = meshrt.make_mesh((2,), ("x",)), meshrt.P("x")

    def kernel(x_ref, o_ref, sem):
        @OURS.pl.when(meshrt.lax.axis_index("x") == 0)
        def _():
            OURS.pl.semaphore_signal(sem, 1, device_id=(1,))

        o_ref[...] = x_ref[...]

    f = call(OURS, kernel, (2,), scratch_shapes=[OURS.pltpu.SemaphoreType.REGULAR])
    x = meshrt.device_put(np.arange(4, dtype=np.float32), meshrt.NamedSharding(mesh, spec))
    with pytest.raises(meshrt.errors.UnsupportedError, match="on some chips only"):
        meshrt.jit(meshrt.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec))(x)


REFUSED = {
    "rank": lambda lib: call(lib, _copy, (4,), grid=2, in_specs=[lib.pl.BlockSpec((2, 2), lambda i: (i, 0))]),
    "index map gives two": lambda lib: call(
        lib, _copy, (4,), grid=2, in_specs=[lib.pl.BlockSpec((2,), lambda i: (i, 0))]
    ),
    "index map gives floats": lambda lib: call(
        lib, _copy, (4,), grid=2, in_specs=[lib.pl.BlockSpec((2,), lambda i: i * 1.0)]
    ),
    "specs for two": lambda lib: call(lib, _copy, (4,), in_specs=[lib.pl.BlockSpec(), lib.pl.BlockSpec()]),
    "out_specs for two": lambda lib: call(lib, _copy, (4,), out_specs=[lib.pl.BlockSpec(), lib.pl.BlockSpec()]),
    "returns something": lambda lib: call(lib, lambda x_ref, o_ref: x_ref[...], (4,)),
    "captures an array": lambda lib: call(lib, _capturing(lib.np.arange(4.0)), (4,)),
    "alias of no input": lambda lib: call(lib, _copy, (4,), input_output_aliases={1: 0}),
    "alias of no output": lambda lib: call(lib, _copy, (4,), input_output_aliases={0: 1}),
    "alias of another type": lambda lib: call(lib, _copy, (5,), input_output_aliases={0: 0}),
    "grid twice": lambda lib: call(lib, _copy, (4,), grid=(1,), grid_spec=lib.pl.GridSpec(grid=(1,))),
    "grid of strings": lambda lib: call(lib, _copy, (4,), grid=("a",)),
    "a wait on an array": lambda lib: call(lib, lambda x_ref, o_ref: lib.pl.semaphore_wait(x_ref), (4,)),
    "a copy that counts on numbers": lambda lib: call(lib, lambda x, o: lib.pltpu.async_copy(x, o, x), (4,)),
    "wrong shape": lambda lib: call(lib, lambda x_ref, o_ref: o_ref.__setitem__(..., x_ref[:2]), (4,)),
}


def _capturing(array):
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] + array

    return kernel


@pytest.mark.parametrize("name", REFUSED)
def test_what_jax_refuses(name):
    raised = []
    for lib in (JAX, OURS):
        with pytest.raises(Exception) as caught:
            REFUSED[name](lib)(np.arange(4, dtype=np.float32))
        raised.append(caught.value)
    theirs, ours = raised
    assert isinstance(ours, meshrt.errors.MeshrtError)
    assert isinstance(ours, ValueError if isinstance(theirs, ValueError) else TypeError)


def test_a_kernel_is_traced_once_for_equal_types():
    count = 0

    def kernel(x_ref, o_ref):
        nonlocal count
        count += 1
        o_ref[...] = x_ref[...] + 1

    f = call(OURS, kernel, (4,))
    np.testing.assert_array_equal(meshrt.jit(lambda x: f(f(x)))(np.zeros(4, np.float32)), np.full(4, 2))
    assert count == 1


def test_checkify_looks_into_kernels():
    def kernel(x_ref, o_ref):
        checkify.check(x_ref[0] < 3, "failed at {x}", x=x_ref[0])
        o_ref[...] = OURS.np.log(x_ref[...])

    block = OURS.pl.BlockSpec((1,), lambda i: i)
    f = call(OURS, kernel, (5,), grid=5, in_specs=[block], out_specs=block)
    error, _ = checkify.checkify(f)(np.arange(5, dtype=np.float32))
    assert "failed at 3.0" in error.get()
    error, _ = checkify.checkify(f, errors=checkify.nan_checks)(np.arange(-1, 4, dtype=np.float32))
    assert "nan generated by primitive: log" in error.get()


def test_a_reference_in_place_of_an_array():
    def kernel(x_ref, o_ref):
        o_ref[...] = OURS.jax.lax.sin(x_ref)

    with pytest.raises(ValueError, match=r"Ref<default>\{float32\[4\]\}.*primitive: sin -- did you forget to unpack"):
        call(OURS, kernel, (4,))(np.zeros(4, np.float32))


def test_64_bits():
    with meshrt.enable_x64(True):

        def kernel(x_ref, o_ref):
            o_ref[...] = x_ref[...] + OURS.pl.program_id(0) + OURS.np.arange(2)

        block = OURS.pl.BlockSpec((2,), lambda i: i)
        f = call(OURS, kernel, (4,), np.float64, grid=2, in_specs=[block], out_specs=block)
        out = f(np.zeros(4))
        assert out.dtype == np.float64
        np.testing.assert_array_equal(out, [0, 1, 1, 2])
        np.testing.assert_array_equal(meshrt.grad(lambda x: f(x).sum())(np.zeros(4)), np.ones(4))


def test_what_functions_make_of_a_number_is_no_captured_constant():
    x = normal(4, 3)

    def kernel(lib):
        def body(x_ref, o_ref):
            o_ref[...] = lib.np.take(x_ref[...], 2, axis=0)

        return call(lib, body, (3,))

    same(kernel(OURS)(x), kernel(JAX)(x))
