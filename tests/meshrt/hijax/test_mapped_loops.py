"""Loops over values of high types in mapped functions, beside the same function of each member."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import lax
from meshrt.experimental.hijax.padded import filled, padded
from meshrt.experimental.hijax.quantized import dequantize, quantize
from meshrt.experimental.hijax.tuples import element, tuple_of

T = jnp.asarray(np.random.RandomState(0).randn(3, 4, 2), jnp.float32)


def close(a, b):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-4)


def results(x, axis=0):
    return dequantize(lax.scan(lambda c, t: (c, quantize(t * x, axis)), 0.0, T)[1])


def columns(x):
    return results(x, 1)


def operands(x):
    return lax.scan(lambda c, q: (c * 2 + dequantize(q).sum(), None), 0.0, quantize(T * x), length=3)[0]


def carried(x):
    add = lambda c, q: (quantize(dequantize(c) + dequantize(q)), q)
    last, all_ = lax.scan(add, quantize(T[0] * x), quantize(T * x), length=3)
    return dequantize(last) + dequantize(all_)


def tuples(x):
    pairs = lax.scan(lambda c, t: (c, tuple_of(t * x, quantize(t * x))), 0.0, T)[1]
    return element(pairs, 0) + dequantize(element(pairs, 1))


def lengths(x):
    rows = lax.scan(lambda c, n: (c, padded(T[0] * x, n)), 0.0, jnp.int32([1, 2, 3]))[1]
    return filled(rows, 7.0)


FUNCTIONS = [results, columns, operands, carried, tuples, lengths]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("f", FUNCTIONS)
@pytest.mark.parametrize("size", [2, 3])  # 3 is the length too: only values tell the dimensions apart
def test_a_mapped_scan_over_high_types(f, size):
    xs = jnp.arange(1.0, size + 1)
    want = np.stack([f(x) for x in xs])
    close(meshrt.vmap(f)(xs), want)
    close(meshrt.jit(meshrt.vmap(f))(xs), want)
    rows = jnp.stack([xs, xs + 1])
    close(meshrt.vmap(meshrt.vmap(f))(rows), [[f(x) for x in row] for row in rows])


@pytest.mark.parametrize("f", [results, columns, operands, carried, lengths])
def test_derivatives_of_a_mapped_scan_over_high_types(f):
    xs, loss = jnp.arange(1.0, 3.0), lambda x: (f(x) ** 2).sum()
    want = [meshrt.grad(loss)(x) for x in xs]
    close(meshrt.vmap(meshrt.grad(loss))(xs), want)
    close(meshrt.grad(lambda xs: (meshrt.vmap(f)(xs) ** 2).sum())(xs), want)
    close(meshrt.jvp(meshrt.vmap(loss), (xs,), (jnp.ones(2),))[1], want)


def test_plain_arrays_say_what_the_stacked_results_are():
    plain = lambda x: lax.scan(lambda c, t: (c, t * x), 0.0, T)[1]
    got, want = meshrt.vmap(results)(jnp.arange(1.0, 3.0)), meshrt.vmap(plain)(jnp.arange(1.0, 3.0))
    assert got.shape == want.shape == (2, 3, 4, 2)
    np.testing.assert_allclose(got, want, atol=0.05)


def branches(x):
    return dequantize(lax.cond(x > 1.5, lambda x: quantize(T[0] * x), lambda x: quantize(-T[0] * x), x))


def steps(x):
    double = lambda c: (c[0] + 1, quantize(dequantize(c[1]) * 2))
    return dequantize(lax.while_loop(lambda c: c[0] < x, double, (0.0, quantize(T[0] * x)))[1])


@pytest.mark.parametrize("f", [branches, steps])
def test_members_that_go_ways_of_their_own(f):
    xs = jnp.arange(1.0, 5.0)
    close(meshrt.vmap(f)(xs), [f(x) for x in xs])
    close(meshrt.vmap(meshrt.vmap(f))(xs.reshape(2, 2)), np.reshape([f(x) for x in xs], (2, 2, 4, 2)))


def test_a_mapped_choice_that_has_no_derivative_says_so():
    with pytest.raises(NotImplementedError, match=r"derivatives of q8\[2,4,2\]"):
        meshrt.grad(lambda xs: meshrt.vmap(branches)(xs).sum())(jnp.arange(1.0, 3.0))
