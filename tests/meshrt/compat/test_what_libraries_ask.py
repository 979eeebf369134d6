"""Small things that libraries ask of arrays, functions and errors: the same answers in JAX."""

import inspect

import jax
import numpy as np
import pytest

import meshrt

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
