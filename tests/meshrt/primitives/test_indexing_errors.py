"""What slicing, gathering, sorting, windows and keys refuse, and with which words."""

from __future__ import annotations

import numpy as np
import pytest

from meshrt import dtypes, errors, lax
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.types import ShapedArray
from meshrt.primitives import random, threefry
from tests.meshrt.primitives.evaluate import evaluate

F32, I32, U32 = np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.uint32)
ROWS = lax.GatherDimensionNumbers((1,), (0,), (0,))
WRITE = lax.ScatterDimensionNumbers((1,), (0,), (0,))
IMPL = dtypes.KEY_IMPLS["threefry2x32"]


def stage(fun, *avals):
    return trace_to_jaxpr(lambda *xs: [fun(*xs)], [ShapedArray(shape, dtype) for shape, dtype in avals])


MATRIX, INDEX, SCALAR = ((4, 5), F32), ((3, 1), I32), ((), I32)
REFUSED = {
    "slice beyond the end": (lambda x: lax.slice(x, (0, 0), (5, 5)), [MATRIX], "less than or equal to operand"),
    "slice of the wrong rank": (lambda x: lax.slice(x, (0,), (4,)), [MATRIX], "length equal to the number"),
    "index out of bounds": (
        lambda x: lax.index_in_dim(x, 7),
        [MATRIX],
        "index 7 is out of bounds for axis 0 with size 4",
    ),
    "too large a block": (lambda x, i: lax.dynamic_slice(x, (i, i), (2, 9)), [MATRIX, SCALAR], "slice_sizes (2, 9)"),
    "too few starts": (
        lambda x, i: lax.dynamic_slice(x, (i,), (2, 2)),
        [MATRIX, SCALAR],
        "number of operand dimensions (1 vs",
    ),
    "float start": (
        lambda x, i: lax.dynamic_slice(x, (i, i), (2, 2)),
        [MATRIX, ((), F32)],
        "integers of the same type",
    ),
    "update of another dtype": (
        lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i)),
        [MATRIX, ((2, 2), I32), SCALAR],
        "requires arguments to have the same dtypes",
    ),
    "pad below zero": (
        lambda x: lax.pad(x, 0.0, ((-3, -3, 0), (0, 0, 0))),
        [MATRIX],
        "Dimension size after padding is not at least 0, got result shape (-2, 5)",
    ),
    "concatenate unlike shapes": (
        lambda x, y: lax.concatenate([x, y], 0),
        [MATRIX, ((4, 6), F32)],
        "(4, 5), (4, 6)",
    ),
    "split sizes": (lambda x: lax.split(x, (1, 2)), [MATRIX], "must be equal to dimension 0"),
    "rev twice": (lambda x: lax.rev(x, (1, 1)), [MATRIX], "rev dimensions must be unique"),
    "float indices": (lambda x, i: lax.gather(x, i, ROWS, (1, 5)), [MATRIX, ((3, 1), F32)], "an integer type"),
    "index vectors too long": (
        lambda x, i: lax.gather(x, i, ROWS, (1, 5)),
        [MATRIX, ((3, 2), I32)],
        "index_vector_dim",
    ),
    "collapsed slice too large": (
        lambda x, i: lax.gather(x, i, ROWS, (2, 5)),
        [MATRIX, INDEX],
        "can only collapse slice dims with bound 1",
    ),
    "unknown mode": (lambda x, i: lax.gather(x, i, ROWS, (1, 5), mode="wrap"), [MATRIX, INDEX], "'promise_in_bounds'"),
    "scatter updates' shape": (
        lambda x, i, u: lax.scatter_add(x, i, u, WRITE),
        [MATRIX, INDEX, ((2, 5), F32)],
        "Bounds of the scatter dimensions",
    ),
    "scatter updates' dtype": (
        lambda x, i, u: lax.scatter(x, i, u, WRITE),
        [MATRIX, INDEX, ((3, 5), I32)],
        "updates of the operand's dtype",
    ),
    "sort unlike shapes": (lambda x, y: lax.sort((x, y)), [MATRIX, ((4, 4), F32)], "have equal shapes"),
    "top_k too many": (lambda x: lax.top_k(x, 6), [MATRIX], "no larger than size along axis; got k=6"),
    "cumsum of bool": (lambda x: lax.cumsum(x), [((3,), np.dtype(bool))], "does not accept dtype bool"),
    "window strides": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 2), (0, 1), "VALID"),
        [MATRIX],
        "must have every element be strictly positive",
    ),
    "padding name": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (2, 2), padding="FULL"),
        [MATRIX],
        "'SAME', or 'SAME_LOWER'",
    ),
    "kernel features": (
        lambda x, k: lax.conv_general_dilated(x, k, (1,), "VALID"),
        [((1, 3, 5), F32), ((2, 2, 2), F32)],
        "but 3 // 1 != 2",
    ),
    "convolution layout": (
        lambda x, k: lax.conv_general_dilated(x, k, (1,), "VALID", dimension_numbers=("NHC", "HIO", "NHX")),
        [((1, 3, 5), F32), ((2, 2, 2), F32)],
        "'NHX' must hold 'N', 'C'",
    ),
    "keys from floats": (lambda s: random.random_seed(s, IMPL), [((), F32)], "seed must be an integer"),
    "bits of no key": (lambda x: random.random_bits(x, 32, (2,)), [((2,), U32)], "wrap_key_data"),
    "odd bit width": (lambda x: random.random_bits(random.random_wrap(x, IMPL), 24, ()), [((2,), U32)], "not 24"),
    "key data's shape": (lambda x: random.random_wrap(x, IMPL), [((3,), U32)], "key_data.shape to end with (2,)"),
    "sorting keys": (lambda x: lax.sort(random.random_wrap(x, IMPL)), [((3, 2), U32)], "cannot be sorted"),
}


@pytest.mark.smoke
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    fun, avals, words = REFUSED[name]
    with pytest.raises(errors.MeshrtError) as caught:
        stage(fun, *avals)
    assert words in str(caught.value)
    assert isinstance(caught.value, TypeError | ValueError | IndexError)


def test_scatter_mul_needs_unique_indices_for_updates() -> None:
    from meshrt import api

    def push(x, i, u):
        return api.jvp(lambda v: lax.scatter_mul(x, i, v, WRITE), (u,), (u,))[1]

    with pytest.raises(errors.UnsupportedError, match="unique_indices=True"):
        stage(push, MATRIX, INDEX, ((3, 5), F32))


def test_start_indices_count_from_the_end() -> None:
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    (out,) = evaluate(lambda x, i, j: [lax.dynamic_slice(x, (i, j), (2, 2))], x, np.int8(1), np.int8(-3))
    np.testing.assert_array_equal(out, x[1:3, 2:4])


def test_bits_of_64_are_both_words() -> None:
    data = np.array([3, 4], np.uint32)

    def program(data):
        keys = random.random_wrap(data, IMPL)
        return [random.random_bits(keys, 64, (5,)), random.random_unwrap(random.random_split(keys, (5,)))]

    bits, words = evaluate(program, data)
    expected = words[:, 0].astype(np.uint64) << np.uint64(32) | words[:, 1].astype(np.uint64)
    np.testing.assert_array_equal(bits, expected)


def test_positions_beyond_32_bits() -> None:
    """The high word of the counter: an array of 2**33 elements is staged, and only its end is computed."""
    shape = (1 << 31, 4)

    def program():
        return [lax.slice(c, (shape[0] - 1, 0), shape) for c in threefry.iota_2x32_shape(shape)]

    high, low = evaluate(program)
    np.testing.assert_array_equal(high, [[1, 1, 1, 1]])
    np.testing.assert_array_equal(low, [[0xFFFFFFFC, 0xFFFFFFFD, 0xFFFFFFFE, 0xFFFFFFFF]])
