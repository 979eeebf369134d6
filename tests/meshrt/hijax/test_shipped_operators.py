"""Operators, methods and indices of the high types that come with meshrt, against those of arrays and tuples."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt.experimental.hijax.padded import filled, padded
from meshrt.experimental.hijax.quantized import QMapping, dequantize, quantize
from meshrt.experimental.hijax.tuples import box_of, element, tuple_of, unbox
from tests.meshrt.hijax.test_shipped import W, close, plain_or_jitted


@plain_or_jitted
@pytest.mark.parametrize("axis", [0, 1])
def test_quantized_matrices_have_the_operators_of_matrices(wrap, axis):
    q, x = quantize(W, axis), np.random.RandomState(2).randn(4, 4).astype(np.float32)
    near, step = np.asarray(dequantize(q)), (np.abs(W).max() + np.abs(x).max()) / 127
    exact = {
        lambda x, q: x @ q: x @ near, lambda x, q: q @ x: near @ x, lambda x, q: x @ q.T: x @ near.T,
        lambda x, q: q.mT @ x: near.T @ x, lambda x, q: (q + q).dequantize(): 2 * near,
        lambda x, q: (q - q).dequantize(): 0 * near,
    }  # fmt: skip
    rounded = {
        lambda x, q: q + x: near + x, lambda x, q: x + q: x + near, lambda x, q: q - x: near - x,
        lambda x, q: x - q: x - near,
    }  # fmt: skip
    for given in (x, jnp.asarray(x)):
        for f, want in exact.items():
            close(wrap(f)(given, q), want)
        for f, want in rounded.items():
            found = wrap(f)(given, q)
            assert found.axis == axis and np.abs(found.dequantize() - want).max() <= step
    shapes = []
    wrap(lambda q: (shapes.append((q.shape, q.ndim, q.T.shape, (q.T + q.T).shape)), q)[1])(quantize(W[:, :3], axis))
    assert shapes == [((4, 3), 2, (3, 4), (3, 4))]
    loss = lambda f: lambda x, q: (f(x, q) ** 2).sum()
    both = lambda x, q: (x @ q) @ (q.T @ x) + (x - q).dequantize() + (q - x).dequantize()
    plain = lambda x, w: (x @ w) @ (w.T @ x)
    for got, want in zip(meshrt.grad(wrap(loss(both)), (0, 1))(x, q), meshrt.grad(loss(plain), (0, 1))(x, near)):
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3 * np.abs(want).max())
    stack = quantize(np.stack([W, 2 * W]), axis)
    mapped = meshrt.vmap(lambda x, q: x @ q, in_axes=(None, QMapping()), axis_size=2)
    close(wrap(mapped)(x, stack), x @ np.asarray(dequantize(stack)))
    close(wrap(lambda s: s.mT.dequantize())(stack), np.asarray(dequantize(stack)).swapaxes(1, 2))
    with pytest.raises(ValueError, match=r"q\.mT"):
        wrap(lambda s: s.T)(stack)


def test_what_operators_of_quantized_matrices_refuse():
    q, other = quantize(W), np.ones((3, 4), np.float32)
    for wrong in (lambda q: q @ q, lambda q: q @ other, lambda q: other[:, :3] @ q, lambda q: other + q):
        for wrap in (lambda f: f, meshrt.jit):
            with pytest.raises((TypeError, ValueError), match=r"quantize|\(3, 4\)"):
                wrap(wrong)(q)
    for wrong in (lambda q: q * 2, lambda q: jnp.sin(q), lambda q: q[0], lambda q: -q):
        with pytest.raises(TypeError, match="QType"):
            meshrt.jit(wrong)(q)
    for attribute in ("values", "scales"):
        with pytest.raises(AttributeError, match="one operand"):
            meshrt.jit(lambda q: getattr(q, attribute))(q)


@plain_or_jitted
def test_tuples_are_read_like_tuples(wrap):
    def f(t):
        first, second, third = t
        return first * t[-1] + t[1:][0].sum() + len(t) + sum(t[:2][1] * second) * third

    plain = lambda a, b, c: a * c + b.sum() + 3 + (b * b).sum() * c
    given = 2.0, jnp.arange(3.0), 5.0
    close(wrap(f)(tuple_of(*given)), plain(*given))
    for got, want in zip(meshrt.grad(wrap(f))(tuple_of(*given)), meshrt.grad(plain, (0, 1, 2))(*given), strict=True):
        close(got, want)
    assert wrap(lambda b: b.get()["a"][0] + 1)(box_of({"a": [2.0]})) == 3.0
    with pytest.raises(IndexError, match="element 3 of a tuple of 3"):
        wrap(lambda t: t[3])(tuple_of(*given))
    with pytest.raises(TypeError, match=r"box\.get\(\)"):
        wrap(lambda b: b[0])(box_of({"a": 2.0}))
    for wrong in (lambda t: unbox(t), lambda t: filled(t), lambda t: element(t[0], 0)):
        with pytest.raises(TypeError, match=r"not (Tuple|f32)"):
            wrap(wrong)(tuple_of(*given))


@plain_or_jitted
def test_methods_of_padded_rows(wrap):
    p = padded(jnp.arange(1.0, 5.0), 2)
    close(wrap(lambda p: p.filled())(p), [1, 2, 0, 0])
    close(wrap(lambda p: p.filled(-1.0) * p.sum())(p), [3, 6, -3, -3])
    with pytest.raises(AttributeError, match="one operand"):
        meshrt.jit(lambda p: p.length)(p)


def test_the_page():
    page = Path(__file__).resolve().parents[3] / "docs" / "hijax.md"
    exec("\n".join(re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)), {})


@pytest.mark.parametrize("name", ["quantized", "tuples", "padded", "box"])
def test_examples(name):
    module = importlib.import_module(f"meshrt.experimental.hijax.{name}")
    found = doctest.testmod(module, extraglobs={"meshrt": meshrt})
    assert found.attempted and not found.failed
