"""`xla_order` against the real Shardy, on modules in which broadcasts that add unit dimensions are reshapes already."""

from __future__ import annotations

import re

import pytest

import propagation
from propagation.annotations import read_shardings
from propagation.axis_conflicts import depends_on_order, lying_apart, meeting

from .oracle import Oracle

BLOCK = """
sdy.mesh @mesh = <["x"=8]>
func.func @main(%table: tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                %w: tensor<32x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                %v: tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>},
                %ids: tensor<16x8xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<16x8x32xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.broadcast_in_dim %ids, dims = [0, 1] : (tensor<16x8xi32>) -> tensor<16x8x1xi32>
  %1 = "stablehlo.gather"(%table, %0) <{dimension_numbers = #stablehlo.gather<offset_dims = [2],
       collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, slice_sizes = array<i64: 1, 32>}>
       : (tensor<64x32xf32>, tensor<16x8x1xi32>) -> tensor<16x8x32xf32>
  %2 = stablehlo.multiply %1, %1 : tensor<16x8x32xf32>
  %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [2]
       : (tensor<16x8x32xf32>, tensor<f32>) -> tensor<16x8xf32>
  %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1] : (tensor<16x8xf32>) -> tensor<16x8x1xf32>
  %5 = stablehlo.rsqrt %4 : tensor<16x8x1xf32>
  %6 = stablehlo.broadcast_in_dim %5, dims = [0, 1, 2] : (tensor<16x8x1xf32>) -> tensor<16x8x32xf32>
  %7 = stablehlo.multiply %1, %6 : tensor<16x8x32xf32>
  %8 = stablehlo.dot_general %7, %w, contracting_dims = [2] x [0]
       : (tensor<16x8x32xf32>, tensor<32x64xf32>) -> tensor<16x8x64xf32>
  %9 = stablehlo.dot_general %8, %v, contracting_dims = [2] x [0]
       : (tensor<16x8x64xf32>, tensor<64x32xf32>) -> tensor<16x8x32xf32>
  %10 = stablehlo.add %1, %9 : tensor<16x8x32xf32>
  return %10 : tensor<16x8x32xf32> }
"""
UNIT = re.compile(r"broadcast_in_dim (%\w+), dims = \[0, 1\] (: \(tensor<(\w+?)x[a-z]\w+>\) -> tensor<\3x1x)")


def decided(program) -> list:
    shardings = read_shardings(program)
    shown = lambda v: None if (s := shardings.get(v)) is None or s.is_fully_replicated else s.to_text()
    return [shown(r) for op in program.ops() for r in op.results]


@pytest.mark.smoke
def test_as_shardy_does_with_reshapes():
    as_reshapes, count = UNIT.subn(r"reshape \1 \2", BLOCK)
    assert count == 2
    with Oracle() as oracle:
        theirs = oracle("closed", as_reshapes)
        plain = oracle("closed", BLOCK)
    ours = propagation.run(BLOCK, xla_order=True)
    assert decided(propagation.read(ours.as_text())) == decided(propagation.read(theirs))
    assert decided(propagation.read(plain)) != decided(propagation.read(theirs))
    first = propagation.run(BLOCK)
    assert depends_on_order(first.program, first.shardings)


def test_another_propagation_of_the_same_module():
    first = propagation.run(BLOCK)
    second = first.again(xla_order=True)
    assert second.as_text() == propagation.run(BLOCK, xla_order=True).as_text()
    assert second.again(xla_order=False).as_text() == first.as_text()
    assert propagation.run(propagation.read(BLOCK)).again(xla_order=True) is None


WEIGHTS_FIRST = BLOCK.replace('%ids: tensor<16x8xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}',
                              '%ids: tensor<16x8xi32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}p1')  # fmt: skip


def test_another_propagation_keeps_user_priorities():
    """Without them the batch, carried by reshapes, comes before the weights."""
    first = propagation.run(WEIGHTS_FIRST)
    second = first.again(xla_order=True)
    with Oracle() as oracle:
        theirs = oracle("closed", UNIT.sub(r"reshape \1 \2", WEIGHTS_FIRST))
    assert decided(propagation.read(second.as_text())) == decided(propagation.read(theirs))
    assert second.as_text() == propagation.run(WEIGHTS_FIRST, xla_order=True).as_text()
    assert second.as_text() != propagation.run(BLOCK, xla_order=True).as_text()
    assert {e.round[0] for e in second.log} == {e.round[0] for e in first.log} == {0, 1}
    assert second.again(xla_order=False).as_text() == first.as_text()


LATER = """
sdy.mesh @mesh = <["x"=2, "y"=2]>
func.func @main(%x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}p1, {?}p2]>},
                %y: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"y"}p3]>},
                %z: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.add %x, %y : tensor<8x8xf32>
  %1 = stablehlo.add %0, %z : tensor<8x8xf32>
  return %1 : tensor<8x8xf32> }
"""


def test_axes_have_the_user_priority_at_which_they_came():
    found = propagation.run(LATER)
    assert {s.to_text() for s in found.arg_shardings} == {'#sdy.sharding<@mesh, [{"x"}, {"y"}]>'}
    given = [[found.log.user_priority(v, dim) for dim in (0, 1)] for v in found.program.main.args]
    assert given == [[1, 3], [1, 3], [1, 3]]
    assert found.again().as_text() == found.as_text()


@pytest.mark.parametrize("late", ["p1", ""])
def test_axes_of_different_user_priorities_do_not_race(late):
    """The batch comes to the looked-up rows behind a broadcast; the weights wait until it is everywhere, or do not."""
    weights = BLOCK.replace('tensor<32x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}',
                            'tensor<32x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}' + late)  # fmt: skip
    weights = weights.replace('[{}, {"x"}]>}', f'[{{}}, {{"x"}}{late}]>}}')
    weights = weights.replace('64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}',
                              '64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}' + late)  # fmt: skip
    assert weights.count(late) >= 3
    first = propagation.run(weights)
    assert depends_on_order(first.program, first.shardings, first.log) == (not late)
    assert (first.again(xla_order=True).as_text() == first.as_text()) == bool(late)


def test_axes_that_meet_nowhere_need_no_other_order():
    text = re.sub(r"(%(table|w|v): tensor<\w+>) \{sdy.sharding = [^>]*>\}", r"\1", BLOCK)
    assert text.count("{sdy.sharding") == 1
    result = propagation.run(text)
    assert not depends_on_order(result.program, result.shardings)


def test_the_log_tells_a_race_from_a_meeting():
    """Activations that begin split by the batch do not wait for the broadcast; looked-up ones do."""
    start, end = BLOCK.index("  %0 ="), BLOCK.index("  %2 =")
    text = BLOCK[:start] + BLOCK[end:].replace("%1", "%ids")
    text = text.replace("%ids: tensor<16x8xi32>", "%ids: tensor<16x8x32xf32>").replace(
        '[{"x"}, {}]>}) ->', '[{"x"}, {}, {}]>}) ->'
    )
    result = propagation.run(text)
    assert depends_on_order(result.program, result.shardings)
    assert not depends_on_order(result.program, result.shardings, result.log)
    assert result.again(xla_order=True).as_text() == result.as_text()
    first = propagation.run(BLOCK)
    assert depends_on_order(first.program, first.shardings, first.log)


def test_an_axis_meets_itself_where_two_of_its_dimensions_do_not_correspond():
    """Rows of the weight lie over the devices that share the batch; its columns have an axis of their own."""
    decided = propagation.run("""
    sdy.mesh @mesh = <["a"=2, "b"=2, "c"=2]>
    func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", ?}, {?}]>},
        %w: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", ?}, {"b", ?}]>}) -> tensor<8x32xf32> {
      %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
          : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
      %1 = stablehlo.tanh %0 : tensor<8x32xf32>
      return %1 : tensor<8x32xf32> }""")
    apart = lying_apart(decided.program, decided.shardings)
    assert meeting(apart, {"a", "b", "c"}) == {"a"}
    assert meeting(apart, {"b", "c"}) == set()
