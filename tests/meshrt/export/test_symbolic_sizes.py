"""Exported functions of symbolic sizes: types, checks when they are called, calls within others, derivatives."""

from __future__ import annotations

import re

import jax
import jax.export
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, export
from meshrt.sharding import AxisType, NamedSharding, P
from tests.meshrt.export.exporting import spec, through_bytes


def test_symbolic_module():
    scope = export.SymbolicScope()
    exported = through_bytes(meshrt.jit(lambda a, b: jnp.concatenate([a, b], axis=0)))(
        spec("(2*w, h)", scope=scope), spec("(w, h)", scope=scope)
    )
    shapes = [str(a.shape) for a in (*exported.in_avals, *exported.out_avals)]
    assert shapes == ["(2*w, h)", "(w, h)", "(3*w, h)"]
    text = exported.mlir_module()
    assert "shape_assertion" in text and "jax.uses_shape_polymorphism = true" in text
    assert re.search(
        r"@_wrapped_jax_export_main\(%arg0: tensor<i..> {jax.global_constant = \"h\".*"
        r"%arg1: tensor<i..> {jax.global_constant = \"w\".*%arg2: tensor<\?x\?xf32>", text
    )  # fmt: skip


def test_scopes_do_not_mix():
    with pytest.raises(ValueError, match=(
        r"(?s)Invalid mixing of symbolic scopes when exporting f.*Expected current \(from args\[0\]\) scope .*"
        r"and found for 'w' \(args\[1\]\) scope .*"
    )):  # fmt: skip

        def f(x, y):
            return x

        export.export(meshrt.jit(f))(spec("(w, h1)"), spec("(w, h2)"))


def reshaped(x):
    return jnp.reshape(x, (-1, x.shape[1]))


SHAPE_CHECKS = [
    ("3,4,12", (3, 4, 12), None),
    ("3,4,12", (3, 4, 13), "Shape mismatch for args[0].shape[2] (expected same constant)"),
    ("3,4,6*a", (3, 4, 12), None),
    ("3,a,a+8", (3, 4, 12), None),
    ("3,4,a+1", (3, 4, 1), "Expected value >= 1 for dimension variable 'a'. Using the following polymorphic shapes "
     "specifications: args[0].shape = (3, 4, a + 1). Obtained dimension variables: 'a' = 0"),
    ("3,4,6*a", (3, 4, 13), "Division had remainder 1 when computing the value of 'a'"),
    ("3,a,a+8", (3, 4, 13), "Found inconsistency between dimension size args[0].shape[2] (= 13) and the specification "
     "'a + 8' (= 12)"),
]  # fmt: skip


@pytest.mark.parametrize(("shapes", "shape", "said"), SHAPE_CHECKS)
def test_shape_checks(shapes, shape, said):
    exported = through_bytes(meshrt.jit(reshaped))(spec(shapes))
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    if said is None:
        np.testing.assert_array_equal(exported.call(x), np.reshape(x, (-1, x.shape[1])))
    else:
        with pytest.raises(ValueError, match=re.escape(said)):
            exported.call(x)


@pytest.mark.parametrize(("inner", "outer", "said", "later"), [
    ("3,4,12", "3,4,12", None, None), ("3,a,a+b", "3,4,12", None, None), ("3,4,3*a", "3,4,12", None, None),
    ("3,a,b", "3,4,c", None, None), ("3,4,3*a", "3,4,6*c", None, None), ("3,a,a+8", "3,c+2,c+10", None, None),
    ("3,a,a", "3,4,12", "args[0].shape[2] (= 12) and the specification 'a' (= 4)", None),
    ("3,4,5*a", "3,4,12", "Division had remainder 2 when computing the value of 'a'", None),
    ("3,a,a+b", "3,4,c", "'b' = c - 4 from specification 'b + a' for dimension args[0].shape[2] (= c),", None),
    ("3,a,a", "3,4,c", "args[0].shape[2] (= c) and the specification 'a' (= 4)", None),
    ("3,4,5*a", "3,4,c", "Division had remainder mod(c, 5) when computing the value of 'a'", None),
    ("3,a,a+b", "c,4,12", "Shape mismatch for args[0].shape[0] (expected same constant)", None),
    ("3,4,5*a", "3,4,25*c", None, "Division had remainder 12 when computing the value of 'c'"),
    ("3,a,a", "3,a,a", None, "args[0].shape[2] (= 12) and the specification 'a' (= 4)"),
])  # fmt: skip
def test_shape_checks_of_calls_within(inner, outer, said, later):
    exported = through_bytes(meshrt.jit(reshaped))(spec(inner))

    @meshrt.jit
    def caller(x):
        return exported.call(x) + reshaped(x)

    x = np.arange(144, dtype=np.float32).reshape(3, 4, 12)
    if said is not None:
        with pytest.raises(ValueError, match=re.escape(said)):
            export.export(caller)(spec(outer))
        return
    around = through_bytes(caller)(spec(outer))
    assert around.uses_global_constants == (inner != "3,4,12" or outer != "3,4,12")
    if later is not None:
        with pytest.raises(ValueError, match=re.escape(later)):
            around.call(x)
    else:
        np.testing.assert_array_equal(around.call(x), 2 * np.reshape(x, (-1, 4)))


@pytest.mark.parametrize("size", [1, 2, 7])
def test_orders_of_symbolic_sizes(size):
    """The same as of known sizes."""
    key, x = meshrt.random.key(3), np.arange(size, dtype=np.float32)
    functions = {
        "vector": lambda k, x: meshrt.random.permutation(k, x),
        "rows": lambda k, x: meshrt.random.permutation(k, jnp.stack([x, -x], axis=1)),
        "each": lambda k, x: meshrt.random.permutation(k, jnp.stack([x, -x], axis=1), independent=True),
        "size": lambda k, x: meshrt.random.permutation(k, x.shape[0]),
    }
    for name, f in functions.items():
        exported = export.export(meshrt.jit(f))(meshrt.typeof(key), spec("b"))
        np.testing.assert_array_equal(exported.call(key, x), f(key, x), err_msg=name)


def test_symbolic_sizes_within_shard_map():
    """Values of such sizes are computed with, as in JAX; the sizes themselves are not, which is said with the line."""
    (b,) = export.symbolic_shape("b")
    mesh = meshrt.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    split = NamedSharding(mesh.abstract_mesh, P("x"))
    x = meshrt.device_put(np.arange(16, dtype=np.float32).reshape(8, 2), NamedSharding(mesh, P("x")))

    def exported(body, *axes):
        mapped = meshrt.shard_map(body, mesh=mesh.abstract_mesh, in_specs=(P("x"),), out_specs=P(*axes))
        made = export.export(meshrt.jit(mapped))(meshrt.ShapeDtypeStruct((4 * b, 2), np.float32, sharding=split))
        return export.deserialize(made.serialize())

    np.testing.assert_allclose(exported(jnp.sin, "x").call(x), np.sin(x), rtol=1e-6)
    total = exported(lambda x: meshrt.lax.psum(x.sum(0) + jnp.zeros(2), "x"))
    np.testing.assert_allclose(total.call(x), np.sum(x, axis=0))
    assert str(exported(lambda x: jnp.concatenate([x, x]), "x").out_avals[0].shape) == "(8*b, 2)"
    for body in (lambda x: x * x.shape[0], lambda x: x + jnp.ones(x.shape)):
        with pytest.raises(errors.UnsupportedError, match=r"shard_map at .*test_symbolic_sizes\.py.*symbolic size b"):
            exported(body, "x")


def test_results_with_expressions():
    def shape(b):
        return (b + b, b - b, b * b, (b + 13) // b, (b + 13) % b)

    exported = through_bytes(meshrt.jit(lambda x: jnp.ones(shape(x.shape[0]), x.dtype)))(spec("b"))
    assert exported.call(np.arange(5, dtype=np.float32)).shape == shape(5)
    again = through_bytes(meshrt.jit(exported.call))(spec("a"))
    assert again.out_avals[0].shape == shape(again.in_avals[0].shape[0])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "float16", "bfloat16", "complex64", "float32"])
def test_symbolic_dtypes(dtype):
    x = np.ones(3, jax.numpy.dtype(dtype))
    f = meshrt.jit(lambda x: (jnp.stack([x, x]), jnp.zeros_like(x)))
    for found, expected in zip(through_bytes(f)(spec("b", x.dtype)).call(x), f(x), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_derivative_with_symbolic_sizes():
    exported = through_bytes(meshrt.jit(lambda x, y: jnp.sin(x) @ y), vjp_order=1)(
        *export.symbolic_args_specs((np.ones((2, 3), np.float32), np.ones((3, 5), np.float32)), ("a, b", "b, 5"))
    )
    x, y = np.ones((4, 2), np.float32), np.ones((2, 5), np.float32)
    found = meshrt.grad(lambda x: exported.call(x, y).sum())(x)
    np.testing.assert_allclose(found, 5 * np.cos(x), rtol=1e-6)


def test_symbolic_sizes_are_for_export():
    f = meshrt.jit(lambda x: x + x.shape[0])
    assert str(meshrt.eval_shape(f, spec("b")).shape) == "(b,)"
    with pytest.raises(NotImplementedError, match=r"type f32\[b\], whose symbolic size has no value here"):
        f.lower(spec("b"))


def test_unsolvable_sizes():
    with pytest.raises(errors.UnsolvableDimensionError, match="Cannot solve for values of dimension"):
        export.export(meshrt.jit(lambda x: 0.0))(spec("a*b"))


def test_symbolic_arguments_have_the_dtypes_of_arrays():
    given = {"a": np.ones(2), "b": np.ones((2, 3), np.int64), "c": 1.0}
    shapes = {"a": "n", "b": "m, 3", "c": ""}
    assert str(export.symbolic_args_specs(given, shapes)) == str(jax.export.symbolic_args_specs(given, shapes))
