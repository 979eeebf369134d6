"""Exported `shard_map`s of symbolic sizes that several calls share, and whose axes have names of any kind."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, export
from meshrt.export.regions import specialised
from meshrt.sharding import AxisType, NamedSharding, P


def over(axis, body, ins):
    mesh = meshrt.make_mesh((4,), (axis,), axis_types=(AxisType.Auto,))
    return mesh, meshrt.jit(meshrt.shard_map(body, mesh=mesh, in_specs=ins, out_specs=P(axis)))


def check(mesh, f, shapes, *args):
    """Exported for these sizes, through bytes, a function gives what it gives for known ones."""
    whole = NamedSharding(mesh, P())
    structs = [meshrt.ShapeDtypeStruct(a.shape, a.dtype, sharding=whole) for a in args]
    specs = export.symbolic_args_specs(structs, list(shapes))
    exported = export.deserialize(export.export(meshrt.jit(f))(*specs).serialize())
    placed = [meshrt.device_put(a, whole) for a in args]
    for found, expected in zip(meshrt.tree.leaves(exported.call(*placed)), meshrt.tree.leaves(f(*placed)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


X, Y = np.arange(8, dtype=np.float32), np.ones(3, np.float32)
CALLS = {
    "constants": lambda g, x, y: g(x, np.float32(2)) + 10 * g(x, np.float32(3)),
    "integers": lambda g, x, y: g(x, np.int32(2)) + 10 * g(x, np.int32(3)),
    "the same integer": lambda g, x, y: g(x, np.int32(2)) + g(x * 2, np.int32(2)),
    "a value, then a constant": lambda g, x, y: g(x, x.sum().astype(np.int32)) + 10 * g(x, np.int32(3)),
    "a constant, then a value": lambda g, x, y: g(x, np.int32(3)) + 10 * g(x, x.sum().astype(np.int32)),
    "sizes": lambda g, x, y: (g(x, x.shape[0]), g(x, y.shape[0])),
    "a branch": lambda g, x, y: meshrt.lax.cond(
        x.sum() > 3, lambda x: g(x, np.int32(2)), lambda x: g(x, np.int32(5)), x
    ),
    "a loop": lambda g, x, y: meshrt.lax.fori_loop(0, 3, lambda i, c: g(c, i), g(x, np.int32(2))),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_one_region_have_their_own_scalars(name):
    mesh, g = over("x", lambda x, s: x * s + jnp.arange(x.shape[0]), (P("x"), P()))
    check(mesh, lambda x, y: CALLS[name](g, x, y), ("4*n", "m"), X, Y)


@pytest.mark.parametrize("axis", ["a,b", "a}b", 'a"b', " a", "a>b", "a]>, b"])
def test_regions_over_axes_of_any_name(axis):
    mesh, g = over(axis, lambda x: x * x.shape[0], (P(axis),))
    check(mesh, g, ("4*n",), X)


MODULE = """module {
  sdy.mesh @mesh = <["x"=2]>
  func.func private @f(%n: tensor<i32>, %x: tensor<8xf32>) -> tensor<8xf32> {
    %0 = sdy.manual_computation(%n, %x) in_shardings=[<@mesh, []>, <@mesh, [{"x"}]>]
        out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%m: tensor<i32>, %y: tensor<4xf32>) {
      %size = stablehlo.reshape %m : (tensor<i32>) -> tensor<1xi32>
      %a = stablehlo.dynamic_iota %size, dim = 0 : (tensor<1xi32>) -> tensor<?xf32>
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %s = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0]
        : (tensor<?xf32>, tensor<f32>) -> tensor<f32>
      %b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<4xf32>
      %c = stablehlo.add %y, %b : tensor<4xf32>
      sdy.return %c : tensor<4xf32>
    } : (tensor<i32>, tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
  func.func public @main(%x: tensor<8xf32>) -> tensor<8xf32> {
    %three = stablehlo.constant dense<3> : tensor<i32>
    %other = stablehlo.constant dense<OTHER> : tensor<i32>
    %0 = call @f(%three, %x) : (tensor<i32>, tensor<8xf32>) -> tensor<8xf32>
    %1 = call @f(%other, %0) : (tensor<i32>, tensor<8xf32>) -> tensor<8xf32>
    return %1 : tensor<8xf32>
  }
}"""


def test_sizes_inside_are_what_every_call_passes():
    assert str(specialised(MODULE.replace("OTHER", "3"), str)).count("stablehlo.iota dim = 0 : tensor<3xf32>") == 2
    with pytest.raises(errors.UnsupportedError, match=r"dense<3> : .* and dense<5> : .* types inside depend on them"):
        specialised(MODULE.replace("OTHER", "5"), str)
