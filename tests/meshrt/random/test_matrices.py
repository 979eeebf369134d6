"""Multivariate normal vectors and orthogonal matrices, and initializers of these, against JAX."""

import jax
import jax.random as jr
import numpy as np
import pytest

import meshrt
import meshrt.random as mr

MEAN = np.array([1.0, -2.0, 0.5], np.float32)
COV = np.array([[2, 0.5, 0], [0.5, 1, 0.2], [0, 0.2, 1]], np.float32)
CASES = {
    "multivariate_normal": lambda r, k: r.multivariate_normal(k, MEAN, COV, (4,)),
    "by eigh": lambda r, k: r.multivariate_normal(k, MEAN, COV, method="eigh"),
    "by svd": lambda r, k: r.multivariate_normal(k, MEAN, COV, method="svd"),
    "of integers, in a half": lambda r, k: r.multivariate_normal(k, np.zeros((2, 2), int), np.eye(2), dtype="float16"),
    "orthogonal": lambda r, k: r.orthogonal(k, 3, (2,)),
    "orthogonal, wide": lambda r, k: r.orthogonal(k, 2, m=4),
    "orthogonal, tall": lambda r, k: r.orthogonal(k, 4, m=2),
    "unitary": lambda r, k: r.orthogonal(k, 3, dtype="complex64"),
    "wald": lambda r, k: r.wald(k, np.array([0.5, 2.0, 30.0], np.float32)),
    "generalized_normal": lambda r, k: r.generalized_normal(k, 2.5, (4,)),
}


def alike(got, want):
    assert got.shape == want.shape and got.dtype == want.dtype and got.aval.weak_type == want.aval.weak_type
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-4, atol=1e-5)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", CASES)
def test_samples(name):
    alike(CASES[name](mr, mr.key(3)), CASES[name](jr, jr.key(3)))


def test_derivative_of_multivariate_normal():
    slopes = lambda l: l.grad(lambda m, c: (l.random.multivariate_normal(l.random.key(0), m, c) ** 2).sum(), (0, 1))
    for got, want in zip(slopes(meshrt)(MEAN, COV), slopes(jax)(MEAN, COV)):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "name, shape, options",
    [
        ("orthogonal", (3, 4), dict(scale=2.0)),
        ("orthogonal", (2, 3, 2), dict(column_axis=1)),
        ("orthogonal", (0, 3), {}),
        ("orthogonal", (3, 2), dict(dtype="complex64")),
        ("delta_orthogonal", (3, 2, 4), {}),
        ("delta_orthogonal", (3, 2, 2, 4), dict(scale=3)),
    ],
)
def test_initializers(name, shape, options):
    ours, theirs = (getattr(l.nn.initializers, name)(**options)(l.random.key(1), shape) for l in (meshrt, jax))
    alike(ours, theirs)


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda l: l.random.multivariate_normal(l.random.key(0), MEAN, COV[:2]), r"mean of shape \(3,\)"),
        (lambda l: l.random.multivariate_normal(l.random.key(0), MEAN[0], COV), r"mean of shape \(\)"),
        (lambda l: l.random.multivariate_normal(l.random.key(0), MEAN, COV, method="lu"), "'lu'"),
        (lambda l: l.nn.initializers.orthogonal()(l.random.key(0), (3,)), "at least a 2D shape"),
        (lambda l: l.nn.initializers.delta_orthogonal()(l.random.key(0), (3, 3)), "requires a 3D, 4D or 5D shape"),
        (lambda l: l.nn.initializers.delta_orthogonal()(l.random.key(0), (3, 3, 2)), "`fan_in` must be less"),
    ],
)
def test_errors(call, text):
    with pytest.raises(ValueError, match=text):
        call(meshrt)
    with pytest.raises(ValueError):
        call(jax)
