"""Manual computations over some axes: what happens to the others, and annotations where they mean nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir

import collectives
import propagation
import propagation.program

from . import harness
from .jax_side import Case, jax_mesh

AXES = {"data": 4, "model": 2}
BODIES = {
    "psum": (lambda x: lax.psum(x, "data"), P(), {"all_reduce"}),
    "pmax": (lambda x: lax.pmax(x, "data"), P(), {"all_reduce"}),
    "psum_scatter": (lambda x: lax.psum_scatter(x, "data", tiled=True), P("data"), {"reduce_scatter"}),
    "all_gather": (lambda x: lax.all_gather(x, "data", tiled=True), P(), {"all_gather"}),
    "ppermute": (lambda x: lax.ppermute(x, "data", [(0, 1), (1, 2), (2, 0)]), P("data"), {"collective_permute"}),
    "sort": (lambda x: jnp.sort(x, 0), P("data"), set()),
    "scatter": (lambda x: x.at[jnp.array([0, 1])].add(1.0), P("data"), set()),
}


def inside(body, mesh, out):
    map_ = dict(mesh=mesh, in_specs=P("data"), out_specs=out, axis_names={"data"}, check_vma=False)
    return shard_map(body, **map_)


@pytest.mark.parametrize("name", BODIES)
def test_free_axes_stay_split(name):
    """Also: shardings in the bodies of reductions, sorts and scatters, which JAX writes there, are dropped."""
    body, out, kinds = BODIES[name]
    x = np.random.default_rng(0).normal(size=(16, 24)).astype(np.float32)
    mapped = inside(body, jax_mesh(AXES), out)
    case = Case(AXES, lambda _: mapped, (x,), (P("data", "model"),), P(*out, *[None] * (1 - len(out)), "model"))
    result = collectives.partition(propagation.run(case.text), allow_full_gather=False)
    assert "sdy" not in result.as_text() and set(result.plan.counts) == kinds
    assert all(entry.axes == "data" for entry in result.plan.entries if entry.kind != "collective_permute")
    want = np.asarray(jax.jit(mapped)(x))
    (got,), _ = harness.run_partitioned(result, [x], [want.shape])
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_exchanges_keep_what_they_do_not_move():
    x = np.random.default_rng(1).normal(size=(16, 8, 6)).astype(np.float32)
    mesh = jax_mesh(AXES)
    body = lambda x: lax.all_to_all(x, "data", 1, 0, tiled=True)
    spec = P(None, "data", "model")
    map_ = dict(mesh=mesh, in_specs=P("data"), out_specs=P(None, "data"), axis_names={"data"}, check_vma=False)
    case = Case(AXES, lambda _: shard_map(body, **map_), (x,), (P("data", None, "model"),), spec)
    result = collectives.partition(propagation.run(case.text), allow_full_gather=False)
    assert result.plan.counts == {"all_to_all": 1}
    (got,), _ = harness.run_partitioned(result, [x], [(16, 8, 6)])
    np.testing.assert_array_equal(got, x)


def test_annotations_of_scalars_are_dropped_at_every_level():
    text = """sdy.mesh @mesh = <["a"=4, "b"=2]>
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"b"}]>}) -> tensor<16xf32> {
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "stablehlo.reduce"(%x, %c) <{dimensions = array<i64: 0>}> ({ ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %1 = sdy.sharding_constraint %p <@mesh, []> : tensor<f32>
    %2 = stablehlo.add %1, %q : tensor<f32>
    %3 = sdy.sharding_constraint %2 <@mesh, []> : tensor<f32>
    stablehlo.return %3 : tensor<f32> }) : (tensor<8x16xf32>, tensor<f32>) -> tensor<16xf32>
  return %0 : tensor<16xf32> }"""
    x = np.arange(128, dtype=np.float32).reshape(8, 16)
    result = collectives.partition(propagation.run(text))
    assert "sdy" not in result.as_text() and result.plan.counts["all_reduce"] == 1
    (got,), _ = harness.run_partitioned(result, [x], [(16,)])
    np.testing.assert_array_equal(got, x.sum(0))


@pytest.mark.parametrize("columns, kinds", [(16, {"all_reduce": 1}), (18, {})])
def test_custom_calls_sum_over_the_reduced_factors_of_their_rules(columns, kinds):
    """Judged with a contraction in the place of the call. Pieces with padding are not summed."""
    rule = f"<([i, j], [j, k])->([i, k]) {{i=8, j={columns}, k=4}} reduction={{j}}, custom>"
    dim = '"a"' if columns == 16 else ""
    text = f"""sdy.mesh @mesh = <["a"=4, "b"=2]>
func.func @main(%x: tensor<8x{columns}xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"b"}}, {{{dim}}}]>}},
    %y: tensor<{columns}x4xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{{dim}}}, {{}}]>}})
    -> (tensor<8x4xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"b"}}, {{}}]>}}) {{
  %0 = stablehlo.custom_call @f(%x, %y) {{sdy.sharding_rule = #sdy.op_sharding_rule{rule}}}
    : (tensor<8x{columns}xf32>, tensor<{columns}x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32> }}"""
    result = collectives.partition(propagation.run(text))
    assert result.plan.counts == kinds and not result.findings
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(8, columns)).astype(np.float32), rng.normal(size=(columns, 4)).astype(np.float32)
    (line,) = [t for t in result.as_text().splitlines() if "custom_call" in t]
    dot = (
        "<{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>}>"
    )
    head, rest = line.split('"stablehlo.custom_call"')
    program = result.as_text().replace(
        line, f'{head}"stablehlo.dot_general"{rest[: rest.index(")") + 1]} {dot}{rest[rest.index(" : (") :]}'
    )
    shards = [harness.pieces(a, s) for a, s in zip((x, y), result.arg_shardings)]
    (out,) = harness.Compiled(program, 8)(shards)
    got = harness.unshard(out, (8, 4), result.result_shardings[0])
    np.testing.assert_allclose(got, x @ y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("groups", ["dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>", "axes"])
def test_groups_as_numbers_and_as_axes(groups):
    """Groups of a sub-axis; newer frontends write them as axes of a mesh, which older jaxlibs cannot read."""
    if groups == "axes":
        axis = '#stablehlo.axis_ref<name = "a", sub_axis_info = (1)2>'
        groups = f"#stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [{axis}]>"
        with propagation.contexts.context():
            try:
                ir.Attribute.parse(groups)
            except ir.MLIRError:
                pytest.skip("this jaxlib has no groups of axes")
    text = f"""sdy.mesh @mesh = <["a"=4, "b"=2]>
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {{
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{{"a"}}, {{?}}]>] out_shardings=[<@mesh, [{{"a"}}, {{?}}]>]
    manual_axes={{"a"}} (%z: tensor<2x16xf32>) {{
    %1 = "stablehlo.all_reduce"(%z) <{{replica_groups = {groups}}}> ({{ ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %2 = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %2 : tensor<f32> }}) : (tensor<2x16xf32>) -> tensor<2x16xf32>
    sdy.return %1 : tensor<2x16xf32> }} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32> }}"""
    x = np.arange(128, dtype=np.float32).reshape(8, 16)
    result = collectives.partition(propagation.run(text))
    (got,), _ = harness.run_partitioned(result, [x], [(8, 16)])
    half = x[:4] + x[4:]
    np.testing.assert_array_equal(got, np.concatenate([half, half]))


def written(op: str, groups: str, attrs: str = "", result: str = "2x16") -> str:
    """A program's own collective over rows that axis "a" has split by hand; axis "b" is free."""
    name = "source_target_pairs" if op == "collective_permute" else "replica_groups"
    body = (
        ""
        if op != "all_reduce"
        else """({ ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32> })"""
    )
    return f"""sdy.mesh @mesh = <["a"=4, "b"=2]>
func.func @main(%x: tensor<8x16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"a"}}, {{"b"}}]>}}) -> tensor<8x16xf32> {{
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{{"a"}}, {{?}}]>] out_shardings=[<@mesh, [{{"a"}}, {{?}}]>]
    manual_axes={{"a"}} (%z: tensor<2x16xf32>) {{
    %1 = "stablehlo.{op}"(%z) <{{{name} = {groups}{attrs}}}> {body} : (tensor<2x16xf32>) -> tensor<{result}xf32>
    %2 = stablehlo.slice %1 [0:2, 0:16] : (tensor<{result}xf32>) -> tensor<2x16xf32>
    sdy.return %2 : tensor<2x16xf32> }} : (tensor<8x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32> }}"""


@pytest.mark.parametrize("groups", ["dense<> : tensor<0x0xi64>", "dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>"])
def test_no_groups_are_one_of_all_devices(groups):
    """Free axes among them: every device has its own addend there, whatever the layout that was chosen for it."""
    x = np.arange(128, dtype=np.float32).reshape(8, 16)
    result = collectives.partition(propagation.run(written("all_reduce", groups)))
    (got,), _ = harness.run_partitioned(result, [x], [(8, 16)])
    np.testing.assert_array_equal(got, np.tile(2 * x.reshape(4, 2, 16).sum(0), (4, 1)))


@pytest.mark.parametrize(
    "op, groups, attrs, result",
    [
        ("all_reduce", "dense<-1> : tensor<4x2xi64>", "", "2x16"),
        ("all_reduce", "dense<0> : tensor<4x2xi64>", "", "2x16"),
        ("all_reduce", "dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>", "", "2x16"),
        ("all_reduce", "dense<[[0, 1, 2, 3, 4, 5, 6, 8]]> : tensor<1x8xi64>", "", "2x16"),
        ("all_gather", "dense<[[0, 2, 4, 6], [1, 3, 5, 7]]> : tensor<2x4xi64>", ", all_gather_dim = 0 : i64", "4x16"),
        ("collective_permute", "dense<[[0, 99]]> : tensor<1x2xi64>", "", "2x16"),
        ("collective_permute", "dense<[[0, 2], [4, 2]]> : tensor<2x2xi64>", "", "2x16"),
    ],
)
def test_groups_that_are_none_are_typed_errors(op, groups, attrs, result):
    with pytest.raises((collectives.errors.GroupsError, propagation.errors.ModuleParseError)):
        collectives.partition(propagation.run(written(op, groups, attrs, result)))
