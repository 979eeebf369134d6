"""Meshes, arguments and results that no partitioned program can have: errors that name them, their sizes and a fix."""

from __future__ import annotations

import pytest

import collectives
import propagation
from collectives import errors

ONE = 'sdy.mesh @one = <["a"=4, "b"=2]>\n'
TWO = 'sdy.mesh @two = <["c"=8]>\n'
TURNED = 'sdy.mesh @turned = <["a"=4, "b"=2], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>\n'
ALONE = "sdy.mesh @alone = <[], device_ids=[3]>\n"
X = "tensor<8x16xf32>"


def program(meshes: str, argument: str, result: str, kind: str = X) -> str:
    return f"""{meshes}func.func @main(%x: {kind} {{sdy.sharding = #sdy.sharding<{argument}>}} loc("state['w']"))
      -> ({kind} {{jax.result_info = "result['y']", sdy.sharding = #sdy.sharding<{result}>}}) {{
      %0 = stablehlo.negate %x : {kind}
      return %0 : {kind} }}"""


def test_meshes_of_other_shapes_are_named_with_what_uses_them():
    text = program(ONE + TWO, '@one, [{"a"}, {}]', '@two, [{}, {"c"}]')
    wanted = (
        r"different shapes \(@one .* of argument 0 \(state\['w'\]\) of @main, @two .* of result 0 .*use one mesh shape"
    )
    with pytest.raises(errors.MeshMismatchError, match=wanted) as found:
        collectives.partition(text)
    assert found.value.where


def test_one_mesh_in_two_orders_is_named_with_what_uses_it():
    text = program(ONE + TURNED, '@one, [{"a"}, {}]', '@turned, [{}, {"b"}]')
    with pytest.raises(errors.MeshMismatchError, match=r"several orders of devices .*@turned .* of result 0") as found:
        collectives.partition(text)
    assert found.value.where


def test_meshes_that_nothing_uses_do_not_matter():
    text = program(TWO + ONE + TURNED.replace("turned", "other") + ALONE, '@one, [{"a"}, {}]', '@one, [{"a"}, {}]')
    assert collectives.partition(text).mesh.name == "one"


def test_what_is_placed_on_one_device():
    text = program(ONE + ALONE, '@one, [{"a"}, {}]', "@alone, []")
    with pytest.raises(errors.MeshMismatchError, match=r"result 0 .* is placed on device 3 alone, by mesh @alone") as e:
        collectives.partition(text)
    assert e.value.where


@pytest.mark.parametrize(
    "argument, result, wanted",
    [
        ('{"a"}', "{}", r"argument 0 \(state\['w'\]\) of @main is f32\[10@a,16\]: dimension 0 has size 10, which a"),
        ("{}", '{"a"}', r"result 0 \(result\['y'\]\) of @main is f32\[10@a,16\]: dimension 0 has size 10, which a"),
    ],
)
def test_sizes_that_do_not_divide_at_the_boundary(argument, result, wanted):
    """In a module of somebody else they are refused; propagation leaves the axes that divide."""
    text = program(ONE, f"@one, [{argument}, {{}}]", f"@one, [{result}, {{}}]", "tensor<10x16xf32>")
    with pytest.raises(
        errors.UnsupportedShardingError, match=wanted + r" \(4 devices\) does not divide; make it 12"
    ) as e:
        collectives.partition(text)
    assert e.value.where
    kept = collectives.partition(propagation.run(text))
    assert {s.to_text()[14:] for s in (*kept.arg_shardings, *kept.result_shardings)} == {
        '@one, [{"a":(1)2}, {}]>',
        "@one, [{}, {}]>",
    }


def test_a_topology_of_another_size_names_the_program():
    wanted = r"v5e:2x2 and the mesh .* numbers of devices, 4 and 8; use v5e:2x4"
    with pytest.raises(errors.TopologyError, match=wanted) as found:
        collectives.partition(program(ONE, "@one, [{}, {}]", "@one, [{}, {}]"), "v5e:2x2")
    assert found.value.where


CHAIN = f"""{ONE}func.func @main(%x: tensor<1024x64xf32>, %y: tensor<64x1024xf32>) -> tensor<1024x64xf32> {{
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] :
       (tensor<1024x64xf32>, tensor<64x1024xf32>) -> tensor<1024x1024xf32>
  %1 = stablehlo.dot_general %0, %x, contracting_dims = [1] x [0] :
       (tensor<1024x1024xf32>, tensor<1024x64xf32>) -> tensor<1024x64xf32>
  return %1 : tensor<1024x64xf32> }}"""


def test_what_a_contraction_makes_for_another_is_in_memory():
    program = propagation.run(CHAIN)
    wanted = r"dot_general reads .* needs 4.5 MiB \(512 KiB of it for arguments\) and has 4 MiB; the largest "
    with pytest.raises(
        errors.DeviceMemoryError, match=wanted + r"values there are tensor<1024x1024xf32> 4 MiB at .*:\d+"
    ) as found:
        collectives.partition(program, memory=4 << 20, reorder=False)  # in the layouts that were handed in
    assert found.value.where
    assert collectives.partition(propagation.run(CHAIN), memory=5 << 20).plan.counts == {}


def test_arguments_and_results_that_do_not_fit_are_named_with_their_lines():
    wanted = (
        r"the memory of a device: .* has 16 KiB; the largest are argument 0 f32\[1024,64\] 256 KiB at .*:2; argument 1"
    )
    with pytest.raises(errors.DeviceMemoryError, match=wanted) as found:
        collectives.partition(propagation.run(CHAIN), memory=16 << 10)
    assert found.value.where
