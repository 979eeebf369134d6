"""Meshes of shard_map: contexts, AbstractMesh and other devices, some axes only, nesting, sizes of one; caches."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
from meshrt import P, lax
from meshrt import numpy as jnp
from meshrt.runtime import events
from meshrt.sharding import AbstractMesh, Mesh, NamedSharding
from tests.meshrt.shard_map.libraries import ours, same, theirs

A = np.random.RandomState(0).randn(8, 4).astype(np.float32)
W = (np.random.RandomState(1).randn(4, 4) * 0.3).astype(np.float32)
OTHER = {"explicit": ("Explicit", ("e",), (8,)), "of other sizes": ("Explicit", ("x", "y"), (2, 4))}
STATIONS = ("trace", "lower", "propagate", "partition", "compile")


def body(a, w):
    return jnp.tanh(a @ w) * lax.psum(a.sum(), "x")


def plain(a, w):
    rows = a.reshape(4, 2, 4).sum(axis=(1, 2)).sum()
    return np.tanh(a @ w) * rows


def over(mesh, **changes):
    settings = {"mesh": mesh, "in_specs": (P("x"), P()), "out_specs": P("x"), **changes}
    return meshrt.shard_map(body, **settings)


@pytest.mark.parametrize("kind", ["eager", "jit", "grad"])
@pytest.mark.parametrize("where", ["mesh.abstract_mesh", "built by hand", "in context"])
def test_002_17_other_devices_of_the_shape_cost_a_load_only(kind, where):
    devices = np.array(meshrt.devices()).reshape(4, 2)
    meshes = [Mesh(d, ("x", "y")) for d in (devices, devices[::-1], devices[[2, 0, 3, 1]])]
    abstract = {"mesh.abstract_mesh": meshes[0].abstract_mesh, "built by hand": AbstractMesh((4, 2), ("x", "y"))}
    f = over(abstract.get(where))
    if kind == "jit":
        f = meshrt.jit(f)
    elif kind == "grad":
        g = f
        f = meshrt.jit(meshrt.grad(lambda a, w: g(a, w).sum(), argnums=1))
    want = None
    for mesh in meshes:
        a = meshrt.device_put(A, NamedSharding(mesh, P("x")))
        w = meshrt.device_put(W, NamedSharding(mesh, P()))
        with events.count(*STATIONS) as counts:
            if where == "in context":
                with meshrt.set_mesh(mesh):
                    got = f(a, w)
            else:
                got = f(a, w)
        assert got.sharding.mesh is mesh
        if want is not None:
            assert not any(counts.as_dict().values()), counts
            np.testing.assert_array_equal(got, want)
        want = np.asarray(got)
    if kind != "grad":
        np.testing.assert_allclose(want, plain(A, W), rtol=1e-4, atol=1e-5)


def test_eager_calls_are_one_program_that_is_kept():
    f = over(ours().mesh((4, 2), ("x", "y")))
    f(A, W)
    with events.count(*STATIONS, "dispatch_miss") as counts:
        f(A, W)
    assert not any(counts.as_dict().values())
    static = meshrt.shard_map(
        lambda a, k: a * k["scale"], mesh=ours().mesh((8,), ("x",)), in_specs=(P("x"), None), out_specs=P("x")
    )
    same(static(A, {"scale": 2.0}), A * 2)
    with events.count("compile") as counts:
        same(static(A, {"scale": 2.0}), A * 2)
    assert counts["compile"] == 0
    same(static(A, {"scale": 3.0}), A * 3)
    same(static(A, {"scale": np.float32([1, 2, 3, 4])}), A * np.float32([1, 2, 3, 4]))


@pytest.mark.parametrize("sizes", [(8,), (4, 2), (2, 2, 2), (6,), (1, 8), (3, 2)])
@pytest.mark.parametrize("partitioner", ["meshrt", "xla"])
def test_meshes(sizes, partitioner):
    names = ("x", "y", "z")[: len(sizes)]
    L, n = ours(), int(np.prod(sizes))
    a = np.arange(n * 6, dtype=np.float32).reshape(n * 2, 3)

    def one(a):
        place = lax.axis_index(names)
        return lax.psum(a * (place + 1), names), a + place, lax.axis_index(names[-1])[None]

    f = meshrt.shard_map(one, mesh=L.mesh(sizes, names), in_specs=P(names), out_specs=(P(), P(names), P(names[-1])))
    with meshrt.config.override(partitioner=partitioner):
        total, moved, last = meshrt.jit(f)(a)
    parts = a.reshape(n, 2, 3)
    same(total, (parts * (np.arange(n) + 1)[:, None, None]).sum(0).astype(np.float32))
    same(moved, (parts + np.arange(n)[:, None, None]).reshape(a.shape).astype(np.float32))
    same(last, np.arange(sizes[-1], dtype=np.int32))


@pytest.mark.parametrize("partitioner", ["meshrt", "xla"])
def test_some_axes_only(partitioner):
    """The others stay Auto: constraints name them, and products over them are partitioned."""
    mesh = ours().mesh((4, 2), ("x", "y"))

    def inside(a, w):
        h = lax.with_sharding_constraint(a @ w, P(None, "y"))
        return lax.psum(jnp.sin(h) @ w.T, "x"), h

    f = meshrt.shard_map(inside, mesh=mesh, in_specs=(P("x"), P()), out_specs=(P(), P("x")), axis_names={"x"})
    loss = lambda a, w: sum((o**2).sum() for o in f(a, w))
    h = A @ W
    with meshrt.config.override(partitioner=partitioner):
        out = meshrt.jit(f)(A, meshrt.device_put(W, NamedSharding(mesh, P(None, "y"))))
        grad = meshrt.jit(meshrt.grad(loss, argnums=(0, 1)))(A, W)
    np.testing.assert_allclose(out[0], (np.sin(h) @ W.T).reshape(4, 2, 4).sum(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(out[1], h, rtol=1e-4, atol=1e-5)
    assert out[1].sharding.spec == P("x", "y") or partitioner == "xla"

    def judge(a, w):
        h = a @ w
        return ((jnp.sin(h) @ w.T).reshape(4, 2, 4).sum(0) ** 2).sum() + (h**2).sum()

    same(grad, meshrt.grad(judge, argnums=(0, 1))(A, W), 1e-3)


@pytest.mark.parametrize("partitioner", ["meshrt", "xla"])
def test_nesting(partitioner):
    mesh = ours().mesh((2, 2, 2), ("x", "y", "z"))

    def inner(a, w):
        return lax.psum(a @ w, "y") + lax.axis_index("x")

    def middle(a, w):
        specs = {"in_specs": (P(None, "y"), P("y")), "out_specs": P(), "axis_names": {"y"}}
        return meshrt.shard_map(inner, **specs)(jnp.sin(a), w) + w.sum()

    f = meshrt.shard_map(middle, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), axis_names={"x"})
    judge = lambda a, w: jnp.sin(a) @ w + jnp.repeat(jnp.arange(2), 4)[:, None] + w.sum()
    loss = lambda f: lambda a, w: (f(a, w) ** 2).sum()
    with meshrt.config.override(partitioner=partitioner):
        same(meshrt.jit(f)(A, W), judge(A, W), 1e-4)
        same(
            meshrt.jit(meshrt.grad(loss(f), argnums=(0, 1)))(A, W), meshrt.grad(loss(judge), argnums=(0, 1))(A, W), 1e-3
        )
    same(f(A, W), judge(A, W), 1e-4)
    same(meshrt.jit(meshrt.vmap(f))(A[None], W[None]), judge(A, W)[None], 1e-4)


def test_arrays_on_another_mesh_of_the_same_devices():
    f = over(ours().mesh((4, 2), ("x", "y")), out_specs=P("x"))
    a = meshrt.device_put(A, NamedSharding(ours().mesh((2, 4), ("a", "b")), P("b")))
    np.testing.assert_allclose(meshrt.jit(f)(a, W), plain(A, W), rtol=1e-4, atol=1e-5)


def test_smap_is_one_axis_at_a_time():
    found = {}
    for L in (theirs(), ours()):
        mesh = L.mesh((4, 2), ("x", "y"))

        def inner(a, L=L):
            return a * L.lax.axis_index("x") + L.smap(
                lambda b: b + L.lax.axis_index("y"), in_axes=1, out_axes=1, axis_name="y"
            )(a)

        with L.set_mesh(mesh):
            f = L.smap(inner, in_axes=0, out_axes=0, axis_name="x")
            found[L.api.__name__] = L.jit(f)(A)
    same(found["meshrt"], found["jax"])


def test_the_old_spelling():
    from meshrt.experimental.shard_map import shard_map

    mesh = ours().mesh((4, 2), ("x", "y"))
    f = shard_map(
        lambda a: a * lax.axis_index("x"),
        mesh,
        in_specs=P("x"),
        out_specs=P("x"),
        check_rep=False,
        auto=frozenset({"y"}),
    )
    same(f(A), (A.reshape(4, 2, 4) * np.arange(4)[:, None, None]).reshape(8, 4).astype(np.float32))


def test_a_mapped_dimension_is_laid_along_a_mesh_axis():
    """Reference 5.15: vmap(spmd_axis_name) of a shard_map splits the mapped dimension and changes no value."""
    mesh = ours().mesh((4, 2), ("x", "y"))
    f = meshrt.vmap(over(mesh), in_axes=(0, None), spmd_axis_name="y")
    batch = np.stack([A, A * 2])
    out = meshrt.jit(f)(batch, W)
    assert out.sharding.spec == P("y", "x")
    np.testing.assert_allclose(out, np.stack([plain(a, W) for a in batch]), rtol=1e-4, atol=1e-5)
    grads = [
        meshrt.grad(lambda w, g=g: (g(batch, w) ** 2).sum())(W) for g in (f, meshrt.vmap(over(mesh), in_axes=(0, None)))
    ]
    same(*grads, 1e-4)


def inner_index(L):
    body = lambda a: a * L.lax.axis_index("y")
    return lambda a: L.shard_map(body, out_specs=L.P(None, "y"), axis_names={"y"})(a)


def weighted(L, a):
    body = lambda a: L.np.sin(a) * L.lax.psum(a.sum(), ("x", "y"))
    return (L.shard_map(body, out_specs=L.P("x", "y"))(a) ** 2).sum()


double = lambda a: a * 2
B = np.stack([A, A])
EXPLICIT = {
    "specs in types": lambda L: (L.shard_map(double, out_specs=L.P("x", "y")), A, ("x", "y")),
    "one axis": lambda L: (L.jit(L.shard_map(double, out_specs=L.P("x"), axis_names={"x"})), A, ("x", "y")),
    "sum": lambda L: (
        L.jit(L.shard_map(lambda a: L.lax.psum(a, "x"), out_specs=L.P(), axis_names={"x"})), A, ("x", "y")
    ),
    "grad": lambda L: (L.jit(L.grad(lambda a: weighted(L, a))), A, ("x", "y")),
    "added": lambda L: (L.jit(lambda a: L.shard_map(double, out_specs=L.P("x", "y"))(a) + a), A, ("x", "y")),
    "smap": lambda L: (L.jit(L.smap(double, out_axes=0, axis_name="x")), A, ("x", "y")),
    "vmap": lambda L: (L.jit(L.vmap(L.shard_map(double, out_specs=L.P("x")))), B, (None, "x")),
    "vmap along an axis": lambda L: (
        L.jit(L.vmap(L.shard_map(double, out_specs=L.P("x")), spmd_axis_name="y")), B, (None, "x")
    ),
    "nested": lambda L: (L.jit(L.shard_map(inner_index(L), out_specs=L.P("x"), axis_names={"x"})), A, ("x", "y")),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPLICIT)
def test_explicit_axes(name):
    found = []
    for L in (ours(), theirs()):
        mesh = L.mesh((4, 2), ("x", "y"), "Explicit")
        with L.set_mesh(mesh):
            f, value, entries = EXPLICIT[name](L)
            found.append(f(L.device_put(value, L.sharding.NamedSharding(mesh, L.P(*entries)))))
    same(*found, 1e-4)
    assert str(meshrt.typeof(found[0])) == str(theirs().typeof(found[1]))


def test_gradients_of_what_is_mapped_along_an_explicit_axis():
    """JAX has none: its cotangents are split as the results are, not as the arguments."""
    mesh = ours().mesh((4, 2), ("x", "y"), "Explicit")
    body = lambda a, w: jnp.sin(a) @ lax.psum(w, "x")
    region = meshrt.shard_map(body, mesh=mesh, in_specs=(P("x"), P("x")), out_specs=P("x"))
    with meshrt.set_mesh(mesh):
        a, w = (meshrt.device_put(v, NamedSharding(mesh, P(None, "x"))) for v in (B, np.stack([W.repeat(4, 0)] * 2)))
        found = []
        for along in (None, "y"):
            mapped = meshrt.vmap(region, spmd_axis_name=along)
            assert str(meshrt.typeof(meshrt.jit(mapped)(a, w))).startswith("float32[2@y" if along else "float32[2,")
            found.append(meshrt.jit(meshrt.grad(lambda a, w: (mapped(a, w) ** 2).sum(), (0, 1)))(a, w))
    for plain_one, along_one in zip(*found):
        assert str(meshrt.typeof(plain_one)) == str(meshrt.typeof(along_one))
        same(plain_one, along_one, 1e-4)


def test_explicit_arguments_are_resharded_when_asked_and_captured_values_are_whole():
    mesh = ours().mesh((4, 2), ("x", "y"), "Explicit")
    put = lambda v, *s: meshrt.device_put(v, NamedSharding(mesh, P(*s)))
    with meshrt.set_mesh(mesh):
        moved = meshrt.shard_map(lambda a: a * 2, in_specs=P("y"), out_specs=P("y"), reshard_inputs=True)(
            put(A, "x", "y")
        )
        assert moved.sharding.spec == P("y", None) or moved.sharding.spec == P("y")
        same(moved, A * 2)
        seen = []
        w = put(W, "x")
        f = lambda a, w: meshrt.shard_map(lambda a: seen.append(str(meshrt.typeof(a @ w))) or a @ w, out_specs=P("x"))(
            a
        )
        same(meshrt.jit(f)(put(A, "x", None), w), A @ W, 1e-5)
        same(meshrt.jit(lambda a: f(a, w))(put(A, "x", None)), A @ W, 1e-5)
        assert set(seen) == {"float32[2,4]{V:x}"}


def by_hand(L):
    """Regions over 2x3 and 3x2, whose bounds are in no one mesh; they ask which device they are on."""
    by_two, by_three = L.mesh((2, 3), ("a", "b")), L.mesh((3, 2), ("c", "d"))
    f = meshrt.shard_map(lambda x: x * (1 + lax.axis_index("c")), mesh=by_three, in_specs=P("c"), out_specs=P("c"))
    g = meshrt.shard_map(
        lambda x: x * (10 + lax.axis_index(("a", "b"))) + lax.ppermute(x, "a", [(0, 1), (1, 0)]),
        mesh=by_two, in_specs=P("a", "b"), out_specs=P("a", "b"),
    )  # fmt: skip
    total = meshrt.shard_map(lambda x: lax.psum(x, "a"), mesh=by_two, in_specs=P("a"), out_specs=P())
    return f, g, total, lambda x: lax.with_sharding_constraint(x * 2, NamedSharding(by_three, P("c")))


def on_whole_arrays():
    f = lambda x: x * np.repeat([1, 2, 3], 2)[:, None]
    g = lambda x: x * (10 + np.repeat(np.repeat([[0, 1, 2], [3, 4, 5]], 3, 0), 2, 1)) + jnp.roll(x, 3, 0)
    return f, g, lambda x: x.reshape(2, 3, 6).sum(0), lambda x: x * 2


JOINT = {
    "one after the other": lambda f, g, total, doubled: lambda x: g(f(x)),
    "there and back": lambda f, g, total, doubled: lambda x: f(jnp.sin(g(f(x)))),
    "after a constraint": lambda f, g, total, doubled: lambda x: total(doubled(x)),
    "gradient": lambda f, g, total, doubled: meshrt.grad(lambda x: (jnp.sin(g(f(x))) * total(doubled(x)).sum()).sum()),
}


@pytest.mark.parametrize("partitioner", ["meshrt", "xla"])
@pytest.mark.parametrize("name", JOINT)
def test_regions_over_meshes_that_have_none_in_common(name, partitioner):
    x = np.random.RandomState(0).randn(6, 6).astype(np.float32)
    with meshrt.config.override(partitioner=partitioner):
        got = meshrt.jit(JOINT[name](*by_hand(ours())))(x)
    same(got, JOINT[name](*on_whole_arrays())(x), 1e-3)


def test_an_argument_over_another_mesh_and_a_region_over_some_axes():
    L = ours()
    by_two, by_three = L.mesh((2, 3), ("a", "b")), L.mesh((3, 2), ("c", "d"))
    x = meshrt.device_put(np.arange(36, dtype=np.float32).reshape(6, 6), NamedSharding(by_three, P("d", "c")))
    f = lambda **some: meshrt.shard_map(
        lambda x: x + lax.axis_index("a"), mesh=by_two, in_specs=P("a"), out_specs=P("a"), **some
    )
    same(meshrt.jit(f())(x), np.asarray(x) + np.repeat(np.float32([0, 1]), 3)[:, None])
    with pytest.raises(meshrt.errors.MeshMismatchError, match="whole axes are needed"):
        meshrt.jit(f(axis_names={"a"}))(x)


@pytest.mark.parametrize("how", ["eager", "jit"])
@pytest.mark.parametrize("name", OTHER)
def test_an_argument_of_a_type_over_another_mesh_is_told_from_it(name, how):
    """JAX ends in a KeyError here, or a type that says nothing."""
    kind, axes, sizes = OTHER[name]
    kinds = (getattr(meshrt.sharding.AxisType, kind),) * len(axes)
    other = meshrt.make_mesh(sizes, axes, axis_types=kinds)
    mesh = meshrt.make_mesh((4, 2), ("x", "y"), axis_types=(meshrt.sharding.AxisType.Auto,) * 2)
    a = meshrt.device_put(A, NamedSharding(other, P(axes[0])))
    f = over(mesh)
    f = meshrt.jit(f) if how == "jit" else f
    with pytest.raises(meshrt.errors.MeshMismatchError, match=r"args\[0\] of the shard_map of body has the type f32"):
        f(a, W)
    moved = meshrt.jit(lambda a, w: over(mesh)(meshrt.reshard(a, NamedSharding(mesh, P())), w))
    np.testing.assert_allclose(np.asarray(moved(a, W)), plain(A, W), rtol=1e-5, atol=1e-5)
