"""What functions of lax of several operands take: dtypes, sizes of 1, scalars; beside JAX."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import meshrt
from meshrt import lax
from tests.meshrt.beside import assert_alike

A = np.arange(6, dtype=np.float32).reshape(2, 3)
ROW, COLUMN, INTS = A[1:], A[:, :1], A.astype(np.int32)
BINARY = ["add", "sub", "mul", "div", "max", "min", "pow", "rem", "atan2", "nextafter", "complex", "lt", "eq"]
OPERANDS = {
    "float32": A, "int32": INTS, "int8": A.astype(np.int8), "bool": A > 1, "float64": A.astype(np.float64),
    "bfloat16": lambda l: l.numpy.asarray(A, "bfloat16"), "int": 2, "float": 2.0, "Python bool": True, "complex": 2j,
    "float32 scalar": np.float32(2), "int32 scalar": np.int32(2), "weak": lambda l: l.numpy.asarray(2.0),
}  # fmt: skip


def _value(l, key):
    value = OPERANDS[key]
    return value(l) if callable(value) else value


@pytest.mark.parametrize("name", BINARY)
def test_sizes_of_one(name):
    for x, y in ((A, ROW), (COLUMN, ROW), (ROW, A), (A, A[:, :2]), (A, A[0]), (A[:0], ROW), (A[:, :, None], ROW)):
        assert_alike(lambda l, x=x, y=y: getattr(l.lax, name)(x + 1, y + 1))


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_xor", "shift_left", "shift_right_logical", "polygamma"])
def test_sizes_of_one_of_integers(name):
    for x, y in ((INTS, INTS[:1]), (INTS[:, :1], INTS[:1]), (INTS, INTS[0])):
        assert_alike(lambda l, x=x, y=y: getattr(l.lax, name)(x, y))


def test_sizes_of_one_under_transformations():
    assert_alike(lambda l: l.grad(lambda b: l.lax.mul(A, b).sum())(ROW))
    assert_alike(lambda l: l.grad(lambda b: l.lax.sub(b, A).sum())(COLUMN))
    assert_alike(lambda l: l.vmap(l.lax.add, (0, None))(A[None], ROW))
    assert_alike(lambda l: l.jit(l.lax.div)(A, ROW))
    assert_alike(lambda l: l.jvp(l.lax.atan2, (A, ROW + 1), (A, ROW)))


@pytest.mark.parametrize("first, second", list(itertools.product(OPERANDS, repeat=2)))
def test_no_dtype_is_promoted(first, second):
    for name in ("add", "pow"):
        assert_alike(lambda l, n=name: l.eval_shape(lambda: getattr(l.lax, n)(_value(l, first), _value(l, second))))


def test_products_in_another_dtype():
    for x, y, dtype in ((INTS, A, "float32"), (A, ROW, "float16"), (A + 0.5, INTS, "int32"), (2, A, "int8")):
        assert_alike(lambda l, x=x, y=y, d=dtype: l.lax.mul(x, y, out_dtype=d))


PAIRS = list(
    itertools.product(["bool", "uint8", "int8", "int32", "float16", "bfloat16", "float32", "complex64"], repeat=2)
)


@pytest.mark.parametrize("x, y", PAIRS)
def test_contractions_of_two_dtypes(x, y):
    for preferred in (None, "float32", "int32", "int8"):
        of = lambda l, dtype: l.ShapeDtypeStruct((2, 2), dtype)
        dot = lambda l, p=preferred: lambda a, b: l.lax.dot(a, b, preferred_element_type=p)
        assert_alike(lambda l, d=dot, of=of: str(l.eval_shape(d(l), of(l, x), of(l, y)).dtype))


@pytest.mark.parametrize(
    "x, y", [("int8", "int32"), ("bfloat16", "float32"), ("float32", "complex64"), ("int32", "float32")]
)
def test_values_of_contractions_of_two_dtypes(x, y):
    assert_alike(lambda l: l.lax.dot(l.numpy.asarray(A, x), l.numpy.asarray(A.T, y)))
    if x == "bfloat16":
        loss = lambda l: lambda a, b: l.lax.dot(a, b).astype(np.float32).sum()
        assert_alike(lambda l: l.grad(loss(l), (0, 1))(l.numpy.asarray(A, x), l.numpy.asarray(A.T, y)))
        assert_alike(lambda l: l.grad(loss(l), (0, 1))(l.numpy.asarray(A, y), l.numpy.asarray(A.T, x)))


def test_dimensions_broadcast_in_another_order():
    def program(l):
        turned = lambda x: l.lax.broadcast_in_dim(x, (3, 4, 2), (2, 0))
        return turned(A), turned(l.numpy.asarray(A)), l.jit(turned)(A), l.vmap(turned)(A[None])

    assert_alike(program)
    square = meshrt.numpy.asarray(A[:, :2])
    np.testing.assert_array_equal(meshrt.lax.broadcast_in_dim(square, (2, 2), (1, 0)), A[:, :2].T)
    assert_alike(lambda l: l.lax.broadcast_in_dim(A[:, :2], (2, 2), (1, 1)))
    ct = meshrt.vjp(lambda x: meshrt.lax.broadcast_in_dim(x, (3, 2), (1, 0)), A)[1](A.T)[0]
    np.testing.assert_array_equal(ct, A)


@pytest.mark.parametrize("dtype", ["int4", "uint2", "int8"])
def test_absolute_values_of_narrow_integers(dtype):
    assert_alike(lambda l: l.lax.abs(l.numpy.asarray([1, 0], dtype)))


def test_operands_by_name():
    for name, operands in (("complex", "xy"), ("polygamma", "mx"), ("mul", "xy")):
        assert_alike(lambda l, n=name, o=operands: getattr(l.lax, n)(**dict(zip(o, (A, A + 1)))))
    assert_alike(lambda l: l.lax.nextafter(x1=A, x2=A + 1))
    assert_alike(lambda l: l.lax.bitcast_convert_type(operand=A, new_dtype=np.int32))


def test_accuracies_are_refused_by_name():
    assert_alike(lambda l: l.lax.exp(A, accuracy=None))
    with pytest.raises(meshrt.errors.UnsupportedError, match="Accuracy high"):
        meshrt.lax.tanh(A, accuracy="high")


def test_results_that_are_lists():
    a = np.float32([[2, 1], [1, 3]])
    for name in ("lu", "hessenberg", "tridiagonal"):
        assert_alike(lambda l, name=name: getattr(l.lax.linalg, name)(a))
    for name in ("top_k", "approx_max_k", "approx_min_k"):
        assert_alike(lambda l, name=name: getattr(l.lax, name)(a, 1))


@pytest.mark.parametrize("dimension", [0, 1, 2, -1])
def test_positions_are_counted_along_dimensions_that_do_not_count_from_the_end(dimension):
    assert_alike(lambda l: l.lax.broadcasted_iota("int32", (2, 3), dimension))


@pytest.mark.parametrize("reducer", ["max", "min"])
def test_extremes_in_windows_over_dilated_bases(reducer):
    x = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)

    def slope(l):
        start = -np.inf if reducer == "max" else np.inf
        f = lambda x: l.lax.reduce_window(
            x, start, getattr(l.lax, reducer), (2, 3), (1, 2), ((1, 0), (2, 1)), base_dilation=(3, 2)
        )
        return l.grad(lambda x: l.numpy.where(l.numpy.isfinite(f(x)), f(x), 0).sum())(x)

    assert_alike(slope)


def test_named_padding_of_dilated_bases_is_refused():
    x, kernel = np.ones((1, 2, 4, 4), np.float32), np.ones((3, 2, 2, 2), np.float32)
    for padding in ("SAME", [(1, 1), (0, 1)]):
        assert_alike(lambda l: l.lax.conv_general_dilated(x, kernel, (1, 1), padding, lhs_dilation=(1, 2)))


def test_nextafter_has_no_derivative():
    assert_alike(lambda l: l.grad(lambda x: l.lax.nextafter(x, np.float32(2)))(np.float32(1)))
    assert_alike(lambda l: l.grad(lambda x: l.lax.nextafter(l.lax.stop_gradient(x), np.float32(2)) * x)(np.float32(1)))


@pytest.mark.parametrize("name", ["svd", "qr"])
def test_vectors_are_no_matrices(name):
    assert_alike(lambda l: getattr(l.numpy.linalg, name)(A[0]))
    assert_alike(lambda l: l.vmap(getattr(l.numpy.linalg, name))(A))
    assert_alike(lambda l: l.grad(lambda x: getattr(l.numpy.linalg, name)(x)[0].sum())(A[0]))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "bfloat16", "float32", "complex64"])
def test_preferred_dtypes_of_convolutions(dtype):
    for preferred in ("int8", "int32", "uint32", "bfloat16", "float32", "complex64"):
        convolve = lambda l, p=preferred: lambda a: l.lax.conv(a, a, (1,), "SAME", preferred_element_type=p)
        assert_alike(lambda l, f=convolve: l.eval_shape(f(l), l.ShapeDtypeStruct((1, 1, 3), dtype)))


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_fills_that_integers_do_not_hold(dtype):
    fills = (np.nan, np.inf, 300, -1.5, 2**40, 2.5)
    assert_alike(lambda l: [l.numpy.take(INTS.astype(dtype), 9, mode="fill", fill_value=v) for v in fills])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "int32", "float32"])
def test_parts_of_complex_numbers(dtype):
    assert_alike(lambda l: l.eval_shape(l.lax.complex, *[l.ShapeDtypeStruct((2,), dtype)] * 2))


def test_parameters_without_a_derivative():
    polygamma, betainc = lambda l, x: l.lax.polygamma(x, x), lambda l, x: l.lax.betainc(x, x, 0.5)
    for f in (polygamma, betainc, lambda l, x: l.lax.zeta(x, 2.0)):
        assert_alike(lambda l, f=f: l.grad(lambda x: f(l, x))(1.5))


@pytest.mark.parametrize("mode", ["clip", "drop"])
def test_indices_of_scatters_may_be_too_short_for_the_size(mode):
    x, update, names = np.zeros(300, np.int32), np.ones(2, np.int32), lax.ScatterDimensionNumbers((0,), (), (0,))
    put = meshrt.jit(lambda i: lax.scatter(x, i[None], update, names, mode=mode))
    for index in (np.int8(127), np.int8(3), np.uint8(255)):
        assert np.flatnonzero(put(index)).tolist() == [int(index), int(index) + 1]
    assert np.flatnonzero(put(np.int8(-3))).tolist() == ([0, 1] if mode == "clip" else [])
    # Counting from the end of what is longer wraps around, as in JAX.
    blocks = meshrt.vmap(lambda i: lax.dynamic_slice(np.arange(300), (i,), (1,)))(np.array([127, -5], np.int8))
    assert blocks.ravel().tolist() == [127, 39]


@pytest.mark.parametrize("mode", ["clip", "fill"])
def test_cotangents_reach_rows_that_short_indices_name(mode):
    names = lax.GatherDimensionNumbers((), (0,), (0,))
    taken = lambda x, i: lax.gather(x, i[:, None], names, (1,), mode=mode).sum()
    found = meshrt.grad(taken)(np.zeros(300, np.float32), np.array([89, 205, 3], np.uint8))
    assert np.flatnonzero(found).tolist() == [3, 89, 205]
