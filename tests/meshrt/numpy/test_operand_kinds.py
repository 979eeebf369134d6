"""What functions make of integers, bool, complex numbers and scalars where these are out of place, beside JAX."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import meshrt
from tests.meshrt.beside import assert_alike

DENSITIES = {
    "t": (2.0,), "gamma": (2.0,), "beta": (2.0, 2.0), "chi2": (2.0,), "pareto": (2.0,), "norm": (), "laplace": (),
    "cauchy": (), "logistic": (), "expon": (), "uniform": (), "gennorm": (2.0,),
}  # fmt: skip


def room(library: Any, name: str) -> Any:
    return importlib.import_module(f"{library.__name__}.{name}")


@pytest.mark.parametrize("name", DENSITIES)
@pytest.mark.parametrize("x", [np.array([False, True]), 0.5], ids=["bool", "scalar"])
def test_densities_beside_constants_of_their_dtype_are_strong(name: str, x: Any) -> None:
    assert_alike(lambda m: getattr(room(m, "scipy.stats"), name).logpdf(x, *DENSITIES[name]), rtol=1e-4)


@pytest.mark.parametrize("name, count", [("pareto", 1), ("rayleigh", 1), ("lognormal", 1), ("triangular", 3)])
def test_random_numbers_have_no_complex_parameters(name: str, count: int) -> None:
    assert_alike(lambda m: getattr(m.random, name)(m.random.key(0), *[np.ones(2, np.complex64)] * count))


@pytest.mark.parametrize("x", [np.array([1, 2]), np.array([False, True]), 3], ids=["integers", "bool", "scalar"])
@pytest.mark.parametrize("name", ["sigmoid", "silu", "softmax", "log_softmax"])
def test_activations_of_what_is_not_floating(name: str, x: Any) -> None:
    assert_alike(lambda m: getattr(m.nn, name)(x))


@pytest.mark.parametrize("name", ["polymul", "polydiv"])
@pytest.mark.parametrize("operands", [(1.0, 2.0), (1.0, np.ones(2)), (np.ones(2), 1.0)])
def test_scalars_are_no_polynomials(name: str, operands: Any) -> None:
    assert_alike(lambda m: getattr(m.numpy, name)(*operands))


@pytest.mark.parametrize("name", ["polyder", "polyint"])
def test_scalars_have_no_coefficients(name: str) -> None:
    assert_alike(lambda m: getattr(m.numpy, name)(2.0))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("size", [None, 5])
@pytest.mark.parametrize("name", ["union1d", "intersect1d", "setdiff1d", "setxor1d"])
def test_values_of_sets_have_derivatives_where_their_number_is_given(name: str, size: int | None) -> None:
    x, y = np.array([3.0, 1.0, 3.0, 2.0, 1.0], np.float32), np.array([1.0, 7.0], np.float32)
    assert_alike(lambda m: m.grad(lambda x: getattr(m.numpy, name)(x, y, size=size).sum() * 1.5)(x))


def test_distinct_values_have_no_derivative() -> None:
    x = np.array([3.0, 1.0, 3.0], np.float32)
    assert_alike(lambda m: m.grad(lambda x: m.numpy.unique_values(x).sum() * 1.5)(x))
    assert_alike(lambda m: type(m.numpy.unique_counts(x)).__name__ == "_UniqueCountsResult")


def test_matrices_of_no_rows() -> None:
    assert_alike(lambda m: room(m, "scipy.linalg").pascal(-1))


def test_names_of_types_of_arguments() -> None:
    assert meshrt.lax.Precision in meshrt.lax.PrecisionLike.__args__
    assert meshrt.lax.ConvDimensionNumbers in meshrt.lax.ConvGeneralDilatedDimensionNumbers.__args__


@pytest.mark.parametrize("x", [3.0, 3, 1j, float("nan")], ids=str)
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "nancumsum", "nancumprod"])
def test_numbers_of_python_have_the_axis_of_a_vector(name: str, x: Any) -> None:
    assert_alike(lambda m: getattr(m.numpy, name)(x, axis=0))


@pytest.mark.parametrize("k", [np.uint8(1), np.int8(-1), np.uint8(2)], ids=str)
@pytest.mark.parametrize("name", ["tril", "triu", "diagonal", "trace", "diagflat"])
def test_diagonals_are_numbered_by_any_integer(name: str, k: Any) -> None:
    assert_alike(lambda m: getattr(m.numpy, name)(np.arange(9.0, dtype=np.float32).reshape(3, 3), k))


@pytest.mark.parametrize("name", ["eye", "tri", "trace"])
def test_the_number_of_a_diagonal_may_be_traced(name: str) -> None:
    x = np.arange(9.0, dtype=np.float32).reshape(3, 3)
    call = {"eye": lambda n, k: n.eye(3, k=k), "tri": lambda n, k: n.tri(3, k=k), "trace": lambda n, k: n.trace(x, k)}
    assert_alike(lambda m: m.jit(lambda k: call[name](m.numpy, k))(np.int8(-1)))


BOOLS = np.array([True, False])
NOWHERE = {"window": slice(0, 0), "indices": np.array([], int), "mask": np.array([False, False])}


@pytest.mark.parametrize("method", ["add", "multiply", "divide", "power", "min", "set"])
@pytest.mark.parametrize("index", [*NOWHERE.values(), 0, np.array([0, 0])], ids=[*NOWHERE, "place", "twice"])
def test_updates_of_bools(method: str, index: Any) -> None:
    """What changes nothing is refused for no dtype; of what does, each operation takes its own."""
    assert_alike(lambda m: getattr(m.numpy.asarray(BOOLS).at[index], method)(True))


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", ["reduce_sum", "reduce_prod", "reduce_max", "reduce_and"])
def test_reductions_of_bools(name: str, traced: bool) -> None:
    assert_alike(lambda m: (m.jit if traced else lambda f: f)(lambda x: getattr(m.lax, name)(x, (0,)))(BOOLS))


@pytest.mark.parametrize("other", [BOOLS, np.arange(2), np.ones((2, 2), np.float16), 2.5, True], ids=str)
def test_kronecker_products_of_bools(other: Any) -> None:
    assert_alike(lambda m: m.numpy.kron(BOOLS, other))


@pytest.mark.parametrize("name", ["partition", "argpartition"])
@pytest.mark.parametrize("x", [BOOLS, np.arange(2)], ids=["bool", "int"])
def test_parts_of_what_is_ordered(name: str, x: Any) -> None:
    assert_alike(lambda m: getattr(m.numpy, name)(x, 1))


SHIFTS = {"no array": np.array([], int), "none": (), "one": np.array([1]), "two": [1, 2], "deep": np.array([[1]])}


@pytest.mark.parametrize("axis", [None, 0, (0,), (), (0, 0)], ids=str)
@pytest.mark.parametrize("shift", SHIFTS)
def test_shifts_and_axes_of_roll_are_broadcast(shift: str, axis: Any) -> None:
    assert_alike(lambda m: m.numpy.roll(m.numpy.arange(4.0), SHIFTS[shift], axis))
    assert_alike(lambda m: m.numpy.roll(m.numpy.arange(4.0), m.numpy.asarray(SHIFTS[shift], int), axis))
