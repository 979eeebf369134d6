"""shard_alike beside JAX: values, derivatives, where results lie."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import meshrt
import meshrt.experimental.shard_alike
from meshrt import NamedSharding, P, config, errors

# Newer versions of JAX have it no more.
pytest.importorskip("jax.experimental.shard_alike")

X = np.arange(16, dtype=np.float32).reshape(8, 2)
SPECS = [("x",), (None, "y"), ("x", "y"), (("x", "y"),), ()]


def _run(l, program, spec):
    devices = np.array(l.devices()[:8]).reshape(4, 2)
    mesh = l.sharding.Mesh(devices, ("x", "y"), axis_types=(l.sharding.AxisType.Auto,) * 2)
    x = l.device_put(X, l.sharding.NamedSharding(mesh, l.sharding.PartitionSpec(*spec)))
    out = program(l, l.experimental.shard_alike.shard_alike, x)
    leaves = l.tree.leaves(out)
    return [np.asarray(a) for a in leaves], [[i.device.id for i in _by_start(a)] for a in leaves], leaves


def _by_start(a):
    return sorted(a.addressable_shards, key=lambda s: ([i.start or 0 for i in s.index], s.device.id))


def _pair(l, alike, x):
    return l.jit(lambda x: alike(x * 2, l.numpy.ones((8, 2)) * 3)[1])(x)


PROGRAMS = {
    "a made value": _pair,
    "a constant": lambda l, alike, x: l.jit(lambda x: alike(x, l.numpy.zeros((8, 2)))[1])(x),
    "a tree": lambda l, alike, x: l.jit(lambda x: alike({"a": x, "b": x.T}, {"a": l.numpy.ones_like(x), "b": x.T * 2}))(
        x
    ),
    "a gradient": lambda l, alike, x: l.jit(
        l.grad(lambda x: l.numpy.sum(l.numpy.sin(alike(x, l.numpy.cos(x))[0] * alike(x, x + 1)[1])))
    )(x),
    "vmap": lambda l, alike, x: l.jit(l.vmap(lambda r: alike(r, r.sum() + l.numpy.zeros(2)), 0, 0))(x),
    "vmap of one": lambda l, alike, x: l.jit(l.vmap(lambda r: alike(r, l.numpy.arange(2.0))))(x),
    "in a scan": lambda l, alike, x: l.jit(
        lambda x: l.lax.scan(lambda c, _: (alike(c + 1, x)[0], None), l.numpy.zeros((8, 2)), None, length=3)[0]
    )(x),
    "eager": lambda l, alike, x: alike(x, x + 1),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_places_are_jaxs(name):
    for spec in SPECS:
        want, where, _ = _run(jax, PROGRAMS[name], spec)
        for partitioner in ("meshrt", "xla"):
            with config.override(partitioner=partitioner):
                got, ours, leaves = _run(meshrt, PROGRAMS[name], spec)
            for a, b in zip(got, want, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6)
            assert ours == where, (spec, [a.sharding for a in leaves])


def test_one_device_and_bad_arguments(mesh):
    alike = meshrt.experimental.shard_alike.shard_alike
    assert [a.shape for a in meshrt.jit(alike)(X, X + 1)] == [(8, 2), (8, 2)]
    x = meshrt.device_put(X, NamedSharding(mesh, P("data")))
    with pytest.raises(errors.ShardingError, match="Trees should be equal"):
        alike({"a": x}, [x])
    with pytest.raises(ValueError, match=r"leaf shape: \(8, 2\) and `y` leaf shape: \(2, 8\) at x\['a'\]"):
        meshrt.jit(lambda x: alike({"a": x}, {"a": x.T}))(x)
