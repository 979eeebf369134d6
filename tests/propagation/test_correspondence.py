"""Classes of dimensions that are sharded alike, and shardings of arguments that replace those of the module."""

import pytest

import propagation
from propagation.correspondence import dimension_classes
from propagation.errors import BadOptionError
from propagation.overrides import annotating

BLOCK = """
func.func @main(%x: tensor<4x8x16xf32>, %q: tensor<16x32xf32>, %o: tensor<32x16xf32>, %n: tensor<16xf32>)
    -> tensor<4x8x16xf32> {
  %0 = stablehlo.dot_general %x, %q, contracting_dims = [2] x [0]
      : (tensor<4x8x16xf32>, tensor<16x32xf32>) -> tensor<4x8x32xf32>
  %1 = stablehlo.reshape %0 : (tensor<4x8x32xf32>) -> tensor<4x8x2x16xf32>
  %2 = stablehlo.tanh %1 : tensor<4x8x2x16xf32>
  %3 = stablehlo.reshape %2 : (tensor<4x8x2x16xf32>) -> tensor<4x8x32xf32>
  %4 = stablehlo.dot_general %3, %o, contracting_dims = [2] x [0]
      : (tensor<4x8x32xf32>, tensor<32x16xf32>) -> tensor<4x8x16xf32>
  %5 = stablehlo.broadcast_in_dim %n, dims = [2] : (tensor<16xf32>) -> tensor<4x8x16xf32>
  %6 = stablehlo.multiply %4, %5 : tensor<4x8x16xf32>
  %7 = stablehlo.add %6, %x : tensor<4x8x16xf32>
  return %7 : tensor<4x8x16xf32>
}
"""
LOOP = """
func.func @main(%x: tensor<4x16xf32>, %w: tensor<3x16x16xf32>) -> tensor<4x16xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %c = %x) : tensor<i32>, tensor<4x16xf32>
    cond {
      %go = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %s = stablehlo.dynamic_slice %w, %i, %zero, %zero, sizes = [1, 16, 16]
          : (tensor<3x16x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x16x16xf32>
      %m = stablehlo.reshape %s : (tensor<1x16x16xf32>) -> tensor<16x16xf32>
      %d = stablehlo.dot_general %c, %m, contracting_dims = [1] x [0]
          : (tensor<4x16xf32>, tensor<16x16xf32>) -> tensor<4x16xf32>
      %n = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %n, %d : tensor<i32>, tensor<4x16xf32>
    }
  return %r#1 : tensor<4x16xf32>
}
"""
# %y has users before it is added to %x and after; of a third value one dimension has a single element.
MET_LATE = """
func.func @main(%x: tensor<4x16xf32>, %y: tensor<4x16xf32>, %w: tensor<16x6xf32>, %c: tensor<4x1xf32>)
    -> (tensor<4x16xf32>, tensor<6x6xf32>) {
  %0 = stablehlo.dot_general %y, %w, contracting_dims = [1] x [0]
      : (tensor<4x16xf32>, tensor<16x6xf32>) -> tensor<4x6xf32>
  %1 = stablehlo.tanh %c : tensor<4x1xf32>
  %2 = stablehlo.add %c, %1 : tensor<4x1xf32>
  %3 = stablehlo.add %x, %y : tensor<4x16xf32>
  %4 = stablehlo.multiply %y, %3 : tensor<4x16xf32>
  %5 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x16xf32>
  %6 = stablehlo.add %4, %5 : tensor<4x16xf32>
  %7 = stablehlo.dot_general %y, %w, contracting_dims = [1] x [0]
      : (tensor<4x16xf32>, tensor<16x6xf32>) -> tensor<4x6xf32>
  %8 = stablehlo.dot_general %0, %7, contracting_dims = [0] x [0]
      : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<6x6xf32>
  return %6, %8 : tensor<4x16xf32>, tensor<6x6xf32>
}
"""
MESH = 'sdy.mesh @mesh = <["a"=2, "b"=4]>\n'


def classes(text: str) -> list[list[str]]:
    return [[f"{d.argument}:{d.dim}" for d in c.dims] for c in dimension_classes(text)]


def test_a_block_has_its_batch_its_positions_its_features_and_its_heads() -> None:
    assert classes(BLOCK) == [["0:0"], ["0:1"], ["0:2", "1:0", "2:1", "3:0"], ["1:1", "2:0"]]
    assert [c.is_summed for c in dimension_classes(BLOCK)] == [False, False, True, True]


def test_values_that_meet_late_have_been_one_all_along() -> None:
    found = dimension_classes(MET_LATE)
    assert classes(MET_LATE) == [["0:0", "1:0", "3:0"], ["0:1", "1:1", "2:0"], ["2:1"]]
    assert [(c.uses, c.is_summed) for c in found] == [(9, True), (6, True), (4, False)]


def test_values_that_loops_carry_correspond() -> None:
    """A square matrix that is applied again and again has one class in both of its dimensions."""
    assert classes(LOOP) == [["0:0"], ["0:1", "1:1", "1:2"], ["1:0"]]


def test_what_a_module_says_of_shardings_changes_nothing() -> None:
    said = MESH + BLOCK.replace(
        "%q: tensor<16x32xf32>", '%q: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}'
    )
    assert classes(said) == classes(BLOCK)


@pytest.mark.parametrize("number", range(4))
def test_an_axis_reaches_every_dimension_of_a_class(number) -> None:
    """What propagation does along one dimension of a class, it does along all: judged by propagation itself."""
    found = dimension_classes(BLOCK)[number]
    ranks, first = (3, 2, 2, 1), found.dims[0]
    axes = [[()] * rank for rank in ranks]
    axes[first.argument][first.dim] = ("a",)
    given = [axes[i] if i == first.argument else None for i in range(4)]
    decided = propagation.run(BLOCK, "propagated", annotate=annotating({"a": 2}, given))
    for d in found.dims:
        sharding = decided.arg_shardings[d.argument]
        assert sharding is not None and [a.name for a in sharding.dims[d.dim].axes] == ["a"], d


def test_arguments_are_sharded_as_they_are_told() -> None:
    said = MESH + BLOCK.replace(
        "%q: tensor<16x32xf32>", '%q: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}'
    )
    decided = propagation.run(said, annotate=annotating(None, [[("a",), (), ()], [(), ("b",)], None, None]))
    assert [s and s.to_text() for s in decided.arg_shardings[:2]] == [
        '#sdy.sharding<@mesh, [{"a"}, {}, {}]>', '#sdy.sharding<@mesh, [{}, {"b"}]>',
    ]  # fmt: skip
    again = decided.again(conservative=True)
    assert again is not None and again.arg_shardings[1] is decided.arg_shardings[1]


def test_a_result_in_the_place_of_an_argument_is_sharded_as_that() -> None:
    text = BLOCK.replace("%x: tensor<4x8x16xf32>", "%x: tensor<4x8x16xf32> {tf.aliasing_output = 0 : i32}", 1)
    decided = propagation.run(text, annotate=annotating({"a": 2}, [[(), ("a",), ()], None, None, None]))
    assert decided.result_shardings[0] is decided.arg_shardings[0]


@pytest.mark.parametrize(
    ("mesh", "arguments", "message"),
    [
        ({"a": 2}, [None] * 3, "4 arguments, and shardings were given for 3"),
        ({"a": 2}, [[()], None, None, None], "argument 0 has 3 dimensions"),
        (None, [None] * 4, "names no mesh"),
    ],
)
def test_refusals(mesh, arguments, message) -> None:
    with pytest.raises(BadOptionError, match=message):
        propagation.run(BLOCK, annotate=annotating(mesh, arguments))


def test_a_module_with_shardings_keeps_its_mesh() -> None:
    said = MESH + BLOCK.replace(
        "%q: tensor<16x32xf32>", '%q: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}'
    )
    with pytest.raises(BadOptionError, match="its own mesh a=2,b=4"):
        propagation.run(said, annotate=annotating({"c": 8}, [None] * 4))
