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


def rows(mesh, *axes):
    return NamedSharding(mesh, P(*axes))


def over_devices(body, mesh, ins, out, *args):
    """`shard_map` of `body`, exported for `4 * b` rows, through bytes: it gives what it gives for known sizes."""
    (b,) = export.symbolic_shape("b")
    mapped = meshrt.jit(meshrt.shard_map(body, mesh=mesh, in_specs=ins, out_specs=out))
    specs = [
        meshrt.ShapeDtypeStruct((4 * b, *a.shape[1:]) if a.ndim else (), a.dtype, sharding=rows(mesh, *i))
        for a, i in zip(args, ins)
    ]
    exported = export.deserialize(export.export(mapped)(*specs).serialize())
    placed = [meshrt.device_put(a, rows(mesh, *i)) for a, i in zip(args, ins)]
    expected = mapped(*placed)
    for found in (exported.call(*placed), meshrt.jit(exported.call)(*placed)):
        for x, y in zip(meshrt.tree.leaves(found), meshrt.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-6)
            assert x.sharding.is_equivalent_to(y.sharding, y.ndim)
    return exported


def nested(x):
    inner = meshrt.shard_map(
        lambda y: y * 2 + y.shape[1], in_specs=P(None, "y"), out_specs=P(None, "y"), axis_names={"y"}
    )
    return inner(x * 3) + x.shape[0]


BODIES = {
    "sizes": lambda x: x * x.shape[0] + jnp.ones(x.shape),
    "a sum": lambda x: meshrt.lax.psum(jnp.sin(x) * 2, "x").sum(0, keepdims=True) + x * 0,
    "the place": lambda x: x + meshrt.lax.axis_index("x") * x.shape[0],
    "a scan": lambda x: meshrt.lax.scan(lambda c, a: (c + a * x.shape[0], c * 2), x[0] * 0, x)[1],
    "a function": lambda x: meshrt.jit(lambda y: y * 2 + y.shape[0])(x),
    "more rows": lambda x: jnp.concatenate([x, x * 2]),
    "two results": lambda x: (x * 2, x[:1] * x.shape[0]),
}


@pytest.mark.parametrize("name", BODIES)
def test_symbolic_sizes_within_shard_map(name):
    mesh = meshrt.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    exported = over_devices(BODIES[name], mesh, (P("x"),), P("x"), x)
    if name == "more rows":
        assert str(exported.out_avals[0].shape) == "(8*b, 2)"


@pytest.mark.parametrize("number", [np.float32(3), np.int32(3)])
def test_symbolic_sizes_beside_scalars_within_shard_map(number):
    mesh = meshrt.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    over_devices(lambda x, s: x * s + jnp.ones(x.shape), mesh, (P("x"), P()), P("x"), x, number)


def test_symbolic_sizes_within_regions_of_some_axes():
    mesh = meshrt.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    spec = meshrt.ShapeDtypeStruct(export.symbolic_shape("4*b, 2*c"), np.float32, sharding=NamedSharding(mesh, P("x")))
    f = meshrt.shard_map(nested, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    placed = meshrt.device_put(x, NamedSharding(mesh, P("x")))
    exported = export.export(meshrt.jit(f))(spec)
    np.testing.assert_allclose(exported.call(placed), meshrt.jit(f)(placed), rtol=1e-6)


def test_functions_with_shard_map_for_two_sizes_and_their_derivatives():
    mesh = meshrt.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    f = meshrt.jit(meshrt.shard_map(
        lambda x: jnp.sin(x) * 2 + x.shape[0], mesh=mesh, in_specs=P("x"), out_specs=P("x")
    ))  # fmt: skip
    x = meshrt.device_put(np.arange(8, dtype=np.float32), NamedSharding(mesh, P("x")))
    spec = meshrt.ShapeDtypeStruct(export.symbolic_shape("4*b"), np.float32, sharding=NamedSharding(mesh, P("x")))
    both = meshrt.jit(lambda x: f(jnp.concatenate([f(x), f(x)])))
    np.testing.assert_allclose(export.export(both)(spec).call(x), both(x), rtol=1e-6)
    exported = export.deserialize(export.export(f)(spec).serialize(vjp_order=1))
    np.testing.assert_allclose(
        meshrt.grad(lambda x: exported.call(x).sum())(x), meshrt.grad(lambda x: f(x).sum())(x), rtol=1e-6
    )


def test_jaxs_files_with_symbolic_sizes_within_shard_map():
    """JAX writes such files, and does not run them."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    f = jax.jit(jax.shard_map(
        lambda x: jax.lax.psum(x * 2 + x.shape[0], "x"), mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P()
    ))  # fmt: skip
    split = jax.NamedSharding(mesh, jax.P("x"))
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("4*b, 2"), np.float32, sharding=split)
    exported = export.from_jax(jax.export.export(f)(spec).serialize())
    here = meshrt.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    x = np.arange(16, dtype=np.float32).reshape(8, 2)
    found = exported.call(meshrt.device_put(x, NamedSharding(here, P("x"))))
    np.testing.assert_allclose(found, f(x), rtol=1e-6)


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


def test_what_needs_numbers_says_so_with_its_line_and_the_sizes():
    line = rf"{re.escape(__file__)}:\d+ is exported with numbers only, and its fft_length is \(b\)"
    with pytest.raises(errors.UnsupportedError, match=line):
        export.export(meshrt.jit(lambda x: jnp.fft.fft(x)))(spec("b"))
    with pytest.raises(errors.UnsupportedError, match="dimension 0 has the symbolic size b"):
        export.export(meshrt.jit(lambda x: meshrt.scipy.fft.dct(x)))(spec("b"))
    with pytest.raises(errors.InconclusiveDimensionOperation, match="exponent must be known, and 'b' is a symbolic"):
        export.export(meshrt.jit(lambda x: jnp.linalg.matrix_power(x, x.shape[0])))(spec("b, b"))


@pytest.mark.parametrize("use", [lambda b, x: jnp.ones((b,)) + x.sum(), lambda b, x: x * b])
@pytest.mark.parametrize("shape", [(3,), "(w,)"])
def test_sizes_of_the_surroundings_that_no_argument_tells(use, shape):
    (b,) = export.symbolic_shape("b")
    with pytest.raises(errors.UnsolvableDimensionError, match="variable 'b' that is not appearing in the shapes of"):
        export.export(meshrt.jit(lambda x: use(b, x)))(spec(shape))


def test_sizes_beyond_the_integers_of_a_program():
    with pytest.raises(OverflowError, match="Python integer 1099511627776 out of bounds for int32"):
        export.export(meshrt.jit(lambda x: x * (x.shape[0] * 2**40)))(spec("(b,)"))
