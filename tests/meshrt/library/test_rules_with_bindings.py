"""Lowering rules that build operations with MLIR's bindings: the same answers in JAX and in meshrt."""

import importlib

import jax
import jax.extend.core
import jax.interpreters.mlir
import numpy as np
import pytest
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo

import meshrt
from tests.meshrt.library.test_declared_primitives import BOTH

X = np.arange(24, dtype=np.float32).reshape(8, 3)


def primitive(lib, name, infer=lambda x, **_: x, several=False):
    p = importlib.import_module(f"{lib.__name__}.extend.core").Primitive(name)
    p.multiple_results = several
    p.def_abstract_eval(infer)
    return p, importlib.import_module(f"{lib.__name__}.interpreters.mlir")


def scaled(lib):
    p, mlir = primitive(lib, "scaled")

    def rule(ctx, x, *, factor):
        (aval,) = ctx.avals_in
        assert aval == ctx.avals_out[0] and tuple(ctx.module_context.platforms) == ("cpu",)
        return [hlo.multiply(x, mlir.ir_constant(np.full(aval.shape, factor, aval.dtype)))]

    mlir.register_lowering(p, rule)
    return lambda x: p.bind(x, factor=2.5)


def sum_with_a_region(lib):
    p, mlir = primitive(lib, "summed", lambda x: x.update(shape=()))

    def rule(ctx, x):
        scalar = mlir.aval_to_ir_type(ctx.module_context, ctx.avals_out[0])
        assert scalar == ir.RankedTensorType.get((), mlir.dtype_to_ir_type(ctx.avals_out[0].dtype))
        zero = mlir.ir_constant(0.0, aval=ctx.avals_out[0])
        dims = mlir.dense_int_array(list(range(ctx.avals_in[0].ndim)))
        reduced = hlo.ReduceOp([scalar], [x], [zero], dims)
        block = reduced.regions[0].blocks.append(scalar, scalar)
        with ir.InsertionPoint(block):
            hlo.return_([hlo.add(*block.arguments)])
        return reduced.results

    mlir.register_lowering(p, rule)
    return p.bind


def loop_with_a_function_of_arrays(lib):
    """Three times x -> sin(x) in a `while` that is built by hand around what `lower_fun` gives."""
    p, mlir = primitive(lib, "sines")

    def rule(ctx, x):
        count = mlir.ir_constant(np.int32(0))
        loop = hlo.WhileOp([count.type, x.type], [count, x])
        ahead = loop.regions[0].blocks.append(count.type, x.type)
        with ir.InsertionPoint(ahead):
            i, _ = ahead.arguments
            direction = hlo.ComparisonDirectionAttr.get("LT")
            hlo.return_([hlo.compare(i, mlir.ir_constant(np.int32(3)), direction)])
        body = loop.regions[1].blocks.append(count.type, x.type)
        with ir.InsertionPoint(body):
            i, value = body.arguments
            (value,) = mlir.lower_fun(lib.numpy.sin, multiple_results=False)(ctx, value)
            hlo.return_([hlo.add(i, mlir.ir_constant(np.int32(1))), value])
        return [loop.results[1]]

    mlir.register_lowering(p, rule)
    return p.bind


def custom_call_with_attributes(lib):
    p, mlir = primitive(lib, "annotated")

    def rule(ctx, x):
        call = hlo.CustomCallOp([x.type], [x], call_target_name=ir.StringAttr.get("Sharding"))
        call.attributes["has_side_effect"] = mlir.ir_attribute(False)
        call.attributes["backend_config"] = mlir.ir_attribute("")
        call.attributes["mhlo.sharding"] = mlir.ir_attribute("{replicated}")
        return [call.result]

    mlir.register_lowering(p, rule)
    return p.bind


def python(lib):
    p, mlir = primitive(lib, "host", lambda x: [x, x.update(shape=())], several=True)

    def rule(ctx, x):
        call = lambda v: (np.asarray(v) * 3, np.asarray(v).sum())
        outs, token, keep = mlir.emit_python_callback(
            ctx, call, None, [x], ctx.avals_in, ctx.avals_out, has_side_effect=False
        )
        ctx.module_context.add_keepalive(keep)
        assert token is None
        return outs

    mlir.register_lowering(p, rule)
    return lambda x: p.bind(x + 1)


RULES = [scaled, sum_with_a_region, loop_with_a_function_of_arrays, custom_call_with_attributes, python]


@pytest.mark.parametrize("make", RULES)
@pytest.mark.parametrize("x64", [False, True])
def test_rules_give_what_they_give_in_jax(make, x64):
    found = []
    for lib in (jax, meshrt):
        with lib.enable_x64(x64):
            x = lib.numpy.asarray(X, dtype="float64" if x64 else "float32")
            found.append(lib.tree.leaves(lib.jit(make(lib))(x)))
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("make", [scaled, sum_with_a_region, loop_with_a_function_of_arrays, python])
def test_such_programs_are_partitioned(make):
    mesh = meshrt.make_mesh((8,), ("x",), axis_types=(meshrt.sharding.AxisType.Auto,))
    split = meshrt.device_put(X, meshrt.NamedSharding(mesh, meshrt.P("x")))
    for one, other in zip(
        meshrt.tree.leaves(meshrt.jit(make(meshrt))(split)),
        meshrt.tree.leaves(meshrt.jit(make(meshrt))(X)),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@BOTH
def test_values_of_other_types_are_refused(lib):
    p, mlir = primitive(lib, "wrong")
    mlir.register_lowering(p, lambda ctx, x: 3)
    with pytest.raises((TypeError, ValueError), match="must be"):
        lib.jit(p.bind)(2.0)
    q, mlir = primitive(lib, "longer", lambda x: x.update(shape=(2,)))
    mlir.register_lowering(q, lambda ctx, x: [x])
    with pytest.raises(Exception, match="tensor<2xf32>"):
        lib.jit(q.bind)(2.0)


def test_what_cannot_be_built_is_said():
    p, mlir = primitive(meshrt, "ordered")
    mlir.register_lowering(
        p, lambda ctx, x: mlir.emit_python_callback(ctx, list, 1, [x], (), (), has_side_effect=True)[0]
    )
    with pytest.raises(meshrt.errors.UnsupportedError, match=r"with a token, in the lowering rule of 'ordered'"):
        meshrt.jit(p.bind)(2.0)


@BOTH
def test_values_and_attributes(lib):
    mlir = importlib.import_module(f"{lib.__name__}.interpreters.mlir")
    with mlir.make_ir_context() as context, ir.Location.unknown():
        module = ir.Module.parse("func.func @f(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }")
        assert "tensor<2xf32>" in mlir.module_to_string(module)
        again = ir.Module.parse(mlir.module_to_bytecode(module), context)
        assert str(again) == str(module)
        assert str(mlir.dense_int_elements([1, 2])) == "dense<[1, 2]> : tensor<2xi64>"
        assert [str(mlir.i32_attr(3)), str(mlir.i64_attr(3))] == ["3 : i32", "3 : i64"]
        given = [True, "a", np.float32(1.5), 3, [1, "b"], {"a": 2.0}, np.arange(2, dtype=np.int8)]
        texts = [str(mlir.ir_attribute(value)) for value in given]
        assert texts[:2] == ["true", '"a"'] and texts[2] == "1.500000e+00 : f32" and texts[4].endswith('"b"]')
        assert texts[6] == "dense<[0, 1]> : tensor<2xi8>"
        with pytest.raises(TypeError, match="No attribute handler"):
            mlir.ir_attribute(object())
