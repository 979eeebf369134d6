"""Layers of meshrt.example_libraries.stax: parameters, shapes and outputs are JAX's."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.example_libraries import stax as jax_stax

import meshrt
from meshrt.example_libraries import stax

IMAGE = (2, 6, 5, 3)

LAYERS = {
    "dense": (lambda s: s.Dense(4), (3, 5)),
    "conv": (lambda s: s.Conv(4, (3, 2), padding="SAME", strides=(2, 1)), IMAGE),
    "conv valid": (lambda s: s.GeneralConv(("NCHW", "OIHW", "NHWC"), 4, (2, 2)), (2, 3, 6, 5)),
    "conv transpose": (lambda s: s.ConvTranspose(4, (3, 3), strides=(2, 2), padding="SAME"), IMAGE),
    "conv transpose 1d": (lambda s: s.Conv1DTranspose(4, (3,), strides=(2,)), (2, 6, 3)),
    "batch norm": (lambda s: s.BatchNorm(), IMAGE),
    "batch norm of rows": (lambda s: s.BatchNorm(axis=0, center=False), (5, 3)),
    "batch norm unscaled": (lambda s: s.BatchNorm(axis=(0, 1), scale=False), (5, 3, 2)),
    "max pool": (lambda s: s.MaxPool((2, 2), strides=(2, 1)), IMAGE),
    "sum pool": (lambda s: s.SumPool((2, 2), padding="SAME", spec="NCHW"), (2, 3, 6, 5)),
    "avg pool": (lambda s: s.AvgPool((3, 2), padding="SAME", spec="NHWC"), IMAGE),
    "flatten": (lambda s: s.Flatten, IMAGE),
    "gelu": (lambda s: s.Gelu, (3, 4)),
    "log softmax": (lambda s: s.LogSoftmax, (3, 4)),
    "dropout": (lambda s: s.Dropout(0.7), (3, 40)),
    "no dropout": (lambda s: s.Dropout(0.7, mode="test"), (3, 4)),
    "serial": (lambda s: s.serial(s.Dense(4), s.Relu, s.Dropout(0.5), s.Dense(2), s.Identity), (3, 5)),
    "parallel": (lambda s: s.serial(s.FanOut(2), s.parallel(s.Dense(3), s.Dense(3)), s.FanInSum), (4, 5)),
    "concat": (lambda s: s.serial(s.FanOut(2), s.parallel(s.Dense(3), s.Tanh), s.FanInConcat()), (4, 5)),
    "of its shape": (lambda s: s.shape_dependent(lambda shape: s.Dense(shape[-1])), (4, 5)),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", LAYERS)
def test_layer(name):
    make, shape = LAYERS[name]
    x = np.linspace(-1, 2, int(np.prod(shape)), dtype=jax.dtypes.canonicalize_dtype(float)).reshape(shape)
    results = []
    for library, layers in ((jax, jax_stax), (meshrt, stax)):
        init, apply = make(layers)
        out_shape, params = init(library.random.key(3), shape)
        out = apply(params, x, rng=library.random.key(4))
        assert out.shape == tuple(out_shape)
        results.append((out_shape, library.tree.leaves(params), out))
    theirs, ours = results
    assert theirs[0] == ours[0]
    for a, b in zip(theirs[1], ours[1], strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours[2], theirs[2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [lambda s: s.Dense(4), lambda s: s.Conv(4, (3, 3)), lambda s: s.serial(s.Tanh)])
def test_a_batch_of_any_size(make):
    shape = (-1, 6, 5, 3)
    shapes = [make(layers)[0](lib.random.key(0), shape)[0] for lib, layers in ((jax, jax_stax), (meshrt, stax))]
    assert tuple(shapes[0]) == tuple(shapes[1])


def test_dropout_needs_a_key():
    with pytest.raises(ValueError, match="requires apply_fun to be called with a PRNG key"):
        stax.Dropout(0.5)[1]((), np.ones(3))
