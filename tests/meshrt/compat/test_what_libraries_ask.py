"""Small things that libraries ask of arrays, functions and errors: the same answers in JAX."""

import inspect

import jax
import jax.interpreters.ad
import numpy as np
import pytest

import meshrt
from meshrt import errors
from meshrt.compat.layer import core
from meshrt.interpreters import ad as _ad  # noqa: F401  (for meshrt.interpreters.ad)
from meshrt.interpreters import xla

BOTH = pytest.mark.parametrize("lib", [jax, meshrt], ids=["jax", "meshrt"])


@BOTH
def test_compiled_functions_have_a_signature_and_the_name_of_their_type(lib):
    f = lib.jit(lambda x, *, flag=True: x, static_argnames="flag")
    for follow in (True, False):
        assert str(inspect.signature(f, follow_wrapped=follow)) == "(x, *, flag=True)"
    assert "PjitFunction" in str(type(f))


@BOTH
def test_the_sharding_of_a_type_can_be_asked_for(lib):
    x = lib.numpy.ones(3)
    asked = lib.typeof(x).sharding
    sample = lambda: lib.random.normal(lib.random.key(0), (3,), out_sharding=asked)
    np.testing.assert_array_equal(sample(), lib.random.normal(lib.random.key(0), (3,)))
    np.testing.assert_array_equal(lib.jit(sample)(), sample())


@BOTH
def test_words_of_errors(lib):
    with pytest.raises(ValueError, match="Incompatible shapes for broadcasting"):
        lib.numpy.broadcast_shapes((2,), (3,))
    with pytest.raises(RuntimeError, match=r"(failed to initialize)|(Unknown backend)"):
        lib.devices("gpu")


@BOTH
def test_keys_are_compared(lib):
    keys = lib.random.split(lib.random.key(0), 3)
    assert lib.numpy.array_equal(keys, keys, equal_nan=True)
    assert not lib.numpy.array_equal(keys, keys[::-1], equal_nan=True)


def test_a_class_of_a_library_is_made_a_type_of_arrays():
    class Variable:
        def __init__(self, value):
            self.value = value
            self.shape, self.dtype = value.shape, value.dtype

        def __array__(self, dtype=None, copy=None):
            return self.value.astype(dtype or self.dtype)

    handlers, types = xla.canonicalize_dtype_handlers, core.pytype_aval_mappings
    with pytest.raises(KeyError):
        handlers[Variable]
    with pytest.raises(TypeError, match="not a valid JAX type"):
        meshrt.jit(lambda x: x * 2)(Variable(np.arange(3.0)))
    types[Variable] = types[np.ndarray]
    try:
        handlers[Variable] = handlers[np.ndarray]
        with pytest.raises(errors.UnsupportedError, match="NumPy makes arrays"):
            handlers[Variable] = np.sin
        value = Variable(np.arange(3.0))
        for f in (lambda x: meshrt.lax.mul(x, meshrt.numpy.float32(2)), lambda x: meshrt.jit(lambda x: x * 2)(x)):
            assert f(value).dtype == np.float32
            np.testing.assert_array_equal(f(value), [0.0, 2.0, 4.0])
        assert handlers[Variable](value).dtype == np.float32
    finally:
        del types[Variable]


@BOTH
def test_ranges_are_axes(lib):
    x = lib.numpy.arange(6.0).reshape(2, 3)
    assert lib.numpy.expand_dims(x, range(2)).shape == (1, 1, 2, 3)
    assert lib.numpy.sum(x, axis=range(2)) == 15.0


@BOTH
def test_a_zero_without_a_derivative_is_made_an_array(lib):
    zero = lib.interpreters.ad.Zero(lib.typeof(np.arange(3)).to_tangent_aval())
    for made in (zero.instantiate(), lib.interpreters.ad.instantiate_zeros(zero)):
        assert made.dtype == lib.dtypes.float0 and made.shape == (3,)
