"""First and second derivatives where functions have none, or where infinities meet, beside JAX."""

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy

POINTS = np.float32([0, -0.0, 1, -1, 0.5, -2.5, 3, np.inf, -np.inf, np.nan, 100, -100])
UNARY = [
    "abs", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "cbrt", "cos", "cosh", "exp", "exp2", "expm1",
    "log", "log10", "log1p", "log2", "reciprocal", "sign", "sin", "sinc", "sinh", "sqrt", "square", "tan", "tanh",
]  # fmt: skip
BINARY = ["arctan2", "hypot", "logaddexp", "logaddexp2", "maximum", "minimum", "power"]
REDUCED = ["prod", "cumprod", "max", "min", "sort", "std", "var", "linalg.norm", "median", "ptp"]
VECTORS = {
    "ties": [1, 3, 3, 0], "zeros": [0, 0, 0], "one zero": [0, 2, 3], "two zeros": [0, 2, 0], "one": [2],
    "negative": [-1, -2, -2],
}  # fmt: skip


def _get(l, name):
    for part in name.split("."):
        l = getattr(l, part)
    return l


def _same(run):
    ours, theirs = np.asarray(run(meshrt)), np.asarray(run(jax))
    np.testing.assert_allclose(ours, theirs, rtol=3e-4, atol=2e-5)


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    def run(l):
        slope = l.grad(_get(l.numpy, name))
        return l.jit(lambda x: l.numpy.stack([l.vmap(slope)(x), l.vmap(l.grad(slope))(x)]))(POINTS)

    _same(run)


@pytest.mark.parametrize("name", BINARY)
def test_binary(name):
    x, y = (v.ravel() for v in np.meshgrid(POINTS, POINTS))

    def run(l):
        both = l.grad(_get(l.numpy, name), (0, 1))
        return l.jit(lambda x, y: l.numpy.stack(l.vmap(both)(x, y)))(x, y)

    _same(run)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("name", REDUCED)
def test_reductions(name, vector):
    x = np.float32(VECTORS[vector])
    _same(lambda l: l.jit(l.grad(lambda x: l.numpy.sum(_get(l.numpy, name)(x) * 1.5)))(x))
