"""Boxes that hold quantized matrices and tuples in loops, branches and regions: as boxes of the arrays that these stand
for, whose derivatives and batches are theirs."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import P, lax
from meshrt.experimental.hijax import Box
from meshrt.experimental.hijax.quantized import dequantize, quantize
from meshrt.experimental.hijax.tuples import tuple_of

X = np.random.RandomState(1).randn(4, 4).astype(np.float32)


def in_scan(x, b):
    def body(c, _):
        c = c + (c @ b.get()["w"]).sum()
        b.set({"w": b.get()["w"] + b.get()["w"]})
        return c, None

    return lax.scan(body, x.sum() * jnp.ones((1, 4)) / 100, None, length=2)[0]


def in_fori_loop(x, b):
    def body(i, c):
        b.set({"w": b.get()["w"] + b.get()["w"]})
        return c + (x @ b.get()["w"]).sum()

    return lax.fori_loop(0, 2, body, 0.0)


def in_cond(x, b):
    lax.cond(x[0, 0] > -10, lambda: b.set({"w": b.get()["w"] + b.get()["w"]}), lambda: None)
    return x


def in_jit(x, b):
    return meshrt.jit(lambda x: (b.set({"w": b.get()["w"] + b.get()["w"]}), x @ b.get()["w"])[1])(x)


def in_checkpoint(x, b):
    return meshrt.checkpoint(lambda x: (b.set({"w": b.get()["w"] + b.get()["w"]}), jnp.sin(x @ b.get()["w"]))[1])(x)


def in_shard_map(x, b):
    def part(y):
        b.set({"w": b.get()["w"] + b.get()["w"]})
        return y @ b.get()["w"]

    mesh = meshrt.make_mesh((2,), ("d",), (meshrt.sharding.AxisType.Auto,))
    return meshrt.shard_map(part, mesh=mesh, in_specs=P("d"), out_specs=P("d"))(x)


def loss(region, held):
    def f(x):
        b = Box({"w": held(x)})
        y = region(x, b)
        return (y**2).sum() / 100 + (x @ b.get()["w"]).sum()

    return f


WAYS = {
    "as it is": lambda f: f,
    "jit": meshrt.jit,
    "jvp": lambda f: lambda x: meshrt.jvp(f, (x,), (jnp.ones_like(x),)),
    "grad": meshrt.grad,
    "grad of jit": lambda f: meshrt.grad(meshrt.jit(f)),
    "vmap": lambda f: lambda x: meshrt.vmap(f)(jnp.stack([x, 2 * x])),
    "vmap of grad": lambda f: lambda x: meshrt.vmap(meshrt.grad(f))(jnp.stack([x, 2 * x])),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("region", [in_scan, in_fori_loop, in_cond, in_jit, in_checkpoint, in_shard_map])
def test_boxes_of_quantized_matrices_are_those_of_their_arrays(region, way):
    found = WAYS[way](loss(region, quantize))(X)
    wanted = WAYS[way](loss(region, lambda x: dequantize(quantize(x))))(X)
    for got, want in zip(meshrt.tree.leaves(found), meshrt.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(np.asarray(want)).max())


@pytest.mark.parametrize("way", WAYS)
def test_a_box_from_outside_and_one_of_tuples(way):
    kept = Box({"w": quantize(X)})

    def f(x):
        pair = Box(tuple_of(x, 2 * x))

        def body(c, _):
            one, two = pair.get()
            pair.set(tuple_of(two, one * two))
            kept.set({"w": kept.get()["w"] + kept.get()["w"]})
            return c + (one @ kept.get()["w"]).sum(), None

        return lax.scan(body, 0.0, None, length=2)[0]

    near = np.asarray(dequantize(quantize(X)))
    plain = lambda x: (x @ (2 * near)).sum() + (2 * x @ (4 * near)).sum()
    found, wanted = WAYS[way](f)(jnp.asarray(X)), WAYS[way](plain)(jnp.asarray(X))
    for got, want in zip(meshrt.tree.leaves(found), meshrt.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(kept.get()["w"].dequantize(), 4 * near, rtol=1e-5)


def test_boxes_that_a_traced_function_makes_are_not_put_into_others():
    @meshrt.jit
    def f(x):
        return Box({"in": Box(x)}).get()["in"].get()

    with pytest.raises(NotImplementedError, match=r"inner\.get\(\)"):
        f(jnp.ones(2))
