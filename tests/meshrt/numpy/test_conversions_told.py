"""Conversions that lose something say so as JAX's do: warnings by class, refusals, and what becomes of the values."""

import warnings

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy
from tests.meshrt.beside import assert_alike

Z = np.array([1 + 2j, 0, 4j], np.complex64)
WARNED = {
    "lax.convert_element_type": lambda l: l.lax.convert_element_type(Z, np.float32),
    "asarray": lambda l: l.numpy.asarray(l.numpy.array(Z), dtype="float32"),
    "sum": lambda l: l.numpy.sum(Z, dtype="float32"),
    "mean": lambda l: l.numpy.mean(Z, dtype="float32"),
    "add.reduce": lambda l: l.numpy.add.reduce(Z, dtype="float32"),
    "at.set": lambda l: l.numpy.ones(3).at[0].set(1j),
    "astype": lambda l: l.numpy.astype(l.numpy.array(Z), "float32"),
    "abs": lambda l: l.numpy.abs(Z),
    "derivative through complex numbers": lambda l: l.grad(lambda x: l.numpy.abs(l.numpy.fft.fft(x)).sum())(Z.real),
    "derivative by a real factor": lambda l: l.grad(lambda x: l.numpy.abs(l.numpy.dot(Z, x)).sum())(Z.real),
    "positional copy": lambda l: l.numpy.array(1, None, True),
    "positional copy, order and ndmin": lambda l: l.numpy.array(1, None, True, "K", 2),
}


def _warned(program, library) -> set[type]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program(library)
    return {w.category for w in caught}


@pytest.mark.parametrize("name", WARNED)
def test_warnings(name):
    assert _warned(WARNED[name], meshrt) == _warned(WARNED[name], jax)
    assert_alike(WARNED[name])


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_complex_number_fills_no_array_of_reals(dtype):
    assert_alike(lambda l: l.lax.full((3,), 1j, dtype))
    assert_alike(lambda l: l.lax.convert_element_type(1j, dtype))
    assert_alike(lambda l: l.numpy.full_like(Z.real, 1j, dtype=dtype))


def test_imaginary_numbers_are_true():
    assert_alike(lambda l: l.numpy.array(Z).astype(bool))
    assert_alike(lambda l: l.lax.convert_element_type(1j, bool))
    assert_alike(lambda l: l.numpy.full((2,), 1j, bool))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("x", [np.arange(3), np.float16(-1), np.array([-1], np.float16), True, -2.0, 1j, Z])
def test_dtype_of_angles(x, wide):
    with jax.enable_x64(wide), meshrt.enable_x64(wide):
        assert_alike(lambda l: l.numpy.angle(x))


def test_weak_complex_numbers_in_logaddexp():
    assert_alike(lambda l: l.numpy.logaddexp(np.array([True, False]), 1j))


@pytest.mark.parametrize("operand", [[1.0, 2.0], None])
@pytest.mark.parametrize("name", ["acos", "neg"])
def test_operations_name_the_operand_that_is_no_array(name, operand):
    for library in (jax, meshrt):
        with pytest.raises(TypeError, match=f"to {name} as a JAX value.*type <class '.*passed to {name} at position 0"):
            getattr(library.lax, name)(operand)


def test_empty_quantiles_and_steps_of_zero():
    assert_alike(lambda l: l.numpy.nanmedian(np.zeros((0,))))
    assert_alike(lambda l: l.numpy.arange(0, 1, 0))


@pytest.mark.parametrize(
    "name", ["positional copy", "lax.convert_element_type", "asarray", "sum", "at.set", "astype", "rank promotion"]
)
def test_warnings_name_the_line_of_the_program(name):
    def promoted(library):
        with library.numpy_rank_promotion("warn"):
            return library.numpy.ones((2, 3)) + library.numpy.ones(3)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (WARNED | {"rank promotion": promoted})[name](meshrt)
    assert caught and {w.filename for w in caught} == {__file__}
