"""Programs for several replicas, read as manual computations."""

import pytest

import collectives
import propagation
from propagation.model import Mesh
from propagation.replicas import replicas_of

TEXT = """module @m attributes {%s} {
  func.func @main(%%x: tensor<4x8xf32>, %%y: tensor<4xf32>%s) -> (tensor<4x8xf32>, tensor<4xf32>) {
    %%0 = "stablehlo.all_reduce"(%%x) <{replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>}> ({
    ^bb0(%%a: tensor<f32>, %%b: tensor<f32>):
      %%2 = stablehlo.add %%a, %%b : tensor<f32>
      stablehlo.return %%2 : tensor<f32>
    }) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    %%id = stablehlo.replica_id : tensor<ui32>
    return %%0, %%y : tensor<4x8xf32>, tensor<4xf32>
  }
}"""
REPLICAS = "mhlo.num_replicas = 4 : i32"


def test_replicas_that_communicate_are_the_devices_of_a_mesh():
    program = propagation.read(TEXT % (REPLICAS, ""))
    assert replicas_of(program) == 4 and [m.axes for m in program.meshes.values()] == [(("replica", 4),)]
    (sent,) = collectives.partition(propagation.run(TEXT % (REPLICAS, ""))).plan
    assert (sent.kind, sent.axes, sent.groups, sent.group_size, sent.bytes) == ("all_reduce", "replica:(1)2", 2, 2, 128)


def test_the_mesh_behind_replicas_may_be_named():
    mesh = Mesh("mesh", (("data", 2), ("model", 2)))
    program = propagation.program.read(TEXT % (REPLICAS, ""), gspmd_mesh=mesh)
    (sent,) = collectives.partition(propagation.run(program)).plan
    assert sent.axes == "data" and replicas_of(program) is None


def test_a_manual_computation_over_an_axis_of_that_name_is_no_program_of_replicas():
    text = """module @m attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
      sdy.mesh @mesh = <["replica"=4]>
      func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
        %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"replica"}]>] out_shardings=[<@mesh, [{"replica"}]>]
            manual_axes={"replica"} (%y: tensor<1xf32>) {
          sdy.return %y : tensor<1xf32>
        } : (tensor<4xf32>) -> tensor<4xf32>
        return %0 : tensor<4xf32>
      }
    }"""
    assert replicas_of(propagation.read(text)) is None


@pytest.mark.parametrize(
    "attributes, argument",
    [
        ("mhlo.num_replicas = 1 : i32", ""),
        (f"{REPLICAS}, mhlo.num_partitions = 2 : i32", ""),
        (f"{REPLICAS}", ', %z: tensor<f32> {sdy.sharding = #sdy.sharding<mesh<["a"=4]>, []>}'),
    ],
)
def test_other_programs_stay_as_they_are(attributes, argument):
    assert replicas_of(propagation.read(TEXT % (attributes, argument))) is None
