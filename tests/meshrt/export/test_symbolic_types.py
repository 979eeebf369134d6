"""Exported functions of symbolic sizes whose types have shardings: types beside JAX's, values beside known sizes."""

from __future__ import annotations

import re

import jax
import jax.export
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy
from meshrt import errors, export

BODIES = {
    "sizes": lambda lib, x: x * 2 + x.shape[0],
    "product": lambda lib, x: lib.numpy.einsum("ij,kj->ik", x, x, out_sharding=lib.P("x", None)),
    "reshard": lambda lib, x: lib.sharding.reshard(x * 2, lib.P("y", "x")),
    "sums": lambda lib, x: (x.sum(0), x.max(1), lib.numpy.mean(x)),
    "places": lambda lib, x: lib.numpy.argmax(x, 0),
    "windows": lambda lib, x: lib.numpy.cumsum(lib.sharding.reshard(x, lib.P("x")), 1),
    "transposed": lambda lib, x: x.T[None],
    "mapped": lambda lib, x: lib.vmap(lambda a: lib.numpy.sin(a) * 2)(x),
    "mapped, with others": lambda lib, x: lib.vmap(lambda a, b: (a + b, lib.numpy.ones(2)), (0, None))(x, x.sum(0)),
    "a gradient": lambda lib, x: lib.grad(lambda a: lib.numpy.tanh(a).sum())(x),
    "a loop": lambda lib, x: lib.lax.fori_loop(0, 3, lambda i, c: c * 2, x),
    "a branch": lambda lib, x: lib.lax.cond(x.sum() > 3, lambda a: a * 2, lambda a: a, x),
    "a region": lambda lib, x: lib.shard_map(lambda v: v * 2 + v.shape[0], out_specs=lib.P("x", "y"))(x),
    "auto axes": lambda lib, x: lib.sharding.auto_axes(
        lambda a: a * 2 + lib.numpy.arange(a.shape[1], dtype=a.dtype), out_sharding=lib.P("x", "y")
    )(x),
}


def exported(lib, body):
    """The exported function, with the types of its results as they are printed."""
    mesh, seen = lib.make_mesh((4, 2), ("x", "y")), []

    def f(x):
        out = body(lib, x)
        seen.append([str(lib.typeof(leaf)).replace(" ", "") for leaf in lib.tree.leaves(out)])
        return out

    with lib.set_mesh(mesh):
        split = lib.NamedSharding(mesh, lib.P("x", "y"))
        spec = lib.ShapeDtypeStruct(lib.export.symbolic_shape("8*b, 8*c"), np.float32, sharding=split)
        return lib.export.export(lib.jit(f))(spec), seen[0]


@pytest.mark.parametrize("name", BODIES)
def test_types_are_jaxs_and_values_those_of_known_sizes(name):
    made, types = exported(meshrt, BODIES[name])
    assert types == exported(jax, BODIES[name])[1]
    mesh = meshrt.make_mesh((4, 2), ("x", "y"))
    x = meshrt.device_put(
        np.arange(128, dtype=np.float32).reshape(16, 8) % 7, meshrt.NamedSharding(mesh, meshrt.P("x", "y"))
    )
    with meshrt.set_mesh(mesh):
        found = export.deserialize(made.serialize()).call(x)
        expected = meshrt.jit(lambda x: BODIES[name](meshrt, x))(x)
    for a, b in zip(meshrt.tree.leaves(found), meshrt.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_sizes_that_axes_may_not_divide_are_named():
    mesh = meshrt.make_mesh((4, 2), ("x", "y"))
    spec = meshrt.ShapeDtypeStruct(
        export.symbolic_shape("b, 3"), np.float32, sharding=meshrt.NamedSharding(mesh, meshrt.P("x"))
    )
    with meshrt.set_mesh(mesh), pytest.raises(errors.InconclusiveDimensionOperation, match=r"mod\(b, 4\)"):
        export.export(meshrt.jit(lambda x: x * 2))(spec)


# How the results of the calls are split: by axis x as their types say, or not.
SIDES = {
    "windows": ["[{}, {}]"] * 2,
    "the largest": ['[{"x"}, {}]'] * 2,
    "random bits": ["[{?}]", '[{"x"}, {}]'],
}
SEVERAL = {
    "windows": lambda x: meshrt.lax.reduce_window(
        (x, x * 2), (np.float32(0), np.float32(0)), lambda a, b: (a[0] + b[0], a[1] + b[1]),
        (1, 3), (1, 1), ((0, 0), (0, x.shape[1] - 2)),
    ),
    "the largest": lambda x: meshrt.lax.top_k(x, x.shape[1] // 2),
    "random bits": lambda x: meshrt.lax.rng_bit_generator(
        np.arange(4, dtype=np.uint32), x.shape, out_sharding=meshrt.P("x", None)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL)
def test_each_of_several_results_says_how_it_is_split(name):
    """Behind the custom calls that such operations are for sizes that are not known."""
    mesh = meshrt.make_mesh((4, 2), ("x", "y"))
    split = meshrt.NamedSharding(mesh, meshrt.P("x"))
    x = meshrt.device_put(np.arange(48, dtype=np.float32).reshape(8, 6) % 7, split)
    with meshrt.set_mesh(mesh):
        spec = meshrt.ShapeDtypeStruct(export.symbolic_shape("4*b, c", constraints=["c >= 2"]), x.dtype, sharding=split)
        made = export.export(meshrt.jit(SEVERAL[name]))(spec)
        found, expected = export.deserialize(made.serialize()).call(x), SEVERAL[name](x)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    behind = []
    for text in made.mlir_module().split("func.func"):
        for call in re.findall(r"%(\d+):2 = stablehlo.custom_call @stablehlo.dynamic_", text):
            behind.append(re.findall(rf"sdy.sharding_constraint %{call}#[01] <@mesh, (\[.*?\])>", text))
            assert len(re.findall(rf"%{call}#\d", text)) == 2, "what follows uses the values behind the constraints"
    assert SIDES[name] in behind and all(len(said) == 2 for said in behind)
