"""The words of lax's messages that programs and their tests look for: JAX's have them, and so have ours."""

import re

import jax
import jax.random
import numpy as np
import pytest

import meshrt
import meshrt.random

I2, F2 = np.ones((2, 2), np.int32), np.ones((2, 2), np.float32)


def gather(operand, indices, sizes, offset, collapsed, index_map, batching=(), indices_batching=()):
    def run(l):
        numbers = l.lax.GatherDimensionNumbers(offset, collapsed, index_map, batching, indices_batching)
        return l.lax.gather(np.ones(operand, np.int32), np.ones(indices, np.int32), numbers, sizes)

    return run


def scatter(operand, indices, updates, window, inserted, index_map, batching=(), indices_batching=()):
    def run(l):
        numbers = l.lax.ScatterDimensionNumbers(window, inserted, index_map, batching, indices_batching)
        return l.lax.scatter(*(np.ones(s, np.int32) for s in (operand, indices, updates)), numbers)

    return run


def ragged(lhs, rhs, sizes, contracting, batch, dimension, group):
    def run(l):
        numbers = l.lax.RaggedDotDimensionNumbers((contracting, batch), dimension, group)
        return l.lax.ragged_dot_general(np.ones(lhs), np.ones(rhs), np.ones(sizes, np.int32), numbers)

    return run


def windows(**changed):
    given = {"window_dimensions": (2, 2), "window_strides": (1, 1), "padding": "VALID", **changed}
    return lambda l: l.lax.reduce_window(F2, 0.0, l.lax.add, **given)


ALL = ((1,), ())
ROWS = {
    # gather
    "offset_dims in gather op must be sorted": gather((4, 3), (5, 1), (2, 2), (2, 1), (), (0,)),
    "offset_dims in gather op must not repeat": gather((4, 3), (5, 1), (2, 2), (1, 1), (), (0,)),
    "Offset dimension 1 in gather op is out of bounds": gather((4, 3), (5, 1), (2, 2), (1, 9), (), (0,)),
    "collapsed_slice_dims in gather op must be sorted": gather((4, 3), (5, 1), (1, 1), (), (1, 0), (0,)),
    "collapsed_slice_dims in gather op must not repeat": gather((4, 3), (5, 1), (1, 1), (), (1, 1), (0,)),
    "Invalid collapsed_slice_dims set in gather op; valid range is": gather((4, 3), (5, 1), (1, 1), (1,), (7,), (0,)),
    "operand_batching_dims in gather op must not repeat": gather((4, 3), (4, 1), (1, 1), (), (), (0,), (1, 1)),
    "operand_batching_dims in gather op must be sorted": gather((4, 3), (4, 1), (1, 1), (), (), (0,), (1, 0)),
    "Invalid operand_batching_dims set in gather op; valid": gather((4, 3), (4, 1), (1, 1), (), (), (0,), (5,)),
    "operand_batching_dims in gather op must be disjoint": gather((4, 3), (4, 1), (1, 1), (), (0,), (1,), (0,)),
    "start_index_map and operand_batching_dims in gather": gather((4, 3), (4, 1), (1, 1), (), (1,), (0,), (0,)),
    "start_indices_batching_dims in gather op must not": gather((4, 3), (4, 1), (1, 1), (), (), (0,), (), (0, 0)),
    "Invalid start_indices_batching_dims set in gather": gather((4, 3), (4, 1), (1, 1), (), (), (0,), (), (7,)),
    "Gather op cannot have the index vector dimension as a": gather((4, 3), (4, 1), (1, 1), (), (), (0,), (), (1,)),
    "Gather op has 2 elements in start_index_map .*=1 of indices is 1": gather(
        (4, 3), (4, 1), F2.shape, (1, 2), (), (0, 1)
    ),
    "Invalid start_index_map": gather((4, 3), (4, 1), (1, 1), (1, 2), (), (5,)),
    "start_index_map in gather op must not repeat": gather((4, 3), (4, 2), (1, 1), (1, 2), (), (0, 0)),
    "Gather op requires equal numbers of operand_batching_dims and": gather(
        (4, 3), (4, 1), (1, 1), (), (1,), (1,), (0,)
    ),
    "operand batching dimensions and indices batching dim": gather((4, 3), (5, 1), (1, 1), (), (1,), (1,), (0,), (0,)),
    "Gather op must have one slice size for every input dimension": gather((4, 3), (5, 1), (1,), (1, 2), (), (0,)),
    "All components of the offset index in a gather op must": gather((4, 3), (5, 1), (1, 1), (1, 2), (0,), (0,)),
    "Slice size at index 1 in gather op is out of range": gather((4, 3), (5, 1), (1, 9), (1, 2), (), (0,)),
    "collapse slice dims with bound 1, but bound is 2 for index 0": gather((4, 3), (5, 1), (2, 1), (1,), (0,), (0,)),
    "operand batching dims with bound 0/1, but bound is 4": gather((4, 3), (4, 1), (4, 1), (), (1,), (1,), (0,), (0,)),
    # scatter
    "Bounds of the window dimensions": scatter((4, 3), (5, 1), (5, 9), (1,), (0,), (0,)),
    "Bounds of the scatter dimensions": scatter((4, 3), (5, 1), (6, 3), (1,), (0,), (0,)),
    r"Updates tensor must be of rank 2; got 3\.": scatter((4, 3), (5, 1), (5, 3, 1), (1,), (0,), (0,)),
    "update_window_dims in scatter op must be sorted": scatter((4, 3), (5, 1), (5, 1, 1), (2, 1), (), (0,)),
    "update_window_dims in scatter op must not repeat": scatter((4, 3), (5, 1), (5, 1, 1), (1, 1), (), (0,)),
    "Invalid update_window_dims set in scatter op": scatter((4, 3), (5, 1), (5, 1, 1), (1, 9), (), (0,)),
    "inserted_window_dims in scatter op must be sorted": scatter((4, 3), (5, 2), (5,), (), (1, 0), (0, 1)),
    "Invalid scatter_dims_to_operand_dims mapping": scatter((4, 3), (5, 1), (5, 3), (1,), (0,), (7,)),
    r"Scatter op has window of size 1; doesn't match operand of rank 2\.": scatter(
        (4, 3), (5, 1), (5,), (), (0,), (0,)
    ),
    # ragged products
    "expects exactly one lhs ragged dimension": ragged((4, 2), (3, 2, 5), 3, ALL, ((), ()), [0, 1], [0]),
    "requires lhs ragged dimension numbers to be nonnegative": ragged(
        (4, 2), (3, 2, 5), 3, ((1,), (1,)), ((), ()), [2], [0]
    ),
    r"expected group_sizes to have shape \(3,\), got \(2, 3\)": ragged(
        (4, 2), (3, 2, 5), (2, 3), ((1,), (1,)), ((), ()), [0], [0]
    ),
    "requires exactly one rhs group dimension when lhs": ragged((4, 2), (2, 5), 3, ((1,), (0,)), ((), ()), [0], []),
    "requires zero group dimensions in the rhs when": ragged((4, 2), (3, 2, 5), 3, ((1,), (1,)), ((), ()), [1], [0]),
    "rhs group dimension numbers to be distinct from": ragged((4, 3), (3, 3, 5), 3, ((1,), (1,)), ((), ()), [0], [1]),
    "expected rhs group dimension size to be 2, got 3": ragged((4, 2), (3, 2, 5), 2, ((1,), (1,)), ((), ()), [0], [0]),
    # shapes
    "broadcast_dimensions must have length equal to operand ndim": lambda l: l.lax.broadcast_in_dim(F2, (2, 2), (0,)),
    "target broadcast shape must have equal or higher rank": lambda l: l.lax.broadcast_in_dim(F2, (2,), (0, 1)),
    "broadcast_in_dim broadcast_dimensions must be a subset": lambda l: l.lax.broadcast_in_dim(F2, (2, 2), (0, 5)),
    "operand dimension sizes must either be 1, or be equal to": lambda l: l.lax.broadcast_in_dim(F2, (2, 3), (0, 1)),
    "cannot select an axis to squeeze out": lambda l: l.lax.squeeze(F2, (1,)),
    "padding_value must be a scalar": lambda l: l.lax.pad(F2, F2, [(0, 0, 0)] * 2),
    "padding_config": lambda l: l.lax.pad(F2, np.float32(0), [(0, 0, 0)]),
    "interior padding in padding_config must be nonneg": lambda l: l.lax.pad(F2, np.float32(0), [(0, 0, -1)] * 2),
    "Dimension size after padding is not at least 0": lambda l: l.lax.pad(F2, np.float32(0), [(-3, 0, 0)] * 2),
    "Shapes must be 1D sequences of concrete values of integer": lambda l: l.lax.reshape(F2, (1.5, 2.0)),
    "arguments to dynamic_update_slice must be integers of the same": lambda l: l.lax.dynamic_update_slice(
        F2, F2, (np.int32(1), np.int16(0))
    ),
    # elementwise
    "does not accept dtype complex64": lambda l: l.lax.rem(1j, 2j),
    "add requires arguments to have the same dtypes": lambda l: l.lax.add(0, 0.0),
    "add got incompatible shapes for broadcasting": lambda l: l.lax.add(F2, np.ones((3, 2), np.float32)),
    "population_count does not accept dtype bool": lambda l: l.lax.population_count(True),
    # windows, reductions, products
    "reduce_window.* must have every element be": windows(window_dimensions=(2, 0)),
    "strides must have every element be": windows(window_strides=(0, 1)),
    r"expected init_values to be scalars but init_values have shapes \[\(1,\)\].": lambda l: l.lax.reduce_window(
        F2, np.zeros(1, np.float32), l.lax.max, (2, 2), (1, 1), "VALID"
    ),
    "reduce_window output must have the same tree structure as the op": lambda l: l.lax.reduce_window(
        F2, 0.0, lambda x, y: [x + y], (2, 2), (1, 1), "VALID"
    ),
    "duplicate value in 'axes'": lambda l: l.lax.reduce(I2, 0, l.lax.add, (0, 0)),
    "reduce found non-scalar initial value": lambda l: l.lax.reduce(F2, F2, lambda x, y: x + y, (0,)),
    "require non-empty reduced dimension": lambda l: l.lax.argmin(F2[:0], 0, np.int32),
    "Invalid axis -1 for operand": lambda l: l.lax.argmax(F2, -1, np.int32),
    "top_k returns int32 indices, which will overflow": lambda l: l.eval_shape(
        lambda x: l.lax.top_k(x, 1), l.ShapeDtypeStruct((2**31 + 1,), np.float32)
    ),
    "lhs and rhs must have the same number of dimensions": lambda l: l.lax.conv_general_dilated(
        F2[None], F2[None, None], (1,), ((0, 0),), (1,), (1,), l.lax.ConvDimensionNumbers(*[(0, 1, 2)] * 3)
    ),
    "window and window_strides must have the same number": lambda l: l.lax.conv(
        F2[None, None], F2[None, None], [1], "SAME"
    ),
    r"padding argument.*, got \(3, 3\)": lambda l: l.lax.conv_general_dilated_patches(
        F2[None, None], (1, 1), (1, 1), padding=(3, 3)
    ),
    r"dot\(\) takes 2 positional arguments": lambda l: l.lax.dot(F2, F2, l.lax.Precision.DEFAULT),
    "Sizes passed to split must be nonnegative": lambda l: l.lax.split(F2, (3, -1)),
    "Sum of sizes 3 must be equal": lambda l: l.lax.split(F2, (1, 2)),
    "Found a JAX Tracer as a constant in the decomposition for the composite op 'mine'": lambda l: l.jit(
        lambda x, y: l.lax.composite(lambda x: x * y, "mine")(x)
    )(1.0, 2.0),
    # random numbers
    "unrecognized PRNG implementation": lambda l: l.random.key(0, impl="nope"),
    "normal accepts a single key, but was given a key array of shape": lambda l: l.random.normal(
        l.random.split(l.random.key(0))
    ),
    "dtype argument to": lambda l: l.random.normal(l.random.key(0), (), np.int32),
    "Number of samples without replacement": lambda l: l.random.categorical(
        l.random.key(0), F2[0], shape=(3,), replace=False
    ),
    "shape argument .*must be a sequence": lambda l: l.random.choice(l.random.key(0), 5, 2),
    "axis 3 is out of bounds": lambda l: l.random.permutation(l.random.key(0), 10, axis=3),
    "JAX encountered invalid PRNG key data: expected key_data.dtype = uint32": lambda l: l.random.wrap_key_data(F2[0]),
    r"invalid PRNG key data: expected key_data.shape to end with \(2,\)": lambda l: l.random.wrap_key_data(
        np.zeros(3, np.uint32)
    ),
    "invalid PRNG key data: expected key_data.ndim >= 1; got ndim=0": lambda l: l.random.split(l.numpy.float32(1)),
    "invalid PRNG key data: expected key_data to have ndim": lambda l: l.random.uniform(1.0),
    r"key accepts a scalar seed, but was given an array of shape \(2,\) != \(\)": lambda l: l.random.key(
        l.numpy.arange(2)
    ),
    "key accepts a scalar seed, but was given a PRNG key": lambda l: l.random.key(l.random.key(0)),
    "PRNG key seed must be an integer; got": lambda l: l.random.key(1.5),
    "fold_in accepts a scalar, but was given an array of ?shape": lambda l: l.random.fold_in(
        l.random.key(0), l.numpy.arange(2)
    ),
    "iteration over a 0-d key array": lambda l: iter(l.random.key(0)),
    "key array cannot be converted to boolean": lambda l: bool(l.random.key(0)),
    "JAX array with PRNGKey dtype cannot be converted to a NumPy array": lambda l: np.asarray(l.random.key(0)),
    r"add does not accept dtypes key<fry>, int": lambda l: l.random.key(0) + 1,
}


@pytest.mark.parametrize("words", ROWS)
def test_same_words(words: str) -> None:
    said = []
    for library in (jax, meshrt):
        with pytest.raises(Exception) as caught:
            ROWS[words](library)
        assert re.search(words, str(caught.value)), f"{library.__name__}: {caught.value}"
        said.append(caught.value)
    public = [c for c in type(said[0]).__mro__ if c.__module__ == "builtins"]
    assert isinstance(said[1], public[0])


def test_windows_of_nothing_may_be_larger_than_the_operand() -> None:
    run = lambda l: gather((0,), (0, 1), (1,), (), (0,), (0,))(l)
    np.testing.assert_array_equal(run(meshrt), run(jax))


def test_upper_halves_of_products_broadcast() -> None:
    a, b = np.array([[1 << 30], [-(1 << 29)]], np.int32), np.array([[12, -7, 3]], np.int32)
    np.testing.assert_array_equal(meshrt.lax.mulhi(a, b), jax.lax.mulhi(a, b))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gumbel_noise_of_the_finest_kind(dtype: type) -> None:
    ours, theirs = (l.random.gumbel(l.random.key(7), (200,), dtype, mode="highest") for l in (meshrt, jax))
    np.testing.assert_array_equal(ours, theirs)


def test_draws_broadcast_where_ranks_may_not_be_promoted() -> None:
    with meshrt.numpy_rank_promotion("raise"):
        key = meshrt.random.key(0)
        assert meshrt.random.categorical(key, F2, shape=(3, 2)).shape == (3, 2)
        assert meshrt.random.multivariate_normal(key, F2[0], I2.astype(np.float32), (5,)).shape == (5, 2)


def test_conjugates_stay_weakly_typed() -> None:
    for x in (1.0, 1j, np.float32(1)):
        assert meshrt.lax.conj(x).weak_type == jax.lax.conj(x).weak_type


def test_algorithms_are_settings() -> None:
    assert set(meshrt.lax.DotAlgorithmPreset.__members__) == set(jax.lax.DotAlgorithmPreset.__members__)
    for name in meshrt.lax.DotAlgorithmPreset.__members__:
        with meshrt.default_matmul_precision(name):
            assert meshrt.config.default_matmul_precision == name
    with meshrt.default_matmul_precision("F32_F32_F32"):
        assert "accumulation_type = f32" in meshrt.jit(meshrt.lax.dot).lower(F2, F2).as_text()


def test_padding_of_a_window_is_of_python_integers() -> None:
    sizes = np.array([10, 10]), np.array([5, 4]), np.array([1, 2])
    for name in ("SAME", "SAME_LOWER", "VALID"):
        pads = meshrt.lax.padtype_to_pads(*sizes, name)
        assert pads == jax.lax.padtype_to_pads(*sizes, name)
        assert all(type(p) is int for pair in pads for p in pair)


def test_keys_are_not_padded() -> None:
    keys = meshrt.random.split(meshrt.random.key(0))
    with pytest.raises(TypeError, match="pad does not accept dtype key<fry>"):
        meshrt.lax.pad(keys, keys[0], [(1, 1, 0)])
