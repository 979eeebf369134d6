"""The high types that come with meshrt, against the plain functions."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import lax
from meshrt.experimental.hijax.padded import filled, padded, padded_sum
from meshrt.experimental.hijax.quantized import QArray, QMapping, dequantize, quantize, quantized_matmul
from meshrt.experimental.hijax.tuples import box_of, element, tuple_of, unbox

W = np.random.RandomState(0).randn(4, 4).astype(np.float32)
X = np.random.RandomState(1).randn(2, 4).astype(np.float32)
plain_or_jitted = pytest.mark.parametrize("wrap", [lambda f: f, meshrt.jit], ids=["plain", "jit"])


def close(got, want):
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5, atol=1e-6)


@plain_or_jitted
def test_quantized_weights(wrap):
    q = quantize(W)
    near = np.asarray(dequantize(q))
    assert np.abs(near - W).max() <= np.abs(W).max() / 127 and q.values.dtype == np.int8
    close(wrap(quantized_matmul)(X, q), X @ near)
    ones = np.ones((2, 4), np.float32)
    by_x, by_q = meshrt.grad(wrap(lambda x, q: quantized_matmul(x, q).sum()), (0, 1))(X, q)
    close(by_x, ones @ near.T)
    close(by_q, X.T @ ones)
    close(meshrt.grad(wrap(lambda w: quantized_matmul(X, quantize(w)).sum()))(W), X.T @ ones)
    close(quantize(np.zeros((2, 2), np.float32)).values, np.zeros((2, 2)))
    with pytest.raises(TypeError, match="quantize takes a float32 matrix"):
        quantize(np.ones(3, np.float32))
    with pytest.raises(TypeError, match="as many rows as it has columns"):
        quantized_matmul(np.ones((2, 3), np.float32), q)


@plain_or_jitted
def test_a_scan_over_stacked_quantized_layers(wrap):
    q = quantize(W)
    stack = QArray(jnp.stack([q.values] * 3), jnp.stack([q.scales] * 3))
    near = jnp.stack([dequantize(q)] * 3)
    layers = lambda x, s: lax.scan(lambda c, q: (jnp.tanh(quantized_matmul(c, q)), None), x, s, length=3)[0].sum()
    plain = lambda x, ws: lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, ws)[0].sum()
    close(wrap(layers)(X, stack), plain(X, near))
    for got, want in zip(meshrt.grad(wrap(layers), (0, 1))(X, stack), meshrt.grad(plain, (0, 1))(X, near)):
        close(got, want)
    many = meshrt.vmap(dequantize, in_axes=QMapping(), axis_size=3)(stack)
    close(many, near)


@plain_or_jitted
def test_tuples_and_immutable_boxes(wrap):
    f = wrap(lambda x: element(tuple_of(x, x * x), 1))
    assert f(3.0) == 9.0 and meshrt.grad(f)(3.0) == 6.0 and meshrt.jvp(f, (3.0,), (1.0,)) == (9.0, 6.0)
    assert meshrt.linearize(f, 3.0)[1](1.0) == 6.0
    close(meshrt.vmap(f)(jnp.arange(3.0)), [0, 1, 4])
    held = wrap(lambda x: box_of({"a": x, "b": [2 * x]}))(3.0)
    assert unbox(held) == {"a": 3.0, "b": [6.0]}
    gradient = meshrt.grad(wrap(lambda b: unbox(b)["a"] * unbox(b)["b"][0]))(held)
    assert unbox(gradient) == {"a": 6.0, "b": [3.0]}


@plain_or_jitted
def test_padded_rows(wrap):
    rows = jnp.arange(1.0, 5.0)
    f = wrap(lambda rows, n: padded_sum(padded(rows * rows, n)))
    assert f(rows, np.int32(2)) == 5.0
    close(meshrt.grad(f)(rows, np.int32(2)), [2, 4, 0, 0])
    close(wrap(lambda p: filled(p, -1.0))(padded(rows, 3)), [1, 2, 3, -1])
