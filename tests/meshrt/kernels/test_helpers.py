"""What kernels are written with beside references: figures of chips, dimensions, samples, chosen references."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from jax._src.pallas import einshape as jax_einshape

import meshrt
from meshrt import errors
from meshrt.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh
from tests.meshrt.kernels.programs import JAX, OURS, call

pl, pltpu, jnp = OURS.pl, OURS.pltpu, OURS.np
KINDS = [np.float32, jnp.bfloat16, np.int8, np.uint8, jnp.float8_e4m3b11fnuz, jnp.float8_e4m3fn, jnp.int4, np.float16]


# ----------------------------------------------------------------------------------------------------------------------
# Chips


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("version", JAX.pltpu.ChipVersion, ids=str)
def test_figures_of_chips_are_those_of_jax(version, cores):
    ours = pltpu.ChipVersion[version.name]
    try:
        expected = JAX.pltpu.get_tpu_info_for_chip(version, cores)
    except ValueError:
        with pytest.raises(errors.ArgumentValueError, match="must have num_tensor_cores_per_logical_device=1"):
            pltpu.get_tpu_info_for_chip(ours, cores)
        return
    found = pltpu.get_tpu_info_for_chip(ours, cores)
    told, known = dataclasses.asdict(found), dataclasses.asdict(expected)
    assert (told.pop("chip_version"), known.pop("chip_version")) == (ours, version) and told == known
    for name in ("is_lite", "is_split_chip", "is_megacore"):
        assert getattr(found, name) == getattr(expected, name)
    products = [[info.is_matmul_supported(a, b) for a in KINDS for b in KINDS] for info in (found, expected)]
    assert products[0] == products[1]
    if found.generation < 8:
        for kind in KINDS:
            assert found.get_sublane_tiling(kind) == expected.get_sublane_tiling(np.dtype(kind))


def test_the_chip_is_that_of_the_device_or_of_the_mesh():
    assert not pltpu.is_tpu_device()
    with pytest.raises(errors.ArgumentValueError, match="Unsupported TPU device kind: cpu"):
        pltpu.get_tpu_info()
    with use_abstract_mesh(AbstractMesh((2,), ("x",), abstract_device=AbstractDevice("TPU v5p", 2, "tpu"))):
        assert pltpu.is_tpu_device() and pltpu.get_tpu_info().is_megacore


# ----------------------------------------------------------------------------------------------------------------------
# einshape


@pytest.mark.parametrize(
    ("equation", "shape", "sizes"),
    [
        ("ab->ba", (2, 3), {}), ("a(bc)->(ba)c", (3, 8), {"b": 2}), ("(ab)c->abc", (6, 5), {"b": 3}),
        ("abc->(ab)c", (2, 3, 4), {}), ("(ab)cd->cb(da)", (4, 3, 2), {"a": 2, "b": 2}), ("a b -> a b", (2, 3), {}),
    ],
)  # fmt: skip
def test_einshape_is_that_of_jax(equation, shape, sizes):
    x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    expected = JAX.pltpu.einshape(equation, x, **sizes)
    np.testing.assert_array_equal(pltpu.einshape(equation, x, **sizes), expected)


@pytest.mark.parametrize(
    ("equation", "sizes", "error", "said"),
    [
        ("ab", {}, ValueError, "exactly one '->'"), ("(ab->ab", {}, ValueError, "Unmatched parenthesis"),
        ("abc->abc", {}, ValueError, "3 groups but input has 2 dims"),
        ("(ab)c->abc", {}, ValueError, "Ambiguous split"), ("ab->abd", {}, ValueError, "Unknown dimension d"),
        ("(ab)c->abc", {"a": 4}, ValueError, "Cannot split size 6 with known sizes 4"),
        ("(ab)c->abc", {"a": 3, "b": 3}, ValueError, "Size mismatch"),
        ("ab->a", {}, NotImplementedError, "no broadcast"),
    ],
)  # fmt: skip
def test_einshape_refuses_what_it_cannot_read(equation, sizes, error, said):
    with pytest.raises(error, match=said):
        pltpu.einshape(equation, np.zeros((6, 5)), **sizes)


@pytest.mark.parametrize(
    ("equation", "shape", "sizes"),
    [
        ("abc->bac", (2, 8, 128), {}), ("abc->(ab)c", (2, 16, 256), {}), ("abc->acb", (2, 128, 128), {}),
        ("a(bc)->bac", (16, 512), {"b": 4}), ("a(bc)->bac", (16, 512), {"c": 64}), ("abc->bac", (2, 9, 128), {}),
    ],
)  # fmt: skip
def test_tiles_are_kept_whole_where_a_kernel_says_so(equation, shape, sizes):
    is_whole = jax_einshape._is_tile_preserving(
        shape, jax_einshape.get_einshape_transforms(equation, shape, **sizes), (8, 128)
    )
    out = np.empty(shape).size

    def kernel(x_ref, o_ref):
        o_ref[...] = pltpu.einshape(equation, x_ref[...], True, **sizes).reshape(out)

    f = call(OURS, kernel, (out,))
    if is_whole:
        meshrt.eval_shape(f, np.zeros(shape, np.float32))
    else:
        with pytest.raises(errors.ArgumentValueError, match="Tile preserving check failed"):
            meshrt.eval_shape(f, np.zeros(shape, np.float32))
    pltpu.einshape(equation, np.zeros(shape), True, **sizes)  # outside of kernels there are no tiles


# ----------------------------------------------------------------------------------------------------------------------
# Random numbers from keys


WHOLE = {"tile_size": (8, 32), "total_size": (8, 64), "minval": -1.0, "maxval": 2.0}


def test_samples_are_those_of_jax_whatever_the_blocks_are():
    expected = JAX.pltpu.sample_block(jax.random.uniform, jax.random.key(3), (8, 64), block_index=(0, 0), **WHOLE)

    def kernel(key_ref, o_ref):
        o_ref[...] = pltpu.sample_block(meshrt.random.uniform, key_ref[...], (8, 32), **WHOLE)

    f = call(OURS, kernel, (8, 64), grid=(1, 2), out_specs=pl.BlockSpec((8, 32), lambda i, j: (i, j)))
    key = meshrt.random.key(3)
    np.testing.assert_array_equal(f(key), expected)
    found = pltpu.sample_block(meshrt.random.uniform, key, (8, 64), block_index=(0, 0), **WHOLE)
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(errors.ArgumentValueError, match="does not divide block_size"):
        pltpu.sample_block(meshrt.random.uniform, meshrt.random.key(0), (8, 8), (3, 8), (8, 8), (0, 0))


def test_keys_of_chips_are_made_of_others_and_serve_all_samplers():
    several = pltpu.to_pallas_key(meshrt.random.split(meshrt.random.key(0), 3))
    one = pltpu.to_pallas_key(meshrt.random.key(0))
    assert several.shape == (3,) and str(one.dtype) == "key<pl>"
    expected = jax.random.key_data(JAX.pltpu.to_pallas_key(jax.random.key(0)))
    np.testing.assert_array_equal(meshrt.random.key_data(one), expected)
    np.testing.assert_array_equal(meshrt.random.key_data(pltpu.to_pallas_key(meshrt.random.PRNGKey(0))), expected)

    def kernel(key_ref, o_ref):
        key = meshrt.random.fold_in(key_ref[...], pl.program_id(0))
        o_ref[...] = meshrt.random.uniform(key, (8, 128))

    draw = call(OURS, kernel, (16, 128), grid=2, out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)))
    drawn = np.asarray(draw(one))
    assert len(np.unique(drawn)) > 2040 and abs(drawn.mean() - 0.5) < 0.05
    with pytest.raises(NotImplementedError, match="Cannot split a Pallas key"):
        meshrt.random.split(one)


# ----------------------------------------------------------------------------------------------------------------------
# Copies from and to a reference of several


@pytest.mark.parametrize("interpret", [True, pltpu.InterpretParams()], ids=["loop", "simulator"])
def test_copies_from_the_reference_that_is_chosen(interpret):
    def kernel(i_ref, x_ref, y_ref, z_ref, o_ref, sem):
        chosen = pl.select_ref(i_ref[0], x_ref, y_ref, z_ref)
        assert chosen.shape == (6,) and chosen.dtype == np.float32
        pltpu.async_copy(chosen.at[pl.ds(0, 4)], o_ref.at[pl.ds(0, 4)], sem).wait()
        pltpu.sync_copy(pl.select_ref(i_ref[0], x_ref.at[4:], y_ref.at[4:], z_ref.at[4:]), o_ref.at[4:])

    anywhere, scalars = pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec(memory_space=pltpu.SMEM)
    f = pl.pallas_call(
        kernel, meshrt.ShapeDtypeStruct((6,), np.float32), in_specs=[scalars, *[anywhere] * 3], out_specs=anywhere,
        scratch_shapes=[pltpu.SemaphoreType.DMA], interpret=interpret,
    )  # fmt: skip
    arrays = [np.arange(6, dtype=np.float32) + 10 * i for i in range(3)]
    for i, x in enumerate(arrays):
        np.testing.assert_array_equal(f(np.array([i], np.int32), *arrays), x)


def test_a_choice_is_among_several_references_of_one_type():
    def kernel(x_ref, y_ref, o_ref):
        with pytest.raises(errors.ArgumentValueError, match="At least two refs are required"):
            pl.select_ref(0, x_ref)
        with pytest.raises(errors.ArgumentTypeError, match="Cannot select from Refs of different types"):
            pl.select_ref(0, x_ref, y_ref)

    meshrt.eval_shape(call(OURS, kernel, (2,)), np.zeros(2), np.zeros(3))


# ----------------------------------------------------------------------------------------------------------------------
# Checks for debugging


def checked(interpret):
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...]
        pl.debug_check((x_ref[...] > 0).all(), "not positive")

    out = meshrt.ShapeDtypeStruct((4,), np.float32)
    return pl.pallas_call(kernel, out, interpret=interpret)(np.arange(4, dtype=np.float32))


def test_checks_for_debugging_are_made_where_the_setting_asks_for_them():
    simulated = pltpu.InterpretParams()
    np.testing.assert_array_equal(checked(simulated), np.arange(4))
    with pl.enable_debug_checks(True):
        np.testing.assert_array_equal(checked(True), np.arange(4))
        with pytest.raises(errors.CallbackError, match=r"not positive.*test_helpers.py:\d+.*in the kernel kernel"):
            checked(simulated)


def test_memory_that_outlives_a_call_is_refused():
    with pytest.raises(errors.UnsupportedError, match="no platform here keeps memory between the calls"):
        pl.get_global(pltpu.SemaphoreType.REGULAR)


@pytest.mark.parametrize("dynamic", [False, True])
def test_programs_for_tpus_are_exported_with_their_kernels(dynamic):
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))

    def f(x):
        copy = lambda x_ref, o_ref: o_ref.__setitem__(..., 2 * x_ref[...])
        grid = pl.cdiv(x.shape[0], 8)
        return pl.pallas_call(copy, meshrt.ShapeDtypeStruct(x.shape, x.dtype), grid=grid, in_specs=[block],
                              out_specs=block)(x)  # fmt: skip

    rows = meshrt.export.symbolic_shape("n")[0] if dynamic else 16
    text = pl.lower_as_mlir(f, meshrt.ShapeDtypeStruct((rows, 128), np.float32), dynamic_shapes=dynamic)
    assert "tpu_custom_call" in text and ("tensor<?x128xf32>" in text) is dynamic
