"""Exported functions of JAX's read here, and ours read by JAX."""

from __future__ import annotations

import collections
import random
import re

import jax
import jax.export
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, export

pytest.importorskip("flatbuffers")
X = np.arange(4, dtype=np.float32)


def functions(np_, lax):
    return {
        "plain": (lambda x: np_.sin(x) * 2, (X,)),
        "trees": (lambda p: {"a": p["x"] + 1, "b": (p["y"][0], [None, p["x"]])}, ({"x": X, "y": (X,)},)),
        "integers": (lambda x: (x // 2, x > 1), (np.arange(5, dtype=np.int32),)),
        "sorted": (lambda x: np_.sort(-x), (X,)),
        "loop": (lambda x: lax.fori_loop(0, 3, lambda i, c: c * x, x), (X,)),
    }


def same(found, expected):
    assert len(meshrt.tree.leaves(found)) == len(jax.tree.leaves(expected))
    for a, b in zip(meshrt.tree.leaves(found), jax.tree.leaves(expected)):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("name", functions(jnp, meshrt.lax))
def test_from_jax(name):
    fun, args = functions(jax.numpy, jax.lax)[name]
    exported = export.from_jax(jax.export.export(jax.jit(fun))(*args).serialize())
    same(exported.call(*args), fun(*args))
    same(export.from_jax(jax.export.export(jax.jit(fun))(*args).serialize(), trusted=True).call(*args), fun(*args))
    again = export.deserialize(exported.serialize())
    same(again.call(*args), fun(*args))


@pytest.mark.parametrize("name", functions(jnp, meshrt.lax))
def test_to_jax(name):
    fun, args = functions(jnp, meshrt.lax)[name]
    exported = export.export(meshrt.jit(fun))(*args)
    theirs = jax.export.deserialize(export.to_jax(exported))
    same(fun(*args), theirs.call(*args))
    assert [str(a) for a in theirs.in_avals] == [str(a) for a in exported.in_avals]
    assert theirs.fun_name == exported.fun_name and theirs.platforms == exported.platforms


def factorised(lib):
    """A function of LAPACK's, called as one with side effects, exported by a library."""
    out = (lib.ShapeDtypeStruct((2, 2), np.float32), lib.ShapeDtypeStruct((), np.int32))
    call = lib.ffi.ffi_call(
        "lapack_spotrf_ffi", out, has_side_effect=True, input_layouts=[(0, 1)], output_layouts=[(0, 1), ()]
    )
    check = lib.export.DisabledSafetyCheck.custom_call("lapack_spotrf_ffi")
    matrix = 4 * np.eye(2, dtype=np.float32)
    lib.numpy.linalg.cholesky(matrix)  # has the function registered
    return lib.export.export(lib.jit(lambda x: call(x, uplo=np.uint8(ord("L")))[0]), disabled_checks=[check])(matrix)


def test_effects_of_foreign_functions():
    matrix = 4 * np.eye(2, dtype=np.float32)
    ours, theirs = factorised(meshrt), factorised(jax)
    for exported in (ours, export.deserialize(ours.serialize()), export.from_jax(theirs.serialize())):
        assert exported.unordered_effects == ours.unordered_effects != ()
        assert "spotrf" in meshrt.jit(lambda x: (exported.call(x), x)[1]).lower(matrix).as_text()
        np.testing.assert_array_equal(exported.call(matrix), 2 * np.eye(2))
    read = jax.export.deserialize(export.to_jax(ours))
    assert read.unordered_effects == theirs.unordered_effects
    np.testing.assert_array_equal(read.call(matrix), 2 * np.eye(2))


def test_effects_that_have_no_names_in_files_of_jax():
    sink = export.export(meshrt.jit(lambda x: (meshrt.lax.dce_sink(x), x)[1]))(X)
    with pytest.raises(errors.UnsupportedError, match=r"has effects, which JAX's files have no names for: NoDCE"):
        export.to_jax(sink)


def test_symbolic_sizes_and_derivatives():
    ours = export.export(meshrt.jit(lambda x: jnp.sin(x) * x.shape[0]))(
        meshrt.ShapeDtypeStruct(export.symbolic_shape("b, 2*n"), np.float32)
    )
    theirs = jax.export.export(jax.jit(lambda x: jax.numpy.sin(x) * x.shape[0]))(
        jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 2*n"), np.float32)
    )
    x = np.ones((3, 4), np.float32)
    read, written = export.from_jax(theirs.serialize(vjp_order=1)), jax.export.deserialize(export.to_jax(ours, 1))
    np.testing.assert_allclose(read.call(x), 3 * np.sin(x), rtol=1e-6)
    np.testing.assert_allclose(written.call(x), 3 * np.sin(x), rtol=1e-6)
    np.testing.assert_allclose(meshrt.grad(lambda x: read.call(x).sum())(x), 3 * np.cos(x), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda x: written.call(x).sum())(x), 3 * np.cos(x), rtol=1e-6)
    assert str(read.in_avals[0].shape) == str(written.in_avals[0].shape) == "(b, 2*n)"
    with pytest.raises(ValueError, match="Division had remainder 1"):
        read.call(np.ones((3, 3), np.float32))


def test_modules_say_whether_they_take_sizes_or_a_platform():
    """Both ways: who runs the module looks for the attribute."""
    for sizes, platforms in (("4", ["cpu"]), ("b", ["cpu"]), ("4", ["cpu", "tpu"])):
        texts = []
        for frontend, numpy in ((meshrt, jnp), (jax, jax.numpy)):
            struct = frontend.ShapeDtypeStruct(frontend.export.symbolic_shape(sizes), np.float32)
            made = frontend.export.export(frontend.jit(numpy.sin), platforms=platforms)(struct)
            texts.append(re.findall(r"jax.uses_shape_polymorphism = \w+", made.mlir_module()))
        assert len(texts[0]) == 1 and texts[0] == texts[1]


def test_several_platforms():
    ours = export.export(meshrt.jit(jnp.sin), platforms=["tpu", "cpu"])(X)
    theirs = jax.export.export(jax.jit(jax.numpy.sin), platforms=["tpu", "cpu"])(X)
    np.testing.assert_allclose(export.from_jax(theirs.serialize()).call(X), np.sin(X), rtol=1e-6)
    np.testing.assert_allclose(jax.export.deserialize(export.to_jax(ours)).call(X), np.sin(X), rtol=1e-6)


def test_sharded():
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    sharded = NamedSharding(mesh, PartitionSpec("x"))
    theirs = jax.export.export(jax.jit(lambda x: x * 2, in_shardings=sharded))(X)
    read = export.from_jax(theirs.serialize())
    assert read.nr_devices == 2 and read.in_shardings[0].spec == meshrt.P("x")
    own = meshrt.sharding.Mesh(meshrt.devices()[2:4], ("y",))
    np.testing.assert_array_equal(read.call(meshrt.device_put(X, read.in_shardings_jax(own)[0])), 2 * X)


State = collections.namedtuple("State", ["weights", "step"])


class Named:
    def __init__(self, value, name):
        self.value, self.name = value, name


def test_containers_that_both_know_by_a_name():
    for lib in (jax, meshrt):
        flat = lambda n: ((n.value,), n.name)
        lib.tree_util.register_pytree_node(Named, flat, lambda name, children: Named(children[0], name))
        lib.export.register_pytree_node_serialization(
            Named, serialized_name="test.Named", serialize_auxdata=str.encode,
            deserialize_auxdata=lambda data: bytes(data).decode(),
        )  # fmt: skip
        lib.export.register_namedtuple_serialization(State, serialized_name="test.State")

    f = lambda s, o: (Named(s.weights["b"].value + o["y"], "sum"), State(o["x"], s))
    args = State({"b": Named(X, "n")}, X), collections.OrderedDict(y=X + 1, x=X)
    ours = export.from_jax(jax.export.export(jax.jit(f))(*args).serialize())
    theirs = jax.export.deserialize(export.to_jax(export.export(meshrt.jit(f))(*args)))
    for called in (ours.call(*args), theirs.call(*args)):
        assert called[0].name == "sum" and type(called[1]) is type(called[1].step) is State
        np.testing.assert_array_equal(called[0].value, X + X + 1)
    assert (ours.in_tree, ours.out_tree) == tuple(map(meshrt.tree.structure, ((args, {}), f(*args))))


def test_containers_that_only_jax_knows():
    Other = collections.namedtuple("Other", ["a"])
    jax.export.register_namedtuple_serialization(Other, serialized_name="test.Other")
    blob = jax.export.export(jax.jit(lambda o: o.a))(Other(X)).serialize()
    with pytest.raises(errors.TreeError, match=r"nodes called 'test.Other', which is not registered here"):
        export.from_jax(blob)


def test_what_jax_has_no_place_for():
    tree = export.export(meshrt.jit(lambda x: x))({1: X})
    with pytest.raises(errors.UnsupportedError, match="names as keys"):
        export.to_jax(tree)


def test_damaged_files_of_jax():
    data, rng = bytes(jax.export.export(jax.jit(jax.numpy.sin))(X).serialize()), random.Random(1)
    variants = [data[:n] for n in range(0, 400, 7)] + [b"", b"\xff" * 64]
    for _ in range(500):
        changed = bytearray(data)
        for _ in range(3):
            changed[rng.randrange(400)] = rng.randrange(256)
        variants.append(bytes(changed))
    for variant in variants:
        try:
            export.from_jax(variant)
        except (errors.SavedProgramError, errors.UnsupportedError, errors.TreeError):
            pass


def test_trusted_files_are_read_in_this_process(monkeypatch):
    blob = jax.export.export(jax.jit(jax.numpy.sin))(X).serialize(vjp_order=1)
    monkeypatch.setattr("propagation.bytecode.to_text", lambda data: pytest.fail("a process was started"))
    f = export.from_jax(blob, trusted=True)
    np.testing.assert_allclose(meshrt.grad(lambda x: f.call(x).sum())(X), np.cos(X), rtol=1e-6)
