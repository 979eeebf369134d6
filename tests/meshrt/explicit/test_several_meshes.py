"""Programs whose values have types over several meshes of the same devices: beside JAX, and moved by `reshard`."""

from __future__ import annotations

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy
from meshrt import errors
from meshrt.sharding import NamedSharding
from meshrt.sharding import PartitionSpec as P

X = np.arange(64, dtype=np.float32).reshape(8, 8) / 10
SHAPES = {"m42": ((4, 2), "xy"), "m24": ((2, 4), "ab"), "m8": ((8,), "x"), "m222": ((2, 2, 2), "pqr")}


class Library:
    """One of the two libraries, with the meshes; `auto` has the axes of `m42`, which propagation decides along."""

    def __init__(self, root, jnp):
        self.root, self.jnp, self.lax = root, jnp, root.lax
        kind = root.sharding.AxisType
        make = lambda shape, names, k: root.make_mesh(shape, tuple(names), axis_types=(k,) * len(names))
        self.meshes = {name: make(*sizes, kind.Explicit) for name, sizes in SHAPES.items()}
        self.meshes["auto"] = make(*SHAPES["m42"], kind.Auto)

    def on(self, mesh, *spec):
        return self.root.sharding.NamedSharding(self.meshes[mesh], self.root.sharding.PartitionSpec(*spec))

    def put(self, mesh, *spec):
        return self.root.device_put(X, self.on(mesh, *spec))

    def to(self, value, mesh, *spec):
        return self.root.sharding.reshard(value, self.on(mesh, *spec))


LIBRARIES = (Library(meshrt, meshrt.numpy), Library(jax, jax.numpy))


def chain(lib):
    def run(a):
        b = lib.to(lib.jnp.sin(a), "m24", "b", "a")
        c = lib.to(b * 2, "m8", None, "x")
        return b, c, lib.to(c.sum(0), "m222", ("p", "r"))

    return lib.root.jit(run)(lib.put("m42", "x", "y"))


def gradient(lib):
    return lib.root.jit(lib.root.grad(lambda a: (lib.to(lib.jnp.sin(a), "m24", "b", "a") ** 2).sum()))(
        lib.put("m42", "x", "y")
    )


def batched(lib):
    return lib.root.jit(lib.root.vmap(lambda a: lib.to(a * 2, "m24", "b")))(lib.put("m42", None, "y"))


def loop(lib):
    def run(a):
        begin, rows = lib.to(a[0] * 0, "m24", "b"), lib.to(a, "m24", None, "b")
        return lib.lax.scan(lambda c, x: (lib.to(c + x, "m24", "b"), c), begin, rows)

    return lib.root.jit(run)(lib.put("m42", None, "y"))


def apart(lib):
    inner = lib.root.jit(lambda v: lib.jnp.tanh(v) @ lib.jnp.ones((8, 4)))
    return lib.root.jit(lambda a, b: (inner(a), inner(b)))(lib.put("m42", "x"), lib.put("m24", "b"))


def auto_beside_explicit(lib):
    return lib.root.jit(lambda a, b: (a * 2, b + 1))(lib.put("auto", "x"), lib.put("m42", "x"))


def constrained_beside_explicit(lib):
    run = lambda a, b: (lib.lax.with_sharding_constraint(a * 2, lib.on("auto", None, "x")), b + 1)
    return lib.root.jit(run)(lib.put("auto", "x"), lib.put("m24", "a"))


def given_out_sharding(lib):
    return lib.root.jit(lambda a: a * 2, out_shardings=lib.on("m24", "a", "b"))(lib.put("m42", "x"))


def mapped(lib):
    spec = lib.root.sharding.PartitionSpec
    total = lib.root.shard_map(
        lambda v: lib.lax.psum(v, "a"), mesh=lib.meshes["m24"], in_specs=spec("a"), out_specs=spec()
    )
    return lib.root.jit(lambda a, b: (a * 2, total(b) + 0))(lib.put("m42", "x"), lib.put("m24", "a"))


PROGRAMS = (
    chain, gradient, batched, loop, apart, auto_beside_explicit, constrained_beside_explicit, given_out_sharding,
    mapped,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_values_types_and_shardings_are_those_of_jax(program) -> None:
    ours, theirs = (lib.root.tree.leaves(program(lib)) for lib in LIBRARIES)
    for mine, its in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(its), rtol=1e-5, atol=1e-6)
        assert str(meshrt.typeof(mine)) == str(jax.typeof(its))
        assert mine.sharding.is_fully_replicated or str(mine.sharding.spec) == str(its.sharding.spec)
        assert mine.sharding.is_fully_replicated or mine.sharding.mesh.axis_names == its.sharding.mesh.axis_names


@pytest.mark.parametrize("partitioner", ["meshrt", "xla"])
def test_meshes_without_a_common_refinement(partitioner) -> None:
    devices = np.array(meshrt.devices()[:6])
    kinds = (meshrt.sharding.AxisType.Explicit,) * 2
    one = meshrt.sharding.Mesh(devices.reshape(2, 3), ("a", "b"), axis_types=kinds)
    other = meshrt.sharding.Mesh(devices.reshape(3, 2), ("c", "d"), axis_types=kinds)
    P = meshrt.P
    value = np.arange(36, dtype=np.float32).reshape(6, 6)
    run = lambda a: (a + 1, meshrt.sharding.reshard(a * 2, meshrt.sharding.NamedSharding(other, P("c", "d"))))
    x = meshrt.device_put(value, meshrt.sharding.NamedSharding(one, P("a", "b")))
    before = meshrt.config.settings.partitioner
    meshrt.config.update("partitioner", partitioner)
    try:
        first, second = meshrt.jit(run)(x)
    finally:
        meshrt.config.update("partitioner", before)
    np.testing.assert_array_equal(first, value + 1)
    np.testing.assert_array_equal(second, value * 2)
    types = [str(meshrt.typeof(v)).removeprefix("ShapedArray(").removesuffix(")") for v in (first, second)]
    assert types == ["float32[6@a,6@b]", "float32[6@c,6@d]"]


def test_a_program_stays_on_its_devices() -> None:
    lib = LIBRARIES[0]
    small = meshrt.sharding.Mesh(
        np.array(meshrt.devices()[:4]), ("x",), axis_types=(meshrt.sharding.AxisType.Explicit,)
    )
    to = meshrt.sharding.NamedSharding(small, meshrt.P("x"))
    with pytest.raises(errors.MeshMismatchError, match="8 devices"):
        meshrt.jit(lambda a: meshrt.sharding.reshard(a, to))(lib.put("m42", "x"))


def test_types_follow_the_mesh_in_context() -> None:
    lib = LIBRARIES[0]
    for context, value in (("m8", lib.put("m42", "x")), ("m42", lib.put("auto", "x"))):
        with meshrt.set_mesh(lib.meshes[context]), pytest.raises(errors.MeshMismatchError, match="mesh in context"):
            meshrt.jit(lambda a: a + 1)(value)


@pytest.mark.parametrize("lib", LIBRARIES, ids=["meshrt", "jax"])
def test_the_mesh_in_context_gives_axes_other_names(lib: Library) -> None:
    x, kinds = lib.put("m42", "x", "y"), lib.root.sharding
    with lib.root.set_mesh(lib.meshes["m42"].update(axis_names=("a", "b"))):
        assert lib.root.typeof(x).sharding.spec == kinds.PartitionSpec("x", "y")
        moved = kinds.reshard(x, kinds.PartitionSpec("a", "b"))
    assert lib.root.typeof(moved).sharding.spec == kinds.PartitionSpec("a", "b")
    np.testing.assert_array_equal(np.asarray(moved), X)


MEETING = {
    "add": lambda lib, a, b: a + b,
    "where": lambda lib, a, b: lib.jnp.where(a > 0, b, 0.0),
    "after others": lambda lib, a, b: lib.jnp.sin(a).sum() * lib.jnp.tanh(b),
    "in a call": lambda lib, a, b: lib.root.jit(lambda x, y: lib.jnp.sin(x) * y)(a, b),
    "in a loop": lambda lib, a, b: lib.lax.fori_loop(0, 2, lambda i, c: (c[0], c[1] + c[0]), (a, b)),
}
APART = {
    "two results": lambda lib, a, b: (a * 2, b * 2),
    "two results of a call": lambda lib, a, b: lib.root.jit(lambda x, y: (x * 2, y + 1))(a, b),
    "carried side by side": lambda lib, a, b: lib.lax.fori_loop(0, 2, lambda i, c: (c[0] * 2, c[1] * 2), (a, b)),
    "brought over": lambda lib, a, b: lib.to(a * 2, "m42", "x", "y") + b,
}


@pytest.mark.parametrize("case", [*MEETING, *APART])
@pytest.mark.parametrize("spec", [("x",), ()], ids=str)
def test_values_along_auto_axes_and_explicit_ones_do_not_meet(case, spec) -> None:
    def run(lib):
        f = {**MEETING, **APART}[case]
        return lib.root.jit(lambda a, b: f(lib, a, b))(lib.put("auto", *spec), lib.put("m42", "x", "y"))

    ours, theirs = LIBRARIES
    if case in APART:
        for got, want in zip(jax.tree.leaves(run(ours)), jax.tree.leaves(run(theirs)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)
        return
    for lib in LIBRARIES:
        # (JAX's operations disagree on the class.)
        with pytest.raises(ValueError if lib is ours else Exception, match="Mesh for all inputs should be equal"):
            run(lib)


def test_eager_operations_of_two_meshes_name_their_line() -> None:
    lib = LIBRARIES[0]
    with pytest.raises(errors.ShardingTypeError, match=r"Mesh for all inputs.*add of .*test_several_meshes\.py"):
        lib.put("auto", "x") + lib.put("m42", "x")
    assert (lib.put("auto", "x") + 1.0).sharding.mesh is lib.meshes["auto"]


def test_a_clash_of_meshes_names_the_arguments() -> None:
    first, second = (
        meshrt.ShapeDtypeStruct((8, 8), "float32", sharding=NamedSharding(meshrt.make_mesh(n, a), P(a[0])))
        for n, a in (((8,), ("x",)), ((4, 2), ("a", "b")))
    )
    told = r"operand 0 depends on argument p\['w'\], operand 1 depends on arguments p\['b'\] and y"
    with pytest.raises(errors.ShardingTypeError, match=told):
        meshrt.jit(lambda p, y: p["w"] @ (y + p["b"])).trace({"w": first, "b": second}, second)


# What a value over Auto axes may be given to where the mesh in context has Explicit ones; else operations refuse it.
UNDER_EXPLICIT = {
    "handed on": (lambda lib, x: x, None),
    "resharded": (lambda lib, x: lib.root.reshard(x, lib.root.P("y")) + 1, None),
    "an operation": (lambda lib, x: x * 2, "mul"),
    "an operation inside": (lambda lib, x: lib.root.jit(lib.jnp.sin)(x), "sin"),
    "in a branch": (lambda lib, x: lib.lax.cond(True, lib.jnp.sin, lambda x: lib.jnp.sin(x), x), "sin"),
    "in a loop that ends by itself": (
        lambda lib, x: lib.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, lib.jnp.sin(c[1])), (0, x))[1],
        "sin",
    ),
    "in a loop": (lambda lib, x: lib.lax.scan(lambda c, _: (lib.jnp.sin(c), None), x, None, length=2)[0], "sin"),
}


@pytest.mark.parametrize("around, own", [("m42", "auto"), ("auto", "m42"), ("m42", "m24"), ("m24", "auto")])
@pytest.mark.parametrize("case", UNDER_EXPLICIT)
def test_arguments_over_another_mesh_than_that_in_context(case, around, own) -> None:
    program, refused = UNDER_EXPLICIT[case]
    if case == "resharded" and around != "m42":
        pytest.skip("the axis that it names is not there")
    results = []
    for lib in LIBRARIES:
        with lib.root.set_mesh(lib.meshes[around]):
            x = lib.root.device_put(X, lib.on(own, lib.meshes[own].axis_names[0]))
            if refused is None:
                got = lib.root.jit(lambda x, lib=lib: program(lib, x))(x)
                results.append((np.asarray(got), str(got.sharding.spec), got.sharding.mesh.axis_types[0].name))
                continue
            with pytest.raises(
                ValueError, match=f"For primitive {refused}, context mesh .* should match the aval mesh"
            ) as e:
                lib.root.jit(lambda x, lib=lib: program(lib, x))(x)
            if lib is LIBRARIES[0]:
                assert isinstance(e.value, errors.MeshMismatchError)
                assert "test_several_meshes.py" in str(e.value) and "the mesh in context (set at" in str(e.value)
    for ours, theirs in zip(*results) if results else ():
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", ["zeros", "full", "array", "asarray", "arange"])
def test_arrays_made_over_another_mesh_than_that_in_context(name: str) -> None:
    calls = {
        "zeros": lambda np, s: np.zeros(8, out_sharding=s),
        "full": lambda np, s: np.full((8,), np.arange(8), out_sharding=s),
        "array": lambda np, s: np.array([1.0] * 8, out_sharding=s),
        "asarray": lambda np, s: np.asarray([1.0] * 8, out_sharding=s),
        "arange": lambda np, s: np.arange(8, out_sharding=s),
    }
    for lib in (jax, meshrt):
        here, there = lib.make_mesh((4, 2), ("x", "y")), lib.make_mesh((2, 4), ("x", "y"))
        with lib.set_mesh(here), pytest.raises(ValueError, match="should match the mesh of sharding"):
            calls[name](lib.numpy, lib.NamedSharding(there, lib.P("x")))


def test_what_a_trace_refuses_is_told_as_what_a_call_refuses() -> None:
    lib = LIBRARIES[0]
    with lib.root.set_mesh(lib.meshes["m42"]):
        x = lib.root.device_put(X, lib.on("auto", "x"))
        f = meshrt.jit(lambda x: x * 2)
        for way in (f, f.trace, f.lower):
            with pytest.raises(errors.MeshMismatchError, match="For primitive mul, context mesh"):
                way(x)


# Results over Auto axes, of arguments over Explicit ones that split them alike.
BARE = {
    "mapped": lambda lib, a: lib.root.shard_map(
        lambda x: x * 2, mesh=lib.meshes["auto"], in_specs=lib.root.P(("x", "y")), out_specs=lib.root.P(("x", "y"))
    )(lib.to(a, "auto")),
    "constrained": lambda lib, a: lib.lax.with_sharding_constraint(lib.to(a, "auto"), lib.on("auto", ("x", "y"))),
    "resharded": lambda lib, a: lib.to(a, "auto") * 2,
}


@pytest.mark.parametrize("name", BARE)
@pytest.mark.parametrize("lib", LIBRARIES, ids=["meshrt", "jax"])
def test_results_have_outside_the_types_that_they_have_in_the_program(lib, name):
    """They are not shown as the argument is, over Explicit axes."""
    inside = []

    def run(a):
        out = BARE[name](lib, a)
        inside.append(str(lib.root.typeof(out)))
        return out

    jitted, a = lib.root.jit(run), lib.put("m8", "x")
    for out in (jitted(a), jitted.lower(a).compile()(a)):
        assert inside[0] == str(lib.root.typeof(out)) == "float32[8,8]"
        assert out.sharding.mesh.axis_types[0] is lib.root.sharding.AxisType.Auto
        np.testing.assert_allclose(np.asarray(out), X * (1 if name == "constrained" else 2), rtol=1e-6)
