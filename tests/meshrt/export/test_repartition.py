"""Exported functions called on other numbers of devices: against the function itself, jitted there."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, export, lax
from meshrt.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from meshrt.sharding import PartitionSpec as P
from meshrt.sharding.spec import axes_of
from tests.meshrt.export.exporting import through_bytes

AXES = ("data", "model")
BEFORE = (((4, 2), AXES), ((8,), ("data",)), ((2, 4), AXES), ((2,), ("data",)), ((1, 2), AXES))
AFTER = (((2, 2), AXES), ((2, 2), AXES[::-1]), ((4,), ("data",)), ((2,), ("model",)), ((1,), ("data",)),
         ((4, 2), AXES), ((2, 2), ("data", "other")), ((2, 1, 2), ("other", *AXES)))  # fmt: skip
X = np.linspace(-1, 1, 256, dtype=np.float32).reshape(16, 16)
# The constraint is the second argument.
STEPS = {
    "product": lambda x, _: x @ x.T / 16,
    "turn": lambda x, _: x.T,
    "sum": lambda x, _: x + x.sum(0),
    "cumulate": lambda x, _: jnp.cumsum(x, 1) / 8,
    "reverse": lambda x, _: x[::-1],
    "sort": lambda x, _: jnp.sort(x, 0),
    "loop": lambda x, ask: lax.scan(lambda c, row: (ask(jnp.tanh(c + row)), None), x, x)[0],
    "choose": lambda x, _: jnp.where(x > 0, x, 2 * x),
    "constrain": lambda x, ask: ask(x),
    "fold": lambda x, _: jnp.sin(x.reshape(4, -1)).reshape(16, 16),
}


def mesh_of(sizes, names, kind=AxisType.Auto):
    devices = np.array(meshrt.devices()[: np.prod(sizes)]).reshape(sizes)
    return Mesh(devices, names, axis_types=(kind,) * len(names))


def known(spec, mesh):
    """The spec without the axes that a mesh lacks."""
    return P(*[tuple(a for a in axes_of(e) if a in mesh.axis_names) or None for e in spec])


def drawn(rng, names):
    axes = rng.sample(names, rng.randrange(len(names) + 1))
    cut = rng.randrange(len(axes) + 1)
    return P(tuple(axes[:cut]), tuple(axes[cut:]))


def jitted(steps, asked, given, returned, mesh):
    """The function of these steps over a mesh; on one device if that is None."""
    on = lambda spec: NamedSharding(mesh, known(spec, mesh))

    def function(x):
        ask = lambda x: x if mesh is None else lax.with_sharding_constraint(x, on(asked))
        for name in steps:
            x = STEPS[name](x, ask)
        return x

    options = {} if mesh is None else {"in_shardings": on(given)}
    if mesh is not None and returned is not None:
        options["out_shardings"] = on(returned)
    return meshrt.jit(function, **options)


def sent(plan):
    return sorted((c.kind, c.group_size, c.bytes, c.times) for c in plan.entries)


def compare(seed):
    rng = random.Random(seed)
    before = mesh_of(*rng.choice(BEFORE))
    steps = rng.choices(list(STEPS), k=rng.randrange(1, 5))
    asked, given = (drawn(rng, before.axis_names) for _ in range(2))
    drawing = steps, asked, given, rng.choice([None, drawn(rng, before.axis_names)])
    exported = through_bytes(jitted(*drawing, before.abstract_mesh), vjp_order=1)(X)
    slope = lambda f: meshrt.jit(meshrt.grad(lambda x: (f(x) * X).sum()))
    alone = jitted(*drawing, None)
    np.testing.assert_allclose(exported.call(X), alone(X), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(slope(exported.call)(X), slope(alone)(X), rtol=1e-3, atol=1e-3)
    # Axes go by their places where there are as many devices.
    others = [a for a in AFTER if np.prod(a[0]) != before.size and set(a[1]) & set(before.axis_names)]
    after = mesh_of(*rng.choice(others))
    there = jitted(*drawing, after)
    said = f"{drawing} of {before}, on {after}"
    # (That results are constrained after a call, and not returned so, may make it cheaper to repeat than to gather.)
    assert exported.plan(after).bytes <= there.lower(X).partition().plan.bytes, said
    x = meshrt.device_put(X, exported.over(after).in_shardings_jax(after)[0])
    found, expected = exported.call(x), there(X)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4, err_msg=said)
    assert drawing[-1] is None or found.sharding.is_equivalent_to(expected.sharding, 2), said
    np.testing.assert_allclose(slope(exported.call)(x), slope(there)(X), rtol=1e-3, atol=1e-3, err_msg=said)


@pytest.mark.parametrize("seed", range(8))
def test_random_functions_on_other_meshes(seed):
    compare(seed)


def test_constraints_that_do_not_divide_as_jit_takes_them():
    two, eight = AbstractMesh((2,), ("data",)), mesh_of((8,), ("data",))
    on = lambda mesh, *spec: NamedSharding(mesh, P(*spec))
    jitted = lambda mesh: meshrt.jit(
        lambda x: lax.with_sharding_constraint(2 * x, on(mesh, "data")).sum(0), in_shardings=on(mesh)
    )
    exported = through_bytes(jitted(two))(X[:4])
    found = exported.call(meshrt.device_put(X[:4], on(eight)))
    np.testing.assert_allclose(found, jitted(eight)(X[:4]), rtol=1e-5, atol=1e-5)
    assert sent(exported.plan(eight)) == sent(jitted(eight).lower(X[:4]).partition().plan)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(8, 208, 10))
def test_more_random_functions_on_other_meshes(first):
    for seed in range(first, first + 10):
        compare(seed)


@pytest.mark.parametrize(("sizes", "names"), [((8,), ("data",)), ((2, 4), AXES)])
def test_from_a_mesh_of_one_device_to_eight(sizes, names):
    one, eight = AbstractMesh((1,) * len(names), names), mesh_of(sizes, names)
    drawing = ["product", "sum"], P(), P(("data",)), P((), names[-1:])
    exported = through_bytes(jitted(*drawing, one))(X)
    again, there = exported.over(eight), jitted(*drawing, eight)
    assert (exported.nr_devices, again.nr_devices) == (1, 8)
    assert sent(again.plan(eight)) == sent(there.lower(X).partition().plan) != []
    found = again.call(meshrt.device_put(X, again.in_shardings_jax(eight)[0]))
    np.testing.assert_allclose(found, there(X), rtol=1e-5, atol=1e-5)
    assert found.sharding.is_equivalent_to(there(X).sharding, 2)


# ---------------------------------------------------------------------------------------------------------------------
# Which axis is which


@pytest.mark.parametrize(
    ("sizes", "names", "axes", "expected"),
    [
        ((2, 2), ("model", "data"), None, P("data", "model")),
        ((2,), ("model",), None, P(None, "model")),
        ((2, 2), ("a", "b"), None, P("a", "b")),
        ((2,), ("a",), None, P("a", None)),
        ((2, 2), ("data", "b"), None, P("data", None)),
        ((2, 2), ("data", "b"), {"data": "b"}, P("b", None)),
        ((2, 2), ("data", "b"), {"data": "b", "model": "data"}, P("b", "data")),
        ((4, 2), ("data", "model"), {"data": "model", "model": None}, P("model", None)),
    ],
)
def test_axes_by_name_by_place_or_as_said(sizes, names, axes, expected):
    split = NamedSharding(AbstractMesh((4, 2), AXES), P("data", "model"))
    exported = through_bytes(meshrt.jit(jnp.sin, in_shardings=split, out_shardings=split))(X)
    mesh = mesh_of(sizes, names)
    again = exported.over(mesh, axes)
    (given,) = again.in_shardings_jax(mesh)
    assert given.is_equivalent_to(NamedSharding(mesh, expected), 2)
    found = (exported if axes is None else again).call(meshrt.device_put(X, given))
    assert found.sharding.is_equivalent_to(given, 2)
    np.testing.assert_allclose(found, np.sin(X), rtol=1e-6)


@pytest.mark.parametrize("axes", [{"none": "data"}, {"data": "none"}, {"data": "data", "model": "data"}])
def test_axes_that_are_not_there(axes):
    split = NamedSharding(AbstractMesh((4, 2), AXES), P("data", "model"))
    exported = export.export(meshrt.jit(jnp.sin, in_shardings=split))(X)
    with pytest.raises(errors.ArgumentValueError, match="different ones, or None"):
        exported.over(AbstractMesh((2, 2), AXES), axes)


def test_the_mesh_of_the_context():
    split = NamedSharding(AbstractMesh((8,), ("data",)), P("data"))
    exported = through_bytes(meshrt.jit(jnp.cumsum, out_shardings=split))(X[0])
    for count in (4, 1, 2):
        mesh = mesh_of((count,), ("data",))
        with meshrt.set_mesh(mesh):
            for call in (exported.call, meshrt.jit(exported.call)):
                found = call(X[0])
                np.testing.assert_allclose(found, np.cumsum(X[0]), rtol=1e-5, atol=1e-5)
                assert found.sharding.is_equivalent_to(NamedSharding(mesh, P("data")), 1)


def test_exported_again_as_part_of_another_function():
    split = NamedSharding(AbstractMesh((8,), ("data",)), P("data"))
    inner = through_bytes(meshrt.jit(jnp.sin, in_shardings=split), vjp_order=1)(X)
    four = AbstractMesh((4,), ("data",))
    outer = through_bytes(meshrt.jit(lambda x: inner.call(x) + 1, in_shardings=NamedSharding(four, P("data"))), 1)(X)
    assert outer.nr_devices == 4 and inner.over(four).vjp().nr_devices == 4
    for exported in (outer, export.from_jax(export.to_jax(outer, vjp_order=1))):
        np.testing.assert_allclose(exported.call(X), np.sin(X) + 1, rtol=1e-5)
        np.testing.assert_allclose(meshrt.grad(lambda x: exported.call(x).sum())(X), np.cos(X), rtol=1e-5)


def test_files_of_what_was_partitioned_again():
    split = NamedSharding(AbstractMesh((4, 2), AXES), P("data", "model"))
    exported = export.export(meshrt.jit(lambda x: x @ x.T, in_shardings=split))(X)
    mesh = mesh_of((2,), ("model",))
    written = exported.over(mesh).serialize(vjp_order=1)
    for again in (export.deserialize(written), export.from_jax(export.to_jax(export.deserialize(written)))):
        assert again.nr_devices == 2
        x = meshrt.device_put(X, NamedSharding(mesh, P(None, "model")))
        np.testing.assert_allclose(again.call(x), X @ X.T, rtol=1e-4, atol=1e-5)
        assert sent(again.plan(mesh)) == sent(exported.plan(mesh)) != []


# ---------------------------------------------------------------------------------------------------------------------
# Explicit axes


@pytest.mark.parametrize(("sizes", "names"), [((2, 2), AXES), ((4,), ("data",)), ((2,), ("model",)), ((2,), ("a",))])
def test_types_over_explicit_axes(sizes, names):
    def function(x):
        return jnp.sin(x) @ X

    explicit = AbstractMesh((4, 2), AXES, (AxisType.Explicit,) * 2)
    split = NamedSharding(explicit, P("data", None))
    exported = through_bytes(meshrt.jit(function), 1)(meshrt.ShapeDtypeStruct(X.shape, X.dtype, sharding=split))
    mesh = mesh_of(sizes, names, AxisType.Explicit)
    x = meshrt.device_put(X, exported.over(mesh).in_shardings_jax(mesh)[0])
    slope = lambda f: meshrt.grad(lambda x: (f(x) ** 2).sum())(x)
    for found, expected in ((exported.call(x), function(x)), (slope(exported.call), slope(function))):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        assert found.aval == expected.aval and found.sharding == expected.sharding


def test_partial_sums_over_an_axis_that_is_not_there():
    explicit = AbstractMesh((4, 2), AXES, (AxisType.Explicit,) * 2)
    arg = meshrt.ShapeDtypeStruct(X.shape, X.dtype, sharding=NamedSharding(explicit, P(None, "data")))

    def function(x):
        sums = jnp.einsum("ij,kj->ik", x, x, out_sharding=P(None, None, unreduced={"data"}))
        return meshrt.sharding.reshard(2 * sums, P(None, None))

    exported = through_bytes(meshrt.jit(function))(arg)
    for sizes, names in (((2,), ("model",)), ((4,), ("data",))):
        mesh = mesh_of(sizes, names, AxisType.Explicit)
        x = meshrt.device_put(X, exported.over(mesh).in_shardings_jax(mesh)[0])
        np.testing.assert_allclose(exported.call(x), 2 * X @ X.T, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------------------------------------------------------
# What is refused


def test_what_devices_do_by_themselves_is_for_their_number():
    mesh = AbstractMesh((8,), ("data",))
    add = lambda x: meshrt.shard_map(
        lambda x: x + lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P("data")
    )(x)
    exported = through_bytes(meshrt.jit(add))(X)
    said = r"Function .* was exported for 8 devices and is called in a context with {} devices.*it has a shard_map"
    with pytest.raises(errors.MeshMismatchError, match=said.format(1)):
        exported.call(X)
    for use in (exported.plan, exported.over):
        with pytest.raises(errors.MeshMismatchError, match=said.format(4)):
            use(AbstractMesh((4,), ("data",)))


def test_over_the_mesh_that_it_was_exported_over():
    """Which is refused nothing: a shard_map is for these devices."""
    mesh = AbstractMesh((4, 2), AXES)
    alone = meshrt.shard_map(lambda x: 2 * x, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    exported = through_bytes(meshrt.jit(alone))(X)
    for same in (mesh, AbstractMesh((4, 2), ("a", "b")), mesh_of((4, 2), AXES, AxisType.Explicit)):
        assert exported.over(same) is exported
    said = "was exported over .* and is asked for over axes .'data': 2, 'model': 4.*it has a shard_map"
    with pytest.raises(errors.MeshMismatchError, match=said):
        exported.over(AbstractMesh((2, 4), AXES))


def test_sizes_that_do_not_divide_as_jit_refuses_them():
    two, eight = AbstractMesh((2,), ("data",)), mesh_of((8,), ("data",))
    x = meshrt.device_put(X[:4], NamedSharding(eight, P()))
    for which in ("in_shardings", "out_shardings"):
        jitted = lambda mesh: meshrt.jit(
            lambda x: 2 * x, **{"in_shardings": NamedSharding(mesh, P()), which: NamedSharding(mesh, P("data"))}
        )
        exported = through_bytes(jitted(two))(X[:4])
        np.testing.assert_array_equal(exported.call(X[:4]), 2 * X[:4])
        for use, arg in ((jitted(eight), X[:4]), (exported.call, x)):
            with pytest.raises(errors.IndivisibleError):
                use(arg)


def test_symbolic_sizes_divide_at_calls():
    (b,) = export.symbolic_shape("b")
    split = NamedSharding(AbstractMesh((2,), ("data",)), P("data"))
    function = lambda x: lax.with_sharding_constraint(2 * x, split) + x.shape[0]
    exported = through_bytes(meshrt.jit(function, in_shardings=split))(meshrt.ShapeDtypeStruct((2 * b, 16), X.dtype))
    whole = NamedSharding(mesh_of((8,), ("data",)), P())
    np.testing.assert_array_equal(exported.call(X), 2 * X + 16)
    np.testing.assert_array_equal(exported.call(meshrt.device_put(X, whole)), 2 * X + 16)
    with pytest.raises(errors.IndivisibleError, match=re.escape("'data': 8")):
        exported.call(meshrt.device_put(X[:4], whole))
    written = export.deserialize(exported.over(whole.mesh).serialize())
    np.testing.assert_array_equal(written.call(meshrt.device_put(X, whole)), 2 * X + 16)
    with pytest.raises(errors.IndivisibleError, match=r"args\[0\] of .* cannot be sharded so over"):
        written.call(meshrt.device_put(X[:4], whole))


def test_parts_of_axes():
    text = """
    module {
      sdy.mesh @mesh = <["x"=8]>
      func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
        %0 = sdy.sharding_constraint %x <@mesh, [{"x":(1)2}]> : tensor<8xf32>
        return %0 : tensor<8xf32>
      }
    }"""
    f = export.from_stablehlo(text)
    with pytest.raises(errors.MeshMismatchError, match="a part of the axis 'x'"):
        f.call(X[0, :8])
    x = meshrt.device_put(X[0, :8], NamedSharding(mesh_of((8,), ("x",)), P()))
    np.testing.assert_array_equal(f.call(x), X[0, :8])
