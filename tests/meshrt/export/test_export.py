"""`export`: what an exported function says of itself, calls in other programs, derivatives, platforms, shardings."""

from __future__ import annotations

import collections
import re

import jax
import jax.export
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, export
from meshrt.sharding import AbstractMesh, Mesh, NamedSharding, P
from tests.meshrt.export.exporting import X, spec, through_bytes

# ---------------------------------------------------------------------------------------------------------------------
# Numbered statements


def test_004_06_uses_global_constants():
    f = meshrt.jit(jnp.sin)
    assert not export.export(f)(X).uses_global_constants
    assert export.export(f)(spec("a")).uses_global_constants
    assert export.export(f, platforms=["cpu", "cuda"])(X).uses_global_constants


@pytest.mark.parametrize("version", [8, 9, 10, 11])
def test_004_07_calling_convention_version(version):
    low, high = (
        export.minimum_supported_calling_convention_version, export.maximum_supported_calling_convention_version
    )  # fmt: skip
    with meshrt.config.override(export_calling_convention_version=version):
        if low <= version <= high:
            exported = through_bytes(meshrt.jit(jnp.sin))(spec("w, h"))
            assert exported.calling_convention_version == version
            np.testing.assert_allclose(exported.call(np.ones((2, 3), np.float32)), np.sin(np.ones((2, 3))), rtol=1e-6)
        else:
            with pytest.raises(ValueError, match=f"convention version {version} is outside the range of supported"):
                export.export(meshrt.jit(jnp.sin))(X)


def test_004_08_platforms():
    assert export.export(meshrt.jit(jnp.sin), platforms=("tpu", "cpu"))(X).platforms == ("tpu", "cpu")
    assert export.export(meshrt.jit(jnp.sin), platforms=())(X).platforms == ("cpu",)
    with pytest.raises(ValueError, match="platforms must be different"):
        export.export(meshrt.jit(jnp.sin), platforms=("cpu", "cpu"))(X)


def test_004_09_default_export_platform():
    assert export.default_export_platform() == jax.export.default_export_platform()
    assert export.export(meshrt.jit(jnp.sin))(1.0).platforms == (export.default_export_platform(),)


def test_004_10_avals_are_types_of_arrays():
    exported = through_bytes(meshrt.jit(lambda x, *, k: {"a": x, "b": k + 1}))(X, k=np.int8(1))
    theirs = jax.export.export(jax.jit(lambda x, *, k: {"a": x, "b": k + 1}))(X, k=np.int8(1))
    assert [str(a) for a in exported.in_avals] == [str(a) for a in theirs.in_avals]
    assert [str(a) for a in exported.out_avals] == [str(a) for a in theirs.out_avals]
    assert exported.in_tree == meshrt.tree.structure(((0,), {"k": 0}))
    assert exported.out_tree == meshrt.tree.structure({"a": 0, "b": 0})


def test_004_11_serialize_and_call():
    def f(pair, *, b):
        return {"sum": pair[0] + pair[1], "b": jnp.cos(b)}, pair

    blob = export.export(meshrt.jit(f))((X, X), b=X).serialize()
    again = export.deserialize(blob)
    assert isinstance(blob, bytearray) and again.fun_name == "f" and str(again) == "Exported(fun_name=f, ...)"
    expected = f((X, X), b=X)
    for call in (again.call, meshrt.jit(again.call)):
        found = call((X, X), b=X)
        assert meshrt.tree.structure(found) == meshrt.tree.structure(expected)
        meshrt.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


def test_functions_of_the_library_need_not_be_jitted():
    exported = export.export(jnp.sin)(np.arange(4, dtype=np.float32))
    assert exported.fun_name == "sin"
    np.testing.assert_array_equal(export.deserialize(exported.serialize()).call(X), jnp.sin(X))


@pytest.mark.parametrize("given", [lambda x: x, 3])
def test_004_12_only_jitted_functions(given):
    with pytest.raises(ValueError, match="Function to be exported must be the result of `jit`"):
        export.export(given)


# ---------------------------------------------------------------------------------------------------------------------
# Calls


def test_static_and_unused_arguments():
    f = meshrt.jit(lambda x, y, c: c * jnp.sin(x), static_argnames=["c"])
    exported = through_bytes(f)(X, np.ones(6), c=0.5)
    assert exported.module_kept_var_idx == (0,) and len(exported.in_avals) == 2
    np.testing.assert_allclose(exported.call(X, np.ones(6, np.float32)), 0.5 * np.sin(X), rtol=1e-6)


def test_captured_values_are_written_into_the_module():
    big = meshrt.device_put(np.arange(4096, dtype=np.float32))
    keys = meshrt.random.key(3)
    exported = through_bytes(meshrt.jit(lambda x: x + big[:4] + meshrt.random.uniform(keys, (4,))))(X)
    expected = X + np.arange(4) + np.asarray(meshrt.random.uniform(keys, (4,)))
    np.testing.assert_allclose(exported.call(X), expected, rtol=1e-6)


def test_keys_as_arguments():
    key = meshrt.random.key(7)
    exported = through_bytes(meshrt.jit(lambda k: (meshrt.random.split(k)[0], meshrt.random.normal(k, (3,)))))(key)
    first, drawn = exported.call(key)
    assert first.dtype == key.dtype
    np.testing.assert_array_equal(drawn, meshrt.random.normal(key, (3,)))


def test_names_do_not_clash():
    @meshrt.jit
    def inner(x):
        return jnp.where(x > 0, x, 0) + meshrt.jit(lambda y: 2 * y)(x)

    exported = through_bytes(inner)(X)

    @meshrt.jit
    def outer(x):
        return inner(exported.call(exported.call(x))) + exported.call(x[::-1])

    np.testing.assert_allclose(outer(X), inner(inner(inner(X))) + inner(X[::-1]))
    np.testing.assert_allclose(through_bytes(outer)(X).call(X), outer(X))


@pytest.mark.parametrize(("args", "kwargs", "said"), [
    ((X,), {"b": (X, X)}, "same pytree structure.*kwargs\\['b'\\] is a"),
    ((X, X), {"b": X}, "The invocation args and kwargs must have the same pytree structure"),
    ((np.zeros(6, np.float32),), {"b": X}, re.escape("Shape mismatch for args[0].shape[0] (expected same constant)")),
    ((X,), {"b": np.zeros(6, np.float32)}, re.escape("Shape mismatch for kwargs['b'].shape[0]")),
    ((X.reshape(1, 4),), {"b": X}, re.escape("Rank mismatch for args[0]")),
    ((X.astype(np.float16),), {"b": X}, re.escape("Dtype mismatch for args[0]")),
])  # fmt: skip
def test_arguments_that_do_not_fit(args, kwargs, said):
    exported = through_bytes(meshrt.jit(lambda a, *, b: jnp.sin(a) + b))(X, b=X)
    with pytest.raises(ValueError, match=f"(?s){said}"):
        exported.call(*args, **kwargs)


def test_callbacks_and_unstable_custom_calls_are_refused():
    def calls(x):
        return meshrt.pure_callback(np.sin, meshrt.ShapeDtypeStruct(x.shape, x.dtype), x)

    with pytest.raises(NotImplementedError):
        export.export(meshrt.jit(calls))(X)

    f = meshrt.jit(lambda x: meshrt.ffi.ffi_call("somebodys_kernel", meshrt.ShapeDtypeStruct(x.shape, x.dtype))(x))
    with pytest.raises(ValueError, match="Cannot serialize code with custom calls whose targets have no compat"):
        export.export(f)(X)
    checks = [export.DisabledSafetyCheck.custom_call("somebodys_kernel")]
    exported = through_bytes(f, disabled_checks=checks)(X)
    assert "somebodys_kernel" in exported.mlir_module() and list(exported.disabled_safety_checks) == checks


# ---------------------------------------------------------------------------------------------------------------------
# Derivatives


def test_derivatives_of_all_orders_written():
    f = lambda x: x**3
    exported = through_bytes(meshrt.jit(f), vjp_order=3)(np.float32(4))
    grad = meshrt.grad
    ours, theirs = exported.call, f
    for _ in range(3):
        assert float(ours(4.0)) == float(theirs(4.0))
        ours, theirs = grad(ours), grad(theirs)
    assert float(grad(grad(grad(exported.call)))(4.0)) == 6.0
    with pytest.raises(ValueError, match="No VJP is available"):
        grad(grad(grad(grad(exported.call))))(4.0)
    assert exported.has_vjp() and not through_bytes(meshrt.jit(f))(4.0).has_vjp()


def test_derivatives_with_integers_and_trees():
    def f(pair, *, b):
        return {"res": 2 * pair[0].T, "b": pair[1] * b}

    xi, xf = np.arange(6, dtype=np.int32).reshape(2, 3), np.arange(4, dtype=np.float32)
    exported = through_bytes(meshrt.jit(f), vjp_order=2)((xi, xf), b=X)
    _, back = meshrt.vjp(lambda x, b: exported.call((xi, x), b=b), xf, X)
    _, expected = meshrt.vjp(lambda x, b: f((xi, x), b=b), xf, X)
    ct = {"res": np.zeros((3, 2), meshrt.float0), "b": np.ones(4, np.float32)}
    for a, b in zip(back(ct), expected(ct), strict=True):
        np.testing.assert_allclose(a, b)
    derivative = exported.vjp()
    types = [str(a) for a in derivative.in_avals]
    assert types == ["int32[2,3]", "float32[4]", "float32[4]", "float32[4]", "float0[3,2]"]


# ---------------------------------------------------------------------------------------------------------------------
# Platforms


def by_platform(x):
    return x + meshrt.lax.platform_dependent(
        x, cpu=lambda x: x + 2, cuda=lambda x: x + 3, tpu=lambda x: x + 4, default=lambda x: x + 5
    )


def test_several_platforms():
    f = meshrt.jit(lambda x: meshrt.jit(by_platform)(jnp.sin(x)))
    exported = through_bytes(f, platforms=("tpu", "cpu", "cuda", "other"))(X)
    assert exported.platforms == ("tpu", "cpu", "cuda", "other")
    text = exported.mlir_module()
    assert re.search(r"@main\(%arg0: tensor<i..>.*global_constant = \"_platform_index\".*, %arg1: tensor<4xf32>", text)
    assert text.count("stablehlo.sine") == 1 and "stablehlo.case" in text
    np.testing.assert_allclose(exported.call(X), 2 * np.sin(X) + 2, rtol=1e-6)
    for platforms in [("cpu", "cuda"), None]:
        around = through_bytes(meshrt.jit(exported.call), platforms=platforms)(X)
        np.testing.assert_allclose(around.call(X), 2 * np.sin(X) + 2, rtol=1e-6)
    both = through_bytes(f, platforms=("cuda", "cpu"))(spec("b"))
    np.testing.assert_allclose(both.call(X), 2 * np.sin(X) + 2, rtol=1e-6)


@pytest.mark.parametrize("name", ["cholesky", "eigh", "qr", "svd", "inv"])
def test_kernels_of_several_platforms(name):
    """Kernels of the others stand in the module, and in no program that runs."""
    f, x = meshrt.jit(lambda x: meshrt.tree.leaves(getattr(jnp.linalg, name)(x))), 2 * np.eye(3, dtype=np.float32)
    exported = through_bytes(f, platforms=("cuda", "rocm", "cpu"))(x)
    assert {"cuso", "hips", "lapa"} <= {call[:4] for call in re.findall(r"custom_call @(\w+)", exported.mlir_module())}
    for found, expected in zip(exported.call(x), f(x)):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
def test_another_platform(platform):
    exported = through_bytes(meshrt.jit(jnp.sin), platforms=(platform,))(X)
    with pytest.raises(ValueError, match=f"Function 'sin' was exported for platforms .*{platform}.* used on .*cpu"):
        exported.call(X)
    unchecked = [export.DisabledSafetyCheck.platform()]
    exported = through_bytes(meshrt.jit(jnp.sin), platforms=(platform,), disabled_checks=unchecked)(X)
    np.testing.assert_allclose(exported.call(X), np.sin(X), rtol=1e-6)


@pytest.mark.parametrize("cls", [dict, tuple, Exception])
def test_what_is_registered_for_files_under_the_wrong_name_is_refused(cls):
    with pytest.raises(ValueError, match=r"Use `meshrt.export.register_pytree_node.* for types other than"):
        export.register_namedtuple_serialization(cls, serialized_name="test.wrong")
    both = {"serialize_auxdata": bytes, "deserialize_auxdata": bytes}
    with pytest.raises(ValueError, match="If `from_children` is not present, you must call first"):
        export.register_pytree_node_serialization(Exception, serialized_name="test.wrong", **both)


def test_donation_and_platforms():
    f = meshrt.jit(jnp.sin, donate_argnums=(0,))
    exported = export.export(f, platforms=["cpu", "tpu"])(X)
    x = jnp.asarray(X)
    np.testing.assert_allclose(meshrt.jit(lambda x: x + exported.call(x))(x), X + np.sin(X), rtol=1e-6)
    with pytest.raises(NotImplementedError, match="either all or no lowering platforms should support donation"):
        export.export(f, platforms=["cpu", "tpu", "other"])(X)


# ---------------------------------------------------------------------------------------------------------------------
# Structures


Point = collections.namedtuple("Point", ["x", "y"])


class Pair:
    def __init__(self, a, b, name):
        self.a, self.b, self.name = a, b, name


def test_structures_are_registered_for_files():
    meshrt.tree_util.register_pytree_node(Pair, lambda p: ((p.a, p.b), p.name), lambda name, ab: Pair(*ab, name))
    f = meshrt.jit(lambda p, q: Pair(p.a + q.x, q.y, p.name))
    args = (Pair(X, X, "n"), Point(X, X))
    with pytest.raises(ValueError, match="Cannot serialize PyTreeDef containing an unregistered type"):
        export.export(f)(*args).serialize()
    export.register_namedtuple_serialization(Point, serialized_name="test.Point")
    options = {"serialize_auxdata": str.encode, "deserialize_auxdata": lambda data: bytes(data).decode()}
    export.register_pytree_node_serialization(Pair, serialized_name="test.Pair", **options)
    found = through_bytes(f)(*args).call(*args)
    assert type(found) is Pair and found.name == "n"
    np.testing.assert_array_equal(found.a, 2 * X)
    with pytest.raises(ValueError, match="Duplicate serialization registration for type"):
        export.register_namedtuple_serialization(Point, serialized_name="test.Other")
    with pytest.raises(ValueError, match="Duplicate serialization registration for serialized_name"):
        export.register_namedtuple_serialization(collections.namedtuple("P", "x"), serialized_name="test.Point")


# ---------------------------------------------------------------------------------------------------------------------
# Shardings


def on(mesh, *entries):
    return NamedSharding(mesh, P(*entries))


def test_sharded_on_other_devices_and_other_names():
    mesh = Mesh(np.array(meshrt.devices()[:4]).reshape(2, 2), ("x", "y"))
    a = np.arange(64, dtype=np.float32).reshape(16, 4)

    def f(b):
        return meshrt.lax.with_sharding_constraint(b * 2, on(mesh, ("x", "y"))).T

    jitted = meshrt.jit(f, in_shardings=on(mesh, "x"), out_shardings=on(mesh, None, "x"))
    exported = through_bytes(jitted, vjp_order=1)(a)
    assert exported.nr_devices == 4 and exported.in_shardings[0].spec == P("x")
    for names in [("x", "y"), ("p", "q")]:
        other = Mesh(np.array(meshrt.devices()[4:8][::-1]).reshape(2, 2), names)
        x = meshrt.device_put(a, exported.in_shardings_jax(other)[0])
        found = exported.call(x)
        np.testing.assert_array_equal(found, 2 * a.T)
        assert set(found.devices()) == set(other.devices.flat)
        assert found.sharding.is_equivalent_to(exported.out_shardings_jax(other)[0], 2)
        np.testing.assert_array_equal(meshrt.grad(lambda x: exported.call(x).sum())(x), np.full((16, 4), 2))
    flat = Mesh(np.array(meshrt.devices()[:4]), ("z",))
    np.testing.assert_array_equal(exported.call(meshrt.device_put(a, on(flat, "z"))), 2 * a.T)


def test_number_of_devices():
    two, one = Mesh(meshrt.devices()[:2], ("x",)), Mesh(meshrt.devices()[:1], ("x",))
    exported = through_bytes(meshrt.jit(lambda x: x * 2, in_shardings=on(two, "x")))(X)
    np.testing.assert_array_equal(exported.call(meshrt.device_put(X, meshrt.devices()[0])), X * 2)
    with pytest.raises(ValueError, match="does not match the mesh used for export"):
        exported.in_shardings_jax(one)
    anywhere = through_bytes(meshrt.jit(lambda x: jnp.sum(x**2)))(X)
    assert anywhere.nr_devices == 1
    assert float(anywhere.call(meshrt.device_put(X, on(two, "x")))) == 14.0


@pytest.mark.parametrize("options", [{"in_shardings": "x"}, {"out_shardings": "x"}, {}])
def test_a_mesh_of_one_device_splits_nothing(options):
    """As JAX's, functions exported over it run on any mesh."""
    two, one = Mesh(meshrt.devices()[:2], ("x",)), Mesh(meshrt.devices()[:1], ("x",))
    f = lambda x: meshrt.lax.with_sharding_constraint(x, on(one, "x")) * 2
    placed = through_bytes(meshrt.jit(f, **{k: on(one, v) for k, v in options.items()}))(X)
    found = meshrt.jit(placed.call, in_shardings=on(two, "x"))(X)
    np.testing.assert_array_equal(found, X * 2)
    assert placed.nr_devices == 1 and found.sharding.spec == meshrt.P("x")


def test_exported_over_an_abstract_mesh():
    mesh = AbstractMesh((2,), ("x",))
    arg = meshrt.ShapeDtypeStruct((4,), np.float32, sharding=on(mesh, "x"))
    exported = through_bytes(meshrt.jit(lambda x: jnp.cumsum(x)))(arg)
    assert exported.nr_devices == 2
    concrete = Mesh(meshrt.devices()[2:4], ("b",))
    np.testing.assert_array_equal(exported.call(meshrt.device_put(X, on(concrete, "b"))), np.cumsum(X))


def test_shard_map_within():
    mesh = Mesh(meshrt.devices()[:2], ("x",))

    @meshrt.jit
    def f(b):
        rotate = lambda b: meshrt.lax.ppermute(b, "x", [(0, 1), (1, 0)])
        return meshrt.shard_map(rotate, mesh=mesh, in_specs=P("x"), out_specs=P("x"))(b)

    exported = through_bytes(f)(meshrt.ShapeDtypeStruct((4,), np.float32, sharding=on(mesh, "x")))
    other = Mesh(meshrt.devices()[2:4], ("y",))
    np.testing.assert_array_equal(exported.call(meshrt.device_put(X, on(other, "y"))), [2, 3, 0, 1])


# ---------------------------------------------------------------------------------------------------------------------
# Beside JAX


@pytest.mark.parametrize("fun", ["sin", "cumsum", "argsort"])
def test_fields_beside_jax(fun):
    ours = export.export(meshrt.jit(getattr(jnp, fun)))(X)
    theirs = jax.export.export(jax.jit(getattr(jax.numpy, fun)))(X)
    for name in ("fun_name", "nr_devices", "platforms", "module_kept_var_idx", "uses_global_constants",
                 "ordered_effects", "unordered_effects", "calling_convention_version"):  # fmt: skip
        assert getattr(ours, name) == getattr(theirs, name), name
    assert [str(a) for a in ours.out_avals] == [str(a) for a in theirs.out_avals]


def test_with_64_bits():
    with meshrt.enable_x64(True):
        exported = through_bytes(meshrt.jit(lambda x: x + x.shape[0]), vjp_order=1)(spec("b", np.float64))
        assert exported.call(np.ones(3)).dtype == np.float64
        np.testing.assert_array_equal(meshrt.grad(lambda x: exported.call(x).sum())(np.ones(3)), np.ones(3))


# ---------------------------------------------------------------------------------------------------------------------
# More numbered statements


def test_001_01_exported_modules_hold_dialects_with_a_promise():
    def f(x):
        return meshrt.lax.erf(x) + meshrt.lax.top_k(x, 2)[0].sum() + jnp.sinh(x)

    for fun, given in ((f, X), (jnp.sinh, spec("b"))):
        text = export.export(meshrt.jit(fun))(given).mlir_module()
        operations = re.sub(r"stablehlo\.composite \"chlo\.\w+\"|@chlo\.\w+", "", text)
        assert "chlo." not in operations


def test_001_08_for_a_platform_that_is_not_here():
    exported = through_bytes(meshrt.jit(jnp.linalg.cholesky), platforms=["cuda"])(np.eye(3, dtype=np.float32))
    assert exported.platforms == ("cuda",) and "cusolver" in exported.mlir_module()


def test_001_09_dynamic_shapes_are_stablehlos():
    text = export.export(meshrt.jit(lambda x: jnp.pad(x + x.shape[0], 1)[1:]))(spec("b")).mlir_module()
    assert "stablehlo.dynamic_broadcast_in_dim" in text and "shape." not in text.replace(".shape", "")
    assert set(re.findall(r"custom_call @([\w.]+)", text)) == {"shape_assertion"}


def test_004_02_random_bits_for_another_platform():
    f = meshrt.jit(lambda: meshrt.random.bits(meshrt.random.key(0), (4,)))
    exported = through_bytes(f, platforms=["cuda", "cpu"])()
    np.testing.assert_array_equal(exported.call(), f())


def test_004_04_platforms_are_asked_of_traced_only():
    f = meshrt.jit(lambda x, **options: x)
    assert f.trace(X).lower(lowering_platforms=("cuda",)).request.platform == "cuda"
    with pytest.raises(TypeError):
        f.lower(X, lowering_platforms=("cuda",))


def test_004_13_no_experimental_export():
    assert not hasattr(meshrt.experimental, "export") and not hasattr(export, "call")


def test_004_14_no_xla_computation():
    assert not hasattr(meshrt, "xla_computation")
    assert meshrt.jit(jnp.sin).lower(X).compiler_ir() is not None


def test_a_gpu_has_a_maker():
    with pytest.raises(errors.ArgumentValueError, match="'gpu' is no platform; say which, 'cuda' or 'rocm'"):
        export.export(meshrt.jit(jnp.sin), platforms=["gpu"])(X)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda e: e.over(4), "over(mesh) takes a Mesh or an AbstractMesh"),
        (lambda e: e.plan((4, 2)), "plan(mesh) takes a Mesh or an AbstractMesh"),
        (lambda e: e.in_shardings_jax({"x": 4}), "shardings are over a Mesh"),
        (lambda e: e.over(AbstractMesh((2,), ("x",)), [("x", "x")]), "axes of over(mesh, axes) is a dict"),
        (lambda e: export.export(meshrt.jit(jnp.sin), platforms=3), "platforms are names"),
        (lambda e: export.export(meshrt.jit(jnp.sin), platforms=["cpu", 3]), "platforms are names"),
        (lambda e: export.export(meshrt.jit(jnp.sin), disabled_checks=["platform"]), "disabled_checks are"),
        (lambda e: export.DisabledSafetyCheck.custom_call(3), "the target of a custom call is a text"),
        (lambda e: export.symbolic_shape("a", scope=3), "scope is a SymbolicScope"),
        (lambda e: export.to_jax(3), "to_jax writes what export.export makes"),
        (lambda e: export.from_jax("text"), "is read from bytes. Got str"),
        (lambda e: export.from_stablehlo(e.mlir_module(), in_tree="text"), "in_tree is a structure"),
        (lambda e: export.from_stablehlo(e.mlir_module(), platforms=3), "platforms are names"),
    ],
)
def test_arguments_of_other_kinds_are_named(use, said):
    exported = export.export(meshrt.jit(jnp.sin))(X)
    with pytest.raises(errors.ArgumentTypeError, match=re.escape(said)):
        use(exported)


def test_structures_of_others_calls_are_those_of_calls():
    text = export.export(meshrt.jit(jnp.sin))(X).mlir_module()
    with pytest.raises(errors.TreeError, match=re.escape("tree_structure(((x,), {}))")):
        export.from_stablehlo(text, in_tree=meshrt.tree_util.tree_structure([0]))
    with pytest.raises(errors.ArgumentValueError, match="modules of others, from_stablehlo, have none"):
        meshrt.grad(lambda x: export.from_stablehlo(text).call(x).sum())(X)
    other = text.replace("stablehlo.sine %arg0", "math.sin %arg0")
    with pytest.raises(errors.UnsupportedError, match=r"holds math\.sin at .*lower it to StableHLO"):
        export.from_stablehlo(other)


def test_other_structures_of_arguments_in_jaxs_words():
    ours = export.export(meshrt.jit(lambda x, y: x))(X, {"a": X})
    theirs = jax.export.export(jax.jit(lambda x, y: x))(X, {"a": X})
    for args in (([X], {"a": X}), (X, {"b": X}), (X, (X, X)), (X,)):
        said = []
        for exported, error in ((theirs, ValueError), (ours, errors.TreeError)):
            with pytest.raises(error, match="must have the same pytree structure") as raised:
                exported.call(*args)
            said.append(re.sub(r"<class 'int'>|a leaf( of type \w+)?", "LEAF", str(raised.value)).splitlines()[1])
        assert said[1].replace("a LEAF", "LEAF").startswith(said[0].rstrip(".").replace("a LEAF", "LEAF"))
