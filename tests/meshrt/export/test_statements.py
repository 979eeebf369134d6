"""Statements about values in lowering, about the boundary and about what outlives its process, one by one."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, export, lax
from meshrt.extend.core import Primitive
from meshrt.interpreters import mlir
from meshrt.lowering.capabilities import capabilities_of
from meshrt.lowering.context import LoweringContext
from meshrt.lowering.legalize import legalize, operations
from meshrt.sharding import AxisType, Mesh, NamedSharding, P
from meshrt.xla import jaxlib_api
from propagation.asm import Ref
from tests.meshrt.export.exporting import X, through_bytes

# ---------------------------------------------------------------------------------------------------------------------
# Values in lowering


def test_004_01_a_value_is_one_value_of_the_program(monkeypatch):
    """No sequence of one stands for a value: not for a key, a loop's result, nor where there are several platforms."""
    write, seen = LoweringContext.jaxpr, []

    def spy(self, jaxpr, args, part=""):
        found = write(self, jaxpr, args, part)
        seen.extend([*args, *found])
        return found

    monkeypatch.setattr(LoweringContext, "jaxpr", spy)

    def f(x):
        drawn = meshrt.random.normal(meshrt.random.split(meshrt.random.key(0))[0], (4,))
        pair = lax.fori_loop(0, 3, lambda i, c: (c[1], c[0] + drawn), (x, x))
        return lax.cond(x.sum() > 0, lambda x: (x, ()), lambda x: (-x, ()), pair[0])

    meshrt.jit(f).trace(X).lower(lowering_platforms=("cpu", "tpu"))
    assert seen and all(type(value) is Ref for value in seen)


@pytest.mark.parametrize("form", ["value", "list", "tuple", "results"])
def test_004_01_rules_take_values_and_give_one_or_a_sequence(form):
    twice, given = Primitive("twice"), []
    twice.def_abstract_eval(lambda x: x)

    def rule(ctx, x):
        given.append(x)
        made = hlo.AddOp(x, x)
        return {"value": made.result, "list": [made.result], "tuple": (made.result,), "results": made.results}[form]

    mlir.register_lowering(twice, rule)
    np.testing.assert_array_equal(meshrt.jit(lambda x: twice.bind(x) + 1)(X), 2 * X + 1)
    assert given and all(isinstance(x, ir.Value) for x in given)


def test_004_01_values_and_sequences_of_values_are_one_list():
    module = jaxlib_api.parse("func.func @main(%x: tensor<f32>, %y: tensor<i32>) { return }")
    x, y = module.body.operations[0].regions[0].blocks[0].arguments
    assert list(mlir.flatten_ir_values([x, (), (y, x), [y]])) == [x, y, x, y]
    assert list(mlir.flatten_ir_types([x.type, (y.type,)])) == [x.type, y.type]


def test_004_03_an_exported_program_is_for_older_consumers():
    """A rule that asks writes the older form into files, and the newer one into programs that run here."""
    answer, asked = Primitive("newer"), []
    answer.def_abstract_eval(lambda x: x)

    def rule(ctx, x):
        asked.append(ctx.is_forward_compat())
        return [hlo.add(x, x) if ctx.is_forward_compat() else hlo.multiply(x, mlir.ir_constant(np.full(4, 2, X.dtype)))]

    mlir.register_lowering(answer, rule)
    f = meshrt.jit(lambda x: answer.bind(x))
    assert "stablehlo.multiply" in f.lower(X).as_text()
    exported = export.export(f)(X)
    assert "stablehlo.add" in exported.mlir_module() and asked == [False, True]
    np.testing.assert_array_equal(exported.call(X), f(X))


# ---------------------------------------------------------------------------------------------------------------------
# Checks against what others were measured to do wrong


def test_b05_no_chlo_reaches_a_backend_that_does_not_declare_it():
    text = meshrt.jit(lambda x: lax.erf(x) + lax.top_k(x, 4)[0]).lower(X).module.text
    for name in ("somebody's", "cpu"):
        takes = capabilities_of(name)
        crosses = jaxlib_api.parse(legalize(text, takes))
        found = {str(op.name).partition(".")[0] for op in operations(crosses)}
        assert found <= {"builtin", "func", "stablehlo", "vhlo", *(["chlo"] if takes.chlo else [])}
    assert capabilities_of("cpu").chlo and "chlo" in capabilities_of("cpu").sources


def _on(mesh, *entries):
    return NamedSharding(mesh, P(*entries))


def test_b09_exported_for_a_mesh_and_called_on_other_devices_under_other_names():
    auto = (AxisType.Auto,) * 2
    mesh = meshrt.make_mesh((2, 2), ("x", "y"), auto, devices=meshrt.devices()[:4])
    a = np.arange(32, dtype=np.float32).reshape(8, 4)
    f = meshrt.jit(lambda a: jnp.cumsum(a @ a.T, 0), in_shardings=_on(mesh, "x", "y"), out_shardings=_on(mesh, "y"))
    exported = through_bytes(f, vjp_order=1)(a)
    assert not re.search(r"cpu:|device_ids", str(exported.in_shardings) + exported.mlir_module())
    others = Mesh(np.array(meshrt.devices()[:3:-1]).reshape(2, 2), ("rows", "columns"))
    found = exported.call(meshrt.device_put(a, exported.in_shardings_jax(others)[0]))
    np.testing.assert_allclose(found, f(a), rtol=1e-6)
    assert found.sharding.is_equivalent_to(_on(others, "columns"), 2) and found.devices() == set(meshrt.devices()[4:])


@pytest.mark.parametrize("sizes", [(4,), (1, 4), (4, 1), (1, 2, 2)])
def test_5_14_called_over_a_mesh_of_other_sizes(sizes):
    """What is stored is the program before it was split, so each mesh of as many devices splits it its own way."""
    auto = (AxisType.Auto,) * 2
    mesh = meshrt.make_mesh((2, 2), ("x", "y"), auto, devices=meshrt.devices()[:4])
    a = np.arange(32, dtype=np.float32).reshape(8, 4)
    f = meshrt.jit(lambda a: jnp.sin(a) @ a.T, in_shardings=_on(mesh, "x", "y"))
    exported = through_bytes(f, vjp_order=1)(a)
    names = tuple("pqr"[: len(sizes)])
    other = meshrt.make_mesh(sizes, names, (AxisType.Auto,) * len(sizes), devices=meshrt.devices()[4:])
    x = meshrt.device_put(a, _on(other, names))
    np.testing.assert_allclose(exported.call(x), f(a), rtol=1e-5, atol=1e-4)
    gradient = lambda g: meshrt.grad(lambda a: (g(a) ** 2).sum())
    np.testing.assert_allclose(gradient(exported.call)(x), gradient(f)(a), rtol=1e-4, atol=1e-2)


def test_b11_a_loaded_function_is_mapped():
    loaded = through_bytes(meshrt.jit(jnp.sin))(X)
    np.testing.assert_allclose(meshrt.vmap(loaded.call)(np.stack([X, X + 1])), np.sin([X, X + 1]), rtol=1e-6)
    (batch,) = export.symbolic_shape("batch")
    batched = through_bytes(meshrt.jit(meshrt.vmap(jnp.sin)))(meshrt.ShapeDtypeStruct((batch, 4), X.dtype))
    np.testing.assert_allclose(batched.call(np.stack([X, X, X])), np.sin([X, X, X]), rtol=1e-6)


def test_5_13_a_saved_executable_is_bound_to_any_equal_devices_and_to_no_others(tmp_path):
    mesh = meshrt.make_mesh((2,), ("x",), (AxisType.Auto,), devices=meshrt.devices()[:2])
    a = meshrt.device_put(np.arange(8, dtype=np.float32), _on(mesh, "x"))
    compiled = meshrt.jit(lambda x: jnp.cumsum(x) + 1).lower(a).compile()
    compiled.save(tmp_path / "f.aot")
    others = meshrt.devices()[:-3:-1]
    loaded = meshrt.load_executable(tmp_path / "f.aot", devices=others)
    found = loaded(np.arange(8, dtype=np.float32))
    np.testing.assert_array_equal(found, compiled(a))
    assert found.devices() == set(others)
    with pytest.raises(errors.MeshrtError, match="2"):
        meshrt.load_executable(tmp_path / "f.aot", devices=others[:1])


def test_2_12_the_fields_and_functions_of_jax_export():
    """Every public name has its parameters; every field says what JAX's says of the same program."""
    import jax
    import jax.export as theirs

    for name in [n for n in dir(theirs) if not n.startswith("_") and callable(getattr(theirs, n))]:
        if name in ("DisabledSafetyCheck", "Exported", "is_symbolic_dim"):  # not made by hand; one argument
            continue
        wanted = inspect.signature(getattr(theirs, name)).parameters
        found = inspect.signature(getattr(export, name)).parameters
        assert {n for n in wanted if not n.startswith("_")} <= set(found), name

    def described(lib, exporting, np_):
        shape = exporting.symbolic_shape("b, 3", constraints=["b >= 2"])
        x = lib.ShapeDtypeStruct(shape, np.float32)
        f = lib.jit(lambda x, unused, *, y: {"s": np_.sin(x) + y, "t": (x.sum(), 1)})
        made = exporting.export(f, platforms=["cpu", "tpu"])(x, X, y=np.float32(1))
        again = exporting.deserialize(bytearray(made.serialize(vjp_order=1)))
        for e in (made, again):
            assert e.has_vjp() and not e.ordered_effects and not e.unordered_effects
            assert e.in_shardings_hlo == (None,) * 3 and e.out_shardings_hlo == (None,) * 3
            assert "stablehlo" in str(e.mlir_module()) and isinstance(bytes(e.mlir_module_serialized), bytes)
        public = [n for n in dir(theirs.Exported) if not n.startswith("__")]
        assert all(hasattr(again, n) for n in public)
        fields = ("fun_name", "in_avals", "out_avals", "nr_devices", "platforms", "disabled_safety_checks",
                  "calling_convention_version", "module_kept_var_idx", "uses_global_constants")  # fmt: skip
        # JAX's files say nothing of weak types, and name the derivative otherwise.
        told = lambda e, n: str(getattr(e, n)).replace(", weak_type=True", "").replace("fun_vjp_jax", "<lambda>_vjp")
        every = (made, again, again.vjp())
        return [{n: told(e, n) for n in (*fields, "in_tree", "out_tree")} for e in every]

    assert described(meshrt, export, jnp) == described(jax, theirs, jax.numpy)


@pytest.mark.parametrize("platforms", [("cpu",), ("tpu", "cpu")])
def test_2_12_lowering_rules_of_one_export(platforms):
    f = meshrt.jit(lambda x: meshrt.jit(jnp.sin)(x) + lax.tan(x))
    rules = [(lax.sin_p, lambda ctx, x, **_: [hlo.add(x, x)]), (lax.tan_p, mlir.lower_fun(lambda x, **_: (3 * x,)))]
    exported = through_bytes(f, _override_lowering_rules=rules, platforms=platforms, vjp_order=1)(X)
    np.testing.assert_allclose(exported.call(X), 5 * X)
    np.testing.assert_allclose(through_bytes(f, platforms=platforms)(X).call(X), np.sin(X) + np.tan(X), rtol=1e-4)


@pytest.mark.parametrize(("sizes", "whole"), [((2, 2), True), ((1, 2, 2), True), ((4, 1), False)])
def test_5_14_a_shard_map_is_called_over_meshes_that_have_its_axes_whole(sizes, whole):
    mesh = meshrt.make_mesh((2, 2), ("x", "y"), (AxisType.Auto,) * 2, devices=meshrt.devices()[:4])
    a = np.arange(16, dtype=np.float32).reshape(4, 4)
    each = meshrt.shard_map(lambda a: lax.psum(a, "x") + a, mesh=mesh, in_specs=P("x", "y"), out_specs=P("x", "y"))
    exported = through_bytes(meshrt.jit(each, in_shardings=_on(mesh, "x", "y")))(a)
    names = tuple("pqr"[: len(sizes)])
    other = meshrt.make_mesh(sizes, names, (AxisType.Auto,) * len(sizes), devices=meshrt.devices()[4:])
    x = meshrt.device_put(a, _on(other))
    if whole:
        np.testing.assert_array_equal(exported.call(x), meshrt.jit(each)(a))
    else:
        with pytest.raises(errors.UnsupportedError, match=r"shard_map over axis 'x' of size 2, .* is a part of"):
            exported.call(x)
