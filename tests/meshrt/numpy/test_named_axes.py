"""Reductions over axes that have names, beside JAX: those of vmap and of the mesh of a shard_map."""

from __future__ import annotations

import numpy as np
import pytest

from tests.meshrt.beside import assert_alike

X = np.arange(6, dtype=np.float32).reshape(3, 2)
AXES = ["i", (0, "i"), ("i", "i"), "unbound"]


def mapped(library, function, x=X):
    return library.vmap(function, axis_name="i")(x)


@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("name", ["sum", "max", "mean", "var", "nansum", "nanmin", "nanmean", "count_nonzero", "ptp"])
def test_reductions(name, axis):
    assert_alike(lambda l: mapped(l, lambda x: getattr(l.numpy, name)(x, axis=axis)))


@pytest.mark.parametrize("name", ["prod", "any", "all", "median", "argmax", "cumsum"])
def test_those_that_have_none(name):
    assert_alike(lambda l: mapped(l, lambda x: getattr(l.numpy, name)(x, axis="i")))


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp", "standardize"])
def test_normalisations(name):
    for axis in ("i", (0, "i")):
        assert_alike(lambda l: mapped(l, lambda x: getattr(l.nn, name)(x, axis=axis)))


OPTIONS = {
    "keepdims": lambda l, x: l.numpy.sum(x, axis=(0, "i"), keepdims=True),
    "where": lambda l, x: l.numpy.sum(x, axis="i", where=x > 1, initial=3.0),
    "a mean of some": lambda l, x: l.numpy.mean(x, axis="i", where=x > 1),
    "small integers": lambda l, x: l.numpy.sum(x.astype("int8"), axis="i"),
    "halves": lambda l, x: l.numpy.mean(x.astype("bfloat16"), axis=("i", 0)),
    "methods": lambda l, x: x.sum(axis="i") + x.mean("i"),
    "norms": lambda l, x: l.numpy.linalg.vector_norm(x, axis="i"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    assert_alike(lambda l: mapped(l, lambda x: OPTIONS[name](l, x), l.numpy.asarray(X)))


def test_a_derivative():
    assert_alike(lambda l: l.grad(lambda x: mapped(l, lambda v: l.numpy.var(v * v, axis=("i", 0)), x).sum())(X))


def test_axes_of_a_mesh():
    def program(l):
        mesh, spec = l.make_mesh((4,), ("d",)), l.sharding.PartitionSpec
        f = l.shard_map(lambda x: l.numpy.mean(x, axis=(0, "d")), mesh=mesh, in_specs=spec("d"), out_specs=spec())
        return l.jit(f)(np.arange(8, dtype=np.float32).reshape(4, 2))

    assert_alike(program)


@pytest.mark.parametrize("axis", [frozenset([0]), ((0,), 1), (0, (1,)), 1.5], ids=str)
@pytest.mark.parametrize("name", ["sum", "max", "mean", "prod"])
def test_what_is_no_name(name, axis):
    assert_alike(lambda l: getattr(l.numpy, name)(X, axis=axis))
